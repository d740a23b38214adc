"""Stock BERT and ELECTRA as what they are: ALBERT with a group for every layer.

BERT's embeddings are as wide as its hidden states and go into the first layer as they are, as do those of an ELECTRA
without `embeddings_project`: here the mapping E to D is the identity. Their names become those of stock ALBERT.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError

RELATIVES = ("bert", "electra")
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)")
_OF_LAYER = {
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.dense",
    "attention.output.LayerNorm": "attention.LayerNorm",
    "intermediate.dense": "ffn",
    "output.dense": "ffn_output",
    "output.LayerNorm": "full_layer_layer_norm",
}
_MAPPING = "encoder.embedding_hidden_mapping_in."
_BEGINNINGS = {
    "embeddings.": "embeddings.",
    "embeddings_project.": _MAPPING,
    "pooler.dense.": "pooler.",
    "generator_predictions.": "predictions.",
    "generator_lm_head.weight": "predictions.decoder.weight",
    "generator_lm_head.bias": "predictions.bias",
    "cls.predictions.transform.": "predictions.",
    "cls.predictions.": "predictions.",
}
# Layers of heads that no head here computes: BERT's next sentence, ELECTRA's own for sentences.
_OF_THEIR_OWN = ("cls.seq_relationship", "classifier.dense", "classifier.out_proj", "sequence_summary")


class Renamed(NamedTuple):
    """The tensors of a relative under stock ALBERT's names."""

    tensors: dict[str, Tensor]
    left_aside: list[str]  # layers of heads that have no counterpart


def renamed(tensors: Mapping[str, Tensor], rename: Callable[[str], str], origin: str) -> dict[str, Tensor]:
    """The tensors under new names; CheckpointError, which calls the file `origin`, where two would have the same."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new_name = rename(name)
        if new_name in found:
            raise CheckpointError(f"{origin} holds {new_name} twice, under two names ({name}); name another model")
        found[new_name] = tensor
    return found


def as_albert(tensors: Mapping[str, Tensor], kind: str, config: ModelConfig, origin: str) -> Renamed:
    """The tensors of a stock BERT or ELECTRA file, whose config.json names `kind`, under the names of stock ALBERT.

    A name that is no BERT's or ELECTRA's stays as it is, and is for the reader to refuse. Raises CheckpointError for
    one that stands there twice, and for a mapping that stock does not apply.
    """
    found = renamed(tensors, lambda name: _new_name(name.removeprefix(f"{kind}.")), origin)
    left_aside = [layer for layer in _OF_THEIR_OWN if any(name.startswith(f"{layer}.") for name in found)]
    found = {name: t for name, t in found.items() if not name.startswith(tuple(f"{layer}." for layer in left_aside))}
    if config.embedding_size == config.hidden_size:
        if f"{_MAPPING}weight" in found or f"{_MAPPING}bias" in found:
            raise CheckpointError(
                f"{origin} holds a mapping of embeddings that are as wide as the hidden states already, which stock "
                "does not apply; name another model"
            )
        found[f"{_MAPPING}weight"] = torch.eye(config.hidden_size)
        found[f"{_MAPPING}bias"] = torch.zeros(config.hidden_size)
    return Renamed(found, left_aside)


def _new_name(name: str) -> str:
    layer = _LAYER.fullmatch(name)
    if layer and layer[2] in _OF_LAYER:
        return f"encoder.albert_layer_groups.{layer[1]}.albert_layers.0.{_OF_LAYER[layer[2]]}.{layer[3]}"
    beginning = next((old for old in _BEGINNINGS if name.startswith(old)), None)
    return name if beginning is None else _BEGINNINGS[beginning] + name.removeprefix(beginning)
