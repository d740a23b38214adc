"""From a path a user gives to the files of a model: run folders, checkpoints, exported and stock folders, weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from electra_albert.config import ModelConfig, RtdConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.files import sha256
from electra_albert.hub.config import native_config
from electra_albert.hub.weights import WEIGHT_FILES, read_json, read_tensors

Kind = Literal["generator", "discriminator", "model"]  # folders of a run or of a fine-tuning
CONFIG_FILE = "config.json"
ENCODER_FOLDERS = ("discriminator", "generator", "model")
STATE_FILE = "state.json"
_MANIFEST, _WEIGHTS = "MANIFEST.json", "model.safetensors"  # as training/checkpoint.py writes them
_OF_A_MODEL = re.compile(r"(?:.+\.)?((generator|discriminator)\..+)")  # a name in a checkpoint


class ModelFiles(NamedTuple):
    """The files of one model."""

    weights: Path  # or the index of several files
    config: Path
    tokenizer: Path  # a folder
    part: str = ""  # of a checkpoint, which may hold generator and discriminator: the one that is meant


def locate(path: Path, kind: Kind, config: Path | None = None, tokenizer: Path | None = None) -> ModelFiles:
    """The files that a path means; configuration and tokenizer beside the weights unless given. Raises UsageError."""
    return _locate(path, (kind,), config, tokenizer)


def locate_encoder(path: Path) -> ModelFiles:
    """As `locate`; of a run the discriminator, else the generator, else the model that a fine-tuning left there."""
    return _locate(path, ENCODER_FOLDERS)


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is the folder of a run's checkpoint, whole or not, or the file of weights in one."""
    folder = path.parent if path.name == _WEIGHTS else path
    return (folder / STATE_FILE).is_file() or (folder / _MANIFEST).is_file()


def read_checkpoint(weights: Path) -> dict[str, Tensor]:
    """The tensors of the models in a checkpoint by `part.name`; CheckpointError where it is not as it was written."""
    with _whole(weights.parent):
        manifest = json.loads((weights.parent / _MANIFEST).read_text(encoding="utf-8"))
        if sha256(weights) != manifest["files"][_WEIGHTS]["sha256"]:
            raise ValueError(f"{_WEIGHTS} is not what {_MANIFEST} says")
        tensors = read_tensors(weights)
        tensors |= {name: tensors[tied] for name, tied in read_json(weights.parent / STATE_FILE)["aliases"].items()}
    named = ((_OF_A_MODEL.fullmatch(name), tensor) for name, tensor in tensors.items())
    return {match[1]: tensor for match, tensor in named if match}


def checkpoint_config(state: Path, part: str) -> dict[str, Any]:
    """The contents of a native config.json for one model, by the settings in the checkpoint's state."""
    with _whole(state.parent):
        settings = read_json(state)["settings"]
        shape = ModelConfig(**_known(ModelConfig, settings["model"]))
        if part == "generator" and "discriminator" in _parts(state.parent):
            shape = RtdConfig(**_known(RtdConfig, settings["rtd"])).generator(shape)
    return native_config(shape, {})


def _known(kind: type[ModelConfig | RtdConfig], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without those of another version."""
    return {field.name: settings[field.name] for field in fields(kind) if field.name in settings}


def _locate(
    path: Path, inner: tuple[str, ...], config: Path | None = None, tokenizer: Path | None = None
) -> ModelFiles:
    """`inner` names the folders of a run to look into; the first that exists is meant."""
    if not os.path.exists(path):  # also of a name that is too long
        raise UsageError(f"{str(path)[:200]} does not exist; give a run folder, a model folder or a weights file")
    if is_checkpoint(path):
        folder = path.parent if path.name == _WEIGHTS else path
        parts = _parts(folder)
        part = next((name for name in inner if name in parts), None)
        if part is None:
            found = " and ".join(parts) or "no pretrained model"
            raise CheckpointError(f"the checkpoint {folder} holds {found}, not what is asked for: {' or '.join(inner)}")
        run = folder.absolute().parents[1]
        return ModelFiles(folder / _WEIGHTS, config or folder / STATE_FILE, tokenizer or run / "tokenizer", part)
    if path.is_dir():
        folder = next((path / name for name in inner if (path / name).is_dir()), path)
        weights = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), folder)
        if weights == folder:
            names = ", ".join(WEIGHT_FILES)
            raise UsageError(f"{folder} holds none of {names}{_hint(path)}; name the folder of a model")
    elif not path.is_file():
        raise UsageError(f"{path} is neither a folder nor a file; give a run folder, a model folder or a weights file")
    else:
        folder, weights = path.parent, path
    files = ModelFiles(weights, config or folder / CONFIG_FILE, tokenizer or folder)
    if not files.config.is_file():
        raise UsageError(f"{files.config} does not exist; put it there (LM_DEMO.py also takes --config FILE)")
    return files


def _hint(path: Path) -> str:
    """The models that a folder without the weights looked for holds instead."""
    others = [name for name in ENCODER_FOLDERS if (path / name).is_dir()]
    if others:
        return f", but {' and '.join(f'{name}/' for name in others)}"
    return "; its training has not ended yet" if (path / "checkpoints").is_dir() else ""


def _parts(folder: Path) -> list[str]:
    """The models in a checkpoint, by the names in the header of its weights."""
    from safetensors import safe_open

    with _whole(folder), safe_open(str(folder / _WEIGHTS), framework="pt") as file:
        return sorted({match[2] for match in map(_OF_A_MODEL.fullmatch, file.keys()) if match})


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """A failed read of a checkpoint, which a running training may have removed, as a CheckpointError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, LookupError, TypeError, AttributeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{folder} is no whole checkpoint of pretraining ({reason}); name another") from None
