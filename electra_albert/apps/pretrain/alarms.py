"""Warnings during pretraining, each with the usual cure; see docs/curves.md, "How runs fail"."""

import math
from collections import deque
from statistics import median

from electra_albert.config.pretraining import PretrainConfig
from electra_albert.contracts import Metrics
from electra_albert.objectives import evaluation
from electra_albert.training import loss_scale, monitor

_ROWS = 5  # logged before a row, with whose median it is compared
_SPIKE = 1.5  # times the usual loss
_SLOW = 0.5  # times the usual speed
_WAITING = 0.2  # share of the time
_NO_GRADIENT = 1e-6
_STRONG = 0.7  # accuracy of a generator that leaves little to detect
# Of a run, in which a loss near the token frequencies is normal.
_EARLY_SHARE = 0.1
_EARLY_STEPS = 500


class Alarms:
    """Finds trouble in rows of metrics: in training when it begins, in evaluations every time."""

    def __init__(self, config: PretrainConfig) -> None:
        self._config = config
        self._losses = deque[float](maxlen=_ROWS)
        self._speeds = deque[float](maxlen=_ROWS)
        self._active: dict[str, str] = {}

    def __call__(self, row: Metrics) -> list[str]:
        """Warnings for a row of metrics.jsonl."""
        prefix = monitor.EVALUATION_PREFIX
        if f"{prefix}loss" in row:
            evaluation = {name.removeprefix(prefix): value for name, value in row.items()}
            return self._of_evaluation(row["step"], evaluation)
        before = self._active
        self._active = self._of_training(row)
        return [warning for name, warning in self._active.items() if name not in before]

    def _of_training(self, row: Metrics) -> dict[str, str]:
        warnings: dict[str, str] = {}
        loss = row["loss"]
        speed = row["tokens_per_second"]
        if len(self._speeds) == _ROWS:
            usual = median(self._losses)
            if loss is not None and loss > _SPIKE * usual:
                text = f"the loss rose from about {usual:.3g} to {loss:.3g}; if the loss stays high"
                warnings["spike"] = f"{text}, {loss_scale.DIVERGED_ADVICE}"
            fast = median(self._speeds)
            if speed < _SLOW * fast:
                warnings["speed"] = (
                    f"the speed fell from about {fast:,.0f} to {speed:,.0f} tokens per second; "
                    "look for other programs on the machine, and for memory that is swapped"
                )
            waited = row["data_wait"]
            if waited > _WAITING:
                text = f"training waits for data {waited:.0%} of the time"
                warnings["data"] = f"{text}; put --prepared_dir on a faster disk"
            norm = row["grad_norm"]
            if norm is not None and norm < _NO_GRADIENT:
                text = f"the gradient norm is {norm:.1g}: nothing is learned"
                warnings["gradient"] = f"{text}; try --precision fp32"
        self._losses.append(math.inf if loss is None else loss)
        self._speeds.append(speed)
        return warnings

    def _of_evaluation(self, step: int, metrics: Metrics) -> list[str]:
        rtd = self._config.rtd
        training = self._config.training
        warnings = []
        early = max(_EARLY_STEPS, _EARLY_SHARE * training.max_steps, training.warmup_steps)
        if step > early and evaluation.is_at_token_frequencies(metrics):
            advice = "name another --rtd.generator"
            if rtd.trains_generator:
                advice = f"restart with --learning_rate {training.learning_rate / 4:g}"
            warnings.append(
                f"masked tokens are still predicted by their frequencies alone; {advice}"
            )
        if evaluation.is_discriminator_at_chance(metrics):
            warnings.append(
                "the discriminator is at chance level although the generator learns; if this "
                f"lasts, restart with --rtd.discriminator_rate {rtd.discriminator_rate / 4:g}"
            )
        accuracy = metrics.get("generator_accuracy") or 0.0
        if accuracy > _STRONG and self._config.run.objective != "electric":
            option = f"temperature {2 * rtd.temperature:g}"
            if rtd.generator == "own":
                option = f"generator_size {rtd.generator_size / 2:g}"
            warnings.append(
                f"the generator predicts {accuracy:.0%} of the masked tokens, so few are replaced; "
                f"restart with --rtd.{option}"
            )
        return warnings
