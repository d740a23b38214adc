"""Finetuning.py from the command line: every kind of task is learned; its files and its exported
model.
"""

import csv
import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import transformers
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, matthews_corrcoef

from electra_albert.apps.finetune import main as finetune
from electra_albert.hub.load import load_task_model, locate
from electra_albert.inference.model import load_model
from tests.apps.conftest import Finished
from tests.apps.finetune.conftest import Tuned
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.apps.tiny_tasks import MAKERS, SEED, Tiny, results, tune

Learn = Callable[[str], "Learned"]


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
    name = {"cola": "CoLA", "mnli": "MNLI-m", "stsb": "STS-B", "race": "race"}[task]
    return [row["prediction"] for row in read_table(folder / f"{name}.tsv")]


# Without RTE, which is learned like MNLI.
@pytest.mark.parametrize("name", [name for name in MAKERS if name != "rte"])
def test_every_kind_of_task_is_learnt_and_its_test_set_labelled(learn: Learn, name: str) -> None:
    learned = learn(name)
    assert learned.results["metrics"][learned.tiny.main_metric]["median"] >= learned.tiny.good_score
    assert learned.results["collapsed_seeds"] == []
    assert learned.tiny.main_metric in learned.ended.out
    found, gold = handed_in(learned.folder / "submission", name), learned.tiny.test_gold
    if name == "stsb":
        assert all(0 <= float(score) <= 5 for score in found)
        assert statistics.correlation(list(map(float, found)), gold) > 0.8
    else:
        assert sum(one == right for one, right in zip(found, gold, strict=True)) >= 0.8 * len(gold)


# Files.


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


def test_predictions_and_confusion_give_the_scores_that_are_reported(learn: Learn) -> None:
    learned = learn("mnli")
    rows = learned.predictions()
    gold, predicted = [row["gold"] for row in rows], [row["predicted"] for row in rows]
    assert len(rows) == next(iter(learned.results["evaluation_examples"].values()))
    found = {metric: one["values"][0] for metric, one in learned.results["metrics"].items()}
    expected = {
        "accuracy": accuracy_score(gold, predicted),
        "matthews_correlation": matthews_corrcoef(gold, predicted),
        "macro_f1": f1_score(gold, predicted, average="macro"),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert {"mismatched_accuracy", *learned.results["official_metrics"]} <= found.keys()
    of_accuracy = learned.results["metrics"]["accuracy"]
    low, high = of_accuracy["interval"]
    assert low <= found["accuracy"] <= high
    assert (of_accuracy["median"], of_accuracy["std"]) == (found["accuracy"], None)
    table = (learned.folder / "confusion.tsv").read_text().splitlines()
    (_, *labels), *lines = (line.split("\t") for line in table)
    counts = [list(map(int, line[1:])) for line in lines]
    assert [line[0] for line in lines] == labels
    assert counts == confusion_matrix(gold, predicted, labels=labels).tolist()


# The exported model.


def test_an_electra_head_has_no_pooler_and_is_loaded_by_stock(learn: Learn) -> None:
    folder = learn("mnli").folder / "model"
    model, details = load_task_model(locate(folder))
    assert details["style"] == "electra"
    names = [name for name, _ in model.named_parameters()]
    assert not [name for name in names if name.startswith(("pooler", "classifier"))]
    options = {"local_files_only": True, "add_pooling_layer": False}
    transformers.AutoModel.from_pretrained(str(folder), **options)


def test_the_stock_pipeline_gives_equal_predictions(learn: Learn) -> None:
    folder, rows = learn("cola").folder, learn("cola").predictions()
    texts = [row["text"] for row in rows]
    classify = transformers.pipeline("text-classification", str(folder / "model"), device="cpu")
    labelled = load_model(folder, "cpu").classify(texts)
    for row, found, ours in zip(rows, classify(texts), labelled, strict=True):
        assert found["label"] == row["predicted"] == ours.label
        # Written with four digits.
        assert found["score"] == pytest.approx(float(row["probability"]), abs=6e-5)
        assert ours.score == pytest.approx(found["score"], abs=1e-5)


@pytest.mark.parametrize("name", ["mnli", "squad_v2", "stsb"])
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
        values = pytest.approx(found["values"], rel=1e-5)
        assert again["metrics"][metric]["values"] == values, metric


@pytest.mark.parametrize("name", ["mnli", "squad_v2", "race", "ner"])
def test_new_text_is_predicted_like_the_dev_set_from_the_model_alone(
    learn: Learn, tmp_path: Path, name: str
) -> None:
    # Regression: without labelled data the built-in task was trained and its labels were written.
    learned, copy = learn(name), shutil.copytree(learn(name).folder, tmp_path / "copy")
    dev = min(learned.tiny.folder.glob("dev*"))
    before = set(copy.iterdir())
    ended = tune("--model", copy, "--predict", dev, "--device", "cpu", "--precision", "fp32")
    assert ended.out == f"written: {copy}/predicted.tsv\n"
    assert set(copy.iterdir()) - before == {copy / "predicted.tsv"}
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
    folder = shutil.copytree(learned.folder, tmp_path / "out")
    data = shutil.copytree(learned.tiny.folder, tmp_path / "data")
    content = json.loads((data / "dev-v1.1.json").read_text())
    answers = content["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    answers.append({"text": "It", "answer_start": 0})
    (data / "dev-v1.1.json").write_text(json.dumps(content))
    argv = learned.tiny.options(finished.folder, folder, "--predict", "test", "--data_dir", data)
    assert_refused(call(finetune.main, *argv), 4, "other data")
