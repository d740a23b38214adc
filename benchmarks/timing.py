"""Timings of implementations in turns, their speed ratios, and the machine's peak speed."""

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.utils.benchmark import Timer

LOG = logging.getLogger("electra_albert.benchmarks")

OURS, STOCK = "ours", "stock"
Record = dict[str, Any]
Seconds = dict[str, list[float]]
_MATRIX_SIZE = {"cpu": 2048, "cuda": 8192}  # rows and columns; larger products are not faster


def seconds_per_call(call: Callable[[], object], number: int = 1) -> float:
    """Seconds per call: the mean of `number` calls after two that are not timed.

    Waits for the GPU before and after.
    """
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return float(timer.timeit(number).mean)


def in_turns(timings: Mapping[str, Callable[[], float]], repeats: int) -> Seconds:
    """Seconds of each implementation: `timings` are called in turns, `repeats` times."""
    seconds: Seconds = {name: [] for name in timings}
    for repeat in range(repeats):
        logging.disable(logging.INFO)
        for name, timing in timings.items():
            seconds[name].append(timing())
        logging.disable(logging.NOTSET)
        done = ", ".join(f"{name} {times[-1]:.4g} s" for name, times in seconds.items())
        LOG.info(f"timing {repeat + 1} of {repeats}: {done}")
    return seconds


def spread(values: Sequence[float]) -> Record:
    """Median, lowest and highest of repeated measurements, and all of them."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
        "values": [*values],
    }


def compare(seconds: Seconds, work: float, baseline: str = STOCK) -> dict[str, Record]:
    """Throughput of each implementation at `work` units per call, and its speedup over the
    baseline, per timing.
    """
    return {
        name: {
            "seconds": spread(times),
            "rate": spread([work / second for second in times]),
            "ratio": spread(
                [theirs / mine for theirs, mine in zip(seconds[baseline], times, strict=True)]
            ),
        }
        for name, times in seconds.items()
    }


def format_table(record: Record) -> str:
    """Format a record as a table: title, unit of the throughput, results of `compare`, extra
    columns, notes.
    """
    baseline, columns = record.get("baseline", STOCK), record.get("columns", {})
    head = f"{'':<34}{record['unit']:>14}{'lowest':>12}{'highest':>12}"
    head += f"{'x ' + baseline:>10}{'lowest':>8}{'highest':>8}"
    lines = [f"\n{record['title']}", head + "".join(f"{name:>14}" for name in columns)]
    for name, result in record["results"].items():
        rate, ratio = result["rate"], result["ratio"]
        line = f"{name:<34}{_short(rate['median']):>14}"
        line += f"{_short(rate['lowest']):>12}{_short(rate['highest']):>12}"
        line += f"{ratio['median']:>10.2f}{ratio['lowest']:>8.2f}{ratio['highest']:>8.2f}"
        values = [(result.get(column), form) for column, form in columns.items()]
        lines.append(
            line
            + "".join(
                f"{'-' if value is None else format(value, form):>14}" for value, form in values
            )
        )
    return "\n".join([*lines, *record.get("notes", [])])


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


@cache
def matrix_speed(device: torch.device, dtype: torch.dtype) -> float:
    """Highest FLOP/s of a product of two square matrices, the right one stored by rows or by
    columns.
    """
    size = _MATRIX_SIZE[device.type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    result = torch.empty_like(left)
    calls = [partial(torch.mm, left, other, out=result) for other in (right, right.t())]
    return 2 * size**3 / min(seconds_per_call(call, 3) for call in calls * 2)


def peak_memory(call: Callable[[], object], device: torch.device) -> int | None:
    """Peak bytes of GPU tensors that `call` adds; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def graph_memory(device: torch.device) -> int:
    """Bytes of the memory pools of CUDA graphs, in which a replay allocates nothing."""
    if device.type != "cuda":
        return 0
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return sum(part["total_size"] for part in segments if tuple(part["segment_pool_id"]) != (0, 0))
