"""What the machine can do at most, measured where the benchmark runs, and what the numbers depend on beside the code.

Matrix rate and copy bandwidth are the two roofs that a training step is held against.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from electra_albert.apps.bench.timing import now
from electra_albert.apps.made_with import commit, first_line, processor

if TYPE_CHECKING:
    import torch

    from electra_albert.apps.bench.config import BenchConfig
    from electra_albert.contracts import Arithmetic

_TIMINGS = {"cpu": 15, "cuda": 7}  # of which the best counts: a roof is what the machine can do
_CALLS = {"cpu": 1, "cuda": 20}  # in a timing: of short ones a GPU's clock would measure the start
_MATRIX_SIZE = {"cpu": 2048, "cuda": 8192}  # rows and columns, so many that the products' rate no longer grows
_COPIED_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}  # far more than any cache holds
_RESET_PEAK = "5"  # to /proc/self/clear_refs: VmHWM begins anew at what is resident
_SLACK_BYTES = 1 << 22  # the kernel adds pages to its counters in batches, one of each thread


def arithmetics_of(config: BenchConfig, device: torch.device) -> tuple[Arithmetic, ...]:
    """The arithmetics that the benchmark is asked for; auto is what a run on `device` would take."""
    from electra_albert.apps.pretrain.job import choose_arithmetic

    found = (choose_arithmetic(cast("Arithmetic", one), device) for one in config.precisions)
    return tuple(dict.fromkeys(found))


def has_compiled(config: BenchConfig, device: torch.device) -> bool:
    """Whether the step is measured compiled as well; UsageError where that is asked for and cannot work."""
    from electra_albert.apps.pretrain.job import choose_compilation

    if config.torch_compile is False:
        return False
    return choose_compilation("auto" if config.torch_compile == "auto" else "blocks", device) != "none"


def machine_rates(config: BenchConfig, device: torch.device) -> dict[str, Any]:
    """Both roofs: the matrix rate in every arithmetic asked for, and the copy bandwidth."""
    matrix = {arithmetic: matrix_rate(device, arithmetic) for arithmetic in arithmetics_of(config, device)}
    return {"matrix_flops_per_second": matrix, "copy_bytes_per_second": copy_bandwidth(device)}


@cache
def matrix_rate(device: torch.device, arithmetic: Arithmetic, size: int | None = None) -> float:
    """FLOP a second of a product of two square matrices, at best; two FLOP are a multiplication and its addition.

    The right one is stored by rows or by columns, whichever is faster here: a step multiplies both.
    """
    import torch

    wide = size or _MATRIX_SIZE[device.type]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[arithmetic]
    left, right = (torch.randn(wide, wide, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    layouts = (right, right.t())
    return 2 * wide**3 / min(_seconds_a_call(partial(torch.mm, left, one, out=product), device) for one in layouts)


@cache
def copy_bandwidth(device: torch.device, size: int | None = None) -> float:
    """Bytes a second, read and written, of a copy from memory to memory on `device`, at best."""
    import torch

    source = torch.ones(size or _COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds_a_call(lambda: target.copy_(source), device)


def _seconds_a_call(call: Callable[[], object], device: torch.device) -> float:
    """The least of some timings, after one that is not counted."""
    calls = _CALLS[device.type]
    seconds = []
    for _ in range(1 + _TIMINGS[device.type]):
        began = now(device)
        for _ in range(calls):
            call()
        seconds.append((now(device) - began) / calls)
    return min(seconds[1:])


def peak_memory(run: Callable[[], object], device: torch.device) -> int | None:
    """Bytes that `run` has in use at its highest, beyond what was in use before; None where that cannot be told.

    On a GPU these are tensors; on a CPU pages of the process, which only Linux tells.
    """
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if not _give_back_and_reset():
        return None
    resident = _status_bytes("VmRSS")
    run()
    return max(0, _status_bytes("VmHWM") - resident)


def _give_back_and_reset() -> bool:
    """Give the pages of freed tensors back to the system and let its highest mark begin anew; False if it cannot be.

    Without the first, what an earlier call has used and freed would still be resident: see training/allocator.py.
    """
    if not sys.platform.startswith("linux"):
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is None:
        return False
    trim(0)
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    except OSError:  # a kernel or a container without it
        return False
    return _status_bytes("VmHWM") - _status_bytes("VmRSS") <= _SLACK_BYTES


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def environment(config: BenchConfig, device: torch.device) -> dict[str, Any]:
    """What the numbers depend on beside the settings, and the commit they were made at."""
    from importlib.metadata import version

    import torch

    from electra_albert.apps.pretrain.job import choose_arithmetic
    from electra_albert.training.distributed import keep_freed_memory

    stamp = {
        "commit": commit(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "tokenizers")},
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "libc": " ".join(platform.libc_ver()),
        "device": device.type,
        "precision": config.precision,
        "auto_precision": choose_arithmetic("auto", device),  # bf16 where the device computes in it
    }
    if device.type == "cpu":  # training.distributed.start has asked for it before; asked again, it only answers
        return stamp | {"keeps_freed_memory": keep_freed_memory()}
    driver = first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return stamp | {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, "driver": driver}
