"""Every preset builds, and has the number of parameters that was worked out for its shape."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from electra_albert.config import ModelConfig
from electra_albert.model.electra import Discriminator, Electra, Generator
from electra_albert.model.encoder import Embeddings
from electra_albert.presets import PRESETS

# By formula and equal to stock transformers: the encoder without a pooler, and with its MLM head, at 30,000 pieces.
BODY = {"base": 11_092_992, "large": 16_634_368, "xlarge": 54_528_512, "xxlarge": 205_814_272}
MASKED_LM = {"base": 11_221_680, "large": 16_795_824, "xlarge": 54_821_040, "xxlarge": 206_368_944}
# By formula: discriminator, generator of a quarter's width, and the two together, which share their tables.
PAIR = {
    "small": (4_794_881, 4_002_864, 4_891_697),
    "base": (11_684_353, 4_430_640, 12_208_945),
    "large": (17_684_993, 4_791_984, 18_570_929),
}


def count(*modules: nn.Module) -> int:
    """Numbers that are trained, a shared one once."""
    return sum(parameter.numel() for parameter in {p for module in modules for p in module.parameters()})


def build_pair(preset: str, **changes: object) -> Electra:
    config = PRESETS[preset]
    model = replace(config.model, **changes)  # type: ignore[arg-type]
    with torch.device("meta"):
        return Electra(config.rtd.generator(model), model)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("initialization", ["normal", "local"])
def test_every_preset_builds_without_memory(preset: str, initialization: str) -> None:
    pair = build_pair(preset, initialization=initialization)
    assert all(parameter.is_meta for parameter in pair.parameters())


@pytest.mark.parametrize("preset", PAIR)
def test_pair_has_the_published_number_of_parameters(preset: str) -> None:
    pair = build_pair(preset)
    assert (count(pair.discriminator), count(pair.generator), count(pair)) == PAIR[preset]


@pytest.mark.parametrize("preset", BODY)
def test_encoder_and_mlm_model_are_as_large_as_stock_albert(preset: str) -> None:
    config = PRESETS[preset].model
    with torch.device("meta"):
        generator = Generator(config, Embeddings(config))
    assert count(generator.embeddings, generator.encoder) == BODY[preset]
    assert count(generator) == MASKED_LM[preset]


def test_unshared_variant_has_blocks_of_its_own_for_every_layer() -> None:
    shared, unshared = build_pair("small"), build_pair("small", num_hidden_groups=12)
    block = count(shared.discriminator.encoder.albert_layer_groups)
    assert count(unshared.discriminator) - count(shared.discriminator) == 11 * block


def test_blocks_run_once_for_each_layer_and_inner_block() -> None:
    config = ModelConfig(hidden_size=12, num_hidden_layers=6, num_hidden_groups=2, inner_group_num=2)
    with torch.device("meta"):
        model = Discriminator(config, Embeddings(config))
    calls: list[str] = []
    for name, module in model.named_modules():
        if name.endswith("ffn_output"):
            module.register_forward_hook(lambda *_, name=name: calls.append(".".join(name.split(".")[2:5:2])))
    ids = torch.zeros(2, 5, dtype=torch.int64, device="meta")
    model(ids, ids.bool(), ids)
    assert calls == ["0.0", "0.1"] * 3 + ["1.0", "1.1"] * 3


# Planted: a table of its own for each model. The counts must tell a shared table from two.
def test_count_rejects_a_pair_whose_tables_are_not_shared() -> None:
    pair = build_pair("small")
    with torch.device("meta"):
        pair.generator.embeddings = Embeddings(pair.generator.config)
    assert count(pair) != PAIR["small"][2]
