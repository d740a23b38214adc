"""Examples that are used, left out, counted or refused, and the labels found in them."""

from pathlib import Path
from typing import Any

import pytest
from pyarrow import Table, parquet

from electra_albert.contracts import DataError
from tests.tasks.task_files import RTE_ROWS, custom_files, noticed, read, rte_folder, sst2_folder, table, write


def stsb_folder(folder: Path, train: str, dev: str = "1") -> Path:
    for name, score in (("train", train), ("dev", dev)):
        rows = ["index", "sentence1", "sentence2", "score"], [*"0ab", "1.25"], [*"1cd", score]
        write(folder / f"{name}.tsv", table(*rows))
    return folder


# Examples that are used or left out.


@pytest.mark.parametrize(
    ("row", "why", "dev"),
    [
        ("2\tA\tB\n", "3 columns instead of 4", "NOT SCORED:"),
        ("2\tA\tB\t-\n", "no label", "NOT SCORED:"),
        ("2\tA\tB\t\n", "no label", "NOT SCORED:"),
        ("2\t \tB\tentailment\n", "the text is empty", "kept although"),
        ("2\tA\t\tentailment\n", "the second text is empty", "kept although"),
    ],
)
def test_an_incomplete_example_is_left_out_or_not_scored(tmp_path: Path, row: str, why: str, dev: str) -> None:
    data = read("rte", data_dir=rte_folder(tmp_path, RTE_ROWS + row, RTE_ROWS + row))
    assert (len(data.train), len(data.evaluation["dev"])) == (2, 3 if dev == "kept although" else 2)
    for name, ending in (("train.tsv", "left out of training:"), ("dev.tsv", dev)):
        what = f"examples of {name} {ending} {why}"
        assert (data.report.counts[what], data.report.first_seen[what]) == (1, f"{tmp_path}/{name}:4")


def test_quotes_and_spaces_in_a_field_stay_as_they_are(tmp_path: Path) -> None:
    data = read("sst2", data_dir=sst2_folder(tmp_path, 'a "b \t1\n"c\t0\n'))
    assert [example.text for example in data.train] == ['a "b ', '"c']
    data = read("sst2", data_dir=sst2_folder(tmp_path, '"a ""b"""\t1\n"c"\t0\n'))  # as QQP, which is scored so
    assert [example.text for example in data.train] == ['"a ""b"""', '"c"']
    path = write(tmp_path / "t.tsv", 'text\tlabel\n"a ""b"""\t1\n"c"\t0\n')
    own = read("custom", train_file=path, validation_file=path)
    assert [example.text for example in own.train] == ['a "b"', "c"]
    assert noticed(own.report, "files with cells in quotes, read as in .csv") == 2


@pytest.mark.parametrize(
    ("train", "dev", "word"),
    [
        (RTE_ROWS + "2\tA\tB\tmaybe\n", RTE_ROWS, r"train\.tsv:4: label 'maybe' is not one of 'entailment'"),
        (RTE_ROWS, RTE_ROWS + "2\tA\tB\tmaybe\n", r"dev\.tsv:4: label 'maybe' is not one of 'entailment'"),
        ("", RTE_ROWS, "no examples to train on"),
        ("0\tA\tB\t-\n", RTE_ROWS, r"no examples to train on .*1 example of train.tsv left out"),
        (RTE_ROWS, "0\tA\tB\t-1\n", r"no examples to evaluate on .*1 example of dev.tsv NOT SCORED"),
    ],
)
def test_a_set_with_an_unknown_label_or_no_example_is_refused(tmp_path: Path, train: str, dev: str, word: str) -> None:
    with pytest.raises(DataError, match=word):
        read("rte", data_dir=rte_folder(tmp_path, train, dev))


@pytest.mark.parametrize("score", ["5.01", "nan", "inf"])
def test_a_score_out_of_range_is_left_out_of_training_and_refused_for_scoring(tmp_path: Path, score: str) -> None:
    data = read("stsb", data_dir=stsb_folder(tmp_path, score))
    assert [example.label for example in data.train] == [1.25]
    assert noticed(data.report, "the label is not a number from 0 to 5") == 1
    with pytest.raises(DataError, match=rf"dev\.tsv:3: label {score}"):
        read("stsb", data_dir=stsb_folder(tmp_path, "1", score))
    missing = read("stsb", data_dir=stsb_folder(tmp_path, "-1.0"))  # the hub's mark for a missing label
    assert noticed(missing.report, "no label") == 1
    with pytest.raises(DataError, match=r"train\.tsv:3: label 'much' is not a number"):
        read("stsb", data_dir=stsb_folder(tmp_path, "much"))


