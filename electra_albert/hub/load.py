"""From the files of a model to the model: our folders and checkpoints, stock folders, bare weight files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.config import NATIVE, classifier_dropout, model_config, shown, stock_details
from electra_albert.hub.fill import fill
from electra_albert.hub.find import CONFIG_FILE as CONFIG_FILE
from electra_albert.hub.find import STATE_FILE, ModelFiles, checkpoint_config, is_checkpoint, read_checkpoint
from electra_albert.hub.find import locate as locate  # files are located, then loaded: both names are found here
from electra_albert.hub.find import locate_encoder as locate_encoder
from electra_albert.hub.names import from_native, from_stock
from electra_albert.hub.weights import read_json, read_tensors
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import Body
from electra_albert.model.task_model import TaskHead, TaskModel

TASK_FILE = "electra_albert.json"  # the task of a fine-tuned folder of ours
_Module = TypeVar("_Module", bound=nn.Module)
_LEAST_LENGTHS = {"max_seq_length": 8, "doc_stride": 1, "max_answer_length": 1}


class Stored(NamedTuple):
    """The contents of a model's files."""

    config: ModelConfig
    tensors: dict[str, Tensor]  # float32, under our names, except that a sentence-order head's pooler is `pooler.`
    left_aside: list[str]  # names of heads that nothing here computes

    def has(self, part: str) -> bool:
        """Whether there are weights of a part, as predictions or pooler."""
        return any(name.startswith(f"{part}.") for name in self.tensors)

    @property
    def has_mlm_head(self) -> bool:
        return self.has("predictions")

    @property
    def has_detection_head(self) -> bool:
        return self.has("discriminator_predictions")

    @property
    def has_pooler(self) -> bool:
        return self.has("pooler")


def read_stored(files: ModelFiles) -> Stored:
    """Read and check a model's files. Raises CheckpointError where they are no model that can be read, or damaged."""
    return read_each([files])[0]


def read_each(models: Sequence[ModelFiles]) -> list[Stored]:
    """As read_stored, of several models. A file that holds more than one is read once, and they share its tensors."""
    read = {weights: _read(weights) for weights in {files.weights for files in models}}
    found = []
    for files in models:
        contents, tensors = _contents(files), _of_part(read[files.weights], files.part)
        config = model_config(contents, str(files.config))
        blocks = config.num_hidden_groups * config.inner_group_num
        if blocks > len(tensors):  # a false configuration must not cost minutes
            raise CheckpointError(f"{files.weights} holds {len(tensors)} tensors, its configuration {blocks} blocks")
        kind = contents["model_type"]
        renamed = from_native(tensors) if kind == NATIVE else from_stock(tensors, kind, config, str(files.weights))
        found.append(Stored(config, *renamed))
    return found


def _contents(files: ModelFiles) -> dict[str, Any]:
    """The contents of config.json, or their equivalent for a model in a checkpoint."""
    is_state = files.config.name == STATE_FILE
    return checkpoint_config(files.config, files.part) if is_state else read_json(files.config)


def _read(weights: Path) -> dict[str, Tensor]:
    return read_checkpoint(weights) if is_checkpoint(weights) else read_tensors(weights)


def _of_part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    beginning = f"{part}." if part else ""
    return {name.removeprefix(beginning): tensor for name, tensor in tensors.items() if name.startswith(beginning)}


def load_generator(files: ModelFiles) -> Generator:
    """A masked language model in eval mode, with a sentence-order head, or else a pooler, where the file holds one."""
    return generator_of(read_stored(files), str(files.weights))


def load_discriminator(files: ModelFiles) -> Discriminator:
    """A detector of replaced tokens in eval mode, with a sentence-order head where the file holds one."""
    return discriminator_of(read_stored(files), str(files.weights))


def load_body(files: ModelFiles) -> Body:
    """The encoder in eval mode, with a pooler where the file holds one."""
    return body_of(read_stored(files), str(files.weights))


def generator_of(stored: Stored, origin: str) -> Generator:
    """As load_generator, of files that were read; `origin` names them in messages."""
    if not stored.has_mlm_head:
        raise CheckpointError(f"{origin} has no predictions, the masked-token head; name a model that has one")
    order = stored.has("sentence_order")
    pooler = stored.has_pooler and not order
    return _filled(lambda config: Generator(config, with_sentence_order=order, with_pooler=pooler), stored, origin)


def discriminator_of(stored: Stored, origin: str) -> Discriminator:
    """As load_discriminator, of files that were read; `origin` names them in messages."""
    if not stored.has_detection_head:
        raise CheckpointError(f"{origin} has no discriminator_predictions, the detection head; name another model")
    has_order = stored.has("sentence_order")
    return _filled(lambda config: Discriminator(config, with_sentence_order=has_order), stored, origin)


