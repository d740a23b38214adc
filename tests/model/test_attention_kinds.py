"""Attention kinds other than softmax: their limit cases, references and invariance to padding."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from electra_albert.config.model import ModelConfig
from electra_albert.model.attention import ATTENTION, SoftmaxMixing, make_mixing, mixing_shapes
from tests.refusals import rows

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


def mixing_of(kind: str, dropout: float = 0.0, **options: float) -> nn.Module:
    options = {**KINDS.get(kind, {}), **options}
    config = replace(SHAPE, attention=kind, attention_options=options)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make_mixing(replace(config, attention_probs_dropout_prob=dropout)).double()


def drawn(batch: int, length: int) -> list[Tensor]:
    """q, k and v [B, N, L, H], float64."""
    generator = torch.Generator().manual_seed(7)
    shape = (3, batch, N, length, H)
    return [*(2 * torch.randn(shape, generator=generator, dtype=torch.float64))]


def full(batch: int, length: int) -> Tensor:
    return torch.ones(batch, length, dtype=torch.bool)


def softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return SoftmaxMixing(SHAPE)(q, k, v, mask)


def assert_same(mixed: Tensor, expected: Tensor) -> None:
    """Assert equal outputs, float64, at the tokens of RAGGED."""
    is_text = RAGGED[:, None, :, None]
    torch.testing.assert_close(mixed * is_text, expected * is_text, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, "local without global tokens"])
def test_padding_changes_nothing_and_gets_no_gradient(kind: str) -> None:
    """A sequence gives the same output alone and in a longer batch, whatever the padding holds."""
    options = {"global_tokens": 0} if kind not in KINDS else {}
    mixing = mixing_of(kind.split()[0], **options)
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


def test_nystrom_with_a_landmark_for_each_token_is_softmax_attention() -> None:
    inputs = drawn(2, 19)
    assert_same(mixing_of("nystrom", landmarks=19)(*inputs, RAGGED), softmax(*inputs, RAGGED))


def test_local_attention_equals_masked_softmax_attention() -> None:
    inputs = drawn(2, 19)
    position = torch.arange(19)
    distance = (position[:, None] - position).abs()
    for window, first in ((1, 0), (3, 2), (4, 1), (40, 30)):
        is_global = position < first
        visible = (distance <= window) | is_global | is_global[:, None]
        bias = (visible & RAGGED[:, None, None, :]) | (distance == 0)
        mixed = mixing_of("local", window=window, global_tokens=first)(*inputs, RAGGED)
        assert_same(mixed, F.scaled_dot_product_attention(*inputs, bias))


def test_linear_attention_equals_its_weights_written_out() -> None:
    q, k, v = drawn(2, 9)
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(2, 3)  # [B, N, L, L]
    expected = weights / weights.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(mixing_of("linear")(q, k, v, full(2, 9)), expected)


def test_linformer_with_the_identity_as_projection_is_softmax_attention() -> None:
    inputs = (*drawn(2, 9), full(2, 9))
    mixing = mixing_of("linformer", rank=9)
    for projection in mixing.parameters():
        nn.init.eye_(projection)
    torch.testing.assert_close(mixing(*inputs), softmax(*inputs))


@pytest.mark.parametrize("iterations", [1, 12])
def test_nystrom_attention_equals_the_stock_one(iterations: int) -> None:
    """One head: stock starts the pseudo-inverse from the largest sum over all heads and sequences,
    we of each.
    """
    config = NystromformerConfig(
        hidden_size=H,
        num_attention_heads=1,
        num_landmarks=8,
        segment_means_seq_len=32,
        conv_kernel_size=1,
        attention_probs_dropout_prob=0.0,
    )
    stock = NystromformerSelfAttention(config).double().eval()
    nn.init.zeros_(stock.conv.weight)  # which ours does not have
    stock.iterative_inv = partial(stock.iterative_inv, n_iter=iterations)
    mixing = mixing_of("nystrom", landmarks=8, pinv_iterations=iterations)
    hidden_states = drawn(1, 32)[0][:, 0]  # [1, L, D]
    q, k, v = (layer(hidden_states)[:, None] for layer in (stock.query, stock.key, stock.value))
    mixed = mixing(q, k, v, full(1, 32))
    torch.testing.assert_close(mixed[:, 0], stock(hidden_states)[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ATTENTION)
def test_bfloat16_training_is_close_to_float64(kind: str) -> None:
    """Under autocast, as the training loop computes: bfloat16 has 8 significant bits."""
    inputs = [part.bfloat16().requires_grad_() for part in drawn(2, 19)]
    exact = [part.detach().double().requires_grad_() for part in inputs]
    weight = torch.randn(exact[0].shape, dtype=torch.float64) * RAGGED[:, None, :, None]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = mixing_of(kind).float()(*inputs, RAGGED)
    assert mixed.dtype == torch.bfloat16
    results = []
    for output, arguments in ((mixed, inputs), (mixing_of(kind)(*exact, RAGGED), exact)):
        weighted = output * weight
        results.append([weighted, *torch.autograd.grad(weighted.sum(), arguments)])
    for ours, right in zip(*results, strict=True):
        assert (ours - right).norm() <= 0.05 * right.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_operations_grow_with_the_length_and_not_with_its_square(kind: str) -> None:
    shape = replace(SHAPE, attention=kind, attention_options=KINDS[kind])

    def flops(length: int) -> int:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            part = torch.zeros(1, N, length, H)
            mixing = make_mixing(replace(shape, max_position_embeddings=2048))
            mixing(part, part, part, full(1, length))
        return int(counter.get_total_flops())

    assert flops(2040) < 2.1 * flops(1020) < 2.1**2 * flops(510)


def test_linear_attention_is_exact_for_very_negative_queries() -> None:
    # Regression: elu(x) + 1 was rounded to 0 in float32, so the output was 0 and its gradient
    # infinite.
    q, k, v = (part.float() for part in drawn(1, 5))
    q = (q - 30).requires_grad_()
    mixed = mixing_of("linear").float()(q, k, v, full(1, 5))
    exact = mixing_of("linear")(q.double(), k.double(), v.double(), full(1, 5))
    torch.testing.assert_close(mixed.double(), exact, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(mixed.sum(), q)
    assert gradient.isfinite().all()


def test_options_are_checked_without_memory_and_random_numbers() -> None:
    # Regression: a large rank allocated gigabytes before it was refused; loading a model drew
    # random numbers.
    before = torch.get_rng_state()
    large = replace(SHAPE, attention="linformer", attention_options={"rank": 1 << 20})
    assert mixing_shapes(large)["key_projection"] == (1 << 20, SHAPE.max_position_embeddings)
    assert torch.equal(torch.get_rng_state(), before)


REFUSED = """
linear    | window          | 2
linformer | rank            | 0
local     | window          | 2.5
local     | window          | 100000000000000000000
local     | global_tokens   | -1
nystrom   | landmarks       | 0
nystrom   | pinv_iterations | 0
"""


@pytest.mark.parametrize(("kind", "option", "value"), rows(REFUSED))
def test_an_option_that_cannot_work_is_refused_by_name(kind: str, option: str, value: str) -> None:
    with pytest.raises(ValueError, match=option):
        mixing_of(kind, **{option: json.loads(value)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [kind for kind in ATTENTION if ATTENTION[kind].has_weights])
def test_dropout_of_weights_changes_every_output_in_training_and_none_in_evaluation(
    kind: str, dtype: torch.dtype
) -> None:
    inputs = (*(part.to(dtype) for part in drawn(2, 19)), full(2, 19))
    plain, mixing = (mixing_of(kind, dropout).to(dtype) for dropout in (0.0, 0.5))
    assert not (mixing(*inputs) == mixing(*inputs)).all(-1).all(1).any()  # [B, L]
    assert torch.equal(mixing.eval()(*inputs), plain(*inputs))


@pytest.mark.parametrize("kind", ["linear", "nystrom"])
def test_dropout_of_weights_that_do_not_exist_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="attention_probs_dropout_prob"):
        mixing_of(kind, 0.1)
