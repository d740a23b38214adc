"""Local initialization makes each attention head attend to its offset from the first step; normal
is as published.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_albert.apps.pretrain.job import START_TOLERANCE
from electra_albert.config.model import ModelConfig
from electra_albert.config.presets import PRESETS
from electra_albert.model.electra import Electra, Generator, initialize_models
from electra_albert.model.encoder import Block, RtdHead
from electra_albert.model.initialization import HEAD_OFFSETS, initialize

NORMAL = ModelConfig(
    vocab_size=97,
    embedding_size=64,
    hidden_size=96,
    intermediate_size=128,
    num_hidden_layers=2,
    num_hidden_groups=2,
    num_attention_heads=6,
    max_position_embeddings=64,
)
LOCAL = replace(NORMAL, initialization="local")
BATCH, LENGTH = 5, 64


def make_pair(config: ModelConfig) -> Electra:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Electra(config, config, with_sentence_order=True)


def attention_weights(model: Any) -> list[Tensor]:
    """Attention weights [B, N, L, L] of each layer."""
    seen = []

    class Seen(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            seen.append((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1))
            return v

    for group in model.encoder.albert_layer_groups:
        group.albert_layers[0].attention.mixing = Seen()
    ids = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) ** 2 % model.config.vocab_size
    model(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    return seen


@pytest.mark.parametrize(("block", "heads", "share"), [("albert", 6, 0.5), ("modern", 2, 0.99)])
def test_heads_attend_to_their_own_offsets_from_the_start(
    block: Any, heads: int, share: float
) -> None:
    """A share of the queries attends most to the token at the head's offset, with that share of
    the weight (by chance 1 / LENGTH); the other heads attend to all tokens alike.
    """
    pair = make_pair(replace(LOCAL, block=block, zero_init_outputs=block == "albert"))
    query = torch.arange(3, LENGTH - 3)  # where every offset is inside the sequence
    for attention in attention_weights(pair.generator) + attention_weights(pair.discriminator):
        for head, offset in enumerate(HEAD_OFFSETS[:heads]):
            weights = attention[:, head, query]  # [B, queries, L]
            targets = (query + offset).expand(BATCH, -1)
            assert (weights.argmax(-1) == targets).double().mean() > share
            assert weights.gather(-1, targets[..., None]).mean() > share
        assert attention[:, heads:].lt(2 / LENGTH).all()


def test_local_heads_start_with_zero_logits_and_residual_branches_scale_with_depth() -> None:
    model = make_pair(replace(LOCAL, num_hidden_layers=12)).discriminator
    assert not model.discriminator_predictions.dense_prediction.weight.any()
    assert not model.sentence_order.classifier.weight.any()
    dense = model.encoder.albert_layer_groups[1].albert_layers[0].attention.dense.weight.detach()
    expected = (3 / 12) ** 2 * torch.eye(len(dense))  # orthogonal
    torch.testing.assert_close(dense @ dense.T, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [NORMAL, LOCAL])
def test_blocks_whose_outputs_start_at_zero_are_their_layer_norms(config: ModelConfig) -> None:
    modules = make_pair(replace(config, zero_init_outputs=True)).modules()
    blocks = [part for part in modules if isinstance(part, Block)]
    hidden_states = torch.randn(2, 5, config.hidden_size)
    attends = torch.ones(2, 5, dtype=torch.bool)
    norm = torch.nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
    assert len(blocks) == 4  # two groups in each model
    for block in blocks:
        torch.testing.assert_close(block(hidden_states, attends), norm(norm(hidden_states)))
        assert block.ffn.weight.any()  # zero here would give the same outputs
        assert not block.ffn_output.weight.any()


def test_normal_initialization_is_as_published() -> None:
    alone = Generator(NORMAL, with_sentence_order=True)
    initialize_models(alone)
    for name, parameter in (*make_pair(NORMAL).named_parameters(), *alone.named_parameters()):
        values = parameter.detach()
        if parameter.ndim == 2:
            # The deviation of n normal draws has a relative error of about 1 / sqrt(2 n).
            allowed = 5 / (2 * parameter.numel()) ** 0.5
            assert values.std() == pytest.approx(NORMAL.initializer_range, rel=allowed), name
        else:
            is_norm_weight = "norm" in name.lower() and name.endswith("weight")
            assert (values == float(is_norm_weight)).all(), name


@pytest.mark.parametrize("width", [32, max(p.model.hidden_size for p in PRESETS.values())])
def test_detection_starts_near_chance_level_at_the_width_of_every_preset(width: int) -> None:
    """Law 5.

    As published, the last layer gives a loss of 1.0 nats instead of ln 2 in the widest preset.
    """
    config = replace(NORMAL, hidden_size=width, num_attention_heads=2)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        head = RtdHead(config)
        initialize(head, config)
        hidden_states = torch.randn(7, 11, width)  # as a LayerNorm leaves them
    loss = torch.nn.functional.softplus(head(hidden_states)).mean()  # of original tokens
    assert float(loss.detach()) == pytest.approx(math.log(2), rel=START_TOLERANCE)


# Regression: an odd width and a head size of 1 raised an error while the model was built.
@pytest.mark.parametrize(
    "values",
    [(8, 8, 8, "albert"), (16, 3, 1, "albert"), (128, 1, 1, "albert"), (8, 2, 1, "modern")],
)
def test_local_initialization_is_finite_for_every_shape(values: tuple[Any, ...]) -> None:
    names = ("embedding_size", "hidden_size", "num_attention_heads", "block")
    model = make_pair(replace(LOCAL, **dict(zip(names, values, strict=True))))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
