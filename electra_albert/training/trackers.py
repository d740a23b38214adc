"""Trackers of metrics (--report_to), each by its package."""

import importlib.util
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import text as text_summary

from electra_albert.contracts import UsageError
from electra_albert.files import write_text

PROJECT = "electra-albert"  # in online trackers
_ID_FILE = "tracker_id"  # in the run's folder: its identity in online trackers, also after a resume


def check_trackers(report_to: str) -> None:
    """Raise UsageError unless the packages of all trackers are installed."""
    for name in report_to.split(","):
        if name != "none" and importlib.util.find_spec(name) is None:
            raise UsageError(f"--report_to {name} needs its package; run: pip install {name}")


def open_tracker(
    name: str, folder: Path, step: int, settings: Mapping[str, Any]
) -> "_TensorBoard | _Online":
    """The tracker for a run that continues after `step`. Raises UsageError if it cannot start."""
    if name == "tensorboard":
        return _TensorBoard(folder / name, step)
    try:
        return _Online(importlib.import_module(name), folder, settings)
    except Exception as error:  # whatever the package raises, without login or network for example
        raise UsageError(f"--report_to {name}: {error}; leave it out, or set up {name}") from error


class _TensorBoard:
    """Event files, written at once.

    The thread of SummaryWriter ends with a traceback when the disk is full, here a new file is
    begun at the next step.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._folder = folder
        self._hidden_from = step + 1  # rows of an interrupted run from this step on
        self._writer: Any = None

    def _begin_file(self, step: int) -> Any:
        """A writer of a new file, which hides the rows of an interrupted run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        path = self._folder / f"events.out.tfevents.{now:.6f}"
        writer = RecordWriter(path.open("xb"))
        version = Event(wall_time=now, file_version="brain.Event:2")
        log = SessionLog(status=SessionLog.START)
        start = Event(wall_time=now, session_log=log, step=min(self._hidden_from, step))
        for event in (version, start):
            writer.write(event.SerializeToString())
        return writer

    def _add(self, step: int, summary: Any) -> None:
        writer = self._writer or self._begin_file(step)
        self._writer = None  # after an error: nothing can follow an incomplete record in its file
        event = Event(step=step, wall_time=time.time(), summary=summary)
        writer.write(event.SerializeToString())
        writer.flush()
        self._writer = writer
        self._hidden_from = step + 1

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics by name."""
        values = [Summary.Value(tag=name, simple_value=metrics[name]) for name in metrics]
        self._add(step, Summary(value=values))

    def text(self, name: str, text: str, step: int) -> None:
        """Write Markdown text."""
        self._add(step, text_summary(name, text))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Online:
    """wandb or trackio, whose interfaces agree. Their errors during training become OSError."""

    def __init__(self, package: Any, folder: Path, settings: Mapping[str, Any]) -> None:
        file = folder / _ID_FILE
        if not file.is_file():
            write_text(file, secrets.token_hex(4))
        identity = file.read_text(encoding="utf-8", errors="replace")
        name = "-".join(folder.resolve().parts[-2:])
        options = {"name": f"{name}-{identity}"}
        if package.__name__ == "wandb":  # resumes a run by its id, trackio by its name
            options |= {"id": identity, "dir": str(folder)}
        self._run = package.init(project=PROJECT, config=dict(settings), resume="allow", **options)

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
    except Exception as error:  # whatever the package raises, if its server does not answer
        raise OSError(str(error)) from error
