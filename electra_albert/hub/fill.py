"""Tensors put into a model, all or part by part. Dimensions: V vocab, E embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.names import TABLE, for_order_head

ROWS_BY_TOKEN = (TABLE, "predictions.bias")  # tensors with a row for each token of the vocabulary
_IN_TWO = "sentence_order"
# Not in the shapes of weights.
_UNSEEN = ("num_hidden_layers", "num_attention_heads", "hidden_act", "layer_norm_eps", "attention", "attention_options")


def fill(
    model: nn.Module, state: Mapping[str, Tensor], origin: str, spared: tuple[str, ...] = (), *, in_place: bool = False
) -> None:
    """Fill a model from tensors under our names, except names that begin with a `spared` one.

    The tensors become the model's own, or are copied `in_place`. A head of another kind in `state` is left out. Raises
    CheckpointError, which calls the source `origin`, where a part lacks something, has more or has another shape.
    """
    if getattr(model, _IN_TWO, None) is not None:
        state = for_order_head(state)
    own = model.state_dict()
    wanted = {name: tensor for name, tensor in own.items() if not name.startswith(spared)}
    parts = tuple({f"{name.split('.')[0]}." for name in wanted})
    if missing := sorted(wanted.keys() - state.keys()):
        raise CheckpointError(f"{origin} has no {missing[0]} ({len(missing)} of {len(wanted)} tensors are missing)")
    if extra := sorted(name for name in state.keys() - own.keys() if name.startswith(parts)):
        raise CheckpointError(f"{origin} holds {extra[0]}, which its configuration has no place for")
    for name, tensor in wanted.items():
        if state[name].shape != tensor.shape:
            sizes = f"has shape {list(state[name].shape)}, its configuration or an option says {list(tensor.shape)}"
            raise CheckpointError(f"{name} in {origin} {sizes}")
    tensors = {name: state[name].contiguous() for name in wanted}
    model.load_state_dict(tensors, assign=not in_place, strict=not spared)


def adopt(model: nn.Module, state: Mapping[str, Tensor], origin: str) -> list[str]:
    """Copy each part of the model that `state` holds whole; returns the names of those that stay as they are.

    A part is a module directly below the model, or either layer of a sentence-order head. Embeddings and encoder must
    be there. Raises as `fill`.
    """
    if getattr(model, _IN_TWO, None) is not None:
        state = for_order_head(state)
    own = model.state_dict()
    paths = (name.split(".") for name in own if name not in state)
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
            difference = f"{origin} has {name} {found}, this run's model {wanted}"
            raise CheckpointError(f"{difference}, so that its weights would compute something else; {way_out}")


def same_tables(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two states hold equal embeddings, so that generator and discriminator can share them."""
    names = {name for name in {**one, **other} if name.startswith("embeddings.")}
    return all(name in one and name in other and torch.equal(one[name], other[name]) for name in names)
