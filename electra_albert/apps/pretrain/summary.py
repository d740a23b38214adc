"""The start banner and the final report of a pretraining run."""

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
    config = job.config
    training = config.training
    spec = spec_of(config)
    batches = job.batches
    steps = training.max_steps
    length = config.corpus.max_seq_length
    size = batches.global_batch_size
    count = job.held_out.table.count
    mask_rate = spec.mask_rate(config)
    masked = "" if mask_rate is None else f"mask rate {mask_rate:g}, "
    lines = [
        _parameter_line(job),
        f"examples of {length} tokens: {batches.examples.table.count:,} to train on, "
        f"{count:,} held out",
        f"training: {steps:,} steps of {size:,} examples ({size * length:,} tokens), "
        f"{batches.epoch(steps):.2f} epochs",
        f"objective {config.run.objective}, {masked}device {world.world_size} x "
        f"{world.device.type}, precision {job.arithmetic}, {_compilation(job, world)}",
    ]
    if mask_rate is not None:
        lines.append(
            f"baseline for the masked-token loss: {job.unigram.entropy:.2f} nats "
            "(entropy of the token frequencies)"
        )
    generator = spec.generator_text(config)
    if generator:
        lines.append(f"generator: {generator}")
    if job.lacks_generator:
        alone = f"{config.generator_warmup_steps:,} warm-up steps of the new generator alone"
        lines.append(f"before training: {alone}, not in the time estimates")
    if job.origin is not None:
        end = "constant" if training.lr_decay_share == 0 else f"decay to 0 at step {steps:,}"
        lines.append(f"new learning rate schedule: warmup to {training.learning_rate:g}, {end}")
    if not config.model.is_stock:
        kind = f"{config.model.attention} attention in {config.model.block} blocks"
        lines.append(f"notice: {kind}: saved in this toolkit's own format, see docs/interop.md")
    if mask_rate is not None:
        tokens = job.held_out.split.token_count * min(count, training.eval_examples) // count
        lines += error_lines(round(tokens * mask_rate))
    if training.warmup_steps >= steps:
        options = f"--warmup_steps {training.warmup_steps} >= --max_steps {steps}"
        lines.append(f"notice: {options}: the peak learning rate is not reached")
    return lines


def _parameter_line(job: Job) -> str:
    """The trainable parameters of each part; shared ones count once, in the first part."""
    objective = job.objective
    generator = objective.generator
    total = _parameters(objective)
    first: Any = generator or objective.discriminator  # both have the same embeddings
    counts = {"embeddings": _parameters(first.embeddings)}
    if generator is not None:
        counts["generator"] = _parameters(generator) - counts["embeddings"]
        if objective.discriminator is not None and job.config.rtd.generator == "shared":
            counts["generator"] -= _parameters(generator.encoder)
    if objective.discriminator is not None:
        counts["discriminator"] = total - sum(counts.values())
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"parameters: {total:,} ({parts})"


def _compilation(job: Job, world: World) -> str:
    text = f"torch.compile: {job.compilation}"
    if world.device.type != "cuda":
        return text
    if job.compilation == "none" and job.config.run.torch_compile == "auto":
        text += f" ({machine.why_not_compiled(world.device)})"
    return f"{text}, CUDA graphs: {'yes' if job.is_recorded else 'no'}"


def record(job: Job, world: World) -> dict[str, Any]:
    """FLOPs per step and corpus statistics, for the report of a run."""
    examples = job.batches.examples
    store = job.prepared.store
    padding = padding_share(store.train, examples.table, examples.max_seq_length)
    return {
        "flops_per_step": trial.flops_per_step(job.config, world.world_size),
        "corpus_statistics": format_statistics(store.statistics, padding).splitlines(),
    }


def _parameters(module: nn.Module) -> int:
    """Number of trainable parameters, each shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def final_report(job: Job, metrics: Metrics, folder: Path) -> str:
    """Scores next to their baselines, predictions, written files, and the next command."""
    lines = [format_scores(metrics)]
    if job.origin is not None:
        lines.append(format_forgetting(run_folder.read_evaluations(folder)))
    model = inference_model(job)
    for sample in sample_predictions(job, model):
        lines.append(f"\n{sample.report(colours=sys.stdout.isatty())}")
    folders = [f"{name}/" for name in ("generator", "discriminator") if (folder / name).is_dir()]
    models = " and ".join(folders)
    kind = "stock Hugging Face folders"
    if not job.config.model.is_stock:
        kind = "in this toolkit's own format"
    files = f"{models} ({kind}), README.md (model card), report.html, metrics.jsonl, …"
    lines += ["", f"written to {folder}: {files}"]
    command = ["finetune", "--model"] if model.generator is None else ["demo", "--gen"]
    return "\n".join([*lines, run_folder.next_command(*command, str(folder))])
