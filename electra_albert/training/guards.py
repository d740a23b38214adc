"""Guards of a long run: being told to stop, a second run in the same folder, numbers that are not finite."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import threading
import time
import warnings
from pathlib import Path
from types import FrameType, TracebackType

import torch
from torch import Tensor

from electra_albert.contracts import DivergedError, UsageError

MAX_SKIPPED_IN_A_ROW = 5
MAX_SKIPPED = 50
# torchrun and the terminal may both pass on one press of Ctrl-C; what comes this soon after is the same wish.
_SAME_WISH_SECONDS = 1.0


class StopSignal:
    """Turns SIGTERM, SIGINT and SIGUSR1 into a flag that the loop looks at; nothing happens inside the handler.

    A second SIGTERM or SIGINT ends the process at once. Leaving the context puts the old handlers back. Outside the
    main thread, where Python allows no handlers, none is set.
    """

    def __init__(self) -> None:
        self.requested = False
        self._first_at = 0.0
        self._old: dict[int, signal._HANDLER] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested, self._first_at = True, now
        elif number != signal.SIGUSR1 and now - self._first_at > _SAME_WISH_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._old.items():
            # A handler that was not set from Python reads as None and cannot be put back as such.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class RunLock:
    """Holds `run.lock` in a run's folder while the run lasts; the main rank takes it.

    The system drops the lock when its holder dies, so a stale file is taken over. A second run is a UsageError.
    """

    NAME = "run.lock"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.NAME
        self._file = -1

    def __enter__(self) -> RunLock:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            while not self._try_lock():
                os.close(self._file)
            os.ftruncate(self._file, 0)
            os.write(self._file, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        except OSError as error:
            raise UsageError(
                f"cannot write into {self._path.parent}: {error.strerror}; make room or choose another --output_dir"
            ) from error
        return self

    def _try_lock(self) -> bool:
        """Lock the file; false if it was removed by its last holder in between."""
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 200).decode(errors="replace").strip() or "a process that is just starting"
            os.close(self._file)
            raise UsageError(
                f"{self._path.parent} is in use by another run ({holder}); wait for it or choose another --output_dir"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            warnings.warn(f"{self._path} cannot be locked on this file system; take care to run once", stacklevel=3)
            return True
        try:
            return os.stat(self._path).st_ino == os.fstat(self._file).st_ino
        except FileNotFoundError:
            return False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)


class UpdateGuard:
    """Counts, on the device, the updates that are skipped because their gradient is not finite.

    Overflows of fp16, which the loss scale counts and answers, are skipped too but do not count here.
    """

    def __init__(self, device: torch.device) -> None:
        # Skipped in all, skipped in a row up to now, and the longest such row.
        self._counts = torch.zeros(3, dtype=torch.int64, device=device)

    def observe(self, gradient_norm: Tensor, has_overflowed: Tensor) -> Tensor:
        """Take in the norm [] of an update, and bool []; returns bool [], whether the update is to be made."""
        is_finite = torch.isfinite(gradient_norm)
        skipped = (~is_finite & ~has_overflowed).to(torch.int64)
        total, in_a_row, longest = self._counts.unbind()
        in_a_row = (in_a_row + 1) * skipped
        self._counts = torch.stack((total + skipped, in_a_row, torch.maximum(longest, in_a_row)))
        return is_finite

    def skipped(self) -> int:
        """Updates skipped so far; waits for the device."""
        return int(self._counts[0])

    def check(self, step: int) -> None:
        """Raise DivergedError if too many updates were skipped by `step`; waits for the device."""
        total, _, longest = self._counts.tolist()
        if longest >= MAX_SKIPPED_IN_A_ROW or total >= MAX_SKIPPED:
            what = f"{longest} updates in a row" if longest >= MAX_SKIPPED_IN_A_ROW else f"{total} updates"
            raise DivergedError(
                f"training diverged: by step {step} {what} had a loss or gradient that is not finite and were skipped; "
                "the last checkpoint is untouched: lower --learning_rate or raise --warmup_steps"
            )

    def state(self) -> list[int]:
        """The counts, as a checkpoint keeps them."""
        return [int(count) for count in self._counts.tolist()]

    def restore(self, state: list[int]) -> None:
        """Go on from the counts of a checkpoint."""
        self._counts = torch.tensor(state, dtype=torch.int64, device=self._counts.device)


def poison_unless_finite(loss: Tensor, scale: Tensor | None = None) -> Tensor:
    """The gradient to start `loss.backward` with: the scale [] or one, or NaN where the loss is not finite.

    So a bad loss on one rank reaches the reduced gradient of all, and they skip the update together without a word.
    """
    return torch.where(torch.isfinite(loss), 1.0 if scale is None else scale, torch.nan).to(loss.dtype)
