"""A check of seconds before every run: what silently goes wrong in other code is looked at here."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from electra_albert.contracts import Batch, UsageError
from electra_albert.objectives.rtd import ReplacedTokenDetection
from electra_albert.training.optimizer import check_groups, parameter_groups

START_TOLERANCE = 0.1  # of the loss that guessing would have; the initial weights leave that much


def self_check(
    objective: ReplacedTokenDetection, batch: Batch, weight_decay: float, say: Callable[[str], None]
) -> None:
    """Ties by storage, every parameter in one group, the losses of guessing at the start.

    `batch` is one of the run's own. Raises UsageError where the losses are off, which settings can cause, and
    AssertionError where a law is broken, which they cannot.
    """
    check_ties(objective)
    groups = parameter_groups(objective, weight_decay)
    check_groups(objective, groups)
    losses = start_losses(objective, batch)
    expected = {
        "generator_loss": math.log(objective.electra.generator.config.vocab_size),
        "discriminator_loss": math.log(2),
    }
    for name, wanted in expected.items():
        if not abs(losses[name] - wanted) <= START_TOLERANCE * wanted:
            raise UsageError(
                f"{name} starts at {losses[name]:.3f}, where guessing gives {wanted:.3f}; the initial weights are off: "
                "look at --model.initializer_range and --model.initialization"
            )
    told = ", ".join(
        f"{name.replace('_', ' ')} {losses[name]:.2f} (guessing: {expected[name]:.2f})" for name in expected
    )
    say(f"self-check: tables shared, every parameter in one group; at the start {told}")


def check_ties(objective: ReplacedTokenDetection) -> None:
    """AssertionError unless generator and discriminator read the very same tables."""
    tables = {name: tensor.data_ptr() for name, tensor in objective.electra.generator.embeddings.named_parameters()}
    for name, tensor in objective.electra.discriminator.embeddings.named_parameters():
        assert tables[name] == tensor.data_ptr(), f"generator and discriminator do not share {name}"


def start_losses(objective: ReplacedTokenDetection, batch: Batch) -> dict[str, float]:
    """Mean of each weighted term on one batch, in nats a counted token."""
    device = objective.electra.generator.predictions.bias.device
    with torch.no_grad():
        terms = objective(batch.to(device), torch.zeros((), dtype=torch.int64, device=device))
    return {name: float(terms[name].sum / terms[name].count) for name in objective.weights}
