"""Outputs of a model on a task's evaluation sets, and the predictions and metrics they give.

Dimensions: N examples, k numbers of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from electra_albert.apps.machine import one_line_errors
from electra_albert.contracts import Metrics
from electra_albert.tasks.batches import eval_batches
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.metrics import MEASURES
from electra_albert.training.distributed import World, gather_objects
from electra_albert.training.step import autocast

if TYPE_CHECKING:
    from collections.abc import Callable

    from electra_albert.apps.finetune.job import TaskJob
    from electra_albert.tasks.kinds import Decoded
    from electra_albert.tasks.objective import TaskObjective
    from electra_albert.tasks.rows import Rows


class Scored(NamedTuple):
    """One scoring of a model."""

    metrics: Metrics  # `loss`, then every metric of the deciding set by its name and of the others as set_name
    decoded: dict[str, Decoded]  # by evaluation set


def score(job: TaskJob, objective: TaskObjective, world: World, is_stopped: Callable[[], bool]) -> Scored | None:
    """Score all evaluation sets, the same result on every rank; None where it was told to stop."""
    metrics: Metrics = {}
    decoded = {}
    for name, rows in job.evaluation.items():
        found = model_outputs(rows, objective, job.training.per_device_eval_batch_size, world, is_stopped)
        if found is None:
            return None
        outputs, loss = found
        decoded[name] = KINDS[job.task.kind].decode(outputs, rows, job.data.evaluation[name], job.data.labels, job.plan)
        prefix = "" if name == job.deciding_set else f"{name}_"
        values = decoded[name].values
        if values is None:
            raise ValueError(f"evaluation set {name} has no labels to score by")
        measured = MEASURES[job.measure](values)
        metrics |= {f"{prefix}{metric}": value for metric, value in {"loss": loss, **measured}.items()}
    return Scored(metrics, decoded)


def model_outputs(
    rows: Rows, objective: TaskObjective, batch_size: int, world: World, is_stopped: Callable[[], bool]
) -> tuple[list[np.ndarray], float | None] | None:
    """One float32 array of outputs a unit, cut to its row, and the mean loss, None without labels; all ranks share.

    batch_size is in rows.
    None where one process alone was told to stop.
    """
    device = next(objective.parameters()).device
    mine: dict[int, np.ndarray] = {}
    loss, count = 0.0, 0
    units_at_once = max(1, batch_size // rows.rows_per_unit)
    for on_host in eval_batches(rows, units_at_once, world.rank, world.world_size):
        if world.world_size == 1 and is_stopped():
            return None
        units, batch = on_host.example_id[:: rows.rows_per_unit].numpy(), on_host.to(device)
        outputs = objective.outputs(batch)
        if batch.labels is not None:
            term = objective.terms(outputs, batch)[next(iter(objective.weights))]
            loss, count = loss + float(term.sum), count + int(term.count)
        mine |= dict(zip(units.tolist(), outputs_by_unit(outputs[0].float().cpu().numpy(), units, rows), strict=True))
    gathered = gather_objects((mine, loss, count), world)
    everyone = {unit: output for part, _, _ in gathered for unit, output in part.items()}
    total, counted = sum(part[1] for part in gathered), sum(part[2] for part in gathered)
    return [everyone[unit] for unit in range(rows.unit_count)], total / counted if counted else None


def outputs_by_unit(outputs: np.ndarray, units: np.ndarray, rows: Rows) -> list[np.ndarray]:
    """The outputs [B, ...] of some units, without those of the padding."""
    if rows.rows_per_unit > 1:
        return list(outputs.reshape(len(units), rows.rows_per_unit))
    if outputs.ndim == 2:  # one vector a row
        return list(outputs)
    return [output[:length] for output, length in zip(outputs, rows.unit_lengths()[units], strict=True)]


@contextmanager
def inference(objective: TaskObjective, job: TaskJob) -> Iterator[None]:
    """Without gradients and dropout, in the arithmetic of the training. UsageError where a GPU's memory is full."""
    was_training = objective.training
    objective.eval()
    device: Any = next(objective.parameters()).device
    with one_line_errors(job.training, "none"), torch.no_grad(), autocast(device, job.arithmetic):
        yield
    objective.train(was_training)
