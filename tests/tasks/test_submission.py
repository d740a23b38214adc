"""Files to hand in have the names, the header, the order and the spelling that each benchmark asks for."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.apps.finetune.glue import glue_average
from electra_albert.contracts import DataError
from electra_albert.tasks.registry import ELECTRA_EIGHT, GLUE, TASKS, Task, find_task
from electra_albert.tasks.submission import NO_ANSWER_FILE, write_submission
from electra_albert.tasks.task import ChoiceExample, SequenceExample, SpanExample, TokenExample

LAW = settings(max_examples=40, deadline=None, derandomize=True)
MISMATCHED = "mismatched_accuracy"
OFFICIAL_FILES = {
    "cola": ["CoLA.tsv"],
    "sst2": ["SST-2.tsv"],
    "mrpc": ["MRPC.tsv"],
    "stsb": ["STS-B.tsv"],
    "qqp": ["QQP.tsv"],
    "mnli": ["MNLI-m.tsv", "MNLI-mm.tsv"],
    "qnli": ["QNLI.tsv"],
    "rte": ["RTE.tsv"],
    "wnli": ["WNLI.tsv"],
    "ax": ["AX.tsv"],
}


def texts(*identities: str) -> list[SequenceExample]:
    return [SequenceExample("A text.", None, None, identity) for identity in identities]


def written(task: Task, predictions: list[Any], examples: list[Any], folder: Path) -> list[str]:
    """The lines of the file written for the first of a task's test sets."""
    path = write_submission(task, next(iter(task.submission)), predictions, examples, folder)
    content = path.read_bytes().decode()
    assert "\r" not in content
    assert content.endswith("\n")
    return content[:-1].split("\n")


@pytest.mark.parametrize("name", GLUE)
def test_every_glue_task_writes_its_official_files_with_its_own_labels(name: str, tmp_path: Path) -> None:
    task = find_task(name)
    label = 2.5 if task.is_regression else task.labels[-1]
    paths = [write_submission(task, test, [label], texts("0"), tmp_path) for test in task.submission]
    assert [path.name for path in paths] == OFFICIAL_FILES[name]
    spelled = "2.500" if task.is_regression else label
    assert {path.read_text() for path in paths} == {f"index\tprediction\n0\t{spelled}\n"}


@pytest.mark.parametrize(
    ("name", "identities", "index"),
    [
        ("cola", ("7", "3"), ("7", "3")),
        ("cola", ("test.tsv:2", "test.tsv:3"), ("0", "1")),  # GLUE asks for numbers, each once
        ("cola", ("5", "5"), ("0", "1")),
        ("custom", ("row-b", "3"), ("row-b", "3")),  # the ids of a custom table are kept
        ("custom", ("3", "3"), ("3", "3")),
    ],
)
def test_examples_keep_their_order_and_the_index_of_the_file(
    name: str, identities: tuple[str, ...], index: tuple[str, ...], tmp_path: Path
) -> None:
    lines = written(find_task(name), ["1", "0"], texts(*identities), tmp_path)
    assert lines[1:] == [f"{index[0]}\t1", f"{index[1]}\t0"]


@pytest.mark.parametrize(("prediction", "spelled"), [(-0.3, "0.000"), (5.2, "5.000"), (3.14159, "3.142")])
def test_similarity_is_kept_between_0_and_5(prediction: float, spelled: str, tmp_path: Path) -> None:
    assert written(find_task("stsb"), [prediction], texts("0"), tmp_path)[1:] == [f"0\t{spelled}"]


def test_answers_of_squad_are_an_object_by_id(tmp_path: Path) -> None:
    examples = [SpanExample("Ein Café.", "What?", None, identity) for identity in ("b", "a")]
    path = write_submission(find_task("squad_v2"), "test", ["Café", ""], examples, tmp_path, [0.125, 1.0])
    assert path.name == "predictions.json"
    content = path.read_text(encoding="utf-8")
    assert json.loads(content) == {"b": "Café", "a": ""}
    assert "Café" in content  # to be read by eye as well
    assert json.loads((tmp_path / NO_ANSWER_FILE).read_text()) == {"b": 0.125, "a": 1.0}


def test_options_are_handed_in_as_letters_by_question(tmp_path: Path) -> None:
    examples = [ChoiceExample("c", "q", ("w", "x", "y", "z"), None, f"high1.txt-{n}", "high") for n in range(4)]
    lines = written(find_task("race"), [3, 0, 1, 2], examples, tmp_path)
    assert lines[1:] == ["high1.txt-0\tD", "high1.txt-1\tA", "high1.txt-2\tB", "high1.txt-3\tC"]


