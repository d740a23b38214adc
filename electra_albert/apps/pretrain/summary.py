"""Start-of-run plan and closing report of a pretraining run."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from electra_albert.apps.demo import format_proposals, format_scored
from electra_albert.apps.machine import why_not_compiled
from electra_albert.apps.pretrain.scores import error_lines, format_forgetting, format_scores, read_evaluations
from electra_albert.contracts import DataError, Metrics
from electra_albert.corpus.tokenizer import Piece, describe_pieces
from electra_albert.inference.engine import TokenSequence, printable, shown
from electra_albert.inference.model import InferenceModel, Proposal
from electra_albert.keyed_random import Stream, bits
from electra_albert.model.attention import stock_computes
from electra_albert.objectives import spec_of
from electra_albert.training.monitor import EVALUATION_PREFIX

if TYPE_CHECKING:
    from torch import nn

    from electra_albert.apps.pretrain.job import Job
    from electra_albert.corpus.examples import Rows
    from electra_albert.objectives.rtd import PretrainingObjective
    from electra_albert.training.distributed import World

EXAMPLES = 3
_SHORTEST, _LONGEST = 8, 30  # tokens of a sentence that is shown
_LOOKED_AT = 200  # sentences passed over before an example is given up
_GUESSES = 5


def plan_lines(job: Job, world: World) -> list[str]:
    """Sizes of model, corpus and run, for the start of a run and for --dry_run."""
    config, batches = job.config, job.batches
    steps, warmup = config.training.max_steps, config.training.warmup_steps
    length, rows = config.corpus.max_seq_length, batches.global_batch_size
    rate = spec_of(config).mask_rate(config)
    masked = "" if rate is None else f"mask rate {rate:g}, "
    lines = [
        _parameter_line(job.objective),
        f"examples of {length} tokens: {batches.rows.table.count:,} to train on, {job.held_out.table.count:,} held out",
        f"{steps:,} steps of {rows:,} examples ({rows * length:,} tokens), {batches.epoch(steps):.2f} epochs, "
        f"objective {config.run.objective}, {masked}on "
        f"{world.world_size} x {world.device.type} in {job.arithmetic}, {_compiled(job, world)} compiled",
        f"baseline of the loss on masked tokens: {job.unigram.entropy:.2f}, the entropy of the token frequencies",
    ]
    if job.origin is not None:
        if job.lacks_generator:
            alone = config.generator_warmup_steps
            lines.append(f"before them {alone:,} steps of the new generator alone, which estimates of time leave out")
        peak = config.training.learning_rate
        lines.append(f"schedule: a new one, up to {peak:g} over {warmup:,} steps and down to 0 at step {steps:,}")
    if not stock_computes(config.model):
        lines.append(
            f"notice: transformers has no attention {config.model.attention}: the models are written in a format that "
            "this toolkit loads wherever it takes a model, and AutoModel does not"
        )
    if rate is not None:
        count, wanted = job.held_out.table.count, config.training.eval_examples
        lines += error_lines(round(len(job.held_out.stream.tokens) * min(count, wanted) // count * rate))
    if warmup >= steps:
        lines.append(f"notice: --warmup_steps {warmup:,} of {steps:,} steps: the full learning rate is never reached")
    return lines


def _compiled(job: Job, world: World) -> str:
    """The part that torch.compile compiles, and why nothing, where something is usual."""
    if job.compilation != "none":
        return job.compilation
    is_missed = world.device.type == "cuda" and job.config.run.torch_compile == "auto"
    return f"nothing ({why_not_compiled(world.device)})" if is_missed else "nothing"


def _parameter_line(objective: PretrainingObjective) -> str:
    tables, total = count_parameters(objective.generator.embeddings), count_parameters(objective)
    if objective.discriminator is None:
        return f"parameters: {total:,} ({tables:,} tables, {total - tables:,} encoder and heads)"
    generator, discriminator = (
        count_parameters(model) - tables for model in (objective.generator, objective.discriminator)
    )
    return f"parameters: {total:,} ({tables:,} shared tables, {generator:,} generator, {discriminator:,} discriminator)"


def count_parameters(module: nn.Module) -> int:
    """Trainable numbers, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def closing_report(job: Job, metrics: Metrics, folder: Path) -> str:
    """Scores next to their baselines, masked held-out sentences, the files written, and the next command."""
    lines = [format_scores(metrics)]
    if job.origin is not None:
        lines.append(format_forgetting(read_evaluations(folder, EVALUATION_PREFIX)))
    lines += [_example(job, sentence, cloze) for sentence, cloze in _clozes(job)]
    models = "generator/" if job.objective.discriminator is None else "generator/ and discriminator/"
    stock = "stock Hugging Face folders" if stock_computes(job.config.model) else "in this toolkit's own format"
    return "\n".join(
        [
            *lines,
            "",
            f"written to {folder}: {models} ({stock}), tokenizer/, checkpoints/,",
            "    metrics.jsonl, tensorboard/, README.md (model card), config.yaml",
            f"next: {shlex.join([_interpreter(), 'LM_DEMO.py', '--gen', str(folder)])}",
        ]
    )


