"""log.txt of a run: the lines that it prints, with the time of each, appended where the run is resumed."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from types import TracebackType

from electra_albert.contracts import UserError

LOG = logging.getLogger("electra_albert")
LOG_FILE = "log.txt"
_KEPT = 100_000  # lines, at most, from before the folder is known to be the run's


def log_lines(text: str) -> None:
    """Log each line of a text on its own."""
    for line in text.splitlines():
        LOG.info(line)


def print_line(message: str) -> None:
    """Log a line and print it to stderr, which may be gone."""
    log_lines(message)
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)


class RunLog:
    """Collects what is logged from here on, and once its folder is open writes it to log.txt there.

    A file that cannot be written is reported once and never stops the run. What ends the block early is logged.
    """

    def __init__(self) -> None:
        self._lines = MemoryHandler(_KEPT, flushLevel=logging.CRITICAL + 1)
        self._warnings = logging.StreamHandler()  # of those who do not print what they log
        self._warnings.setLevel(logging.WARNING)

    def __enter__(self) -> RunLog:
        LOG.setLevel(logging.INFO)
        LOG.propagate = False  # printed already
        LOG.addHandler(self._lines)
        LOG.addHandler(self._warnings)
        return self

    def open(self, folder: Path) -> None:
        """Append to log.txt of this folder, first what was collected; leave an earlier folder's."""
        self._close()
        try:
            file = _LogFile(folder / LOG_FILE, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            _warn(error)
            return
        form = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
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
            LOG.info(f"error: {error}")
        elif error is not None:
            LOG.info("ended by an error", exc_info=error)
        LOG.removeHandler(self._lines)
        LOG.removeHandler(self._warnings)
        LOG.propagate = True
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
    with suppress(OSError):
        print(f"warning: cannot write {LOG_FILE} ({error.strerror}); it has gaps", file=sys.stderr)
