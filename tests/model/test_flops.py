"""Operations counted from shapes are those that PyTorch's own counter finds in the modules.

Dimensions: B rows, L length, K predicted tokens of a row.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from electra_albert.model.attention import TRAINING_PASSES
from electra_albert.model.encoder import Encoder
from electra_albert.model.heads import MlmHead, RtdHead, SentenceOrderHead
from tests.objectives.toy import MODEL

B, L, K = 3, 13, 5


def counted(forward: Callable[[], Tensor]) -> tuple[int, int]:
    """Operations that the counter finds in a forward pass, and in that and its backward pass."""
    counter = FlopCounterMode(display=False)
    # In bfloat16 attention on the CPU is written as matrix products; the counter does not know its fused kernel.
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
def test_an_encoder_makes_the_operations_counted_from_its_shape(groups: dict[str, int]) -> None:
    config = replace(MODEL, **groups)
    encoder, mask = Encoder(config).train(), torch.ones(B, L, dtype=torch.bool)
    flops = B * Encoder.flops(config, L)
    assert counted(lambda: encoder(states(config.embedding_size, B, L), mask)) == (flops, TRAINING_PASSES * flops)


def test_every_head_makes_the_operations_counted() -> None:
    table, masked = states(MODEL.embedding_size, MODEL.vocab_size), states(MODEL.hidden_size, B, K)
    hidden = states(MODEL.hidden_size, B, L)
    mlm, rtd, order = MlmHead(MODEL), RtdHead(MODEL), SentenceOrderHead(MODEL)
    cases: list[tuple[Callable[[], Tensor], int]] = [
        (lambda: mlm(masked, table), MlmHead.flops(MODEL, K)),
        (lambda: rtd(hidden), RtdHead.flops(MODEL, L)),
        (lambda: order(hidden), SentenceOrderHead.flops(MODEL)),
    ]
    for forward, flops in cases:
        assert counted(forward) == (B * flops, TRAINING_PASSES * B * flops)
