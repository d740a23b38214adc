"""The data of a task: finding its files, its columns, sampling, and new text."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from electra_albert.contracts import DataError, UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.reading import read_unlabelled
from electra_albert.tasks.registry import TASKS, find_task
from electra_albert.tasks.task import Report, SequenceExample
from tests.tasks.task_files import custom_files, noticed, read, rte_folder, sst2_folder, table, write

# Where the files are.


@pytest.mark.parametrize("folder", ["SST-2", "sst2", "."])
def test_a_task_is_found_in_its_folder_and_in_the_one_above(tmp_path: Path, folder: str) -> None:
    sst2_folder(tmp_path / folder)
    data = read("sst2", data_dir=tmp_path)
    assert data.train == [SequenceExample("good film", None, "1", "0"), SequenceExample("bad film", None, "0", "1")]
    assert [(name, len(examples)) for name, examples in data.evaluation.items()] == [("dev", 2)]
    assert data.labels == ("0", "1")
    assert data.report.lines() == []


def test_exact_file_names_are_preferred_and_then_their_exact_case(tmp_path: Path) -> None:
    sst2_folder(tmp_path)
    write(tmp_path / "train_extra.tsv", "sentence\tlabel\nother\t1\n")
    assert len(read("sst2", data_dir=tmp_path).train) == 2
    (tmp_path / "train.tsv").rename(tmp_path / "TRAIN.TSV")
    (tmp_path / "train_extra.tsv").unlink()
    assert len(read("sst2", data_dir=tmp_path).train) == 2
    for name in ("train_a.tsv", "train_b.tsv"):
        (tmp_path / name).write_text((tmp_path / "TRAIN.TSV").read_text())
    with pytest.raises(UsageError, match=r"train_a\.tsv, train_b\.tsv"):
        read("sst2", data_dir=tmp_path)
    assert len(read("sst2", data_dir=tmp_path, train_file=tmp_path / "train_b.tsv").train) == 2


def test_a_file_option_replaces_only_its_set_and_missing_sets_are_counted(tmp_path: Path) -> None:
    for name in ("train", "dev_matched", "dev_mismatched", "test_mismatched"):
        write(tmp_path / f"{name}.tsv", table(["sentence1", "sentence2", "gold_label"], [name, "b", "neutral"]))
    other = write(tmp_path / "other" / "mine.csv", "premise,hypothesis,label\nmine,b,neutral\n")
    data = read("mnli", data_dir=tmp_path, validation_file=other, test_file=other, needs_test=True)
    texts = {name: some[0].text for name, some in (data.evaluation | data.test).items()}
    assert texts == {"matched": "mine", "mismatched": "dev_mismatched", "MNLI-m": "mine", "MNLI-mm": "test_mismatched"}
    assert noticed(data.report, "missing") == 0
    for name in ("dev_mismatched", "test_mismatched"):
        (tmp_path / f"{name}.tsv").unlink()
    write(tmp_path / "test_matched.tsv", (tmp_path / "train.tsv").read_text())
    report = read("mnli", data_dir=tmp_path, validation_file=other, needs_test=True).report
    assert report.counts["missing evaluation set of mnli: mismatched"] == 1
    assert report.counts["missing test set of mnli: MNLI-mm"] == noticed(report, "missing") - 1 == 1
    assert noticed(read("mnli", data_dir=tmp_path, validation_file=other).report, "missing") == 1


def test_the_labels_of_a_model_are_used_for_evaluation(tmp_path: Path) -> None:
    task = replace(TASKS["custom"], labels=("b", "c", "a"))
    files = custom_files(tmp_path, ["never", "read"], ["b", "a"])
    data = read(task, is_trained=False, validation_file=files["validation_file"])
    assert (data.labels, [one.label for one in data.evaluation["dev"]]) == (("b", "c", "a"), ["b", "a"])
    files = custom_files(tmp_path, [], ["b", "d"])
    with pytest.raises(DataError, match=r"jsonl:2: label 'd' is not one of 'b', 'c', 'a'"):
        read(task, is_trained=False, validation_file=files["validation_file"])


@pytest.mark.parametrize("has_labels", [True, False])
def test_only_the_diagnostic_set_may_have_no_labels(tmp_path: Path, has_labels: bool) -> None:
    header = ["index", "Premise", "Hypothesis"] + ["Label"] * has_labels
    write(tmp_path / "diagnostic" / "diagnostic.tsv", table(header, ["0", "a", "b"] + ["neutral"] * has_labels))
    data = read("ax", data_dir=tmp_path)
    assert data.train == []
    assert (list(data.evaluation), list(data.test)) == ((["diagnostic"], []) if has_labels else ([], ["AX"]))
    assert list(read("ax", data_dir=tmp_path, needs_test=True).test) == ["AX"]
    (tmp_path / "diagnostic" / "diagnostic.tsv").rename(tmp_path / "diagnostic" / "test.tsv")
    assert list(read("ax", data_dir=tmp_path).test) == ["AX"]
    bare = write(tmp_path / "dev.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n")
    with pytest.raises(DataError, match="no column 'label'"):
        read(TASKS["rte"], is_trained=False, validation_file=bare)


def test_a_test_set_is_read_only_where_it_is_needed_and_without_labels(tmp_path: Path) -> None:
    write(sst2_folder(tmp_path) / "test.tsv", "index\tsentence\tlabel\n7\tso so\t1\n")
    assert read("sst2", data_dir=tmp_path).test == {}
    found = read("sst2", data_dir=tmp_path, needs_test=True).test
    assert found == {"SST-2": [SequenceExample("so so", None, None, "7")]}


def test_cola_is_read_with_and_without_a_header_and_mrpc_from_its_original_files(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "gj04\t1\t\tIt is.\ngj04\t0\t*\tIs it is.\n")
    write(tmp_path / "dev.tsv", "sentence\tlabel\nHe is.\t1\nHim is.\t0\n")
    data = read("cola", data_dir=tmp_path)
    assert [(example.text, example.label) for example in data.train] == [("It is.", "1"), ("Is it is.", "0")]
    assert [example.text for example in data.evaluation["dev"]] == ["He is.", "Him is."]
    rows = table(["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], ["1", "5", "6", 'a "b', "c"], list("0789x"))
    for name in ("train", "test"):
        write(tmp_path / "MRPC" / f"msr_paraphrase_{name}.txt", "\ufeff" + rows)
    data = read("mrpc", data_dir=tmp_path)
    assert data.train[0] == SequenceExample('a "b', "c", "1", "0")
    assert noticed(data.report, "examples of msr_paraphrase_test.txt also in the training data") == 2


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "give --train_file and --validation_file, .*--data_dir"),
        ({"data_dir": "nowhere/at/all"}, "OWNER/NAME"),
        ({"data_dir": "sst/dev.tsv"}, "not a folder"),
        ({"data_dir": "empty"}, r"training data.*train.tsv or train\*.tsv, also in SST"),
        ({"data_dir": "half"}, r"evaluation data.*half.*'train.tsv'"),
        ({"data_dir": "CoLA"}, "the folder of cola"),
        ({"train_file": "sst/train.tsv"}, "--validation_file"),
        ({"validation_file": "sst/train.tsv"}, "--train_file"),
        ({"train_file": "sst/missing.tsv"}, "--train_file .*no such file"),
        ({"data_dir": "sst", "needs_test": True}, "no test set"),
        ({"data_dir": "sst", "validation_split": 0.5}, "already has evaluation data"),
        ({"data_dir": "x" * 5000}, "--data_dir"),
    ],
)
def test_missing_files_are_refused(tmp_path: Path, options: dict[str, object], word: str) -> None:
    sst2_folder(tmp_path / "sst")
    sst2_folder(tmp_path / "CoLA")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "half" / "train.tsv", "sentence\tlabel\n")
    placed = {key: tmp_path / value if isinstance(value, str) else value for key, value in options.items()}
    with pytest.raises(UsageError, match=word) as refused:
        read("sst2", **placed)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


# Columns, files without a header, and other encodings.


def test_columns_are_chosen_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", "q,p,y\nx,z,1\nu,v,0\n")
    columns = {"text_column": "p", "text_pair_column": "q", "label_column": "y"}
    data = read("custom", train_file=file, validation_file=file, **columns)
    assert data.train[0] == SequenceExample("z", "x", "1", "0")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("t.tsv", ["good; film, I say\tgood", "bad\tbad"]),
        ("t.csv", ['"good; film, I say",good', "bad,bad"]),
        ("t.csv", ["good; film, I say|good", "bad|bad"]),
    ],
)
def test_a_table_without_a_header_is_read_by_the_names_given(tmp_path: Path, name: str, lines: list[str]) -> None:
    # Regression: the first row was read as the header.
    file = write(tmp_path / name, "\n".join(lines))
    texts = ["good; film, I say", "bad"]
    data = read("custom", train_file=file, validation_file=file, column_names="text, label")
    assert [(example.text, example.label) for example in data.train] == list(zip(texts, ("good", "bad"), strict=True))
    new = write(tmp_path / f"new-{name}", "fine\n")  # without a label
    config, report = DataConfig(task="custom", column_names="text,label"), Report()
    assert [example.text for example in read_unlabelled(TASKS["custom"], new, config, report)] == ["fine"]
    assert any("read as columns text (first" in line for line in report.lines())
    for names, word in ((None, "no column 'text'.*--column_names"), ("text,label,more", "2 columns")):
        with pytest.raises(DataError, match=word):
            read("custom", train_file=file, validation_file=file, column_names=names)


def test_a_table_in_another_encoding_needs_the_option(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", "text,label\nschöner Tag,gut\nmüde Füße,schlecht\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"t\.csv:2: .*--encoding cp1252"):
        read("custom", train_file=file, validation_file=file)
    wide = write(tmp_path / "wide.csv", "text,label\nschön,gut\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"wide\.csv:1: .*iconv -f UTF-16"):
        read("custom", train_file=wide, validation_file=wide)
    data = read("custom", train_file=file, validation_file=file, encoding="Latin_1")
    assert [example.text for example in data.train] == ["schöner Tag", "müde Füße"]


def test_options_for_columns_without_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--column_names text,label: .*has column names of its own"):
        read("custom", **custom_files(tmp_path, ["a", "b"], ["a", "b"]), column_names="text,label")
    write(rte_folder(tmp_path) / "dev.tsv", "index\tsentence1\tsentence_2\tlabel\n")
    with pytest.raises(DataError, match=r"'sentence2'.*it has 'index', 'sentence1', 'sentence_2'.*--text_pair_column"):
        read("rte", data_dir=tmp_path)
    write(tmp_path / "dev.tsv", "sentence1\tsentence2\tlabel\tlabel\n")
    with pytest.raises(DataError, match="'label' appears twice"):
        read("rte", data_dir=tmp_path)


# Unusual data, and sampling.


def test_unusual_evaluation_sets_are_counted(tmp_path: Path) -> None:
    one_class = read("sst2", data_dir=sst2_folder(tmp_path, dev="x\t1\ny\t1\n")).report
    assert noticed(one_class, "label for all examples of dev.tsv: '1'") == 1
    assert noticed(one_class, "without an example in dev.tsv: '0'") == 1
    assert noticed(read("sst2", data_dir=sst2_folder(tmp_path, dev="x\t1\n")).report, "in dev.tsv: too few") == 1
    leaked = read("sst2", data_dir=sst2_folder(tmp_path, dev="x\t1\ngood film\t0\nbad film\t0\n")).report
    what = "examples of dev.tsv also in the training data"
    assert (leaked.counts[what], leaked.first_seen[what]) == (2, "dev.tsv, id 1")
    lacking = read("sst2", data_dir=sst2_folder(tmp_path, train="x\t1\n")).report
    assert noticed(lacking, "without a training example: '0'") == 1


def test_only_sampled_examples_are_checked(tmp_path: Path) -> None:
    folder = sst2_folder(tmp_path, train="a\t1\nb\t0\n", dev="x\t1\na\t0\nb\t0\ny\t1\n")  # x and y are sampled
    cut = read("sst2", data_dir=folder, max_train_examples=1, max_eval_examples=2)
    assert noticed(cut.report, "label for all examples of dev.tsv: '1'") == 1
    assert noticed(cut.report, "also in the training data") == 0
    assert noticed(read("sst2", data_dir=folder, max_train_examples=1).report, "also in the training data") == 1


def test_training_examples_depend_on_the_seed_and_evaluation_examples_do_not(tmp_path: Path) -> None:
    rows = "".join(f"text {i}\t{i % 2}\n" for i in range(50))
    folder = sst2_folder(tmp_path, train=rows, dev=rows.replace("text", "word"))
    drawn = [read("sst2", data_dir=folder, max_train_examples=20, max_eval_examples=3, seed=s) for s in (1, 1, 2)]
    texts = [[example.text for example in data.train] for data in drawn]
    assert texts[0] == texts[1] != texts[2]
    assert all(len(set(some)) == 20 for some in texts)
    numbers = [[int(example.identity) for example in data.evaluation["dev"]] for data in drawn]
    assert numbers[0] == numbers[1] == numbers[2] == sorted(set(numbers[0])) != [0, 1, 2]
    assert drawn[0].report.counts["training examples not sampled"] == 30
    assert noticed(drawn[0].report, "examples of dev not sampled") == 47


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_validation_split_has_its_share_of_every_label(tmp_path: Path, share: float) -> None:
    file = custom_files(tmp_path, ["a"] * 150 + ["b"] * 40 + ["c"] * 9 + ["d"], [])["train_file"]
    splits = [read("custom", train_file=file, validation_split=share, seed=seed) for seed in (1, 2)]
    train, held_out = ([example.text for example in part] for part in (splits[0].train, splits[0].evaluation["dev"]))
    assert held_out == [example.text for example in splits[1].evaluation["dev"]]
    assert sorted(train + held_out) == sorted(f"train_file {number}" for number in range(200))
    counts = Counter(example.label for example in splits[0].evaluation["dev"])
    for label, size in (("a", 150), ("b", 40), ("c", 9)):
        assert abs(counts[label] - share * size) <= 1
    assert counts["d"] == 0, "a label with one example stays in training"


def test_an_impossible_validation_split_is_refused(tmp_path: Path) -> None:
    file = custom_files(tmp_path, ["a", "b"], ["a"])["train_file"]
    with pytest.raises(DataError, match=r"--validation_split 0\.1 of 2 examples is no example"):
        read("custom", train_file=file, validation_split=0.1)
    with pytest.raises(UsageError, match="nothing is trained"):
        read(TASKS["custom"], is_trained=False, train_file=file, validation_split=0.1)
    with pytest.raises(UsageError, match="share their passages"):
        read("squad", train_file=file, validation_split=0.5)


# New text.


def test_new_text_is_read_from_lines_or_from_a_table_without_labels(tmp_path: Path) -> None:
    task, config, report = find_task("sst2"), DataConfig(), Report()
    lines = write(tmp_path / "new.txt", "One.\r\n\nTwo\tand three.")
    texts = ("One.", "", "Two\tand three.")
    wanted = [SequenceExample(text, None, None, str(number)) for number, text in enumerate(texts)]
    assert read_unlabelled(task, lines, config, report) == wanted
    assert report.lines() == [f"1 example of new.txt kept although the text is empty (first: {lines}:2)"]
    labelled = write(tmp_path / "new.tsv", "label\tsentence\nwhatever\tOne.\n")
    assert read_unlabelled(task, labelled, config, report) == [SequenceExample("One.", None, None, "0")]


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("new.txt", " \n\r\n", "empty; give"),
        ("new.tsv", "sentence\n", "no examples to predict"),
        ("new.tsv", "text\none\n", "no column 'sentence'"),
        ("new.tsv", "index\tsentence\n0\n", "1 columns instead of 2; every example"),
    ],
)
def test_new_text_that_cannot_be_used_is_refused(tmp_path: Path, name: str, content: str, word: str) -> None:
    with pytest.raises(DataError, match=rf"{name}.*{word}"):
        read_unlabelled(TASKS["sst2"], write(tmp_path / name, content), DataConfig(), Report())
    for missing in (tmp_path / "none.tsv", Path("y" * 300)):
        with pytest.raises(UsageError, match="--predict"):
            read_unlabelled(TASKS["sst2"], missing, DataConfig(), Report())
