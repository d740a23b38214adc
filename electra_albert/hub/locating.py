"""From a path a user gives to the files of a model: run folders, checkpoints, exported and stock folders, weights."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from electra_albert.contracts import UsageError
from electra_albert.hub.run_checkpoint import STATE_FILE, find_model, is_checkpoint
from electra_albert.hub.weight_files import WEIGHT_FILES

Kind = Literal["generator", "discriminator", "model"]  # folders of a run or of a fine-tuning
CONFIG_FILE = "config.json"
ENCODER_FOLDERS = ("discriminator", "generator", "model")


class ModelFiles(NamedTuple):
    """Where one model lies."""

    weights: Path  # or the index of several files
    config: Path
    tokenizer: Path  # a folder
    part: str = ""  # of a checkpoint, whose file may hold generator and discriminator: which one is meant


def locate(path: Path, kind: Kind, config: Path | None = None, tokenizer: Path | None = None) -> ModelFiles:
    """The files of the model a user means by `path`: a run folder, a checkpoint, a model folder or a weights file.

    A weights file's configuration and tokenizer stand beside it unless given. Raises UsageError for what is not there.
    """
    return _locate(path, (kind,), config, tokenizer)


def locate_encoder(path: Path) -> ModelFiles:
    """The files of the encoder a user means by `path`: of a run the discriminator, else the generator.

    Else the model a fine-tuning left there; otherwise as `locate`.
    """
    return _locate(path, ENCODER_FOLDERS, None, None)


def _locate(path: Path, inner: tuple[str, ...], config: Path | None, tokenizer: Path | None) -> ModelFiles:
    """`inner` names the folders of a run to look into, the first that is there."""
    try:
        is_there = path.exists()
    except OSError as error:
        raise UsageError(f"{str(path)[:100]}: {error.strerror}; give a run folder or another model") from error
    if not is_there:
        raise UsageError(f"{path} does not exist; give a run folder, a model folder or a weights file")
    if is_checkpoint(path):
        weights, part = find_model(path, inner)
        run = weights.parent.absolute().parents[1]
        return ModelFiles(weights, config or weights.with_name(STATE_FILE), tokenizer or run / "tokenizer", part)
    files = _locate_alone(path, inner, config, tokenizer)
    if not files.config.is_file():
        raise UsageError(f"{files.config} does not exist; put it there (LM_DEMO.py also takes --config FILE)")
    return files


def _locate_alone(path: Path, inner: tuple[str, ...], config: Path | None, tokenizer: Path | None) -> ModelFiles:
    """As _locate, of what is there and no checkpoint; whether the configuration is there is not looked at."""
    if path.is_dir():
        folder = next((path / name for name in inner if (path / name).is_dir()), path)
        weights = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
        if weights is None:
            raise UsageError(
                f"{folder} holds none of {', '.join(WEIGHT_FILES)}{_hint(path)}; name the folder of a model"
            )
    elif not path.is_file():
        raise UsageError(f"{path} is neither a folder nor a file; give a run folder, a model folder or a weights file")
    else:
        folder, weights = path.parent, path
    return ModelFiles(weights, config or folder / CONFIG_FILE, tokenizer or folder)


def _hint(path: Path) -> str:
    """What a folder without the weights looked for holds instead."""
    others = [name for name in ENCODER_FOLDERS if (path / name).is_dir()]
    if others:
        return f", but {' and '.join(f'{name}/' for name in others)}"
    return "; its training has not ended yet" if (path / "checkpoints").is_dir() else ""