def _interpreter() -> str:
    """The command of the running Python: the one of a virtual environment need not be on the path."""
    if shutil.which("python") == sys.executable:
        return "python"
    running, here = Path(sys.executable), Path.cwd()
    return str(running.relative_to(here)) if running.is_relative_to(here) else str(running)


class _Cloze(NamedTuple):
    """A held-out sentence with one word masked."""

    text: str
    position: int  # of the masked token in the sentence
    answer: list[list[Proposal]]


def _clozes(job: Job) -> Iterator[tuple[list[int], _Cloze]]:
    """Held-out sentences with a word masked; one that is longer than the model reads when tokenized again is left out.

    That happens where the mask takes the place of a part of a word.
    """
    objective, tokenizer, model = job.objective, job.prepared.tokenizer, _inference(job)
    for key, sentence in enumerate(_sentences(job.held_out)):
        words = _whole_words(describe_pieces(tokenizer, sentence)) or range(len(sentence))
        draw = bits(objective.seed, Stream.EXAMPLE, torch.tensor(key), torch.tensor(0))
        position = words[int(draw) % len(words)]
        before, after = tokenizer.decode(sentence[:position]), tokenizer.decode(sentence[position + 1 :])
        text = f"{before} {tokenizer.mask_token} {after}".strip()
        try:
            (answer,) = model.fill_mask([text], _GUESSES)
        except DataError:
            continue
        yield sentence, _Cloze(text, position, answer if isinstance(answer[0], list) else [answer])


def _inference(job: Job) -> InferenceModel:
    """The calls of inference on the models in memory."""
    generator, device = job.objective.generator, job.objective.generator.predictions.bias.device
    models = (generator, generator, job.objective.discriminator)
    return InferenceModel(job.prepared.tokenizer, *models, "it is not fine-tuned", device, 4096, Path())


def guesses_in_markdown(job: Job) -> str:
    """The generator's guesses at held-out words, for TensorBoard."""
    lines = []
    for _, cloze in _clozes(job):
        guesses = ", ".join(f"{shown(p['token_str'])} {p['score']:.1%}" for p in cloze.answer[0])
        lines.append(f"- {printable(cloze.text)}: **{guesses}**")
    return "\n".join(lines)


def _example(job: Job, sentence: list[int], cloze: _Cloze) -> str:
    """A held-out sentence with a masked word, then with the generator's guess in its place. sentence: token ids."""
    tokenizer, colours = job.prepared.tokenizer, sys.stdout.isatty()
    lines = ["", format_proposals(cloze.text, cloze.answer, colours=colours)]
    if job.objective.discriminator is not None:
        original = sentence[cloze.position]
        guess = next((proposal["token"] for proposal in cloze.answer[0] if proposal["token"] != original), original)
        filled = [*sentence[: cloze.position], guess, *sentence[cloze.position + 1 :]]
        ids = [tokenizer.cls_token_id, *filled, tokenizer.sep_token_id]
        (logits,) = _inference(job).detect([TokenSequence(ids, [0] * len(ids))])
        scores = zip(ids, describe_pieces(tokenizer, ids), logits.sigmoid().tolist(), strict=True)
        of_text = [(token, score) for number, token, score in scores if number not in tokenizer.all_special_ids]
        was, now = tokenizer.decode([original]), tokenizer.decode([guess])
        question = f"the discriminator's probability of a replacement, with {now!r} in its place:"
        lines += [f"    it was {was!r}; {question}", format_scored(of_text, colours=colours)]
    return "\n".join(lines)


def _sentences(held_out: Rows) -> Iterator[list[int]]:
    """Held-out sentences spread over the text: of a length good to read, or else the beginning of one."""
    ends, longest = held_out.stream.sentence_ends, min(_LONGEST, held_out.max_seq_length - 2)
    for number in range(min(EXAMPLES, len(ends))):
        first = number * len(ends) // EXAMPLES
        spans = [
            (int(ends[index - 1]) if index else 0, int(ends[index]))
            for index in range(first, min(first + _LOOKED_AT, len(ends)))
        ]
        start, end = next((span for span in spans if _SHORTEST <= span[1] - span[0] <= longest), spans[0])
        yield held_out.stream.tokens[start : min(end, start + longest)].tolist()


def _whole_words(pieces: list[Piece]) -> list[int]:
    """Positions of subwords that are a word on their own."""
    follows = [*pieces[1:], Piece("", starts_word=True)]
    return [
        position
        for position, (piece, following) in enumerate(zip(pieces, follows, strict=True))
        if len(piece.text) > 1 and piece.starts_word and (following.starts_word or not following.text[0].isalnum())
    ]
