"""Names and shapes to and from stock transformers ALBERT checkpoints.

Our parameters carry the stock names but for query, key and value, which stand in one matrix here and in three there,
for the sentence-order head, whose pooler is a part of the body there, and for the prefix `albert.`. The decoder of the
MLM head is the token table and has no entry of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.relatives import RELATIVES, Renamed, as_albert, renamed
from electra_albert.model.electra import Discriminator, Generator

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
_COUNTERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # of older files: no weights
_LAYERS = "(attention.(query|key|value|dense|LayerNorm)|ffn|ffn_output|full_layer_layer_norm)"
_OF_BODY = re.compile(
    "embeddings.(word|position|token_type)_embeddings.weight|embeddings.LayerNorm.(weight|bias)|"
    "encoder.embedding_hidden_mapping_in.(weight|bias)|"
    rf"encoder.albert_layer_groups.[0-9]+.albert_layers.[0-9]+.{_LAYERS}.(weight|bias)".replace(".", r"\.")
)
# What a stock file may hold beside embeddings and encoder: the linear layers of each head, and the bias of one.
_HEADS = {
    "pooler": ("pooler",),
    "predictions": ("predictions.dense", "predictions.LayerNorm"),
    "sop_classifier": ("sop_classifier.classifier",),
    "discriminator_predictions": ("discriminator_predictions.dense", "discriminator_predictions.dense_prediction"),
    "classifier": ("classifier",),
    "electra_classifier": ("electra_classifier",),
    "qa_outputs": ("qa_outputs",),
}
_OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # of files of 2019
_TABLE, _DECODER, _DECODER_BIAS = (
    "embeddings.word_embeddings.weight",
    "predictions.decoder.weight",
    "predictions.decoder.bias",
)


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


def to_native(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict as it is, float32, each tensor on its own: what `from_native` reads."""
    return {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in state.items()}


