"""A masked language model with a sentence-order head computes what stock AlbertForPreTraining does (law 1)."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.contracts import IGNORED_LABEL
from electra_albert.model.electra import Generator
from electra_albert.model.heads import SentenceOrderHead
from tests.model.twins import (
    SHAPE,
    assert_same_gradients,
    assert_same_outputs,
    gradients,
    make_masked_lm,
    padded_batch,
    pretraining_twin,
)

VARIANTS = {
    "albert": SHAPE,
    "groups=3": replace(SHAPE, num_hidden_groups=3),
    "inner": replace(SHAPE, inner_group_num=2),
    "relu": replace(SHAPE, hidden_act="relu"),
}
BATCH = padded_batch()
INPUTS = (BATCH.input_ids, BATCH.attention_mask, BATCH.token_type_ids)
ORDER = torch.tensor([1, 0, 1])
LABELS = torch.where(BATCH.attention_mask & (BATCH.input_ids % 3 == 0), BATCH.input_ids, IGNORED_LABEL)  # [B, L]


def outputs(model: Generator) -> tuple[Tensor, Tensor]:
    """Token logits [B, L, V] and order logits [B, 2]."""
    assert model.sentence_order is not None
    hidden_states = model(*INPUTS)
    return model.logits(hidden_states), model.sentence_order(hidden_states)


def assert_equals_stock(model: Generator, twin: nn.Module) -> None:
    """AssertionError unless both logits, the sum of both losses and every gradient are the twin's."""
    token_logits, order_logits = outputs(model)
    stock = twin(*INPUTS, labels=LABELS, sentence_order_label=ORDER)
    assert_same_outputs(token_logits, stock.prediction_logits)
    assert_same_outputs(order_logits, stock.sop_logits)
    loss = F.cross_entropy(token_logits.flatten(0, 1), LABELS.flatten()) + F.cross_entropy(order_logits, ORDER)
    assert_same_outputs(loss, stock.loss)
    loss.backward()
    stock.loss.backward()
    assert_same_gradients(gradients(model), gradients(twin))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_losses_and_gradients_equal_stock_pretraining(variant: str, dtype: torch.dtype) -> None:
    model = make_masked_lm(VARIANTS[variant])
    twin = pretraining_twin(model)
    assert_equals_stock(model.to(dtype), twin.to(dtype))


def test_order_is_told_from_the_first_position_alone() -> None:
    head = make_masked_lm(SHAPE).sentence_order
    assert head is not None
    hidden_states = torch.linspace(-1, 1, 3 * 5 * SHAPE.hidden_size).view(3, 5, -1)
    changed = torch.cat([hidden_states[:, :1], hidden_states[:, 1:] + 1], dim=1)
    assert torch.equal(head(hidden_states), head(changed))


# Planted: a head without its tanh, one that reads the last position, and one whose classes have changed places.
class WithoutTanh(SentenceOrderHead):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.classifier(self.pooler(hidden_states[:, 0]))


class AtTheEnd(SentenceOrderHead):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states[:, -1:])


class Reversed(SentenceOrderHead):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states).flip(-1)


@pytest.mark.parametrize("fault", [WithoutTanh, AtTheEnd, Reversed])
def test_comparison_rejects_a_head(fault: type[SentenceOrderHead]) -> None:
    model = make_masked_lm(SHAPE)
    twin = pretraining_twin(model).double()
    planted = make_masked_lm(SHAPE)
    planted.sentence_order = fault(SHAPE)
    planted.load_state_dict(model.state_dict())
    with pytest.raises(AssertionError):
        assert_equals_stock(planted.double(), twin)
