"""Settings are complete, refused where they cannot be, and a generator's shape follows from its discriminator's."""

import inspect
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest

from electra_albert.config import (
    CorpusConfig,
    ModelConfig,
    PretrainConfig,
    RtdConfig,
    RunConfig,
    TrainingConfig,
    as_settings,
)
from electra_albert.objectives.registry import OBJECTIVES
from electra_albert.presets import PRESETS

NAN, INFINITE = float("nan"), float("inf")
IMPOSSIBLE: list[tuple[type, dict[str, object]]] = [
    (ModelConfig, {"hidden_size": 250}),
    (ModelConfig, {"hidden_size": 0}),
    (ModelConfig, {"num_attention_heads": 0}),
    (ModelConfig, {"num_hidden_layers": 0}),
    (ModelConfig, {"num_hidden_layers": 10**9}),
    (ModelConfig, {"num_hidden_groups": 5}),
    (ModelConfig, {"num_hidden_groups": 0}),
    (ModelConfig, {"inner_group_num": 0}),
    (ModelConfig, {"inner_group_num": 10**9}),
    (ModelConfig, {"intermediate_size": 10**9}),
    (ModelConfig, {"embedding_size": 10**9}),
    (ModelConfig, {"max_position_embeddings": 10**9}),
    (ModelConfig, {"max_position_embeddings": 7}),
    (ModelConfig, {"vocab_size": 5}),
    (ModelConfig, {"hidden_dropout_prob": 1.5}),
    (ModelConfig, {"attention_probs_dropout_prob": -0.1}),
    (ModelConfig, {"hidden_dropout_prob": NAN}),
    (ModelConfig, {"initializer_range": 0.0}),
    (ModelConfig, {"layer_norm_eps": NAN}),
    (RtdConfig, {"mask_rate": 0.0}),
    (RtdConfig, {"mask_rate": 1.0}),
    (RtdConfig, {"mask_token_share": 1.1}),
    (RtdConfig, {"temperature": 0.0}),
    (RtdConfig, {"temperature": NAN}),
    (RtdConfig, {"generator_size": 0.0}),
    (RtdConfig, {"generator_layers": 0}),
    (RtdConfig, {"generator_rate": 0.0}),
    (RtdConfig, {"discriminator_rate": NAN}),
    (RtdConfig, {"discriminator_weight": -1.0}),
    (RtdConfig, {"generator_weight": INFINITE}),
    (CorpusConfig, {"corpus": ""}),
    (CorpusConfig, {"max_seq_length": 7}),
    (CorpusConfig, {"vocab_size": 5}),
    (CorpusConfig, {"preprocessing_num_workers": 0}),
    *((CorpusConfig, {"encoding": name}) for name in ("utf-16", "iso2022_jp", "unicode_escape", "idna", "no-such")),
    (TrainingConfig, {"max_steps": 0}),
    (TrainingConfig, {"per_device_train_batch_size": 0}),
    (TrainingConfig, {"gradient_accumulation_steps": -1}),
    (TrainingConfig, {"learning_rate": 0.0}),
    (TrainingConfig, {"learning_rate": NAN}),
    (TrainingConfig, {"warmup_steps": -1}),
    (TrainingConfig, {"weight_decay": 1.0}),
    (TrainingConfig, {"adam_beta2": 1.0}),
    (TrainingConfig, {"adam_epsilon": 0.0}),
    (TrainingConfig, {"max_grad_norm": 0.0}),
    (TrainingConfig, {"save_total_limit": 0}),
    (TrainingConfig, {"seed": -1}),
]
PIECES = (RunConfig, CorpusConfig, TrainingConfig, ModelConfig, RtdConfig)


@pytest.mark.parametrize(("kind", "wrong"), IMPOSSIBLE, ids=lambda value: getattr(value, "__name__", str(value)))
def test_impossible_value_is_refused_by_name_and_value_in_one_line(kind: type, wrong: dict[str, object]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=name if name != "corpus" else "corpus is empty") as refused:
        kind(**wrong)
    message = str(refused.value)
    assert "\n" not in message
    assert str(value) in message


def test_row_longer_than_the_position_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_seq_length=600 exceeds model\.max_position_embeddings=512"):
        PretrainConfig(corpus=CorpusConfig(max_seq_length=600))


