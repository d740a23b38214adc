"""The start banner and the final report of a pretraining run, with scores next to their baselines."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from electra_albert.apps import machine, run_folder
from electra_albert.apps.command_line import format_table
from electra_albert.apps.pretrain import trial
from electra_albert.apps.pretrain.evaluation import MASKED_TOKENS, OLD_TEXT_PREFIX
from electra_albert.apps.pretrain.job import Job
from electra_albert.apps.pretrain.samples import inference_model, sample_predictions
from electra_albert.contracts import Metrics
from electra_albert.corpus.rows import padding_share
from electra_albert.corpus.store import format_statistics
from electra_albert.objectives import spec_of
from electra_albert.objectives.evaluation import has_learned
from electra_albert.training.distributed import World

_SPREAD_NATS = 3.0  # standard deviation of the loss of one masked token; 2.2 for the unigram baseline
_LARGEST_ERROR = 0.1  # nats; a larger standard error gives a warning


def start_lines(job: Job, world: World) -> list[str]:
    """Banner at the start of a run and for --dry_run: sizes of model, corpus and run."""
    config, training, batches, objective = job.config, job.config.training, job.batches, job.objective
    steps, length, size = training.max_steps, config.corpus.max_seq_length, batches.global_batch_size
    rate = spec_of(config).mask_rate(config)
    masked = "" if rate is None else f"mask rate {rate:g}, "
    total, generator = _parameters(objective), objective.generator
    first: Any = generator or objective.discriminator  # both have the same embeddings
    kind = config.rtd.generator if objective.discriminator is not None else "own"
    tied = [first.embeddings, *([first.encoder] if kind == "shared" else [])]
    counts = {"embeddings": _parameters(first.embeddings)}
    counts["generator"] = 0 if generator is None else _parameters(generator) - sum(map(_parameters, tied))
    if objective.discriminator is not None:
        counts["discriminator"] = total - sum(counts.values())
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    compiled = str(job.compilation)
    if compiled == "none" and world.device.type == "cuda" and config.run.torch_compile == "auto":
        compiled = f"none ({machine.why_not_compiled(world.device)})"
    if world.device.type == "cuda":
        compiled += f", CUDA graphs: {'yes' if job.is_recorded else 'no'}"
    lines = [
        f"parameters: {total:,} ({parts})",
        f"examples of {length} tokens: {batches.examples.table.count:,} to train on, "
        f"{job.held_out.table.count:,} held out",
        f"training: {steps:,} steps of {size:,} examples ({size * length:,} tokens), {batches.epoch(steps):.2f} epochs",
        f"objective {config.run.objective}, {masked}device {world.world_size} x {world.device.type}, "
        f"precision {job.arithmetic}, torch.compile: {compiled}",
    ]
    if rate is not None:
        entropy = f"{job.unigram.entropy:.2f} nats (entropy of the token frequencies)"
        lines.append(f"baseline for the masked-token loss: {entropy}")
    lines += [f"generator: {source}" for source in [spec_of(config).generator_text(config)] if source]
    if job.lacks_generator:
        alone = config.generator_warmup_steps
        lines.append(f"before training: {alone:,} warm-up steps of the new generator alone, not in the time estimates")
    if job.origin is not None:
        end = "constant" if training.lr_decay_share == 0 else f"decay to 0 at step {steps:,}"
        lines.append(f"new learning rate schedule: warmup to {training.learning_rate:g}, {end}")
    if not (model := config.model).is_stock:
        lines.append(f"notice: transformers has no attention {model.attention}: only this toolkit can load the models")
    if rate is not None:
        count, wanted = job.held_out.table.count, training.eval_examples
        lines += error_lines(round(job.held_out.split.token_count * min(count, wanted) // count * rate))
    if (warmup := training.warmup_steps) >= steps:
        lines.append(f"notice: --warmup_steps {warmup} >= --max_steps {steps}: the peak learning rate is not reached")
    return lines


def record(job: Job, world: World) -> dict[str, Any]:
    """FLOPs per step and corpus statistics, for the report of a run."""
    examples, store = job.batches.examples, job.prepared.store
    padding = padding_share(store.train, examples.table, examples.max_seq_length)
    flops = trial.flops_per_step(job.config, world.world_size)
    return {"flops_per_step": flops, "corpus_statistics": format_statistics(store.statistics, padding).splitlines()}


def _parameters(module: nn.Module) -> int:
    """Number of trainable parameters, each shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def final_report(job: Job, metrics: Metrics, folder: Path) -> str:
    """Scores next to their baselines, predictions for held-out sentences, written files, and the next command."""
    lines = [format_scores(metrics)]
    if job.origin is not None:
        lines.append(format_forgetting(run_folder.read_evaluations(folder)))
    samples = sample_predictions(job, model := inference_model(job))
    lines += [f"\n{sample.report(colours=sys.stdout.isatty())}" for sample in samples]
    models = " and ".join(name for name in ("generator/", "discriminator/") if (folder / name).is_dir())
    stock = "stock Hugging Face folders" if job.config.model.is_stock else "in this toolkit's own format"
    lines += ["", f"written to {folder}: {models} ({stock}), README.md (model card), report.html, metrics.jsonl, …"]
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)  # works without activating the environment
    command = ["finetune", "--model"] if model.generator is None else ["demo", "--gen"]
    return "\n".join([*lines, f"next: {shlex.join([python, '-m', 'electra_albert', *command, str(folder)])}"])


