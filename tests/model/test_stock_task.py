"""What a stock config.json says of model and task is read as stock reads it, or refused in one short line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import CheckpointError
from electra_albert.hub.load import load_generator, load_task_model
from electra_albert.hub.config import model_config, stock_config
from electra_albert.hub.config import stock_details
from tests.model.stock_models import C, make, save
from tests.model.twins import SHAPE, SPECIAL_IDS

CONTENTS = stock_config(SHAPE, "AlbertForSequenceClassification", SPECIAL_IDS)
FAMILIES = ("Albert", "Bert", "Electra")
NAMED = {"id2label": {"0": "no", "1": "yes"}}


def details(**changes: Any) -> dict[str, Any]:
    return stock_details(CONTENTS | NAMED | changes, "config.json")


def assert_refused(call: Callable[[], object], match: str) -> None:
    """CheckpointError with these words, in one short line without colours."""
    with pytest.raises(CheckpointError, match=match) as refused:
        call()
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        ("ForSequenceClassification", "sequence"),
        ("ForTokenClassification", "token"),
        ("ForMultipleChoice", "choice"),
        ("ForQuestionAnswering", "span"),
    ],
)
def test_kind_is_that_of_the_stock_class_and_labels_are_those_it_names(family: str, ending: str, kind: str) -> None:
    found = details(architectures=[family + ending])
    assert (found["kind"], found["style"], found["is_regression"]) == (kind, "albert", False)
    assert found["labels"] == (["no", "yes"] if kind in ("sequence", "token") else [])


def test_labels_are_in_the_order_of_their_numbers_not_of_the_file() -> None:
    names = {str(number): f"label {number}" for number in (10, 2, 0, 1, 3, 9, 4, 5, 8, 7, 6)}
    assert details(id2label=names)["labels"] == [f"label {number}" for number in range(11)]


def test_silence_means_the_two_labels_transformers_fills_in() -> None:
    from transformers import AlbertConfig

    assert stock_details(CONTENTS, "config.json")["labels"] == list(AlbertConfig().id2label.values())


@pytest.mark.parametrize("problem", [None, "regression"])
def test_one_label_is_a_number_as_in_stock(problem: str | None) -> None:
    found = details(id2label={"0": "LABEL_0"}, problem_type=problem)
    assert (found["is_regression"], found["labels"]) == (True, [])


def test_one_label_of_a_classification_is_a_label() -> None:
    found = details(id2label={"0": "only"}, problem_type="single_label_classification")
    assert (found["is_regression"], found["labels"]) == (False, ["only"])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architectures": None}, "names no fine-tuned model"),
        ({"architectures": []}, "names no fine-tuned model"),
        ({"architectures": "AlbertForSequenceClassification"}, "names no fine-tuned model"),
        ({"architectures": [["AlbertForSequenceClassification"]]}, "names no fine-tuned model"),
        ({"architectures": {"0": "AlbertForSequenceClassification"}}, "names no fine-tuned model"),
        ({"architectures": ["AlbertForMaskedLM"]}, "names no fine-tuned model"),
        ({"architectures": ["evil\n\x1b[31m" * 90_000]}, "names no fine-tuned model"),
        ({"problem_type": "multi_label_classification"}, "problem_type='multi_label_classification'"),
        ({"problem_type": "a\x1b[31m" * 90_000}, "problem_type="),
        ({"problem_type": ["regression"]}, "problem_type="),
        ({"problem_type": "regression"}, "regression of 2 numbers"),
        ({"id2label": None}, "id2label"),
        ({"id2label": {}}, "id2label"),
        ({"id2label": ["no", "yes"]}, "id2label"),
        ({"id2label": {"0": "no", "2": "yes"}}, "id2label"),
        ({"id2label": {"0": "no", "1": 1}}, "id2label"),
        ({"id2label": {"0": ["no"]}}, "id2label"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_task_that_cannot_be_read_is_refused(changes: dict[str, Any], match: str) -> None:
    assert_refused(lambda: details(**changes), match)


@pytest.mark.parametrize(
    "changes",
    [
        {"id2label": {"0": "a", "1": "a", "2": "b", "3": "c", "4": "d"}},
        {"classifier_dropout_prob": "x"},
        {"classifier_dropout_prob": [1]},
        {"classifier_dropout_prob": 7},
        {"classifier_dropout_prob": float("nan")},
        {"id2label": {str(number): str(number) for number in range(C + 1)}},
        {"id2label": {str(number): str(number) for number in range(30_000)}},
    ],
    ids=lambda changes: ascii(changes)[:50],
)
def test_fine_tuned_folder_whose_head_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    files = save(make("albert", "AlbertForSequenceClassification"), tmp_path)
    files.config.write_text(json.dumps(json.loads(files.config.read_text()) | changes))
    assert_refused(lambda: load_task_model(files), r"config\.json|has shape")


@pytest.mark.parametrize(
    ("kind", "name", "otherwise"), [("bert", "classifier_dropout", 0.3), ("albert", "classifier_dropout_prob", 0.1)]
)
def test_dropout_of_the_head_is_the_one_stock_applies(tmp_path: Path, kind: str, name: str, otherwise: float) -> None:
    # Regression: a BERT without one of its own has the encoder's, which was taken for ALBERT's 0.1.
    files = save(make(kind, f"{kind.capitalize()}ForSequenceClassification"), tmp_path)
    contents = json.loads(files.config.read_text()) | {"hidden_dropout_prob": 0.3}
    contents.pop(name, None)
    for value, wanted in ((0.25, 0.25), (None, otherwise), (0, 0.0)):
        files.config.write_text(json.dumps(contents | {name: value}))
        assert load_task_model(files)[0].head.dropout == wanted


HOSTILE: dict[str, dict[str, Any]] = {
    "auto_map as text": {"auto_map": "evil"},
    "auto_map as a list": {"auto_map": ["evil"]},
    "pipelines": {"custom_pipelines": {"a": {"impl": "evil.Pipeline"}}},
    "kernels of parts": {"_attn_implementation": {"": "evil/kernel"}},
    "kernels in a list": {"attn_implementation": ["evil/kernel"]},
    "type of 900 kB": {"model_type": "a" * 900_000},
    "type with colours": {"model_type": "al\n\x1b[31mbert"},
    "activation of 900 kB": {"hidden_act": "g" * 900_000},
    "size of 900 kB": {"hidden_size": "1" * 900_000},
    "size as a list": {"hidden_size": [21] * 10_000},
    "quantized": {"quantization_config": {"quant_method": "evil"}},
    "a long quantization": {"quantization_config": [1] * 100_000},
    "relative positions": {"position_embedding_type": "relative_key"},
    "decoder": {"is_decoder": True},
    "cross attention": {"add_cross_attention": True},
    "untied": {"tie_word_embeddings": False},
    "untied in a list": {"tie_word_embeddings": [True]},
    "no heads": {"num_attention_heads": 0},
    "heads below none": {"num_attention_heads": -3},
    "no segments": {"type_vocab_size": 0},
    "no positions": {"max_position_embeddings": 0},
    "infinite epsilon": {"layer_norm_eps": float("inf")},
    "epsilon below zero": {"layer_norm_eps": -1e-12},
    "dropout of all": {"hidden_dropout_prob": 2},
}
SIZES = [name for name, value in CONTENTS.items() if name in ("hidden_act", "model_type") or name.endswith("_size")]
SIZES += [
    name for name in CONTENTS if name.startswith(("num_", "inner_", "layer_", "hidden_drop", "attention_", "max_"))
]


@pytest.mark.parametrize("kind", ["albert", "bert", "electra"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_configuration_is_refused_for_every_family(name: str, kind: str) -> None:
    contents = CONTENTS | {"model_type": kind} | HOSTILE[name]
    assert_refused(lambda: model_config(contents, "config.json"), r"config\.json")


@pytest.mark.parametrize("name", SIZES)
def test_null_for_what_the_shape_needs_is_refused(name: str) -> None:
    assert_refused(lambda: model_config(CONTENTS | {name: None}, "config.json"), "None")


@pytest.mark.parametrize("depth", [300, 900, 980, 1_000, 100_000])
@pytest.mark.parametrize("key", ["hidden_size", "model_type", "quantization_config", "auto_map", "architectures"])
def test_nesting_of_any_depth_is_refused_in_one_line(tmp_path: Path, key: str, depth: int) -> None:
    files = save(make("albert", "AlbertForMaskedLM"), tmp_path)
    rest = {name: value for name, value in CONTENTS.items() if name != key}
    files.config.write_text(json.dumps(rest)[:-1] + f', "{key}": ' + "[" * depth + "]" * depth + "}")
    load = load_task_model if key == "architectures" else load_generator
    assert_refused(lambda: load(files), r"config\.json")
