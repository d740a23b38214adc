"""Where log records go: to stderr as plain lines, and to a run's log.txt with the time of each."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from types import TracebackType

from electra_albert.contracts import UserError

LOG = logging.getLogger("electra_albert")
LOG_FILE = "log.txt"
_KEPT = 100_000  # lines, at most, from before the folder is known to be the run's


class _Formatter(logging.Formatter):
    """Names the level where it is above INFO: "warning: message"."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.levelno > logging.INFO:
            record.message = f"{record.levelname.lower()}: {record.message}"
        return super().formatMessage(record)


class _Console(logging.Handler):
    """Prints records to stderr, above a progress bar where there is one; an stderr that is gone is ignored."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):
            if tqdm := sys.modules.get("tqdm"):
                tqdm.tqdm.write(self.format(record), file=sys.stderr)
            else:
                print(self.format(record), file=sys.stderr)
            sys.stderr.flush()


def is_main_process() -> bool:
    """Whether this is the process of rank 0, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def console_log() -> Iterator[None]:
    """Print what is logged to stderr, on the main process only; inside another such block this does nothing."""
    if any(isinstance(handler, _Console) for handler in LOG.handlers):
        yield
        return
    handler, level = _Console(), LOG.level
    handler.setFormatter(_Formatter())
    handler.addFilter(lambda record: is_main_process() and not hasattr(record, "is_shown"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)


def log_shown(text: str) -> None:
    """Log each line of a text that stdout or the progress bar shows already: for log.txt alone."""
    for line in text.splitlines():
        LOG.info(line, extra={"is_shown": True})


class RunLog:
    """Collects what is logged, errors that end the block too, and writes it to log.txt once its folder is open."""

    def __init__(self) -> None:
        self._lines = MemoryHandler(_KEPT, flushLevel=logging.CRITICAL + 1)
        self._level = logging.NOTSET

    def __enter__(self) -> RunLog:
        self._level = LOG.level
        LOG.addHandler(self._lines)
        if not LOG.isEnabledFor(logging.INFO):  # as where nobody has configured logging
            LOG.setLevel(logging.INFO)
        return self

    def open(self, folder: Path) -> None:
        """Append to log.txt of this folder, first what was collected; leave an earlier folder's."""
        self._close()
        try:
            file = _LogFile(folder / LOG_FILE, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            _warn(error)
            return
        form = _Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        form.converter = time.gmtime
        file.setFormatter(form)
        self._lines.setTarget(file)
        self._lines.flush()
        self._lines.capacity = 1  # from here on each line at once

    def _close(self) -> None:
        target = self._lines.target
        self._lines.setTarget(None)
        if target is not None:
            with suppress(OSError):
                target.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, UserError):
            log_shown(f"error: {error}")
        elif error is not None:
            LOG.info("ended by an error", exc_info=error, extra={"is_shown": True})
        LOG.removeHandler(self._lines)
        LOG.setLevel(self._level)
        self._close()


class _LogFile(logging.FileHandler):
    """A file whose failing is reported once."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not self._has_failed and isinstance(error, OSError):
            self._has_failed = True
            _warn(error)


def _warn(error: OSError) -> None:
    LOG.warning(f"cannot write {LOG_FILE} ({error.strerror}); it has gaps")
