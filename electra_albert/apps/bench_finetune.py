"""Fine-tuning on a task's own examples, ours and stock's Trainer: one process, in turns, the same rows and weights.

A pass takes every row once. What is counted is rows a second, from the first batch's making to the last update.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from electra_albert.apps.bench_contest import Contest, Pass, Predict, Say, make_contest, now
from electra_albert.apps.bench_step import OURS, spread
from electra_albert.config import ModelConfig
from electra_albert.contracts import Objective, UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from electra_albert.apps.bench import BenchConfig
    from electra_albert.contracts import Batch
    from electra_albert.tasks.rows import Rows

TARGET_RATIO = 2.0  # ours over stock with its default collator
EVAL_ROWS = 128  # in a batch


def has_trainer() -> bool:
    """Whether stock's Trainer can be used here."""
    from importlib.util import find_spec

    return find_spec("accelerate") is not None


def measure_finetune(config: BenchConfig, shape: ModelConfig, say: Say) -> dict[str, Any]:
    """Rows a second of ours and of stock's Trainer over whole passes, in turns, and what each pass learned.

    Raises UsageError where Trainer cannot be used, and CheckpointError where stock computes other values than ours.
    """
    if not has_trainer():
        raise UsageError("stock's Trainer needs accelerate, which is not installed; pip install accelerate")
    from electra_albert.apps.bench_trainer import stock_contenders

    contest = make_contest(config, shape, say)
    contenders: dict[str, Pass] = {OURS: lambda seed: train_ours(contest, seed)}
    with stock_contenders(contest, config.attention, say) as stock:
        contenders |= stock.passes
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        accuracy: dict[str, list[float]] = {name: [] for name in contenders}
        train_ours(replace(contest, training=replace(contest.training, max_steps=2)), config.seed)  # warm, as stock is
        for repeat in range(config.repeats):
            for name, train in contenders.items():
                taken, predict = train(config.seed + repeat)
                seconds[name].append(taken)
                accuracy[name].append(accuracy_of(predict, contest.dev, contest.world.device))
            done = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in seconds.items())
            say(f"pass {repeat + 1} of {config.repeats}: {done}")
    return {**_conditions(config, contest), "attention": stock.attention, **_summary(contest, seconds, accuracy)}


def train_ours(contest: Contest, seed: int) -> tuple[float, Predict]:
    """One pass by the pieces of our loop; returns its seconds and the trained model."""
    import torch
    from torch import nn

    from electra_albert.tasks.batches import TaskBatches
    from electra_albert.tasks.objective import TaskObjective
    from electra_albert.training.guards import StopSignal
    from electra_albert.training.monitor import Monitor
    from electra_albert.training.optimizer import build_optimizer
    from electra_albert.training.run import Run
    from electra_albert.training.schedule import learning_rate
    from electra_albert.training.step import autocast, backward, count_step, term_scales

    world, training = contest.world, replace(contest.training, seed=seed)
    objective = TaskObjective(copy.deepcopy(contest.model)).to(world.device).train()
    monitor = Monitor(Path(), training.max_steps, is_main=False)  # writes nothing
    run = Run(Path(), training, world, monitor, StopSignal(), contest.arithmetic)
    optimizer = build_optimizer(objective, training)
    size, is_gpu = training.per_device_train_batch_size, world.device.type == "cuda"
    began = now(world.device)
    batches = TaskBatches(contest.train, size, 1, seed, training.max_steps, pin_memory=is_gpu)
    for step, micro_batches in enumerate(islice(batches.steps(1), training.max_steps), start=1):
        counts = count_step(cast(Objective, objective), micro_batches, run)
        backward(objective, micro_batches, term_scales(objective.weights, counts.terms, 1), step, run)
        nn.utils.clip_grad_norm_(objective.parameters(), training.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, training)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    taken = now(world.device) - began

    def predict(batch: Batch) -> Tensor:
        with torch.no_grad(), autocast(world.device, run.arithmetic):
            return objective.eval().outputs(batch)[0]

    return taken, predict


def accuracy_of(predict: Predict, rows: Rows, device: torch.device) -> float:
    """The share of the rows whose class has the highest logit."""
    from electra_albert.tasks.batches import eval_batches

    right = 0
    for batch in (batch.to(device) for batch in eval_batches(rows, EVAL_ROWS)):
        right += int((predict(batch).argmax(-1) == cast("Tensor", batch.labels)).sum())
    return right / rows.unit_count


def _conditions(config: BenchConfig, contest: Contest) -> dict[str, Any]:
    """What the rates hold for."""
    lengths = contest.train.unit_lengths()
    return {
        "task": config.task or "documentation",
        "model": config.model or f"preset {config.preset}, random weights",
        "examples": contest.train.unit_count,
        "dev_examples": contest.dev.unit_count,
        "mean_length": float(lengths.mean()),
        "longest": int(lengths.max()),
        "max_seq_length": config.max_seq_length,
        "rows": config.per_device_train_batch_size,
        "repeats": config.repeats,
        "target": TARGET_RATIO,
    }


def _summary(
    contest: Contest, seconds: dict[str, list[float]], accuracy: dict[str, list[float]]
) -> dict[str, dict[str, Any]]:
    """Rates in rows; ratios are medians of those of one pass each, timed side by side."""
    count = contest.train.unit_count
    contenders = {}
    for name, times in seconds.items():
        contenders[name] = {
            "examples_per_second": spread([count / time for time in times]),
            "ratio": spread([theirs / mine for theirs, mine in zip(times, seconds[OURS], strict=True)]),
            "accuracy": {**spread(accuracy[name]), "values": accuracy[name]},
        }
    return {"contenders": contenders}


def format_finetune(result: dict[str, Any]) -> str:
    """The result as a table."""
    lines = [
        f"\nfine-tuning on {result['task']}: {result['model']}, {result['examples']:,} examples "
        f"of {result['mean_length']:.0f} tokens (longest {result['longest']}), batches of {result['rows']}, "
        f"stock's attention {result['attention']}, {result['repeats']} passes (target {result['target']} x stock)\n"
        f"{'':<22}{'examples/s':>11}{'lowest':>9}{'highest':>9}{'ours is':>9}{'':<18}{'accuracy':>9}"
    ]
    for name, record in result["contenders"].items():
        rate, ratio = record["examples_per_second"], record["ratio"]
        against = "" if name == OURS else f"{ratio['median']:.2f}x"
        range_ = "" if name == OURS else f"   {ratio['lowest']:.2f} to {ratio['highest']:.2f}"
        columns = f"{rate['median']:>11.1f}{rate['lowest']:>9.1f}{rate['highest']:>9.1f}{against:>9}{range_:<18}"
        lines.append(f"{name:<22}{columns}{_percent(record['accuracy']['values']):>9}")
    return "\n".join(lines)


def _percent(values: Sequence[float]) -> str:
    return f"{100 * sum(values) / len(values):.1f} %"
