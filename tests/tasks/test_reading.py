"""The data of a task: finding its files, its columns, sampling, new text, and what is refused."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from electra_albert.config.finetuning import DataConfig
from electra_albert.tasks.reading import read_unlabelled
from electra_albert.tasks.registry import TASKS, find_task
from electra_albert.tasks.task import Report, SequenceExample
from tests.refusals import assert_refused, rows
from tests.tasks.task_files import as_lines, custom_files, noticed, read, sst2_folder, write

LATIN = "text,label\nschön,a\nmüde,b\n".encode("latin-1")

# Where the files are.


@pytest.mark.parametrize("folder", ["SST-2", "sst2", "."])
def test_a_task_is_found_in_its_folder_and_in_the_one_above(tmp_path: Path, folder: str) -> None:
    sst2_folder(tmp_path / folder)
    data = read("sst2", data_dir=tmp_path)
    good = SequenceExample("good film", None, "1", "0")
    assert data.train == [good, SequenceExample("bad film", None, "0", "1")]
    assert {name: len(examples) for name, examples in data.evaluation.items()} == {"dev": 2}
    assert (data.labels, data.report.lines()) == (("0", "1"), [])


def test_exact_file_names_are_preferred_and_then_their_exact_case(tmp_path: Path) -> None:
    sst2_folder(tmp_path)
    extra = write(tmp_path / "train_extra.tsv", "sentence\tlabel\nother\t1\n")
    assert len(read("sst2", data_dir=tmp_path).train) == 2
    upper = (tmp_path / "train.tsv").rename(tmp_path / "TRAIN.TSV")
    extra.unlink()
    assert len(read("sst2", data_dir=tmp_path).train) == 2
    for name in ("train_a.tsv", "train_b.tsv"):
        write(tmp_path / name, upper.read_bytes())
    assert_refused("UsageError", "train_a.tsv", read, "sst2", data_dir=tmp_path)
    assert len(read("sst2", data_dir=tmp_path, train_file=tmp_path / "train_b.tsv").train) == 2


def test_a_file_option_replaces_only_its_set_and_missing_sets_are_counted(tmp_path: Path) -> None:
    for name in ("train", "dev_matched", "dev_mismatched", "test_mismatched"):
        write(tmp_path / f"{name}.tsv", f"sentence1\tsentence2\tgold_label\n{name}\tb\tneutral\n")
    edited = write(tmp_path / "other" / "mine.csv", "premise,hypothesis,label\nmine,b,neutral\n")
    files = {"data_dir": tmp_path, "validation_file": edited}
    data = read("mnli", **files, test_file=edited, needs_test=True)
    sets = data.evaluation | data.test
    texts = [examples[0].text for examples in sets.values()]
    assert texts == ["mine", "dev_mismatched", "mine", "test_mismatched"]
    assert [*sets] == ["matched", "mismatched", "MNLI-m", "MNLI-mm"]
    assert noticed(data.report, "missing") == 0
    (tmp_path / "dev_mismatched.tsv").rename(tmp_path / "test_matched.tsv")
    (tmp_path / "test_mismatched.tsv").unlink()
    counts = read("mnli", **files, needs_test=True).report.counts
    assert counts["missing evaluation set of mnli: mismatched"] == 1
    assert counts["missing test set of mnli: MNLI-mm"] == 1
    assert noticed(read("mnli", **files).report, "missing") == 1


def test_the_labels_of_a_model_are_used_for_evaluation(tmp_path: Path) -> None:
    task = replace(TASKS["custom"], labels=("b", "c", "a"))
    file = custom_files(tmp_path, ["never", "read"], ["b", "a"])["validation_file"]
    data = read(task, is_trained=False, validation_file=file)
    assert data.labels == ("b", "c", "a")
    assert [example.label for example in data.evaluation["dev"]] == ["b", "a"]
    custom_files(tmp_path, [], ["b", "d"])
    assert_refused("DataError", "'d'", read, task, is_trained=False, validation_file=file)


def test_labels_that_join_others_are_noted(tmp_path: Path) -> None:
    labels = ["late", "lost", "late, lost", "lost;late", "late or lost", "broken|lost"]
    data = read("custom", **custom_files(tmp_path, labels, labels))
    assert set(data.labels) == set(labels)
    assert noticed(data.report, "labels of several others") == 2


@pytest.mark.parametrize("label", ["\tneutral", ""])
def test_only_the_diagnostic_set_may_have_no_labels(tmp_path: Path, label: str) -> None:
    header = "index\tPremise\tHypothesis" + ("\tLabel" if label else "")
    file = write(tmp_path / "diagnostic" / "diagnostic.tsv", f"{header}\n0\ta\tb{label}\n")
    data = read("ax", data_dir=tmp_path)
    assert data.train == []
    assert [*data.evaluation, *data.test] == ["diagnostic" if label else "AX"]
    assert [*read("ax", data_dir=tmp_path, needs_test=True).test] == ["AX"]
    file.rename(file.with_name("test.tsv"))
    assert [*read("ax", data_dir=tmp_path).test] == ["AX"]
    bare = write(tmp_path / "dev.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n")
    options = {"is_trained": False, "validation_file": bare}
    assert_refused("DataError", "'label'", read, TASKS["rte"], **options)


def test_a_test_set_is_read_only_where_it_is_needed_and_without_labels(tmp_path: Path) -> None:
    write(sst2_folder(tmp_path) / "test.tsv", "index\tsentence\tlabel\n7\tso so\t1\n")
    assert read("sst2", data_dir=tmp_path).test == {}
    tests = read("sst2", data_dir=tmp_path, needs_test=True).test
    assert tests == {"SST-2": [SequenceExample("so so", None, None, "7")]}


def test_cola_is_read_without_a_header_and_mrpc_from_its_original_files(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "gj04\t1\t\tIt is.\ngj04\t0\t*\tIs it is.\n")
    write(tmp_path / "dev.tsv", "sentence\tlabel\nHe is.\t1\nHim is.\t0\n")
    data = read("cola", data_dir=tmp_path)
    assert [example[::2] for example in data.train] == [("It is.", "1"), ("Is it is.", "0")]
    assert [example.text for example in data.evaluation["dev"]] == ["He is.", "Him is."]
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    for name in ("train", "test"):
        file = tmp_path / "MRPC" / f"msr_paraphrase_{name}.txt"
        write(file, header + '1\t5\t6\ta "b\tc\n0\t7\t8\t9\tx\n')
    data = read("mrpc", data_dir=tmp_path)
    assert data.train[0] == SequenceExample('a "b', "c", "1", "0")
    assert noticed(data.report, "also in the training data") == 2


# Columns, files without a header, and other encodings.


def test_a_table_without_a_header_is_read_by_the_names_given(tmp_path: Path) -> None:
    # Regression: the first row was read as the header.
    file = write(tmp_path / "t.tsv", "good; film, I say\tgood\nbad\tbad")
    files = {"train_file": file, "validation_file": file}
    data = read("custom", **files, column_names="text, label")
    assert [example[::2] for example in data.train] == [
        ("good; film, I say", "good"),
        ("bad", "bad"),
    ]
    new = write(tmp_path / "new.tsv", "fine\n")  # without a label
    config = DataConfig(task="custom", column_names="text,label")
    report = Report()
    assert read_unlabelled(TASKS["custom"], new, config, report)[0].text == "fine"
    assert any("read as columns text (first" in line for line in report.lines())
    for names in (None, "text,label,more"):
        assert_refused("DataError", "--column_names", read, "custom", **files, column_names=names)


# Unusual data, and sampling.


# Training and evaluation data as lines of text and label, and what is counted.
UNUSUAL = """
good film~1;bad film~0 | x~1;y~1                   | 1 label for all examples of dev.tsv: '1'
good film~1;bad film~0 | x~1;y~1                   | 1 label without an example in dev.tsv: '0'
good film~1;bad film~0 | x~1                       | 1 example in dev.tsv: too few
good film~1;bad film~0 | x~1;good film~0;bad film~0 | 2 examples of dev.tsv also in the training
x~1                    | fine~1;poor~0             | 1 label without a training example: '0'
"""


@pytest.mark.parametrize(("train", "dev", "notice"), rows(UNUSUAL))
def test_unusual_evaluation_sets_are_counted(
    tmp_path: Path, train: str, dev: str, notice: str
) -> None:
    sets = map(as_lines, (train, dev))
    report = read("sst2", data_dir=sst2_folder(tmp_path, *sets)).report
    count, _, what = notice.partition(" ")
    assert noticed(report, what) == int(count)
    if count == "2":
        assert report.first_seen[f"{what} data"] == "dev.tsv, id 1"


def test_equal_numbers_to_predict_are_noted(tmp_path: Path) -> None:
    # Regression: correlations of 0.00 without a word.
    train = write(tmp_path / "t.tsv", "text\tlabel\na\t1\nb\t2\n")
    dev = write(tmp_path / "dev.tsv", "text\tlabel\nx\t0.5\ny\t0.50\n")
    options = {"train_file": train, "validation_file": dev, "regression": True}
    assert noticed(read("custom", **options).report, "label for all examples of dev.tsv: 0.5") == 1


def test_labels_that_are_no_set_are_refused(tmp_path: Path) -> None:
    # Regression: pandas writes lists as "['a', 'b']", and "['a'" was a label.
    file = write(tmp_path / "t.csv", "text,label,a\nx,\"['a', 'b']\",1\ny,b,0\n")
    options = {"train_file": file, "validation_file": file, "multi_label": True}
    assert_refused("DataError", "is a printed list", read, "custom", **options)
    for names in ("a,a", "a,"):
        words = "empty or repeated"
        assert_refused("UsageError", words, read, "custom", **options, label_column=names)


def test_only_sampled_examples_are_checked(tmp_path: Path) -> None:
    # Of the evaluation examples x and y are sampled.
    folder = sst2_folder(tmp_path, train="a\t1\nb\t0\n", dev="x\t1\na\t0\nb\t0\ny\t1\n")
    options = {"data_dir": folder, "max_train_examples": 1}
    cut = read("sst2", **options, max_eval_examples=2).report
    assert noticed(cut, "label for all examples of dev.tsv: '1'") == 1
    assert noticed(cut, "also in the training data") == 0
    assert noticed(read("sst2", **options).report, "also in the training data") == 1


def test_only_training_examples_depend_on_the_seed(tmp_path: Path) -> None:
    lines = "".join(f"text {i}\t{i % 2}\n" for i in range(50))
    folder = sst2_folder(tmp_path, train=lines, dev=lines.replace("text", "word"))
    options = {"data_dir": folder, "max_train_examples": 20, "max_eval_examples": 3}
    first, again, other = (read("sst2", **options, seed=seed) for seed in (1, 1, 2))
    assert first.train == again.train != other.train
    assert len(set(first.train)) == len(set(other.train)) == 20
    numbers = [int(example.identity) for example in first.evaluation["dev"]]
    assert first.evaluation == other.evaluation
    assert numbers == sorted(set(numbers)) != [0, 1, 2]
    assert first.report.counts["training examples not sampled"] == 30
    assert noticed(first.report, "examples of dev not sampled") == 47


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_validation_split_has_its_share_of_every_label(tmp_path: Path, share: float) -> None:
    labels = "a" * 150 + "b" * 40 + "c" * 9 + "d"
    options = {**custom_files(tmp_path, [*labels], []), "validation_split": share}
    del options["validation_file"]
    data, again = (read("custom", **options, seed=seed) for seed in (1, 2))
    held_out = data.evaluation["held_out"]
    assert held_out == again.evaluation["held_out"]
    texts = {example.text for example in [*data.train, *held_out]}
    assert len(texts) == len(data.train) + len(held_out) == 200
    counts = Counter(example.label for example in held_out)
    assert all(abs(counts[label] - share * labels.count(label)) <= 1 for label in "abc")
    assert counts["d"] == 0, "a label with one example stays in training"


def test_a_validation_split_replaces_the_evaluation_data_of_a_folder(tmp_path: Path) -> None:
    folder = sst2_folder(tmp_path, "good film\t1\nbad film\t0\n" * 4)
    alone = read("sst2", train_file=str(Path(folder, "train.tsv")), validation_split=0.5)
    assert read("sst2", data_dir=folder, validation_split=0.5).evaluation == alone.evaluation


# New text.


def test_new_text_is_read_from_lines_or_from_a_table_without_labels(tmp_path: Path) -> None:
    report = Report()
    lines = write(tmp_path / "new.txt", "One.\r\n\nTwo\tand three.")
    texts = enumerate(["One.", "", "Two\tand three."])
    expected = [SequenceExample(text, None, None, str(number)) for number, text in texts]
    assert read_unlabelled(find_task("sst2"), lines, DataConfig(), report) == expected
    what = "1 example of new.txt kept although the text is empty"
    assert report.lines() == [f"{what} (first: {lines}:2)"]
    labelled = write(tmp_path / "new.tsv", "label\tsentence\nwhatever\tOne.\n")
    assert read_unlabelled(find_task("sst2"), labelled, DataConfig(), report) == expected[:1]


@pytest.mark.parametrize("content", [" \n\r\n", "sentence\n", "index\tsentence\n0\n"])
def test_new_text_that_cannot_be_used_is_refused(tmp_path: Path, content: str) -> None:
    def read_new(file: Path) -> object:
        return read_unlabelled(TASKS["sst2"], file, DataConfig(), Report())

    file = tmp_path / ("new.tsv" if content.strip() else "new.txt")
    assert_refused("DataError", file.name, read_new, write(file, content))
    assert_refused("UsageError", "--predict", read_new, tmp_path / ("y" * 300))


# Refused data.

REFUSED = """
sst2   | UsageError | --data_dir         | {}
sst2   | UsageError | nowhere            | {"data_dir": "nowhere/at/all"}
sst2   | UsageError | dev.tsv            | {"data_dir": "sst/dev.tsv"}
sst2   | UsageError | training data      | {"data_dir": "empty"}
sst2   | UsageError | evaluation data    | {"data_dir": "half"}
sst2   | UsageError | cola               | {"data_dir": "CoLA"}
sst2   | UsageError | --validation_file  | {"train_file": "sst/train.tsv"}
sst2   | UsageError | --train_file       | {"validation_file": "sst/train.tsv"}
sst2   | UsageError | missing.tsv        | {"train_file": "sst/missing.tsv"}
sst2   | UsageError | no test set        | {"data_dir": "sst", "needs_test": true}
squad  | UsageError | --validation_split | {"train_file": "x.json", "validation_split": 0.5}
custom | UsageError | --validation_split | {"is_trained": false, "validation_split": 0.5}
custom | DataError  | 0.1 of 2           | {"train_file": "two.csv", "validation_split": 0.1}
custom | UsageError | --column_names     | {"column_names": "text,label", "BOTH": "a.jsonl"}
rte    | DataError  | 'sentence2'        | {"BOTH": "misspelled.tsv"}
rte    | DataError  | 'label'            | {"BOTH": "repeated.tsv"}
custom | DataError  | latin.csv:2        | {"BOTH": "latin.csv"}
custom | DataError  | UTF-16             | {"BOTH": "wide.csv"}
"""


@pytest.mark.parametrize(("task", "error", "word", "options"), rows(REFUSED))
def test_data_that_cannot_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, error: str, word: str, options: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("sst", "CoLA"):
        sst2_folder(tmp_path / folder)
    write(tmp_path / "empty" / "note", "")
    write(tmp_path / "half" / "train.tsv", "sentence\tlabel\n")
    write(tmp_path / "misspelled.tsv", "index\tsentence1\tsentence_2\tlabel\n")
    write(tmp_path / "repeated.tsv", "label\tsentence1\tsentence2\tlabel\n")
    write(tmp_path / "a.jsonl", '{"text": "a", "label": "a"}\n')
    write(tmp_path / "two.csv", "text,label\na,a\nb,b\n")
    write(tmp_path / "latin.csv", LATIN)
    write(tmp_path / "wide.csv", "text,label\nschön,gut\n".encode("utf-16"))
    given = json.loads(options)
    if "BOTH" in given:
        given |= dict.fromkeys(("train_file", "validation_file"), given.pop("BOTH"))
    assert_refused(error, word, read, task, **given)


def test_a_table_in_another_encoding_is_read(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", LATIN)
    data = read("custom", train_file=file, validation_file=file, encoding="Latin_1")
    assert [example.text for example in data.train] == ["schön", "müde"]
