"""Compiled and gradient-checkpointed blocks compute the same as plain ones (law 11); checkpointing
saves memory.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from electra_albert.config.model import ModelConfig
from electra_albert.model.compilation import compile_for_training, set_gradient_checkpointing
from electra_albert.model.encoder import Encoder
from tests.model.twins import SHAPE, make_pair

B, L = 3, 13
TOLERANCE = 1e-5  # sums of a few hundred float32 products, added up in another order
GROUPS = replace(SHAPE, num_hidden_groups=2, inner_group_num=2)
DROPOUT = replace(SHAPE, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
MODERN = replace(GROUPS, block="modern", hidden_size=24, initializer_range=0.1)


def inputs() -> tuple[Tensor, Tensor]:
    """Embeddings [B, L, E] and their mask [B, L]."""
    generator = torch.Generator().manual_seed(1)
    embedded = torch.randn(B, L, SHAPE.embedding_size, generator=generator)
    return embedded, torch.arange(L) < torch.tensor([[L], [8], [3]])


def encoder_of(
    config: ModelConfig, *, is_compiled: bool = False, is_checkpointed: bool = False
) -> Encoder:
    encoder = make_pair(config).discriminator.encoder.train()
    if is_compiled:
        compile_for_training(encoder, "step")
    if is_checkpointed:
        set_gradient_checkpointing(encoder)
    return encoder


def train_once(encoder: Encoder, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Output and gradients of one forward and backward pass, and the random state after it."""
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = encoder(*inputs())
    gradients = torch.autograd.grad(output.float().square().sum(), [*encoder.parameters()])
    return [output.detach(), *gradients, torch.get_rng_state()]


def assert_same_bits(*encoders: Encoder, dtype: torch.dtype = torch.float32) -> None:
    assert all(map(torch.equal, *(train_once(encoder, dtype) for encoder in encoders)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", [GROUPS, DROPOUT, MODERN], ids=["groups", "dropout", "modern"])
def test_checkpointing_is_bitwise_equal(config: ModelConfig, dtype: torch.dtype) -> None:
    assert_same_bits(encoder_of(config), encoder_of(config, is_checkpointed=True), dtype=dtype)


def kept_bytes(encoder: Encoder, embedded: Tensor, mask: Tensor) -> int:
    """Bytes of the distinct tensors stored for the backward pass, without weights."""
    weights = {parameter.data_ptr() for parameter in encoder.parameters()}
    kept: dict[int, Tensor] = {}  # keeps the tensors alive, so that no address is reused
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t
    ):
        encoder(embedded, mask)
    return sum(tensor.nbytes for address, tensor in kept.items() if address not in weights)


def test_a_layer_stores_only_its_input_and_evaluation_recomputes_nothing() -> None:
    embedded, mask = inputs()
    plain, checkpointed = (encoder_of(SHAPE, is_checkpointed=value) for value in (False, True))
    kept, kept_less = (kept_bytes(encoder, embedded, mask) for encoder in (plain, checkpointed))
    layer_input = B * L * SHAPE.hidden_size * embedded.element_size()
    assert kept_less <= SHAPE.num_hidden_layers * layer_input + embedded.nbytes + mask.nbytes
    assert kept > 5 * kept_less
    calls: list[int] = []
    checkpointed.albert_layer_groups[0].register_forward_pre_hook(lambda *_: calls.append(1))
    checkpointed.eval()(embedded, mask).sum().backward()
    assert len(calls) == SHAPE.num_hidden_layers
    checkpointed.train()(embedded, mask).sum().backward()  # recomputes
    assert len(calls) == 3 * SHAPE.num_hidden_layers


def compiled(test: Callable[..., None]) -> Callable[..., None]:
    marked = pytest.mark.slow(pytest.mark.usefixtures("nothing_compiled_yet")(test))
    return pytest.mark.skipif(
        shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"
    )(marked)


def compiled_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@compiled
@pytest.mark.parametrize(
    ("config", "is_checkpointed"), [(SHAPE, False), (GROUPS, False), (GROUPS, True), (MODERN, True)]
)
def test_compiled_outputs_and_gradients_are_equal_up_to_rounding(
    config: ModelConfig, is_checkpointed: bool
) -> None:
    expected = train_once(encoder_of(config))
    actual = train_once(encoder_of(config, is_compiled=True, is_checkpointed=is_checkpointed))
    assert compiled_graphs() > 0
    for ours, plain in zip(actual[:-1], expected[:-1], strict=True):
        assert (plain - ours).norm() <= TOLERANCE * plain.norm()


@compiled
def test_compiled_checkpointed_layers_recompute_with_the_same_dropout() -> None:
    kept, recomputed = (
        train_once(encoder_of(DROPOUT, is_compiled=True, is_checkpointed=value))
        for value in (False, True)
    )
    for ours, plain in zip(recomputed[:-1], kept[:-1], strict=True):
        assert (plain - ours).norm() <= TOLERANCE * plain.norm()
    assert torch.equal(recomputed[-1], kept[-1])
