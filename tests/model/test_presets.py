"""Presets have the published sizes."""

import pytest
import torch
from torch import nn

from electra_albert.config.presets import PRESETS
from electra_albert.model.electra import Electra, Generator
from electra_albert.model.encoder import EncoderModel
from tests.refusals import rows

ALBERT = """
base    | 11683584 11092992 11813810 11221680
large   | 17683968 16634368 17847474 16795824
xxlarge | 222595584 205814272 223158450 206368944
"""
PAIR = """
tiny | 4080129 3945520 4176945
tiny-modern | 4071593 3936900 4168493
small | 4745729 4118448 5007281
small-modern | 4728145 4101464 4989609
large | 17684993 4791984 18570929
"""


def counts(*modules: nn.Module) -> str:
    parameters = (module.parameters() for module in modules)
    return " ".join(str(sum(map(torch.numel, part))) for part in parameters)


@pytest.mark.parametrize(("preset", "expected"), rows(PAIR))
def test_pair_has_the_expected_number_of_parameters_and_shares_embeddings(
    preset: str, expected: str
) -> None:
    config = PRESETS[preset]
    with torch.device("meta"):
        pair = Electra(config.rtd.generator_config(config.model), config.model)
    assert counts(pair.discriminator, pair.generator, pair) == expected


@pytest.mark.parametrize(("preset", "expected"), rows(ALBERT))
def test_encoder_and_pretraining_models_have_the_expected_number_of_parameters(
    preset: str, expected: str
) -> None:
    config = PRESETS[preset].model
    with torch.device("meta"):
        encoders = [EncoderModel(config, with_pooler=with_pooler) for with_pooler in (True, False)]
        models = [Generator(config, with_sentence_order=has_order) for has_order in (True, False)]
    assert counts(*encoders, *models) == expected
