"""Rows of texts with labels: which are used, left out, counted or refused, and what labels are found."""

from collections import Counter
from pathlib import Path

import pytest

from electra_albert.contracts import DataError, UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.reading import read_unlabelled
from electra_albert.tasks.registry import TASKS, find_task
from electra_albert.tasks.task import Report, SequenceExample
from tests.tasks.task_files import custom_files, noticed, read, read_task, sst2_folder, table, write

PAIR = "index\tsentence1\tsentence2\tlabel\n"
RTE_ROWS = "0\tA b.\tC d.\tentailment\n1\tE f.\tG h.\tnot_entailment\n"


def rte_folder(folder: Path, train: str = RTE_ROWS, dev: str = RTE_ROWS) -> Path:
    write(folder / "train.tsv", PAIR + train)
    write(folder / "dev.tsv", PAIR + dev)
    return folder


def stsb_folder(folder: Path, train: str, dev: str = "2.5") -> Path:
    for name, score in (("train", train), ("dev", dev)):
        rows = [["index", "sentence1", "sentence2", "score"], ["0", "a", "b", "1.25"], ["1", "c", "d", score]]
        write(folder / f"{name}.tsv", table(*rows))
    return folder


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2\tA\tB\n", "3 columns instead of 4"),
        ("2\tA\tB\tentailment\textra\n", "5 columns instead of 4"),
        ("2\tA\tB\t-\n", "no label"),
        ("2\tA\tB\t-1\n", "no label"),
        ("2\tA\tB\t\n", "no label"),
    ],
)
def test_rows_without_a_whole_label_are_left_out_and_counted(tmp_path: Path, row: str, why: str) -> None:
    data = read("rte", data_dir=rte_folder(tmp_path, RTE_ROWS + row, RTE_ROWS + row))
    assert len(data.train) == len(data.evaluation["dev"]) == 2
    for name, ending in (("train.tsv", "left out of training"), ("dev.tsv", "NOT SCORED")):
        what = f"rows of {name} {ending}: {why}"
        assert data.report.counts[what] == 1
        assert data.report.first_seen[what] == f"{tmp_path}/{name}:4"


@pytest.mark.parametrize(
    ("row", "what"), [("2\t \tB\tentailment\n", "the text"), ("2\tA\t\tentailment\n", "the second text")]
)
def test_an_empty_text_is_left_out_of_training_but_scored(tmp_path: Path, row: str, what: str) -> None:
    data = read("rte", data_dir=rte_folder(tmp_path, RTE_ROWS + row, RTE_ROWS + row))
    assert (len(data.train), len(data.evaluation["dev"])) == (2, 3)
    assert noticed(data.report, f"rows of train.tsv left out of training: {what} is empty") == 1
    assert noticed(data.report, f"rows of dev.tsv kept although {what} is empty") == 1


def test_quotes_and_spaces_in_a_field_stay_as_they_are(tmp_path: Path) -> None:
    data = read("sst2", data_dir=sst2_folder(tmp_path, 'a "b \t1\n"c\t0\n'))
    assert [example.text for example in data.train] == ['a "b ', '"c']


