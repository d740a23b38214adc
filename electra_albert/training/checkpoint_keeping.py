"""Which checkpoints a folder keeps: the newest whole ones; litter of killed runs goes, other pasts are set aside."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from electra_albert.training.checkpoint import find_problem, list_checkpoints

LOG = logging.getLogger(__name__)

TEMPORARY = ".tmp-"  # begins the name of a checkpoint that is being written
_TRASH = ".trash-"


def _remove(path: Path) -> None:
    """Delete a folder of ours; a failure is only said, since nothing depends on it."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        LOG.warning(f"cannot remove {path}: {error.strerror or error}")


def remove_litter(folder: Path) -> None:
    """Delete what a killed run left half-written or half-deleted; the run's lock says that nobody is at it."""
    for path in folder.iterdir():
        if path.name.startswith((TEMPORARY, _TRASH)) and path.is_dir() and not path.is_symlink():
            _remove(path)


def rotate(folder: Path, save_total_limit: int) -> None:
    """Remove the oldest of the whole checkpoints above the limit; broken ones neither count nor go.

    The newest has just been read back in full; of the others the sizes must do.
    """
    whole = [path for _, path in list_checkpoints(folder) if find_problem(path, is_thorough=False) is None]
    for path in whole[:-save_total_limit]:
        trash = folder / f"{_TRASH}{path.name}"
        try:
            path.rename(trash)  # a folder that is half deleted must not look like a checkpoint
        except OSError as error:
            LOG.warning(f"cannot remove {path}: {error.strerror or error}")
            continue
        _remove(trash)


def set_aside(path: Path) -> None:
    """Rename a checkpoint so that it is none any more, and say so."""
    number = 1
    while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    path.rename(aside)
    LOG.info(f"{path.name} does not belong to what is trained now; it was renamed to {aside.name}")


def tidy(folder: Path, step: int) -> None:
    """Make the folder fit a run that goes on after `step`.

    Litter of a killed run goes; later checkpoints, broken ones or those of a past that is given up, are renamed.
    """
    if folder.is_dir():
        remove_litter(folder)
    for found, path in list_checkpoints(folder):
        if found > step:
            set_aside(path)
