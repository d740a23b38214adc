"""Warnings during pretraining, each with the usual cure. docs/curves.md, "How runs fail", has the signs."""

import math
from collections import deque
from statistics import median

from electra_albert.config import PretrainConfig
from electra_albert.contracts import Metrics
from electra_albert.objectives.evaluation import is_at_token_frequencies, is_discriminator_at_chance
from electra_albert.training import loss_scale, monitor

_ROWS = 5  # logged before a row, with whose median it is compared
_SPIKE, _SLOW, _WAITING = 1.5, 0.5, 0.2  # times the usual loss; times the usual speed; share of the time
_NO_GRADIENT = 1e-6
_STRONG = 0.7  # accuracy of a generator that leaves little to detect
_EARLY_SHARE, _EARLY_STEPS = 0.1, 500  # of a run, in which a loss near the token frequencies is normal


class Alarms:
    """Finds trouble in the rows of metrics: in those of the training when it begins, in evaluations every time."""

    def __init__(self, config: PretrainConfig) -> None:
        self._config = config
        self._losses, self._speeds = deque[float](maxlen=_ROWS), deque[float](maxlen=_ROWS)
        self._active: set[str] = set()

    def __call__(self, row: Metrics) -> list[str]:
        """Warnings for a row of metrics.jsonl."""
        if f"{monitor.EVALUATION_PREFIX}loss" in row:
            evaluation = {name.removeprefix(monitor.EVALUATION_PREFIX): value for name, value in row.items()}
            return self._of_evaluation(int(row["step"] or 0), evaluation)
        found = self._of_training(row)
        begun, self._active = found.keys() - self._active, {*found}
        return [message for name, message in found.items() if name in begun]

    def _of_training(self, row: Metrics) -> dict[str, str]:
        loss, speed, norm, found = row["loss"], row["tokens_per_second"] or 0.0, row["grad_norm"], dict[str, str]()
        if len(self._speeds) == _ROWS:
            usual, fast, waited = median(self._losses), median(self._speeds), row["data_wait"] or 0.0
            if loss is not None and loss > _SPIKE * usual:
                advice = f"if the loss stays high, {loss_scale.DIVERGED_ADVICE}"
                found["spike"] = f"the loss rose from about {usual:.3g} to {loss:.3g}; {advice}"
            if speed < _SLOW * fast:
                advice = "look for other programs on the machine, and for memory that is swapped"
                found["speed"] = f"the speed fell from about {fast:,.0f} to {speed:,.0f} tokens per second; {advice}"
            if waited > _WAITING:
                found["data"] = f"training waits for data {waited:.0%} of the time; put --prepared_dir on a faster disk"
            if norm is not None and norm < _NO_GRADIENT:
                found["gradient"] = f"the gradient norm is {norm:.1g}: nothing is learned; try --precision fp32"
        self._losses.append(math.inf if loss is None else loss)
        self._speeds.append(speed)
        return found

    def _of_evaluation(self, step: int, metrics: Metrics) -> list[str]:
        rtd, training, found = self._config.rtd, self._config.training, list[str]()
        early = max(_EARLY_STEPS, _EARLY_SHARE * training.max_steps, training.warmup_steps)
        if step > early and is_at_token_frequencies(metrics):
            advice = f"restart with --learning_rate {training.learning_rate / 4:g}"
            advice = advice if rtd.trains_generator else "name another --rtd.generator"
            found.append(f"masked tokens are still predicted by their frequencies alone; {advice}")
        if is_discriminator_at_chance(metrics):
            advice = f"if this lasts, restart with --rtd.discriminator_rate {rtd.discriminator_rate / 4:g}"
            found.append(f"the discriminator is at chance level although the generator learns; {advice}")
        accuracy = metrics.get("generator_accuracy") or 0.0
        if accuracy > _STRONG and self._config.run.objective != "electric":
            smaller, hotter = f"generator_size {rtd.generator_size / 2:g}", f"temperature {2 * rtd.temperature:g}"
            advice = f"restart with --rtd.{smaller if rtd.generator == 'own' else hotter}"
            found.append(f"the generator predicts {accuracy:.0%} of the masked tokens, so few are replaced; {advice}")
        return found
