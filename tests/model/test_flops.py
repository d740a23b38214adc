"""Operations counted from shapes are those that PyTorch's own counter sees in the modules.

Dimensions: B rows, L length, K predicted tokens of a row.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from electra_albert.config import ModelConfig
from electra_albert.model.encoder import Encoder
from electra_albert.model.flops import (
    TRAINING_PASSES,
    encoder_flops,
    mlm_head_flops,
    rtd_head_flops,
    sentence_order_head_flops,
)
from electra_albert.model.heads import MlmHead, RtdHead, SentenceOrderHead

B, L, K = 3, 13, 5
SHAPE = ModelConfig(
    vocab_size=101,
    embedding_size=11,
    hidden_size=28,
    num_hidden_layers=6,
    num_attention_heads=4,
    intermediate_size=37,
    max_position_embeddings=64,
)
SHAPES = {
    "one group": SHAPE,
    "inner groups": replace(SHAPE, num_hidden_groups=2, inner_group_num=3),
}


def seen(forward: Callable[[], Tensor]) -> tuple[int, int]:
    """Operations that the counter sees in a forward pass, and in that and its backward pass."""
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


@pytest.mark.parametrize("name", SHAPES)
def test_an_encoder_makes_the_operations_counted_from_its_shape(name: str) -> None:
    config = SHAPES[name]
    encoder, mask = Encoder(config).train(), torch.ones(B, L, dtype=torch.bool)
    counted = B * encoder_flops(config, L)
    assert seen(lambda: encoder(states(config.embedding_size, B, L), mask)) == (counted, TRAINING_PASSES * counted)


def test_every_head_makes_the_operations_counted() -> None:
    table, masked, hidden = (
        states(*shape)
        for shape in ((SHAPE.embedding_size, SHAPE.vocab_size), (SHAPE.hidden_size, B, K), (SHAPE.hidden_size, B, L))
    )
    mlm, rtd, order = MlmHead(SHAPE), RtdHead(SHAPE), SentenceOrderHead(SHAPE)
    cases: list[tuple[Callable[[], Tensor], int]] = [
        (lambda: mlm(masked, table), mlm_head_flops(SHAPE, K)),
        (lambda: rtd(hidden), rtd_head_flops(SHAPE, L)),
        (lambda: order(hidden), sentence_order_head_flops(SHAPE)),
    ]
    for forward, flops in cases:
        assert seen(forward) == (B * flops, TRAINING_PASSES * B * flops)
