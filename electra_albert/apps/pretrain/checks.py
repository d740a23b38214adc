"""Checks of a corpus and a configuration before training; `electra-albert doctor` prints them.

They run the objective, the optimizer and the export themselves, on the corpus, so they hold for your own objective too.
That masks, samples and labels of the built-in objectives are right is proved by tests/objectives.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from electra_albert.apps.pretrain import budget, summary, trial
from electra_albert.apps.pretrain.job import MUCH_UNKNOWN, Job
from electra_albert.apps.pretrain.run import run_folder
from electra_albert.contracts import IGNORED_LABEL, Batch, CheckpointError
from electra_albert.corpus.rows import Split, padding_share
from electra_albert.corpus.token_texts import word_starts
from electra_albert.corpus.tokenizer import special_ids
from electra_albert.hub.save import save_model
from electra_albert.objectives import spec_of
from electra_albert.training.distributed import World
from electra_albert.training.step import TrainingStep

_OVERFITTED, _STEPS, _SECONDS = 8, 60, 40.0  # examples, and limits of the steps that overfit them
_FEWEST = 10  # of these steps, below which their losses are not compared
_FALLEN = 0.9  # of the initial loss, which the last one must not exceed
_UNKNOWN, _FERTILITY, _PADDING, _REPEATED, _ORDERED = 0.001, 2.5, 0.2, 0.05, 0.3  # from these on a warning
_READABLE = 0.5  # share of unknown tokens from which sentences are not compared
_SAMPLED_EXAMPLES, _SAMPLED_SENTENCES, _SENTENCE_TOKENS = 4096, 200_000, 8


class Finding(NamedTuple):
    """The outcome of one check."""

    status: Literal["pass", "warn", "fail"]
    check: str
    text: str  # what was found and, unless it passed, what to do

    def __str__(self) -> str:
        return f"{self.status}  {self.check:<14}  {self.text}"


def examine(job: Job, world: World) -> Iterator[Finding]:
    """Findings for a job with initial weights; they change, so the job cannot be trained afterwards."""
    yield Finding("pass", "weights", "sharing, parameter groups and initial losses are as expected")  # by make_job
    yield from _of_corpus(job)
    yield _of_padding(job, _examples(job, world, _OVERFITTED))
    yield from _of_learning(job, world)
    yield from _of_cost(job, world)  # after learning, since its updates change the weights
    if all(parameter.isfinite().all() for parameter in job.objective.parameters()):
        yield _of_export(job)


def _check(check: str, passed: str, *problems: tuple[bool | Tensor, str]) -> Finding:
    """A failed finding with the texts of all problems whose condition is true, else a passed one."""
    found = "; ".join(text for is_found, text in problems if is_found)
    return Finding("fail", check, found) if found else Finding("pass", check, passed)


def _warn_if(is_bad: bool, check: str, text: str, advice: str) -> Finding:
    return Finding("warn", check, f"{text}; {advice}") if is_bad else Finding("pass", check, text)


def _examples(job: Job, world: World, number: int) -> Batch:
    """The first `number` training examples, or all of them."""
    examples = job.batches.examples
    index = torch.arange(min(number, examples.table.count))
    return examples.gather(index, index).to(world.device)


def _of_corpus(job: Job) -> Iterator[Finding]:
    """Findings on the text and its tokens."""
    store, examples = job.prepared.store, job.batches.examples
    written, kept = store.statistics["written"], store.statistics["kept"]
    text = f"{kept:.2%} of the text is kept; the corpus statistics list what was skipped"
    yield _warn_if(kept < 1 - _UNKNOWN, "text", text, "check the files, --encoding and --text_column")
    yield from _of_amount(job)
    unknown = written["unknown_characters"] / written["characters"]
    text, advice = f"{unknown:.3%} of the characters are unknown", "check --tokenizer"
    if unknown > MUCH_UNKNOWN:
        yield Finding("fail", "unknown", f"{text}; {advice}")
    else:
        yield _warn_if(unknown > _UNKNOWN, "unknown", text, advice)
    words = int(torch.tensor(store.token_counts)[torch.tensor(word_starts(job.prepared.tokenizer))].sum())
    fertility, length = written["tokens"] / max(1, words), written["characters"] / written["tokens"]
    text = f"{fertility:.2f} tokens per word, {length:.2f} characters per token"
    advice = "train a tokenizer on this text" if job.config.corpus.tokenizer else "raise --vocab_size if it is prose"
    yield _warn_if(fertility > _FERTILITY, "fertility", text, advice)
    repeated = _repeated_share(store.train, special_ids(job.prepared.tokenizer).unk)
    text = f"{repeated:.1%} of the sentences of {_SENTENCE_TOKENS} or more tokens occur earlier in the text"
    yield _warn_if(repeated > _REPEATED, "duplicates", text, "remove repeated documents, menus and footers")
    padding = padding_share(store.train, examples.table, examples.max_seq_length)
    text, advice = f"{padding:.1%} of all positions are padding", "use longer documents"
    yield _warn_if(padding > _PADDING, "padding share", text, f"lower --max_seq_length or {advice}")
    if spec_of(job.config).has_sentence_order:
        index = torch.arange(min(examples.table.count, _SAMPLED_EXAMPLES))
        share = float((examples.gather(index, index).sentence_order_label != IGNORED_LABEL).float().mean())
        text = f"{share:.1%} of the examples have a sentence order"
        yield _warn_if(share < _ORDERED, "sentence order", text, f"raise --max_seq_length or {advice}")


def _of_amount(job: Job) -> Iterator[Finding]:
    """Whether there is enough text for the training and for held-out scores."""
    config = job.config
    epochs = job.batches.epoch(config.training.max_steps)
    text = f"{config.training.max_steps:,} steps are {epochs:.1f} epochs"
    usual = "; ".join(budget.suggestion(job)[:1])
    yield _warn_if(epochs > budget.MANY_EPOCHS and usual != "", "epochs", text, usual)
    index = torch.arange(min(job.held_out.table.count, config.training.eval_examples))
    counts = job.objective.counts(job.held_out.gather(index, index))
    predicted = counts[next(iter(job.objective.weights))]
    text = f"held-out losses are means over {predicted:,} tokens"
    warnings = summary.error_lines(predicted)
    yield _warn_if(bool(warnings), "held-out text", text, "use more text or raise --eval_examples")


def _repeated_share(split: Split, unknown: int | None) -> float:
    """Share of the first sentences of a split that are equal to an earlier one, without short and unknown ones."""
    ends = ((part.tokens, [0, *part.sentence_ends[:_SAMPLED_SENTENCES].tolist()]) for part in split.parts)
    sentences = islice((tokens[slice(*span)] for tokens, some in ends for span in pairwise(some)), _SAMPLED_SENTENCES)
    long = (sentence for sentence in sentences if len(sentence) >= _SENTENCE_TOKENS)
    counts = Counter(sentence.tobytes() for sentence in long if (sentence == unknown).mean() < _READABLE)
    return (counts.total() - len(counts)) / max(1, counts.total())


def _of_padding(job: Job, batch: Batch) -> Finding:
    """Compare the losses of cut examples for two contents of the padding, and all counts."""
    objective, ids = job.objective.eval(), batch.input_ids
    mask = batch.attention_mask & (torch.arange(ids.shape[1], device=ids.device) < ids.shape[1] // 2)
    padded = ids.where(mask, special_ids(job.prepared.tokenizer).pad)
    cut = batch._replace(input_ids=padded, attention_mask=mask, token_type_ids=batch.token_type_ids * mask)
    counts = objective.counts(cut.to(torch.device("cpu")))
    with torch.no_grad():
        terms, others = objective(cut), objective(cut._replace(input_ids=ids.where(mask, ids[:, 1:2])))
    problems: list[tuple[bool | Tensor, str]] = []
    for name in objective.weights:
        (loss, found), (other, _) = terms[name], others[name]
        problems.append((not torch.isclose(loss, other, rtol=1e-4), f"{name} depends on the padding's tokens"))
        problems.append((int(found) != counts[name], f"{name} has {int(found)} items, counts() {counts[name]}"))
    return _check("padding", "losses and counts do not depend on padding", *problems)


def _of_cost(job: Job, world: World) -> Iterator[Finding]:
    """Memory, disk, time and FLOPs of the run."""
    text, is_enough = trial.disk_space(job, run_folder(job.config, ""))
    yield _warn_if(not is_enough, "disk", text, trial.DISK_ADVICE)
    for line in trial.measure(job, world):
        if not line.endswith("…"):  # such a line announces the next one
            yield Finding("warn" if line.startswith(trial.NOT_TIMED) else "pass", "cost", line)


def _of_learning(job: Job, world: World) -> Iterator[Finding]:
    """Overfit one batch at the peak learning rate: all losses fall and all parameters change.

    One of its examples has a sentence order, if the text has any.
    """
    objective, training = job.objective.train(), job.config.training
    candidates, run = _examples(job, world, _SAMPLED_EXAMPLES), trial.quiet_run(job, world)
    lacks_order = candidates.sentence_order_label == IGNORED_LABEL
    chosen = torch.arange(min(_OVERFITTED, len(lacks_order)))
    if lacks_order[chosen].all():
        chosen[-1] = lacks_order.long().argmin()
    batch = candidates.map(lambda field: field[chosen])
    at_peak = replace(training, lr_scheduler_type="wsd", lr_decay_share=0.0, warmup_steps=0)
    training_step = TrainingStep(objective, replace(run, config=at_peak, lr_multipliers=objective.lr_multipliers))
    counts = objective.counts(batch.to(torch.device("cpu")))
    before = {name: parameter.detach().clone() for name, parameter in objective.named_parameters()}
    try:
        training_step.check(batch, 1)
    except ValueError as error:
        yield Finding("fail", "updates", str(error))
        return
    rows: list[dict[str, float]] = []
    started = time.monotonic()
    while len(rows) < _STEPS and time.monotonic() - started < _SECONDS:
        training_step.accumulate([batch], training_step.scales(counts), 1)
        terms = training_step.terms()
        rows.append({name: float(terms[name].sum / counts[name]) for name in counts if counts[name]})
        training_step.finish()
    objective.eval()
    texts = {name: f"{name.replace('_', ' ')} {loss:.3f} to {rows[-1][name]:.3f}" for name, loss in rows[0].items()}
    stuck = [text for name, text in texts.items() if not rows[-1][name] <= _FALLEN * rows[0][name]]
    problem = f"{', '.join(stuck)} in {len(rows)} steps on one batch; change --learning_rate, or correct the loss"
    if len(rows) < _FEWEST:
        text = f"only {len(rows)} steps in {_SECONDS:.0f} seconds, too few to see losses fall"
        yield Finding("warn", "learning", f"{text}; check a smaller model first")
    else:
        passed = f"{len(rows)} steps on one batch: {', '.join(texts.values())}"
        yield _check("learning", passed, (bool(stuck), problem))
    same = [name for name, parameter in objective.named_parameters() if torch.equal(parameter, before[name])]
    problem = f"{len(same)} parameters do not change, such as {same[:1]}: no parameter group or no gradient has them"
    yield _check("updates", f"all {len(before)} parameters change", (bool(same), problem))


def _of_export(job: Job) -> Finding:
    """Save the models, read them again and compare them with stock transformers."""
    objective = job.objective.cpu().eval()
    with TemporaryDirectory() as folder:
        for name, model in (("generator", objective.generator), ("discriminator", objective.discriminator)):
            if model is not None:
                model.embeddings.merge_base()
                try:
                    save_model(model, job.prepared.tokenizer, Path(folder) / name)
                except CheckpointError as error:
                    return Finding("fail", "export", str(error))
    return Finding("pass", "export", "the models compute the same after saving and loading")
