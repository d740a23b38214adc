"""A stock config.json: what we write, and what we read of ALBERT's, BERT's and ELECTRA's; and one of our own format.

Only known keys are looked at, so nothing in the file can name code to run; a file that means to is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.relatives import RELATIVES
from electra_albert.model.attention import make_mixing
from electra_albert.model.encoder import ACTIVATIONS
from electra_albert.model.task_model import DEFAULT_DROPOUT

_NAMES = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_hidden_groups",
    "inner_group_num",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
)
NATIVE, _FORMAT = "electra_albert", 1  # model_type and version of folders that only this package loads
_NATIVE_NAMES = (*_NAMES, "initialization", "attention")
_LONGEST_SHOWN = 60
_LARGEST_INTEGER = (1 << 31) - 1  # above it, sizes overflow before they can be compared with the weights
_OF_RELATIVES: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
# What transformers fills in where config.json is silent and its default differs from ours.
_STOCK_DEFAULTS: dict[str, dict[str, Any]] = {
    "albert": {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
    "electra": _OF_RELATIVES,
    "bert": {**_OF_RELATIVES, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
# Keys that name code or kernels to fetch and run.
_CODE = ("auto_map", "custom_pipelines")
_KERNELS = ("_attn_implementation", "attn_implementation", "_attn_implementation_internal", "_experts_implementation")
# What an encoder of ours always has: a file that says otherwise means another model.
_ALWAYS: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "tie_word_embeddings": (True, None),
    "quantization_config": (None,),
}


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


def native_config(config: ModelConfig, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """The contents of config.json of a model that stock classes do not compute: every field of its shape."""
    return {"model_type": NATIVE, "format": _FORMAT, **asdict(config), **special_ids}


def model_config(contents: Mapping[str, Any], origin: str) -> ModelConfig:
    """The shape a config.json describes; BERT and ELECTRA have a group for every layer.

    Raises CheckpointError, which calls the file `origin`, where it is none of the three, or holds what cannot be.
    """
    kind = contents.get("model_type")
    if kind != NATIVE and (not isinstance(kind, str) or kind not in _STOCK_DEFAULTS):
        raise CheckpointError(f"{origin} describes a model of type {shown(kind)}; albert, electra and bert can be read")
    if kind == NATIVE and contents.get("format") != _FORMAT:
        raise CheckpointError(f"{origin} is of format {shown(contents.get('format'))}, this version reads {_FORMAT}")
    _refuse_code(contents, origin)
    for name, allowed in _ALWAYS.items():
        if contents.get(name) not in allowed:
            raise CheckpointError(f"{name}={shown(contents[name])} in {origin} is another model than can be read here")
    names = _NATIVE_NAMES if kind == NATIVE else _NAMES
    values = {name: _value(contents, name, kind, origin) for name in names}
    if kind == NATIVE:
        values["attention_options"] = _numbers(contents.get("attention_options", {}), origin)
    if kind in RELATIVES:
        values |= {"num_hidden_groups": values["num_hidden_layers"], "inner_group_num": 1}
    if kind == "bert":
        values["embedding_size"] = values["hidden_size"]
    if values["hidden_act"] not in ACTIVATIONS:
        raise CheckpointError(
            f"hidden_act={shown(values['hidden_act'])} in {origin} is not one of {', '.join(ACTIVATIONS)}"
        )
    try:
        config = ModelConfig(**values)
        make_mixing(config)
        return config
    except ValueError as error:
        raise CheckpointError(f"{origin}: {error}") from None


def shown(value: object) -> str:
    """A value out of a file as an error line shows it: short, and without line breaks or colours of a terminal."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    return repr(value[:_LONGEST_SHOWN] if isinstance(value, str) else value)


def _refuse_code(contents: Mapping[str, Any], origin: str) -> None:
    for name in _CODE:
        if contents.get(name):
            raise CheckpointError(f"{origin} names code to run ({name}); such a model is refused")
    for name in _KERNELS:
        if "/" in str(contents.get(name) or ""):
            raise CheckpointError(f"{origin} names kernels to fetch and run ({name}); such a model is refused")


def _numbers(options: object, origin: str) -> dict[str, int | float]:
    if isinstance(options, dict) and all(type(value) in (int, float) for value in options.values()):
        return options
    raise CheckpointError(f"attention_options in {origin} should be numbers by name")


def _value(contents: Mapping[str, Any], name: str, kind: str, origin: str) -> Any:
    default = getattr(ModelConfig, name)
    value = contents.get(name, _STOCK_DEFAULTS.get(kind, {}).get(name, default))
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _LARGEST_INTEGER:
            raise CheckpointError(f"{name} in {origin} is larger than {_LARGEST_INTEGER}")
        value = float(value) if type(default) is float else value
    if type(value) is not type(default):
        raise CheckpointError(f"{name}={shown(value)} in {origin} should be of type {type(default).__name__}")
    return value
