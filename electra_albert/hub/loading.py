"""From the files of a model to the model: our own folders and checkpoints, stock folders, bare weight files.

Stock folders are ALBERT's, BERT's and ELECTRA's. A task's model begins with the encoder of any of them, or is loaded
whole from a folder of ours or a stock one that was fine-tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.huggingface import body_state, fill, from_native, has_sentence_order, load_state, normalized
from electra_albert.hub.locating import ModelFiles
from electra_albert.hub.locating import locate as locate  # what is loaded is located first: both names stand here
from electra_albert.hub.locating import locate_encoder as locate_encoder
from electra_albert.hub.run_checkpoint import STATE_FILE, checkpoint_config, is_checkpoint, part_of, read_checkpoint
from electra_albert.hub.stock_config import NATIVE, model_config, shown
from electra_albert.hub.stock_task import classifier_dropout, stock_details
from electra_albert.hub.weight_files import read_json, read_tensors
from electra_albert.model.body import Body
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import Embeddings
from electra_albert.model.task_model import TaskHead, TaskModel

TASK_FILE = "electra_albert.json"  # what a fine-tuned folder of ours says of its task
_DETECTION_HEAD = "discriminator_predictions."
_LEAST_LENGTHS = {"max_seq_length": 8, "doc_stride": 1, "max_answer_length": 1}


class Stored(NamedTuple):
    """What the files of a model hold."""

    config: ModelConfig
    tensors: dict[str, Tensor]  # float32, under the names of stock ALBERT without `albert.`
    left_aside: list[str]  # names of heads that nothing here computes

    @property
    def has_mlm_head(self) -> bool:
        return any(name.startswith("predictions.") for name in self.tensors)

    @property
    def has_detection_head(self) -> bool:
        return any(name.startswith(_DETECTION_HEAD) for name in self.tensors)

    @property
    def has_pooler(self) -> bool:
        return any(name.startswith("pooler.") for name in self.tensors)


def read_stored(files: ModelFiles) -> Stored:
    """Read and check a model's files. Raises CheckpointError where they are no model that can be read, or damaged."""
    return read_each([files])[0]


def read_each(models: Sequence[ModelFiles]) -> list[Stored]:
    """As read_stored, of several models. A file is read once: what is stored of it for several are the same tensors."""
    held: dict[Path, dict[str, Tensor]] = {}
    return [_stored(files, held) for files in models]


def _stored(files: ModelFiles, held: dict[Path, dict[str, Tensor]]) -> Stored:
    """`held` are the tensors of files that were read already; those of `files` are added."""
    contents = _contents(files)
    config = model_config(contents, str(files.config))
    if files.weights not in held:
        held[files.weights] = _read(files.weights)
    tensors = part_of(held[files.weights], files.part)
    blocks = config.num_hidden_groups * config.inner_group_num
    if blocks > len(tensors):  # a false configuration must not cost minutes
        raise CheckpointError(
            f"{files.weights} holds {len(tensors)} tensors, its configuration describes {blocks} blocks"
        )
    if contents["model_type"] == NATIVE:
        return Stored(config, from_native(tensors), [])
    renamed = normalized(tensors, contents["model_type"], config, str(files.weights))
    return Stored(config, renamed.tensors, renamed.left_aside)


def _contents(files: ModelFiles) -> dict[str, Any]:
    """The contents of config.json, or what it would say of a model in a checkpoint."""
    is_state = files.config.name == STATE_FILE
    return checkpoint_config(files.config, files.part) if is_state else read_json(files.config)


def _read(weights: Path) -> dict[str, Tensor]:
    return read_checkpoint(weights) if is_checkpoint(weights) else read_tensors(weights)


def load_generator(files: ModelFiles) -> Generator:
    """A masked language model in eval mode, from our export or any stock model with an MLM head.

    It has a sentence-order head where the file holds one, and a pooler where the file holds that alone.
    """
    return generator_of(read_stored(files), str(files.weights))


def load_discriminator(files: ModelFiles) -> Discriminator:
    """A detector of replaced tokens in eval mode, from our export or stock ELECTRA.

    It has a sentence-order head where the file holds one.
    """
    return discriminator_of(read_stored(files), str(files.weights))


def load_body(files: ModelFiles) -> Body:
    """The encoder in eval mode, from any file that `read_stored` takes; with a pooler where the file has one."""
    return body_of(read_stored(files), str(files.weights))


