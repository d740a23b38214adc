"""Properties of the machine, and one-line errors for missing compilers and full memory."""

import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import UsageError
from electra_albert.model.compilation import Compilation

_TRITON_CAPABILITY = (7, 0)
_NO_HOST_MEMORY = ("DefaultCPUAllocator", "can't start new thread")  # in messages of RuntimeErrors
# The compilers that PyTorch and Triton look for, and the environment variable that names another.
_COMPILERS = {"cpu": ("CXX", ("g++", "clang++")), "cuda": ("CC", ("gcc", "clang", "cc"))}


def why_not_compiled(device: torch.device) -> str | None:
    """Why torch.compile does not work for `device`, and the remedy; None if it works."""
    if device.type not in _COMPILERS:
        return f"it is not supported here on {device.type}"
    if device.type == "cuda":
        if find_spec("triton") is None:
            return "Triton is not installed: pip install triton"
        capability = torch.cuda.get_device_capability(device)
        if capability < _TRITON_CAPABILITY:
            text = f"the GPU's compute capability {capability[0]}.{capability[1]}"
            return f"{text} is too old for Triton"
    variable, usual = _COMPILERS[device.type]
    chosen = os.environ.get(variable)
    if not any(map(shutil.which, [chosen] if chosen else usual)):
        return f"no C compiler found: install {usual[0]} or name one in {variable}"
    # Debian's Python gives a local folder first; a relocated Python the one where it was built.
    local = sysconfig.get_path("include")
    built = sysconfig.get_config_var("INCLUDEPY")
    folders = (local, sysconfig.get_path("include", "posix_prefix"), built)
    if not any(folder and Path(folder, "Python.h").is_file() for folder in folders):
        return f"Python.h not found in {local}: install Python's headers (python3-dev)"
    return None


def processor() -> str:
    """Model name of the processor, else the platform's name for it."""
    with suppress(OSError):  # not Linux
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        name = re.search(r"^model name\s*: *(.*\S)", text, re.M)
        if name:
            return name[1]
    return platform.processor() or platform.machine()


def memory_of(device: torch.device) -> int:
    """Bytes of the device's memory; the host's memory for a device that shares it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return sys.maxsize


def peak_memory(device: torch.device) -> int:
    """Peak bytes of this process: tensors on a GPU, else resident memory; 0 if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def memory_advice(training: TrainingConfig) -> str:
    """Advice for a training step that does not fit into memory."""
    batch = f"--per_device_train_batch_size {training.per_device_train_batch_size}"
    advice = f"lower {batch} and raise --gradient_accumulation_steps by the same factor"
    if training.gradient_checkpointing:
        return advice
    return f"{advice}, or set --gradient_checkpointing true"


@contextmanager
def one_line_errors(
    training: TrainingConfig, compilation: Compilation | Literal["auto"]
) -> Iterator[None]:
    """Turn PyTorch's out-of-memory errors and compiler failures into UsageError."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip()
        signs = [sign for sign in _NO_HOST_MEMORY if sign in text]
        if signs or isinstance(error, torch.OutOfMemoryError):
            reason = text.rpartition("Allocator: ")[2].partition(". ")[0]
            size = training.per_device_eval_batch_size
            scoring = f"for evaluation, lower --per_device_eval_batch_size {size}"
            raise UsageError(
                f"out of memory on the device ({reason}); {memory_advice(training)}; {scoring}"
            ) from error
        from torch._dynamo.exc import BackendCompilerFailed

        if compilation == "none" or not isinstance(error, BackendCompilerFailed):
            raise
        cause = (text or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"torch.compile failed ({cause}); use --torch_compile none, or, if an earlier run was "
            "killed, delete /tmp/torchinductor_<user>"
        ) from error
