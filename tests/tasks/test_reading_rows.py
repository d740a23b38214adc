"""Examples that are used, left out, counted or refused, and the labels found in them."""

import json
from pathlib import Path

import pytest
from pyarrow import Table, parquet

from tests.refusals import assert_refused, rows
from tests.tasks.task_files import (
    RTE_ROWS,
    custom_files,
    noticed,
    read,
    rte_folder,
    sst2_folder,
    write,
)


def stsb_folder(folder: Path, train: str, dev: str = "1") -> Path:
    for name, score in (("train", train), ("dev", dev)):
        content = f"index\tsentence1\tsentence2\tscore\n0\ta\tb\t1\n1\tc\td\t{score}\n"
        write(folder / f"{name}.tsv", content)
    return folder


# Examples that are used or left out. Cells are separated by ~.

INCOMPLETE = """
2~A~B             | 3 columns instead of 4   | NOT SCORED:
2~A~B~-           | no label                 | NOT SCORED:
2~A~B~            | no label                 | NOT SCORED:
2~ ~B~entailment  | the text is empty        | kept although
2~A~~entailment   | the second text is empty | kept although
"""


@pytest.mark.parametrize(("cells", "why", "dev"), rows(INCOMPLETE))
def test_an_incomplete_example_is_left_out_or_not_scored(
    tmp_path: Path, cells: str, why: str, dev: str
) -> None:
    content = RTE_ROWS + cells.replace("~", "\t") + "\n"
    data = read("rte", data_dir=rte_folder(tmp_path, content, content))
    assert len(data.train) == 2
    assert len(data.evaluation["dev"]) == 2 + (dev == "kept although")
    for name, ending in (("train.tsv", "left out of training:"), ("dev.tsv", dev)):
        what = f"examples of {name} {ending} {why}"
        assert data.report.counts[what] == 1
        assert data.report.first_seen[what] == f"{tmp_path}/{name}:4"


def test_quotes_and_spaces_in_a_field_stay_as_they_are(tmp_path: Path) -> None:
    for first in ('a "b ', '"a ""b"""'):  # as QQP, which is scored so
        data = read("sst2", data_dir=sst2_folder(tmp_path, f'{first}\t1\n"c"\t0\n'))
        assert [example.text for example in data.train] == [first, '"c"']
    path = write(tmp_path / "t.tsv", 'text\tlabel\n"a ""b"""\t1\n"c"\t0\n')
    data = read("custom", train_file=path, validation_file=path)
    assert [example.text for example in data.train] == ['a "b"', "c"]
    assert noticed(data.report, "files with cells in quotes, read as in .csv") == 2


REFUSED = """
train | maybe | train.tsv:4: label 'maybe'
dev   | maybe | dev.tsv:4: label 'maybe'
train |       | train.tsv: no examples
train | -     | (1 example of train.tsv left out
dev   | -1    | (1 example of dev.tsv NOT SCORED
"""


@pytest.mark.parametrize(("name", "label", "word"), rows(REFUSED))
def test_a_set_with_an_unknown_label_or_no_example_is_refused(
    tmp_path: Path, name: str, label: str, word: str
) -> None:
    content = f"2\tA\tB\t{label}\n" if label else ""
    if label == "maybe":
        content = RTE_ROWS + content
    folder = rte_folder(tmp_path, **{name: content})
    assert_refused("DataError", word, read, "rte", data_dir=folder)


@pytest.mark.parametrize("score", ["5.01", "nan", "inf"])
def test_a_score_out_of_range_is_left_out_of_training_only(tmp_path: Path, score: str) -> None:
    data = read("stsb", data_dir=stsb_folder(tmp_path, score))
    assert [example.label for example in data.train] == [1.0]
    assert noticed(data.report, "the label is not a number from 0 to 5") == 1
    folder = stsb_folder(tmp_path, "1", score)
    assert_refused("DataError", f"dev.tsv:3: label {score}", read, "stsb", data_dir=folder)


def test_a_label_that_is_no_number_is_refused_and_a_missing_one_counted(tmp_path: Path) -> None:
    folder = stsb_folder(tmp_path, "much")
    assert_refused("DataError", "'much'", read, "stsb", data_dir=folder)
    missing = read("stsb", data_dir=stsb_folder(tmp_path, "-1.0"))  # the hub's mark
    assert noticed(missing.report, "no label") == 1


