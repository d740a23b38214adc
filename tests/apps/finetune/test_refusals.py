"""What a user gets wrong when fine-tuning ends in one line and the documented exit code, or is counted and told."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.apps.tiny_tasks import Tiny, cola, ner, options, results, rte, squad, squad_v2, stsb

QUICK = ("--max_steps", 2)
Change = Callable[[Path], object]


def replace_line(number: int, line: str) -> Callable[[str], str]:
    """Puts a line in the place of one, counted from 0."""
    return lambda text: "\n".join(line if i == number else old for i, old in enumerate(text.split("\n")))


def change(name: str, edit: Callable[[str], str]) -> Change:
    """Rewrites one file of a task's folder."""
    return lambda folder: (folder / name).write_text(edit((folder / name).read_text()), encoding="utf-8")


def run(finished: Finished, tiny: Tiny, output: Path, *more: object) -> Ended:
    return call(finetune.main, *tiny.options(finished.folder, output, *QUICK, *more))


# Options and paths.


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--task", "colla"), 2, "did you mean cola?"),
        (("--learning_rat", 1), 2, "learning_rate"),
        (("--seeds", 0), 2, "seeds=0"),
        (("--num_train_epochs", -1), 2, "num_train_epochs=-1"),
        (("--head", "bert"), 2, "--head"),
        (("--max_seq_length", 100), 2, "64 positions"),
        (("--model", "nowhere"), 2, "nowhere does not exist"),
        (("--data_dir", "nowhere"), 2, "nowhere: no such folder"),
        (("--data_dir", "."), 2, "no training data in ."),
        (("--train_file", "nowhere.tsv"), 2, "nowhere.tsv: no such file"),
        (("--text_pair_column", "other"), 2, "cola has one text"),
        (("--regression",), 2, "cola has classes"),
        (("--predict", "nowhere.txt"), 2, "nowhere.txt: no such file"),
        (("--output_dir", "file"), 2, "is a file; choose another"),
        (("--config", "nowhere.yaml"), 2, "nowhere.yaml"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_trained(
    finished: Finished, in_folder: Path, words: tuple[object, ...], code: int, told: str
) -> None:
    (in_folder / "file").write_text("in the way")
    tiny = cola(in_folder / "tasks")
    if words == ("--data_dir", "."):
        shutil.rmtree(in_folder / "tasks")
    assert_refused(run(finished, tiny, in_folder / "out", *words), code, told)
    assert not list(in_folder.glob("out/seed-*"))


def test_data_without_a_task_and_a_task_without_data_are_refused(finished: Finished, in_folder: Path) -> None:
    tiny = cola(in_folder / "tasks")
    named = ("--model", finished.folder, "--output_dir", in_folder / "out")
    assert_refused(call(finetune.main, *named, "--data_dir", tiny.folder), 2, "--task")
    assert_refused(call(finetune.main, *named, "--task", "glue"), 2, "give --data_dir")
    assert_refused(call(finetune.main, *named, "--task", "custom"), 2, "--train_file")
    assert_refused(call(finetune.main, *named, "--task", "squad"), 2, "by --data_dir")
    assert_refused(
        call(finetune.main, *named, "--task", "glue", "--data_dir", in_folder / "tasks" / "CoLA"),
        2,
        "holds none of CoLA",
    )


def test_the_folder_of_a_pretraining_run_is_not_written_into(finished: Finished, tmp_path: Path) -> None:
    run_folder = shutil.copytree(finished.folder, tmp_path / "run")
    before = sorted(run_folder.rglob("*"))
    assert_refused(run(finished, cola(tmp_path / "tasks"), run_folder), 2, "is the folder of a pretraining run")
    assert sorted(run_folder.rglob("*")) == before


def test_a_test_set_that_is_not_there_is_refused_before_anything_is_trained(finished: Finished, tmp_path: Path) -> None:
    tiny = cola(tmp_path / "tasks")
    (tiny.folder / "test.tsv").unlink()
    ended = run(finished, tiny, tmp_path / "out", "--predict", "test")
    assert_refused(ended, 2, "no test set in")
    assert not list(tmp_path.glob("out/seed-*"))


@pytest.mark.parametrize(
    ("damage", "code", "told"),
    [
        ("tokenizer", 2, "holds no tokenizer.json"),
        ("config", 4, "config.json"),
        ("weights", 4, "model.safetensors"),
        ("other tokenizer", 2, "the model only 20"),
    ],
)
def test_a_model_that_lacks_a_part_is_refused(
    finished: Finished, tmp_path: Path, damage: str, code: int, told: str
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
    assert_refused(call(finetune.main, *argv), code, told)
    assert not (tmp_path / "out").exists()


# What files hold.

CASES: dict[str, tuple[Callable[[Path], Tiny], Change, tuple[str, ...]]] = {
    "unknown label in train": (
        cola,
        change("train.tsv", replace_line(3, "made\t7\t\tThe owl left.")),
        ("train.tsv:4", "7"),
    ),
    "missing column": (
        rte,
        change("train.tsv", lambda text: text.replace("sentence2", "text_b", 1)),
        ("sentence2", "text_b"),
    ),
    "no label in dev": (
        cola,
        change("dev.tsv", lambda text: text.replace("\t0\t", "\t-1\t").replace("\t1\t", "\t-1\t")),
        ("dev.tsv", "label"),
    ),
    "header alone": (rte, change("train.tsv", lambda text: text.split("\n")[0] + "\n"), ("train.tsv",)),
    "bytes that are no text": (
        cola,
        lambda folder: (folder / "dev.tsv").write_bytes(b"made\t1\t\t\xff\xfe\n"),
        ("dev.tsv", "UTF-8"),
    ),
    "a score out of range": (
        stsb,
        change("dev.tsv", replace_line(2, "1\tThe owl left.\tIt was so.\t7")),
        ("dev.tsv:3", "7"),
    ),
    "broken JSON": (squad, change("dev-v1.1.json", lambda text: text[:-20]), ("dev-v1.1.json",)),
    "a tag unknown in dev": (
        ner,
        change("dev.conll", lambda text: text.replace("B-PLACE", "B-TOWN", 1)),
        ("dev.conll", "B-TOWN"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_files_that_cannot_be_trained_or_scored_on_are_refused(finished: Finished, tmp_path: Path, name: str) -> None:
    make, damage, told = CASES[name]
    tiny = make(tmp_path / "tasks")
    damage(tiny.folder)
    assert_refused(run(finished, tiny, tmp_path / "out"), 3, *told)
    assert not (tmp_path / "out").exists()


def custom(folder: Path, **columns: list[object]) -> list[object]:
    """Options for a table of one's own: the same rows to train and to score on, as .csv."""
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["--train_file", folder / "train.csv", "--validation_file", folder / "dev.csv"]


def run_custom(finished: Finished, folder: Path, files: list[object], *more: object) -> Ended:
    argv = options("custom", folder, finished.folder, folder / "out", *QUICK, *files, *more)
    place = argv.index("--data_dir")
    return call(finetune.main, *argv[:place], *argv[place + 2 :])


def test_numbers_as_labels_are_refused_with_the_option_for_them(finished: Finished, tmp_path: Path) -> None:
    files = custom(tmp_path, text=["an owl", "a cat"] * 4, label=[i / 7 for i in range(8)])
    assert_refused(run_custom(finished, tmp_path, files), 3, "--regression")
    ended = run_custom(finished, tmp_path, files, "--regression")
    assert ended.code == 0, ended.err


# What is odd but can be used: counted, told, and never a changed denominator.


def noticed(folder: Path, *words: str) -> int:
    """The number in the one line of what was noticed that holds the words."""
    lines = [line for line in results(folder)["noticed"] if all(word in line for word in words)]
    assert len(lines) == 1, results(folder)["noticed"]
    return int(lines[0].split(" ")[0].replace(",", ""))


def test_training_rows_without_a_label_are_left_out_and_counted(finished: Finished, tmp_path: Path) -> None:
    tiny = cola(tmp_path / "tasks")
    for number, label in ((3, "-"), (5, "-1"), (7, "")):
        change("train.tsv", replace_line(number, f"made\t{label}\t\tThe owl left."))(tiny.folder)
    ended = run(finished, tiny, tmp_path / "out")
    assert ended.code == 0, ended.err
    assert results(tmp_path / "out")["train_examples"] == 160 - 3
    assert noticed(tmp_path / "out", "train.tsv", "label") == 3
    assert "3 rows" in ended.err


def test_rows_of_dev_without_a_label_are_told_loudly_and_all_others_scored(finished: Finished, tmp_path: Path) -> None:
    tiny = cola(tmp_path / "tasks")
    change("dev.tsv", replace_line(4, "made\t-1\t\tThe owl left."))(tiny.folder)
    ended = run(finished, tiny, tmp_path / "out")
    assert ended.code == 0, ended.err
    assert noticed(tmp_path / "out", "dev.tsv", "NOT SCORED") == 1
    assert results(tmp_path / "out")["evaluation_examples"] == {"dev": 47}


@pytest.mark.parametrize("kept", ["one class", "one row"])
def test_a_degenerate_dev_set_is_scored_and_told(finished: Finished, tmp_path: Path, kept: str) -> None:
    def only(text: str) -> str:
        lines = [line for line in text.split("\n") if "\t1\t" in line]
        return "\n".join(lines if kept == "one class" else lines[:1]) + "\n"

    tiny = cola(tmp_path / "tasks")
    change("dev.tsv", only)(tiny.folder)
    ended = run(finished, tiny, tmp_path / "out")
    assert ended.code == 0, ended.err
    assert any("dev.tsv" in line for line in results(tmp_path / "out")["noticed"])
    for found in results(tmp_path / "out")["metrics"].values():
        assert all(math.isfinite(value) for value in found["values"])
    assert results(tmp_path / "out")["metrics"]["matthews_correlation"]["values"] == [0.0]


def test_texts_longer_than_a_row_are_cut_and_counted(finished: Finished, tmp_path: Path) -> None:
    ended = run(finished, rte(tmp_path / "tasks"), tmp_path / "out", "--max_seq_length", 12)
    assert ended.code == 0, ended.err
    told = "cut to 12 tokens (--max_seq_length, the model reads up to 64)"
    lines = [line for line in results(tmp_path / "out")["noticed"] if told in line]
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
    ended = run(finished, tiny, tmp_path / "out", "--max_seq_length", 32, "--doc_stride", 8)
    assert ended.code == 0, ended.err
    assert noticed(tmp_path / "out", "dev", "window") >= 1
    assert results(tmp_path / "out")["evaluation_examples"] == {"dev": 48}
    assert len((tmp_path / "out" / "predictions.tsv").read_text().splitlines()) == 49


def test_predictions_that_are_all_alike_are_reported_as_collapsed(finished: Finished, tmp_path: Path) -> None:
    ended = run(finished, cola(tmp_path / "tasks"), tmp_path / "out", "--learning_rate", 1e-9, "--seeds", 2)
    assert ended.code == 0, ended.err
    found = results(tmp_path / "out")
    assert found["collapsed_seeds"] == found["seeds"]
    assert "collapsed" in ended.out
    assert found["metrics"]["matthews_correlation"]["values"] == [0.0, 0.0]


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(finished: Finished, tmp_path: Path) -> None:
    ended = run(finished, cola(tmp_path / "tasks"), tmp_path / "out", "--dry_run")
    assert ended.code == 0, ended.err
    assert "160" in ended.err
    assert not (tmp_path / "out").exists()
