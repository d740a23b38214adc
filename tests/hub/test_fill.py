"""Weights taken over part by part: old rows bit for bit, new ones as means, and what does not fit is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from electra_albert.contracts import CheckpointError
from electra_albert.hub.fill import TABLE, adopt, resize_vocabulary
from electra_albert.model.electra import Generator
from tests.model.twins import SHAPE, make_body, make_masked_lm

BIAS, ORIGIN = "predictions.bias", "the old model"


def state_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def state() -> dict[str, Tensor]:
    return state_of(make_masked_lm(SHAPE))


@pytest.fixture
def model() -> Generator:
    """Another model of the same shape."""
    return make_masked_lm(SHAPE, seed=8)


def test_resizing_keeps_the_first_rows_and_a_new_one_is_the_mean_of_its_old_subwords(state: dict[str, Tensor]) -> None:
    kept = SHAPE.vocab_size - 3
    resized = resize_vocabulary(state, kept, [[7], [9, 4, 9]])
    for name in (TABLE, BIAS):
        old = state[name]
        assert len(resized[name]) == kept + 2
        assert torch.equal(resized[name][:kept], old[:kept])
        assert torch.equal(resized[name][-2], old[7])
        assert torch.allclose(resized[name][-1], (old[9] + old[4] + old[9]) / 3, rtol=1e-6, atol=1e-7)  # float32 sums


def test_resizing_leaves_all_else_and_the_state_it_was_given(state: dict[str, Tensor]) -> None:
    before = {name: tensor.clone() for name, tensor in state.items()}
    resized = resize_vocabulary(state, 20, [[3]])
    assert resized.keys() == state.keys()
    for name, tensor in before.items():
        assert torch.equal(state[name], tensor), name
        assert name in (TABLE, BIAS) or torch.equal(resized[name], tensor), name


def test_parts_the_state_lacks_are_named_and_stay(model: Generator) -> None:
    before, state = state_of(model), state_of(make_body(SHAPE, with_pooler=False))
    assert adopt(model, state, ORIGIN) == ["predictions", "sentence_order.pooler", "sentence_order.classifier"]
    for name, tensor in model.state_dict().items():
        is_taken = name.startswith(("embeddings.", "encoder."))
        assert torch.equal(tensor, state[name] if is_taken else before[name]), name


def test_a_pooler_without_an_order_head_is_taken_over(state: dict[str, Tensor], model: Generator) -> None:
    # Regression: the hub's ALBERT has a trained pooler and no classifier of the order; both were drawn anew.
    for part in ("weight", "bias"):
        del state[f"sentence_order.classifier.{part}"]
    assert adopt(model, state, ORIGIN) == ["sentence_order.classifier"]
    pooler = "sentence_order.pooler.weight"
    assert torch.equal(model.state_dict()[pooler], state[pooler])


def test_a_body_that_is_not_whole_is_refused(state: dict[str, Tensor], model: Generator) -> None:
    del state[TABLE]
    with pytest.raises(CheckpointError, match=f"{ORIGIN} has no {TABLE}"):
        adopt(model, state, ORIGIN)


def test_another_shape_is_refused_and_nothing_is_copied(model: Generator) -> None:
    before = state_of(model)
    with pytest.raises(CheckpointError, match=r"ffn.* has shape"):
        adopt(model, state_of(make_masked_lm(replace(SHAPE, intermediate_size=41))), ORIGIN)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
