"""The learning rate as a pure function of the step."""

from __future__ import annotations

from electra_albert.config import TrainingConfig


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Rate of update `step`, counted from 1: a linear warm-up times a linear decay over the whole run.

    Paper: ELECTRA appendix A.
    """
    # Differs from ELECTRA: updates are counted from 1 in the warm-up and from 0 in the decay, so that neither the first
    # nor the last one is made with a rate of zero.
    warm = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
    left = 1.0 - (step - 1) / config.max_steps
    return config.learning_rate * warm * max(0.0, left)
