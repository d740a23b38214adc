"""config.json to and from ModelConfig and a task's head; only known keys are read, so none can name code to run."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.names import RELATIVES
from electra_albert.model.attention import make_mixing
from electra_albert.model.encoder import ACTIVATIONS
from electra_albert.model.task_model import ARCHITECTURES, DEFAULT_DROPOUT

_OURS = ("initialization", "attention", "attention_options")  # fields that no stock config.json has
_NAMES = tuple(field.name for field in fields(ModelConfig) if field.name not in _OURS)
NATIVE, _FORMAT = "electra_albert", 1  # model_type and version of folders that only this package loads
_LONGEST_SHOWN = 60
_LARGEST_INTEGER = (1 << 31) - 1  # above it, sizes overflow before they can be compared with the weights
# The one value of settings whose other values mean another computation than ours, or code that is not stock's.
_ALWAYS: dict[str, Any] = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
_ALWAYS |= {"tie_word_embeddings": True, "quantization_config": None, "auto_map": {}, "custom_pipelines": {}}


def stock_config(config: ModelConfig, architecture: str, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """The contents of config.json, with stock keys only. special_ids: pad_token_id, bos_token_id, eos_token_id."""
    return {
        "architectures": [architecture],
        "model_type": "albert",
        "dtype": "float32",
        "tie_word_embeddings": True,
        "classifier_dropout_prob": DEFAULT_DROPOUT,
        **{name: getattr(config, name) for name in _NAMES},
        **special_ids,
    }


def native_config(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of config.json of a model that stock classes do not compute, by the fields of its ModelConfig."""
    return {"model_type": NATIVE, "format": _FORMAT, **shape}


def model_config(contents: Mapping[str, Any], origin: str) -> ModelConfig:
    """The shape a config.json describes; CheckpointError for another kind of model and for impossible values."""
    kind = contents.get("model_type")
    if not isinstance(kind, str) or kind not in (NATIVE, "albert", *RELATIVES):
        raise CheckpointError(f"{origin} describes a model of type {shown(kind)}; albert, electra and bert can be read")
    if kind == NATIVE and contents.get("format") != _FORMAT:
        raise CheckpointError(f"{origin} is of format {shown(contents.get('format'))}, this version reads {_FORMAT}")
    for name, only in _ALWAYS.items():
        if contents.get(name) not in (None, only):
            raise CheckpointError(f"{name}={shown(contents[name])} in {origin} is another model than can be read here")
    values = _values(contents, kind, origin)
    if kind in RELATIVES:
        values |= {"num_hidden_groups": values["num_hidden_layers"], "inner_group_num": 1}
    if kind == "bert":
        values["embedding_size"] = values["hidden_size"]
    try:
        if values["hidden_act"] not in ACTIVATIONS:
            raise ValueError(f"hidden_act={shown(values['hidden_act'])} is none of {', '.join(ACTIVATIONS)}")
        config = ModelConfig(**values)
        make_mixing(config)
    except ValueError as error:
        raise CheckpointError(f"{origin}: {error}") from None
    return config


def _values(contents: Mapping[str, Any], kind: str, origin: str) -> dict[str, Any]:
    """The fields of ModelConfig; where config.json is silent, the defaults of the stock class or our own."""
    from transformers import AutoConfig

    ours = ModelConfig()
    names = (*_NAMES, *_OURS) if kind == NATIVE else _NAMES
    defaults = ours if kind == NATIVE else AutoConfig.for_model(kind)
    values = {name: contents.get(name, getattr(defaults, name, getattr(ours, name))) for name in names}
    for name, value in values.items():
        wanted = type(getattr(ours, name))
        if type(value) is int and abs(value) > _LARGEST_INTEGER:
            raise CheckpointError(f"{name} in {origin} is larger than {_LARGEST_INTEGER}")
        if type(value) is int and wanted is float:
            values[name] = float(value)
        elif type(value) is not wanted:
            raise CheckpointError(f"{name}={shown(value)} in {origin} should be of type {wanted.__name__}")
    if not all(type(value) in (int, float) for value in values.get("attention_options", {}).values()):
        raise CheckpointError(f"attention_options in {origin} should be numbers by name")
    return values


def shown(value: object) -> str:
    """A value from a file as an error line shows it: short, and without line breaks or colours of a terminal."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    return repr(value[:_LONGEST_SHOWN] if isinstance(value, str) else value)


def stock_details(contents: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Kind, labels and style of a fine-tuned stock model's head, in the form of TASK_FILE; else CheckpointError."""
    named = contents.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    kinds = (kind for kind, ours in ARCHITECTURES.items() if architecture.endswith(ours.removeprefix("Albert")))
    if (kind := next(kinds, None)) is None:
        raise CheckpointError(f"{origin} has architecture {shown(architecture)}, no fine-tuned model; fine-tune it")
    problem = contents.get("problem_type")
    if problem not in (None, "regression", "single_label_classification"):
        raise CheckpointError(f"problem_type={shown(problem)} in {origin} is another task than can be read here")
    labels: list[Any] = []
    if kind in ("sequence", "token"):
        names = contents.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
        labels = [names.get(str(number)) for number in range(len(names))] if isinstance(names, dict) else []
        if not labels or not all(isinstance(label, str) for label in labels):
            raise CheckpointError(f"id2label in {origin} does not name the labels 0 to {max(0, len(labels) - 1)}")
    is_regression = kind == "sequence" and (problem == "regression" or (problem is None and len(labels) == 1))
    if is_regression and len(labels) != 1:
        raise CheckpointError(f"{origin} describes a regression of {len(labels)} numbers; only one can be read")
    return {"kind": kind, "style": "albert", "labels": [] if is_regression else labels, "is_regression": is_regression}


def require_named(labels: Sequence[str], origin: str) -> None:
    """Raise CheckpointError, in a message that begins with `origin`, where labels are those transformers fills in for unnamed ones."""
    if labels and list(labels) == [f"LABEL_{number}" for number in range(len(labels))]:
        shortened = ", ".join(labels[:2])
        raise CheckpointError(f"{origin}: its labels have no names ({shortened}, ...); write id2label into config.json")


def classifier_dropout(contents: Mapping[str, Any]) -> Any:
    """Dropout before the linear layer, as in stock: BERT and ELECTRA fall back to the encoder's."""
    is_relative = contents.get("model_type") in RELATIVES
    names = ("classifier_dropout", "hidden_dropout_prob") if is_relative else ("classifier_dropout_prob",)
    return next((contents[name] for name in names if contents.get(name) is not None), DEFAULT_DROPOUT)
