"""Settings of one run of the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra_albert.config import TrainingConfig
from electra_albert.contracts import Arithmetic
from electra_albert.training.distributed import World
from electra_albert.training.guards import StopSignal
from electra_albert.training.monitor import Monitor


@dataclass(frozen=True)
class RunSettings:
    """Where a run is kept, how it is trained, and what watches it."""

    folder: Path
    config: TrainingConfig
    world: World
    monitor: Monitor
    stop: StopSignal
    arithmetic: Arithmetic = "fp32"
    resume_from: Path | None = None
    scores_start: bool = False  # evaluate before the first update too
    rate_scales: Mapping[str, float] | None = None  # multiples of the learning rate by parameter name
    is_enough: Callable[[], bool] = bool  # called after each evaluation: end before max_steps? bool() is False
    settings: Mapping[str, Any] = field(default_factory=dict)  # anything else each checkpoint shall record, as JSON

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"
