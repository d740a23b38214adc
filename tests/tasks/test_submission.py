"""Submission files have the names, header, order and labels that each benchmark requires."""

import json
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps.finetune.compare import glue_average
from electra_albert.config.finetuning import DataConfig
from electra_albert.contracts import DataError
from electra_albert.tasks.encoding import Decoded
from electra_albert.tasks.kinds import NO_ANSWER_FILE, write_submission
from electra_albert.tasks.registry import ELECTRA_EIGHT, GLUE, as_configured, find_task
from electra_albert.tasks.task import SequenceExample, SpanExample, TokenExample
from tests.refusals import rows


def texts(*identities: str) -> list[SequenceExample]:
    return [SequenceExample("A text.", None, None, identity) for identity in identities]


def test_every_glue_task_writes_its_official_files_with_its_own_labels(tmp_path: Path) -> None:
    for task in map(find_task, GLUE):
        label = 2.5 if task.is_regression else task.labels[-1]
        line = f"0\t{'2.500' if task.is_regression else label}\n"
        for test in task.files.test:
            decoded = Decoded([label], None, [[0.5, 0.5]])
            path = write_submission(task, test, decoded, texts("0"), tmp_path)
            assert path.read_text() == "index\tprediction\n" + line
    stems = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI"
    assert sorted(path.stem for path in tmp_path.glob("*.tsv")) == stems.split()


SENTENCES = [TokenExample(("EU", "rejects"), None, "1"), TokenExample(("Bonn",), None, "2")]


# A task, predictions as JSON, ids, and the lines written, with commas for tabs.
WRITTEN = """
cola   | ["1", "0"]           | 7 3                   | 7,1 3,0
cola   | ["1", "0"]           | test.tsv:2 test.tsv:3 | 0,1 1,0
cola   | ["1", "0"]           | 5 5                   | 0,1 1,0
custom | ["1", "0"]           | row-b 3               | row-b,1 3,0
stsb   | [-0.3, 5.2, 3.14159] | 0 1 2                 | 0,0.000 1,5.000 2,3.142
race   | [3, 0]               | high1.txt-0 high1-1   | high1.txt-0,D high1-1,A
"""


@pytest.mark.parametrize(("name", "predictions", "identities", "lines"), rows(WRITTEN))
def test_order_and_index_are_kept(
    name: str, predictions: str, identities: str, lines: str, tmp_path: Path
) -> None:
    task = find_task(name)
    decoded = Decoded(json.loads(predictions), None, None)
    (test,) = task.files.test
    path = write_submission(task, test, decoded, texts(*identities.split()), tmp_path)
    expected = f"index,prediction {lines} ".replace(",", "\t").replace(" ", "\n")
    assert path.read_bytes().decode() == expected


def test_several_labels_are_separated_by_commas(tmp_path: Path) -> None:
    task = as_configured(find_task("custom"), DataConfig(multi_label=True))
    decoded = Decoded([["a", "b"], []], None, None)
    path = write_submission(task, "test", decoded, texts("0", "1"), tmp_path)
    assert path.read_text() == "index\tprediction\n0\ta,b\n1\t\n"


def test_tags_are_written_as_words_and_tags(tmp_path: Path) -> None:
    decoded = Decoded([["B-ORG", "O"], ["B-LOC"]], None, None)
    path = write_submission(find_task("ner"), "test", decoded, SENTENCES, tmp_path)
    assert path.read_bytes() == b"EU\tB-ORG\nrejects\tO\n\nBonn\tB-LOC\n\n"


def test_answers_of_squad_are_an_object_by_id(tmp_path: Path) -> None:
    examples = [SpanExample("Ein Café.", "What?", None, identity) for identity in ("b", "a")]
    decoded = Decoded(["Café", ""], None, [0.125, 1.0])
    path = write_submission(find_task("squad_v2"), "test", decoded, examples, tmp_path)
    assert path.name == "predictions.json"
    assert json.loads(path.read_text(encoding="utf-8")) == {"b": "Café", "a": ""}
    assert "Café" in path.read_text(encoding="utf-8")  # not escaped
    assert json.loads((tmp_path / NO_ANSWER_FILE).read_text()) == {"b": 0.125, "a": 1.0}


@pytest.mark.parametrize(
    ("name", "predictions", "examples", "error"),
    [
        ("stsb", [float("nan")], texts("0"), ValueError),
        ("cola", ["1"], texts("0", "1"), ValueError),
        ("ner", [["O"]], SENTENCES[:1], ValueError),
        ("squad", ["x", "y"], [SpanExample("x", "?", None, "a")] * 2, DataError),  # duplicate id
        ("custom", ["a\rb"], texts("0"), DataError),
        ("ner", [["O"]], [TokenExample(("a\tb",), None, "1")], DataError),
    ],
)
def test_bad_predictions_are_refused(
    name: str, predictions: Any, examples: Any, error: Any, tmp_path: Path
) -> None:
    decoded = Decoded(predictions, None, None)
    with pytest.raises(error):
        write_submission(find_task(name), "test", decoded, examples, tmp_path)


# Averages

METRICS = """
cola | {"matthews_correlation": 0.6, "accuracy": 0.9}
sst2 | {"accuracy": 0.9}
mrpc | {"accuracy": 0.8, "f1": 0.9}
stsb | {"pearson": 0.7, "spearman": 0.9}
qqp  | {"accuracy": 0.8, "f1": 0.6}
mnli | {"accuracy": 0.8, "mismatched_accuracy": 0.6}
qnli | {"accuracy": 0.7}
rte  | {"accuracy": 0.5}
wnli | {"accuracy": 0.3}
ax   | {"matthews_correlation": 0.1}
"""
FULL = {name: json.loads(metrics) for name, metrics in rows(METRICS)}


def test_averages_are_over_electras_eight_main_metrics_and_the_nine_official_means() -> None:
    electra, official = glue_average(FULL, "electra"), glue_average(FULL, "official")
    assert (electra.used, electra.missing) == (ELECTRA_EIGHT, ())
    assert electra.average == pytest.approx((0.6 + 0.9 + 0.8 + 0.9 + 0.8 + 0.8 + 0.7 + 0.5) / 8)
    assert (official.used, official.missing) == ((*ELECTRA_EIGHT, "wnli"), ())
    scores = (0.6, 0.9, 0.85, 0.8, 0.7, 0.7, 0.7, 0.5, 0.3)
    assert official.average == pytest.approx(sum(scores) / 9)


def test_missing_tasks_and_metrics_are_listed_and_not_averaged() -> None:
    items = glue_average({name: FULL[name] for name in ("rte", "wnli")}, "electra")
    assert (items.used, items.average) == (("rte",), 0.5)
    assert set(items.missing) == set(ELECTRA_EIGHT) - {"rte"}
    assert glue_average({}, "official").average is None
    matched = {**FULL, "mnli": {"accuracy": 0.8}}
    assert glue_average(matched, "electra").missing == ()
    assert glue_average(matched, "official").missing == ("mnli mismatched_accuracy",)
