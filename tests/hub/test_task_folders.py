"""Any encoder a user gives is put under a task's head; a fine-tuned folder is loaded whole or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra_albert.contracts import CheckpointError
from electra_albert.hub.config import stock_config, stock_details
from electra_albert.hub.load import (
    TASK_FILE,
    build_task_model,
    load_task_model,
    locate_encoder,
    read_config,
)
from electra_albert.hub.names import to_stock
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.hub.stock_models import make, save
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, SPECIAL_IDS, make_masked_lm, make_pair, padded_batch

SENTENCES = TaskHead("sequence", 5)
WEIGHTS = "model.safetensors"
CONTENTS = stock_config(SHAPE, "AlbertForSequenceClassification", SPECIAL_IDS)


def write_model(folder: Path, model: nn.Module) -> Path:
    """A folder with the weights and the shape of a model of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_stock(model.state_dict()), folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(stock_config(SHAPE, "AlbertModel", SPECIAL_IDS)))
    return folder


def write_fine_tuned(folder: Path, model: TaskModel, **changes: Any) -> Path:
    write_model(folder, model)
    is_regression = model.head.kind == "sequence" and model.head.num_labels == 1
    labels = [] if is_regression or model.head.kind in ("choice", "span") else list("abcdefg"[: model.head.num_labels])
    details = {"kind": model.head.kind, "style": model.head.style, "labels": labels, "is_regression": is_regression}
    (folder / TASK_FILE).write_text(json.dumps(details | {"task": "mine"} | changes))
    return folder


def build(folder: Path, head: TaskHead = SENTENCES, seed: int = 3) -> tuple[TaskModel, list[str]]:
    files = locate_encoder(folder)
    torch.manual_seed(seed)
    return build_task_model(read_config(files), head, files)


def hidden_states(model: Any) -> Tensor:
    batch = padded_batch()
    return model.encoder(model.embeddings(batch.input_ids, batch.token_type_ids), batch.attention_mask).detach()


SOURCES = {
    "discriminator": (lambda: make_pair(SHAPE).discriminator, ["pooler", "classifier"]),
    "generator of mlm_sop": (lambda: make_masked_lm(SHAPE), ["classifier"]),
    "fine-tuned on tags": (lambda: make_task_model(TaskHead("token", 5)), ["pooler", "classifier"]),
}


@pytest.mark.parametrize(("make_source", "new"), SOURCES.values(), ids=SOURCES)
def test_encoder_of_ours_is_taken_over_and_what_is_new_is_named(
    tmp_path: Path, make_source: Any, new: list[str]
) -> None:
    source = make_source()
    model, found = build(write_model(tmp_path, source))
    assert found == new
    assert torch.equal(hidden_states(model), hidden_states(source))
    if "pooler" not in new:
        pooler = source.pooler if isinstance(source, TaskModel) else source.sentence_order.pooler
        assert model.pooler is not None
        assert torch.equal(model.pooler.weight, pooler.weight)


def test_seed_gives_the_head_the_same_weights_whatever_is_below(tmp_path: Path) -> None:
    head = TaskHead("sequence", 5)
    below_others = [
        build(write_model(tmp_path / name, source), head)[0]
        for name, source in (("one", make_pair(SHAPE).discriminator), ("two", make_masked_lm(SHAPE)))
    ]
    torch.manual_seed(3)
    from_scratch, new = build_task_model(SHAPE, head, None)
    assert set(new) == {name.split(".")[0] for name, _ in from_scratch.named_parameters()}
    for model in below_others:
        assert torch.equal(model.output.weight, from_scratch.output.weight)
        assert not any(parameter.is_meta or not parameter.requires_grad for parameter in model.parameters())
    other = build(tmp_path / "one", head, seed=4)[0]
    assert not torch.equal(other.output.weight, from_scratch.output.weight)


@pytest.mark.parametrize(
    ("weights", "details", "word"),
    [
        ({"albert.pooler.weight": None}, {}, "pooler.weight"),
        ({"classifier.weight": None, "classifier.bias": None}, {}, "head of the task"),
        ({}, {"labels": ["a", "b"]}, "has shape"),
        ({}, {"kind": ["sequence"]}, TASK_FILE),
        ({}, {"columns": {"text": "review", "pair": []}}, TASK_FILE),
    ],
    ids=str,
)
def test_fine_tuned_folder_that_is_not_whole_is_refused(
    tmp_path: Path, weights: dict[str, Tensor | None], details: dict[str, Any], word: str
) -> None:
    folder = write_fine_tuned(tmp_path, make_task_model(SENTENCES), **details)
    tensors = {**load_file(folder / WEIGHTS), **weights}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / WEIGHTS)
    with pytest.raises(CheckpointError, match=word):
        load_task_model(locate_encoder(folder))


def details_of(**changes: Any) -> dict[str, Any]:
    return stock_details(CONTENTS | {"id2label": {"0": "no", "1": "yes"}} | changes, "config.json")


def test_task_of_a_stock_folder_is_that_of_its_class_and_its_labels_those_it_names() -> None:
    for kind, ending in (
        ("sequence", "SequenceClassification"),
        ("token", "TokenClassification"),
        ("span", "QuestionAnswering"),
    ):
        found = details_of(architectures=[f"ElectraFor{ending}"])
        assert (found["kind"], found["style"], found["is_regression"]) == (kind, "albert", False)
        assert found["labels"] == ([] if kind == "span" else ["no", "yes"])
    names = {str(number): f"label {number}" for number in (10, 2, 0, 1, 3, 9, 4, 5, 8, 7, 6)}
    assert details_of(id2label=names)["labels"] == [f"label {number}" for number in range(11)]
    for problem, labels in ((None, []), ("regression", []), ("single_label_classification", ["only"])):
        found = details_of(id2label={"0": "only"}, problem_type=problem)
        assert (found["is_regression"], found["labels"]) == (not labels, labels)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architectures": ["AlbertForMaskedLM"]}, "no fine-tuned model"),
        ({"architectures": ["evil\n\x1b[31m" * 90_000]}, "no fine-tuned model"),
        ({"problem_type": "multi_label_classification"}, "problem_type"),
        ({"id2label": {"0": "no", "2": "yes"}}, "id2label"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_task_that_cannot_be_read_is_refused_in_one_short_line(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(CheckpointError, match=word) as refused:
        details_of(**changes)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


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
    for value in ("x", [1], 7, float("nan")):
        files.config.write_text(json.dumps(contents | {name: value}))
        with pytest.raises(CheckpointError, match=r"config\.json"):
            load_task_model(files)
