"""Locating model files by a path, loading models and task models from them, and partial loading."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.hub import load
from electra_albert.hub.find import ModelFiles, locate
from electra_albert.hub.formats import TABLE, to_stock
from electra_albert.model.electra import Generator
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.hub.models import assert_same_tensors, make, write
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, make_encoder, make_masked_lm, make_pair, padded_batch

WEIGHTS = "model.safetensors"
SENTENCES = TaskHead("sequence", 5)
BIAS, SOURCE = "predictions.bias", "the old model"


def test_pt_file_gives_the_same_model_flat_or_nested(tmp_path: Path) -> None:
    saved = make_pair(SHAPE).generator
    (write(tmp_path, saved) / WEIGHTS).unlink()
    weights = to_stock(saved.state_dict())
    for content in (weights, {"model": weights, "step": 7}, {"state_dict": weights}):
        torch.save(content, tmp_path / "weights.pt")
        found = load.build(load.read_stored(locate(tmp_path, "generator")), Generator)
        assert_same_tensors(found.state_dict(), saved.state_dict())


def test_encoder_of_a_run_is_the_discriminator_if_there_is_one(tmp_path: Path) -> None:
    for name in ("", "model", "generator", "discriminator"):
        folder = write(tmp_path / name, make_pair(SHAPE).generator)
        for path in (tmp_path, folder / WEIGHTS):
            assert locate(path) == ModelFiles(folder / WEIGHTS, folder / "config.json", folder)
        (tmp_path / WEIGHTS).unlink(missing_ok=True)
    for kind, name in (("task", "model"), ("any", "generator"), ("generator", "generator")):
        assert locate(tmp_path, kind).config.parent == tmp_path / name


def test_path_without_a_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / ("a" * 5000), Path("a\0b"), Path("/dev/null")):
        with pytest.raises(UsageError, match="does not exist"):
            locate(path, "discriminator")
    # Regression: a run without a discriminator was reported as unfinished.
    for made, word in (("checkpoints", "has not finished yet"), ("generator", "but generator/")):
        (tmp_path / made).mkdir()
        with pytest.raises(UsageError, match=word):
            locate(tmp_path, "discriminator")
    (tmp_path / WEIGHTS).touch()
    with pytest.raises(UsageError, match=r"config\.json does not exist"):
        locate(tmp_path, "task")


def test_resizing_keeps_the_first_tokens_and_appends_means_of_old_ones() -> None:
    kept, state = SHAPE.vocab_size - 3, make_masked_lm(SHAPE).state_dict()
    before = deepcopy(state)
    resized = load.resize_vocabulary(state, kept, [[7], [9, 4, 9]])
    assert_same_tensors(state, before)
    for name, old in before.items():
        rows = resized.pop(name)
        if name not in (TABLE, BIAS):
            assert torch.equal(rows, old), name
            continue
        assert len(rows) == kept + 2
        assert torch.equal(rows[:kept], old[:kept])
        assert torch.equal(rows[-2], old[7])
        assert torch.allclose(rows[-1], (old[9] + old[4] + old[9]) / 3, rtol=1e-6, atol=1e-7)  # float32 sums
    assert not resized


def test_parts_missing_from_the_state_are_returned_and_not_changed() -> None:
    model, state = make_masked_lm(SHAPE, seed=8), make_encoder(SHAPE, with_pooler=False).state_dict()
    before = deepcopy(model.state_dict())
    new = ["predictions", "sentence_order.pooler", "sentence_order.classifier"]
    assert load.load_partial(model, state, SOURCE) == new
    assert_same_tensors(model.state_dict(), before | state)


def test_a_pooler_without_an_order_head_is_copied() -> None:
    # Regression: released ALBERT models have a trained pooler and no order classifier; both were reinitialized.
    model, state = make_masked_lm(SHAPE, seed=8), make_masked_lm(SHAPE).state_dict()
    for part in ("weight", "bias"):
        del state[f"sentence_order.classifier.{part}"]
    assert load.load_partial(model, state, SOURCE) == ["sentence_order.classifier"]
    pooler = "sentence_order.pooler.weight"
    assert torch.equal(model.state_dict()[pooler], state[pooler])


def test_an_incomplete_encoder_or_one_of_another_shape_is_refused_and_nothing_is_copied() -> None:
    model, lacking = make_masked_lm(SHAPE, seed=8), make_masked_lm(SHAPE).state_dict()
    before, wider = deepcopy(model.state_dict()), make_masked_lm(replace(SHAPE, intermediate_size=41)).state_dict()
    del lacking[TABLE]
    for other, word in ((lacking, f"{SOURCE} has no {TABLE}"), (wider, r"ffn.* has shape")):
        with pytest.raises(CheckpointError, match=word):
            load.load_partial(model, other, SOURCE)
    assert_same_tensors(model.state_dict(), before)


def build(folder: Path, head: TaskHead = SENTENCES, seed: int = 3) -> tuple[TaskModel, list[str]]:
    files = locate(folder)
    torch.manual_seed(seed)
    return load.build_task_model(load.read_config(files), head, files)


SOURCES = {
    "discriminator": (lambda: make_pair(SHAPE).discriminator, ["pooler", "classifier"]),
    "generator of mlm_sop": (lambda: make_masked_lm(SHAPE), ["classifier"]),
    "fine-tuned on tags": (lambda: make_task_model(TaskHead("token", 5)), ["pooler", "classifier"]),
}


@pytest.mark.parametrize(("make_source", "new"), SOURCES.values(), ids=SOURCES)
def test_encoder_is_copied_and_new_parts_are_returned(tmp_path: Path, make_source: Any, new: Any) -> None:
    source = make_source()
    model, found = build(write(tmp_path, source))
    assert found == new
    assert torch.equal(*(each.encode(*padded_batch()[:3]) for each in (model, source)))
    if "pooler" not in new:
        assert torch.equal(model.get_parameter("pooler.weight"), source.sentence_order.pooler.weight)


def test_initial_head_depends_on_the_seed_only(tmp_path: Path) -> None:
    sources = {"one": make_pair(SHAPE).discriminator, "two": make_masked_lm(SHAPE)}
    on_encoders = [build(write(tmp_path / name, source))[0] for name, source in sources.items()]
    torch.manual_seed(3)
    from_scratch, new = load.build_task_model(SHAPE, SENTENCES, None)
    assert set(new) == {name.split(".")[0] for name, _ in from_scratch.named_parameters()}
    for model in on_encoders:
        assert torch.equal(model.output.weight, from_scratch.output.weight)
        assert not any(parameter.is_meta or not parameter.requires_grad for parameter in model.parameters())
    assert not torch.equal(build(tmp_path / "one", seed=4)[0].output.weight, from_scratch.output.weight)


@pytest.mark.parametrize(
    ("removed", "details", "word"),
    [
        (["albert.pooler.weight"], {}, "pooler.weight"),
        (["classifier.weight", "classifier.bias"], {}, "has no classifier"),
        ([], {"labels": ["a", "b"]}, "has shape"),
        ([], {"labels": ["a", "a", "b", "c", "d"]}, load.TASK_FILE),
        ([], {"columns": {"text": "review", "pair": []}}, load.TASK_FILE),
        ([], {"max_seq_length": 7}, load.TASK_FILE),
    ],
    ids=str,
)
def test_damaged_task_folder_is_refused(tmp_path: Path, removed: list[str], details: dict[str, Any], word: str) -> None:
    folder = write(tmp_path, make_task_model(SENTENCES))
    valid = {"kind": "sequence", "style": "albert", "labels": list("abcde"), "columns": {"text": ["a"], "pair": []}}
    (folder / load.TASK_FILE).write_text(json.dumps(valid))
    load.load_task_model(locate(folder))
    (folder / load.TASK_FILE).write_text(json.dumps(valid | details))
    kept = {name: tensor for name, tensor in load_file(folder / WEIGHTS).items() if name not in removed}
    save_file(kept, folder / WEIGHTS)
    with pytest.raises(CheckpointError, match=word):
        load.load_task_model(locate(folder))


@pytest.mark.parametrize(
    ("kind", "name", "default"), [("bert", "classifier_dropout", 0.3), ("albert", "classifier_dropout_prob", 0.1)]
)
def test_dropout_of_the_head_is_the_one_stock_applies(tmp_path: Path, kind: str, name: str, default: float) -> None:
    # Regression: BERT without classifier_dropout uses hidden_dropout_prob; it was read as ALBERT's default 0.1.
    make(kind, f"{kind.capitalize()}ForSequenceClassification").save_pretrained(tmp_path)
    files = locate(tmp_path)
    contents = json.loads(files.config.read_text()) | {"hidden_dropout_prob": 0.3}
    contents.pop(name, None)
    for value, wanted in ((0.25, 0.25), (None, default), (0, 0.0)):
        files.config.write_text(json.dumps(contents | {name: value}))
        assert load.load_task_model(files)[0].head.dropout == wanted
    files.config.write_text(json.dumps(contents | {name: 7}))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load.load_task_model(files)
