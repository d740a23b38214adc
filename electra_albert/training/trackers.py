"""Trackers to which the metrics of a run are reported (--report_to), each by its own package."""

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from electra_albert.contracts import UsageError

PROJECT = "electra-albert"


class Tracker(Protocol):
    """A destination for the metrics of a run."""

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics by name."""

    def text(self, name: str, text: str, step: int) -> None:
        """Write Markdown text, where the tracker shows texts."""

    def close(self) -> None:
        """Write what is left, and close."""


def open_tracker(name: str, folder: Path, step: int, settings: Mapping[str, Any]) -> Tracker:
    """The tracker for a run that continues after `step`. Raises UsageError if its package is missing or refuses."""
    if name == "tensorboard":
        return _TensorBoard(folder / name, step)
    try:
        return _Online(importlib.import_module(name), folder, settings)
    except ImportError:
        raise UsageError(f"--report_to {name} needs its package; run: pip install {name}") from None
    except Exception as error:  # whatever the package raises, without login or network for example
        raise UsageError(f"--report_to {name}: {error}; leave it out, or set up {name}") from error


class _TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)

    def close(self) -> None:
        self._writer.close()


class _Online:
    """wandb or trackio, whose interfaces agree. A resumed run in the same folder continues the tracker's run."""

    def __init__(self, package: Any, folder: Path, settings: Mapping[str, Any]) -> None:
        own: dict[str, Any] = {}
        if package.__name__ == "wandb":  # trackio finds a run by its name
            own = {"id": hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16], "dir": str(folder)}
        self._run = package.init(project=PROJECT, name=folder.name, config=dict(settings), resume="allow", **own)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def text(self, name: str, text: str, step: int) -> None:
        """Neither shows Markdown."""

    def close(self) -> None:
        self._run.finish()
