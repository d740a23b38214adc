"""What a run of the loop is told."""

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


def never_enough() -> bool:
    """A run goes on to its last step."""
    return False


@dataclass(frozen=True)
class Run:
    """Where a run lives, how it is trained, and who watches it."""

    folder: Path
    config: TrainingConfig
    world: World
    monitor: Monitor
    stop: StopSignal
    arithmetic: Arithmetic = "fp32"
    resume_from: Path | None = None
    scores_start: bool = False  # evaluate before the first update too
    rate_scales: Mapping[str, float] | None = None  # what each parameter's learning rate is multiplied with, by name
    is_enough: Callable[[], bool] = never_enough  # asked after each evaluation: end the run before max_steps?
    settings: Mapping[str, Any] = field(default_factory=dict)  # anything else each checkpoint shall record, as JSON

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"
