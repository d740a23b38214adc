"""Checkpoints that a crash at any instant leaves whole: written beside, hashed, renamed into place, then old ones go.

A checkpoint is a folder `step-0000100` with `model.safetensors`, `optimizer.safetensors`, `state.json` and, written
last, `MANIFEST.json` with the size and SHA-256 of each of them. Nothing in it can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.contracts import CheckpointError, DivergedError, UsageError

FORMAT = 1
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"
_NAME = re.compile(r"^step-(\d{7,})$")
_TEMPORARY, _TRASH = ".tmp-", ".trash-"
_CHUNK_BYTES = 1 << 20

Say = Callable[[str], None]


# --- what is written ------------------------------------------------------------------------------------------------


def _unique_tensors(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
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


def _optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the parameter's name: `<name>.exp_avg`, `<name>.exp_avg_sq`, `<name>.step`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    return {
        f"{names[parameter]}.{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def check_finite(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise DivergedError if a weight or a moment is not finite: such a state is never written."""
    tensors = {**module.state_dict(), **_optimizer_tensors(module, optimizer)}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    finite = torch.stack([torch.isfinite(tensor).all() for tensor in tensors.values()])
    if not bool(finite.all()):
        bad = [name for name, is_finite in zip(tensors, finite.tolist(), strict=True) if not is_finite]
        raise DivergedError(
            f"training diverged: {bad[0]} holds values that are not finite; no checkpoint was written and the older "
            "ones are untouched: lower --learning_rate or raise --warmup_steps"
        )


def _sync(path: Path) -> None:
    """Have the file or folder reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(f"{path.name}: {error}") from error


def _write_json(value: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def save_checkpoint(
    folder: Path,
    step: int,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    save_total_limit: int,
    say: Say,
) -> Path:
    """Publish the checkpoint of `step` in `folder`, then remove the oldest ones above `save_total_limit`.

    state is what else belongs to it, as JSON. Raises OSError where it cannot be written, with the older checkpoints as
    they were. The caller has made sure by `check_finite` that it is worth keeping.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_litter(folder, say)
    temporary = folder / f"{_TEMPORARY}{step}-{os.getpid()}"
    temporary.mkdir()
    try:
        _fill(temporary, step, module, optimizer, state)
        path = folder / f"step-{step:07d}"
        if path.exists():
            _set_aside(path, say)
        temporary.rename(path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(folder)
    problem = find_problem(path)
    if problem:
        raise OSError(f"{path} reads back wrong: {problem}")
    _rotate(folder, save_total_limit, say)
    return path


def _fill(
    temporary: Path, step: int, module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Write the files of a checkpoint, the manifest last, and see them to the disk."""
    tensors, aliases = _unique_tensors(module)
    _write_json({**state, "step": step, "aliases": aliases}, temporary / STATE)
    _write_tensors(tensors, temporary / MODEL)
    _write_tensors(_optimizer_tensors(module, optimizer), temporary / OPTIMIZER)
    # safetensors makes files that only their owner can read; these follow the umask, as state.json does.
    mode = stat.S_IMODE((temporary / STATE).stat().st_mode)
    files = {}
    for name in (MODEL, OPTIMIZER, STATE):
        path = temporary / name
        path.chmod(mode)
        _sync(path)
        files[name] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    _write_json({"format": FORMAT, "files": files}, temporary / MANIFEST)
    _sync(temporary / MANIFEST)
    _sync(temporary)


# --- what is kept ---------------------------------------------------------------------------------------------------


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the checkpoint folders in `folder`, whole or not, oldest first; nothing else is looked at."""
    if not folder.is_dir():
        return []
    found = [(_NAME.match(path.name), path) for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted((int(match[1]), path) for match, path in found if match)


def _remove(path: Path, say: Say) -> None:
    """Delete a folder of ours; a failure is only said, since nothing depends on it."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        say(f"warning: cannot remove {path}: {error.strerror or error}")


def _remove_litter(folder: Path, say: Say) -> None:
    """Delete what a killed run left half-written or half-deleted; the run's lock says that nobody is at it."""
    for path in folder.iterdir():
        if path.name.startswith((_TEMPORARY, _TRASH)) and path.is_dir() and not path.is_symlink():
            _remove(path, say)


def _rotate(folder: Path, save_total_limit: int, say: Say) -> None:
    """Remove the oldest of the whole checkpoints above the limit; broken ones neither count nor go.

    The newest has just been read back in full; of the others the sizes must do.
    """
    whole = [path for _, path in list_checkpoints(folder) if find_problem(path, is_thorough=False) is None]
    for path in whole[:-save_total_limit]:
        trash = folder / f"{_TRASH}{path.name}"
        try:
            path.rename(trash)  # a folder that is half deleted must not look like a checkpoint
        except OSError as error:
            say(f"warning: cannot remove {path}: {error.strerror or error}")
            continue
        _remove(trash, say)


def _set_aside(path: Path, say: Say) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    path.rename(aside)
    say(f"{path.name} does not belong to what is trained now; it was renamed to {aside.name}")


def tidy(folder: Path, step: int, say: Say) -> None:
    """Make the folder fit a run that goes on after `step`.

    Litter of a killed run goes; later checkpoints, broken ones or those of a past that is given up, are renamed.
    """
    if folder.is_dir():
        _remove_litter(folder, say)
    for found, path in list_checkpoints(folder):
        if found > step:
            _set_aside(path, say)


# --- what is read ---------------------------------------------------------------------------------------------------


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
            is_right = is_right and (not is_thorough or _sha256(path / name) == wanted["sha256"])
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if not is_right:
            return f"{name} is not what {MANIFEST} says (its size or SHA-256 differs)"
    return None


def find_checkpoint(folder: Path, resume: str, say: Say) -> Path | None:
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
        say(f"warning: passing over {problems[-1]}")
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
    targets, aliases = _unique_tensors(module)
    if state.get("aliases") != aliases:
        raise CheckpointError(
            f"{path} ties {state.get('aliases')}, but {aliases} are tied in what is being trained; "
            "was it written with other settings?"
        )
    parts = [(MODEL, targets)]
    if optimizer is not None:
        parts.append((OPTIMIZER, _optimizer_tensors(module, optimizer)))
    stored = [_read_tensors(path / name) for name, _ in parts]
    for (name, wanted), tensors in zip(parts, stored, strict=True):
        _require_fit(wanted, tensors, path / name)
    with torch.no_grad():
        for (_, wanted), tensors in zip(parts, stored, strict=True):
            for name, tensor in tensors.items():
                wanted[name].copy_(tensor)
    return state


def cut_metrics(path: Path, step: int, *, is_evaluated: bool) -> None:
    """Cut a metrics file back to `step`, written beside and renamed; a torn last line goes.

    Evaluation rows of `step` itself stay only where they are not about to be made again: is_evaluated.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # torn by a crash
            continue
        is_evaluation = any(key.startswith("eval_") for key in row)
        if row["step"] < step or (row["step"] == step and (is_evaluated or not is_evaluation)):
            kept.append(line + "\n")
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_text("".join(kept), encoding="utf-8")
    beside.replace(path)
