"""Checkpoints: folders `step-0000100` of safetensors and JSON, written atomically.

MANIFEST.json has the size and SHA-256 of each file.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra_albert.contracts import LOG, CheckpointError, DivergedError, UsageError
from electra_albert.files import (
    digest_of,
    find_damage,
    load_json,
    load_manifest,
    new_folder,
    remove_leftovers,
    sync_all,
    temporary_name,
    write_manifest,
)
from electra_albert.training.loss_scale import DIVERGED_ADVICE

FORMAT = 1
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MANIFEST = "MANIFEST.json"
_FILES = (MODEL, OPTIMIZER, STATE)
_STATE = {
    "step": int,
    "tokens": int,
    "skipped": tuple[int, int, int],
    "torch": str,
    "loss_scale": dict,
    "tally": dict,
    "aliases": dict,
    "settings": dict,
    "world_size": int,
    "threads": int,
}
_ADVICE = "use the settings it was written with"


def unique_tensors(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The module's tensors by name, tied ones once.

    Also the first name of a tied tensor by each of its further names.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[object, str] = {}
    for name, tensor in module.state_dict().items():
        view: object = name
        if tensor.numel():
            view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        first = names.setdefault(view, name)
        if first == name:
            tensors[name] = tensor
        else:
            aliases[name] = first
    return tensors, aliases


def optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: `<name>.exp_avg`, `<name>.momentum_buffer`, …."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    tensors: dict[str, Tensor] = {}
    for parameter, state in optimizer.state.items():
        tensors |= {f"{names[parameter]}.{key}": value for key, value in state.items()}
    return tensors


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the checkpoints in `folder`, damaged ones included, in ascending order."""
    try:  # glob would ignore an unreadable folder
        paths = [*folder.iterdir()] if folder.is_dir() else []
        return sorted(
            (int(path.name[5:]), path)
            for path in paths
            if re.fullmatch(r"step-\d{7,}", path.name) and path.is_dir() and not path.is_symlink()
        )
    except PermissionError as error:
        raise CheckpointError(
            f"{folder} cannot be read ({error.strerror}); change its permissions"
        ) from None


def find_problem(path: Path, *, compares_hashes: bool = True) -> str | None:
    """Describe what is wrong with a checkpoint, None if it is complete."""
    try:
        if not (path / MANIFEST).is_file():
            return f"{MANIFEST} is missing"
        manifest = load_manifest(path / MANIFEST)
        if manifest.get("format") != FORMAT:
            return f"{MANIFEST} does not have format {FORMAT}, the only one this version reads"
        if manifest["files"].keys() != {*_FILES}:
            return f"{MANIFEST} does not have the names {', '.join(_FILES)}"
        return find_damage(path, manifest["files"], compares_hashes=compares_hashes)
    except OSError as error:
        return f"{Path(error.filename or path).name} cannot be read ({error.strerror})"
    except ValueError as error:
        return f"{MANIFEST} cannot be read ({error})"


def find_checkpoint(folder: Path, resume: str) -> Path | None:
    """The checkpoint to resume from, None if there is none.

    resume: a path, `never`, or `auto` for the newest complete one. Raises CheckpointError if it is
    damaged or all are, UsageError if `resume` is `never` and there is a checkpoint.
    """
    if resume not in ("auto", "never"):
        problem = find_problem(Path(resume))
        if problem:
            raise CheckpointError(
                f"--resume {resume} is not a complete checkpoint: {problem}; use another or auto"
            )
        return Path(resume)
    problems = []
    for _, path in reversed(list_checkpoints(folder)):
        if resume == "never":
            raise UsageError(
                f"--resume never, but {folder} contains {path.name}; choose another --output_dir"
            )
        problem = find_problem(path)
        if problem is None:
            return path
        problems.append(f"{path.name}: {problem}")
        LOG.warning(f"skipping damaged checkpoint {problems[-1]}")
    if problems:
        raise CheckpointError(
            f"all checkpoints in {folder} are damaged ({'; '.join(problems)}); "
            "restore one, or remove them to start again"
        )
    return None


def read_state(path: Path) -> dict[str, Any]:
    """The state.json of a checkpoint. Raises CheckpointError unless it has all of `_STATE`."""
    try:
        state: dict[str, Any] = load_json(path / STATE, _STATE)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path / STATE} cannot be read ({type(error).__name__}: {error})"
        ) from error
    return state


