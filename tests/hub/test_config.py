"""config.json, stock or in our format: configuration and task as stock reads them, or a one-line error."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from transformers import AlbertConfig, AutoConfig

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.formats import model_config, native_config, stock_config, stock_details
from electra_albert.hub.weights import read_json
from tests.model.twins import SHAPE, SPECIAL_IDS

CONFIG = replace(SHAPE, num_hidden_groups=2, inner_group_num=2)
CONTENTS = stock_config(CONFIG, "AlbertForMaskedLM", SPECIAL_IDS)


def test_configuration_round_trip() -> None:
    for act in get_args(get_type_hints(ModelConfig)["hidden_act"]):
        config = replace(CONFIG, hidden_act=act, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
        assert model_config(stock_config(config, "AlbertForMaskedLM", {}), "config.json") == config
        native = replace(config, initialization="local")
        assert model_config(json.loads(json.dumps(native_config(asdict(native)))), "config.json") == native


def test_configuration_holds_stock_keys_only() -> None:
    assert CONTENTS.keys() <= AlbertConfig().to_dict().keys() | {"architectures", "dtype"}


@pytest.mark.parametrize("kind", ["albert", "bert", "electra"])
def test_missing_keys_get_the_defaults_of_transformers(kind: str) -> None:
    ours, stock_defaults = model_config({"model_type": kind}, "config.json"), AutoConfig.for_model(kind)
    named = [field.name for field in fields(ModelConfig) if hasattr(stock_defaults, field.name)]
    assert len(named) > 11
    for name in named:
        assert getattr(ours, name) == getattr(stock_defaults, name), name


def details_of(**changes: Any) -> dict[str, Any]:
    named = {"architectures": ["AlbertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}
    return stock_details(CONTENTS | named | changes, "config.json")


def test_task_and_labels_of_a_stock_folder() -> None:
    tasks = {"SequenceClassification": "sequence", "TokenClassification": "token", "QuestionAnswering": "span"}
    for ending, kind in tasks.items():
        labels = [] if kind == "span" else ["no", "yes"]
        wanted = {"kind": kind, "style": "albert", "labels": labels, "is_regression": False}
        assert details_of(architectures=[f"ElectraFor{ending}"]) == wanted
    names = {str(number): f"label {number}" for number in (10, 2, 0, 1, 3, 9, 4, 5, 8, 7, 6)}
    assert details_of(id2label=names)["labels"] == [f"label {number}" for number in range(11)]
    for problem, labels in ((None, []), ("regression", []), ("single_label_classification", ["only"])):
        found = details_of(id2label={"0": "only"}, problem_type=problem)
        assert (found["is_regression"], found["labels"]) == (not labels, labels)


def test_a_stock_folder_whose_weights_contain_a_residual_scale_is_read() -> None:
    assert model_config(CONTENTS | {"residual_scale": 4.0}, "config.json") == model_config(CONTENTS, "config.json")


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (model_config, {"model_type": "gpt2"}, "type 'gpt2'"),
    (model_config, {"model_type": "electra_albert", "format": 2}, "format 2"),
    (model_config, {"hidden_act": "swish"}, "hidden_act"),
    (model_config, {"hidden_size": "21"}, "hidden_size='21'"),
    (model_config, {"vocab_size": 10**18}, "vocab_size"),
    (model_config, {"layer_norm_eps": float("nan")}, "layer_norm_eps"),
    (model_config, {"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
    (model_config, {"is_decoder": True}, "is_decoder"),
    (model_config, {"tie_word_embeddings": False}, "tie_word_embeddings"),
    (model_config, {"position_embedding_type": "relative_key"}, "relative_key"),
    (model_config, {"model_type": "electra_albert", "format": 1, "residual_scale": 4.0}, "residual_scale=4.0"),
    (model_config, {"model_type": "electra_albert", "format": 1, "attention_options": {"a": "b"}}, "attention_options"),
    (stock_details, {"architectures": ["evil\n\x1b[31m" * 90_000]}, "is not fine-tuned"),
    (stock_details, {"problem_type": "multi_label_classification"}, "problem_type"),
    (stock_details, {"id2label": {"0": "no", "2": "yes"}}, "id2label"),
    (stock_details, {"id2label": {"0": "no", "1": "yes"}, "problem_type": "regression"}, "regression of 2"),
]


@pytest.mark.parametrize(
    ("read", "change", "word"), WRONG, ids=lambda value: getattr(value, "__name__", ascii(value)[:50])
)
def test_invalid_configuration_is_refused_in_one_short_line(read: Any, change: Any, word: str) -> None:
    with pytest.raises(CheckpointError, match=word) as refused:
        read(CONTENTS | {"architectures": ["AlbertForSequenceClassification"]} | change, "config.json")
    assert "config.json" in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


NO_OBJECTS = (b"[" * 100_000, b"1" * 5000, b" " * (1 << 21), b"\xff{")


@pytest.mark.parametrize("text", NO_OBJECTS, ids=range(4))
def test_file_that_is_not_a_small_json_object_is_refused_in_one_short_line(tmp_path: Path, text: bytes) -> None:
    (file := tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"config\.json") as refused:
        read_json(file)
    assert str(refused.value).isprintable()
