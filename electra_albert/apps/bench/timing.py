"""How seconds are taken, and how they are shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# A small step takes a GPU some milliseconds; on a CPU the first update finds others' tensors in the caches.
UPDATES_A_TIMING = {"cpu": 3, "cuda": 10}
_SHORT_SECONDS = 0.1  # below which decimals are too few


def now(device: torch.device) -> float:
    """Seconds on a clock, once the device has done all it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def in_turns(
    calls: Mapping[str, Callable[[], object]], repeats: int, device: torch.device, calls_a_timing: int = 1
) -> dict[str, list[float]]:
    """Seconds a call of each, in turns. Each is called once before, untimed."""
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = now(device)
            for _ in range(calls_a_timing):
                call()
            seconds[name].append((now(device) - began) / calls_a_timing)
    return seconds


def shown_seconds(seconds: float) -> str:
    """Seconds with four decimals, short times with four digits."""
    return f"{seconds:.4f}" if seconds >= _SHORT_SECONDS else f"{seconds:#.4g}"
