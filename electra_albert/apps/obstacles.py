"""What a machine cannot do, found out beforehand or said in one line when it shows."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from electra_albert.contracts import UsageError

if TYPE_CHECKING:
    from electra_albert.config import TrainingConfig
    from electra_albert.model.compilation import Compilation

_TRITON_CAPABILITY = (7, 0)
# What PyTorch and Triton look for, and the variable that names another one.
_COMPILERS = {"cpu": ("CXX", ("g++", "clang++")), "cuda": ("CC", ("gcc", "clang", "cc"))}


def why_not_compiled(device: torch.device) -> str | None:
    """Why torch.compile cannot make code for `device`, and what to do; None where nothing is in the way."""
    if device.type == "cuda":
        if find_spec("triton") is None:
            return "Triton is not installed: pip install triton"
        capability = torch.cuda.get_device_capability(device)
        if capability < _TRITON_CAPABILITY:
            return f"the GPU's compute capability {capability[0]}.{capability[1]} is too old for Triton"
    variable, usual = _COMPILERS[device.type]
    named = os.environ.get(variable)
    if not any(shutil.which(name) for name in ([named] if named else usual)):
        return f"no C compiler is found: install {usual[0]} or name one in {variable}"
    if not any((folder / "Python.h").is_file() for folder in _header_folders()):
        return f"{_header_folders()[0]} has no Python.h: install Python's headers (python3-dev)"
    return None


def _header_folders() -> list[Path]:
    """Where Python's headers may be: Debian's Python names a local folder first, a moved one where it was built."""
    named = (sysconfig.get_path("include"), sysconfig.get_path("include", "posix_prefix"))
    return [Path(folder) for folder in (*named, sysconfig.get_config_var("INCLUDEPY")) if folder]


def memory_of(device: torch.device) -> int:
    """Bytes of memory that the device has, in use or not."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def too_large(what: str, options: str) -> UsageError:
    """The refusal of something that does not fit into memory, with the options that make it smaller."""
    return UsageError(f"the memory does not suffice for {what}; {options}")


def smaller_step(training: TrainingConfig) -> str:
    """What to do about a training step that is too large."""
    rows = training.per_device_train_batch_size
    advice = f"lower --per_device_train_batch_size {rows} and raise --gradient_accumulation_steps as much"
    return advice if training.gradient_checkpointing else f"{advice}, or set --gradient_checkpointing true"


@contextmanager
def told_in_one_line(training: TrainingConfig, compilation: Compilation) -> Iterator[None]:
    """Turn the errors of a machine at its limits into UsageError: a GPU's memory is full, or the compiler failed."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        rows = training.per_device_eval_batch_size
        options = f"{smaller_step(training)}; evaluations take --per_device_eval_batch_size {rows}"
        raise too_large("a step", options) from error
    except RuntimeError as error:
        if compilation == "none" or not _is_of_compiler(error):
            raise
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"torch.compile failed ({cause}); --torch_compile none trains without it; after a start that was killed "
            "while it compiled, delete the folder torchinductor_<your name> among the temporary files"
        ) from error


def _is_of_compiler(error: RuntimeError) -> bool:
    from torch._dynamo.exc import BackendCompilerFailed

    return isinstance(error, BackendCompilerFailed)
