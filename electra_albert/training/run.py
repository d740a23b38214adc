"""What a run of the loop is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra_albert.config import TrainingConfig
from electra_albert.contracts import Arithmetic
from electra_albert.training.distributed import World
from electra_albert.training.guards import StopSignal
from electra_albert.training.monitor import Monitor


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
    settings: Mapping[str, Any] = field(default_factory=dict)  # anything else each checkpoint shall record, as JSON

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"
