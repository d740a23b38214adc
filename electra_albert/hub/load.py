"""From the files of a model to the model: of ours or stock, checkpoints, bare weights. V vocab, E embedding."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub import formats
from electra_albert.hub.find import ModelFiles, read_contents, read_weights
from electra_albert.hub.find import locate as locate  # files are located, then loaded: both names are found here
from electra_albert.hub.weights import read_json
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.model.task_model import TaskHead, TaskModel

TASK_FILE = "electra_albert.json"  # the task of a fine-tuned folder of ours
ROWS_BY_TOKEN = (formats.TABLE, "predictions.bias")  # tensors with a row for each token of the vocabulary
KINDS = {"generator": Generator, "discriminator": Discriminator, "task": TaskModel, "encoder": EncoderModel}
_Module = TypeVar("_Module", bound=nn.Module)
_LEAST_LENGTHS = {"max_seq_length": 8, "doc_stride": 1, "max_answer_length": 1}
_IN_TWO = "sentence_order"  # the head whose layers are taken over one by one
# Not in the shapes of weights.
_UNSEEN = ("num_hidden_layers", "num_attention_heads", "hidden_act", "layer_norm_eps", "attention", "attention_options")


class Stored(NamedTuple):
    """The contents of a model's files."""

    origin: str  # the file of the weights, as messages name it
    config: ModelConfig
    tensors: dict[str, Tensor]  # float32, under our names, except that a sentence-order head's pooler is `pooler.`
    left_aside: list[str]  # names of heads that nothing here computes

    @property
    def parts(self) -> set[str]:
        """The modules that there are weights of, as predictions or pooler."""
        return {name.split(".")[0] for name in self.tensors}


def read_stored(files: ModelFiles) -> Stored:
    """Read and check a model's files. Raises CheckpointError where they are no model that can be read, or damaged."""
    contents, origin = read_contents(files), str(files.weights)
    config, tensors = formats.model_config(contents, str(files.config)), read_weights(files)
    blocks = config.num_hidden_groups * config.inner_group_num
    if blocks > len(tensors):  # a false configuration must not cost minutes
        raise CheckpointError(f"{origin} holds {len(tensors)} tensors, its configuration {blocks} blocks")
    return Stored(origin, config, *formats.from_file(tensors, contents["model_type"], config, origin))


def read_config(files: ModelFiles) -> ModelConfig:
    """The shape of a model; CheckpointError where its config.json is not one that can be read."""
    return formats.model_config(read_contents(files), str(files.config))


def build(stored: Stored, model_class: type[_Module], head: TaskHead | None = None) -> _Module:
    """A model in eval mode, with the pooler and order head of the file; CheckpointError where its own head lacks."""
    has_order, has_pooler = _IN_TWO in stored.parts, "pooler" in stored.parts
    kinds: dict[type[nn.Module], tuple[str, dict[str, Any]]] = {  # the part that must be there, and options
        EncoderModel: ("encoder", {"with_pooler": has_pooler}),
        Generator: ("predictions", {"with_sentence_order": has_order, "with_pooler": has_pooler and not has_order}),
        Discriminator: ("discriminator_predictions", {"with_sentence_order": has_order}),
        TaskModel: (head.output_name if head else "", {"head": head}),
    }
    part, options = kinds[model_class]
    if head is not None and stored.left_aside:
        raise CheckpointError(f"{stored.origin} holds {stored.left_aside[0]}, a head that cannot be computed here")
    if part not in stored.parts:
        raise CheckpointError(f"{stored.origin} has no {part}, which a {model_class.__name__} needs; name another")
    with torch.device("meta"):  # sizes come from a file: nothing is allocated before the weights match them
        model = model_class(stored.config, **options)
    fill(model, stored.tensors, stored.origin)
    return model.eval()


def load_task_model(files: ModelFiles) -> tuple[TaskModel, dict[str, Any]]:
    """A fine-tuned model in eval mode and what its folder records of the task; CheckpointError where it is none."""
    details, head = read_task(files)
    return build(read_stored(files), TaskModel, head), details


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
    if model.pooler is not None and "pooler" not in stored.parts:
        new.insert(0, "pooler")
    fill(model, stored.tensors, stored.origin, tuple(f"{name}." for name in new))
    for name in new:
        model.get_submodule(name).to_empty(device="cpu")
    model.initialize_head(with_pooler="pooler" in new)
    return model, new


def read_details(files: ModelFiles) -> dict[str, Any]:
    """What the folder of a fine-tuned model of ours records of its task; empty for any other model."""
    file = files.config.with_name(TASK_FILE)
    return read_json(file) if file.is_file() else {}


