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

from electra_albert.config import TrainingConfig
from electra_albert.contracts import UsageError
from electra_albert.model.compilation import Compilation

_TRITON_CAPABILITY = (7, 0)
_NO_HOST_MEMORY = ("DefaultCPUAllocator", "can't start new thread")  # in the messages of RuntimeErrors
# The compilers that PyTorch and Triton look for, and the environment variable that names another one.
_COMPILERS = {"cpu": ("CXX", ("g++", "clang++")), "cuda": ("CC", ("gcc", "clang", "cc"))}


def why_not_compiled(device: torch.device) -> str | None:
    """Why torch.compile does not work for `device`, and the remedy; None if it works."""
    if device.type not in _COMPILERS:
        return f"it is not supported here on {device.type}"
    if device.type == "cuda" and find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < _TRITON_CAPABILITY:
        return f"the GPU's compute capability {capability[0]}.{capability[1]} is too old for Triton"
    variable, usual = _COMPILERS[device.type]
    if not any(map(shutil.which, [chosen] if (chosen := os.environ.get(variable)) else usual)):
        return f"no C compiler found: install {usual[0]} or name one in {variable}"
    # Debian's Python gives a local folder first; a relocated Python gives the folder where it was built.
    named = (sysconfig.get_path("include"), sysconfig.get_path("include", "posix_prefix"))
    headers = [Path(folder) for folder in (*named, sysconfig.get_config_var("INCLUDEPY")) if folder]
    if not any((folder / "Python.h").is_file() for folder in headers):
        return f"Python.h not found in {headers[0]}: install Python's headers (python3-dev)"
    return None


def processor() -> str:
    """Model name of the processor, else the platform's name for it."""
    with suppress(OSError):  # not Linux
        if found := re.search(r"^model name\s*: *(.*\S)", Path("/proc/cpuinfo").read_text(errors="replace"), re.M):
            return found[1]
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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_advice(training: TrainingConfig) -> str:
    """Advice for a training step that does not fit into memory."""
    advice = f"lower --per_device_train_batch_size {training.per_device_train_batch_size} and raise "
    or_checkpointing = "" if training.gradient_checkpointing else ", or set --gradient_checkpointing true"
    return f"{advice}--gradient_accumulation_steps by the same factor{or_checkpointing}"


@contextmanager
def one_line_errors(training: TrainingConfig, compilation: Compilation | Literal["auto"]) -> Iterator[None]:
    """Turn PyTorch's out-of-memory errors and compiler failures into UsageError."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _NO_HOST_MEMORY):
            reason = str(error).rpartition("Allocator: ")[2].partition(". ")[0]
            scoring = f"for evaluation, lower --per_device_eval_batch_size {training.per_device_eval_batch_size}"
            raise UsageError(f"out of memory on the device ({reason}); {memory_advice(training)}; {scoring}") from error
        from torch._dynamo.exc import BackendCompilerFailed

        if compilation == "none" or not isinstance(error, BackendCompilerFailed):
            raise
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = "use --torch_compile none, or, if an earlier run was killed, delete /tmp/torchinductor_<user>"
        raise UsageError(f"torch.compile failed ({cause}); {advice}") from error
