"""Guards of a long run: stop signals, a second run in the same folder, numbers that are not finite."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from electra_albert.contracts import Arithmetic, CheckpointError, DivergedError, UsageError

MAX_SKIPPED_IN_A_ROW = 5
MAX_SKIPPED = 50
_SAME_REQUEST_SECONDS = 1.0  # torchrun and the terminal may both pass on one press of Ctrl-C
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))


class StopSignal:
    """Turns SIGTERM, SIGINT and SIGUSR1 into a flag that the loop reads; a second one of the first two ends the run."""

    def __init__(self) -> None:
        self.requested = False
        self._first_at = 0.0
        self._old: dict[int, signal._HANDLER] = {}

    def _handle(self, number: int, _: object) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested, self._first_at = True, now
        elif number in (signal.SIGTERM, signal.SIGINT) and now - self._first_at > _SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._old = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            # A handler that was not set from Python reads as None and cannot be put back as such.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold `run.lock` in a run's folder; a second run is a UsageError, a file whose holder died is taken over."""
    path, way_out = folder / "run.lock", "choose another --output_dir"
    lock = FileLock(path, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        with suppress(PermissionError):  # Windows lets nobody read or write a locked file
            path.write_text(f"pid {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
    except Timeout:
        holder = "a process that is just starting"
        with suppress(OSError):
            holder = path.read_text(encoding="utf-8", errors="replace")[:200].strip() or holder
        raise UsageError(f"{folder} is in use by another run ({holder}); wait for it or {way_out}") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise UsageError(f"cannot write into {folder}: {error.strerror}; make room or {way_out}") from error
        warnings.warn(f"{path} cannot be locked on this file system; take care to run once", stacklevel=3)
    try:
        yield
    finally:
        with suppress(PermissionError):  # Windows removes no open file; it stays and is taken over
            path.unlink(missing_ok=True)
        lock.release()


class UpdateGuard:
    """Counts, on the device, the updates skipped because their gradient is not finite, overflows of fp16 apart."""

    def __init__(self, device: torch.device, counts: Sequence[int] = (0, 0, 0)) -> None:
        # Of a run: all skipped updates, those in a row up to now, and the longest such row.
        self._counts = torch.tensor(counts, dtype=torch.int64, device=device)

    def observe(self, gradient_norm: Tensor, has_overflowed: Tensor) -> Tensor:
        """Count an update by its gradient norm [] and bool []; returns bool [], whether it may be made."""
        is_finite = torch.isfinite(gradient_norm)
        skipped = (~is_finite & ~has_overflowed).to(torch.int64)
        total, in_a_row, longest = self._counts.unbind()
        in_a_row = (in_a_row + 1) * skipped
        self._counts = torch.stack((total + skipped, in_a_row, torch.maximum(longest, in_a_row)))
        return is_finite

    def check(self, step: int) -> None:
        """Raise DivergedError if too many updates were skipped by `step`; waits for the device."""
        total, _, longest = self.state()
        in_a_row = f"{longest} updates in a row" if longest >= MAX_SKIPPED_IN_A_ROW else ""
        if skipped := in_a_row or (f"{total} updates" if total >= MAX_SKIPPED else ""):
            raise DivergedError(
                f"training diverged: by step {step} {skipped} with a loss or gradient that is not finite were skipped; "
                "the last checkpoint is untouched: lower --learning_rate or raise --warmup_steps"
            )

    def state(self) -> list[int]:
        """The counts of a checkpoint; waits for the device."""
        return self._counts.tolist()


class LossScale(torch.amp.GradScaler):
    """The loss scale of fp16, alike on all ranks, and a count of its overflows; in any other arithmetic it is 1.

    An overflow is a gradient that was not finite at a scale above 1, which halves it; from 1 down it is divergence.
    """

    def __init__(self, device: torch.device, arithmetic: Arithmetic) -> None:
        super().__init__(device.type, enabled=arithmetic == "fp16")
        self._one = torch.ones((), device=device)
        self._overflowed = torch.zeros((), dtype=torch.int64, device=device)

    def current(self) -> Tensor:
        """The scale, float32 []."""
        return self.scale(self._one)

    def follow(self) -> Tensor:
        """Move the scale by what `unscale_` found; returns bool [], whether it overflowed at a scale above 1."""
        before = self.current()
        self.update()
        has_overflowed = (before > 1) & (self.current() < before)
        self._overflowed = self._overflowed + has_overflowed
        return has_overflowed

    def row(self) -> dict[str, float]:
        """The keys of a row of metrics: the scale, and the overflows of the run where there were any. Waits."""
        state = self.state()
        overflowed = {"overflowed_steps": state["overflowed"]} if state.get("overflowed") else {}
        return {"loss_scale": state["scale"], **overflowed} if state else {}

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint, exact to the bit; empty but in fp16. Waits for the device."""
        return {**self.state_dict(), "overflowed": int(self._overflowed)} if self.is_enabled() else {}

    def restore(self, state: dict[str, Any], path: Path) -> None:
        """Continue from the state in the checkpoint `path`; CheckpointError unless both or neither are fp16."""
        if bool(state) != self.is_enabled():
            then, now = ("in fp16", "is not") if state else ("without a loss scale", "is fp16")
            raise CheckpointError(f"{path} was trained {then}, but --precision {now}; resume with the one of its run")
        if state:
            self.load_state_dict(state)
            self._overflowed.fill_(state["overflowed"])


def loss_scale_or_nan(loss: Tensor, scale: Tensor | None = None) -> Tensor:
    """The gradient to start `loss.backward` with: the scale [] or one, NaN for a loss that is not finite."""
    return torch.where(torch.isfinite(loss), 1.0 if scale is None else scale, torch.nan).to(loss.dtype)
