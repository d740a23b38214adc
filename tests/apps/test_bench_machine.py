"""The roofs: memory at its highest, bytes that kernels move, and rates that are numbers."""

from __future__ import annotations

import functools
import itertools
import math
import sys
import time

import pytest
import torch
from torch import Tensor

from electra_albert.apps.bench.machine import copy_bandwidth, matrix_rate, peak_memory
from electra_albert.apps.bench.traffic import TrafficCounter, bytes_of
from electra_albert.contracts import Arithmetic
from electra_albert.training.distributed import keep_freed_memory

CPU = torch.device("cpu")
FLOAT = 4  # bytes
MEGABYTE = 1 << 20


@pytest.mark.parametrize("arithmetic", ["fp32", "bf16"])
def test_matrix_rate_is_a_number_of_operations_a_second(arithmetic: Arithmetic) -> None:
    assert 1e6 < matrix_rate(CPU, arithmetic, size=64) < math.inf


def test_rates_are_measured_once_a_process() -> None:
    assert matrix_rate(CPU, "fp32", size=64) == matrix_rate(CPU, "fp32", size=64)
    assert copy_bandwidth(CPU, size=MEGABYTE) == copy_bandwidth(CPU, size=MEGABYTE)


@pytest.mark.parametrize(("size", "fast"), [(7, True), (11, False)], ids=["by columns", "by rows"])
def test_matrix_rate_is_that_of_the_best_timing_of_the_better_layout(
    size: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, slower = [0.0], itertools.cycle((5.0, 1.0, 3.0))

    def multiply(left: Tensor, right: Tensor, *, out: Tensor) -> None:
        clock[0] += next(slower) * (2.0 if right.t().is_contiguous() == fast else 8.0)

    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert matrix_rate(CPU, "fp32", size=size) == 2 * size**3 / 2.0


def test_copy_bandwidth_is_a_number_of_bytes_a_second() -> None:
    assert 1e7 < copy_bandwidth(CPU, size=MEGABYTE) < math.inf


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells the highest memory of a process")
def test_peak_memory_is_what_was_in_use_at_once_and_not_what_was_kept_from_before() -> None:
    keep_freed_memory()  # as a run does: what is freed stays with the process
    torch.zeros(96 * MEGABYTE, dtype=torch.uint8)

    def use(megabytes: int) -> None:
        first, second = (torch.ones(megabytes * MEGABYTE // 2, dtype=torch.uint8) for _ in range(2))
        assert first.nbytes + second.nbytes == megabytes * MEGABYTE

    found = {size: peak_memory(functools.partial(use, size), CPU) for size in (64, 16)}
    if None in found.values():
        pytest.skip("this kernel does not let its highest mark begin anew")
    # Pages of other threads and of the interpreter itself come and go.
    assert {size: round((peak or 0) / MEGABYTE) for size, peak in found.items()} == {
        64: pytest.approx(64, abs=4),
        16: pytest.approx(16, abs=4),
    }


def traffic(operation: object, *arguments: Tensor) -> int:
    with TrafficCounter("cpu") as counter:
        operation(*arguments)  # type: ignore[operator]
    return counter.bytes


# With a [5, 7], b [5, 7], c [7, 3] in float32: numbers that are read, then numbers that are written.
OPERATIONS = {
    "sum of two": (lambda a, b, c: a + b, 35 + 35 + 35),
    "the same twice": (lambda a, b, c: a + a, 35 + 35),
    "product": (lambda a, b, c: a @ c, 35 + 21 + 15),
    "two kernels": (lambda a, b, c: (a + b) @ c, 35 + 35 + 35 + 35 + 21 + 15),
    "in place": (lambda a, b, c: a.mul_(b), 35 + 35 + 35),
    "overwritten": (lambda a, b, c: a.copy_(b), 35 + 35),
    "filled": (lambda a, b, c: a.zero_(), 35),
    "views": (lambda a, b, c: a.t().reshape(7, 5)[2:].unsqueeze(0).detach(), 0),
    "part of a view": (lambda a, b, c: a[1:3] * 2.0, 14 + 14),
    "expanded": (lambda a, b, c: a[:1].expand(5, 7) + b, 7 + 35 + 35),
    "made but not written": (lambda a, b, c: torch.empty_like(a), 0),
    "made like another": (lambda a, b, c: torch.ones_like(a), 35),
    "made like another of its type": (lambda a, b, c: a.new_full((3, 2), 1.0), 6),
    "rows picked": (lambda a, b, c: a[1:2].index_select(0, torch.zeros(0, dtype=torch.int64)), 0),
    "summed up": (lambda a, b, c: a.sum(), 35 + 1),
}


@pytest.mark.parametrize(("operation", "numbers"), OPERATIONS.values(), ids=OPERATIONS.keys())
def test_traffic_is_what_each_kernel_must_read_and_write(operation: object, numbers: int) -> None:
    assert traffic(operation, torch.ones(5, 7), torch.ones(5, 7), torch.ones(7, 3)) == FLOAT * numbers


def test_traffic_of_rows_picked_from_a_table_is_that_of_the_rows() -> None:
    table, rows = torch.ones(1009, 7), torch.tensor([3, 5, 3])
    picked = 3 * 7 * FLOAT
    assert traffic(torch.nn.functional.embedding, rows, table) == 3 * 8 + picked + picked


def test_traffic_of_the_backward_pass_counts_too() -> None:
    a, c = torch.ones(5, 7, requires_grad=True), torch.ones(7, 3, requires_grad=True)
    forward = traffic(torch.mm, a, c)
    both = traffic(lambda a, c: torch.mm(a, c).backward(torch.ones(5, 3)), a, c)
    # The gradient that it begins with is made, and either product reads it and one factor and writes the other's.
    assert both == forward + FLOAT * (15 + (15 + 21 + 35) + (15 + 35 + 21))


def test_traffic_of_an_update_is_the_weights_and_moments_both_ways_and_the_gradient_once() -> None:
    weight = torch.nn.Parameter(torch.ones(5, 7))
    optimizer = torch.optim.AdamW([weight], fused=True)
    weight.grad = torch.ones(5, 7)
    optimizer.step()
    # The counter of steps is read and written when it is raised, and read once more.
    assert traffic(optimizer.step) == FLOAT * (4 * 35 + 3 * 35 + 3)


def test_traffic_leaves_out_what_lies_on_other_devices() -> None:
    with TrafficCounter("cuda") as counter:
        torch.ones(3) + 1
    assert counter.bytes == 0


def test_bytes_of_tensors_count_a_shared_storage_once() -> None:
    a = torch.ones(5, 7)
    assert bytes_of([a, a[1:], a.t(), torch.ones(2)]) == FLOAT * (35 + 2)
