"""Parameter names in files of stock ALBERT, BERT and ELECTRA, and their counterparts here.

Ours are stock ALBERT's without `albert.`, except that query, key and value form one matrix and that a sentence-order
head owns its pooler. BERT and ELECTRA are ALBERT with a group for every layer; where their embeddings are as wide as
the hidden states, the mapping E to D is the identity. The MLM decoder is the token table and has no entry of its own.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError

RELATIVES = ("bert", "electra")
TABLE = "embeddings.word_embeddings.weight"
_FUSED = "attention.qkv."
_PARTS = ("attention.query.", "attention.key.", "attention.value.")
_MAPPING = "encoder.embedding_hidden_mapping_in."
_POOLER, _ORDER_POOLER = "pooler.", "sentence_order.pooler."
_ORDER, _STOCK_ORDER = "sentence_order.classifier.", "sop_classifier.classifier."
_DECODER, _DECODER_BIAS = "predictions.decoder.weight", "predictions.decoder.bias"
_COUNTERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # in older files; not weights
# Names of BERT, ELECTRA and files of 2019, and those of stock ALBERT without `albert.`: replaced in this order.
_TO_ALBERT = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
    (r"^encoder\.layer\.(\d+)\.", r"encoder.albert_layer_groups.\1.albert_layers.0."),
    (r"\.attention\.(self|output)\.", ".attention."),
    (r"\.intermediate\.dense\.", ".ffn."),
    (r"\.output\.dense\.", ".ffn_output."),
    (r"\.output\.LayerNorm\.", ".full_layer_layer_norm."),
    (r"^embeddings_project\.", _MAPPING),
    (r"^pooler\.dense\.", _POOLER),
    (r"^generator_lm_head\.weight$", _DECODER),
    (r"^generator_lm_head\.bias$", "predictions.bias"),
    (r"^(generator_predictions|cls\.predictions\.transform|cls\.predictions)\.", "predictions."),
)
# Heads without a counterpart here: BERT's next sentence, ELECTRA's for sentences and choices.
_LEFT_OUT = ("cls.seq_relationship", "classifier.dense", "classifier.out_proj", "sequence_summary")
_KNOWN = (
    *("embeddings.", "encoder.", _POOLER, "predictions.", _STOCK_ORDER),
    *("discriminator_predictions.", "classifier.", "electra_classifier.", "qa_outputs."),
)


def to_stock(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict under stock names, ALBERT's (a detection head's: ELECTRA's), float32, in storage of its own."""
    stock = {}
    for name, tensor in to_native(state).items():
        stock_name = name.replace(_ORDER_POOLER, _POOLER).replace(_ORDER, _STOCK_ORDER)
        if stock_name.startswith(("embeddings.", "encoder.", _POOLER)):
            stock_name = f"albert.{stock_name}"
        if _FUSED in name:
            for part, share in zip(_PARTS, tensor.chunk(3), strict=True):
                stock[stock_name.replace(_FUSED, part)] = share.clone()
        else:
            stock[stock_name] = tensor
    return stock


def to_native(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict, float32, each tensor in storage of its own."""
    return {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in state.items()}


def from_native(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of to_native, except that every pooler is `pooler.`, as from_stock names it."""
    return {name.replace(_ORDER_POOLER, _POOLER): tensor for name, tensor in state.items()}


def from_stock(
    tensors: Mapping[str, Tensor], kind: str, config: ModelConfig, origin: str
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of a stock file of a `kind` of model under our names, and the heads that have no counterpart here.

    Every pooler is `pooler.`. Raises CheckpointError for anything else that no model here computes.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new_name = name.removeprefix(f"{kind}.")
        for pattern, replacement in _TO_ALBERT:
            new_name = re.sub(pattern, replacement, new_name)
        if new_name in found:
            raise CheckpointError(f"{origin} holds {new_name} twice, under two names ({name}); name another model")
        found[new_name] = tensor
    left_aside = [head for head in _LEFT_OUT if any(name.startswith(f"{head}.") for name in found)]
    omitted = (*_COUNTERS, *(f"{head}." for head in left_aside))
    found = {name: tensor for name, tensor in found.items() if not name.startswith(omitted)}
    if kind == "electra" and config.hidden_act != "gelu" and any(name.startswith("predictions.") for name in found):
        raise CheckpointError(f"{origin} holds ELECTRA's MLM head, which has gelu, but names {config.hidden_act}")
    if kind in RELATIVES and config.embedding_size == config.hidden_size:
        if any(name.startswith(_MAPPING) for name in found):
            raise CheckpointError(f"{origin} holds a mapping of embeddings that stock does not apply; get another file")
        if config.hidden_size**2 < sum(tensor.numel() for tensor in found.values()):  # or config.json is wrong
            found[f"{_MAPPING}weight"] = torch.eye(config.hidden_size)
            found[f"{_MAPPING}bias"] = torch.zeros(config.hidden_size)
    decoder, bias = found.pop(_DECODER, None), found.pop(_DECODER_BIAS, None)
    if decoder is not None and not torch.equal(decoder, found.get(TABLE, decoder)):
        raise CheckpointError(f"{origin} holds {_DECODER}, which differs from its token table; only tied ones are read")
    if bias is not None:  # goes before the head's own
        found["predictions.bias"] = bias
    for name, tensor in found.items():
        if not name.startswith(_KNOWN) or _FUSED in name:
            raise CheckpointError(f"{origin} holds {name}, which no {kind} model known here has; name another model")
        if not tensor.is_floating_point():
            raise CheckpointError(f"{origin}: {name} is {tensor.dtype}, which no trained weight is; get another file")
    return _fused(found, origin), left_aside


def for_order_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the pooler as part of a sentence-order head."""
    return {re.sub(r"^pooler\.", _ORDER_POOLER, name): tensor for name, tensor in state.items()}


def _fused(tensors: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """Query, key and value of each block in one matrix, and the order head's linear layer under our name."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        part = next((part for part in _PARTS if part in name), None)
        if part is None:
            found[name.replace(_STOCK_ORDER, _ORDER)] = tensor
            continue
        parts = [tensors.get(name.replace(part, other)) for other in _PARTS]
        whole = [each for each in parts if each is not None and each.ndim and each.shape == tensor.shape]
        if len(whole) < len(_PARTS):
            raise CheckpointError(f"{origin} has no query, key and value of one shape for {name}; it is not whole")
        if part == _PARTS[0]:
            found[name.replace(part, _FUSED)] = torch.cat(whole)
    return found
