"""config.json, stock or of our own format: read as stock reads it, or refused in one short line."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.config import model_config, native_config, stock_config
from electra_albert.hub.weights import read_json
from tests.model.twins import SHAPE, SPECIAL_IDS

CONFIG = replace(SHAPE, num_hidden_groups=2, inner_group_num=2)
CONTENTS = stock_config(CONFIG, "AlbertForMaskedLM", SPECIAL_IDS)


@pytest.mark.parametrize("act", get_args(get_type_hints(ModelConfig)["hidden_act"]))
def test_configuration_comes_back_as_it_went(act: Any) -> None:
    config = replace(CONFIG, hidden_act=act, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    assert model_config(stock_config(config, "AlbertForMaskedLM", {}), "config.json") == config
    native = replace(config, initialization="local")
    assert model_config(json.loads(json.dumps(native_config(native, SPECIAL_IDS))), "config.json") == native


def test_configuration_holds_stock_keys_only_and_is_accepted_by_the_strict_stock_class() -> None:
    from transformers import AlbertConfig

    assert CONTENTS.keys() <= AlbertConfig().to_dict().keys() | {"architectures", "dtype"}
    assert AlbertConfig(**{k: v for k, v in CONTENTS.items() if k != "model_type"}).hidden_size == CONFIG.hidden_size


@pytest.mark.parametrize("kind", ["albert", "bert", "electra"])
def test_silent_keys_are_read_as_transformers_fills_them_in(kind: str) -> None:
    from transformers import AutoConfig

    ours, stock_defaults = model_config({"model_type": kind}, "config.json"), AutoConfig.for_model(kind)
    named = [field.name for field in fields(ModelConfig) if hasattr(stock_defaults, field.name)]
    assert len(named) > 11
    for name in named:
        assert getattr(ours, name) == getattr(stock_defaults, name), name


def test_keys_of_released_configurations_that_mean_nothing_are_tolerated() -> None:
    keys = {"down_scale_factor": 1, "gap_size": 0, "net_structure_type": 0, "num_memory_blocks": 0, "output_past": True}
    dropout = {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "_attn_implementation": "sdpa"}
    assert model_config({**CONTENTS, **keys, **dropout}, "config.json") == CONFIG


WRONG: list[dict[str, Any]] = [
    {"model_type": "gpt2"},
    {"model_type": ["albert"]},
    {"model_type": "al\n\x1b[31mbert" * 90_000},
    {"model_type": "electra_albert", "format": 2},
    {"model_type": "electra_albert", "format": 1, "attention": "none such"},
    {"model_type": "electra_albert", "format": 1, "attention_options": {"a": "b"}},
    {"hidden_act": "swish"},
    {"hidden_size": "21"},
    {"hidden_size": True},
    {"hidden_size": 22},
    {"vocab_size": 10**18},
    {"num_hidden_layers": 10**9},
    {"initializer_range": 10**400},
    {"layer_norm_eps": float("nan")},
    {"max_position_embeddings": 0},
    {"auto_map": {"AutoModel": "evil.Model"}},
    {"quantization_config": {"quant_method": "evil"}},
    {"position_embedding_type": "relative_key"},
    {"add_cross_attention": True},
    {"tie_word_embeddings": False},
]


@pytest.mark.parametrize("change", WRONG, ids=lambda change: ascii(change)[:60])
def test_configuration_that_cannot_be_is_refused_in_one_short_line(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json") as refused:
        model_config(CONTENTS | change, "config.json")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 100_000, '{"a": ' + "[" * 980 + "]" * 980, "1" * 5000, " " * (1 << 21), b"\xff{"],
    ids=lambda text: ascii(text)[:20],
)
def test_file_that_is_no_small_json_object_is_refused_in_one_short_line(tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CheckpointError, match=r"config\.json") as refused:
        read_json(file)
    assert str(refused.value).isprintable()


def test_a_value_nested_deeply_is_refused_by_its_name() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CheckpointError, match="hidden_size=a list"):
        model_config(CONTENTS | {"hidden_size": deep}, "config.json")
    while deep:  # taken apart from outside, or the interpreter's own recursion ends the process
        deep = deep[0]