def load_checkpoint(
    path: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
) -> dict[str, Any]:
    """Load weights and optimizer state in place; returns state.json.

    `convert` maps the weights by name before they are compared and copied. Raises CheckpointError
    if a tensor does not fit.
    """
    state = read_state(path)
    weights, aliases = unique_tensors(module)
    if state["aliases"] != aliases:
        names = {*state["aliases"]} ^ {*aliases} or {*aliases}
        raise CheckpointError(f"{path} ties other weights: {min(names)}; {_ADVICE}")
    pairs = _paired(path / MODEL, weights, convert)
    if optimizer is not None:
        pairs += _paired(path / OPTIMIZER, optimizer_tensors(module, optimizer))
    with torch.no_grad():
        for target, tensor in pairs:
            target.copy_(tensor)
    return state


def _paired(
    file: Path,
    targets: Mapping[str, Tensor],
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
) -> list[tuple[Tensor, Tensor]]:
    """The targets with the tensors of the file; CheckpointError unless all fit."""
    try:
        stored = convert(load_file(file))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read ({error})") from error
    for name in {**targets, **stored}:
        old = _shape(stored.get(name))
        new = _shape(targets.get(name))
        if old != new:
            raise CheckpointError(f"{file}: {name} is {old}, but {new} in the model; {_ADVICE}")
    return [(target, stored[name]) for name, target in targets.items()]


def _shape(tensor: Tensor | None) -> str | None:
    return None if tensor is None else f"{tensor.dtype} {[*tensor.shape]}"


def check_finite(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise DivergedError if a weight or an optimizer moment is not finite: it is never saved."""
    tensors = {**module.state_dict(), **optimizer_tensors(module, optimizer)}
    checks = [torch.isfinite(tensor).all() for tensor in tensors.values()]
    are_finite = torch.stack(checks).tolist()
    if not all(are_finite):
        name = list(tensors)[are_finite.index(False)]
        raise DivergedError(
            f"training diverged: {name} has non-finite values and was not saved; "
            f"older checkpoints are kept: {DIVERGED_ADVICE}"
        )


def save_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    save_total_limit: int,
    milestone_steps: int = 0,
) -> Path:
    """Save a checkpoint atomically (state, with "step", as JSON), then remove the oldest.

    milestone_steps: if not 0, the checkpoints of 1, 2, 4, … times this number of steps are not
    removed. Raises OSError on failure.
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
    problem = find_problem(path)
    if problem:
        raise OSError(f"{path} is damaged after writing: {problem}")
    # Older checkpoints are checked by size only. Damaged ones do not count and are kept.
    complete = [
        (saved_step, saved)
        for saved_step, saved in list_checkpoints(folder)
        if find_problem(saved, compares_hashes=False) is None
    ]
    for saved_step, saved in complete[:-save_total_limit]:
        if not is_milestone(saved_step, milestone_steps):
            _remove(saved)
    return path


def is_milestone(step: int, milestone_steps: int) -> bool:
    """Whether a step is 1, 2, 4, … times milestone_steps; False if that is 0."""
    if milestone_steps == 0 or step % milestone_steps:
        return False
    return (step // milestone_steps).bit_count() == 1


def _fill(
    temporary: Path, state: Mapping[str, Any], module: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write the files of a checkpoint, the manifest last."""
    weights, aliases = unique_tensors(module)
    text = json.dumps({**state, "aliases": aliases}, indent=1, allow_nan=False)
    (temporary / STATE).write_text(text + "\n", encoding="utf-8")
    parts = {MODEL: weights, OPTIMIZER: optimizer_tensors(module, optimizer)}
    for name, tensors in parts.items():
        stored = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        try:
            save_file(stored, temporary / name)
        except SafetensorError as error:  # raised for a full disk
            raise OSError(f"{name}: {error}") from error
        # safetensors creates files that only their owner can read; state.json has the umask's mode.
        shutil.copymode(temporary / STATE, temporary / name)
    digests = {name: digest_of(temporary / name) for name in _FILES}
    write_manifest(temporary / MANIFEST, digests, format=FORMAT)


def tidy(folder: Path, step: int) -> None:
    """Remove leftovers and rename later checkpoints, for a run that resumes after `step`."""
    remove_leftovers(folder)
    for saved_step, path in list_checkpoints(folder):
        if saved_step > step:
            _rename_aside(path)


def _remove(path: Path) -> None:
    """Delete a checkpoint, renamed first: a half-deleted one must not be found.

    A failure is only a warning.
    """
    try:
        shutil.rmtree(path.rename(temporary_name(path)))
    except OSError as error:
        LOG.warning(f"cannot remove {path}: {error.strerror or error}")


def _rename_aside(path: Path) -> None:
    """Rename a checkpoint so that it is no longer found."""
    names = (path.with_name(f"{path.name}.aside-{number}") for number in count(1))
    aside = path.rename(next(name for name in names if not name.exists()))
    LOG.info(f"renamed the existing {path.name} to {aside.name}; this run replaces it")
