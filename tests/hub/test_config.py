"""config.json, stock or ours: configuration and task as stock reads them, or an error."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from transformers import AlbertConfig, AutoConfig

from electra_albert.config.model import ModelConfig
from electra_albert.hub.formats import (
    NATIVE,
    model_config,
    native_config,
    stock_config,
    stock_details,
)
from electra_albert.hub.weights import read_json
from tests.model.twins import SHAPE, SPECIAL_IDS
from tests.refusals import assert_refused, rows

CONFIG = replace(SHAPE, num_hidden_groups=2, inner_group_num=2)
CONTENTS = stock_config(CONFIG, "AlbertForMaskedLM", SPECIAL_IDS)


@pytest.mark.parametrize("act", get_args(get_type_hints(ModelConfig)["hidden_act"]))
def test_configuration_round_trip(act: str) -> None:
    dropout = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    config = replace(CONFIG, hidden_act=act, **dropout)
    assert model_config(stock_config(config, "AlbertForMaskedLM", {}), "config.json") == config
    native = replace(config, initialization="local")
    contents = json.loads(json.dumps(native_config(asdict(native))))
    assert model_config(contents, "config.json") == native


def test_configuration_holds_stock_keys_only() -> None:
    assert CONTENTS.keys() <= AlbertConfig().to_dict().keys() | {"architectures", "dtype"}


@pytest.mark.parametrize("kind", ["albert", "bert", "electra"])
def test_missing_keys_get_the_defaults_of_transformers(kind: str) -> None:
    ours = asdict(model_config({"model_type": kind}, "config.json"))
    defaults = AutoConfig.for_model(kind).to_dict()
    named = ours.keys() & defaults.keys()
    assert len(named) > 11
    assert {name: ours[name] for name in named} == {name: defaults[name] for name in named}


def details_of(**changes: Any) -> dict[str, Any]:
    named = {"architectures": ["AlbertForSequenceClassification"]}
    named["id2label"] = {"0": "no", "1": "yes"}
    return stock_details(CONTENTS | named | changes, "config.json")


# The ending of a stock class and the kind of its head.
TASKS = """
SequenceClassification | sequence
TokenClassification    | token
QuestionAnswering      | span
"""
# problem_type of a folder with one label, and the labels.
PROBLEMS = """
null                          | []
"regression"                  | []
"single_label_classification" | ["only"]
"""


def test_task_and_labels_of_a_stock_folder() -> None:
    for ending, kind in rows(TASKS):
        labels = [] if kind == "span" else ["no", "yes"]
        expected = {"kind": kind, "style": "albert", "labels": labels, "is_regression": False}
        expected |= {"is_multi_label": False}
        assert details_of(architectures=[f"ElectraFor{ending}"]) == expected
    names = {str(number): f"label {number}" for number in reversed(range(11))}
    assert details_of(id2label=names)["labels"] == [f"label {number}" for number in range(11)]
    for problem, labels in rows(PROBLEMS):
        actual = details_of(id2label={"0": "only"}, problem_type=json.loads(problem))
        assert actual["labels"] == json.loads(labels)
        assert actual["is_regression"] == (labels == "[]")


def test_several_labels_per_text_are_recognised_by_their_problem_type() -> None:
    problem = "multi_label_classification"
    actual = details_of(id2label={"0": "a", "1": "b"}, problem_type=problem)
    assert (actual["is_multi_label"], actual["labels"]) == (True, ["a", "b"])


def test_a_stock_folder_whose_weights_contain_a_residual_scale_is_read() -> None:
    assert model_config(CONTENTS | {"residual_scale": 4.0}, "config.json") == CONFIG


WRONG = r"""
model   | 'gpt2'            | {"model_type": "gpt2"}
model   | format 2          | {"model_type": "native", "format": 2}
model   | hidden_act        | {"hidden_act": "swish"}
model   | hidden_size='21'  | {"hidden_size": "21"}
model   | vocab_size        | {"vocab_size": 1000000000000000000}
model   | layer_norm_eps    | {"layer_norm_eps": NaN}
model   | auto_map          | {"auto_map": {"AutoModel": "evil.Model"}}
model   | is_decoder        | {"is_decoder": true}
model   | tie_word_embed    | {"tie_word_embeddings": false}
model   | relative_key      | {"position_embedding_type": "relative_key"}
model   | residual_scale=4.0 | {"model_type": "native", "format": 1, "residual_scale": 4.0}
model   | attention_options | {"model_type": "native", "format": 1, "attention_options": {"a": "b"}}
details | evil              | {"architectures": ["evil\n\u001b[31m"]}
details | problem_type      | {"problem_type": "ranking"}
details | id2label          | {"id2label": {"0": "no", "2": "yes"}}
details | regression of 2   | {"id2label": {"0": "no", "1": "yes"}, "problem_type": "regression"}
"""
READ = {"model": model_config, "details": stock_details}


@pytest.mark.parametrize(("read", "word", "change"), rows(WRONG))
def test_invalid_configuration_is_refused_in_one_short_line(
    read: str, word: str, change: str
) -> None:
    changes = json.loads(change.replace("evil", "evil" * 90_000).replace("native", NATIVE))
    contents = CONTENTS | {"architectures": ["AlbertForSequenceClassification"]} | changes
    message = assert_refused("CheckpointError", word, READ[read], contents, "config.json")
    assert "config.json" in message
    assert len(message) < 300


NO_OBJECTS = (b"[" * 100_000, b"1" * 5000, b" " * (1 << 21), b"\xff{")


@pytest.mark.parametrize("text", NO_OBJECTS, ids=range(4))
def test_file_that_is_not_a_small_json_object_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text)
    assert_refused("CheckpointError", "config.json", read_json, file)