@pytest.mark.parametrize("kind", PIECES)
def test_settings_are_frozen_and_each_has_a_default_and_a_line_of_help(kind: type) -> None:
    settings = kind()
    assert is_dataclass(kind)
    source = inspect.getsource(kind)
    for field in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(settings, field.name, None)
        declared = source.split(f"    {field.name}:", 1)[1].splitlines()
        assert declared[1].strip().startswith('"""'), f"{field.name} has no help"


def test_presets_are_the_promised_ones_and_complete() -> None:
    assert list(PRESETS) == ["tiny", "small", "base", "large", "xlarge", "xxlarge"]
    sizes = {name: (preset.model.hidden_size, preset.model.num_hidden_layers) for name, preset in PRESETS.items()}
    del sizes["tiny"]
    assert sizes == {
        "small": (256, 12),
        "base": (768, 12),
        "large": (1024, 24),
        "xlarge": (2048, 24),
        "xxlarge": (4096, 12),
    }
    for name, preset in PRESETS.items():
        assert preset.model.hidden_dropout_prob == preset.model.attention_probs_dropout_prob == 0.0
        assert preset.rtd.discriminator_weight == 50 * preset.rtd.generator_weight
        assert preset.rtd.temperature == 1.0
        assert preset.corpus.max_seq_length <= preset.model.max_position_embeddings
        assert name == "tiny" or preset.model.embedding_size == 128


def test_generator_is_as_deep_and_a_quarter_as_wide_with_heads_of_the_same_size() -> None:
    discriminator = PRESETS["large"].model
    generator = RtdConfig(generator_size=0.25).generator(discriminator)
    assert (generator.hidden_size, generator.intermediate_size, generator.num_attention_heads) == (256, 1024, 4)
    assert generator.head_size == discriminator.head_size
    assert generator.num_hidden_layers == discriminator.num_hidden_layers


@pytest.mark.parametrize(
    ("groups", "layers", "expected"), [(1, 3, 1), (3, 6, 3), (12, 4, 4), (12, 12, 12), (3, 12, 3), (3, 1, 1), (3, 2, 2)]
)
def test_a_generator_of_another_depth_shares_parameters_as_its_discriminator_does(
    groups: int, layers: int, expected: int
) -> None:
    discriminator = replace(PRESETS["small"].model, num_hidden_groups=groups)
    generator = RtdConfig(generator_layers=layers).generator(discriminator)
    assert (generator.num_hidden_layers, generator.num_hidden_groups) == (layers, expected)


def test_a_depth_that_the_groups_do_not_divide_is_refused_before_anything_is_built() -> None:
    shape = replace(PRESETS["small"].model, num_hidden_groups=3)
    config = replace(PRESETS["small"], model=shape, rtd=RtdConfig(generator_layers=4))
    with pytest.raises(ValueError, match="_layers=4 is not a multiple of model\\.num_hidden_groups=3; give"):
        OBJECTIVES["rtd"].generator(config)
    assert OBJECTIVES["mlm"].generator(config) == shape  # which is not asked for such a generator


@pytest.mark.parametrize("size", [0.01, 0.1, 0.25, 0.3, 1 / 3, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("preset", PRESETS)
def test_generator_of_any_size_is_a_possible_shape(preset: str, size: float) -> None:
    discriminator = PRESETS[preset].model
    generator = RtdConfig(generator_size=size).generator(discriminator)
    assert 1 <= generator.hidden_size <= discriminator.hidden_size
    assert (generator.vocab_size, generator.embedding_size) == (discriminator.vocab_size, discriminator.embedding_size)
    assert (size < 1.0) or generator == discriminator


def test_settings_on_file_build_the_same_run_again() -> None:
    config = replace(PRESETS["base"], training=TrainingConfig(seed=7), rtd=RtdConfig(mask_rate=0.3))
    settings = as_settings(config)
    run = RunConfig(**{field.name: settings[field.name] for field in fields(RunConfig)})
    corpus = CorpusConfig(**{field.name: settings[field.name] for field in fields(CorpusConfig)})
    training = TrainingConfig(**{field.name: settings[field.name] for field in fields(TrainingConfig)})
    model, rtd = ModelConfig(**settings["model"]), RtdConfig(**settings["rtd"])
    again = PretrainConfig(run=run, corpus=corpus, training=training, model=model, rtd=rtd)
    assert again == config


def test_no_two_pieces_share_a_flat_name() -> None:
    # A `seed` in CorpusConfig would silently overwrite the run's in config.yaml.
    flat = [field.name for kind in (RunConfig, CorpusConfig, TrainingConfig) for field in fields(kind)]
    assert len(flat) == len(set(flat))
    assert not {"model", "rtd"} & set(flat)
