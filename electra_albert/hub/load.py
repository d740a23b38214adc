"""Load models from folders (ours or stock), checkpoints and weights files. V vocab, E embedding."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from electra_albert.config.model import MODERN_FIELDS, ModelConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.files import is_of_kind
from electra_albert.hub import formats, weights
from electra_albert.hub.find import ModelFiles, read_contents, read_weights
from electra_albert.hub.find import locate as locate  # re-exported for callers
from electra_albert.model import growth
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.model.initialization import initialize
from electra_albert.model.task_model import TaskHead, TaskModel

TASK_FILE = "electra_albert.json"  # task details in our fine-tuned folders
# With one row per token of the vocabulary.
_VOCABULARY_TENSORS = (formats.TABLE, "predictions.bias")
KINDS = {
    "generator": Generator,
    "discriminator": Discriminator,
    "task": TaskModel,
    "encoder": EncoderModel,
}
_Module = TypeVar("_Module", bound=nn.Module)
_COLUMNS = {"text": list[str], "pair": list[str]}
_MIN_LENGTHS = {"max_seq_length": 8, "doc_stride": 1, "max_answer_length": 1}
_ORDER_HEAD = "sentence_order"
# Fields that neither the shapes of the weights determine nor model/growth.py changes.
_FIELDS = (
    *("hidden_act", "layer_norm_eps", "block", "attention", "attention_options"),
    *MODERN_FIELDS,
)


class Stored(NamedTuple):
    """Configuration and weights read from the files of a model."""

    files: ModelFiles
    config: ModelConfig
    # float32, by our names; the pooler of a sentence-order head is `pooler.`
    tensors: dict[str, Tensor]
    unsupported_heads: list[str]  # names of heads that no model here has
    has_energies: bool = False  # see RtdHead

    @property
    def source(self) -> str:
        """Path of the weights file, for messages."""
        return str(self.files.weights)

    @property
    def parts(self) -> set[str]:
        """Names of the top-level modules with weights, such as predictions or pooler."""
        return {name.split(".")[0] for name in self.tensors}


def read_stored(files: ModelFiles, num_hidden_layers: int | None = None) -> Stored:
    """Read and check a model's files, at another depth if given.

    Raises CheckpointError for unsupported or damaged files, UsageError as at_depth.
    """
    contents = read_contents(files)
    source = str(files.weights)
    config = at_depth(formats.model_config(contents, str(files.config)), num_hidden_layers)
    tensors = read_weights(files)
    blocks = config.num_hidden_groups * config.inner_group_num
    if blocks > len(tensors):  # building the blocks of a wrong configuration would take minutes
        raise CheckpointError(
            f"{source} has {len(tensors)} tensors, config.json {blocks} blocks; fetch both again"
        )
    model = formats.from_file(tensors, contents["model_type"], config, source)
    return Stored(files, config, *model, contents.get(formats.ENERGIES) is True)


def read_config(files: ModelFiles) -> ModelConfig:
    """Read the configuration of a model.

    Raises CheckpointError for an unsupported or damaged config.json.
    """
    return formats.model_config(read_contents(files), str(files.config))


def at_depth(config: ModelConfig, num_hidden_layers: int | None) -> ModelConfig:
    """The configuration with another number of layers, if given.

    Raises UsageError unless it is a multiple of the groups.
    """
    if num_hidden_layers is None:
        return config
    try:
        return replace(config, num_hidden_layers=operator.index(num_hidden_layers))
    except ValueError as error:
        raise UsageError(f"{error}; choose another number of layers") from None


def build(stored: Stored, model_class: type[_Module], head: TaskHead | None = None) -> _Module:
    """Build a model in eval mode, with the file's pooler and order head.

    Raises CheckpointError if it lacks a part.
    """
    has_order = _ORDER_HEAD in stored.parts
    has_pooler = "pooler" in stored.parts
    options: dict[str, Any] = {"with_sentence_order": has_order}
    if model_class is EncoderModel:
        part = "encoder"
        options = {"with_pooler": has_pooler}
    elif model_class is Generator:
        part = "predictions"
        options["with_pooler"] = has_pooler and not has_order
    elif model_class is Discriminator:
        part = "discriminator_predictions"
        options["with_mlm"] = "predictions" in stored.parts
    else:
        assert head is not None
        part = head.output_name
        options = {"head": head}
        if stored.unsupported_heads:
            raise CheckpointError(
                f"{stored.source} has an unsupported head, {stored.unsupported_heads[0]}; "
                "fine-tune it"
            )
    if part not in stored.parts:
        raise CheckpointError(
            f"{stored.source} has no {part}, which {model_class.__name__} needs; name another model"
        )
    # No memory is allocated before the sizes are checked against the weights.
    with torch.device("meta"):
        model = model_class(stored.config, **options)
    load_weights(model, stored.tensors, stored.source)
    if isinstance(model, Discriminator):
        model.discriminator_predictions.has_energies = stored.has_energies
    return model.eval()


def load_task_model(
    files: ModelFiles, num_hidden_layers: int | None = None
) -> tuple[TaskModel, dict[str, Any]]:
    """Load a fine-tuned model in eval mode and its task details.

    Raises CheckpointError for any other model.
    """
    details, head = read_task(files)
    return build(read_stored(files, num_hidden_layers), TaskModel, head), details


def build_task_model(
    config: ModelConfig, head: TaskHead, files: ModelFiles | None
) -> tuple[TaskModel, list[str]]:
    """Build a task model on the encoder in `files`, if any.

    Returns it and the names of newly initialized parts.
    """
    if files is None:
        with torch.random.fork_rng(devices=()):  # PyTorch's own initialization is overwritten
            model = TaskModel(config, head)
        model.initialize()
        return model, [name for name, _ in model.named_children() if name != "dropout"]
    with torch.device("meta"):
        model = TaskModel(config, head)
    stored = read_stored(files)
    old = stored.parts - {head.output_name}
    new = [name for name in reversed(model.head_parts) if name not in old]
    tensors = growth.grow(stored.tensors, stored.config, config, seed=0)  # if it is longer
    load_weights(model, tensors, stored.source, tuple(f"{name}." for name in new))
    for name in reversed(new):
        initialize(model.get_submodule(name).to_empty(device="cpu"), config)
    return model, new


def read_details(files: ModelFiles) -> dict[str, Any]:
    """Read the task details in our fine-tuned folder; empty for any other model."""
    file = files.config.with_name(TASK_FILE)
    return weights.read_json(file) if file.is_file() else {}


def read_task(files: ModelFiles) -> tuple[dict[str, Any], TaskHead]:
    """Read task details and head of a fine-tuned model.

    Raises CheckpointError for any other model.
    """
    contents = read_contents(files)
    details = read_details(files)
    source = files.config.with_name(TASK_FILE)
    if not details:
        source = files.config
        details = formats.stock_details(contents, str(source))
    try:
        head = head_of(details, float(formats.classifier_dropout(contents)))
        is_known = "columns" not in details or is_of_kind(details["columns"], _COLUMNS)
        for name, least in _MIN_LENGTHS.items():
            length = details.get(name, least)
            is_known = is_known and type(length) is int and length >= least
        if not is_known:
            raise ValueError("its lengths or columns are impossible")
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{source} does not describe a supported task ({formats.short_repr(str(error))}); "
            "export it again"
        ) from None
    return details, head


def head_of(details: Mapping[str, Any], dropout: float) -> TaskHead:
    """The head that TASK_FILE describes.

    Raises KeyError, TypeError or ValueError if it does not describe one.
    """
    kind = details["kind"]
    labels = details["labels"]
    if not is_of_kind(labels, list[str]):
        raise TypeError("labels is not a list of names")
    if len(set(labels)) < len(labels):
        raise ValueError("labels has a name twice")
    num_labels = 1 if details.get("is_regression", False) else len(labels)
    num_outputs = {"choice": 1, "span": 2}.get(kind, num_labels)
    return TaskHead(kind, num_outputs, details["style"], dropout)


def load_weights(
    model: nn.Module,
    state: Mapping[str, Tensor],
    source: str,
    skip: tuple[str, ...] = (),
    *,
    in_place: bool = False,
) -> None:
    """Load tensors by our names into a model; extra heads are ignored.

    Names that begin with `skip` are left out. Tensors become the parameters, or are copied if
    `in_place`. Raises CheckpointError for other names or shapes.
    """
    if getattr(model, _ORDER_HEAD, None) is not None:
        state = formats.for_order_head(state)
    parameters = model.state_dict()
    shapes = {name: parameters[name].shape for name in parameters if not name.startswith(skip)}
    parts = tuple({f"{name.split('.')[0]}." for name in shapes})
    missing = sorted(shapes.keys() - state.keys())
    if missing:
        raise CheckpointError(
            f"{source} has no {missing[0]} ({len(missing)} of {len(shapes)} tensors are missing)"
        )
    extra = sorted(name for name in state.keys() - parameters.keys() if name.startswith(parts))
    if extra:
        raise CheckpointError(
            f"{source} contains {extra[0]}, which does not fit its configuration; fetch both again"
        )
    for name, shape in shapes.items():
        size = state[name].shape
        if size != shape:
            raise CheckpointError(
                f"{name} in {source} has shape {list(size)}, "
                f"configuration or options require {list(shape)}"
            )
    tensors = {name: state[name].contiguous() for name in shapes}
    model.load_state_dict(tensors, assign=not in_place, strict=not skip)


def load_partial(model: nn.Module, state: Mapping[str, Tensor], source: str) -> list[str]:
    """Copy the parts of a model for which `state` has all tensors; returns the other parts' names.

    A part is a child module, or a layer of the sentence-order head; embeddings and encoder are
    required. Raises CheckpointError as load_weights does.
    """
    if getattr(model, _ORDER_HEAD, None) is not None:
        state = formats.for_order_head(state)
    new: list[str] = []
    for name in model.state_dict():
        path = name.split(".")
        part = ".".join(path[: 2 if path[0] == _ORDER_HEAD else 1])
        if name not in state and part not in ("embeddings", "encoder", *new):
            new.append(part)
    load_weights(model, state, source, tuple(f"{part}." for part in new), in_place=True)
    return new


def without_unused_rows(stored: Stored, count: int) -> Stored:
    """The model with the first `count` tokens of its vocabulary."""
    tensors = dict(stored.tensors)
    for name in tensors.keys() & _VOCABULARY_TENSORS:
        if len(tensors[name]) != stored.config.vocab_size:
            return stored  # `build` raises an error with both sizes
        tensors[name] = tensors[name][:count]
    config = replace(stored.config, vocab_size=count)
    return stored._replace(config=config, tensors=tensors)


def resize_vocabulary(
    state: Mapping[str, Tensor], kept: int, new: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """Keep the first `kept` tokens and append new ones.

    Each new one is initialized as the mean of the old tokens with its ids.
    """
    resized = dict(state)
    for name in state.keys() & _VOCABULARY_TENSORS:
        rows = state[name]  # [V] or [V, E]
        means = [rows[list(ids)].mean(0, keepdim=True) for ids in new]
        resized[name] = torch.cat([rows[:kept], *means])
    return resized


def require_same_computation(
    config: ModelConfig, known: ModelConfig, source: str, advice: str
) -> None:
    """Raise CheckpointError if fields of `known` differ from `config`.

    Only those that no weights and no growth change.
    """
    for name in _FIELDS:
        values = getattr(known, name), getattr(config, name)
        if values[0] != values[1]:
            raise CheckpointError(
                f"{source} has {name} {values[0]}, this run's model has {values[1]}; {advice}"
            )


def different_embeddings(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> set[str]:
    """Names of the embeddings in which two states differ.

    Generator and discriminator share equal ones.
    """
    names = {name for name in first.keys() | second.keys() if name.startswith("embeddings.")}
    common = names & first.keys() & second.keys()
    return names - {name for name in common if torch.equal(first[name], second[name])}