def body_of(stored: Stored, origin: str) -> Body:
    """As load_body, of files that were read; `origin` names them in messages."""
    return _filled(lambda config: Body(config, with_pooler=stored.has_pooler), stored, origin)


def _filled(build: Callable[[ModelConfig], _Module], stored: Stored, origin: str) -> _Module:
    with torch.device("meta"):  # sizes come from a file: nothing is allocated before the weights match them
        model = build(stored.config)
    fill(model, stored.tensors, origin)
    return model.eval()


def is_detector(files: ModelFiles) -> bool:
    """Whether the weights hold a detection head: whether the encoder was trained to find replaced tokens."""
    return any("discriminator_predictions." in name for name in _of_part(_read(files.weights), files.part))


def build_task_model(config: ModelConfig, head: TaskHead, files: ModelFiles | None) -> tuple[TaskModel, list[str]]:
    """A task's model on the encoder of `files`, and the parts drawn from torch's stream: without files all."""
    if files is None:
        with torch.random.fork_rng(devices=()):  # what PyTorch's layers draw for themselves is not kept
            model = TaskModel(config, head)
        model.initialize()
        return model, [name for name, _ in model.named_children() if name != "dropout"]
    with torch.device("meta"):
        model = TaskModel(config, head)
    stored = read_stored(files)
    new = [head.output_name]
    if model.pooler is not None and not stored.has_pooler:
        new.insert(0, "pooler")
    fill(model, stored.tensors, str(files.weights), tuple(f"{name}." for name in new))
    for name in new:
        model.get_submodule(name).to_empty(device="cpu")
    model.initialize_head(with_pooler="pooler" in new)
    return model, new


def load_task_model(files: ModelFiles) -> tuple[TaskModel, dict[str, Any]]:
    """A fine-tuned model in eval mode and what its folder records of the task; CheckpointError where it is none."""
    details, head = read_task(files)
    return task_model_of(read_stored(files), head, str(files.weights)), details


def task_model_of(stored: Stored, head: TaskHead, origin: str) -> TaskModel:
    """As load_task_model, of files that were read; `origin` names them in messages."""
    if stored.left_aside:
        raise CheckpointError(f"{origin} holds {stored.left_aside[0]}, a head that cannot be computed here")
    if f"{head.output_name}.weight" not in stored.tensors:
        raise CheckpointError(f"{origin} has no {head.output_name}: the head of the task is missing")
    return _filled(lambda config: TaskModel(config, head), stored, origin)


def read_config(files: ModelFiles) -> ModelConfig:
    """The shape of a model; CheckpointError where its config.json is not one that can be read."""
    return model_config(_contents(files), str(files.config))


def read_details(files: ModelFiles) -> dict[str, Any]:
    """What the folder of a fine-tuned model of ours records of its task; empty for any other model."""
    file = files.config.parent / TASK_FILE
    return read_json(file) if file.is_file() else {}


def read_task(files: ModelFiles) -> tuple[dict[str, Any], TaskHead]:
    """What the folder of a fine-tuned model records of its task, and the head; CheckpointError where it is none."""
    contents, details, details_file = _contents(files), read_details(files), files.config.parent / TASK_FILE
    if not details:
        details, details_file = stock_details(contents, str(files.config)), files.config
    try:
        head = head_of(details, float(classifier_dropout(contents)))
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{details_file} describes no head that is known here ({shown(str(error))})") from None
    columns = details.get("columns", {"text": [], "pair": []})
    sides = [columns.get(side) for side in ("text", "pair")] if isinstance(columns, dict) else [None]
    has_columns = all(isinstance(side, list) and all(isinstance(name, str) for name in side) for side in sides)
    lengths = [(details[name], least) for name, least in _LEAST_LENGTHS.items() if name in details]
    if not has_columns or not all(type(length) is int and length >= least for length, least in lengths):
        raise CheckpointError(f"{details_file} holds lengths or columns that no fine-tuning has; write the model again")
    return details, head


def head_of(details: Mapping[str, Any], dropout: float) -> TaskHead:
    """The head that TASK_FILE describes. Raises KeyError, TypeError or ValueError where it describes none."""
    kind, labels = details["kind"], details["labels"]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise TypeError("labels is no list of names")
    if len(set(labels)) < len(labels):
        raise ValueError("labels names one twice")
    num_labels = 1 if details.get("is_regression", False) else len(labels)
    return TaskHead(kind, {"choice": 1, "span": 2}.get(kind, num_labels), details["style"], dropout)