def test_a_text_whose_tokens_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    folder = sst2_folder(tmp_path, train="x" * ((1 << 21) + 1) + "\t1\n")
    assert_refused("DataError", "train.tsv:2: 'text'", read, "sst2", data_dir=folder)


def test_missing_text_of_parquet_is_no_text(tmp_path: Path) -> None:
    content = {"text": [1.5, float("nan"), None, 2.5], "label": ["a", "b", "b", "b"]}
    file = tmp_path / "t.parquet"
    parquet.write_table(Table.from_pydict(content), file)
    data = read("custom", train_file=file, validation_file=file)
    assert [example.text for example in data.train] == ["1.5", "2.5"]
    assert noticed(data.report, "left out of training: the text is empty") == 2


# Labels.

# Labels of training and evaluation, --regression, and the classes in order.
CLASSES = """
["b", "a", "b"]            | ["a", "b"]                    | null  | a b
[10, 9, "9"]               | [9, "10"]                     | null  | 9 10
[true, false]              | [true, false]                 | null  | false true
[1.0, 2.0]                 | [1, 2]                        | null  | 1 2
["0.0", "1.0"]             | [0, 1]                        | false | 0 1
["0", "1"]                 | ["0.0", "1.00"]               | null  | 0 1
["9007199254740993", "-1"] | ["9007199254740993.0", "-1."] | null  | -1 9007199254740993
["caf\u00e9", "1.0"]       | ["cafe\u0301", "1.0"]         | null  | 1.0 caf\u00e9
["01", "1"]                | ["01", "1"]                   | null  | 01 1
["-1", "1", null, "", NaN] | ["-1", "1"]                   | null  | -1 1
"""


@pytest.mark.parametrize(("train", "dev", "regression", "classes"), rows(CLASSES))
def test_labels_are_found_in_the_training_data_in_order(
    tmp_path: Path, train: str, dev: str, regression: str, classes: str
) -> None:
    files = custom_files(tmp_path, json.loads(train), json.loads(dev))
    data = read("custom", **files, regression=json.loads(regression))
    assert data.labels == tuple(classes.split())
    assert {example.label for example in data.evaluation["dev"]} == {*data.labels}
    assert {example.label for example in data.train} == {*data.labels}


# Labels of training and evaluation, and what the message names; HUNDRED are 101 labels.
LABELS = """
["a", "b"]     | ["a", "c"] | validation_file.jsonl:2: label 'c'
["a", "a"]     | ["a"]      | 'a'
["0.0", "1.0"] | [1]        | --regression
HUNDRED        | ["l1"]     | 101 labels
[["a"], "b"]   | ["b"]      | train_file.jsonl:1
"""


@pytest.mark.parametrize(("train", "dev", "word"), rows(LABELS))
def test_labels_that_cannot_be_classes_are_refused(
    tmp_path: Path, train: str, dev: str, word: str
) -> None:
    train = train.replace("HUNDRED", json.dumps([f"l{i}" for i in range(101)]))
    files = custom_files(tmp_path, json.loads(train), json.loads(dev))
    assert_refused("DataError", word, read, "custom", **files)


def test_a_custom_task_may_have_a_hundred_labels_or_numbers_to_predict(tmp_path: Path) -> None:
    names = [f"l{i:02}" for i in range(100)]
    assert read("custom", **custom_files(tmp_path, names, names)).labels == tuple(names)
    files = custom_files(tmp_path, [-1, 1e6, None], [0.5, 2])
    data = read("custom", regression=True, **files)
    assert ([example.label for example in data.train], data.labels) == ([-1.0, 1e6], ())


def test_evaluation_examples_with_an_unknown_label_are_skipped_on_request(tmp_path: Path) -> None:
    files = custom_files(tmp_path, ["a", "b"], ["a", "meh", "b", "meh"])
    data = read("custom", unknown_labels="skip", **files)
    assert [example.label for example in data.evaluation["dev"]] == ["a", "b"]
    assert noticed(data.report, "NOT SCORED: a label missing from the training data") == 2
    train, dev = (write(tmp_path / tag, f"Ann B-PER\nran O\n\nRome {tag}\n") for tag in "OX")
    data = read("ner", unknown_labels="skip", train_file=train, validation_file=dev)
    assert [example.words for example in data.evaluation["dev"]] == [("Ann", "ran")]
