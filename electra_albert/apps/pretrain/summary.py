"""Start-of-run plan and closing report of a pretraining run, with tables of scores next to their baselines."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from electra_albert.apps.command_line import format_table
from electra_albert.apps.demo import format_proposals, format_scored
from electra_albert.apps.machine import why_not_compiled
from electra_albert.apps.pretrain.evaluation import MASKED_TOKENS, OLD_TEXT_PREFIX, Cloze, clozes, inference_model
from electra_albert.apps.pretrain.job import Job
from electra_albert.apps.run_folder import read_evaluations
from electra_albert.contracts import Metrics
from electra_albert.corpus.tokenizer import token_texts
from electra_albert.inference.engine import TokenSequence
from electra_albert.inference.model import InferenceModel
from electra_albert.model.attention import stock_computes
from electra_albert.objectives import spec_of
from electra_albert.objectives.evaluation import has_learned
from electra_albert.training.distributed import World

_SPREAD_NATS = 3.0  # standard deviation of the loss of one masked token; 2.2 by the token frequencies alone
_LARGEST_ERROR = 0.1  # nats, beyond which a standard error is warned of


def plan_lines(job: Job, world: World) -> list[str]:
    """Sizes of model, corpus and run, for the start of a run and for --dry_run."""
    config, training, batches, objective = job.config, job.config.training, job.batches, job.objective
    steps, length, rows = training.max_steps, config.corpus.max_seq_length, batches.global_batch_size
    rate = spec_of(config).mask_rate(config)
    masked = "" if rate is None else f"mask rate {rate:g}, "
    total, tables = _parameters(objective), _parameters(objective.generator.embeddings)
    parts = f"{tables:,} tables, {_parameters(objective.generator) - tables:,} generator"
    if objective.discriminator is not None:
        parts += f", {_parameters(objective.discriminator) - tables:,} discriminator"
    compiled = str(job.compilation).replace("none", "nothing")
    if compiled == "nothing" and world.device.type == "cuda" and config.run.torch_compile == "auto":
        compiled = f"nothing ({why_not_compiled(world.device)})"
    lines = [
        f"parameters: {total:,} ({parts})",
        f"examples of {length} tokens: {batches.examples.table.count:,} to train on, "
        f"{job.held_out.table.count:,} held out",
        f"{steps:,} steps of {rows:,} examples ({rows * length:,} tokens), {batches.epoch(steps):.2f} epochs, "
        f"objective {config.run.objective}, {masked}on "
        f"{world.world_size} x {world.device.type} in {job.arithmetic}, {compiled} compiled",
        f"baseline of the loss on masked tokens: {job.unigram.entropy:.2f}, the entropy of the token frequencies",
    ]
    if job.lacks_generator:
        alone = config.generator_warmup_steps
        lines.append(f"before them {alone:,} steps of the new generator alone, which estimates of time leave out")
    if job.origin is not None:
        lines.append(f"schedule: a new one, warmup to {training.learning_rate:g}, down to 0 at step {steps:,}")
    if not stock_computes(config.model):
        attention = config.model.attention
        lines.append(f"notice: transformers has no attention {attention}: only this toolkit will load the models")
    if rate is not None:
        count, wanted = job.held_out.table.count, training.eval_examples
        lines += error_lines(round(len(job.held_out.stream.tokens) * min(count, wanted) // count * rate))
    if training.warmup_steps >= steps:
        way_out = "the full learning rate is never reached"
        lines.append(f"notice: --warmup_steps {training.warmup_steps:,} of {steps:,} steps: {way_out}")
    return lines


def _parameters(module: nn.Module) -> int:
    """Trainable numbers, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def closing_report(job: Job, metrics: Metrics, folder: Path) -> str:
    """Scores next to their baselines, masked held-out sentences, the files written, and the next command."""
    lines, model = [format_scores(metrics)], inference_model(job)
    if job.origin is not None:
        lines.append(format_forgetting(read_evaluations(folder)))
    lines += [_example(job, cloze, model) for cloze in clozes(job, model)]
    models = "generator/" if job.objective.discriminator is None else "generator/ and discriminator/"
    stock = "stock Hugging Face folders" if stock_computes(job.config.model) else "in this toolkit's own format"
    lines += ["", f"written to {folder}: {models} ({stock}), README.md (model card), checkpoints/, metrics.jsonl, …"]
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)  # of an environment that need not be active
    return "\n".join([*lines, f"next: {shlex.join([python, 'LM_DEMO.py', '--gen', str(folder)])}"])


def _example(job: Job, cloze: Cloze, model: InferenceModel) -> str:
    """A held-out sentence with a masked word, then with the generator's prediction in its place."""
    tokenizer, colours = job.prepared.tokenizer, sys.stdout.isatty()
    lines = ["", format_proposals(cloze.text, cloze.answer, colours=colours)]
    if job.objective.discriminator is not None:
        original = cloze.ids[cloze.position]
        guess = next((proposal["token"] for proposal in cloze.answer[0] if proposal["token"] != original), original)
        ids = [tokenizer.cls_token_id, *cloze.ids, tokenizer.sep_token_id]
        ids[cloze.position + 1] = guess
        (logits,) = model.detect([TokenSequence(ids, [0] * len(ids))])
        scores = zip(ids, token_texts(tokenizer, ids), logits.sigmoid().tolist(), strict=True)
        of_text = [(token, score) for number, token, score in scores if number not in tokenizer.all_special_ids]
        was, now = tokenizer.decode([original]), tokenizer.decode([guess])
        lines.append(
            f"    it was {was!r}; probability of a replacement by the discriminator, with {now!r} in its place:"
        )
        lines.append(format_scored(of_text, colours=colours))
    return "\n".join(lines)


