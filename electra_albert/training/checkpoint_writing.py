"""Writes checkpoints that a crash at any instant leaves whole: beside, hashed, renamed into place; then old ones go."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.contracts import DivergedError
from electra_albert.training.checkpoint import (
    FORMAT,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    STATE,
    find_problem,
    optimizer_tensors,
    sha256,
    unique_tensors,
)
from electra_albert.training.checkpoint_keeping import TEMPORARY, remove_litter, rotate, set_aside


def check_finite(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise DivergedError if a weight or a moment is not finite: such a state is never written."""
    tensors = {**module.state_dict(), **optimizer_tensors(module, optimizer)}
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
) -> Path:
    """Publish the checkpoint of `step` in `folder`, then remove the oldest ones above `save_total_limit`.

    state is what else belongs to it, as JSON. Raises OSError where it cannot be written, with the older checkpoints as
    they were. The caller has made sure by `check_finite` that it is worth keeping.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_litter(folder)
    temporary = folder / f"{TEMPORARY}{step}-{os.getpid()}"
    temporary.mkdir()
    try:
        _fill(temporary, step, module, optimizer, state)
        path = folder / f"step-{step:07d}"
        if path.exists():
            set_aside(path)
        temporary.rename(path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(folder)
    problem = find_problem(path)
    if problem:
        raise OSError(f"{path} reads back wrong: {problem}")
    rotate(folder, save_total_limit)
    return path


def _fill(
    temporary: Path, step: int, module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Write the files of a checkpoint, the manifest last, and see them to the disk."""
    tensors, aliases = unique_tensors(module)
    _write_json({**state, "step": step, "aliases": aliases}, temporary / STATE)
    _write_tensors(tensors, temporary / MODEL)
    _write_tensors(optimizer_tensors(module, optimizer), temporary / OPTIMIZER)
    # safetensors makes files that only their owner can read; these follow the umask, as state.json does.
    mode = stat.S_IMODE((temporary / STATE).stat().st_mode)
    files = {}
    for name in (MODEL, OPTIMIZER, STATE):
        path = temporary / name
        path.chmod(mode)
        _sync(path)
        files[name] = {"size": path.stat().st_size, "sha256": sha256(path)}
    _write_json({"format": FORMAT, "files": files}, temporary / MANIFEST)
    _sync(temporary / MANIFEST)
    _sync(temporary)
