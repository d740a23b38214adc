"""The loss scale of fp16: it lifts small gradients over the smallest number of the format, and follows overflows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra_albert.contracts import Arithmetic, CheckpointError


class LossScale:
    """PyTorch's GradScaler, and a count of the overflows that it met; in any other arithmetic than fp16 the scale is 1.

    An overflow is a gradient that was not finite at a scale above 1: the scale is then halved and the update skipped,
    which is how the scale finds its place and no sign of divergence. From 1 down it is one, and the guard counts it.

    Ranks need not agree on the scale: it follows from reduced gradients, which are the same bits on all of them.
    """

    def __init__(self, device: torch.device, arithmetic: Arithmetic) -> None:
        self._scaler = torch.amp.GradScaler(device.type, enabled=arithmetic == "fp16")
        self._one = torch.ones((), device=device)
        self._overflowed = torch.zeros((), dtype=torch.int64, device=device)

    def current(self) -> Tensor:
        """The scale, float32 [], on the device."""
        return self._scaler.scale(self._one)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of what `optimizer` trains by the scale, and note whether all of them are finite."""
        self._scaler.unscale_(optimizer)

    def follow(self) -> Tensor:
        """Move the scale by what `unscale` noted; returns bool [], whether the update overflowed at a scale above 1."""
        before = self.current()
        self._scaler.update()
        has_overflowed = (before > 1) & (self.current() < before)
        self._overflowed = self._overflowed + has_overflowed
        return has_overflowed

    def row(self) -> dict[str, float]:
        """What a row of metrics says: the scale, and the overflows of the run where there were any. Waits."""
        if not self._scaler.is_enabled():
            return {}
        overflowed = int(self._overflowed)
        return {"loss_scale": self._scaler.get_scale(), **({"overflowed_steps": overflowed} if overflowed else {})}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, exact to the bit; nothing but in fp16."""
        if not self._scaler.is_enabled():
            return {}
        return {**self._scaler.state_dict(), "overflowed": int(self._overflowed)}

    def restore(self, state: Mapping[str, Any], path: Path) -> None:
        """Go on from the state in the checkpoint `path`. Raises CheckpointError unless both are of fp16, or neither."""
        if bool(state) != self._scaler.is_enabled():
            then, now = ("in fp16", "is not") if state else ("without a loss scale", "is fp16")
            raise CheckpointError(f"{path} was trained {then}, but --precision {now}; go on with the one of its run")
        if state:
            self._scaler.load_state_dict(dict(state))
            self._overflowed = torch.full_like(self._overflowed, state["overflowed"])