@pytest.mark.parametrize("where", ["train", "dev"])
def test_a_label_that_is_none_of_the_tasks_is_refused_with_its_place(tmp_path: Path, where: str) -> None:
    rte_folder(tmp_path, **{where: RTE_ROWS + "2\tA\tB\tmaybe\n"})
    said = rf"{where}\.tsv:4: label 'maybe' is not one of 'entailment', 'not_entailment'"
    with pytest.raises(DataError, match=said):
        read("rte", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ("", RTE_ROWS, "no example to train on in it"),
        ("0\tA\tB\t-\n", RTE_ROWS, r"no example to train on is left \(1 rows of train.tsv left out"),
        (RTE_ROWS, "0\tA\tB\t-1\n", r"no example to score is left \(1 rows of dev.tsv NOT SCORED"),
        (RTE_ROWS, "", "no example to score in it"),
    ],
)
def test_a_set_without_a_usable_row_is_refused(tmp_path: Path, train: str, dev: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read("rte", data_dir=rte_folder(tmp_path, train, dev))


def test_a_broken_row_of_a_test_set_is_refused(tmp_path: Path) -> None:
    write(rte_folder(tmp_path) / "test.tsv", "index\tsentence1\tsentence2\n0\tA\n")
    with pytest.raises(DataError, match=r"test\.tsv:2: 2 columns instead of 3; every row"):
        read("rte", data_dir=tmp_path, needs_test=True)


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    write(rte_folder(tmp_path) / "dev.tsv", "index\tsentence1\tsentence_2\tlabel\n")
    with pytest.raises(DataError, match=r"no column 'sentence2' for the second text.*did you mean 'sentence_2'"):
        read("rte", data_dir=tmp_path)


# Scores.


@pytest.mark.parametrize("score", ["5.01", "-0.5", "nan", "inf"])
def test_a_score_out_of_range_is_left_out_of_training_and_refused_for_scoring(tmp_path: Path, score: str) -> None:
    data = read("stsb", data_dir=stsb_folder(tmp_path, score))
    assert [example.label for example in data.train] == [1.25]
    assert noticed(data.report, "the label is not a number from 0 to 5") == 1
    with pytest.raises(DataError, match=rf"dev\.tsv:3: label {score} is not a number from 0 to 5"):
        read("stsb", data_dir=stsb_folder(tmp_path, "1", score))


def test_a_score_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.tsv:3: label 'much' is not a number"):
        read("stsb", data_dir=stsb_folder(tmp_path, "much"))


def test_the_numbers_of_a_custom_regression_may_be_any(tmp_path: Path) -> None:
    data = read("custom", regression=True, **custom_files(tmp_path, [-1, 1e6, None], [0.5, 2]))
    assert [example.label for example in data.train] == [-1.0, 1e6]
    assert data.labels == ()
    assert noticed(data.report, "no label") == 1


# Labels that are found.


@pytest.mark.parametrize(
    ("train", "labels"),
    [
        (["b", "a", "b"], ("a", "b")),
        ([10, 9, "9"], ("9", "10")),
        ([True, False], ("false", "true")),
        ([1.0, 2.0], ("1", "2")),
    ],
)
def test_labels_are_found_in_the_training_data_in_order(
    tmp_path: Path, train: list[object], labels: tuple[str]
) -> None:
    assert read("custom", **custom_files(tmp_path, train, train[:2])).labels == labels


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        (
            ["a", "b"],
            ["a", "c"],
            r"_file\.jsonl:2: label 'c' is not in the training data, which has 'a', 'b'",
        ),
        (["a", "a"], ["a"], "all rows have the label 'a'"),
        ([0.5, 1.5, 2.0], [0.5], "the labels are numbers such as 0.5; .*--regression true"),
        ([f"l{i}" for i in range(101)], ["l1"], "101 labels, more than 100"),
        ([["a"], "b"], ["b"], r"train_file\.jsonl:1: 'label' holds a list; several labels a text \(multi-label\)"),
    ],
)
def test_labels_that_cannot_be_classes_are_refused(
    tmp_path: Path, train: list[object], dev: list[object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read("custom", **custom_files(tmp_path, train, dev))


@pytest.mark.parametrize("name", ["-", "-1"])
def test_a_class_of_a_custom_task_may_be_called_by_any_sign(tmp_path: Path, name: str) -> None:
    data = read("custom", **custom_files(tmp_path, [name, "1", None, float("nan"), ""], [name, "1"]))
    assert data.labels == (name, "1")
    assert [one.label for one in data.train] == [name, "1"]
    assert [one.label for one in data.evaluation["dev"]] == [name, "1"]
    assert noticed(data.report, "left out of training: no label") == 3


def test_missing_text_of_parquet_is_no_text(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    rows = {"text": [1.5, float("nan"), None, 2.5], "label": ["a", "b", "b", "b"]}
    parquet.write_table(Table.from_pydict(rows), tmp_path / "t.parquet")
    data = read("custom", train_file=tmp_path / "t.parquet", validation_file=tmp_path / "t.parquet")
    assert [one.text for one in data.train] == ["1.5", "2.5"]
    assert noticed(data.report, "left out of training: the text is empty") == 2
    assert noticed(data.report, "kept although the text is empty") == 2


def test_a_hundred_labels_are_still_classes(tmp_path: Path) -> None:
    train = [f"l{i}" for i in range(100)]
    assert len(read("custom", **custom_files(tmp_path, train, train)).labels) == 100  # type: ignore[arg-type]


def test_columns_are_chosen_by_name(tmp_path: Path) -> None:
    files = {
        name: write(tmp_path / f"{name}.csv", "q,p,y\nx,z,1\nu,v,0\n") for name in ("train_file", "validation_file")
    }
    data = read("custom", text_column="p", text_pair_column="q", label_column="y", **files)
    assert data.train[0] == SequenceExample("z", "x", "1", "0")


# What is worth knowing of an evaluation set.


def test_odd_evaluation_sets_are_counted(tmp_path: Path) -> None:
    one_class = read("sst2", data_dir=sst2_folder(tmp_path, dev="x\t1\ny\t1\n")).report
    assert (
        noticed(one_class, "label only in dev.tsv: '1'")
        == noticed(one_class, "without an example in dev.tsv: '0'")
        == 1
    )
    assert noticed(read("sst2", data_dir=sst2_folder(tmp_path, dev="x\t1\n")).report, "row only in dev.tsv") == 1
    leaked = read("sst2", data_dir=sst2_folder(tmp_path, dev="x\t1\ngood film\t0\nbad film\t0\n")).report
    assert leaked.counts["rows of dev.tsv that are trained on too"] == 2
    assert leaked.first_seen["rows of dev.tsv that are trained on too"] == "dev.tsv, id 1"
    lacking = read("sst2", data_dir=sst2_folder(tmp_path, train="x\t1\n")).report
    assert noticed(lacking, "without an example to train on: '0'") == 1


def test_oddities_are_those_of_the_examples_that_are_used(tmp_path: Path) -> None:
    folder = sst2_folder(tmp_path, train="a\t1\nb\t0\n", dev="x\t1\na\t0\nb\t0\ny\t1\n")  # the draw takes x and y
    cut = read("sst2", data_dir=folder, max_train_examples=1, max_eval_examples=2)
    assert noticed(cut.report, "label only in dev.tsv: '1'") == 1
    assert noticed(cut.report, "without an example in dev.tsv: '0'") == 1
    other = "1" if cut.train[0].label == "0" else "0"
    assert noticed(cut.report, f"without an example to train on: '{other}'") == 1
    assert noticed(cut.report, "trained on too") == 0
    part = read("sst2", data_dir=folder, max_train_examples=1)
    assert noticed(part.report, "trained on too") == 1


# Fewer examples.


def test_training_examples_are_drawn_by_the_seed_and_those_to_score_are_the_same_for_all(tmp_path: Path) -> None:
    rows = "".join(f"text {i}\t{i % 2}\n" for i in range(50))
    folder = sst2_folder(tmp_path, train=rows, dev=rows.replace("text", "word"))
    drawn = [read("sst2", data_dir=folder, max_train_examples=20, max_eval_examples=3, seed=s) for s in (1, 1, 2)]
    texts = [[example.text for example in data.train] for data in drawn]
    assert texts[0] == texts[1] != texts[2]
    assert all(len(set(some)) == 20 for some in texts)
    numbers = [[int(example.identity) for example in data.evaluation["dev"]] for data in drawn]
    assert numbers[0] == numbers[1] == numbers[2] == sorted(set(numbers[0])) != [0, 1, 2]
    assert len(numbers[0]) == 3
    assert drawn[0].report.counts["training examples not drawn"] == 30
    assert noticed(drawn[0].report, "examples of dev not scored") == 47
    taken = Counter(text for s in range(40) for text in drawn_texts(folder, s))
    assert len(taken) == 50  # one is missed by all draws of 20 of 50 with probability .6 ** 40


def drawn_texts(folder: Path, seed: int) -> list[str]:
    return [example.text for example in read("sst2", data_dir=folder, max_train_examples=20, seed=seed).train]


# A part of the training data held out.


@pytest.mark.parametrize("share", [0.1, 0.25, 0.9])
def test_a_validation_split_has_its_share_of_every_label(tmp_path: Path, share: float) -> None:
    file = custom_files(tmp_path, ["a"] * 150 + ["b"] * 40 + ["c"] * 9 + ["d"], [])["train_file"]
    splits = [read("custom", train_file=file, validation_split=share, seed=seed) for seed in (1, 2)]
    train, held_out = ([example.text for example in part] for part in (splits[0].train, splits[0].evaluation["dev"]))
    assert held_out == [example.text for example in splits[1].evaluation["dev"]]
    assert {*train, *held_out} == {f"train_file {number}" for number in range(200)}
    assert len(train) + len(held_out) == 200
    counts = Counter(example.label for example in splits[0].evaluation["dev"])
    for label, size in (("a", 150), ("b", 40), ("c", 9)):
        assert abs(counts[label] - share * size) <= 1
    assert counts["d"] == 0, "what is scored was trained on once at least"
    fewer = read("custom", train_file=file, validation_split=share, max_eval_examples=5).evaluation["dev"]
    assert len(fewer) == 5
    assert {example.text for example in fewer} <= {*held_out}


def test_a_validation_split_that_cannot_be_is_refused(tmp_path: Path) -> None:
    files = custom_files(tmp_path, ["a", "b"], ["a"])
    with pytest.raises(DataError, match=r"--validation_split 0\.1 of 2 examples is none"):
        read("custom", train_file=files["train_file"], validation_split=0.1)
    with pytest.raises(UsageError, match="nothing is trained"):
        read_task(TASKS["custom"], is_trained=False, train_file=files["train_file"], validation_split=0.1)
    with pytest.raises(UsageError, match="holds data to score on already"):
        read("sst2", data_dir=sst2_folder(tmp_path), validation_split=0.5)
    for name in ("squad", "race"):
        with pytest.raises(UsageError, match="share their passages"):
            read(name, train_file=files["train_file"], validation_split=0.5)


def test_rows_with_a_label_that_training_lacks_are_left_out_if_asked(tmp_path: Path) -> None:
    files = custom_files(tmp_path, ["a", "b"], ["a", "meh", "b", "meh"])
    with pytest.raises(DataError, match=r"label 'meh' is not in the training data.*--unknown_labels skip"):
        read("custom", **files)
    data = read("custom", unknown_labels="skip", **files)
    assert [example.label for example in data.evaluation["dev"]] == ["a", "b"]
    assert noticed(data.report, "NOT SCORED: a label that the training data lack") == 2
    tags = {
        name: write(tmp_path / name, f"Ann B-PER\nran O\n\nRome {tag}\n") for name, tag in (("t", "O"), ("d", "B-LOC"))
    }
    tagged = read("ner", unknown_labels="skip", train_file=tags["t"], validation_file=tags["d"])
    assert [example.words for example in tagged.evaluation["dev"]] == [("Ann", "ran")]


# New text.


def test_new_text_is_read_a_line_each_or_from_a_table_without_its_labels(tmp_path: Path) -> None:
    task, config, report = find_task("sst2"), DataConfig(), Report()
    lines = write(tmp_path / "new.txt", "One.\r\n\nTwo\tand three.")
    assert read_unlabelled(task, lines, config, report) == [
        SequenceExample("One.", None, None, "0"),
        SequenceExample("", None, None, "1"),
        SequenceExample("Two\tand three.", None, None, "2"),
    ]
    assert report.lines() == [f"1 rows of new.txt kept although the text is empty (first: {lines}:2)"]
    labelled = write(tmp_path / "new.tsv", "label\tsentence\nwhatever\tOne.\n")
    assert read_unlabelled(task, labelled, config, report) == [SequenceExample("One.", None, None, "0")]


@pytest.mark.parametrize("content", ["", "\n", " \n\r\n"])
def test_a_file_without_text_holds_nothing_to_predict(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match=r"new\.txt: holds nothing to predict"):
        read_unlabelled(TASKS["sst2"], write(tmp_path / "new.txt", content), DataConfig(), Report())


def test_a_test_set_without_rows_is_refused(tmp_path: Path) -> None:
    write(rte_folder(tmp_path) / "test.tsv", "index\tsentence1\tsentence2\n")
    with pytest.raises(DataError, match=r"test\.tsv: holds nothing to predict"):
        read("rte", data_dir=tmp_path, needs_test=True)


def test_new_text_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    task, report = find_task("rte"), Report()
    with pytest.raises(UsageError, match="no such file"):
        read_unlabelled(task, tmp_path / "none.tsv", DataConfig(), report)
    with pytest.raises(DataError, match="no column 'sentence1'"):
        read_unlabelled(task, write(tmp_path / "new.txt", "one text\n"), DataConfig(), report)
    with pytest.raises(DataError, match="holds nothing to predict"):
        read_unlabelled(task, write(tmp_path / "new.tsv", PAIR), DataConfig(), report)