def format_scores(metrics: Metrics) -> str:
    """The held-out scores of any objective, each next to its baseline."""

    def value(name: str) -> str:
        return "-" if metrics.get(name) is None else f"{metrics[name]:.3f}"

    def row(label: str, name: str, baseline: str, note: str) -> tuple[str, ...]:
        found, base = metrics.get(name), metrics.get(baseline)
        ratio = f"{found / base:.2f} x" if found and base else "-"
        return label, value(name), value(baseline), note.format(ratio)

    rows: list[tuple[str, ...]] = [("on held-out text", "score", "baseline", "")]
    most, precision = "most_frequent_accuracy", "discriminator_average_precision"
    for name, label in (("generator", "generator"), ("mlm", "masked-token")):
        if f"{name}_loss" in metrics:
            rows.append(row(f"{label} loss (nats)", f"{name}_loss", "unigram_loss", "token frequencies alone"))
            rows.append(row(f"{label} accuracy", f"{name}_accuracy", most, "the most frequent token; {}"))
    has_detection = "discriminator_auc" in metrics
    if has_detection:
        shuffled = f"shuffled labels: {value('shuffled_labels_auc')}"
        rows.append(("discriminator ROC-AUC", value("discriminator_auc"), "0.500", shuffled))
        rows.append(row("discriminator average precision", precision, "replaced_fraction", "replaced; {}"))
    if "sop_accuracy" in metrics:
        swapped = metrics.get("swapped_fraction")
        chance = "-" if swapped is None else f"{max(swapped, 1 - swapped):.3f}"
        rows.append(("sentence order accuracy", value("sop_accuracy"), chance, "the more frequent order"))
    known = ("generator_loss", "mlm_loss", "discriminator_loss", "sop_loss", "unigram_loss")
    losses = [name for name in metrics if name.endswith("_loss") and "/" not in name and name not in known]
    rows += [(f"{name.replace('_', ' ')} (nats)", value(name), "-", "") for name in losses]
    lines = [_table(rows)]
    if sources := [name.partition("/")[2] for name in metrics if name.startswith(f"{MASKED_TOKENS}/")]:
        losses = [name for name in metrics if name.endswith("_loss") and f"{name}/{sources[0]}" in metrics]
        titles = ["token frequencies" if name == "unigram_loss" else name.replace("_", " ") for name in losses]
        by_source: list[tuple[str, ...]] = [("by source", *titles, "masked tokens")]
        for source in sources:
            counted = f"{metrics[f'{MASKED_TOKENS}/{source}']:,}"
            by_source.append((source, *(value(f"{name}/{source}") for name in losses), counted))
        lines.append(f"\n{_table(by_source)}\n")
    if (learned := has_learned(metrics)) is not None:
        bars = "2.5 x, 0.65 and 1.5 x" if has_detection else "2.5 x"
        problem = f"not yet clear of the baselines ({bars}): train longer or on more text"
        lines.append("clear of the baselines" if learned else problem)
    masked_tokens = metrics.get(MASKED_TOKENS)
    return "\n".join([*lines, *([] if masked_tokens is None else error_lines(masked_tokens))])


def error_lines(masked_tokens: int) -> list[str]:
    """A warning where a loss over so many masked tokens is so uncertain that it means little."""
    error = _SPREAD_NATS / max(1, masked_tokens) ** 0.5
    message = f"warning: held-out scores are of {masked_tokens:,} masked tokens only: a loss has a standard error of "
    return [f"{message}about {error:.1g} nats; give more text or raise --eval_examples"] * (error > _LARGEST_ERROR)


def format_forgetting(evaluations: Sequence[Metrics]) -> str:
    """Losses on the new text and on that of the initial weights, before the first update and after the last."""
    if not evaluations:
        return "forgetting is unknown: metrics.jsonl holds no evaluation"
    before, after = evaluations[0], evaluations[-1]
    rows = [("on held-out text", *(f"at step {each['step']:,}" for each in (before, after)), "")]
    names = [name for name in after if name.endswith("_loss") and not name.startswith(OLD_TEXT_PREFIX)]
    for name in names:
        for key, text in ((name, "new text"), (OLD_TEXT_PREFIX + name, "old text")):
            if key in after and name != "unigram_loss":
                then, now = before.get(key), after[key]
                cells = ("-" if value is None else f"{value:.3f}" for value in (then, now))
                change = "-" if then is None or now is None else f"{now - then:+.3f}"
                rows.append((f"{name.replace('_', ' ')}, {text}", *cells, change))
    return _table(rows)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    return format_table(rows, left=len(rows[0]))
