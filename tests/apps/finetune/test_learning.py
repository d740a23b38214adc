"""Finetuning.py from the command line: every kind of task is learned; its files and its exported
model.
"""

import csv
import json
import math
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from electra_albert.apps.finetune import main as finetune
from electra_albert.hub.load import load_task_model, locate
from electra_albert.inference.model import load_model
from tests.apps.conftest import Finished
from tests.apps.finetune.conftest import Tuned
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.apps.tiny_tasks import MAKERS, SEED, Tiny, results, tune

LOGITS_TOLERANCE = 1e-5  # float32, relative to the largest: different order of additions
Learn = Callable[[str], "Learned"]
STOCK_CLASSES = {
    **dict.fromkeys(("cola", "stsb"), "AutoModelForSequenceClassification"),
    "race": "AutoModelForMultipleChoice",
    "squad": "AutoModelForQuestionAnswering",
    "ner": "AutoModelForTokenClassification",
}


class Learned(NamedTuple):
    """A task learned from the tiny run, with predictions for its test set."""

    tiny: Tiny
    folder: Path
    results: dict[str, Any]
    ended: Ended

    def predictions(self) -> list[dict[str, str]]:
        return read_table(self.folder / "predictions.tsv")


def read_table(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.fixture(scope="session")
def learn(tuned: Tuned, tmp_path_factory: pytest.TempPathFactory) -> Learn:
    """Learn a task once for all tests, which must not change it."""
    tasks = tmp_path_factory.mktemp("tasks")

    def learn_once(name: str) -> Learned:
        tiny = MAKERS[name](tasks)
        folder, ended = tuned(f"learned-{name}", tiny, "--predict", "test")
        return Learned(tiny, folder, results(folder), ended)

    return learn_once


# Scores.


def handed_in(folder: Path, task: str) -> list[Any]:
    """The labels in a submission file, in the order of the test set."""
    if task.startswith("squad"):
        return list(json.loads((folder / "predictions.json").read_text(encoding="utf-8")).values())
    if task == "ner":
        sentences = (folder / "ner.conll").read_text(encoding="utf-8").strip().split("\n\n")
        return [[line.split("\t")[1] for line in sentence.split("\n")] for sentence in sentences]
    name = {"cola": "CoLA", "rte": "RTE", "mnli": "MNLI-m", "stsb": "STS-B", "race": "race"}[task]
    return [row["prediction"] for row in read_table(folder / f"{name}.tsv")]


@pytest.mark.parametrize("name", MAKERS)
def test_every_kind_of_task_is_learnt_and_its_test_set_labelled(learn: Learn, name: str) -> None:
    learned = learn(name)
    assert learned.results["metrics"][learned.tiny.main_metric]["median"] >= learned.tiny.good_score
    assert learned.results["collapsed_seeds"] == []
    assert learned.tiny.main_metric in learned.ended.out
    found, gold = handed_in(learned.folder / "submission", name), learned.tiny.test_gold
    assert len(found) == len(gold)
    if name == "stsb":
        assert all(0 <= float(score) <= 5 for score in found)
        assert statistics.correlation(list(map(float, found)), gold) > 0.8
    else:
        assert sum(one == right for one, right in zip(found, gold, strict=True)) >= 0.8 * len(gold)


# Files.


@pytest.mark.parametrize("name", ["mnli", "squad_v2", "race", "stsb"])
def test_results_have_the_documented_form(learn: Learn, name: str) -> None:
    written = learn(name).results
    assert (written["task"], written["seeds"]) == (name, [SEED])
    assert "model" in written
    assert ("mismatched_accuracy" in written["metrics"]) == (name == "mnli")
    assert {*written["official_metrics"], learn(name).tiny.main_metric} <= written["metrics"].keys()
    for metric, found in written["metrics"].items():
        assert found["values"] == [found["median"]] == [found["mean"]] == [found["best"]], metric
        assert found["std"] is None, metric
        assert math.isfinite(found["median"]), metric
        low, high = found.get("interval", (-math.inf, math.inf))
        assert low - 1e-9 <= found["mean"] <= high + 1e-9, metric
    for metric in written["official_metrics"]:
        assert -1 <= written["metrics"][metric]["mean"] <= 1
        assert "interval" in written["metrics"][metric]


@pytest.mark.parametrize("name", ["cola", "squad"])
def test_a_finished_folder_holds_the_documented_files_and_no_checkpoints(
    learn: Learn, name: str
) -> None:
    folder = learn(name).folder
    present = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "tensorboard" not in path.parts
    }
    documented = f"""results.json results.md config.yaml command.txt environment.json
        README.md predictions.tsv log.txt
        model/config.json seed-{SEED}/result.json seed-{SEED}/metrics.jsonl"""
    assert set(documented.split()) <= present
    assert not any("checkpoints" in path or "writing" in path for path in present)
    assert ("confusion.tsv" in present) == (name != "squad")
    assert (folder / "results.md").read_text(encoding="utf-8").strip() in learn(name).ended.out


