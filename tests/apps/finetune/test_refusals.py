"""A user's mistake in fine-tuning ends in one line and the documented exit code, or is counted and reported."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.apps.tiny_tasks import Tiny, cola, ner, options, results, rte, squad, squad_v2, stsb, tune

QUICK = ("--max_steps", 2)
Edit = Callable[[str], str]


def line(number: int, text: str) -> Edit:
    """Puts a line in the place of one, counted from 0."""
    return lambda content: "\n".join(text if i == number else old for i, old in enumerate(content.split("\n")))


def replace(old: str, new: str) -> Edit:
    """Puts a text in the place of the first such one."""
    return lambda content: content.replace(old, new, 1)


def rewrite(file: Path, *edits: Edit) -> None:
    for edit in edits:
        file.write_bytes(edit(file.read_text(encoding="utf-8")).encode(errors="surrogateescape"))


def run(finished: Finished, tiny: Tiny, output: Path, *more: object) -> Ended:
    return call(finetune.main, *tiny.options(finished.folder, output, *QUICK, *more))


def trained(finished: Finished, tiny: Tiny, output: Path, *more: object) -> Ended:
    return tune(*tiny.options(finished.folder, output, *QUICK, *more))


# Options and paths.


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--task", "colla"), "did you mean cola?"),
        (("--learning_rat", 1), "learning_rate"),
        (("--seeds", 0), "seeds=0"),
        (("--num_train_epochs", -1), "num_train_epochs=-1"),
        (("--head", "bert"), "--head"),
        (("--max_seq_length", 100), "64 positions"),
        (("--model", "nowhere"), "nowhere does not exist"),
        (("--data_dir", "nowhere"), "nowhere: no such folder"),
        (("--data_dir", "."), "no training data in ."),
        (("--train_file", "nowhere.tsv"), "nowhere.tsv: no such file"),
        (("--text_pair_column", "other"), "cola has one text"),
        (("--regression",), "cola has classes"),
        (("--output_dir", "file"), "is a file; choose another"),
        (("--config", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_trained(
    finished: Finished, in_folder: Path, words: tuple[object, ...], reason: str
) -> None:
    (in_folder / "file").write_text("in the way")
    tiny = cola(in_folder / "tasks")
    if words == ("--data_dir", "."):
        shutil.rmtree(in_folder / "tasks")
    assert_refused(run(finished, tiny, in_folder / "out", *words), 2, reason)
    assert not list(in_folder.glob("out/seed-*"))


def test_data_without_a_task_and_a_task_without_data_are_refused(finished: Finished, in_folder: Path) -> None:
    data = ("--data_dir", cola(in_folder / "tasks").folder)
    named = ("--model", finished.folder, "--output_dir", in_folder / "out")
    for words, reason in (
        (data, "--task"),
        (("--task", "glue"), "give --data_dir"),
        (("--task", "custom"), "--train_file"),
        (("--task", "squad"), "by --data_dir"),
        (("--task", "glue", *data), "holds none of CoLA"),
    ):
        assert_refused(call(finetune.main, *named, *words), 2, reason)


def test_the_folder_of_a_pretraining_run_is_not_written_into(finished: Finished, tmp_path: Path) -> None:
    run_folder = shutil.copytree(finished.folder, tmp_path / "run")
    before = sorted(run_folder.rglob("*"))
    assert_refused(run(finished, cola(tmp_path / "tasks"), run_folder), 2, "is the folder of a pretraining run")
    assert sorted(run_folder.rglob("*")) == before


def test_a_test_set_that_is_not_there_is_refused_before_anything_is_trained(finished: Finished, tmp_path: Path) -> None:
    tiny = cola(tmp_path / "tasks")
    (tiny.folder / "test.tsv").unlink()
    assert_refused(run(finished, tiny, tmp_path / "out", "--predict", "test"), 2, "no test set in")
    assert not list(tmp_path.glob("out/seed-*"))


@pytest.mark.parametrize(
    ("damage", "code", "reason"),
    [
        ("tokenizer", 2, "holds no tokenizer.json"),
        ("config", 4, "config.json"),
        ("weights", 4, "model.safetensors"),
        ("other tokenizer", 2, "the model only 20"),
    ],
)
def test_a_model_that_lacks_a_part_is_refused(
    finished: Finished, tmp_path: Path, damage: str, code: int, reason: str
) -> None:
    model = shutil.copytree(finished.folder / "discriminator", tmp_path / "model")
    if damage == "tokenizer":
        for file in model.glob("*token*"):
            file.unlink()
    elif damage == "config":
        (model / "config.json").write_text("{")
    elif damage == "weights":
        (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:100])
    else:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    argv = cola(tmp_path / "tasks").options(model, tmp_path / "out", *QUICK)
    assert_refused(call(finetune.main, *argv), code, reason)
    assert not (tmp_path / "out").exists()


# Contents of files.

CASES: dict[str, tuple[Callable[[Path], Tiny], str, Edit, tuple[str, ...]]] = {
    "unknown label in train": (cola, "train.tsv", line(3, "made\t7\t\tThe owl left."), ("train.tsv:4", "7")),
    "missing column": (rte, "train.tsv", replace("sentence2", "text_b"), ("sentence2", "text_b")),
    "no label in dev": (cola, "dev.tsv", lambda text: re.sub("\t[01]\t", "\t-1\t", text), ("dev.tsv", "label")),
    "header alone": (rte, "train.tsv", lambda text: text.split("\n")[0] + "\n", ("train.tsv",)),
    "bytes that are no text": (cola, "dev.tsv", lambda text: "made\t1\t\t\udcff\udcfe\n", ("dev.tsv", "UTF-8")),
    "a score out of range": (stsb, "dev.tsv", line(2, "1\tThe owl left.\tIt was so.\t7"), ("dev.tsv:3", "7")),
    "broken JSON": (squad, "dev-v1.1.json", lambda text: text[:-20], ("dev-v1.1.json",)),
    "a tag unknown in dev": (ner, "dev.conll", replace("B-PLACE", "B-TOWN"), ("dev.conll", "B-TOWN")),
}


@pytest.mark.parametrize("name", CASES)
def test_files_that_cannot_be_trained_or_scored_on_are_refused(finished: Finished, tmp_path: Path, name: str) -> None:
    make, file, damage, reason = CASES[name]
    tiny = make(tmp_path / "tasks")
    rewrite(tiny.folder / file, damage)
    assert_refused(run(finished, tiny, tmp_path / "out"), 3, *reason)
    assert not (tmp_path / "out").exists()


def test_numbers_as_labels_are_refused_with_the_option_for_them(finished: Finished, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("text,label\n" + "".join(f"an owl,{i / 7}\na cat,{i / 7}\n" for i in range(4)))
    files = ("--train_file", table, "--validation_file", table)
    argv = options("custom", None, finished.folder, tmp_path / "out", *QUICK, *files)
    assert_refused(call(finetune.main, *argv), 3, "--regression")
    tune(*argv, "--regression")


# Oddities that can be used: counted, reported, and never a changed denominator.


def noticed(folder: Path, *words: str) -> int:
    """The number in the only line of `noticed` that holds the words."""
    lines = [line for line in results(folder)["noticed"] if all(word in line for word in words)]
    assert len(lines) == 1, results(folder)["noticed"]
    return int(lines[0].split(" ")[0].replace(",", ""))


def test_training_rows_without_a_label_are_left_out_and_counted(finished: Finished, tmp_path: Path) -> None:
    tiny = cola(tmp_path / "tasks")
    unlabelled = [line(number, f"made\t{label}\t\tThe owl left.") for number, label in ((3, "-"), (5, "-1"), (7, ""))]
    rewrite(tiny.folder / "train.tsv", *unlabelled)
    assert "3 rows" in trained(finished, tiny, tmp_path / "out").err
    assert results(tmp_path / "out")["train_examples"] == 160 - 3
    assert noticed(tmp_path / "out", "train.tsv", "label") == 3


def test_rows_of_dev_without_a_label_are_reported_and_all_others_scored(finished: Finished, tmp_path: Path) -> None:
    tiny = cola(tmp_path / "tasks")
    rewrite(tiny.folder / "dev.tsv", line(4, "made\t-1\t\tThe owl left."))
    trained(finished, tiny, tmp_path / "out")
    assert noticed(tmp_path / "out", "dev.tsv", "NOT SCORED") == 1
    assert results(tmp_path / "out")["evaluation_examples"] == {"dev": 47}


@pytest.mark.parametrize("kept", ["one class", "one row"])
def test_a_degenerate_dev_set_is_scored_and_reported(finished: Finished, tmp_path: Path, kept: str) -> None:
    def only(text: str) -> str:
        lines = [line for line in text.split("\n") if "\t1\t" in line]
        return "\n".join(lines if kept == "one class" else lines[:1]) + "\n"

    tiny = cola(tmp_path / "tasks")
    rewrite(tiny.folder / "dev.tsv", only)
    trained(finished, tiny, tmp_path / "out")
    assert any("dev.tsv" in line for line in results(tmp_path / "out")["noticed"])
    for found in results(tmp_path / "out")["metrics"].values():
        assert all(math.isfinite(value) for value in found["values"])
    assert results(tmp_path / "out")["metrics"]["matthews_correlation"]["values"] == [0.0]


def test_texts_longer_than_a_row_are_cut_and_counted(finished: Finished, tmp_path: Path) -> None:
    trained(finished, rte(tmp_path / "tasks"), tmp_path / "out", "--max_seq_length", 12)
    cut = "cut to 12 tokens (--max_seq_length, the model reads up to 64)"
    lines = [line for line in results(tmp_path / "out")["noticed"] if cut in line]
    assert [line.split(" ")[0] for line in lines] == ["160", "48"]
    assert results(tmp_path / "out")["evaluation_examples"] == {"dev": 48}


@pytest.mark.parametrize("make", [squad, squad_v2])
def test_answers_that_no_window_holds_are_counted_and_still_scored(
    finished: Finished, tmp_path: Path, make: Callable[[Path], Tiny]
) -> None:
    tiny = make(tmp_path / "tasks")
    dev = next(tiny.folder.glob("dev*"))
    content = json.loads(dev.read_text())
    paragraph = content["data"][0]["paragraphs"][1]
    paragraph["qas"][0]["answers"] = [{"text": paragraph["context"], "answer_start": 0}]
    dev.write_text(json.dumps(content))
    trained(finished, tiny, tmp_path / "out", "--max_seq_length", 32, "--doc_stride", 8)
    assert noticed(tmp_path / "out", "dev", "window") >= 1
    assert results(tmp_path / "out")["evaluation_examples"] == {"dev": 48}
    assert len((tmp_path / "out" / "predictions.tsv").read_text().splitlines()) == 49


def test_predictions_that_are_all_alike_are_reported_as_collapsed(finished: Finished, tmp_path: Path) -> None:
    ended = trained(finished, cola(tmp_path / "tasks"), tmp_path / "out", "--learning_rate", 1e-9, "--seeds", 2)
    found = results(tmp_path / "out")
    assert found["collapsed_seeds"] == found["seeds"]
    assert "collapsed" in ended.out
    assert found["metrics"]["matthews_correlation"]["values"] == [0.0, 0.0]


def test_a_dry_run_reports_its_plan_and_writes_nothing(finished: Finished, tmp_path: Path) -> None:
    ended = trained(finished, cola(tmp_path / "tasks"), tmp_path / "out", "--dry_run")
    assert "160" in ended.err
    assert not (tmp_path / "out").exists()
