"""What a contender reaches of the machine's roofs, and which of them holds it up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.bench.machine import copy_bandwidth, matrix_rate
from electra_albert.apps.bench.timing import now

if TYPE_CHECKING:
    import torch

    from electra_albert.contracts import Arithmetic

SMALL_SHARE = 0.3  # of either roof, below which neither can be what holds a step up
BUSY_SHARE = 0.7  # of the time, below which a GPU waits for the host rather than the other way about


class Work(NamedTuple):
    """What one call does, and how long it takes."""

    flops: float  # of matrix products
    traffic: int | None  # bytes that kernels read and write, nothing fused
    seconds: float
    busy_seconds: float | None = None  # that a GPU computes; None on a CPU
    is_fused: bool = False  # then `traffic` is what it is at most


class Roofs(NamedTuple):
    """What the machine does at most."""

    matrix: float  # FLOP a second of matrix products
    bandwidth: float  # bytes a second, read and written

    @classmethod
    def of(cls, device: torch.device, arithmetic: Arithmetic) -> Roofs:
        """Those of a device, measured once a process."""
        return cls(matrix_rate(device, arithmetic), copy_bandwidth(device))


def roof_shares(work: Work, device: torch.device, arithmetic: Arithmetic) -> dict[str, Any]:
    """Rates, their shares of what the machine does at most, and what binds."""
    roofs = Roofs.of(device, arithmetic)
    moved = None if work.traffic is None else work.traffic / work.seconds
    record = {
        "flops_per_second": work.flops / work.seconds,
        "share_of_matrix_rate": work.flops / work.seconds / roofs.matrix,
        "bytes_a_step": work.traffic,
        "bytes_per_second": moved,
        "share_of_bandwidth": None if moved is None else moved / roofs.bandwidth,
        "is_traffic_at_most": work.is_fused and moved is not None,
        "busy_share": None if work.busy_seconds is None else min(1.0, work.busy_seconds / work.seconds),
    }
    return record | {"binds": binding(record)}


def binding(record: dict[str, Any]) -> str | None:
    """The host where a GPU is not kept busy, else the nearer roof; None where the traffic is not known."""
    busy = record.get("busy_share")  # of a GPU only
    if busy is not None and busy < BUSY_SHARE:
        return "launch and host"
    matrix, bandwidth = record["share_of_matrix_rate"], record["share_of_bandwidth"]
    if bandwidth is None:
        return None
    if max(matrix, bandwidth) < SMALL_SHARE:
        return "neither (launch and host)"
    return "matrix products" if matrix >= bandwidth else "memory"


def busy_seconds(run: Callable[[], object], device: torch.device) -> float | None:
    """Seconds that a GPU computes or copies while `run` runs, as torch's profiler sees it; None on a CPU.

    Only these seconds are taken from the profiled run: its clock is slowed down by the profiler.
    """
    if device.type != "cuda":
        return None
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        now(device)
    return covered(
        (event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in seen.events() or ()
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what some spans of time cover together."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
