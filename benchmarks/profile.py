"""A profile of updates: the kernels with the most time, the busy share of the device, the gaps."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.profiler import profile
from torch.utils.benchmark import timer

from benchmarks.timing import Record

_KERNELS, _GAPS = 15, 5  # in the profile
_CPU_KERNELS = ("aten::", "## Call CompiledFxGraph")  # how their names start
_SHOWN = 90  # characters of a name that are printed


class Interval(NamedTuple):
    """When something ran, in microseconds."""

    start: float
    end: float
    name: str

    @property
    def length(self) -> float:
        return self.end - self.start


def profile_updates(update: Callable[[], object], device: torch.device, number: int) -> Record:
    """Profile updates; milliseconds are per update. A CPU's kernels are operators, compiled too."""
    is_cuda = device.type == "cuda"
    with profile() as profiler:
        began = timer()
        for _ in range(number):
            update()
        seconds = timer() - began
    kernels = list[Interval]()
    calls = list[Interval]()
    times = defaultdict[str, list[float]](list)  # by name of the kernel
    for event in profiler.events() or ():
        interval = Interval(event.time_range.start, event.time_range.end, event.name)
        is_on_gpu = event.device_type.name == "CUDA"
        if is_cuda and is_on_gpu and not event.is_user_annotation:
            kernels.append(interval)
            times[event.name].append(interval.length)
        elif not is_cuda and event.name.startswith(_CPU_KERNELS):
            kernels.append(interval)
            times[event.name].append(event.self_cpu_time_total)  # without operators that it calls
        elif not is_on_gpu:
            calls.append(interval)
    busy = busy_microseconds(kernels)
    slowest = sorted(times.items(), key=lambda item: sum(item[1]), reverse=True)[:_KERNELS]
    longest = sorted(idle_gaps(kernels), key=lambda gap: gap.length, reverse=True)[:_GAPS]
    return {
        "ms": seconds * 1e3 / number,
        "busy_ms": busy / 1e3 / number,
        "busy_share": busy / 1e6 / seconds,
        "kernels": [
            {"name": name, "ms": sum(us) / 1e3 / number, "calls": len(us) / number}  # per update
            for name, us in slowest
        ],
        "gaps": [
            {"us": gap.length, "host_call": host_call(gap, calls), "next": gap.name}  # a kernel
            for gap in longest
        ],
    }


def idle_gaps(kernels: Sequence[Interval]) -> list[Interval]:
    """The intervals between kernels in which none runs, each with the name of the next kernel."""
    gaps = list[Interval]()
    busy_until = min((kernel.start for kernel in kernels), default=0.0)
    for kernel in sorted(kernels):
        if kernel.start > busy_until:
            gaps.append(Interval(busy_until, kernel.start, kernel.name))
        busy_until = max(busy_until, kernel.end)
    return gaps


def busy_microseconds(kernels: Sequence[Interval]) -> float:
    """Length of the union of the kernels' intervals."""
    start = min((kernel.start for kernel in kernels), default=0.0)
    end = max((kernel.end for kernel in kernels), default=0.0)
    return end - start - sum(gap.length for gap in idle_gaps(kernels))


def host_call(gap: Interval, calls: Sequence[Interval]) -> str:
    """The innermost of the host's calls that cover the middle of a gap."""
    middle = (gap.start + gap.end) / 2
    covering = [call for call in calls if call.start <= middle <= call.end]
    return min(covering, key=lambda call: call.length).name if covering else "Python code"


def format_profile(name: str, record: Record) -> str:
    """Format a profile as a table of kernels and a list of gaps."""
    share = f"device busy {record['busy_ms']:.2f} ms ({record['busy_share']:.1%})"
    title = f"\nprofile of {name}: {record['ms']:.2f} ms per update with the profiler, {share}"
    lines = [title, f"{'ms':>10}{'calls':>8}  kernel"]
    for kernel in record["kernels"]:
        lines.append(f"{kernel['ms']:>10.3f}{kernel['calls']:>8.1f}  {kernel['name'][:_SHOWN]}")
    for gap in record["gaps"]:
        during = f"during {gap['host_call'][:_SHOWN]}, before {gap['next'][:_SHOWN]}"
        lines.append(f"gap of {gap['us']:,.0f} us {during}")
    return "\n".join(lines)
