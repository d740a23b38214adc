"""Locating model files by a path, loading models and task models from them, and partial loading."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra_albert.hub import load
from electra_albert.hub.find import ModelFiles, locate
from electra_albert.hub.formats import TABLE, to_stock
from electra_albert.model.electra import Generator
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.hub.models import assert_same_tensors, make, write
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, make_encoder, make_masked_lm, make_pair, padded_batch
from tests.refusals import assert_refused, rows

WEIGHTS = "model.safetensors"
SENTENCES = TaskHead("sequence", 5)
SOURCE = "the old model"


def test_pt_file_gives_the_same_model_flat_or_nested(tmp_path: Path) -> None:
    saved = make_pair(SHAPE).generator
    (write(tmp_path, saved) / WEIGHTS).unlink()
    weights = to_stock(saved.state_dict())
    for content in (weights, {"model": weights, "step": 7}, {"state_dict": weights}):
        torch.save(content, tmp_path / "weights.pt")
        actual = load.build(load.read_stored(locate(tmp_path, "generator")), Generator)
        assert_same_tensors(actual.state_dict(), saved.state_dict())


def test_encoder_of_a_run_is_the_discriminator_if_there_is_one(tmp_path: Path) -> None:
    for name in ("", "model", "generator", "discriminator"):
        folder = write(tmp_path / name, make_pair(SHAPE).generator)
        for path in (tmp_path, folder / WEIGHTS):
            assert locate(path) == ModelFiles(folder / WEIGHTS, folder / "config.json", folder)
        (tmp_path / WEIGHTS).unlink(missing_ok=True)
    for kind, name in (("task", "model"), ("any", "generator"), ("generator", "generator")):
        assert locate(tmp_path, kind).config.parent == tmp_path / name


def test_path_without_a_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    def refuse(path: Path, word: str, kind: str = "discriminator") -> None:
        assert_refused("UsageError", word, locate, path, kind)

    for path in (tmp_path / "none", tmp_path / ("a" * 5000), Path("/dev/null")):
        refuse(path, "does not exist")
    # Regression: a run without a discriminator was reported as unfinished.
    for made, word in (("checkpoints", "has not finished yet"), ("generator", "but generator/")):
        (tmp_path / made).mkdir()
        refuse(tmp_path, word)
    (tmp_path / WEIGHTS).touch()
    refuse(tmp_path, "config.json", "task")


def test_resizing_keeps_the_first_tokens_and_appends_means_of_old_ones() -> None:
    size = SHAPE.vocab_size - 3
    state = make_masked_lm(SHAPE).state_dict()
    before = deepcopy(state)
    resized = load.resize_vocabulary(state, size, [[7], [9, 4, 9]])
    assert_same_tensors(state, before)
    for name in (TABLE, "predictions.bias"):
        old = before.pop(name)
        rows = resized.pop(name)
        assert torch.equal(rows[:-1], torch.cat([old[:size], old[7:8]]))
        mean = (old[9] + old[4] + old[9]) / 3
        assert torch.allclose(rows[-1], mean, rtol=1e-6, atol=1e-7)  # float32 sums
    assert_same_tensors(resized, before)


def test_parts_missing_from_the_state_are_returned_and_not_changed() -> None:
    model = make_masked_lm(SHAPE, seed=8)
    state = make_encoder(SHAPE, with_pooler=False).state_dict()
    before = deepcopy(model.state_dict())
    new = ["predictions", "sentence_order.pooler", "sentence_order.classifier"]
    assert load.load_partial(model, state, SOURCE) == new
    assert_same_tensors(model.state_dict(), before | state)


def test_a_pooler_without_an_order_head_is_copied() -> None:
    # Regression: released ALBERT models have a trained pooler and no order classifier; both were
    # reinitialized.
    model, state = make_masked_lm(SHAPE, seed=8), make_masked_lm(SHAPE).state_dict()
    for part in ("weight", "bias"):
        del state[f"sentence_order.classifier.{part}"]
    assert load.load_partial(model, state, SOURCE) == ["sentence_order.classifier"]
    pooler = "sentence_order.pooler.weight"
    assert torch.equal(model.state_dict()[pooler], state[pooler])


def test_an_incomplete_encoder_or_one_of_another_shape_is_not_copied() -> None:
    model = make_masked_lm(SHAPE, seed=8)
    before = deepcopy(model.state_dict())
    lacking = make_masked_lm(SHAPE).state_dict()
    wider = make_masked_lm(replace(SHAPE, intermediate_size=41)).state_dict()
    del lacking[TABLE]
    for word, state in ((TABLE, lacking), ("ffn", wider)):
        partial = (load.load_partial, model, state, SOURCE)
        assert SOURCE in assert_refused("CheckpointError", word, *partial)
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
def test_encoder_is_copied_and_new_parts_are_returned(
    tmp_path: Path, make_source: Any, new: list[str]
) -> None:
    source = make_source()
    model, parts = build(write(tmp_path, source))
    assert parts == new
    inputs = padded_batch()[:3]
    assert torch.equal(model.encode(*inputs), source.encode(*inputs))
    if "pooler" not in new:
        pooler = source.sentence_order.pooler.weight
        assert torch.equal(model.get_parameter("pooler.weight"), pooler)


def test_initial_head_depends_on_the_seed_only(tmp_path: Path) -> None:
    torch.manual_seed(3)
    from_scratch, new = load.build_task_model(SHAPE, SENTENCES, None)
    weight = from_scratch.output.weight
    assert set(new) == {name.split(".")[0] for name, _ in from_scratch.named_parameters()}
    for source in (make_pair(SHAPE).discriminator, make_masked_lm(SHAPE)):
        model, _ = build(write(tmp_path, source))
        assert torch.equal(model.output.weight, weight)
        assert not any(tensor.is_meta or not tensor.requires_grad for tensor in model.parameters())
    assert not torch.equal(build(tmp_path, seed=4)[0].output.weight, weight)


# Names of tensors that are removed, changed details, and what the message names.
DAMAGED = """
albert.pooler | {}                                          | pooler.
classifier    | {}                                          | classifier
nothing       | {"labels": ["a", "b"]}                      | classifier.
nothing       | {"labels": ["a", "a", "b", "c", "d"]}       | electra_albert.json
nothing       | {"columns": {"text": "review", "pair": []}} | electra_albert.json
nothing       | {"max_seq_length": 7}                       | electra_albert.json
"""


@pytest.mark.parametrize(("removed", "details", "word"), rows(DAMAGED))
def test_damaged_task_folder_is_refused(
    tmp_path: Path, removed: str, details: str, word: str
) -> None:
    folder = write(tmp_path, make_task_model(SENTENCES))
    valid = {"kind": "sequence", "style": "albert", "labels": [*"abcde"]}
    valid |= {"columns": {"text": ["a"], "pair": []}}
    (folder / load.TASK_FILE).write_text(json.dumps(valid))
    load.load_task_model(locate(folder))
    (folder / load.TASK_FILE).write_text(json.dumps(valid | json.loads(details)))
    tensors = load_file(folder / WEIGHTS)
    remaining = {name: tensors[name] for name in tensors if not name.startswith(removed)}
    save_file(remaining, folder / WEIGHTS)
    assert_refused("CheckpointError", word, load.load_task_model, locate(folder))


# Regression: BERT without classifier_dropout uses hidden_dropout_prob; it was read as ALBERT's
# default 0.1.
@pytest.mark.parametrize("kind", ["bert classifier_dropout", "albert classifier_dropout_prob"])
def test_dropout_of_the_head_is_the_one_stock_applies(tmp_path: Path, kind: str) -> None:
    family, name = kind.split()
    default = {"bert": 0.3, "albert": 0.1}[family]
    make(family, f"{family.capitalize()}ForSequenceClassification").save_pretrained(tmp_path)
    files = locate(tmp_path)
    contents = json.loads(files.config.read_text()) | {"hidden_dropout_prob": 0.3}
    for value, expected in ((0.25, 0.25), (None, default), (0, 0.0)):
        files.config.write_text(json.dumps(contents | {name: value}))
        assert load.load_task_model(files)[0].head.dropout == expected
    files.config.write_text(json.dumps(contents | {name: 7}))
    assert_refused("CheckpointError", "config.json", load.load_task_model, files)
