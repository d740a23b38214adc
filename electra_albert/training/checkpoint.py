"""Checkpoints: folders `step-0000100` of safetensors and JSON, written atomically, with SHA-256s in MANIFEST.json."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra_albert.contracts import LOG, CheckpointError, DivergedError, UsageError
from electra_albert.files import (
    load_json,
    new_folder,
    remove_leftovers,
    sha256,
    sync_all,
    temporary_name,
)
from electra_albert.training.loss_scale import DIVERGED_ADVICE

FORMAT = 1
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"
_FILES = (MODEL, OPTIMIZER, STATE)
_STATE = {"step": int, "tokens": int, "skipped": tuple[int, int, int], "torch": str}
_STATE |= {"loss_scale": dict, "tally": dict, "aliases": dict, "settings": dict}
_STATE |= {"world_size": int, "threads": int}
_MANIFEST = {"format": int, "files": {name: {"size": int, "sha256": str} for name in _FILES}}
_WAY_OUT = "use the settings it was written with"


def unique_tensors(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The module's tensors by name, tied ones once, and for each further name of a tied tensor its first name."""
    tensors, first, aliases = module.state_dict(), dict[object, str](), dict[str, str]()
    for name, tensor in tensors.items():
        view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else name
        aliases[name] = first.setdefault(view, name)
    aliases = {name: other for name, other in aliases.items() if name != other}
    return {name: tensor for name, tensor in tensors.items() if name not in aliases}, aliases


def optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: `<name>.exp_avg`, `<name>.momentum_buffer`, …."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    return {f"{names[one]}.{key}": value for one, state in optimizer.state.items() for key, value in state.items()}


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the checkpoint folders in `folder`, damaged ones included, in ascending order."""
    try:
        inside = [*folder.iterdir()] if folder.is_dir() else []  # glob would ignore an unreadable folder
        found = [path for path in inside if re.fullmatch(r"step-\d{7,}", path.name)]
        return sorted((int(path.name[5:]), path) for path in found if path.is_dir() and not path.is_symlink())
    except PermissionError as error:
        raise CheckpointError(f"{folder} cannot be read ({error.strerror}); change its permissions") from None


def find_problem(path: Path, *, is_thorough: bool = True) -> str | None:
    """Describe what is wrong with a checkpoint, None if it is complete. is_thorough also compares hashes."""
    try:
        if irregular := [name for name in (MANIFEST, *_FILES) if not (path / name).is_file()]:
            return f"{irregular[0]} is missing"
        if load_json(path / MANIFEST, {"format": int})["format"] != FORMAT:
            return f"{MANIFEST} does not have format {FORMAT}, the only one this version reads"
        manifest = load_json(path / MANIFEST, _MANIFEST)
        for name in _FILES:
            file, wanted = path / name, manifest["files"][name]
            is_intact = file.stat().st_size == wanted["size"]
            if not is_intact or (sha256(file) if is_thorough else wanted["sha256"]) != wanted["sha256"]:
                return f"{name} does not match {MANIFEST} (size or SHA-256 differs)"
    except OSError as error:
        return f"{Path(error.filename or path).name} cannot be read ({error.strerror})"
    except ValueError as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__}: {error})"
    return None


def find_checkpoint(folder: Path, resume: str) -> Path | None:
    """The checkpoint to resume from. `auto`: the newest complete one, None if there is no checkpoint; or a path.

    Raises CheckpointError if all are damaged, UsageError if `resume` is `never` and there is a checkpoint.
    """
    if resume not in ("auto", "never"):
        if problem := find_problem(Path(resume)):
            raise CheckpointError(f"--resume {resume} is not a complete checkpoint: {problem}; use another or auto")
        return Path(resume)
    problems = []
    for _, path in reversed(list_checkpoints(folder)):
        if resume == "never":
            raise UsageError(f"--resume never, but {folder} contains {path.name}; choose another --output_dir")
        if (problem := find_problem(path)) is None:
            return path
        problems.append(f"{path.name}: {problem}")
        LOG.warning(f"skipping damaged checkpoint {problems[-1]}")
    if problems:
        found = f"all checkpoints in {folder} are damaged ({'; '.join(problems)})"
        raise CheckpointError(f"{found}; restore one, or remove them to start again")
    return None


def read_state(path: Path) -> dict[str, Any]:
    """The state.json of a checkpoint. Raises CheckpointError unless it has all of `_STATE`, of these types."""
    try:
        state: dict[str, Any] = load_json(path / STATE, _STATE)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / STATE} cannot be read ({type(error).__name__}: {error})") from error
    return state


def load_checkpoint(
    path: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
) -> dict[str, Any]:
    """Load weights and optimizer state in place; returns state.json. CheckpointError if a tensor does not fit.

    `convert` maps the weights by name before they are compared and copied.
    """
    state = read_state(path)
    targets, aliases = unique_tensors(module)
    if (tied := state["aliases"]) != aliases:
        raise CheckpointError(f"{path} ties other weights: {min({*tied} ^ {*aliases} or tied)}; {_WAY_OUT}")
    moments = {} if optimizer is None else {OPTIMIZER: optimizer_tensors(module, optimizer)}
    pairs: list[tuple[Tensor, Tensor]] = []
    for file, wanted in {MODEL: targets, **moments}.items():
        try:
            found = (convert if file == MODEL else dict)(load_file(path / file))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path / file} cannot be read ({error})") from error
        for name in {**wanted, **found}:
            old, new = (f"{one[name].dtype} {[*one[name].shape]}" if name in one else None for one in (found, wanted))
            if old != new:
                raise CheckpointError(f"{path / file}: {name} is {old}, but {new} in the model; {_WAY_OUT}")
            pairs.append((wanted[name], found[name]))
    with torch.no_grad():
        for target, tensor in pairs:
            target.copy_(tensor)
    return state


def load_average(folder: Path, most: int, module: nn.Module) -> list[dict[str, Any]]:
    """Load the mean weights, computed in float64, of the last complete checkpoints, at most `most`; no effect if none.

    Returns their state.json, newest first. Paper: Izmailov et al. 2018; of the last checkpoints: LAWA, Kaddour 2022.
    """
    complete = (path for _, path in reversed(list_checkpoints(folder)) if find_problem(path) is None)
    (tensors, _), totals, states = unique_tensors(module), dict[str, Tensor](), list[dict[str, Any]]()
    for path in islice(complete, most):
        states.append(load_checkpoint(path, module, None))
        for name, tensor in tensors.items():
            totals[name] = totals.get(name, 0.0) + tensor.cpu().double()
    for name, total in totals.items():
        tensors[name].copy_((total / len(states)).to(tensors[name].dtype))
    return states


def check_finite(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise DivergedError if a weight or an optimizer moment is not finite: such a state is never saved."""
    tensors = {**module.state_dict(), **optimizer_tensors(module, optimizer)}
    finite = torch.stack([torch.isfinite(tensor).all() for tensor in tensors.values()]).tolist()
    if not all(finite):
        found = f"{list(tensors)[finite.index(False)]} has non-finite values and was not saved"
        raise DivergedError(f"training diverged: {found}; older checkpoints are kept: {DIVERGED_ADVICE}")


