"""The attention written out for bfloat16 on the CPU is the fused one; padding takes no part; where dropout acts."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra_albert.keyed_random import Stream, bits, gumbel
from electra_albert.model.attention import SoftmaxMixing, _attend_in_three_products
from electra_albert.model.encoder import Block, Embeddings
from tests.model.twins import LENGTHS, SHAPE, B, L

N, H = SHAPE.num_attention_heads, SHAPE.head_size
MASK = torch.arange(L) < torch.tensor(LENGTHS)[:, None]  # [B, L]
Inputs = tuple[Tensor, Tensor, Tensor]


def drawn(part: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """One of q, k, v [B, N, L, H], wide enough that attention is sharp in places."""
    row, number = torch.arange(B)[:, None], torch.arange(N * L * H)
    return gumbel(bits(part, Stream.EXAMPLE, row, number)).view(B, N, L, H).to(dtype).requires_grad_()


def assert_same_attention(mixed: Tensor, inputs: Inputs) -> None:
    """Compare outputs and gradients with PyTorch's fused attention in float64, relative to the norm.

    Bfloat16 keeps 8 bits: each of the three products is off by about 2**-9, and gradients pass through all of them.
    """
    q, k, v = exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=MASK[:, None, None, :])
    assert (mixed - expected).norm() <= 0.03 * expected.norm()
    weight = drawn(9).detach()
    found = torch.autograd.grad((mixed * weight.to(mixed.dtype)).sum(), inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), exact)
    for gradient, right in zip(found, wanted, strict=True):
        assert (gradient - right).norm() <= 0.03 * right.norm()


def test_bfloat16_training_on_the_cpu_stays_near_float64() -> None:
    inputs = (drawn(1, torch.bfloat16), drawn(2, torch.bfloat16), drawn(3, torch.bfloat16))
    assert_same_attention(SoftmaxMixing(SHAPE)(*inputs, MASK), inputs)


# Planted: the scale left out, and the mask left out.
@pytest.mark.parametrize(("scale", "mask"), [(H**0.5, MASK), (1.0, torch.ones_like(MASK))], ids=["scale", "mask"])
def test_comparison_rejects_attention_without_its(scale: float, mask: Tensor) -> None:
    q, k, v = inputs = (drawn(1), drawn(2), drawn(3))
    with pytest.raises(AssertionError):
        assert_same_attention(_attend_in_three_products(q * scale, k, v, mask, 0.0), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_padding_is_never_looked_at(dtype: torch.dtype) -> None:
    q, k, v = (drawn(part, dtype).detach() for part in (1, 2, 3))
    hidden, mixing = ~MASK[:, None, :, None], SoftmaxMixing(SHAPE)
    other_k, other_v = k.masked_fill(hidden, 50.0).requires_grad_(), v.masked_fill(hidden, -70.0).requires_grad_()
    assert torch.equal(mixing(q, k.requires_grad_(), v.requires_grad_(), MASK), mixing(q, other_k, other_v, MASK))


def test_hidden_dropout_is_at_its_three_positions_and_in_training_only() -> None:
    everything = replace(SHAPE, hidden_dropout_prob=1.0)
    block, plain = Block(everything), Block(SHAPE)
    plain.load_state_dict(block.state_dict())
    states = drawn(1, torch.float32).detach().transpose(1, 2).flatten(2)  # [B, L, D]
    attended = block.attention.LayerNorm(states)  # all that attention adds is dropped
    torch.testing.assert_close(block.attention(states, MASK), attended)
    torch.testing.assert_close(block(states, MASK), block.full_layer_layer_norm(attended))
    torch.testing.assert_close(block.eval()(states, MASK), plain(states, MASK))
    embeddings, ids = Embeddings(everything), torch.ones(B, L, dtype=torch.int64)
    assert not embeddings(ids, ids).any()
    assert embeddings.eval()(ids, ids).all()
