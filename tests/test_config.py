"""Settings have defaults, help and checks; the generator's architecture follows from the
discriminator's.
"""

import inspect
from dataclasses import FrozenInstanceError, fields, replace

import pytest
import yaml

from electra_albert.config.finetuning import FinetuneConfig
from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import MlmConfig, RtdConfig, SopConfig
from electra_albert.config.presets import PRESETS
from electra_albert.config.pretraining import CorpusConfig, PretrainConfig, RunConfig, as_settings
from electra_albert.config.training import TrainingConfig
from electra_albert.objectives import OBJECTIVES
from tests.refusals import rows

# Values just outside the allowed ones, as YAML.
IMPOSSIBLE = """
ModelConfig    | hidden_size             | [250, 0]
ModelConfig    | num_attention_heads     | [0]
ModelConfig    | num_hidden_layers       | [0, 1000000000]
ModelConfig    | vocab_size              | [5]
ModelConfig    | max_position_embeddings | [7, 1000000000]
ModelConfig    | hidden_dropout_prob     | [1.5, .nan]
RtdConfig      | mask_rate               | [0.0, 1.0]
RtdConfig      | temperature             | [0.0, .nan]
RtdConfig      | generator_size          | [0.0]
RtdConfig      | generator_weight        | [.inf]
RtdConfig      | mlm_share               | [1.0]
RtdConfig      | mlm_weight              | [2.0]
CorpusConfig   | corpus                  | [""]
CorpusConfig   | max_seq_length          | [7]
CorpusConfig   | vocab_size              | [5]
CorpusConfig   | encoding                | [utf-16, unicode_escape, no-such]
TrainingConfig | max_steps               | [0]
TrainingConfig | learning_rate           | [0.0, .nan]
TrainingConfig | weight_decay            | [1.0]
TrainingConfig | report_to               | ["", "none,wandb", "wandb,", w]
TrainingConfig | max_grad_norm           | [0.0]
TrainingConfig | seed                    | [-1]
TrainingConfig | lr_decay_share          | [-0.1, 1.1, 0.3]
TrainingConfig | muon_rate               | [0.0]
RunConfig      | eval_max_pairs          | [0]
MlmConfig      | mask_rate               | [0.0]
MlmConfig      | random_token_share      | [0.3, -0.1]
SopConfig      | weight                  | [0.0]
"""
KINDS = (ModelConfig, RtdConfig, CorpusConfig, TrainingConfig, RunConfig, MlmConfig, SopConfig)
FLAT = (RunConfig, CorpusConfig, TrainingConfig)


def test_an_invalid_value_is_refused_in_one_line_with_name_and_value() -> None:
    kinds = {kind.__name__: kind for kind in KINDS}
    for kind, name, values in rows(IMPOSSIBLE):
        for value in yaml.safe_load(values):
            with pytest.raises(ValueError, match=name) as refused:
                kinds[kind](**{name: value})
            message = str(refused.value)
            assert "\n" not in message
            assert str(value) in message or name == "random_token_share"
    with pytest.raises(
        ValueError, match=r"max_seq_length=600 exceeds model\.max_position_embeddings=512"
    ):
        PretrainConfig(corpus=CorpusConfig(max_seq_length=600))
    with pytest.raises(ValueError, match=r"training\.max_steps"):
        FinetuneConfig(training=TrainingConfig(max_steps=7))


@pytest.mark.parametrize("share", [0.02, 0.99])
def test_an_mlm_share_that_leaves_nothing_to_predict_or_to_replace_is_refused(share: float) -> None:
    with pytest.raises(
        ValueError, match=f"mlm_share={share} of the 19 tokens selected in 128 leaves none"
    ):
        PretrainConfig(rtd=RtdConfig(mlm_share=share))
    with pytest.raises(
        ValueError, match=r"mlm_share=0.1 of the 4 tokens selected in 32 leaves none to predict"
    ):
        PretrainConfig(rtd=RtdConfig(mlm_share=0.1), corpus=CorpusConfig(max_seq_length=32))
    PretrainConfig(rtd=RtdConfig(mlm_share=0.5, mask_rate=0.3))


def test_settings_are_frozen_and_have_a_default_and_help() -> None:
    for kind in KINDS:
        settings, source = kind(), inspect.getsource(kind)
        for field in fields(kind):
            with pytest.raises(FrozenInstanceError):
                setattr(settings, field.name, None)
            declared = source.split(f"    {field.name}:", 1)[1].splitlines()
            assert declared[1].strip().startswith('"""'), f"{field.name} has no help"


def test_the_generator_has_a_quarter_of_the_width_and_the_same_depth_and_head_size() -> None:
    discriminator = PRESETS["large"].model
    expected = replace(
        discriminator, hidden_size=256, intermediate_size=1024, num_attention_heads=4
    )
    assert RtdConfig(generator_size=0.25).generator_config(discriminator) == expected
    assert expected.head_size == discriminator.head_size


def test_a_generator_of_another_depth_shares_parameters_as_the_discriminator() -> None:
    for groups, layers, expected in ((1, 3, 1), (3, 6, 3), (12, 4, 4), (3, 2, 2)):
        discriminator = replace(PRESETS["small"].model, num_hidden_groups=groups)
        generator = RtdConfig(generator_layers=layers).generator_config(discriminator)
        assert (generator.num_hidden_layers, generator.num_hidden_groups) == (layers, expected)


def test_a_generator_depth_that_is_no_multiple_of_the_groups_is_refused() -> None:
    shape = replace(PRESETS["small"].model, num_hidden_groups=3)
    config = replace(PRESETS["small"], model=shape, rtd=RtdConfig(generator_layers=4))
    with pytest.raises(
        ValueError, match="_layers=4 is not a multiple of model\\.num_hidden_groups=3; choose"
    ):
        OBJECTIVES["rtd"].generator(config)
    assert OBJECTIVES["mlm"].generator(config) == shape  # has no separate generator


def test_written_settings_build_an_equal_config() -> None:
    config = replace(PRESETS["base"], training=TrainingConfig(seed=7), rtd=RtdConfig(mask_rate=0.3))
    settings = as_settings(config)
    flat = (kind(**{field.name: settings[field.name] for field in fields(kind)}) for kind in FLAT)
    assert (
        PretrainConfig(*flat, ModelConfig(**settings["model"]), RtdConfig(**settings["rtd"]))
        == config
    )


def test_flat_options_have_unique_names() -> None:
    # A `seed` in CorpusConfig would silently overwrite the run's in config.yaml.
    flat = [field.name for kind in FLAT for field in fields(kind)]
    assert len(flat) == len(set(flat))
    assert not {"model", "rtd"} & set(flat)