def save_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    save_total_limit: int,
    milestone_steps: int = 0,
) -> Path:
    """Save a checkpoint atomically (state, with "step", as JSON), then remove the oldest. Raises OSError on failure.

    milestone_steps: if not 0, the checkpoints of 1, 2, 4, … times this number of steps are not removed.
    """
    step = state["step"]
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    path = folder / f"step-{step:07d}"
    with new_folder(path) as temporary:
        _fill(temporary, state, module, optimizer)
        sync_all(temporary)
        if path.exists():
            _rename_aside(path)
    if problem := find_problem(path):
        raise OSError(f"{path} is damaged after writing: {problem}")
    # Older checkpoints are checked by size only. Damaged ones do not count and are kept.
    found = list_checkpoints(folder)
    complete = [(at, one) for at, one in found if find_problem(one, is_thorough=False) is None]
    for at, old in complete[:-save_total_limit]:
        if not is_milestone(at, milestone_steps):
            _remove(old)
    return path


def is_milestone(step: int, milestone_steps: int) -> bool:
    """Whether a step is 1, 2, 4, … times milestone_steps; False if that is 0."""
    return milestone_steps > 0 and step % milestone_steps == 0 and (step // milestone_steps).bit_count() == 1


def _fill(temporary: Path, state: Mapping[str, Any], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the files of a checkpoint, the manifest last."""
    tensors, aliases = unique_tensors(module)
    text = json.dumps({**state, "aliases": aliases}, indent=1, allow_nan=False)
    (temporary / STATE).write_text(text + "\n", encoding="utf-8")
    for name, part in ((MODEL, tensors), (OPTIMIZER, optimizer_tensors(module, optimizer))):
        try:
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in part.items()}, temporary / name)
        except SafetensorError as error:  # raised for a full disk
            raise OSError(f"{name}: {error}") from error
        # safetensors creates files that only their owner can read; take the mode of state.json, which is by umask.
        shutil.copymode(temporary / STATE, temporary / name)
    files = {name: {"size": (temporary / name).stat().st_size, "sha256": sha256(temporary / name)} for name in _FILES}
    text = json.dumps({"format": FORMAT, "files": files}, indent=1)
    (temporary / MANIFEST).write_text(text + "\n", encoding="utf-8")


def tidy(folder: Path, step: int) -> None:
    """Prepare the folder for a run that resumes after `step`: remove leftovers, rename later checkpoints."""
    remove_leftovers(folder)
    for found, path in list_checkpoints(folder):
        if found > step:
            _rename_aside(path)


def _remove(path: Path) -> None:
    """Delete a checkpoint folder, renamed first: a half-deleted one must not be found. A failure is only a warning."""
    try:
        shutil.rmtree(path.rename(temporary_name(path)))
    except OSError as error:
        LOG.warning(f"cannot remove {path}: {error.strerror or error}")


def _rename_aside(path: Path) -> None:
    """Rename a checkpoint so that it is no longer found."""
    asides = (path.with_name(f"{path.name}.aside-{number}") for number in count(1))
    aside = path.rename(next(name for name in asides if not name.exists()))
    LOG.info(f"renamed the existing {path.name} to {aside.name}; this run replaces it")
