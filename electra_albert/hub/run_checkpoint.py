"""A checkpoint of a pretraining run as a model: weights and shape out of its folder, the tokenizer out of the run's.

The tensors of the objective have our names behind the path of a module that is called generator or discriminator.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from electra_albert.config import ModelConfig, RtdConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.stock_config import native_config
from electra_albert.hub.weight_files import read_json, read_tensors

STATE_FILE = "state.json"
_MANIFEST, _WEIGHTS = "MANIFEST.json", "model.safetensors"  # as training/checkpoint.py writes them
_OF_A_MODEL = re.compile(r"(?:.+\.)?((generator|discriminator)\..+)")


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is the folder of a checkpoint, whole or not, or the file of weights in one."""
    folder = path.parent if path.name == _WEIGHTS else path
    return (folder / STATE_FILE).is_file() or (folder / _MANIFEST).is_file()


def find_model(path: Path, wanted: Sequence[str]) -> tuple[Path, str]:
    """The file of weights in the checkpoint that `path` means, and the first of the `wanted` models that it holds."""
    folder = path.parent if path.name == _WEIGHTS else path
    held = _held(folder)
    part = next((name for name in wanted if name in held), None)
    if part is None:
        told = " and ".join(held) or "no pretrained model"
        raise CheckpointError(f"the checkpoint {folder} holds {told}, not what is asked for: {' or '.join(wanted)}")
    return folder / _WEIGHTS, part


def read_checkpoint(weights: Path) -> dict[str, Tensor]:
    """The tensors of both models, tied ones under each of their names; a name begins with its model's.

    Raises CheckpointError where the file is gone, or not as it was written.
    """
    with _whole(weights.parent):
        manifest = json.loads((weights.parent / _MANIFEST).read_text(encoding="utf-8"))
        with weights.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != manifest["files"][_WEIGHTS]["sha256"]:
            raise ValueError(f"{_WEIGHTS} is not what {_MANIFEST} says")
        tensors = read_tensors(weights)
        tied = read_json(weights.parent / STATE_FILE)["aliases"]
        tensors |= {name: tensors[stored] for name, stored in tied.items()}
    named = ((_OF_A_MODEL.fullmatch(name), tensor) for name, tensor in tensors.items())
    return {match[1]: tensor for match, tensor in named if match}


def part_of(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """One model's tensors, without its name before them; all of them where `part` is ""."""
    if not part:
        return dict(tensors)
    return {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}


def checkpoint_config(state: Path, part: str) -> dict[str, Any]:
    """What a config.json would hold of one model, by the settings in the checkpoint's state."""
    with _whole(state.parent):
        settings = read_json(state)["settings"]
        shape = ModelConfig(**_known(ModelConfig, settings["model"]))
        if part == "generator" and "discriminator" in _held(state.parent):
            shape = RtdConfig(**_known(RtdConfig, settings["rtd"])).generator(shape)
    return native_config(shape, {})


def _held(folder: Path) -> list[str]:
    """Which of the two models are in a checkpoint, by the names in the header of its weights."""
    from safetensors import safe_open

    with _whole(folder), safe_open(str(folder / _WEIGHTS), framework="pt") as file:
        return sorted({match[2] for match in map(_OF_A_MODEL.fullmatch, file.keys()) if match})


def _known(kind: type, settings: dict[str, Any]) -> dict[str, Any]:
    return {field.name: settings[field.name] for field in fields(kind) if field.name in settings}


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """What goes wrong in reading a checkpoint, which a running training may have removed, as a CheckpointError."""
    from safetensors import SafetensorError

    try:
        yield
    except CheckpointError:
        raise
    except (OSError, SafetensorError, LookupError, TypeError, AttributeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{folder} is no whole checkpoint of pretraining ({reason}); name another") from None
