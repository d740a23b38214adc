"""SoftmaxMixing in bfloat16 on the CPU agrees with float64; padding is ignored; hidden dropout is applied."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra_albert.keyed_random import Stream, bits, gumbel
from electra_albert.model.attention import SoftmaxMixing
from electra_albert.model.encoder import Block, Embeddings
from tests.model.twins import LENGTHS, SHAPE, B, L

N, H = SHAPE.num_attention_heads, SHAPE.head_size
MASK = torch.arange(L) < torch.tensor(LENGTHS)[:, None]  # [B, L]


def drawn(part: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """One of q, k, v [B, N, L, H], with values large enough for sharp attention."""
    example, number = torch.arange(B)[:, None], torch.arange(N * L * H)
    return gumbel(bits(part, Stream.EXAMPLE, example, number)).view(B, N, L, H).to(dtype).requires_grad_()


def test_bfloat16_training_on_the_cpu_is_close_to_float64() -> None:
    """Bfloat16 has 8 significant bits, so each of the three products is off by about 2**-9."""
    inputs = [drawn(part, torch.bfloat16) for part in (1, 2, 3)]
    q, k, v = exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    mixed = SoftmaxMixing(SHAPE)(*inputs, MASK)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=MASK[:, None, None, :])
    weight = drawn(9).detach()
    found = torch.autograd.grad((mixed * weight.bfloat16()).sum(), inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), exact)
    for one, right in zip((mixed, *found), (expected, *wanted), strict=True):
        assert (one - right).norm() <= 0.03 * right.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_padding_is_never_attended_to(dtype: torch.dtype) -> None:
    q, k, v = (drawn(part, dtype).detach() for part in (1, 2, 3))
    hidden, mixing = ~MASK[:, None, :, None], SoftmaxMixing(SHAPE)
    other_k, other_v = k.masked_fill(hidden, 50.0).requires_grad_(), v.masked_fill(hidden, -70.0).requires_grad_()
    assert torch.equal(mixing(q, k.requires_grad_(), v.requires_grad_(), MASK), mixing(q, other_k, other_v, MASK))


def test_hidden_dropout_is_applied_in_three_modules_and_in_training_only() -> None:
    everything = replace(SHAPE, hidden_dropout_prob=1.0)
    block, plain = Block(everything), Block(SHAPE)
    plain.load_state_dict(block.state_dict())
    states = drawn(1, torch.float32).detach().transpose(1, 2).flatten(2)  # [B, L, D]
    attended = block.attention.LayerNorm(states)  # dropout 1 removes the output of attention
    torch.testing.assert_close(block.attention(states, MASK), attended)
    torch.testing.assert_close(block(states, MASK), block.full_layer_layer_norm(attended))
    torch.testing.assert_close(block.eval()(states, MASK), plain(states, MASK))
    embeddings, ids = Embeddings(everything), torch.ones(B, L, dtype=torch.int64)
    assert not embeddings(ids, ids).any()
    assert embeddings.eval()(ids, ids).all()
