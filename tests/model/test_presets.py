"""Presets have the published sizes."""

import pytest
import torch
from torch import nn

from electra_albert.config.presets import PRESETS
from electra_albert.model.electra import Electra, Generator
from electra_albert.model.encoder import Embeddings, EncoderModel

# Computed from the shape and equal to stock transformers, at 30,000 tokens: AlbertModel with and
# without a pooler, AlbertForPreTraining, AlbertForMaskedLM.
ALBERT = {
    "base": (11_683_584, 11_092_992, 11_813_810, 11_221_680),
    "large": (17_683_968, 16_634_368, 17_847_474, 16_795_824),
    "xxlarge": (222_595_584, 205_814_272, 223_158_450, 206_368_944),
}
# Computed from the shape: discriminator, generator (small: half as wide, else a quarter), both with
# shared embeddings.
PAIR = {"small": (4_745_729, 4_118_448, 5_007_281), "large": (17_684_993, 4_791_984, 18_570_929)}


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
