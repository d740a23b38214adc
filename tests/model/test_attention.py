"""Hidden dropout is applied in three modules, and in training only."""

from dataclasses import replace

import torch

from electra_albert.model.encoder import Block, Embeddings
from tests.model.twins import SHAPE, B, L


def test_hidden_dropout_is_applied_in_three_modules_and_in_training_only() -> None:
    everything = replace(SHAPE, hidden_dropout_prob=1.0)
    block, plain = Block(everything, 0), Block(SHAPE, 0)
    plain.load_state_dict(block.state_dict())
    states = torch.randn(B, L, SHAPE.hidden_size, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(B, L, dtype=torch.bool)
    assert not block.attention(states, mask).any()
    attended = block.attention.LayerNorm(states)
    torch.testing.assert_close(block(states, mask), block.full_layer_layer_norm(attended))
    torch.testing.assert_close(block.eval()(states, mask), plain(states, mask))
    embeddings, ids = Embeddings(everything), torch.ones(B, L, dtype=torch.int64)
    assert not embeddings(ids, ids).any()
    assert embeddings.eval()(ids, ids).all()
