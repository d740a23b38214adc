"""Trackers to which the metrics of a run are reported (--report_to), each by its own package."""

import importlib
import importlib.util
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from electra_albert.contracts import UsageError
from electra_albert.files import write_text

PROJECT = "electra-albert"
_ID_FILE = "tracker_id"  # in the run's folder: the run's identity in online trackers, also after a resume


def check_trackers(report_to: str) -> None:
    """Raise UsageError unless the packages of all trackers are installed."""
    for name in report_to.split(","):
        if name not in ("none", "tensorboard") and importlib.util.find_spec(name) is None:
            raise UsageError(f"--report_to {name} needs its package; run: pip install {name}")


def open_tracker(name: str, folder: Path, step: int, settings: Mapping[str, Any]) -> "_TensorBoard | _Online":
    """The tracker for a run that continues after `step`. Raises UsageError if it cannot start."""
    if name == "tensorboard":
        return _TensorBoard(folder / name, step)
    try:
        return _Online(importlib.import_module(name), folder, settings)
    except Exception as error:  # whatever the package raises, without login or network for example
        raise UsageError(f"--report_to {name}: {error}; leave it out, or set up {name}") from error


class _TensorBoard:
    """Event files, written at once: the thread of SummaryWriter ends for good when the disk is full."""

    def __init__(self, folder: Path, step: int) -> None:
        self._folder, self._hidden_from = folder, step + 1  # rows of an interrupted run from this step on
        self._file: BinaryIO | None = None

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        now, events = time.time(), list[Event]()
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / f"events.out.tfevents.{now:.6f}").open("xb")
            start = SessionLog(status=SessionLog.START)
            events = [Event(file_version="brain.Event:2", wall_time=now)]
            events += [Event(session_log=start, step=min(self._hidden_from, step), wall_time=now)]
        file, self._file = self._file, None  # after an error: nothing can follow an incomplete record in its file
        for event in (*events, Event(step=step, wall_time=now, **content)):
            RecordWriter(file).write(event.SerializeToString())
        file.flush()
        self._file, self._hidden_from = file, step + 1

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics by name."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, summary=Summary(value=[Summary.Value(tag=k, simple_value=v) for k, v in metrics.items()]))

    def text(self, name: str, text: str, step: int) -> None:
        """Write Markdown text."""
        from torch.utils.tensorboard import summary

        make: Any = summary.text
        self._add(step, summary=make(name, text))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Online:
    """wandb or trackio, whose interfaces agree. Their errors during training become OSError."""

    def __init__(self, package: Any, folder: Path, settings: Mapping[str, Any]) -> None:
        file = folder / _ID_FILE
        if not file.is_file():
            write_text(file, secrets.token_hex(4))
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
