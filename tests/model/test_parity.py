"""Encoder, generator and discriminator compute what stock transformers computes on the same weights (law 1)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import Batch
from electra_albert.keyed_random import Stream, bits, uniform
from electra_albert.model.electra import Generator
from electra_albert.presets import PRESETS
from tests.model.twins import (
    SHAPE,
    assert_same_gradients,
    assert_same_outputs,
    detector_twin,
    gradients,
    load_twin,
    make_pair,
    masked_lm_twin,
    padded_batch,
    stock,
)

VARIANTS = {
    **{f"groups={groups}": replace(SHAPE, num_hidden_groups=groups) for groups in (1, 2, 3, 6)},
    **{f"inner,groups={groups}": replace(SHAPE, num_hidden_groups=groups, inner_group_num=2) for groups in (1, 3)},
    "gelu": replace(SHAPE, hidden_act="gelu"),
    "relu": replace(SHAPE, hidden_act="relu", num_hidden_groups=2),
    "one layer": replace(SHAPE, num_hidden_layers=1),
}
# The wider presets differ from large in numbers only; their weights alone would take a test past its second and memory.
WIDTHS = {
    name: replace(
        PRESETS[name].model, vocab_size=53, max_position_embeddings=17, num_hidden_layers=2, num_hidden_groups=1
    )
    for name in ("tiny", "small", "base", "large")
}


class MaskedLm(nn.Module):
    """Our generator with logits everywhere, called as the stock model is."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.generator.logits(self.generator(input_ids, attention_mask, token_type_ids))


def scored(output: Tensor, mask: Tensor) -> Tensor:
    """A loss that weighs every number of the real tokens differently; padding has none, in any head."""
    place = torch.arange(output[0].numel()).view(output.shape[1:])
    row = torch.arange(len(output)).view(-1, *[1] * (output.ndim - 1))
    weight = uniform(bits(2, Stream.EXAMPLE, row, place)).to(output.dtype) - 0.5
    return (output * weight * mask.view(*mask.shape, *[1] * (output.ndim - 2))).sum()


def assert_generator_equals_stock(config: ModelConfig, batch: Batch, dtype: torch.dtype, **changes: object) -> None:
    """AssertionError unless a generator's logits and gradients are the stock twin's; `changes` go to the twin only."""
    ours = make_pair(config).generator
    twin = masked_lm_twin(ours, **changes).to(dtype)
    ours.to(dtype)
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    logits, stock_logits = MaskedLm(ours)(*inputs), twin(*inputs).logits
    assert_same_outputs(logits, stock_logits)
    for output in (logits, stock_logits):
        scored(output, batch.attention_mask).backward()
    assert_same_gradients(gradients(ours), gradients(twin))


def assert_discriminator_equals_stock(config: ModelConfig, batch: Batch, dtype: torch.dtype) -> None:
    """AssertionError unless a discriminator equals stock AlbertModel under stock ELECTRA's head."""
    ours = make_pair(config).discriminator
    twin = detector_twin(ours).to(dtype)
    ours.to(dtype)
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    detected, stock_detected = ours(*inputs), twin(*inputs)
    assert_same_outputs(detected, stock_detected)
    for output in (detected, stock_detected):
        scored(output, batch.attention_mask).backward()
    assert_same_gradients(gradients(ours), gradients(twin))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_generator_equals_stock_masked_lm(variant: str, dtype: torch.dtype) -> None:
    assert_generator_equals_stock(VARIANTS[variant], padded_batch(), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_discriminator_equals_stock_encoder_and_stock_electra_head(variant: str, dtype: torch.dtype) -> None:
    assert_discriminator_equals_stock(VARIANTS[variant], padded_batch(), dtype)


@pytest.mark.parametrize("preset", WIDTHS)
def test_models_equal_stock_at_a_presets_width(preset: str) -> None:
    assert_generator_equals_stock(WIDTHS[preset], padded_batch(WIDTHS[preset]), torch.float32)


def test_hidden_states_of_the_encoder_equal_stock_albert_model() -> None:
    from transformers import AlbertModel

    ours = make_pair(SHAPE).discriminator
    twin = AlbertModel(stock(SHAPE), add_pooling_layer=False)
    body = nn.ModuleDict({"embeddings": ours.embeddings, "encoder": ours.encoder})
    load_twin(nn.ModuleDict({"albert": twin}), body)
    twin.double()
    ours.double()
    batch = padded_batch()
    hidden_states = ours.encoder(ours.embeddings(batch.input_ids, batch.token_type_ids), batch.attention_mask)
    stock_states = twin(batch.input_ids, batch.attention_mask, batch.token_type_ids).last_hidden_state
    assert_same_outputs(hidden_states, stock_states)


def test_what_stands_in_the_padding_changes_no_real_token() -> None:
    ours = make_pair(SHAPE).discriminator.double()
    batch = padded_batch()
    noisy = torch.where(batch.attention_mask, batch.input_ids, 7)
    plain, other = (ours(ids, batch.attention_mask, batch.token_type_ids) for ids in (batch.input_ids, noisy))
    assert torch.equal(plain[batch.attention_mask], other[batch.attention_mask])


# Planted: the other GELU (a stock port shipped that), a group too few, another epsilon, another mask. Each is the size
# of fault the comparison is for; it must not be lost in its tolerance.
@pytest.mark.parametrize(
    "change", [{"hidden_act": "gelu"}, {"layer_norm_eps": 1e-5}, {"num_hidden_layers": 5}], ids=str
)
def test_comparison_rejects_a_twin_of_another_shape(change: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        assert_generator_equals_stock(SHAPE, padded_batch(), torch.float64, **change)


def test_comparison_rejects_padding_that_is_attended_to() -> None:
    class Blind(Generator):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
            return super().forward(input_ids, torch.ones_like(attention_mask), token_type_ids)

    ours = make_pair(SHAPE).generator
    twin = masked_lm_twin(ours).double()
    planted = Blind(SHAPE, ours.embeddings).eval()
    planted.load_state_dict(ours.state_dict())
    batch = padded_batch()
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    with pytest.raises(AssertionError):
        assert_same_outputs(MaskedLm(planted.double())(*inputs), twin(*inputs).logits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_comparison_of_gradients_rejects_a_detached_branch(dtype: torch.dtype) -> None:
    # Planted: one matrix gets nine tenths of its gradient, as when one of many passes is detached.
    ours = make_pair(SHAPE).discriminator.to(dtype)
    batch = padded_batch()
    scored(ours(batch.input_ids, batch.attention_mask, batch.token_type_ids), batch.attention_mask).backward()
    right = gradients(ours)
    name = "encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    with pytest.raises(AssertionError, match="ffn"):
        assert_same_gradients(right | {name: 0.9 * right[name]}, right)
