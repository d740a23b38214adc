"""From a path a user gives to a model: run folders, exported folders, stock ALBERT folders, bare weight files.

No file is allowed to run code: safetensors, or a .pt that holds nothing but named tensors.
"""

from __future__ import annotations

import json
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import Embeddings
from electra_albert.model.huggingface import has_sentence_order, load_state, model_config

Kind = Literal["generator", "discriminator"]
WEIGHT_FILES = ("model.safetensors", "weights.pt", "pytorch_model.bin")
CONFIG_FILE = "config.json"
_LARGEST_CONFIG_BYTES = 1 << 20
_WRAPPERS = ("model", "state_dict")
# What torch.load raises on a damaged or hostile file, found by damaging files in thousands of ways.
_DAMAGED = (
    pickle.UnpicklingError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)


class ModelFiles(NamedTuple):
    """Where one model lies."""

    weights: Path
    config: Path
    tokenizer: Path  # a folder


def locate(path: Path, kind: Kind, config: Path | None = None, tokenizer: Path | None = None) -> ModelFiles:
    """The files of the model a user means by `path`: a run folder, a model folder or a weights file.

    A weights file's configuration and tokenizer stand beside it unless given. Raises UsageError for what is not there.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist; give a run folder, a model folder or a weights file")
    if path.is_dir():
        folder = path / kind if (path / kind).is_dir() else path
        weights = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
        if weights is None:
            hint = "; its training has not ended yet" if (path / "checkpoints").is_dir() else ""
            raise UsageError(f"{folder} holds none of {', '.join(WEIGHT_FILES)}{hint}; name the folder of a model")
    else:
        folder, weights = path.parent, path
    files = ModelFiles(weights, config or folder / CONFIG_FILE, tokenizer or folder)
    if not files.config.is_file():
        raise UsageError(f"{files.config} does not exist; tell the model's configuration by --config FILE")
    return files


def load_generator(files: ModelFiles) -> Generator:
    """A masked language model in eval mode, from our export or any stock ALBERT with an MLM head.

    It has a sentence-order head where the file holds one.
    """
    config = read_config(files.config)
    tensors = _tensors_for(config, files.weights)
    with torch.device("meta"):  # sizes come from a file: nothing is allocated before the weights are seen to match
        model = Generator(config, Embeddings(config), with_sentence_order=has_sentence_order(tensors))
    load_state(model, tensors, str(files.weights))
    return model.eval()


def load_discriminator(files: ModelFiles) -> Discriminator:
    """A detector of replaced tokens in eval mode, from our export.

    It has a sentence-order head where the file holds one.
    """
    config = read_config(files.config)
    tensors = _tensors_for(config, files.weights)
    with torch.device("meta"):
        model = Discriminator(config, Embeddings(config), with_sentence_order=has_sentence_order(tensors))
    load_state(model, tensors, str(files.weights))
    return model.eval()


def _tensors_for(config: ModelConfig, weights: Path) -> dict[str, Tensor]:
    """The tensors of a file that has enough of them for the configuration: a false one must not cost minutes."""
    tensors = read_tensors(weights)
    blocks = config.num_hidden_groups * config.inner_group_num
    if blocks > len(tensors):
        raise CheckpointError(f"{weights} holds {len(tensors)} tensors, its configuration describes {blocks} blocks")
    return tensors


def read_config(file: Path) -> ModelConfig:
    """The shape in a config.json; CheckpointError where it is not one that can be read."""
    if file.stat().st_size > _LARGEST_CONFIG_BYTES:
        raise CheckpointError(f"{file} is too large for a model configuration")
    try:
        contents: Any = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON ({str(error)[:80]})") from None
    if not isinstance(contents, dict):
        raise CheckpointError(f"{file} holds no JSON object")
    return model_config(contents, str(file))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Named tensors of a .safetensors or .pt file, on the CPU; CheckpointError for anything else."""
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(str(file))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file} cannot be read as safetensors ({error}); it is damaged or no such file"
            ) from None
    return _read_pickled(file)


def _read_pickled(file: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a plain pickle, which is refused in our own words
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:100]
        raise CheckpointError(
            f"{file} is no file of plain tensors ({reason}); anything that could run code is refused"
        ) from None
    for wrapper in _WRAPPERS:
        if isinstance(contents, dict) and isinstance(contents.get(wrapper), dict):
            contents = contents[wrapper]
    if not isinstance(contents, dict) or not contents:
        raise CheckpointError(f"{file} holds no mapping of names to tensors")
    for name, tensor in contents.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{file}: {name!r} is no tensor; give a flat mapping of names to tensors")
    return dict(contents)
