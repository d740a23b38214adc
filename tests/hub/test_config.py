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


def test_configuration_comes_back_as_it_went() -> None:
    for act in get_args(get_type_hints(ModelConfig)["hidden_act"]):
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


WRONG: list[dict[str, Any]] = [
    {"model_type": "gpt2"},
    {"model_type": "al\n\x1b[31mbert" * 90_000},
    {"model_type": "electra_albert", "format": 2},
    {"hidden_act": "swish"},
    {"hidden_size": "21"},
    {"vocab_size": 10**18},
    {"initializer_range": 10**400},
    {"layer_norm_eps": float("nan")},
    {"auto_map": {"AutoModel": "evil.Model"}},
    {"position_embedding_type": "relative_key"},
]


@pytest.mark.parametrize("change", WRONG, ids=lambda change: ascii(change)[:60])
def test_configuration_that_cannot_be_is_refused_in_one_short_line(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json") as refused:
        model_config(CONTENTS | change, "config.json")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text", [b"", b"[" * 100_000, b"1" * 5000, b" " * (1 << 21), b"\xff{"], ids=lambda text: ascii(text)[:20]
)
def test_file_that_is_no_small_json_object_is_refused_in_one_short_line(tmp_path: Path, text: bytes) -> None:
    (file := tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"config\.json") as refused:
        read_json(file)
    assert str(refused.value).isprintable()
