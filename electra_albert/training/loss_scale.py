"""Safety of the numbers: steps skipped for non-finite gradients, and the loss scale of fp16."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra_albert.contracts import Arithmetic, CheckpointError, DivergedError

DIVERGED_ADVICE = (
    "start again in another --output_dir with a lower --learning_rate or more --warmup_steps"
)
MAX_SKIPPED_IN_A_ROW = 5
MAX_SKIPPED = 50


class UpdateGuard:
    """Counts, on the device, steps skipped for a non-finite gradient, without fp16 overflows."""

    def __init__(self, device: torch.device) -> None:
        # Skipped steps of the run: in total, in a row at present, and the most in a row.
        self._counts = torch.zeros(3, dtype=torch.int64, device=device)
        self._copy = self._counts  # on a GPU: on the host, complete once _copied has passed
        self._copied: torch.cuda.Event | None = None

    def observe(self, gradient_norm: Tensor, has_overflowed: Tensor) -> Tensor:
        """Count a step by its gradient norm [] and fp16 overflow, bool [].

        Returns whether the norm is finite, bool [].
        """
        is_finite = torch.isfinite(gradient_norm)
        skipped = (~is_finite & ~has_overflowed).to(torch.int64)
        total, in_a_row, longest = self._counts.unbind()
        in_a_row = (in_a_row + 1) * skipped
        counts = torch.stack((total + skipped, in_a_row, torch.maximum(longest, in_a_row)))
        self._counts.copy_(counts)  # in place, for CUDA graphs
        return is_finite

    def watch(self, step: int) -> None:
        """Raise DivergedError as `check` does; on a GPU from earlier counts, without waiting."""
        if self._counts.is_cpu:
            self.check(step)
        # On the same step on all ranks.
        elif self._counts.is_cuda and step % MAX_SKIPPED_IN_A_ROW == 0:
            if self._copied is not None:
                self._copied.synchronize()  # of the last watch
                self._require_few(self._copy.tolist(), step - MAX_SKIPPED_IN_A_ROW)
            self._copy = self._counts.to("cpu", non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def check(self, step: int) -> None:
        """Raise DivergedError if too many steps were skipped up to `step`; waits for the device."""
        self._require_few(self.state(), step)

    @staticmethod
    def _require_few(counts: Sequence[int], step: int) -> None:
        total, _, longest = counts
        if longest >= MAX_SKIPPED_IN_A_ROW:
            skipped = f"{longest} steps in a row"
        elif total >= MAX_SKIPPED:
            skipped = f"{total} steps"
        else:
            return
        raise DivergedError(
            f"training diverged: {skipped} up to step {step} had a non-finite loss or gradient "
            f"and were skipped; the last checkpoint is kept: {DIVERGED_ADVICE}"
        )

    def state(self) -> list[int]:
        """The counts, for a checkpoint; synchronises with the device."""
        return self._counts.tolist()

    def restore(self, counts: Sequence[int]) -> None:
        """Load the counts of a checkpoint."""
        self._counts.copy_(torch.tensor(counts))
        self._copied = None  # of counts before


class LossScale(torch.amp.GradScaler):
    """The loss scale of fp16, equal on all ranks, with a count of its overflows; 1 if not fp16.

    A non-finite gradient at a scale above 1 is an overflow and halves the scale; at 1 or below it
    is divergence.
    """

    def __init__(self, device: torch.device, arithmetic: Arithmetic) -> None:
        super().__init__(device.type, enabled=arithmetic == "fp16")
        self._one = torch.ones((), device=device)
        self._overflowed = torch.zeros((), dtype=torch.int64, device=device)

    def current(self) -> Tensor:
        """The scale, float32 []."""
        return self.scale(self._one)

    def update_scale(self) -> Tensor:
        """Update the scale after `unscale_`; whether the gradient overflowed above 1, bool []."""
        before = self.current()
        self.update()
        has_overflowed = (before > 1) & (self.current() < before)
        self._overflowed += has_overflowed
        return has_overflowed

    def metrics(self) -> dict[str, float]:
        """The scale and, if there were any, the overflows of the run; waits for the device."""
        state = self.state()
        values = {"loss_scale": state.get("scale"), "overflowed_steps": state.get("overflowed")}
        return {name: value for name, value in values.items() if value}

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, bitwise; empty except in fp16. Waits for the device."""
        if not self.is_enabled():
            return {}
        return {**self.state_dict(), "overflowed": int(self._overflowed)}

    def restore(self, state: dict[str, Any], path: Path) -> None:
        """Load the state of the checkpoint `path`; CheckpointError if only one of them is fp16."""
        if bool(state) != self.is_enabled():
            raise CheckpointError(
                f"{path} was trained {'with' if state else 'without'} fp16; "
                "use the --precision of that run"
            )
        if state:
            self.load_state_dict(state)
            self._overflowed.fill_(state["overflowed"])
