"""Presets have the published sizes, and FLOPs are those that PyTorch counts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from electra_albert.model.attention import TRAINING_FLOPS_FACTOR
from electra_albert.model.electra import Electra, Generator
from electra_albert.model.encoder import Embeddings, Encoder, EncoderModel
from electra_albert.model.heads import MlmHead, RtdHead, SentenceOrderHead
from electra_albert.presets import PRESETS
from tests.objectives.toy import MODEL

# Computed from the shape and equal to stock transformers, at 30,000 tokens: AlbertModel with and without a pooler,
# AlbertForPreTraining, AlbertForMaskedLM.
ALBERT = {
    "base": (11_683_584, 11_092_992, 11_813_810, 11_221_680),
    "large": (17_683_968, 16_634_368, 17_847_474, 16_795_824),
    "xxlarge": (222_595_584, 205_814_272, 223_158_450, 206_368_944),
}
# Computed from the shape: discriminator, generator (small: half as wide, else a quarter), both with shared embeddings.
PAIR = {
    "small": (4_794_881, 4_167_600, 5_056_433),
    "large": (17_684_993, 4_791_984, 18_570_929),
}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("preset", PAIR)
def test_pair_has_the_expected_number_of_parameters_and_shares_embeddings(preset: str) -> None:
    config = PRESETS[preset]
    with torch.device("meta"):
        pair = Electra(config.rtd.generator_config(config.model), config.model)
        assert (count(pair.discriminator), count(pair.generator), count(pair)) == PAIR[preset]
        pair.generator.embeddings = Embeddings(config.model)  # Planted: separate embeddings.
    assert count(pair) != PAIR[preset][2]


@pytest.mark.parametrize("preset", ALBERT)
def test_encoder_and_pretraining_models_have_the_expected_number_of_parameters(preset: str) -> None:
    config = PRESETS[preset].model
    with torch.device("meta"):
        encoders = [EncoderModel(config, with_pooler=with_pooler) for with_pooler in (True, False)]
        models = [Generator(config, with_sentence_order=has_order) for has_order in (True, False)]
    assert tuple(map(count, (*encoders, *models))) == ALBERT[preset]


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
