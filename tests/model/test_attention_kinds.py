"""Attention kinds other than softmax: their limit cases, references and invariance to padding."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from electra_albert.config.model import ModelConfig
from electra_albert.model.attention import ATTENTION, SoftmaxMixing, make_mixing, mixing_shapes

N, H = 3, 8
SHAPE = ModelConfig(hidden_size=N * H, num_attention_heads=N, max_position_embeddings=64)
RAGGED = torch.arange(19) < torch.tensor([[19], [11]])  # a mask
KINDS: dict[str, dict[str, int]] = {
    "linear": {},
    "linformer": {"rank": 5},
    "local": {"window": 3, "global_tokens": 2},
    "nystrom": {"landmarks": 6},
}
assert KINDS.keys() | {"softmax"} == ATTENTION.keys()


def mixing_of(kind: str, **options: int) -> nn.Module:
    config = replace(SHAPE, attention=kind, attention_options={**KINDS.get(kind, {}), **options})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make_mixing(config).double()


def drawn(batch: int, length: int, heads: int = N) -> list[Tensor]:
    """q, k and v [B, N, L, H], float64."""
    generator = torch.Generator().manual_seed(7)
    return [
        2 * torch.randn(batch, heads, length, H, generator=generator, dtype=torch.float64)
        for _ in range(3)
    ]


def full(batch: int, length: int) -> Tensor:
    return torch.ones(batch, length, dtype=torch.bool)


def softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return SoftmaxMixing(SHAPE)(q, k, v, mask)


@pytest.mark.parametrize(
    ("kind", "options"), [*((kind, {}) for kind in KINDS), ("local", {"global_tokens": 0})]
)
def test_padding_changes_nothing_and_gets_no_gradient(kind: str, options: dict[str, int]) -> None:
    """A sequence gives the same output alone and in a longer batch, whatever the padding holds."""
    mixing, (q, k, v), lengths = mixing_of(kind, **options), drawn(4, 19), (19, 12, 6, 2)
    mask = torch.arange(19) < torch.tensor(lengths)[:, None]
    for part in (q, k, v):
        part.masked_fill_(~mask[:, None, :, None], 30.0)
    inputs = [part.requires_grad_() for part in (q, k, v)]
    mixed = mixing(*inputs, mask)
    for number, length in enumerate(lengths):
        alone = mixing(*(part[number : number + 1, :, :length] for part in inputs), full(1, length))
        torch.testing.assert_close(mixed[number : number + 1, :, :length], alone, rtol=0, atol=1e-9)
    weight = torch.randn(mixed.shape, dtype=torch.float64).masked_fill(~mask[:, None, :, None], 0.0)
    for gradient in torch.autograd.grad((mixed * weight).sum(), inputs):
        assert gradient.isfinite().all()
        assert not gradient.masked_select(~mask[:, None, :, None]).any()


def test_nystrom_with_a_landmark_for_each_token_is_softmax_attention() -> None:
    mixing, mask = mixing_of("nystrom", landmarks=19), RAGGED
    is_text = mask[:, None, :, None]
    mixed, expected = (kind(*drawn(2, 19), mask) * is_text for kind in (mixing, softmax))
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-9)


def test_local_attention_equals_masked_softmax_attention() -> None:
    (q, k, v), mask = drawn(2, 19), RAGGED
    for window, first in ((1, 0), (3, 2), (4, 1), (40, 30)):
        position = torch.arange(19)
        is_near = (position[:, None] - position).abs() <= window
        visible = is_near | (position < first) | (position < first)[:, None]
        bias = (visible & mask[:, None, None, :]) | torch.eye(19, dtype=torch.bool)
        expected = F.scaled_dot_product_attention(q, k, v, bias)
        mixed = mixing_of("local", window=window, global_tokens=first)(q, k, v, mask)
        is_text = mask[:, None, :, None]
        torch.testing.assert_close(mixed * is_text, expected * is_text, rtol=0, atol=1e-9)


def test_linear_attention_equals_its_weights_written_out() -> None:
    q, k, v = drawn(2, 9)
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(2, 3)  # [B, N, L, L]
    expected = weights / weights.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(mixing_of("linear")(q, k, v, full(2, 9)), expected)


def test_linformer_with_the_identity_as_projection_is_softmax_attention() -> None:
    q, k, v = drawn(2, 9)
    mixing = mixing_of("linformer", rank=9)
    for projection in mixing.parameters():
        nn.init.eye_(projection)
    torch.testing.assert_close(mixing(q, k, v, full(2, 9)), softmax(q, k, v, full(2, 9)))


@pytest.mark.parametrize("iterations", [1, 2, 12])
def test_nystrom_attention_equals_the_stock_one(iterations: int) -> None:
    """One head: stock starts the pseudo-inverse from the largest sum over all heads and sequences,
    we of each.
    """
    length, landmarks = 32, 8
    sizes = {
        "hidden_size": H,
        "num_attention_heads": 1,
        "num_landmarks": landmarks,
        "segment_means_seq_len": length,
    }
    stock_config = NystromformerConfig(
        **sizes, conv_kernel_size=1, attention_probs_dropout_prob=0.0
    )
    stock = NystromformerSelfAttention(stock_config).double().eval()
    nn.init.zeros_(stock.conv.weight)  # which ours does not have
    stock.iterative_inv = partial(stock.iterative_inv, n_iter=iterations)
    options = {"landmarks": landmarks, "pinv_iterations": iterations}
    shape = replace(
        SHAPE, hidden_size=H, num_attention_heads=1, attention="nystrom", attention_options=options
    )
    mixing = make_mixing(shape).double()
    hidden_states = drawn(1, length, heads=1)[0][:, 0]  # [1, L, D]
    q, k, v = (layer(hidden_states)[:, None] for layer in (stock.query, stock.key, stock.value))
    mixed = mixing(q, k, v, full(1, length))
    torch.testing.assert_close(mixed[:, 0], stock(hidden_states)[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ATTENTION)
def test_bfloat16_training_is_close_to_float64(kind: str) -> None:
    """Under autocast, as the training loop computes: bfloat16 has 8 significant bits."""
    mask = RAGGED
    inputs = [part.bfloat16().requires_grad_() for part in drawn(2, 19)]
    exact = [part.detach().double().requires_grad_() for part in inputs]
    weight = torch.randn(exact[0].shape, dtype=torch.float64) * mask[:, None, :, None]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = mixing_of(kind).float()(*inputs, mask)
    expected = mixing_of(kind)(*exact, mask)
    found = torch.autograd.grad((mixed * weight).sum(), inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), exact)
    assert mixed.dtype == torch.bfloat16
    for one, right in zip((mixed * weight, *found), (expected * weight, *wanted), strict=True):
        assert (one - right).norm() <= 0.05 * right.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_operations_grow_with_the_length_and_not_with_its_square(kind: str) -> None:
    config = replace(
        SHAPE, attention=kind, attention_options=KINDS[kind], max_position_embeddings=2048
    )

    def flops(length: int) -> int:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            inputs = [torch.zeros(1, N, length, H) for _ in range(3)]
            make_mixing(config)(*inputs, torch.ones(1, length, dtype=torch.bool))
        return int(counter.get_total_flops())

    assert flops(2040) < 2.1 * flops(1020) < 2.1**2 * flops(510)
    with pytest.MonkeyPatch.context() as patch:  # planted: attention between all tokens
        patch.setattr(ATTENTION[kind], "forward", SoftmaxMixing(SHAPE).forward)
        assert flops(2040) > 3.9 * flops(1020)


def test_linear_attention_is_exact_for_very_negative_queries() -> None:
    # Regression: elu(x) + 1 was rounded to 0 in float32, so the output was 0 and its gradient
    # infinite.
    q, k, v = (part.float() for part in drawn(1, 5))
    q = (q - 30).requires_grad_()
    mixed = mixing_of("linear").float()(q, k, v, full(1, 5))
    exact = mixing_of("linear")(q.detach().double(), k.double(), v.double(), full(1, 5))
    torch.testing.assert_close(mixed.double(), exact, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(mixed.sum(), q)
    assert gradient.isfinite().all()


def test_options_are_checked_without_memory_and_random_numbers() -> None:
    # Regression: a large rank allocated gigabytes before it was refused; loading a model drew
    # random numbers.
    before = torch.get_rng_state()
    shape = mixing_shapes(
        replace(SHAPE, attention="linformer", attention_options={"rank": 1 << 20})
    )
    assert shape["key_projection"] == (1 << 20, SHAPE.max_position_embeddings)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("linear", {"window": 2}),
        ("linformer", {"rank": 0}),
        *(
            ("local", option)
            for option in ({"window": 2.5}, {"window": 10**20}, {"global_tokens": -1})
        ),
        *(("nystrom", {name: 0}) for name in ("landmarks", "pinv_iterations")),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(kind: str, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        mixing_of(kind, **option)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [kind for kind in ATTENTION if ATTENTION[kind].has_weights])
def test_dropout_of_weights_changes_every_output_in_training_and_none_in_evaluation(
    kind: str, dtype: torch.dtype
) -> None:
    options = KINDS.get(kind, {})
    shape = replace(SHAPE, attention=kind, attention_options=options)
    inputs = [part.to(dtype) for part in drawn(2, 19)]
    torch.manual_seed(3)
    mixing = make_mixing(replace(shape, attention_probs_dropout_prob=0.5)).to(dtype)
    same = (mixing(*inputs, full(2, 19)) == mixing(*inputs, full(2, 19))).all(-1).all(1)  # [B, L]
    assert not same.any()
    plain = mixing_of(kind).to(dtype)
    assert torch.equal(mixing.eval()(*inputs, full(2, 19)), plain(*inputs, full(2, 19)))


@pytest.mark.parametrize("kind", ["linear", "nystrom"])
def test_dropout_of_weights_that_do_not_exist_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="attention_probs_dropout_prob"):
        make_mixing(replace(SHAPE, attention=kind, attention_probs_dropout_prob=0.1))
