"""Every preset builds, and has the number of parameters that was worked out for its shape."""

import pytest
import torch
from torch import nn

from electra_albert.config import ModelConfig, RtdConfig
from electra_albert.model.electra import Electra, Generator
from electra_albert.model.encoder import Body, Embeddings
from electra_albert.presets import PRESETS

# By formula and equal to stock transformers: the encoder with a pooler, without one, the pretraining model and the
# masked language model, at 30,000 pieces.
ALBERT = {
    "base": (11_683_584, 11_092_992, 11_813_810, 11_221_680),
    "large": (17_683_968, 16_634_368, 17_847_474, 16_795_824),
    "xxlarge": (222_595_584, 205_814_272, 223_158_450, 206_368_944),
}
# By formula: discriminator, generator of a quarter's width, and the two together, which share their tables.
PAIR = {
    "small": (4_794_881, 4_002_864, 4_891_697),
    "large": (17_684_993, 4_791_984, 18_570_929),
}


def count(*modules: nn.Module) -> int:
    """Numbers that are trained, a shared one once."""
    return sum(parameter.numel() for parameter in {p for module in modules for p in module.parameters()})


# ELECTRA's own shapes, whose blocks share nothing, at the 30,522 pieces of BERT: width, layers, heads, width of the
# tables; the encoder, with its detection head, and the generator with its share of the width.
ELECTRA = {
    "small": ((256, 12, 4, 128), 13_483_008, 13_549_057, (1 / 4, 4_620_026)),
    "large": ((1024, 24, 16, 1024), 334_092_288, 335_142_913, (1 / 4, 51_295_290)),
}


def build_pair(preset: str) -> Electra:
    config = PRESETS[preset]
    with torch.device("meta"):
        return Electra(config.rtd.generator(config.model), config.model)


def test_pair_has_the_published_number_of_parameters() -> None:
    for preset, numbers in PAIR.items():
        pair = build_pair(preset)
        assert (count(pair.discriminator), count(pair.generator), count(pair)) == numbers


@pytest.mark.parametrize("preset", ALBERT)
def test_encoder_and_pretraining_models_are_as_large_as_published(preset: str) -> None:
    config = PRESETS[preset].model
    with torch.device("meta"):
        bodies = [Body(config, with_pooler=with_pooler) for with_pooler in (True, False)]
        models = [Generator(config, Embeddings(config), with_sentence_order=has_order) for has_order in (True, False)]
    assert tuple(map(count, (*bodies, *models))) == ALBERT[preset]


@pytest.mark.parametrize("size", ELECTRA)
def test_unshared_variant_is_as_large_as_electra_but_for_a_mapping_between_equal_widths(size: str) -> None:
    (width, layers, heads, embedding_size), body, detector, (share, generator) = ELECTRA[size]
    depth = {"num_hidden_layers": layers, "num_hidden_groups": layers, "num_attention_heads": heads}
    widths = {"embedding_size": embedding_size, "hidden_size": width, "intermediate_size": 4 * width}
    config = ModelConfig(vocab_size=30_522, **depth, **widths)
    with torch.device("meta"):
        pair = Electra(RtdConfig(generator_size=share).generator(config), config)
    # ELECTRA maps the width of the tables to its own only where the two differ, we always do.
    mapping = width * (width + 1) if config.embedding_size == width else 0
    assert count(pair.discriminator.embeddings, pair.discriminator.encoder) == body + mapping
    assert count(pair.discriminator) == detector + mapping
    assert count(pair.generator) == generator


# Planted: a table of its own for each model. The counts must tell a shared table from two.
def test_count_rejects_a_pair_whose_tables_are_not_shared() -> None:
    pair = build_pair("small")
    with torch.device("meta"):
        pair.generator.embeddings = Embeddings(pair.generator.config)
    assert count(pair) != PAIR["small"][2]