def read_task(files: ModelFiles) -> tuple[dict[str, Any], TaskHead]:
    """What the folder of a fine-tuned model records of its task, and the head; CheckpointError where it is none."""
    contents, details, origin = read_contents(files), read_details(files), files.config.with_name(TASK_FILE)
    if not details:
        details, origin = formats.stock_details(contents, str(files.config)), files.config
    try:
        head = head_of(details, float(formats.classifier_dropout(contents)))
        sides = [details["columns"][side] for side in ("text", "pair")] if "columns" in details else []
        is_known = all(isinstance(side, list) and all(isinstance(name, str) for name in side) for side in sides)
        lengths = [(details.get(name, least), least) for name, least in _LEAST_LENGTHS.items()]
        if not is_known or not all(type(length) is int and length >= least for length, least in lengths):
            raise ValueError("lengths or columns that no fine-tuning has")
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        reason = formats.shown(str(error))
        raise CheckpointError(f"{origin} describes no task that is known here ({reason}); write it again") from None
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


def fill(
    model: nn.Module, state: Mapping[str, Tensor], origin: str, spared: tuple[str, ...] = (), *, in_place: bool = False
) -> None:
    """Fill a model from tensors under our names, except names that begin with a `spared` one; other heads are left out.

    The tensors become the model's own, or are copied `in_place`. Raises CheckpointError where a part lacks something,
    has more or has another shape.
    """
    if getattr(model, _IN_TWO, None) is not None:
        state = formats.for_order_head(state)
    own = model.state_dict()
    wanted = {name: tensor for name, tensor in own.items() if not name.startswith(spared)}
    parts = tuple({f"{name.split('.')[0]}." for name in wanted})
    if missing := sorted(wanted.keys() - state.keys()):
        raise CheckpointError(f"{origin} has no {missing[0]} ({len(missing)} of {len(wanted)} tensors are missing)")
    if extra := sorted(name for name in state.keys() - own.keys() if name.startswith(parts)):
        raise CheckpointError(f"{origin} holds {extra[0]}, which its configuration has no place for")
    for name, tensor in wanted.items():
        if state[name].shape != tensor.shape:
            found, size = list(state[name].shape), list(tensor.shape)
            raise CheckpointError(f"{name} in {origin} has shape {found}, its configuration or an option {size}")
    tensors = {name: state[name].contiguous() for name in wanted}
    model.load_state_dict(tensors, assign=not in_place, strict=not spared)


def adopt(model: nn.Module, state: Mapping[str, Tensor], origin: str) -> list[str]:
    """Copy each part of the model that `state` holds whole; returns the names of those that stay as they are.

    A part is a module directly below the model, or either layer of a sentence-order head. Embeddings and encoder must
    be there. Raises as `fill`.
    """
    if getattr(model, _IN_TWO, None) is not None:
        state = formats.for_order_head(state)
    paths = (name.split(".") for name in model.state_dict() if name not in state)
    lacking = dict.fromkeys(".".join(path[: 2 if path[0] == _IN_TWO else 1]) for path in paths)
    new = [part for part in lacking if part not in ("embeddings", "encoder")]
    fill(model, state, origin, tuple(f"{part}." for part in new), in_place=True)
    return new


def resize_vocabulary(state: Mapping[str, Tensor], kept: int, new: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """The state for the first `kept` tokens and new ones, each of which begins as the mean of old ones by their ids."""
    tables = {name: state[name] for name in ROWS_BY_TOKEN if name in state}  # each [V] or [V, E]
    return {**state} | {
        name: torch.cat([rows[:kept], *(rows[list(ids)].mean(0, keepdim=True) for ids in new)])
        for name, rows in tables.items()
    }


def require_same_computation(config: ModelConfig, known: Mapping[str, Any], origin: str, way_out: str) -> None:
    """CheckpointError where weights of the `known` settings fit a model of `config` but compute something else."""
    first = {"attention": ModelConfig.attention, "attention_options": {}} if known else {}
    for name in _UNSEEN:
        found, wanted = known.get(name, first.get(name)), getattr(config, name)
        if found is not None and found != wanted:
            raise CheckpointError(f"{origin} has {name} {found}, this run's model has {wanted}; {way_out}")


def same_tables(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two states hold equal embeddings, so that generator and discriminator can share them."""
    names = {name for name in one.keys() | other.keys() if name.startswith("embeddings.")}
    return all(name in one and name in other and torch.equal(one[name], other[name]) for name in names)
