"""FLOPs computed from the shape equal those that PyTorch's FlopCounterMode counts in the modules.

Dimensions: B batch, L length, K predicted tokens per example.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from electra_albert.model.attention import TRAINING_FLOPS_FACTOR
from electra_albert.model.encoder import Encoder
from electra_albert.model.heads import MlmHead, RtdHead, SentenceOrderHead
from tests.objectives.toy import MODEL

B, L, K = 3, 13, 5


def counted(forward: Callable[[], Tensor]) -> tuple[int, int]:
    """Counted FLOPs of a forward pass, and of a forward and a backward pass."""
    counter = FlopCounterMode(display=False)
    # Bfloat16, because the counter does not know the fused CPU kernel of the other dtypes.
    with counter, torch.autocast("cpu", torch.bfloat16):
        result = forward()
    forwards = counter.get_total_flops()
    with counter:
        result.float().sum().backward()
    return forwards, forwards + counter.get_total_flops()


def states(width: int, *shape: int) -> Tensor:
    return torch.randn(*shape, width, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.mark.parametrize(
    "groups", [{}, {"num_hidden_layers": 6, "num_hidden_groups": 2, "inner_group_num": 3}], ids=str
)
def test_flops_of_the_encoder_equal_the_counted_ones(groups: dict[str, int]) -> None:
    config = replace(MODEL, **groups)
    encoder, mask = Encoder(config).train(), torch.ones(B, L, dtype=torch.bool)
    flops = B * Encoder.flops(config, L)
    assert counted(lambda: encoder(states(config.embedding_size, B, L), mask)) == (flops, TRAINING_FLOPS_FACTOR * flops)


def test_flops_of_every_head_equal_the_counted_ones() -> None:
    table, masked = states(MODEL.embedding_size, MODEL.vocab_size), states(MODEL.hidden_size, B, K)
    hidden = states(MODEL.hidden_size, B, L)
    mlm, rtd, order = MlmHead(MODEL), RtdHead(MODEL), SentenceOrderHead(MODEL)
    cases: list[tuple[Callable[[], Tensor], int]] = [
        (lambda: mlm(masked, table), MlmHead.flops(MODEL, K)),
        (lambda: rtd(hidden), RtdHead.flops(MODEL, L)),
        (lambda: order(hidden), SentenceOrderHead.flops(MODEL)),
    ]
    for forward, flops in cases:
        assert counted(forward) == (B * flops, TRAINING_FLOPS_FACTOR * B * flops)