def generator_of(stored: Stored, origin: str) -> Generator:
    """As load_generator, of files that were read; `origin` names them in messages."""
    if not stored.has_mlm_head:
        raise CheckpointError(f"{origin} has no predictions, the masked-token head; name a model that has one")
    has_order = has_sentence_order(stored.tensors)
    with torch.device("meta"):  # sizes come from a file: nothing is allocated before the weights are seen to match
        model = Generator(
            stored.config,
            Embeddings(stored.config),
            with_sentence_order=has_order,
            with_pooler=stored.has_pooler and not has_order,
        )
    load_state(model, stored.tensors, origin)
    return model.eval()


def discriminator_of(stored: Stored, origin: str) -> Discriminator:
    """As load_discriminator, of files that were read; `origin` names them in messages."""
    if not stored.has_detection_head:
        raise CheckpointError(f"{origin} has no discriminator_predictions, the detection head; name another model")
    with torch.device("meta"):
        embeddings = Embeddings(stored.config)
        model = Discriminator(stored.config, embeddings, with_sentence_order=has_sentence_order(stored.tensors))
    load_state(model, stored.tensors, origin)
    return model.eval()


def body_of(stored: Stored, origin: str) -> Body:
    """As load_body, of files that were read; `origin` names them in messages."""
    with torch.device("meta"):
        model = Body(stored.config, with_pooler=stored.has_pooler)
    fill(model, body_state(stored.tensors), origin)
    return model.eval()


def is_detector(files: ModelFiles) -> bool:
    """Whether the weights hold a detection head: whether the encoder was trained to find replaced tokens."""
    return any(name.startswith(_DETECTION_HEAD) for name in part_of(_read(files.weights), files.part))


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

    Takes any file that `read_stored` does; raises CheckpointError where it does not fit.
    """
    stored = read_stored(files)
    kept = [model.head.output_name]
    if model.pooler is not None and not stored.has_pooler:
        kept.insert(0, "pooler")
    fill(model, body_state(stored.tensors), str(files.weights), tuple(f"{name}." for name in kept))
    return kept


def read_details(files: ModelFiles) -> dict[str, Any]:
    """What the folder of a fine-tuned model of ours says of its task; empty for any other model."""
    file = files.config.parent / TASK_FILE
    return read_json(file) if file.is_file() else {}


def load_task_model(files: ModelFiles) -> tuple[TaskModel, dict[str, Any]]:
    """A fine-tuned model in eval mode, head and all, and what its folder says of the task.

    Raises CheckpointError where the folder is no such one, its weights lack the head, or have one not known here.
    """
    details, head = read_task(files)
    return task_model_of(read_stored(files), head, str(files.weights)), details


def read_task(files: ModelFiles) -> tuple[dict[str, Any], TaskHead]:
    """What the folder of a fine-tuned model records of its task, and the head; the weights are not read.

    Raises CheckpointError where the folder is no such one, or records what cannot be.
    """
    contents = _contents(files)
    details, details_file = read_details(files), files.config.parent / TASK_FILE
    if not details:
        details, details_file = stock_details(contents, str(files.config)), files.config
    try:
        head = head_of(details, float(classifier_dropout(contents)))
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{details_file} describes no head that is known here ({shown(str(error))})") from None
    if not _is_readable(details):
        raise CheckpointError(f"{details_file} holds lengths or columns that no fine-tuning has; write the model again")
    return details, head


def _is_readable(details: Mapping[str, Any]) -> bool:
    """Whether lengths are numbers a row can have, and columns, where they are recorded, lists of names."""
    columns = details.get("columns", {"text": [], "pair": []})
    if not isinstance(columns, dict) or not all(isinstance(columns.get(side), list) for side in ("text", "pair")):
        return False
    lengths = [(details[name], least) for name, least in _LEAST_LENGTHS.items() if name in details]
    return all(type(length) is int and length >= least for length, least in lengths) and all(
        isinstance(name, str) for name in (*columns["text"], *columns["pair"])
    )


def task_model_of(stored: Stored, head: TaskHead, origin: str) -> TaskModel:
    """As load_task_model, of files that were read; `origin` names them in messages."""
    if stored.left_aside:
        raise CheckpointError(f"{origin} holds {stored.left_aside[0]}, a head that cannot be computed here")
    if f"{head.output_name}.weight" not in stored.tensors:
        raise CheckpointError(f"{origin} has no {head.output_name}: the head of the task is missing")
    with torch.device("meta"):
        model = TaskModel(stored.config, head)
    fill(model, body_state(stored.tensors), origin)
    return model.eval()


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


def read_config(files: ModelFiles) -> ModelConfig:
    """The shape of a model; CheckpointError where its config.json is not one that can be read."""
    return model_config(_contents(files), str(files.config))
