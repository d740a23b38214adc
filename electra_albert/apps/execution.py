"""How steps are executed: arithmetic, compilation, and recording in CUDA graphs."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from electra_albert.apps import machine
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import Arithmetic, UsageError
from electra_albert.model.compilation import Compilation
from electra_albert.training.distributed import World, start
from electra_albert.training.run_log import console_log

_CALL = threading.RLock()  # a callback may start another run


@contextmanager
def python_call(device: str, timeout_seconds: int) -> Iterator[World]:
    """Start a call of the Python interface: the log on the console, and torch in its default state.

    One call at a time, as the state is the process's. Afterwards the caller's is restored, with its
    CPU random state.
    """
    dtype = torch.get_default_dtype()
    threads = torch.get_num_threads()
    flushes_denormal = sys.float_info.min / 2 == 0
    with (
        _CALL,
        console_log(),
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        torch.set_default_dtype(torch.float32)
        try:
            yield start(device, timeout_seconds)
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            torch.set_flush_denormal(flushes_denormal)


def choose_arithmetic(precision: Arithmetic | Literal["auto"], device: torch.device) -> Arithmetic:
    """Arithmetic of matrix products; for auto bfloat16 if the hardware is faster with it."""
    if precision != "auto":
        return precision
    has_bf16 = False  # auto does not use it on mps: not every Mac supports it
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        has = torch.cpu.get_capabilities().get
        # A Xeon whose AMX is hidden by a virtual machine (it has avx512_fp16) is faster in float32.
        has_fast_avx = has("avx512_bf16") and not has("avx512_fp16")
        has_bf16 = bool(has("amx_bf16") or has("bf16") or has_fast_avx)
    return "bf16" if has_bf16 else "fp32"


def choose_compilation(scope: Compilation | Literal["auto"], device: torch.device) -> Compilation:
    """Whether to compile the step with torch.compile; for auto on a GPU.

    Raises UsageError if it is asked for and cannot work.
    """
    if scope == "none" or (scope == "auto" and device.type != "cuda"):
        return "none"
    problem = machine.why_not_compiled(device)
    if scope == "auto":
        return "none" if problem else "step"
    if problem:
        raise UsageError(f"--torch_compile {scope} cannot work here: {problem}")
    return scope


def choose_recording(training: TrainingConfig, arithmetic: Arithmetic, world: World) -> bool:
    """Whether to record the training step in CUDA graphs. Raises UsageError if it cannot be."""
    device = world.device.type
    if training.cuda_graphs and (device != "cuda" or arithmetic == "fp16"):
        raise UsageError(
            "--cuda_graphs true needs CUDA and a precision other than fp16, "
            f"not {device} with {arithmetic}; leave it out"
        )
    return training.cuda_graphs
