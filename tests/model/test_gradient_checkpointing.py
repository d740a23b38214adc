"""Gradient checkpointing changes the memory of a training step and nothing else, to the bit."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model.encoder import Encoder, set_gradient_checkpointing
from tests.model.twins import SHAPE, make_pair

B, L = 3, 13
SHAPES = {
    "inner groups": replace(SHAPE, num_hidden_groups=2, inner_group_num=2),
    "dropout": replace(SHAPE, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2),
}


def inputs() -> tuple[Tensor, Tensor]:
    """Rows of embeddings [B, L, E] and their mask [B, L]."""
    embedded = torch.randn(B, L, SHAPE.embedding_size, generator=torch.Generator().manual_seed(1))
    return embedded, torch.arange(L) < torch.tensor([L, 8, 3])[:, None]


def encoder_of(config: ModelConfig, *, is_checkpointed: bool) -> Encoder:
    encoder = make_pair(config).discriminator.encoder.train()
    if is_checkpointed:
        set_gradient_checkpointing(encoder)
    return encoder


def train_once(encoder: Encoder, dtype: torch.dtype) -> list[Tensor]:
    """The output of one forward pass, the gradients of its backward pass, and the state of dropout after it."""
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = encoder(*inputs())
    output.float().square().sum().backward()
    gradients = [parameter.grad for parameter in encoder.parameters()]
    return [output.detach(), *(gradient for gradient in gradients if gradient is not None), torch.get_rng_state()]


def check_nothing_changes(kept: Encoder, checkpointed: Encoder, dtype: torch.dtype) -> None:
    one, other = train_once(kept, dtype), train_once(checkpointed, dtype)
    assert len(one) == len(other) == 2 + len(list(kept.parameters()))
    assert all(torch.equal(tensor, again) for tensor, again in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("shape", "dtype"), [*((shape, torch.float32) for shape in SHAPES), ("dropout", torch.bfloat16)], ids=str
)
def test_outputs_and_gradients_are_the_same_to_the_bit(shape: str, dtype: torch.dtype) -> None:
    kept, checkpointed = (encoder_of(SHAPES[shape], is_checkpointed=value) for value in (False, True))
    check_nothing_changes(kept, checkpointed, dtype)


def reseeding() -> Callable[..., None]:
    """A hook that seeds its first, second, … call differently."""
    seeds = count()

    def reseed(*_: object) -> None:
        torch.manual_seed(next(seeds))

    return reseed


def test_another_dropout_the_second_time_is_caught() -> None:
    # Planted fault: each call of the group, the second one of a pass too, draws its dropout anew.
    encoders = [encoder_of(SHAPES["dropout"], is_checkpointed=value) for value in (False, True)]
    for encoder in encoders:
        encoder.albert_layer_groups[0].register_forward_pre_hook(reseeding())
    with pytest.raises(AssertionError):
        check_nothing_changes(*encoders, torch.float32)


def kept_bytes(encoder: nn.Module, run: Callable[[], object]) -> int:
    """Bytes of the different tensors that a forward pass keeps for the backward one, weights left out."""
    weights = {parameter.data_ptr() for parameter in encoder.parameters()}
    kept: dict[int, Tensor] = {}  # holds the tensors, so that no address comes up twice

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(tensor.numel() * tensor.element_size() for tensor in kept.values())


def test_a_pass_keeps_only_what_enters_it() -> None:
    embedded, mask = inputs()
    encoders = [encoder_of(SHAPE, is_checkpointed=is_checkpointed) for is_checkpointed in (False, True)]
    kept, kept_less = (kept_bytes(encoder, lambda encoder=encoder: encoder(embedded, mask)) for encoder in encoders)
    entering = B * L * SHAPE.hidden_size * embedded.element_size()
    around = embedded.numel() * embedded.element_size() + mask.numel()
    assert kept_less <= SHAPE.num_hidden_layers * entering + around
    assert kept > 5 * kept_less


def test_evaluation_and_passes_without_gradient_compute_nothing_twice() -> None:
    embedded, mask = inputs()
    encoder, plain = (encoder_of(SHAPE, is_checkpointed=is_checkpointed) for is_checkpointed in (True, False))
    assert kept_bytes(encoder.eval(), lambda: encoder(embedded, mask)) == kept_bytes(
        plain.eval(), lambda: plain(embedded, mask)
    )
    calls: list[int] = []
    encoder.albert_layer_groups[0].register_forward_pre_hook(lambda *_: calls.append(1))
    encoder(embedded, mask).sum().backward()
    with torch.no_grad():
        encoder.train()(embedded, mask)
    assert len(calls) == 2 * SHAPE.num_hidden_layers
    encoder(embedded, mask).sum().backward()  # and this one does: the count can tell
    assert len(calls) == 4 * SHAPE.num_hidden_layers
