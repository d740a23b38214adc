"""From a path a user gives to a model: run folders, exported folders, stock ALBERT folders, bare weight files.

A task's model begins with the encoder of any of them, or is loaded whole from a folder of ours that was fine-tuned.

No file is allowed to run code: safetensors, or a .pt that holds nothing but named tensors.
"""

from __future__ import annotations

import json
import pickle
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import Embeddings
from electra_albert.model.huggingface import fill, has_sentence_order, load_state, model_config, task_state
from electra_albert.model.task_model import TaskHead, TaskModel

Kind = Literal["generator", "discriminator"]
WEIGHT_FILES = ("model.safetensors", "weights.pt", "pytorch_model.bin")
CONFIG_FILE = "config.json"
TASK_FILE = "electra_albert.json"  # what a fine-tuned folder of ours says of its task
ENCODER_FOLDERS = ("discriminator", "generator", "model")
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
    if path.is_dir():
        folder = next((path / name for name in inner if (path / name).is_dir()), path)
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


def is_detector(files: ModelFiles) -> bool:
    """Whether the weights hold a detection head: whether the encoder was trained to find replaced tokens."""
    return any(name.startswith("discriminator_predictions.") for name in read_tensors(files.weights))


def build_task_model(config: ModelConfig, head: TaskHead, files: ModelFiles | None) -> tuple[TaskModel, list[str]]:
    """A task's model on the encoder of `files`, and the names of its parts that begin with random weights.

    Without files all of it does. Random weights are drawn from torch's generator, which the caller seeds.
    """
    if files is None:
        with torch.random.fork_rng(devices=()):  # what PyTorch's layers draw for themselves is not kept
            model = TaskModel(config, head)
        model.initialize()
        return model, [name for name, _ in model.named_children() if name != "dropout"]
    with torch.device("meta"):  # sizes come from a file: nothing is allocated before the weights are seen to match
        model = TaskModel(config, head)
    new = load_task_body(model, files)
    for name in new:
        model.get_submodule(name).to_empty(device="cpu")
    model.initialize_head(with_pooler="pooler" in new)
    return model, new


def load_task_body(model: TaskModel, files: ModelFiles) -> list[str]:
    """Fill embeddings, encoder and, where the file has one, the pooler; returns the parts that stay as they were.

    Takes the file of any stock ALBERT, of a run of ours or of a fine-tuned model; raises CheckpointError where it does
    not fit.
    """
    state = task_state(_tensors_for(model.config, files.weights))
    kept = [model.head.output_name]
    if model.pooler is not None and not any(name.startswith("pooler.") for name in state):
        kept.insert(0, "pooler")
    fill(model, state, str(files.weights), tuple(f"{name}." for name in kept))
    return kept


def read_details(files: ModelFiles) -> dict[str, Any]:
    """What the folder of a fine-tuned model of ours says of its task; empty for any other model."""
    file = files.config.parent / TASK_FILE
    return _read_json(file) if file.is_file() else {}


def load_task_model(files: ModelFiles) -> tuple[TaskModel, dict[str, Any]]:
    """A fine-tuned model of ours in eval mode, head and all, and what its folder says of the task.

    Raises CheckpointError where the folder is no such one, or its weights lack the head.
    """
    details, config = read_details(files), read_config(files.config)
    details_file = files.config.parent / TASK_FILE
    if not details:
        raise CheckpointError(f"{details_file} does not exist; {files.weights} was not fine-tuned by this toolkit")
    dropout = _read_json(files.config).get("classifier_dropout_prob")
    try:
        head = head_of(details, 0.1 if dropout is None else float(dropout))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{details_file} describes no head of ours ({error})") from None
    state = task_state(_tensors_for(config, files.weights))
    if f"{head.output_name}.weight" not in state:
        raise CheckpointError(f"{files.weights} has no {head.output_name}: the head of the task is missing")
    with torch.device("meta"):
        model = TaskModel(config, head)
    fill(model, state, str(files.weights))
    return model.eval(), details


def head_of(details: Mapping[str, Any], dropout: float) -> TaskHead:
    """The head that TASK_FILE describes. Raises KeyError, TypeError or ValueError where it describes none."""
    kind, labels = details["kind"], details["labels"]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise TypeError("labels is no list of names")
    if len(set(labels)) < len(labels):
        raise ValueError("labels names one twice")
    counts = {"choice": 1, "span": 2}
    is_number = bool(details.get("is_regression", False))
    return TaskHead(kind, counts.get(kind, 1 if is_number else len(labels)), details["style"], dropout)


def read_config(file: Path) -> ModelConfig:
    """The shape in a config.json; CheckpointError where it is not one that can be read."""
    return model_config(_read_json(file), str(file))


def _read_json(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _LARGEST_CONFIG_BYTES:
        raise CheckpointError(f"{file} is too large for a model configuration")
    try:
        contents: Any = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON ({str(error)[:80]})") from None
    if not isinstance(contents, dict):
        raise CheckpointError(f"{file} holds no JSON object")
    return contents


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
