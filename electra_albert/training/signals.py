"""Stop signals, and the lock on the folder of a run."""

import errno
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from electra_albert.contracts import UsageError
from electra_albert.files import remove_leftovers

# Sub-folders of runs.
_PARTS = (
    *("tokenizer", "generator", "discriminator", "generator_warmup", "checkpoints"),
    *("seed-*", "model", "submission"),
)
_SAME_REQUEST_SECONDS = 1.0  # torchrun and the terminal may both forward one press of Ctrl-C
_ENDING = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = {*_ENDING, getattr(signal, "SIGUSR1", signal.SIGTERM)}  # Windows has no SIGUSR1


class StopSignal:
    """Sets a flag on SIGTERM, SIGINT or SIGUSR1, which the loop reads.

    A second SIGTERM or SIGINT has the effect that it had before.
    """

    def __init__(self) -> None:
        self.requested = False
        self._first_at = 0.0
        self._handlers: dict[int, signal._HANDLER] = {}

    def _handle(self, number: int, _: object) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested = True
            self._first_at = now
        elif number in _ENDING and now - self._first_at > _SAME_REQUEST_SECONDS:
            self.__exit__()
            signal.raise_signal(number)

    def __enter__(self) -> Self:
        # Python allows handlers only in the main thread.
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            # A handler that was not set from Python reads as None and cannot be restored.
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold `run.lock` in a run's folder; the lock of a dead process is replaced.

    Files that a killed run had begun to write are removed. A second run raises UsageError.
    """
    path = folder / "run.lock"
    advice = "choose another --output_dir"
    lock = FileLock(path, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        remove_leftovers(folder)
        for name in _PARTS:
            for part in folder.glob(name):
                remove_leftovers(part)
        with suppress(PermissionError):  # on Windows a locked file cannot be read or written
            path.write_text(f"pid {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
    except Timeout:
        holder = "a starting process"
        with suppress(OSError):
            holder = path.read_text(encoding="utf-8", errors="replace")[:200].strip() or holder
        raise UsageError(
            f"{folder} is in use by another run ({holder}); wait for it or {advice}"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise UsageError(
                f"cannot write to {folder}: {error.strerror}; free disk space or {advice}"
            ) from error
        warnings.warn(
            f"{path} cannot be locked on this file system; do not start this run twice",
            stacklevel=3,
        )
    try:
        yield
    finally:
        # Windows cannot remove an open file; the next run replaces it.
        with suppress(PermissionError):
            path.unlink(missing_ok=True)
        lock.release()
