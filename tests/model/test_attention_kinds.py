"""Local attention: its limit cases, its reference and invariance to padding; both attention kinds:
precision and dropout.
"""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from electra_albert.config.model import ModelConfig
from electra_albert.model.attention import ATTENTION, make_mixing
from tests.refusals import rows

N, H = 3, 8
SHAPE = ModelConfig(hidden_size=N * H, num_attention_heads=N, max_position_embeddings=64)
RAGGED = torch.arange(19) < torch.tensor([[19], [11]])  # a mask


def mixing_of(kind: str, dropout: float = 0.0, **options: float) -> nn.Module:
    if kind == "local":
        options = {"window": 3, "global_tokens": 2, **options}
    config = replace(SHAPE, attention=kind, attention_options=options)
    return make_mixing(replace(config, attention_probs_dropout_prob=dropout))


def drawn(batch: int, length: int) -> list[Tensor]:
    """q, k and v [B, N, L, H], float64."""
    generator = torch.Generator().manual_seed(7)
    shape = (3, batch, N, length, H)
    return [*(2 * torch.randn(shape, generator=generator, dtype=torch.float64))]


def full(batch: int, length: int) -> Tensor:
    return torch.ones(batch, length, dtype=torch.bool)


@pytest.mark.parametrize("global_tokens", [0, 2])
def test_padding_changes_nothing_and_gets_no_gradient(global_tokens: int) -> None:
    """A sequence gives the same output alone and in a longer batch, whatever the padding holds."""
    mixing = mixing_of("local", global_tokens=global_tokens)
    lengths = (19, 12, 6, 2)
    mask = torch.arange(19) < torch.tensor(lengths)[:, None]
    padding = ~mask[:, None, :, None]
    inputs = [part.masked_fill(padding, 30.0).requires_grad_() for part in drawn(4, 19)]
    mixed = mixing(*inputs, mask)
    for number, length in enumerate(lengths):
        alone = mixing(*(part[number : number + 1, :, :length] for part in inputs), full(1, length))
        torch.testing.assert_close(mixed[number : number + 1, :, :length], alone, rtol=0, atol=1e-9)
    weight = torch.randn(mixed.shape, dtype=torch.float64).masked_fill(padding, 0.0)
    for gradient in torch.autograd.grad((mixed * weight).sum(), inputs):
        assert gradient.isfinite().all()
        assert not gradient.masked_select(padding).any()


@pytest.mark.parametrize(("window", "first"), [(1, 0), (3, 2), (1, 30), (7, 0), (7, 2)])
def test_local_attention_equals_masked_softmax_attention(window: int, first: int) -> None:
    inputs = drawn(2, 19)
    position = torch.arange(19)
    distance = (position[:, None] - position).abs()
    is_global = position < first
    visible = (distance <= window) | is_global | is_global[:, None]
    bias = (visible & RAGGED[:, None, None, :]) | (distance == 0)
    expected = F.scaled_dot_product_attention(*inputs, bias)
    mixed = mixing_of("local", window=window, global_tokens=first)(*inputs, RAGGED)
    assert ((mixed - expected) * RAGGED[:, None, :, None]).abs().max() < 1e-9


@pytest.mark.parametrize("kind", ATTENTION)
def test_bfloat16_training_is_close_to_float64(kind: str) -> None:
    """Under autocast, as the training loop computes: bfloat16 has 8 significant bits."""
    mixing = mixing_of(kind)
    inputs = [part.bfloat16().requires_grad_() for part in drawn(2, 19)]
    exact = [part.detach().double().requires_grad_() for part in inputs]
    weight = torch.randn(exact[0].shape, dtype=torch.float64) * RAGGED[:, None, :, None]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = mixing(*inputs, RAGGED)
    assert mixed.dtype == torch.bfloat16
    results = []
    for output, arguments in ((mixed, inputs), (mixing(*exact, RAGGED), exact)):
        weighted = output * weight
        results.append([weighted, *torch.autograd.grad(weighted.sum(), arguments)])
    for ours, right in zip(*results, strict=True):
        assert (ours - right).norm() <= 0.05 * right.norm()


def test_operations_grow_with_the_length_and_not_with_its_square() -> None:
    def flops(length: int) -> int:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            part = torch.zeros(1, N, length, H)
            mixing_of("local")(part, part, part, full(1, length))
        return int(counter.get_total_flops())

    assert flops(2040) < 2.1 * flops(1020) < 2.1**2 * flops(510)


REFUSED = """
softmax | window        | 2
local   | window        | 2.5
local   | window        | 100000000000000000000
local   | global_tokens | -1
"""


@pytest.mark.parametrize(("kind", "option", "value"), rows(REFUSED))
def test_an_option_that_cannot_work_is_refused_by_name(kind: str, option: str, value: str) -> None:
    with pytest.raises(ValueError, match=option):
        mixing_of(kind, **{option: json.loads(value)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ATTENTION)
def test_dropout_of_weights_changes_every_output_in_training_and_none_in_evaluation(
    kind: str, dtype: torch.dtype
) -> None:
    inputs = (*(part.to(dtype) for part in drawn(2, 19)), full(2, 19))
    plain, mixing = (mixing_of(kind, dropout) for dropout in (0.0, 0.5))
    assert not (mixing(*inputs) == mixing(*inputs)).all(-1).all(1).any()  # [B, L]
    assert torch.equal(mixing.eval()(*inputs), plain(*inputs))
