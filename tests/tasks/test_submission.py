"""Files to hand in have the names, the header, the order and the spelling that each benchmark asks for."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import DataError
from electra_albert.tasks.task import ChoiceExample, SequenceExample, SpanExample, TokenExample
from electra_albert.tasks.registry import ELECTRA_EIGHT, GLUE, TASKS, Task, find_task
from electra_albert.tasks.submission import MISMATCHED, NO_ANSWER_FILE, glue_average, write_submission

LAW = settings(max_examples=40, deadline=None, derandomize=True)
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


def test_mnli_and_the_diagnostic_set_are_handed_in_as_words(tmp_path: Path) -> None:
    words = ["entailment", "neutral", "contradiction"]
    for name in ("mnli", "ax"):
        lines = written(find_task(name), words, texts("0", "1", "2"), tmp_path)
        assert lines == ["index\tprediction", "0\tentailment", "1\tneutral", "2\tcontradiction"]


def test_rows_keep_their_order_and_the_index_of_the_file(tmp_path: Path) -> None:
    lines = written(find_task("cola"), ["1", "0", "1"], texts("7", "3", "11"), tmp_path)
    assert lines[1:] == ["7\t1", "3\t0", "11\t1"]


@pytest.mark.parametrize("identities", [("test.tsv:2", "test.tsv:3"), ("5", "5"), ("5", "test.tsv:3")])
def test_rows_are_counted_from_zero_where_the_file_has_no_index(identities: tuple[str, ...], tmp_path: Path) -> None:
    assert written(find_task("cola"), ["1", "0"], texts(*identities), tmp_path)[1:] == ["0\t1", "1\t0"]


@pytest.mark.parametrize(
    ("prediction", "spelled"), [(-0.3, "0.000"), (5.2, "5.000"), (3.14159, "3.142"), (0.0, "0.000"), (5, "5.000")]
)
def test_similarity_is_kept_between_0_and_5(prediction: float, spelled: str, tmp_path: Path) -> None:
    assert written(find_task("stsb"), [prediction], texts("0"), tmp_path)[1:] == [f"0\t{spelled}"]


def test_numbers_of_a_task_without_a_range_are_written_as_they_are(tmp_path: Path) -> None:
    from dataclasses import replace

    task = replace(TASKS["custom"], is_regression=True)
    assert written(task, [-7.25], texts("0"), tmp_path)[1:] == ["0\t-7.250"]


def test_answers_of_squad_are_an_object_by_id(tmp_path: Path) -> None:
    examples = [SpanExample("Ein Café.", "What?", None, identity) for identity in ("b", "a")]
    path = write_submission(find_task("squad_v2"), "test", ["Café", ""], examples, tmp_path, [0.125, 1.0])
    assert path.name == "predictions.json"
    content = path.read_text(encoding="utf-8")
    assert json.loads(content) == {"b": "Café", "a": ""}
    assert "Café" in content  # to be read by eye as well
    assert json.loads((tmp_path / NO_ANSWER_FILE).read_text()) == {"b": 0.125, "a": 1.0}


def test_squad_without_null_answers_has_no_second_file(tmp_path: Path) -> None:
    written(find_task("squad"), ["x"], [SpanExample("x", "?", None, "a")], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.json"]


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


@pytest.mark.parametrize("identities", [("row-b", "row-a"), ("7", "x"), ("3", "3")])
def test_the_ids_of_a_custom_table_are_kept_whatever_they_are(identities: tuple[str, ...], tmp_path: Path) -> None:
    lines = written(TASKS["custom"], ["yes", "no"], texts(*identities), tmp_path)
    assert lines[1:] == [f"{identities[0]}\tyes", f"{identities[1]}\tno"]


# Refused


def test_a_prediction_that_is_no_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'2' is no label of cola"):
        write_submission(find_task("cola"), "CoLA", ["2"], texts("0"), tmp_path)


def test_a_prediction_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"):
        write_submission(find_task("stsb"), "STS-B", [float("nan")], texts("0"), tmp_path)


def test_fewer_predictions_than_examples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 predictions for 2 examples"):
        write_submission(find_task("cola"), "CoLA", ["1"], texts("0", "1"), tmp_path)


def test_fewer_tags_than_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):
        write_submission(find_task("ner"), "test", [["O"]], [TokenExample(("a", "b"), None, "1")], tmp_path)


def test_questions_that_share_an_id_are_refused_for_one_would_be_lost(tmp_path: Path) -> None:
    examples = [SpanExample("x", "?", None, "a"), SpanExample("y", "?", None, "a")]
    with pytest.raises(DataError, match="two questions have the id a"):
        write_submission(find_task("squad"), "test", ["x", "y"], examples, tmp_path)


@pytest.mark.parametrize("label", ["a\tb", "a\nb", "a\rb"])
def test_a_label_that_would_break_the_table_is_refused(label: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tab or a line break"):
        write_submission(TASKS["custom"], "test", [label], texts("0"), tmp_path)


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