@pytest.mark.parametrize("name", ["cola", "mnli"])
def test_predictions_and_confusion_give_the_scores_that_are_reported(
    learn: Learn, name: str
) -> None:
    learned = learn(name)
    rows = learned.predictions()
    gold, predicted = [row["gold"] for row in rows], [row["predicted"] for row in rows]
    assert len(rows) == next(iter(learned.results["evaluation_examples"].values()))
    found = {metric: one["values"][0] for metric, one in learned.results["metrics"].items()}
    assert found["accuracy"] == pytest.approx(accuracy_score(gold, predicted), abs=1e-12)
    assert found["matthews_correlation"] == pytest.approx(
        matthews_corrcoef(gold, predicted), abs=1e-12
    )
    assert found["macro_f1"] == pytest.approx(f1_score(gold, predicted, average="macro"), abs=1e-12)
    header, *lines = (
        line.split("\t") for line in (learned.folder / "confusion.tsv").read_text().splitlines()
    )
    for label, *counts in lines:
        assert dict(zip(header[1:], map(int, counts), strict=True)) == {
            other: sum(pair == (label, other) for pair in zip(gold, predicted, strict=True))
            for other in header[1:]
        }


# The exported model.


@pytest.mark.parametrize("name", STOCK_CLASSES)
def test_stock_classes_load_the_model_and_give_equal_logits(learn: Learn, name: str) -> None:
    folder = learn(name).folder / "model"
    stock = (
        getattr(transformers, STOCK_CLASSES[name])
        .from_pretrained(str(folder), local_files_only=True)
        .eval()
    )
    ours = load_task_model(locate(folder))[0].eval()
    ids = torch.randint(
        5, ours.config.vocab_size, (4, 23), generator=torch.Generator().manual_seed(0)
    )
    mask = (torch.arange(23) < torch.tensor([[23], [19], [7], [3]])).long()
    segments = (torch.arange(23) > 5).long().expand_as(ids)
    nested = [tensor[None] if name == "race" else tensor for tensor in (ids, mask, segments)]
    with torch.no_grad():
        theirs = stock(input_ids=nested[0], attention_mask=nested[1], token_type_ids=nested[2])
        wanted = (
            torch.stack([theirs.start_logits, theirs.end_logits], -1)
            if name == "squad"
            else theirs.logits
        )
        found = ours(ids, mask.bool(), segments).reshape(wanted.shape)
    if name in ("squad", "ner"):  # outputs at padding have no meaning
        wanted, found = wanted[mask.bool()], found[mask.bool()]
    assert float((found - wanted).abs().max()) <= LOGITS_TOLERANCE * float(wanted.abs().max())


def test_the_stock_pipeline_gives_equal_predictions(learn: Learn) -> None:
    folder, rows = learn("cola").folder, learn("cola").predictions()
    texts = [row["text"] for row in rows]
    classify = transformers.pipeline("text-classification", str(folder / "model"), device="cpu")
    for row, found, ours in zip(
        rows, classify(texts), load_model(folder, "cpu").classify(texts), strict=True
    ):
        assert found["label"] == row["predicted"] == ours.label
        # Written with four digits.
        assert found["score"] == pytest.approx(float(row["probability"]), abs=6e-5)
        assert ours.score == pytest.approx(found["score"], abs=1e-5)