def test_a_text_whose_tokens_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.tsv:2: 'text' has over 2,097,152 characters; shorten it"):
        read("sst2", data_dir=sst2_folder(tmp_path, train="x" * ((1 << 21) + 1) + "\t1\n"))


def test_missing_text_of_parquet_is_no_text(tmp_path: Path) -> None:
    rows = {"text": [1.5, float("nan"), None, 2.5], "label": ["a", "b", "b", "b"]}
    parquet.write_table(Table.from_pydict(rows), tmp_path / "t.parquet")
    data = read("custom", train_file=tmp_path / "t.parquet", validation_file=tmp_path / "t.parquet")
    assert [one.text for one in data.train] == ["1.5", "2.5"]
    assert noticed(data.report, "left out of training: the text is empty") == 2


# Labels.


@pytest.mark.parametrize(
    ("train", "labels"),
    [
        (["b", "a", "b"], ("a", "b")),
        ([10, 9, "9"], ("9", "10")),
        ([True, False], ("false", "true")),
        ([1.0, 2.0], ("1", "2")),
        ([f"l{i:02}" for i in range(100)], tuple(f"l{i:02}" for i in range(100))),
    ],
)
def test_labels_are_found_in_the_training_data_in_order(tmp_path: Path, train: list[object], labels: Any) -> None:
    assert read("custom", **custom_files(tmp_path, train, train[:2])).labels == labels


@pytest.mark.parametrize(
    ("train", "dev", "word"),
    [
        (["a", "b"], ["a", "c"], r"_file\.jsonl:2: label 'c' .*training data, 'a', 'b'.*--unknown_labels"),
        (["a", "a"], ["a"], "all examples have the label 'a'"),
        (["0.0", "1.0"], [1], "such as 0.0; .*--regression true; .*--regression false"),
        ([f"l{i}" for i in range(101)], ["l1"], "101 labels"),
        ([["a"], "b"], ["b"], r"train_file\.jsonl:1: .*multi-label"),
    ],
)
def test_labels_that_cannot_be_classes_are_refused(tmp_path: Path, train: list[Any], dev: list[Any], word: str) -> None:
    with pytest.raises(DataError, match=word):
        read("custom", **custom_files(tmp_path, train, dev))


@pytest.mark.parametrize(
    ("train", "dev", "options"),
    [
        ("0.0 1.0", "0 1", {"regression": False}),
        ("0 1", "0.0 1.00", {}),
        ("9007199254740993 -1", "9007199254740993.0 -1.", {}),
        ("caf\u00e9 1.0", "cafe\u0301 1.0", {}),
        ("01 1", "01 1", {}),
    ],
)
def test_one_label_written_in_two_ways_is_one_class(tmp_path: Path, train: str, dev: str, options: Any) -> None:
    data = read("custom", **custom_files(tmp_path, train.split(), dev.split()), **options)
    assert [one.label for one in data.evaluation["dev"]] == [one.label for one in data.train]
    assert len(data.labels) == 2


def test_labels_of_a_custom_task_may_be_any_text_or_number(tmp_path: Path) -> None:
    data = read("custom", **custom_files(tmp_path, ["-1", "1", None, float("nan"), ""], ["-1", "1"]))
    assert data.labels == ("-1", "1")
    assert [one.label for one in data.train] == ["-1", "1"]
    assert noticed(data.report, "left out of training: no label") == 3
    data = read("custom", regression=True, **custom_files(tmp_path, [-1, 1e6, None], [0.5, 2]))
    assert ([example.label for example in data.train], data.labels) == ([-1.0, 1e6], ())


def test_evaluation_examples_with_an_unknown_label_are_skipped_if_asked(tmp_path: Path) -> None:
    data = read("custom", unknown_labels="skip", **custom_files(tmp_path, ["a", "b"], ["a", "meh", "b", "meh"]))
    assert [example.label for example in data.evaluation["dev"]] == ["a", "b"]
    assert noticed(data.report, "NOT SCORED: a label missing from the training data") == 2
    train, dev = (write(tmp_path / tag, f"Ann B-PER\nran O\n\nRome {tag}\n") for tag in ("O", "X"))
    data = read("ner", unknown_labels="skip", train_file=train, validation_file=dev)
    assert [example.words for example in data.evaluation["dev"]] == [("Ann", "ran")]
