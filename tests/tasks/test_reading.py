"""Texts with labels: where the files are looked for, what is taken from them, and what is counted or refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from electra_albert.contracts import DataError, UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.hub.load import locate_encoder
from electra_albert.tasks.examples import Report, SequenceExample
from electra_albert.tasks.reading import read_unlabelled
from electra_albert.tasks.registry import TASKS
from tests.tasks.task_files import (
    custom_files,
    noticed,
    race_file,
    read,
    read_task,
    squad_file,
    sst2_folder,
    table,
    write,
)

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


# Files without a header, and in another encoding.


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("t.tsv", ["good; film, I say\tgood", "bad\tbad"]),
        ("t.csv", ['"good; film, I say",good', "bad,bad"]),
        ("t.csv", ["good; film, I say|good", "bad|bad"]),
    ],
)
def test_a_table_without_a_header_is_read_by_the_names_given(tmp_path: Path, name: str, lines: list[str]) -> None:
    # Regression: its first row was taken for the names.
    file = write(tmp_path / name, "\n".join(lines))
    texts = ["good; film, I say", "bad"]
    data = read("custom", train_file=file, validation_file=file, column_names="text, label")
    assert [(example.text, example.label) for example in data.train] == list(zip(texts, ("good", "bad"), strict=True))
    new = write(tmp_path / f"new-{name}", "fine\n")  # without a label
    config = DataConfig(task="custom", column_names="text,label")
    report = Report()
    assert [example.text for example in read_unlabelled(TASKS["custom"], new, config, report)] == ["fine"]
    assert any("read as columns text (first" in line for line in report.lines())
    for names, message in (
        (None, "no column 'text'.*of a file without a header name all columns by --column_names"),
        ("text,label,more", "its first row has 2 columns, --column_names names 3"),
    ):
        with pytest.raises(DataError, match=message):
            read("custom", train_file=file, validation_file=file, column_names=names)


def test_names_of_columns_are_refused_where_the_file_has_them(tmp_path: Path) -> None:
    files = custom_files(tmp_path, ["a", "b"], ["a", "b"])
    with pytest.raises(UsageError, match=r"--column_names text,label: .*\.jsonl names its columns itself"):
        read("custom", **files, column_names="text,label")


def test_tables_in_another_encoding_are_refused_by_its_name_and_read_by_it(tmp_path: Path) -> None:
    lines = "text,label\nschöner Tag,gut\nmüde Füße,schlecht\n"
    file = write(tmp_path / "t.csv", lines.encode("latin-1"))
    files = {"train_file": file, "validation_file": file}
    with pytest.raises(DataError, match=r"t\.csv:2: bytes that are not UTF-8; it looks like cp1252.*--encoding cp1252"):
        read("custom", **files)
    assert [example.text for example in read("custom", **files, encoding="Latin_1").train] == [
        "schöner Tag",
        "müde Füße",
    ]
