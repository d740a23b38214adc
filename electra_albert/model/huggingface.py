"""Names and shapes to and from stock transformers ALBERT checkpoints.

Our parameters carry the stock names but for query, key and value, which stand in one matrix here and in three there,
for the sentence-order head, whose pooler is a part of the body there, and for the prefix `albert.`. The decoder of the
MLM head is the token table and has no entry of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError

_FUSED = "attention.qkv."
_PARTS = ("attention.query.", "attention.key.", "attention.value.")
_BODY = ("embeddings.", "encoder.")
# The sentence-order head: our names to stock ones without `albert.`, and back.
_SENTENCE_ORDER = {
    "sentence_order.pooler.weight": "pooler.weight",
    "sentence_order.pooler.bias": "pooler.bias",
    "sentence_order.classifier.weight": "sop_classifier.classifier.weight",
    "sentence_order.classifier.bias": "sop_classifier.classifier.bias",
}
_OURS = {stock: ours for ours, stock in _SENTENCE_ORDER.items()}
# Entries of stock files that no model of ours has a place for: position counters and the decoder, which is tied.
_UNUSED = ("embeddings.position_ids", "embeddings.token_type_ids", "predictions.decoder.")
_CONFIG_NAMES = (
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
_LARGEST_INTEGER = (1 << 31) - 1  # above it, sizes overflow before they can be compared with the weights
# What transformers fills in where config.json is silent and its default differs from ours.
_STOCK_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
}


def to_stock(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict under stock names, float32, each tensor on its own.

    A generator's names are those of AlbertForMaskedLM, with a sentence-order head those of AlbertForPreTraining; the
    detection head of a discriminator keeps the names it has in stock ELECTRA.
    """
    stock = {}
    for name, tensor in state.items():
        stock_name = _stock_name(name)
        tensor = tensor.detach().to("cpu", torch.float32)
        if _FUSED in name:
            for part, piece in zip(_PARTS, tensor.chunk(3), strict=True):
                stock[stock_name.replace(_FUSED, part)] = piece.clone()
        else:
            stock[stock_name] = tensor.clone()
    return stock


def _stock_name(name: str) -> str:
    name = _SENTENCE_ORDER.get(name, name)
    return f"albert.{name}" if name.startswith((*_BODY, "pooler.")) else name


def _our_name(stock_name: str) -> str:
    """The name here; `albert.` may be missing in the stock one, as in AlbertModel's own files."""
    name = stock_name.removeprefix("albert.")
    return _OURS.get(name, name)


def has_sentence_order(stock: Mapping[str, Tensor]) -> bool:
    """Whether a stock file holds a sentence-order head whole; a pooler alone, as in AlbertModel's files, is none."""
    return _SENTENCE_ORDER.keys() <= {_our_name(name) for name in stock}


def from_stock(stock: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a stock file under our names, in float32; CheckpointError where a query lacks its key or value."""
    state: dict[str, Tensor] = {}
    for stock_name, tensor in stock.items():
        name = _our_name(stock_name)
        if name.startswith(_UNUSED):
            continue
        if _PARTS[0] in name:
            pieces = [stock.get(stock_name.replace(_PARTS[0], part)) for part in _PARTS]
            if any(piece is None for piece in pieces):
                raise CheckpointError(f"{stock_name} is there but not its key and value; the file is not whole")
            state[name.replace(_PARTS[0], _FUSED)] = torch.cat([p for p in pieces if p is not None]).float()
        elif not any(part in name for part in _PARTS):
            state[name] = tensor.float()
    return state


def task_state(stock: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As from_stock, for a task's model: the pooler of a stock body is its own, not the sentence-order head's."""
    poolers = {name: _SENTENCE_ORDER[name] for name in _SENTENCE_ORDER if ".pooler." in name}
    return {poolers.get(name, name): tensor for name, tensor in from_stock(stock).items()}


def load_state(model: nn.Module, stock: Mapping[str, Tensor], origin: str) -> None:
    """Fill a generator or discriminator from a stock file's tensors.

    A head of another kind in the file is left aside; CheckpointError where anything the model needs is missing, has
    another shape, or where the body holds tensors the model has no place for. `origin` names the file in messages.
    """
    fill(model, from_stock(stock), origin)


def fill(model: nn.Module, state: Mapping[str, Tensor], origin: str, spared: tuple[str, ...] = ()) -> None:
    """Fill a model from tensors under our names, but for those that begin with a `spared` one. Raises as load_state."""
    places = model.state_dict()
    wanted = {name: tensor for name, tensor in places.items() if not name.startswith(spared)}
    missing = sorted(wanted.keys() - state.keys())
    if missing:
        raise CheckpointError(f"{origin} has no {missing[0]} ({len(missing)} of {len(wanted)} tensors are missing)")
    extra = sorted(name for name in state.keys() - places.keys() if name.startswith(_BODY))
    if extra:
        raise CheckpointError(f"{origin} holds {extra[0]}, which its configuration has no place for")
    for name, tensor in wanted.items():
        if state[name].shape != tensor.shape:
            found, expected = list(state[name].shape), list(tensor.shape)
            raise CheckpointError(f"{name} in {origin} has shape {found}, its configuration says {expected}")
    model.load_state_dict({name: state[name].contiguous() for name in wanted}, assign=True, strict=not spared)


def stock_config(config: ModelConfig, architecture: str, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """The contents of config.json, with stock keys only. special_ids: pad_token_id, bos_token_id, eos_token_id."""
    return {
        "architectures": [architecture],
        "model_type": "albert",
        "dtype": "float32",
        "tie_word_embeddings": True,
        "classifier_dropout_prob": 0.1,
        **{name: getattr(config, name) for name in _CONFIG_NAMES},
        **special_ids,
    }


def model_config(contents: Mapping[str, Any], origin: str) -> ModelConfig:
    """The shape a config.json describes; CheckpointError where it is no ALBERT or holds values that cannot be.

    Only the keys of the shape are read, so nothing in the file can name code to run.
    """
    kind = contents.get("model_type")
    if kind != "albert":
        raise CheckpointError(f"{origin} describes a model of type {kind!r}; only albert can be read")
    values: dict[str, Any] = {}
    for name in _CONFIG_NAMES:
        value = contents.get(name, _STOCK_DEFAULTS.get(name, getattr(ModelConfig, name)))
        wanted = type(getattr(ModelConfig, name))
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > _LARGEST_INTEGER:
                raise CheckpointError(f"{name} in {origin} is larger than {_LARGEST_INTEGER}")
            value = float(value) if wanted is float else value
        if type(value) is not wanted:
            raise CheckpointError(f"{name}={value!r} in {origin} should be of type {wanted.__name__}")
        values[name] = value
    if values["hidden_act"] not in ("gelu_new", "gelu", "relu"):
        raise CheckpointError(f"hidden_act={values['hidden_act']!r} in {origin} is not one of gelu_new, gelu, relu")
    try:
        return ModelConfig(**values)
    except ValueError as error:
        raise CheckpointError(f"{origin}: {error}") from None
