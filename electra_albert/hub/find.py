"""Locate and read a model: in a run, checkpoint, exported or stock folder, or a weights file."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from electra_albert.config.objectives import RtdConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.files import find_damage, load_manifest
from electra_albert.hub.formats import ENERGIES, TABLE, model_config, native_config
from electra_albert.hub.weights import WEIGHT_FILES, read_json, read_tensors

CONFIG_FILE = "config.json"
ENCODER_FOLDERS = ("discriminator", "generator", "model")
# Subfolders of a run by the requested kind of model; the first that exists is used.
_FOLDERS = {
    "generator": ("generator",),
    "discriminator": ("discriminator",),
    "task": ("model",),
    "encoder": ENCODER_FOLDERS,
    "any": ("generator", "model", "discriminator"),
}
# Files of training/checkpoint.py.
_STATE = "state.json"
_MANIFEST = "MANIFEST.json"
_WEIGHTS = "model.safetensors"
_PARAMETER = re.compile(r"(?:.+\.)?(generator|discriminator)\.(.+)")  # a name in a checkpoint


class ModelFiles(NamedTuple):
    """The files of one model."""

    weights: Path  # or the index of sharded weights
    config: Path
    tokenizer: Path  # a folder
    part: str = ""  # generator or discriminator in a checkpoint, which may contain both


def locate(
    path: str | Path,
    kind: str = "encoder",
    config: str | Path | None = None,
    tokenizer: str | Path | None = None,
) -> ModelFiles:
    """Locate the files of a model; config and tokenizer are next to the weights unless given.

    `kind` selects a run's model: generator, discriminator, task, encoder or any. Raises UsageError
    or CheckpointError.
    """
    path = Path(path)
    # Unlike Path's methods, no error for a name that is too long.
    if not (os.path.isdir(path) or os.path.isfile(path)):
        raise UsageError(
            f"{str(path)[:200]} does not exist; give a run folder, a model folder or a weights file"
        )
    part = ""
    if is_checkpoint(path):
        folder = path.parent if path.name == _WEIGHTS else path
        parts = _models_in(folder)
        part = next((name for name in _FOLDERS[kind] if name in parts), "")
        if not part:
            raise CheckpointError(
                f"{folder} has {' and '.join(parts) or 'no model'}, not {kind}; name another folder"
            )
        weights = folder / _WEIGHTS
        config = config or folder / _STATE
        tokenizer = tokenizer or folder.absolute().parents[1] / "tokenizer"
    else:
        weights = path if path.is_file() else _weights_in(path, kind)
    files = ModelFiles(
        weights,
        Path(config or weights.with_name(CONFIG_FILE)),
        Path(tokenizer or weights.parent),
        part,
    )
    if not part and not files.config.is_file():
        raise UsageError(
            f"{files.config} does not exist; "
            "put it there (electra-albert demo also takes --config FILE)"
        )
    return files


def _weights_in(path: Path, kind: str) -> Path:
    """The weights file of a model folder or a run. Raises UsageError if there is none."""
    folder = next((path / name for name in _FOLDERS[kind] if (path / name).is_dir()), path)
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    hint = "; its training has not finished yet" if (path / "checkpoints").is_dir() else ""
    models = [f"{name}/" for name in ENCODER_FOLDERS if (path / name).is_dir()]
    if models:
        hint = f", but {' and '.join(models)}"
    raise UsageError(
        f"{folder} contains none of {', '.join(WEIGHT_FILES)}{hint}; name a model folder"
    )


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a checkpoint of a run, complete or not, or the weights file in one."""
    folder = path.parent if path.name == _WEIGHTS else path
    return (folder / _STATE).is_file() or (folder / _MANIFEST).is_file()


def read_weights(files: ModelFiles) -> dict[str, Tensor]:
    """Read the tensors of a model under the names in its files.

    Raises CheckpointError for a damaged file.
    """
    weights = files.weights
    if not is_checkpoint(weights):
        return read_tensors(weights)
    with _checkpoint_errors(weights.parent):
        _require_hash(weights)
        tensors = read_tensors(weights)
        state = _read_state(weights.with_name(_STATE))
        tensors |= {name: tensors[tied] for name, tied in state["aliases"].items()}
        sharing = state["settings"]["rtd"].get("embedding_sharing")
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        match = _PARAMETER.fullmatch(name)
        if match:
            parts[match[1]][match[2]] = tensor
    model = parts[files.part]
    if sharing == "disentangled" and files.part == "discriminator" and "generator" in parts:
        model[TABLE] = model[TABLE] + parts["generator"][TABLE]
    return model


def read_contents(files: ModelFiles) -> dict[str, Any]:
    """Read config.json, or build it from the settings of a checkpoint.

    Raises CheckpointError for a damaged file.
    """
    state = files.config
    if state.name != _STATE:
        return read_json(state)
    with _checkpoint_errors(state.parent):
        settings = _read_state(state)["settings"]
        shape = model_config(native_config(settings["model"]), str(state))
        if files.part == "generator" and "discriminator" in _models_in(state.parent):
            names = settings["rtd"].keys() & RtdConfig.__annotations__  # without removed options
            rtd = RtdConfig(**{name: settings["rtd"][name] for name in names})
            shape = rtd.generator_config(shape) or shape
    has_energies = ENERGIES in (settings.get("objective"), *settings)
    return native_config(asdict(shape) | {ENERGIES: has_energies})


def _read_state(file: Path) -> dict[str, Any]:
    """The state.json of a checkpoint, after its hash was compared."""
    _require_hash(file)
    return read_json(file, {"aliases": dict[str, str], "settings": {"model": dict, "rtd": dict}})


def _require_hash(file: Path) -> None:
    """Raise ValueError if a file of a checkpoint does not match its hash."""
    files = load_manifest(file.with_name(_MANIFEST))["files"]
    damage = find_damage(file.parent, {file.name: files[file.name]})
    if damage:
        raise ValueError(damage)


def _models_in(folder: Path) -> list[str]:
    """Names of the models in a checkpoint, from the header of its weights file."""
    with _checkpoint_errors(folder), safe_open(str(folder / _WEIGHTS), framework="pt") as file:
        return sorted({match[1] for match in map(_PARAMETER.fullmatch, file.keys()) if match})


@contextmanager
def _checkpoint_errors(folder: Path) -> Iterator[None]:
    """Turn errors in reading a checkpoint, which a running training may delete, into a line."""
    try:
        yield
    except (OSError, SafetensorError, LookupError, TypeError, AttributeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(
            f"{folder} is not a complete pretraining checkpoint ({reason}); name another"
        ) from None
