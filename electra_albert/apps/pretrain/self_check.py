"""A check of seconds before every run: what silently goes wrong in other code is looked at here."""

from __future__ import annotations

import logging
import math

import torch

from electra_albert.contracts import Batch, UsageError
from electra_albert.objectives.registry import PretrainingObjective
from electra_albert.training.optimizer import check_groups, parameter_groups

LOG = logging.getLogger(__name__)

START_TOLERANCE = 0.1  # of the loss that guessing would have; the initial weights leave that much
ORDER_TOLERANCE = 1.0  # few rows tell an order, all of them may be swapped, and the first verdicts are all alike


def self_check(objective: PretrainingObjective, batch: Batch, weight_decay: float, begun: str) -> None:
    """Ties by storage, every parameter in one group, the losses of guessing at the start, which is told as `begun`.

    `batch` is one of the run's own. Raises UsageError where the losses are off, which settings can cause, and
    AssertionError where a law is broken, which they cannot.
    """
    check_ties(objective)
    groups = parameter_groups(objective, weight_decay)
    check_groups(objective, groups)
    losses = start_losses(objective, batch)
    for name, loss in losses.items():
        wanted = objective.guessing.get(name, math.nan)
        tolerance = ORDER_TOLERANCE if name == "sop_loss" else START_TOLERANCE
        if not abs(loss - wanted) <= tolerance * wanted:
            raise UsageError(
                f"{name} starts at {loss:.3f}, but guessing[{name!r}] of {type(objective).__name__} is {wanted:.3f}: "
                "declare its loss at chance level there or, where that is right, choose another "
                "--model.initializer_range"
            )
    told = ", ".join(
        f"{name.replace('_', ' ')} {loss:.2f} (guessing: {objective.guessing[name]:.2f})"
        for name, loss in losses.items()
    )
    LOG.info(f"self-check: tables shared, every parameter in one group; {begun} {told}")


def check_ties(objective: PretrainingObjective) -> None:
    """AssertionError unless generator and discriminator, where there are two, read the very same tables."""
    if objective.discriminator is None:
        return
    tables = {name: tensor.data_ptr() for name, tensor in objective.generator.embeddings.named_parameters()}
    for name, tensor in objective.discriminator.embeddings.named_parameters():
        assert tables[name] == tensor.data_ptr(), f"generator and discriminator do not share {name}"


def start_losses(objective: PretrainingObjective, batch: Batch) -> dict[str, float]:
    """Mean in nats of each weighted term that counts anything in one batch."""
    device = objective.generator.predictions.bias.device
    with torch.no_grad():
        terms = objective(batch.to(device), torch.zeros((), dtype=torch.int64, device=device))
    return {name: float(terms[name].sum / terms[name].count) for name in objective.weights if terms[name].count}
