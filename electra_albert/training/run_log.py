"""Log handlers: plain lines on stderr, lines with a time stamp in a run's log.txt."""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, TextIO

from tqdm import tqdm

from electra_albert.contracts import LOG, UserError, redacted

LOG_FILE = "log.txt"
FILE_ONLY = {"is_file_only": True}  # `extra` of records that are not for the console


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.levelno > logging.INFO:
            record.message = f"{record.levelname.lower()}: {record.message}"
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return str(redacted(super().format(record)))


def is_notebook() -> bool:
    """Whether this is a kernel of a notebook, which shows stderr in red."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and "IPKernelApp" in getattr(ipython.get_ipython(), "config", ())


def console() -> TextIO:
    """The output for log lines and the progress bar."""
    return sys.stdout if is_notebook() else sys.stderr


class _Console(logging.Handler):
    """Prints records to the console, above the progress bar if there is one.

    Unlike tqdm's logging_redirect_tqdm it ignores a closed console.
    """

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):
            tqdm.write(self.format(record), file=console())


def _is_of_console(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    return isinstance(handler, _Console) or stream in (sys.stdout, sys.stderr)


def is_main_process() -> bool:
    """Whether this is rank 0 or the only process."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def console_log() -> Iterator[None]:
    """Print log records to the console, on the main process only.

    Does nothing in a nested block, or if a handler of the caller prints them.
    """
    if any(map(_is_of_console, (*LOG.handlers, *logging.root.handlers))):
        yield
        return
    level = LOG.level
    handler = _Console(level)
    handler.formatter = _Formatter()
    handler.addFilter(lambda record: is_main_process() and not hasattr(record, "is_file_only"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)


def log_to_file(text: str) -> None:
    """Log each line of a text to log.txt but not to stderr, because stdout already has it."""
    for line in text.splitlines():
        LOG.info(line, extra=FILE_ONLY)


class RunLog(logging.Handler):
    """Writes log records, and an error that ends the block, to log.txt of the main process.

    Records are collected until its folder is known.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []  # not yet written
        self._path: Path | None = None
        self._is_held = True
        self._has_failed = False
        self._is_writer = is_main_process()
        self.formatter = _Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.formatter.converter = time.gmtime

    def __enter__(self) -> Self:
        self._level = LOG.level
        LOG.setLevel(min(LOG.getEffectiveLevel(), logging.INFO))
        LOG.addHandler(self)
        return self

    def open(self, folder: Path) -> None:
        """Append to log.txt of this folder from now on, first the collected records."""
        self._path = folder / LOG_FILE
        self._is_held = False
        self._has_failed = False
        self.flush()

    def hold(self) -> None:
        """Collect the records until the next folder is known, or the block ends."""
        self._is_held = True

    def take_over(self) -> None:
        """Write the records from now on, if the main process is lost."""
        self._is_writer = True

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_writer:
            self._lines.append(self.format(record) + "\n")
            self.flush()

    def flush(self) -> None:
        """Append the collected lines to the file, if there is one; errors warn once."""
        if self._path is None or self._is_held or not self._lines:
            return
        text = "".join(self._lines)
        self._lines.clear()
        try:
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                LOG.warning(f"cannot write {LOG_FILE} ({error.strerror}); it is incomplete")

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, UserError):
            log_to_file(f"error: {error}")
        elif error is not None:
            LOG.info("the run failed with an error", exc_info=error, extra=FILE_ONLY)
        self._is_held = False
        self.flush()
        LOG.removeHandler(self)
        LOG.setLevel(self._level)