def from_native(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under our names as `from_stock` takes them: of the names that differ, only fused ones may stay."""
    return {_SENTENCE_ORDER.get(name, name): tensor for name, tensor in state.items()}


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


def _names(head: str) -> set[str]:
    names = {f"{layer}.{part}" for layer in _HEADS[head] for part in ("weight", "bias")}
    return names | {"predictions.bias"} if head == "predictions" else names


def normalized(tensors: Mapping[str, Tensor], kind: str, config: ModelConfig, origin: str) -> Renamed:
    """The tensors of a stock file of `kind` under stock ALBERT's names without `albert.`, the tied decoder left out.

    Raises CheckpointError, which calls the file `origin`, for a name that no head and no encoder has, for one spelled
    twice, for half a head, and for a decoder that is not the token table. Where a decoder's own bias differs from the
    head's, it is the one that stock adds.
    """
    if kind == "electra" and config.hidden_act != "gelu" and any("generator_predictions." in name for name in tensors):
        raise CheckpointError(
            f"{origin} holds an MLM head of ELECTRA, which is always computed with gelu, its encoder with "
            f"{config.hidden_act}; two activations in one model cannot be read"
        )
    current, left_aside = renamed(tensors, _current_name, origin), list[str]()
    if kind in RELATIVES:
        current, left_aside = as_albert(current, kind, config, origin)
    decoder = current.pop(_DECODER, None)
    if decoder is not None and not torch.equal(decoder, current.get(_TABLE, decoder)):
        raise CheckpointError(
            f"{origin} holds a decoder that differs from its token table ({_DECODER}); only tied ones can be read"
        )
    bias = current.pop(_DECODER_BIAS, None)
    if bias is not None:
        current["predictions.bias"] = bias
    kept = {name: tensor for name, tensor in current.items() if name not in _COUNTERS}
    _require_known(kept, kind, origin)
    for name, tensor in kept.items():
        if not tensor.is_floating_point():
            kind_found = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(f"{origin}: {name} is {kind_found}, which no trained weight is; get another file")
    return Renamed(kept, left_aside)


def _require_known(tensors: Mapping[str, Tensor], kind: str, origin: str) -> None:
    """CheckpointError for a name that no model known here has, and for a head that is not whole."""
    of_heads = {name: head for head in _HEADS for name in _names(head)}
    unknown = sorted(name for name in tensors if name not in of_heads and not _OF_BODY.fullmatch(name))
    if unknown:
        raise CheckpointError(f"{origin} holds {unknown[0]}, which no {kind} model known here has; name another model")
    for head in {of_heads[name] for name in tensors if name in of_heads}:
        wanted = _names(head) | (_names("pooler") if head == "sop_classifier" else set())
        missing = sorted(wanted - tensors.keys())
        if missing:
            raise CheckpointError(f"{origin} has no {missing[0]}, but other parts of its {head}; the file is not whole")


def _current_name(name: str) -> str:
    name = name.removeprefix("albert.")
    ending = next((old for old in _OLD_ENDINGS if name.endswith(old)), None)
    return name if ending is None else name.removesuffix(ending) + _OLD_ENDINGS[ending]


def from_stock(stock: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a stock file under our names, in float32; CheckpointError where a query lacks its key or value."""
    state: dict[str, Tensor] = {}
    for stock_name, tensor in stock.items():
        name = _our_name(stock_name)
        if _PARTS[0] in name:
            pieces = [stock.get(stock_name.replace(_PARTS[0], part)) for part in _PARTS]
            if any(piece is None or piece.shape != tensor.shape for piece in pieces):
                raise CheckpointError(f"{stock_name} is there but no key and value of its shape; the file is not whole")
            state[name.replace(_PARTS[0], _FUSED)] = torch.cat([p for p in pieces if p is not None]).float()
        elif not any(part in name and stock_name.replace(part, _PARTS[0]) in stock for part in _PARTS):
            state[name] = tensor.float()
    return state


def body_state(stock: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As from_stock, for models without a sentence-order head: the pooler of a stock body is their own."""
    poolers = {name: _SENTENCE_ORDER[name] for name in _SENTENCE_ORDER if ".pooler." in name}
    return {poolers.get(name, name): tensor for name, tensor in from_stock(stock).items()}


def load_state(model: Generator | Discriminator, stock: Mapping[str, Tensor], origin: str) -> None:
    """Fill a generator or discriminator from a stock file's tensors.

    A head of another kind in the file is left aside; CheckpointError where anything the model needs is missing, has
    another shape, or where the body holds tensors the model has no place for. `origin` names the file in messages.
    """
    fill(model, body_state(stock) if model.sentence_order is None else from_stock(stock), origin)


def fill(model: nn.Module, state: Mapping[str, Tensor], origin: str, spared: tuple[str, ...] = ()) -> None:
    """Fill a model from tensors under our names, but for those that begin with a `spared` one. Raises as load_state."""
    places = model.state_dict()
    wanted = {name: tensor for name, tensor in places.items() if not name.startswith(spared)}
    missing = sorted(wanted.keys() - state.keys())
    if missing:
        raise CheckpointError(f"{origin} has no {missing[0]} ({len(missing)} of {len(wanted)} tensors are missing)")
    parts = tuple({f"{name.split('.')[0]}." for name in wanted})  # a head of another kind is left aside, no half of one
    extra = sorted(name for name in state.keys() - places.keys() if name.startswith(parts))
    if extra:
        raise CheckpointError(f"{origin} holds {extra[0]}, which its configuration has no place for")
    for name, tensor in wanted.items():
        if state[name].shape != tensor.shape:
            found, expected = list(state[name].shape), list(tensor.shape)
            raise CheckpointError(f"{name} in {origin} has shape {found}, its configuration says {expected}")
    model.load_state_dict({name: state[name].contiguous() for name in wanted}, assign=True, strict=not spared)
