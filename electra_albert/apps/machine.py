"""Properties and limits of the machine, and its errors at these limits as one line."""

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
from electra_albert.model.encoder import Compilation

_TRITON_CAPABILITY = (7, 0)
# The compilers that PyTorch and Triton look for, and the variable that names another one.
_COMPILERS = {"cpu": ("CXX", ("g++", "clang++")), "cuda": ("CC", ("gcc", "clang", "cc"))}


def why_not_compiled(device: torch.device) -> str | None:
    """The reason why torch.compile cannot make code for `device`, and the way out; None where it can."""
    if device.type not in _COMPILERS:
        return f"it is not tried on {device.type}"
    if device.type == "cuda" and find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < _TRITON_CAPABILITY:
        return f"the GPU's compute capability {capability[0]}.{capability[1]} is too old for Triton"
    variable, usual = _COMPILERS[device.type]
    if not any(map(shutil.which, [chosen] if (chosen := os.environ.get(variable)) else usual)):
        return f"no C compiler is found: install {usual[0]} or name one in {variable}"
    # Debian's Python names a local folder first, a moved one the folder where it was built.
    named = (sysconfig.get_path("include"), sysconfig.get_path("include", "posix_prefix"))
    headers = [Path(folder) for folder in (*named, sysconfig.get_config_var("INCLUDEPY")) if folder]
    if not any((folder / "Python.h").is_file() for folder in headers):
        return f"{headers[0]} has no Python.h: install Python's headers (python3-dev)"
    return None


def processor() -> str:
    """The model name of the processor, or the system's name for it."""
    with suppress(OSError):  # not Linux
        if found := re.search(r"^model name\s*: *(.*\S)", Path("/proc/cpuinfo").read_text(errors="replace"), re.M):
            return found[1]
    return platform.processor() or platform.machine()


def memory_of(device: torch.device) -> int:
    """Bytes of memory that the device has; the host's where the device shares it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return sys.maxsize


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has had: of tensors on a GPU, else resident memory; 0 if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def smaller_step(training: TrainingConfig) -> str:
    """Advice where a training step needs more memory than there is."""
    advice = f"lower --per_device_train_batch_size {training.per_device_train_batch_size} and raise "
    or_checkpointing = "" if training.gradient_checkpointing else ", or set --gradient_checkpointing true"
    return f"{advice}--gradient_accumulation_steps as much{or_checkpointing}"


@contextmanager
def one_line_errors(training: TrainingConfig, compilation: Compilation | Literal["auto"]) -> Iterator[None]:
    """Turn the errors of a machine at its limits into UsageError: a GPU's memory is full, or the compiler failed."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        scoring = f"evaluations take --per_device_eval_batch_size {training.per_device_eval_batch_size}"
        raise UsageError(f"the memory does not suffice for a step; {smaller_step(training)}; {scoring}") from error
    except RuntimeError as error:
        from torch._dynamo.exc import BackendCompilerFailed

        if compilation == "none" or not isinstance(error, BackendCompilerFailed):
            raise
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        way_out = "use --torch_compile none, or, if an earlier run was killed, delete /tmp/torchinductor_<your name>"
        raise UsageError(f"torch.compile failed ({cause}); {way_out}") from error
