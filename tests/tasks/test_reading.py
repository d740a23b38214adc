"""Texts with labels: where the files are looked for, what is taken from them, and what is counted or refused."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from electra_albert.contracts import DataError, UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.model.loading import locate_encoder
from electra_albert.tasks.examples import Report, SequenceExample
from electra_albert.tasks.reading import read_unlabelled
from electra_albert.tasks.registry import TASKS, find_task
from tests.tasks.task_files import noticed, race_file, read, read_task, squad_file, sst2_folder, table, write

PAIR = "index\tsentence1\tsentence2\tlabel\n"
RTE_ROWS = "0\tA b.\tC d.\tentailment\n1\tE f.\tG h.\tnot_entailment\n"


def rte_folder(folder: Path, train: str = RTE_ROWS, dev: str = RTE_ROWS) -> Path:
    write(folder / "train.tsv", PAIR + train)
    write(folder / "dev.tsv", PAIR + dev)
    return folder


def custom_files(folder: Path, train: list[object], dev: list[object]) -> dict[str, Path]:
    """The options for two files of JSON lines, a text with each of the labels."""
    files = {"train_file": train, "validation_file": dev}
    lines = {name: [{"text": f"{name} {i}", "label": x} for i, x in enumerate(rows)] for name, rows in files.items()}
    return {
        name: write(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        for name, rows in lines.items()
    }


def stsb_folder(folder: Path, train: str, dev: str = "2.5") -> Path:
    for name, score in (("train", train), ("dev", dev)):
        rows = [["index", "sentence1", "sentence2", "score"], ["0", "a", "b", "1.25"], ["1", "c", "d", score]]
        write(folder / f"{name}.tsv", table(*rows))
    return folder


# Where the files are.


@pytest.mark.parametrize("place", ["SST-2", "sst2", "."])
def test_a_task_is_found_in_its_folder_and_in_the_one_above(tmp_path: Path, place: str) -> None:
    sst2_folder(tmp_path / place)
    data = read("sst2", data_dir=tmp_path)
    assert data.train == [SequenceExample("good film", None, "1", "0"), SequenceExample("bad film", None, "0", "1")]
    assert [(name, len(examples)) for name, examples in data.evaluation.items()] == [("dev", 2)]
    assert data.labels == ("0", "1")
    assert data.report.lines() == []


def test_an_exact_name_is_taken_before_a_longer_one_and_two_longer_ones_are_refused(tmp_path: Path) -> None:
    sst2_folder(tmp_path)
    write(tmp_path / "train_extra.tsv", "sentence\tlabel\nother\t1\n")
    assert len(read("sst2", data_dir=tmp_path).train) == 2
    (tmp_path / "train.tsv").rename(tmp_path / "train_subset.tsv")
    with pytest.raises(UsageError, match=r"train_extra\.tsv, train_subset\.tsv"):
        read("sst2", data_dir=tmp_path)


def test_files_named_one_by_one_replace_those_of_the_folder(tmp_path: Path) -> None:
    sst2_folder(tmp_path)
    other = write(tmp_path / "other" / "mine.csv", 'label,sentence\n1,"one, two"\n0,x\n')
    data = read("sst2", data_dir=tmp_path, train_file=other)
    assert [example.text for example in data.train] == ["one, two", "x"]
    assert [example.text for example in data.evaluation["dev"]] == ["fine", "poor"]
    data = read("sst2", data_dir=tmp_path, validation_file=other)
    assert [example.text for example in data.evaluation["dev"]] == ["one, two", "x"]


def test_a_model_is_scored_without_training_data(tmp_path: Path) -> None:
    sst2_folder(tmp_path)
    data = read_task(TASKS["sst2"], is_trained=False, validation_file=tmp_path / "dev.tsv")
    assert (len(data.train), len(data.evaluation["dev"]), data.labels) == (0, 2, ("0", "1"))
    with pytest.raises(UsageError, match="give --train_file too"):
        read("sst2", validation_file=tmp_path / "dev.tsv")


def test_training_data_is_not_looked_at_where_nothing_is_trained(tmp_path: Path) -> None:
    sst2_folder(tmp_path)
    (tmp_path / "train.tsv").unlink()
    for name in ("train_a.tsv", "train_b.tsv"):  # damaged, and either could be meant
        write(tmp_path / name, b"\xff")
    data = read_task(TASKS["sst2"], is_trained=False, data_dir=tmp_path, train_file=tmp_path / "none.tsv")
    assert (data.train, len(data.evaluation["dev"])) == ([], 2)


def test_the_labels_of_a_model_are_those_of_the_task_it_is_scored_on(tmp_path: Path) -> None:
    files = custom_files(tmp_path, ["never", "read"], ["b", "a"])
    task = replace(TASKS["custom"], labels=("b", "c", "a"))
    data = read_task(task, is_trained=False, validation_file=files["validation_file"])
    assert (data.labels, [one.label for one in data.evaluation["dev"]]) == (("b", "c", "a"), ["b", "a"])
    files = custom_files(tmp_path, [], ["b", "d"])
    with pytest.raises(DataError, match=r"jsonl:2: label 'd' is not one of 'b', 'c', 'a'"):
        read_task(task, is_trained=False, validation_file=files["validation_file"])


def test_each_form_is_scored_without_training_data(tmp_path: Path) -> None:
    cola = write(tmp_path / "dev.tsv", "gj04\t1\t\tIt is.\ngj04\t0\t*\tIs it is.\n")
    (tmp_path / "dev" / "high").mkdir(parents=True)
    race_file(tmp_path / "dev" / "high" / "1.txt")
    tagged = write(tmp_path / "d.conll", "Ada B-x\nran O\n")
    found = {
        "cola": read_task(TASKS["cola"], is_trained=False, validation_file=cola),
        "squad": read_task(TASKS["squad"], is_trained=False, validation_file=squad_file(tmp_path / "d.json", {})),
        "race": read_task(TASKS["race"], is_trained=False, validation_file=tmp_path / "dev"),
        "ner": read_task(replace(TASKS["ner"], labels=("B-x", "O")), is_trained=False, validation_file=tagged),
    }
    sizes = {name: (len(data.train), len(data.evaluation["dev"])) for name, data in found.items()}
    assert sizes == {"cola": (0, 2), "squad": (0, 1), "race": (0, 2), "ner": (0, 1)}


def test_only_the_diagnostic_set_may_have_no_labels(tmp_path: Path) -> None:
    bare = write(tmp_path / "dev.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n")
    with pytest.raises(DataError, match="no column 'label' for the label"):
        read_task(TASKS["rte"], is_trained=False, validation_file=bare)
    assert list(read_task(TASKS["ax"], is_trained=False, validation_file=bare).test) == ["AX"]


def test_a_test_set_is_read_only_where_it_is_needed_and_without_labels(tmp_path: Path) -> None:
    write(sst2_folder(tmp_path) / "test.tsv", "index\tsentence\tlabel\n7\tso so\t1\n")
    assert read("sst2", data_dir=tmp_path).test == {}
    assert read("sst2", data_dir=tmp_path, needs_test=True).test == {
        "SST-2": [SequenceExample("so so", None, None, "7")]
    }


def test_both_sets_of_mnli_are_read_and_a_missing_one_is_counted(tmp_path: Path) -> None:
    header = table(["index", "sentence1", "sentence2", "label1", "gold_label"])
    rows = table(["0", "a", "b", "neutral", "entailment"], ["1", "c", "d", "neutral", "-"])
    for name in ("train", "dev_matched"):
        write(tmp_path / f"{name}.tsv", header + rows)
    data = read("mnli", data_dir=tmp_path)
    assert data.train == [SequenceExample("a", "b", "entailment", "0")]
    assert noticed(data.report, "not there: mismatched") == 1
    assert noticed(data.report, "rows of dev_matched.tsv NOT SCORED: no label") == 1
    write(tmp_path / "dev_mismatched.tsv", header + rows)
    assert list(read("mnli", data_dir=tmp_path).evaluation) == ["matched", "mismatched"]


def test_a_file_of_its_own_replaces_only_the_set_it_is(tmp_path: Path) -> None:
    for name in ("train", "dev_matched", "dev_mismatched", "test_mismatched"):
        write(tmp_path / f"{name}.tsv", table(["sentence1", "sentence2", "gold_label"], [name, "b", "neutral"]))
    other = write(tmp_path / "other" / "mine.tsv", table(["premise", "hypothesis", "label"], ["mine", "b", "neutral"]))
    data = read("mnli", data_dir=tmp_path, validation_file=other, test_file=other, needs_test=True)
    assert {name: some[0].text for name, some in data.evaluation.items()} == {
        "matched": "mine",
        "mismatched": "dev_mismatched",
    }
    assert list(data.evaluation) == ["matched", "mismatched"]
    assert {name: some[0].text for name, some in data.test.items()} == {"MNLI-m": "mine", "MNLI-mm": "test_mismatched"}
    assert noticed(data.report, "not there") == 0


def test_a_second_set_that_is_missing_is_counted_beside_a_file_of_its_own(tmp_path: Path) -> None:
    rows = table(["sentence1", "sentence2", "gold_label"], ["a", "b", "neutral"])
    for name in ("train", "dev_matched", "dev_extra", "test_matched"):
        write(tmp_path / f"{name}.tsv", rows)
    counts = read("mnli", data_dir=tmp_path, validation_file=tmp_path / "dev_extra.tsv", needs_test=True).report.counts
    assert {what: count for what, count in counts.items() if "not there" in what} == {
        "evaluation set of mnli that is not there: mismatched": 1,
        "test set of mnli that is not there: MNLI-mm": 1,
    }


def test_naming_a_file_settles_which_of_several_is_meant(tmp_path: Path) -> None:
    sst2_folder(tmp_path)
    for name in ("train_a.tsv", "train_b.tsv"):
        write(tmp_path / name, (tmp_path / "train.tsv").read_text())
    (tmp_path / "train.tsv").unlink()
    assert len(read("sst2", data_dir=tmp_path, train_file=tmp_path / "train_b.tsv").train) == 2


def test_files_are_found_in_any_case_their_own_first(tmp_path: Path) -> None:
    sst2_folder(tmp_path)
    (tmp_path / "train.tsv").rename(tmp_path / "TRAIN.TSV")
    assert len(read("sst2", data_dir=tmp_path).train) == 2
    write(tmp_path / "train.tsv", "sentence\tlabel\nmine\t1\n")
    assert [example.text for example in read("sst2", data_dir=tmp_path).train] == ["mine"]


@pytest.mark.parametrize("option", ["data_dir", "train_file", "validation_file"])
@pytest.mark.parametrize("path", ["x" * 5000, "y" * 300, "nul\0in it"])
def test_a_path_that_cannot_be_one_is_refused_in_one_line(tmp_path: Path, option: str, path: str) -> None:
    sst2_folder(tmp_path)
    with pytest.raises(UsageError, match=f"^--{option} ") as refused:
        read("sst2", **{"data_dir": tmp_path, option: path})  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match=r"^--predict "):
        read_unlabelled(TASKS["sst2"], Path(path), DataConfig(), Report())
    with pytest.raises(UsageError, match="give a run folder"):
        locate_encoder(Path(path))


@pytest.mark.parametrize("has_labels", [True, False])
def test_the_diagnostic_set_is_scored_where_it_has_labels(tmp_path: Path, has_labels: bool) -> None:
    header = ["index", "Premise", "Hypothesis"] + ["Label"] * has_labels
    write(tmp_path / "diagnostic" / "diagnostic.tsv", table(header, ["0", "a", "b"] + ["neutral"] * has_labels))
    data = read("ax", data_dir=tmp_path)
    assert data.train == []
    assert (list(data.evaluation), list(data.test)) == ((["diagnostic"], []) if has_labels else ([], ["AX"]))
    assert list(read("ax", data_dir=tmp_path, needs_test=True).test) == ["AX"]


def test_cola_is_read_with_and_without_a_header(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "gj04\t1\t\tIt is.\ngj04\t0\t*\tIs it is.\n")
    write(tmp_path / "dev.tsv", "sentence\tlabel\nHe is.\t1\nHim is.\t0\n")
    data = read("cola", data_dir=tmp_path)
    assert [(example.text, example.label) for example in data.train] == [("It is.", "1"), ("Is it is.", "0")]
    assert [example.text for example in data.evaluation["dev"]] == ["He is.", "Him is."]


def test_the_original_files_of_mrpc_are_read(tmp_path: Path) -> None:
    rows = table(["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], ["1", "5", "6", 'a "b', "c"], list("0789x"))
    for name in ("train", "test"):
        write(tmp_path / f"msr_paraphrase_{name}.txt", "\ufeff" + rows)
    data = read("mrpc", data_dir=tmp_path)
    assert data.train[0] == SequenceExample('a "b', "c", "1", "0")
    assert noticed(data.report, "rows of msr_paraphrase_test.txt that are trained on too") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no data; give its folder"),
        ({"data_dir": "nowhere/at/all"}, "no such folder, and not OWNER/NAME"),
        ({"data_dir": "sst/dev.tsv"}, "not a folder"),
        (
            {"data_dir": "empty"},
            r"no training data in .*empty: looked for train.tsv or train\*.tsv, in it or in SST",
        ),
        ({"data_dir": "half"}, r"no data to score on in .*half.*there is 'train.tsv'"),
        ({"data_dir": "CoLA"}, "the folder of cola, not of sst2"),
        ({"train_file": "sst/train.tsv"}, "give --validation_file too"),
        ({"validation_file": "sst/train.tsv"}, "give --train_file too"),
        ({"train_file": "sst/missing.tsv"}, "--train_file .*: no such file"),
        ({"data_dir": "sst", "needs_test": True}, "no test set"),
    ],
)
def test_files_that_are_not_there_are_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    sst2_folder(tmp_path / "sst")
    sst2_folder(tmp_path / "CoLA")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "half" / "train.tsv", "sentence\tlabel\n")
    placed = {key: tmp_path / value if isinstance(value, str) else value for key, value in options.items()}
    with pytest.raises(UsageError, match=message) as refused:
        read("sst2", **placed)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


# Rows that cannot be used.


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
        ([["a"], "b"], ["b"], r"train_file\.jsonl:1: 'label' holds list, not text"),
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
    folder = sst2_folder(tmp_path, train="a\t1\nb\t0\n", dev="x\t1\ny\t1\na\t0\nb\t0\n")
    cut = read("sst2", data_dir=folder, max_train_examples=1, max_eval_examples=2)
    assert noticed(cut.report, "label only in dev.tsv: '1'") == 1
    assert noticed(cut.report, "without an example in dev.tsv: '0'") == 1
    other = "1" if cut.train[0].label == "0" else "0"
    assert noticed(cut.report, f"without an example to train on: '{other}'") == 1
    assert noticed(cut.report, "trained on too") == 0
    part = read("sst2", data_dir=folder, max_train_examples=1)
    assert noticed(part.report, "trained on too") == 1


# Fewer examples.


def test_training_examples_are_drawn_by_the_seed_and_the_first_are_scored(tmp_path: Path) -> None:
    rows = "".join(f"text {i}\t{i % 2}\n" for i in range(50))
    folder = sst2_folder(tmp_path, train=rows, dev=rows.replace("text", "word"))
    drawn = [read("sst2", data_dir=folder, max_train_examples=20, max_eval_examples=3, seed=s) for s in (1, 1, 2)]
    texts = [[example.text for example in data.train] for data in drawn]
    assert texts[0] == texts[1] != texts[2]
    assert all(len(set(some)) == 20 for some in texts)
    assert [example.text for example in drawn[0].evaluation["dev"]] == ["word 0", "word 1", "word 2"]
    assert drawn[0].report.counts["training examples not drawn"] == 30
    assert noticed(drawn[0].report, "examples of dev not scored") == 47
    taken = Counter(text for s in range(40) for text in drawn_texts(folder, s))
    assert len(taken) == 50  # one is missed by all draws of 20 of 50 with probability .6 ** 40


def drawn_texts(folder: Path, seed: int) -> list[str]:
    return [example.text for example in read("sst2", data_dir=folder, max_train_examples=20, seed=seed).train]


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
