"""The learning rate as a pure function of the step.

Updates are counted from 1 while the rate rises and from 0 while it falls, so that neither the first nor the last update
of a run is made with a rate of zero. The published codes count from 0 throughout: their first update changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from electra_albert.config import TrainingConfig


def _risen(step: int, config: TrainingConfig) -> float:
    """The rate by a linear warm-up alone."""
    warm = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
    return config.learning_rate * warm


def _left(step: int, start: int, config: TrainingConfig) -> float:
    """The share left by a linear decay that begins after update `start`."""
    return 1.0 - (step - 1 - start) / (config.max_steps - start)


def _electra(step: int, config: TrainingConfig) -> float:
    """Warm-up times a decay over the whole run: the peak is not quite reached. Paper: ELECTRA appendix A."""
    return _risen(step, config) * _left(step, 0, config)


def _bert(step: int, config: TrainingConfig) -> float:
    """Warm-up, then a jump down onto a decay that began with the run, as in BERT's and ALBERT's code."""
    if step < config.warmup_steps:
        return _risen(step, config)
    return config.learning_rate * _left(step, 0, config)


def _linear(step: int, config: TrainingConfig) -> float:
    """Warm-up to the peak, then a decay over the updates that remain; the first of them still has the peak."""
    if step <= config.warmup_steps:
        return _risen(step, config)
    return config.learning_rate * _left(step, config.warmup_steps, config)


_SCHEDULES: dict[str, Callable[[int, TrainingConfig], float]] = {"electra": _electra, "bert": _bert, "linear": _linear}


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Rate of update `step`, counted from 1, by config.lr_scheduler_type; zero beyond the end of the run."""
    return _SCHEDULES[config.lr_scheduler_type](step, config) if step <= config.max_steps else 0.0
