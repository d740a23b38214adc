"""Weights of another model taken over part by part, where the new one may have more parts and more pieces.

Dimensions: V vocab, E embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError

TABLE = "embeddings.word_embeddings.weight"
ROWS_BY_PIECE = (TABLE, "predictions.bias")  # what has a row for each piece, under our names and stock ALBERT's
_NEEDED = ("embeddings", "encoder")
_IN_TWO = "sentence_order"
# In the shapes of weights.
_UNSEEN = ("num_hidden_layers", "num_attention_heads", "hidden_act", "layer_norm_eps", "attention", "attention_options")


def resize_vocabulary(state: Mapping[str, Tensor], kept: int, new: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """The state for a vocabulary of the first `kept` pieces and new ones, each the mean of old ones given by their ids.

    A piece that begins as the mean of what it was written as before is read almost as it was. Names in `state` are ours
    or stock ALBERT's without `albert.`.
    """
    resized = dict(state)
    for name in ROWS_BY_PIECE:
        if name in state:
            rows = state[name]
            added = [rows[list(ids)].mean(0, keepdim=True) for ids in new]
            resized[name] = torch.cat([rows[:kept], *added])  # [V] or [V, E]
    return resized


def adopt(model: nn.Module, state: Mapping[str, Tensor], origin: str) -> list[str]:
    """Copy each part of the model that `state` holds whole; returns the names of those that stay as they are.

    A part is a module directly below the model, such as encoder or predictions, and either layer of a sentence-order
    head, since a file may hold the pooler alone. Raises CheckpointError, which calls the
    source `origin`, where embeddings or encoder are missing, or anything it holds of a part does not fit.
    """
    places = model.state_dict()
    parts = list(dict.fromkeys(map(_part, places)))
    new = [part for part in parts if not _holds(state, places, part, origin)]
    taken = {name: place for name, place in places.items() if _part(name) not in new}
    for name, place in taken.items():
        if state[name].shape != place.shape:
            found, wanted = list(state[name].shape), list(place.shape)
            raise CheckpointError(
                f"{name} in {origin} has shape {found}, this run's model {wanted}; leave out the option that says so"
            )
    with torch.no_grad():
        for name, place in taken.items():
            place.copy_(state[name])
    return new


def _part(name: str) -> str:
    names = name.split(".")
    return ".".join(names[: 2 if names[0] == _IN_TWO else 1])


def _holds(state: Mapping[str, Tensor], places: Mapping[str, Tensor], part: str, origin: str) -> bool:
    """Whether all of a part is there; of one that the model needs, no more and no less may be."""
    wanted = {name for name in places if name.startswith(f"{part}.")}
    missing = sorted(wanted - state.keys())
    if part in _NEEDED:
        extra = sorted({name for name in state if name.startswith(f"{part}.")} - wanted)
        if missing or extra:
            told = f"has no {missing[0]}" if missing else f"holds {extra[0]}, which this run's model has no place for"
            raise CheckpointError(f"{origin} {told}")
    return not missing


def require_same_computation(config: ModelConfig, known: Mapping[str, Any], origin: str, way_out: str) -> None:
    """CheckpointError where weights of the `known` settings would fit a model of `config` and compute something else.

    A setting that is not known is not compared, but weights of a time without kinds of attention are of softmax.
    `origin` is what the source is called, `way_out` what to do.
    """
    first = {"attention": ModelConfig.attention, "attention_options": {}} if known else {}
    for name in _UNSEEN:
        found, wanted = known.get(name, first.get(name)), getattr(config, name)
        if found is not None and found != wanted:
            raise CheckpointError(
                f"{origin} has {name} {found}, this run's model {wanted}, so that its weights would compute something "
                f"else; {way_out}"
            )


def same_tables(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two states hold equal embeddings, so that generator and discriminator can share them."""
    names = {name for name in one if name.startswith("embeddings.")}
    mine = {name for name in other if name.startswith("embeddings.")}
    return names == mine and all(torch.equal(one[name], other[name]) for name in names)
