"""What a checkpoint is, which one to go on from, and how it is read.

A checkpoint is a folder `step-0000100` with `model.safetensors`, `optimizer.safetensors`, `state.json` and, written
last, `MANIFEST.json` with the size and SHA-256 of each of them. Nothing in it can run code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.contracts import CheckpointError, UsageError

LOG = logging.getLogger(__name__)

FORMAT = 1
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"
_NAME = re.compile(r"^step-(\d{7,})$")
_CHUNK_BYTES = 1 << 20


def unique_tensors(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The module's tensors, each storage once, and for every further name of a tied one the name it is stored under."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in module.state_dict().items():
        view = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and view in first:
            aliases[name] = first[view]
        else:
            first[view] = name
            tensors[name] = tensor
    return tensors, aliases


def optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the parameter's name: `<name>.exp_avg`, `<name>.exp_avg_sq`, `<name>.step`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    return {
        f"{names[parameter]}.{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the checkpoint folders in `folder`, whole or not, oldest first; nothing else is looked at."""
    if not folder.is_dir():
        return []
    found = [(_NAME.match(path.name), path) for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted((int(match[1]), path) for match, path in found if match)


def find_problem(path: Path, *, is_thorough: bool = True) -> str | None:
    """Why the folder is not a whole checkpoint, in a few words; None where it is one. Thorough: files are hashed."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (OSError, ValueError) as error:  # bad JSON and bad UTF-8 are ValueErrors
        return f"{MANIFEST} cannot be read ({error})"
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return f"{MANIFEST} is not of format {FORMAT}, which this version reads"
    files = manifest.get("files")
    if not isinstance(files, dict) or set(files) != {MODEL, OPTIMIZER, STATE}:
        return f"{MANIFEST} does not list exactly {MODEL}, {OPTIMIZER} and {STATE}"
    for name, wanted in files.items():
        if not isinstance(wanted, dict) or set(wanted) != {"size", "sha256"}:
            return f"{MANIFEST} does not give the size and SHA-256 of {name}"
        try:
            is_right = (path / name).stat().st_size == wanted["size"]
            is_right = is_right and (not is_thorough or sha256(path / name) == wanted["sha256"])
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if not is_right:
            return f"{name} is not what {MANIFEST} says (its size or SHA-256 differs)"
    return None


def find_checkpoint(folder: Path, resume: str) -> Path | None:
    """The checkpoint to go on from, or None to start anew.

    resume is auto (the newest whole one in `folder`; those passed over are said), never, or the path of one. Raises
    CheckpointError where there are checkpoints but none is whole, or the named one is not: a resume that was meant
    never becomes a fresh start. Raises UsageError where never meets checkpoints.
    """
    found = list_checkpoints(folder)
    if resume == "never":
        if found:
            raise UsageError(f"--resume never, but {folder} holds {found[-1][1].name}; choose another --output_dir")
        return None
    if resume != "auto":
        path = Path(resume)
        problem = find_problem(path)
        if problem:
            raise CheckpointError(f"--resume {path} is not a whole checkpoint: {problem}; name another one or use auto")
        return path
    problems = []
    for _, path in reversed(found):
        problem = find_problem(path)
        if problem is None:
            return path
        problems.append(f"{path.name}: {problem}")
        LOG.warning(f"passing over {problems[-1]}")
    if problems:
        raise CheckpointError(
            f"{folder} holds no whole checkpoint ({'; '.join(problems)}); mend one, or remove them to start anew"
        )
    return None


def read_state(path: Path) -> dict[str, Any]:
    """The state.json of a checkpoint."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / STATE} cannot be read ({error})") from error
    if not isinstance(state, dict) or not isinstance(state.get("step"), int):
        raise CheckpointError(f"{path / STATE} is not the state of a run")
    return state


def _read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error


def _require_fit(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise CheckpointError, naming the first misfit, unless names, shapes and dtypes are the same."""
    for name, target in targets.items():
        if name not in tensors:
            raise CheckpointError(f"{path} has no {name}, which is being trained; was it written with other settings?")
        tensor = tensors[name]
        if target.shape != tensor.shape or target.dtype != tensor.dtype:
            raise CheckpointError(
                f"{path}: {name} is {tensor.dtype} {list(tensor.shape)}, but {target.dtype} {list(target.shape)} is "
                "being trained; was it written with other settings?"
            )
    for name in tensors:
        if name not in targets:
            raise CheckpointError(f"{path} has {name}, which is not being trained; was it written with other settings?")


def load_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Copy the weights, and the optimiser's state where one is given, into what is trained; returns the state.

    Nothing is changed unless all of it fits. Raises CheckpointError naming the first tensor that does not.
    """
    state = read_state(path)
    targets, aliases = unique_tensors(module)
    if state.get("aliases") != aliases:
        raise CheckpointError(
            f"{path} ties {state.get('aliases')}, but {aliases} are tied in what is being trained; "
            "was it written with other settings?"
        )
    parts = [(MODEL, targets)]
    if optimizer is not None:
        parts.append((OPTIMIZER, optimizer_tensors(module, optimizer)))
    stored = [_read_tensors(path / name) for name, _ in parts]
    for (name, wanted), tensors in zip(parts, stored, strict=True):
        _require_fit(wanted, tensors, path / name)
    with torch.no_grad():
        for (_, wanted), tensors in zip(parts, stored, strict=True):
            for name, tensor in tensors.items():
                wanted[name].copy_(tensor)
    return state
