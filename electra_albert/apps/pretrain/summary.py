"""The start banner and the final report of a pretraining run, with scores next to their baselines."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from torch import nn

from electra_albert.apps import machine, run_folder
from electra_albert.apps.metrics_table import error_lines, format_forgetting, format_scores
from electra_albert.apps.pretrain import trial
from electra_albert.apps.pretrain.job import Job
from electra_albert.apps.pretrain.samples import inference_model, sample_predictions
from electra_albert.contracts import Metrics
from electra_albert.corpus.rows import padding_share
from electra_albert.corpus.store import format_statistics
from electra_albert.objectives import spec_of
from electra_albert.training.distributed import World


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
