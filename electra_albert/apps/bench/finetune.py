"""Fine-tuning on a task's own examples, ours and stock's Trainer: one process, in turns, the same rows and weights.

A pass takes every row once, through training.loop.train and through Trainer.train. What is counted on both sides is the
seconds from asking for the first batch to the end of the last update: building the optimiser before, and afterwards our
last row and checkpoint (which cannot be turned off; Trainer is told to save and log nothing) are a cost a run, not a
row, and are shown apart. Nothing else of our loop is left out, not even its extra pass over the first batch, which
Trainer has no like of. Scoring is neither's: the weights a pass ends with are scored by the same function.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from electra_albert.apps.bench.config import OURS, STOCK, spread
from electra_albert.apps.bench.contest import Contest, Pass, Predict, Trained, make_contest, padding_of
from electra_albert.apps.bench.timing import now
from electra_albert.config import ModelConfig
from electra_albert.contracts import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from electra_albert.apps.bench.config import BenchConfig
    from electra_albert.contracts import Batch
    from electra_albert.tasks.objective import TaskObjective
    from electra_albert.tasks.rows import Rows

LOG = logging.getLogger(__name__)

TARGET_RATIO = 2.0  # ours over stock with its default collator
EVAL_ROWS = 128  # in a batch
_NOTES = (
    "speed is counted in examples, short and long alike, not in tokens as elsewhere in this benchmark",
    "examples/s, x stock: median, lowest to highest pass; padding, dev accuracy: mean. stock: Trainer's defaults",
    "other s: what a pass takes beside its updates, not counted in examples/s; of ours its last row and checkpoint,",
    "which stock was told not to write. Counted of ours: all else, such as an extra pass over the first batch",
)


class _Pass(NamedTuple):
    """What is kept of a pass; see Trained."""

    seconds: float
    other_seconds: float
    padding: float
    accuracy: float


def has_trainer() -> bool:
    """Whether stock's Trainer can be used here."""
    from importlib.util import find_spec

    return find_spec("accelerate") is not None


def measure_finetune(config: BenchConfig, shape: ModelConfig) -> dict[str, Any]:
    """Rows a second of ours and of stock's Trainer over whole passes, in turns, and what each pass learned.

    Raises UsageError where Trainer cannot be used, and CheckpointError where stock computes other values than ours.
    """
    if not has_trainer():
        raise UsageError("stock's Trainer needs accelerate, which is not installed; pip install accelerate")
    from electra_albert.apps.bench.trainer import stock_contenders

    contest = make_contest(config, shape)
    contenders: dict[str, Pass] = {OURS: lambda seed: train_ours(contest, seed)}
    with stock_contenders(contest, config.attention) as stock:
        contenders |= stock.passes
        passes: dict[str, list[_Pass]] = {name: [] for name in contenders}
        train_ours(replace(contest, training=replace(contest.training, max_steps=2)), config.seed)  # warm, as stock is
        for repeat in range(config.repeats):
            for name, train in contenders.items():
                trained = train(config.seed + repeat)
                accuracy = accuracy_of(trained.predict, contest.dev, contest.world.device)
                passes[name].append(_Pass(trained.seconds, trained.other_seconds, trained.padding, accuracy))
            done = ", ".join(f"{name} {found[-1].seconds:.2f} s" for name, found in passes.items())
            LOG.info(f"pass {repeat + 1} of {config.repeats}: {done}")
    return {**_conditions(config, contest), "attention": stock.attention, **_summary(contest.train.unit_count, passes)}


