"""Any encoder a user gives is found and put under a task's head; a fine-tuned folder is loaded whole or refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.hub.names import to_stock
from electra_albert.hub.load import (
    TASK_FILE,
    ModelFiles,
    build_task_model,
    is_detector,
    load_task_model,
    locate_encoder,
    read_config,
)
from electra_albert.hub.config import stock_config
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.model.test_task_model import ALL_HEADS, make_task_model
from tests.model.twins import SHAPE, SPECIAL_IDS, make_masked_lm, make_pair, padded_batch, stock

SENTENCES = TaskHead("sequence", 5)
WEIGHTS = "model.safetensors"


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
    """Of any model of ours, on the test batch."""
    encoded = model.encoder(
        model.embeddings(padded_batch().input_ids, padded_batch().token_type_ids), padded_batch().attention_mask
    )
    return encoded.detach()


@pytest.mark.parametrize(
    ("folders", "found"),
    [
        (("generator", "discriminator", "model"), "discriminator"),
        (("generator", "model"), "generator"),
        (("model",), "model"),
        (("",), ""),
    ],
    ids=["run", "run without a discriminator", "fine-tuning", "model"],
)
def test_encoder_of_a_run_is_the_discriminators_where_there_is_one(
    tmp_path: Path, folders: tuple[str, ...], found: str
) -> None:
    for name in folders:
        write_model(tmp_path / name, make_pair(SHAPE).generator)
    folder = tmp_path / found
    assert locate_encoder(tmp_path) == ModelFiles(folder / WEIGHTS, folder / "config.json", folder)
    assert locate_encoder(folder / WEIGHTS) == ModelFiles(folder / WEIGHTS, folder / "config.json", folder)


def test_path_that_holds_no_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        locate_encoder(tmp_path / "away")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UsageError, match="its training has not ended yet"):
        locate_encoder(tmp_path)
    save_file(to_stock(make_pair(SHAPE).generator.state_dict()), tmp_path / WEIGHTS)
    with pytest.raises(UsageError, match=r"config\.json does not exist"):
        locate_encoder(tmp_path)


SOURCES = {
    "generator": (lambda: make_pair(SHAPE).generator, ["pooler", "classifier"]),
    "discriminator": (lambda: make_pair(SHAPE).discriminator, ["pooler", "classifier"]),
    "generator of mlm_sop": (lambda: make_masked_lm(SHAPE), ["classifier"]),
    "detector of rtd_sop": (lambda: make_pair(SHAPE, with_sentence_order=True).discriminator, ["classifier"]),
    "fine-tuned": (lambda: make_task_model(TaskHead("sequence", 3)), ["classifier"]),
    "fine-tuned without a pooler": (
        lambda: make_task_model(TaskHead("sequence", 3, "electra")),
        ["pooler", "classifier"],
    ),
    "fine-tuned on tags": (lambda: make_task_model(TaskHead("token", 5)), ["pooler", "classifier"]),
}


@pytest.mark.parametrize(("make", "new"), SOURCES.values(), ids=SOURCES)
def test_encoder_of_ours_is_taken_over_and_what_is_new_is_told(tmp_path: Path, make: Any, new: list[str]) -> None:
    source = make()
    model, told = build(write_model(tmp_path, source))
    assert told == new
    assert torch.equal(hidden_states(model), hidden_states(source))
    if "pooler" not in new:
        pooler = source.pooler if isinstance(source, TaskModel) else source.sentence_order.pooler
        assert model.pooler is not None
        assert torch.equal(model.pooler.weight, pooler.weight)
        assert torch.equal(model.pooler.bias, pooler.bias)


STOCK_SOURCES = {
    "AlbertModel": ["classifier"],
    "AlbertForMaskedLM": ["pooler", "classifier"],
    "AlbertForPreTraining": ["classifier"],
    "AlbertForSequenceClassification": ["classifier"],
    "AlbertForQuestionAnswering": ["pooler", "classifier"],
}


@pytest.mark.parametrize("form", [WEIGHTS, "pytorch_model.bin"])
@pytest.mark.parametrize("name", STOCK_SOURCES)
def test_stock_model_of_any_class_is_taken_over(tmp_path: Path, name: str, form: str) -> None:
    import transformers

    twin = getattr(transformers, name)(stock(SHAPE)).eval()
    twin.save_pretrained(tmp_path)
    if form != WEIGHTS:
        torch.save(load_file(tmp_path / WEIGHTS), tmp_path / form)
        (tmp_path / WEIGHTS).unlink()
    model, new = build(tmp_path)
    assert new == STOCK_SOURCES[name]
    body, batch = twin if name == "AlbertModel" else twin.albert, padded_batch()
    found = body(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    torch.testing.assert_close(hidden_states(model), found.last_hidden_state, rtol=1e-5, atol=1e-5)
    if "pooler" not in new:
        pooled = model.pooler(hidden_states(model)[:, 0]).tanh()  # type: ignore[misc]
        torch.testing.assert_close(pooled, found.pooler_output, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head", ALL_HEADS.values(), ids=ALL_HEADS)
def test_seed_gives_the_head_the_same_weights_whatever_lies_below(tmp_path: Path, head: TaskHead) -> None:
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


def test_detector_is_told_from_other_models(tmp_path: Path) -> None:
    pair = make_pair(SHAPE)
    assert is_detector(locate_encoder(write_model(tmp_path / "one", pair.discriminator)))
    assert not is_detector(locate_encoder(write_model(tmp_path / "two", pair.generator)))


@pytest.mark.parametrize("head", ALL_HEADS.values(), ids=ALL_HEADS)
def test_fine_tuned_folder_gives_the_model_back_with_what_is_known_of_its_task(tmp_path: Path, head: TaskHead) -> None:
    model = make_task_model(head)
    loaded, details = load_task_model(locate_encoder(write_fine_tuned(tmp_path, model)))
    assert loaded.head == head
    assert details["task"] == "mine"
    assert not loaded.training
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert loaded.state_dict().keys() == model.state_dict().keys()


def change_weights(folder: Path, **changes: Tensor | None) -> None:
    tensors = {**load_file(folder / WEIGHTS), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / WEIGHTS)


MAPPING = "albert.encoder.embedding_hidden_mapping_in.weight"


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (MAPPING, None, "has no encoder.embedding_hidden_mapping_in.weight"),
        (MAPPING, torch.zeros(3, 2), r"has shape \[3, 2\]"),
        ("albert.pooler.weight", None, r"has no pooler\.weight"),
        ("albert.encoder.extra", torch.zeros(2), "holds encoder.extra"),
    ],
)
def test_encoder_that_does_not_fit_is_refused(tmp_path: Path, name: str, tensor: Tensor | None, message: str) -> None:
    folder = write_model(tmp_path, make_task_model(SENTENCES))
    change_weights(folder, **{name: tensor})
    with pytest.raises(CheckpointError, match=message):
        build(folder)


def test_configuration_of_another_size_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    folder = write_model(tmp_path, make_pair(SHAPE).discriminator)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": (1 << 31) - 1}))
    began = time.monotonic()
    with pytest.raises(CheckpointError, match="its configuration says"):
        build(folder)
    assert time.monotonic() - began < 5


def test_fine_tuned_folder_without_its_head_is_refused(tmp_path: Path) -> None:
    folder = write_fine_tuned(tmp_path, make_task_model(SENTENCES))
    change_weights(folder, **{"classifier.weight": None, "classifier.bias": None})
    with pytest.raises(CheckpointError, match="has no classifier: the head of the task is missing"):
        load_task_model(locate_encoder(folder))


def test_folder_that_was_fine_tuned_for_nothing_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, make_task_model(SENTENCES))
    with pytest.raises(CheckpointError, match="names no fine-tuned model"):
        load_task_model(locate_encoder(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["a", "b"]}, "has shape"),
        ({"labels": "abcde"}, "describes no head"),
        ({"labels": [1, 2]}, "describes no head"),
        ({"labels": []}, "describes no head"),
        ({"kind": "parse"}, "describes no head"),
        ({"kind": ["sequence"]}, "describes no head"),
        ({"style": None}, "describes no head"),
        ({"style": "electra"}, "the head of the task is missing"),
        ({"max_seq_length": "long"}, "lengths or columns that no fine-tuning has"),
        ({"columns": {"text": "review", "pair": []}}, "lengths or columns that no fine-tuning has"),
    ],
    ids=str,
)
def test_task_file_that_does_not_describe_the_head_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = write_fine_tuned(tmp_path, make_task_model(SENTENCES), **changes)
    with pytest.raises(CheckpointError, match=message) as refused:
        load_task_model(locate_encoder(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("contents", ["", "[]", "{", '{"kind": "sequence"}', "[" * 100_000])
def test_task_file_that_is_damaged_is_refused(tmp_path: Path, contents: str) -> None:
    folder = write_fine_tuned(tmp_path, make_task_model(SENTENCES))
    (folder / TASK_FILE).write_text(contents)
    with pytest.raises(CheckpointError, match=TASK_FILE):
        load_task_model(locate_encoder(folder))