@pytest.mark.parametrize("name", ["squad_v2", "race", "ner", "stsb"])
def test_the_python_interface_gives_equal_predictions(learn: Learn, name: str) -> None:
    model, rows = load_model(learn(name).folder, "cpu"), learn(name).predictions()
    wanted = [row["predicted"] for row in rows]
    firsts, seconds = ([row["text"].split(" ||| ")[side] for row in rows] for side in (0, -1))
    if name == "squad_v2":
        answers = model.answer(firsts, seconds)
        assert [answer.text for answer in answers] == wanted
        no_answer = [float(row["no_answer"]) for row in rows]
        assert [answer.no_answer for answer in answers] == pytest.approx(no_answer, abs=6e-5)
    elif name == "ner":
        assert [" ".join(word.label for word in words) for words in model.tag(firsts)] == wanted
    elif name == "stsb":
        found = model.classify(list(zip(firsts, seconds, strict=True)))
        assert [one.score for one in found] == pytest.approx(list(map(float, wanted)), abs=6e-5)
    else:
        # "middle" first.
        files = sorted((learn(name).tiny.folder / "dev").rglob("*.txt"), key=lambda file: file.name)
        asked = []
        for one in (json.loads(file.read_text()) for file in files):
            asked += [
                (one["article"], *each)
                for each in zip(one["questions"], one["options"], strict=True)
            ]
        chosen = model.choose(*map(list, zip(*asked, strict=True)), truncate=True)
        assert ["ABCD"[one.number] for one in chosen] == wanted


@pytest.mark.parametrize("name", ["mnli", "squad_v2", "race", "ner", "stsb"])
def test_a_fine_tuned_model_is_evaluated_without_training(
    learn: Learn, tmp_path: Path, name: str
) -> None:
    """Regression: after a training in bfloat16, as that of stsb, the scores were not those of the
    folder in float32.
    """
    learned, more = learn(name), ("--num_train_epochs", 0, "--precision", "fp32")
    tune(*learned.tiny.options(learned.folder / "model", tmp_path / "out", *more))
    again = results(tmp_path / "out")
    assert again["evaluation_examples"] == learned.results["evaluation_examples"]
    for metric, found in learned.results["metrics"].items():
        assert again["metrics"][metric]["values"] == pytest.approx(found["values"], rel=1e-5), (
            metric
        )


@pytest.mark.parametrize("name", ["rte", "squad_v2", "race", "ner", "stsb"])
def test_new_text_is_predicted_like_the_dev_set_from_the_model_alone(
    learn: Learn, tmp_path: Path, name: str
) -> None:
    # Regression: without labelled data the built-in task was trained and its labels were written.
    learned, copy = learn(name), shutil.copytree(learn(name).folder, tmp_path / "copy")
    dev = next(
        path for path in sorted(learned.tiny.folder.iterdir()) if path.name.startswith("dev")
    )
    before = set(copy.iterdir())
    ended = tune("--model", copy, "--predict", dev, "--device", "cpu", "--precision", "fp32")
    assert (ended.out, set(copy.iterdir()) - before) == (
        f"written: {copy}/predicted.tsv\n",
        {copy / "predicted.tsv"},
    )
    predicted = [row["predicted"] for row in read_table(copy / "predicted.tsv")]
    assert predicted == [row["predicted"] for row in learned.predictions()]


# The same task again.


def test_every_evaluation_set_is_compared(learn: Learn) -> None:
    table = tune("--compare", learn("mnli").folder, learn("mnli").folder).out
    assert "\n| accuracy |" in table
    assert "\n| mismatched_accuracy |" in table


def test_another_gold_answer_is_other_data(
    finished: Finished, learn: Learn, tmp_path: Path
) -> None:
    learned = learn("squad")
    folder, data = (
        shutil.copytree(one, tmp_path / one.name) for one in (learned.folder, learned.tiny.folder)
    )
    content = json.loads((data / "dev-v1.1.json").read_text())
    content["data"][0]["paragraphs"][0]["qas"][0]["answers"].append(
        {"text": "It", "answer_start": 0}
    )
    (data / "dev-v1.1.json").write_text(json.dumps(content))
    argv = learned.tiny.options(finished.folder, folder, "--predict", "test", "--data_dir", data)
    assert_refused(call(finetune.main, *argv), 4, "other data")