def train_ours(contest: Contest, seed: int) -> Trained:
    """One pass of the training loop itself, with all that it does in a run, in a folder that is gone afterwards."""
    from electra_albert.tasks.batches import TaskBatches
    from electra_albert.tasks.objective import TaskObjective
    from electra_albert.training.guards import StopSignal
    from electra_albert.training.loop import train
    from electra_albert.training.monitor import Monitor
    from electra_albert.training.settings import RunSettings

    world, training = contest.world, replace(contest.training, seed=seed)
    times: list[float] = []
    updates = count(1)

    class Clock(Monitor):
        def start(self, step: int, *, is_evaluated: bool = True) -> None:
            super().start(step, is_evaluated=is_evaluated)
            times.append(now(world.device))

        def tick(self) -> None:
            if next(updates) == training.max_steps:
                times.append(now(world.device))
            super().tick()

    objective = TaskObjective(copy.deepcopy(contest.model)).to(world.device)
    size, is_gpu = training.per_device_train_batch_size, world.device.type == "cuda"
    batches = TaskBatches(contest.train, size, 1, seed, training.max_steps, pin_memory=is_gpu)
    with TemporaryDirectory(prefix="bench-") as name, padding_of(objective.model) as padding:
        called = now(world.device)
        with Clock(Path(name), training.max_steps, stream=StringIO()) as monitor:
            run = RunSettings(Path(name), training, world, monitor, StopSignal(), contest.arithmetic)
            train(objective, batches, lambda step: {}, run)
        taken, seconds = now(world.device) - called, times[1] - times[0]
    return Trained(seconds, taken - seconds, padding(), _predictor(objective, contest))


def _predictor(objective: TaskObjective, contest: Contest) -> Predict:
    import torch

    from electra_albert.training.step import autocast

    def predict(batch: Batch) -> Tensor:
        with torch.no_grad(), autocast(contest.world.device, contest.arithmetic):
            return objective.eval().outputs(batch)[0]

    return predict


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
        "model": config.model or f"preset {config.presets[0]}, random weights",
        "examples": contest.train.unit_count,
        "dev_examples": contest.dev.unit_count,
        "mean_length": float(lengths.mean()),
        "longest": int(lengths.max()),
        "max_seq_length": contest.max_seq_length,
        "rows": contest.training.per_device_train_batch_size,
        "repeats": config.repeats,
        "target": TARGET_RATIO,
    }


def _summary(examples: int, passes: dict[str, list[_Pass]]) -> dict[str, Any]:
    """What is shown of the passes; a ratio to stock is that of two passes timed side by side."""
    contenders = {}
    for name, found in passes.items():
        rates = [examples / one.seconds for one in found]
        ratios = [theirs.seconds / one.seconds for theirs, one in zip(passes[STOCK], found, strict=True)]
        contenders[name] = {
            "examples_per_second": _reported(rates),
            "ratio_to_stock": _reported(ratios),
            "padding": _reported([one.padding for one in found]),
            "accuracy": _reported([one.accuracy for one in found]),
            "other_seconds": _reported([one.other_seconds for one in found]),
        }
    return {"contenders": contenders}


def _reported(values: list[float]) -> dict[str, Any]:
    return {**spread(values), "mean": fmean(values), "values": values}


def format_finetune(result: dict[str, Any]) -> str:
    """The result as a table."""
    lines = [
        f"\nfine-tuning on {result['task']}: {result['model']}, {result['examples']:,} examples "
        f"of {result['mean_length']:.0f} tokens (longest {result['longest']}), batches of {result['rows']}, "
        f"{result['repeats']} passes, {result['dev_examples']:,} dev examples, stock's attention {result['attention']} "
        f"(target {result['target']} x stock)\n"
        f"{'':<16}{'examples/s':>11}{'':<18}{'x stock':>8}{'':<16}"
        f"{'padding':>8}{'dev accuracy':>14}{'':<18}{'other s':>8}"
    ]
    for name, record in result["contenders"].items():
        rate, ratio, accuracy = record["examples_per_second"], record["ratio_to_stock"], record["accuracy"]
        lines.append(
            f"{name:<16}{rate['median']:>11.1f}{_range(rate, '.1f'):<18}"
            f"{ratio['median']:>8.2f}{_range(ratio, '.2f'):<16}"
            f"{record['padding']['mean']:>8.1%}{accuracy['mean']:>14.1%}{_range(accuracy, '.1%'):<18}"
            f"{record['other_seconds']['median']:>8.2f}"
        )
    return "\n".join([*lines, *_NOTES])


def _range(record: dict[str, Any], form: str) -> str:
    return f"  {record['lowest']:{form}} to {record['highest']:{form}}"