def test_tags_stand_beside_their_words_and_sentences_are_parted_by_a_blank_line(tmp_path: Path) -> None:
    examples = [TokenExample(("EU", "rejects"), None, "1"), TokenExample(("Bonn",), None, "2")]
    lines = written(find_task("ner"), [["B-ORG", "O"], ["B-LOC"]], examples, tmp_path)
    assert lines == ["EU\tB-ORG", "rejects\tO", "", "Bonn\tB-LOC", ""]


def test_a_test_set_the_task_does_not_name_is_written_under_its_own_name(tmp_path: Path) -> None:
    path = write_submission(TASKS["custom"], "mine", ["yes"], texts("0"), tmp_path / "new")
    assert path == tmp_path / "new" / "mine.tsv"
    assert path.read_text() == "index\tprediction\n0\tyes\n"


# Refused

TWO_WORDS, SAME_ID = TokenExample(("a", "b"), None, "1"), [SpanExample("x", "?", None, "a")] * 2


@pytest.mark.parametrize(
    ("name", "predictions", "examples", "error", "word"),
    [
        ("stsb", [float("nan")], texts("0"), ValueError, "not finite"),
        ("cola", ["1"], texts("0", "1"), ValueError, "zip"),
        ("ner", [["O"]], [TWO_WORDS], ValueError, "zip"),
        ("squad", ["x", "y"], SAME_ID, DataError, "two questions have the id a"),  # one would be lost
        ("custom", ["a\tb"], texts("0"), DataError, "tab or a line break"),
        ("custom", ["a\rb"], texts("0"), DataError, "tab or a line break"),
    ],
)
def test_predictions_that_the_form_cannot_hold_are_refused(
    name: str, predictions: list[Any], examples: list[Any], error: type[Exception], word: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=word):
        write_submission(find_task(name), "test", predictions, examples, tmp_path)


# Averages

FULL = {
    "cola": {"matthews_correlation": 0.6, "accuracy": 0.9},
    "sst2": {"accuracy": 0.9},
    "mrpc": {"accuracy": 0.8, "f1": 0.9},
    "stsb": {"pearson": 0.7, "spearman": 0.9},
    "qqp": {"accuracy": 0.8, "f1": 0.6},
    "mnli": {"accuracy": 0.8, MISMATCHED: 0.6},
    "qnli": {"accuracy": 0.7},
    "rte": {"accuracy": 0.5},
    "wnli": {"accuracy": 0.3},
    "ax": {"matthews_correlation": 0.1},
}


def test_electras_average_is_of_eight_main_metrics() -> None:
    result = glue_average(FULL, "electra")
    assert result.used == ELECTRA_EIGHT
    assert result.missing == ()
    assert result.average == pytest.approx((0.6 + 0.9 + 0.8 + 0.9 + 0.8 + 0.8 + 0.7 + 0.5) / 8)


def test_the_official_average_is_of_the_nine_means_of_official_metrics() -> None:
    result = glue_average(FULL, "official")
    assert result.used == (*ELECTRA_EIGHT, "wnli")
    assert result.missing == ()
    assert result.average == pytest.approx((0.6 + 0.9 + 0.85 + 0.8 + 0.7 + 0.7 + 0.7 + 0.5 + 0.3) / 9)


@LAW
@given(st.sets(st.sampled_from(sorted(FULL))), st.sampled_from(["electra", "official"]))
def test_tasks_without_a_score_are_named(present: set[str], convention: Any) -> None:
    result = glue_average({name: FULL[name] for name in present}, convention)
    whole = set(glue_average(FULL, convention).used)
    assert set(result.used) == whole & present
    assert set(result.missing) == whole - present
    assert (result.average is None) == (not result.used)


@pytest.mark.parametrize(
    ("task", "metric", "electra_lacks"),
    [("mnli", MISMATCHED, False), ("mnli", "accuracy", True), ("mrpc", "f1", False), ("stsb", "spearman", True)],
)
def test_a_task_that_lacks_a_metric_is_missing_where_that_counts(task: str, metric: str, electra_lacks: bool) -> None:
    scores = {
        name: {one: value for one, value in rest.items() if (name, one) != (task, metric)}
        for name, rest in FULL.items()
    }
    official, electra = glue_average(scores, "official"), glue_average(scores, "electra")
    assert official.missing == (f"{task} {metric}",)
    assert task not in official.used
    assert (task in electra.missing or electra.missing == (f"{task} {metric}",)) is electra_lacks
