"""Trackers to which the metrics of a run are reported (--report_to), each by its own package."""

import importlib
import importlib.util
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from electra_albert.contracts import UsageError

PROJECT = "electra-albert"
_ID_FILE = "tracker_id"  # in the run's folder: the run's identity in online trackers, also after a resume


class Tracker(Protocol):
    """A destination for the metrics of a run."""

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics by name."""

    def text(self, name: str, text: str, step: int) -> None:
        """Write Markdown text, where the tracker shows texts."""

    def close(self) -> None:
        """Write what is left, and close."""


def check_trackers(report_to: str) -> None:
    """Raise UsageError unless the packages of all trackers are installed."""
    for name in report_to.split(","):
        if name not in ("none", "tensorboard") and importlib.util.find_spec(name) is None:
            raise UsageError(f"--report_to {name} needs its package; run: pip install {name}")


def open_tracker(name: str, folder: Path, step: int, settings: Mapping[str, Any]) -> Tracker:
    """The tracker for a run that continues after `step`. Raises UsageError if it cannot start."""
    if name == "tensorboard":
        return _TensorBoard(folder / name, step)
    try:
        return _Online(importlib.import_module(name), folder, settings)
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
    """wandb or trackio, whose interfaces agree. Their errors during training become OSError."""

    def __init__(self, package: Any, folder: Path, settings: Mapping[str, Any]) -> None:
        file = folder / _ID_FILE
        if not file.is_file():
            file.write_text(secrets.token_hex(4), encoding="utf-8")
        identity = file.read_text(encoding="utf-8")
        # trackio resumes a run by its name, wandb by its id.
        own: dict[str, Any] = {"id": identity, "dir": str(folder)} if package.__name__ == "wandb" else {}
        name = f"{'-'.join(folder.resolve().parts[-2:])}-{identity}"
        self._run = package.init(project=PROJECT, name=name, config=dict(settings), resume="allow", **own)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        with _as_os_error():
            self._run.log(dict(metrics), step=step)

    def text(self, name: str, text: str, step: int) -> None:
        """Neither shows Markdown."""

    def close(self) -> None:
        with _as_os_error():
            self._run.finish()


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the package raises, if its server does not answer for example
        raise OSError(str(error)) from error