def format_scores(metrics: Metrics) -> str:
    """Table of the held-out scores of any objective, each next to its baseline."""

    def value(name: str) -> str:
        return "-" if metrics.get(name) is None else f"{metrics[name]:.3f}"

    def row(label: str, name: str, baseline: str, note: str) -> tuple[str, ...]:
        found, base = metrics.get(name), metrics.get(baseline)
        return label, value(name), value(baseline), f"{found / base:.2f} x" if found and base else "-", note

    rows: list[tuple[str, ...]] = [("held-out scores", "score", "baseline", "ratio", "baseline is")]
    most, precision = "most_frequent_accuracy", "discriminator_average_precision"
    models = {"generator": "generator", "mlm": "masked-token", "discriminator_mlm": "discriminator's masked-token"}
    for name, label in models.items():
        if f"{name}_loss" in metrics:
            rows.append(row(f"{label} loss (nats)", f"{name}_loss", "unigram_loss", "loss of the token frequencies"))
            rows.append(row(f"{label} accuracy", f"{name}_accuracy", most, "most frequent token"))
    has_detection = "discriminator_auc" in metrics
    if has_detection:
        shuffled = f"chance level (shuffled labels: {value('shuffled_labels_auc')})"
        rows.append(("discriminator ROC-AUC", value("discriminator_auc"), "0.500", "", shuffled))
        replaced = "fraction of replaced tokens"
        rows.append(row("discriminator average precision", precision, "replaced_fraction", replaced))
    if "sop_accuracy" in metrics:
        swapped = metrics.get("swapped_fraction")
        chance = "-" if swapped is None else f"{max(swapped, 1 - swapped):.3f}"
        rows.append(("accuracy of the second segment", value("sop_accuracy"), chance, "", "more frequent class"))
    known = ("sop_loss", "unigram_loss", *(f"{name}_loss" for name in models), *["discriminator_loss"] * has_detection)
    losses = [name for name in metrics if name.endswith("_loss") and "/" not in name and name not in known]
    rows += [(f"{name.replace('_', ' ')} (nats)", value(name), "-", "", "") for name in losses]
    lines = [format_table(rows, left=len(rows[0]))]
    sources = list(dict.fromkeys(name.partition("/")[2] for name in metrics if "_loss/" in name))
    if sources:
        losses = [name for name in metrics if name.endswith("_loss") and f"{name}/{sources[0]}" in metrics]
        titles = [name.replace("_", " ") for name in losses]
        by_source: list[tuple[str, ...]] = [("source", *titles, "masked tokens")]
        for source in sources:
            count = metrics.get(f"{MASKED_TOKENS}/{source}")
            counted = "-" if count is None else f"{count:,}"
            by_source.append((source, *(value(f"{name}/{source}") for name in losses), counted))
        lines.append(f"\n{format_table(by_source, left=len(by_source[0]))}\n")
    if (learned := has_learned(metrics)) is not None:
        bars = ["accuracy 2.5 x"] * any(f"{name}_loss" in metrics for name in models)
        bars += ["ROC-AUC 0.65", "average precision 1.5 x"] * has_detection
        expected = f"(expected: {', '.join(bars)}); train longer or on more text"
        problem = f"scores are not yet clearly above the baselines {expected}"
        lines.append("scores are clearly above the baselines" if learned else problem)
    masked_tokens = metrics.get(MASKED_TOKENS)
    return "\n".join([*lines, *([] if masked_tokens is None else error_lines(masked_tokens))])


def error_lines(masked_tokens: int) -> list[str]:
    """A warning if the loss over so few masked tokens is too uncertain; else no line."""
    error = _SPREAD_NATS / max(1, masked_tokens) ** 0.5
    message = f"warning: held-out scores use only {masked_tokens:,} masked tokens: the standard error of a loss is "
    return [f"{message}about {error:.1g} nats; use more text or raise --eval_examples"] * (error > _LARGEST_ERROR)


def format_forgetting(evaluations: Sequence[Metrics]) -> str:
    """Table of the losses on the new text and on the text of the initial weights, before and after training."""
    if not evaluations:
        return "forgetting is unknown: metrics.jsonl contains no evaluation"
    before, after = evaluations[0], evaluations[-1]
    rows = [("held-out losses", *(f"at step {each['step']:,}" for each in (before, after)), "change")]
    names = [name for name in after if name.endswith("_loss") and not name.startswith(OLD_TEXT_PREFIX)]
    for name in names:
        for key, text in ((name, "new text"), (OLD_TEXT_PREFIX + name, "old text")):
            if key in after and name != "unigram_loss":
                then, now = before.get(key), after[key]
                cells = ("-" if value is None else f"{value:.3f}" for value in (then, now))
                change = "-" if then is None or now is None else f"{now - then:+.3f}"
                rows.append((f"{name.replace('_', ' ')}, {text}", *cells, change))
    return format_table(rows, left=len(rows[0]))
