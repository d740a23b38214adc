"""User errors in fine-tuning end in one line and the documented exit code, or are counted and
reported.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.apps.tiny_tasks import Tiny, cola, ner, results, rte, squad

QUICK = ("--max_steps", 2)
Edit = Callable[[str], str]
Run = Callable[..., Ended]
Trained = Callable[..., dict[str, Any]]


def line(number: int, text: str) -> Edit:
    """Replaces a line, counted from 0."""
    return lambda content: "\n".join(
        text if i == number else old for i, old in enumerate(content.split("\n"))
    )


def rewrite(file: Path, *edits: Edit) -> None:
    for edit in edits:
        file.write_bytes(edit(file.read_text(encoding="utf-8")).encode(errors="surrogateescape"))


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Run:
    """Fine-tunes the tiny run on a task for two updates, into `out`."""
    return lambda tiny, *more: call(
        finetune.main, *tiny.options(finished.folder, tmp_path / "out", *QUICK, *more)
    )


@pytest.fixture
def trained(run: Run, tmp_path: Path) -> Trained:
    """The results of a successful run."""

    def results_of(tiny: Tiny, *more: object) -> dict[str, Any]:
        assert (ended := run(tiny, *more)).code == 0, ended.err
        return results(tmp_path / "out")

    return results_of


# Options and paths.


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--task", "colla"), "did you mean cola?"),
        (("--task", "sts-embeddings"), "examples/sentence_vectors.py"),
        (("--task", "sts-embeddings", "--loss", "contrastive"), "examples/sentence_vectors.py"),
        (("--learning_rat", 1), "learning_rate"),
        (("--seeds", 0), "seeds=0"),
        (("--num_train_epochs", -1), "num_train_epochs=-1"),
        (("--head", "bert"), "--head"),
        (("--model", "nowhere"), "nowhere does not exist"),
        (("--data_dir", "nowhere"), "nowhere: no such folder"),
        (("--data_dir", "nul\0in it"), "data_dir='nul\\x00in it' holds a NUL"),
        (("--data_dir", "."), "no training data in ."),
        (("--train_file", "nowhere.tsv"), "nowhere.tsv: no such file"),
        (("--text_pair_column", "other"), "cola has one text"),
        (("--regression",), "cola has classes"),
        (("--output_dir", "file"), "is a file; choose another"),
        (("--predict", "test"), "no test set in"),
        (("--config", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_invalid_options_are_refused_at_once(
    run: Run, in_folder: Path, words: tuple[object, ...], reason: str
) -> None:
    (in_folder / "file").write_text("in the way")
    tiny = cola(in_folder / "tasks")
    (tiny.folder / "test.tsv").unlink()
    if words == ("--data_dir", "."):
        shutil.rmtree(in_folder / "tasks")
    assert_refused(run(tiny, *words), 2, reason)
    assert not list(in_folder.glob("out/seed-*"))


def test_data_without_a_task_and_a_task_without_data_are_refused(
    finished: Finished, in_folder: Path
) -> None:
    data, named = (
        ("--data_dir", cola(in_folder / "tasks").folder),
        ("--model", finished.folder, "--output_dir", "out"),
    )
    for words, reason in (
        (data, "--task"),
        (("--task", "glue"), "give --data_dir"),
        (("--task", "custom"), "--train_file"),
        (("--task", "squad"), "with --data_dir"),
        (("--task", "glue", *data), "holds none of CoLA"),
    ):
        assert_refused(call(finetune.main, *named, *words), 2, reason)


def test_the_folder_of_a_pretraining_run_is_not_written_into(
    run: Run, finished: Finished, tmp_path: Path
) -> None:
    shutil.copytree(finished.folder, tmp_path / "out")
    before = sorted((tmp_path / "out").rglob("*"))
    assert_refused(run(cola(tmp_path / "tasks")), 2, "is the folder of a pretraining run")
    assert sorted((tmp_path / "out").rglob("*")) == before


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
    run: Run, finished: Finished, tmp_path: Path, damage: str, code: int, reason: str
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
    assert_refused(run(cola(tmp_path / "tasks"), "--model", model), code, reason)
    assert not (tmp_path / "out").exists()


# Contents of files.

CASES: dict[str, tuple[Callable[[Path], Tiny], str, Edit, tuple[str, ...]]] = {
    "unknown label in train": (
        cola,
        "train.tsv",
        line(3, "made\t7\t\tThe owl left."),
        ("train.tsv:4", "7"),
    ),
    "no label in dev": (
        cola,
        "dev.tsv",
        lambda text: re.sub("\t[01]\t", "\t-1\t", text),
        ("dev.tsv", "label"),
    ),
    "header alone": (rte, "train.tsv", lambda text: text.split("\n")[0] + "\n", ("train.tsv",)),
    "bytes that are no text": (
        cola,
        "dev.tsv",
        lambda text: "made\t1\t\t\udcff\udcfe\n",
        ("dev.tsv", "UTF-8"),
    ),
    "broken JSON": (squad, "dev-v1.1.json", lambda text: text[:-20], ("dev-v1.1.json",)),
    "a tag unknown in dev": (
        ner,
        "dev.conll",
        lambda text: text.replace("PLACE", "TOWN", 1),
        ("dev.conll", "B-TOWN"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_files_that_cannot_be_used_are_refused(run: Run, tmp_path: Path, name: str) -> None:
    make, file, damage, reason = CASES[name]
    tiny = make(tmp_path / "tasks")
    rewrite(tiny.folder / file, damage)
    assert_refused(run(tiny), 3, *reason)
    assert not (tmp_path / "out").exists()


# Unusual data: counted and reported, without a change of the denominator.


def noticed(found: dict[str, Any], *words: str) -> list[int]:
    """The counts in those lines of `noticed` that contain the words."""
    return [
        int(line.split(" ")[0]) for line in found["noticed"] if all(word in line for word in words)
    ]


def test_examples_without_a_label_are_counted_and_all_others_used(
    trained: Trained, tmp_path: Path
) -> None:
    tiny = cola(tmp_path / "tasks")
    unlabelled = [
        line(number, f"made\t{label}\t\tThe owl left.")
        for number, label in ((3, "-"), (5, "-1"), (7, ""))
    ]
    rewrite(tiny.folder / "train.tsv", *unlabelled)
    rewrite(tiny.folder / "dev.tsv", unlabelled[1])
    found = trained(tiny)
    assert "3 examples of train.tsv left out" in (tmp_path / "out" / "log.txt").read_text()
    assert (found["train_examples"], found["evaluation_examples"]) == (160 - 3, {"dev": 47})
    assert (noticed(found, "train.tsv", "label"), noticed(found, "dev.tsv", "NOT SCORED")) == (
        [3],
        [1],
    )


def test_texts_longer_than_max_seq_length_are_truncated_and_counted(
    trained: Trained, tmp_path: Path
) -> None:
    found = trained(rte(tmp_path / "tasks"), "--max_seq_length", 12)
    assert noticed(
        found, "truncated to 12 tokens (--max_seq_length, the model takes up to 32)"
    ) == [160, 48]
    assert found["evaluation_examples"] == {"dev": 48}


def test_constant_predictions_are_reported_as_collapsed(trained: Trained, tmp_path: Path) -> None:
    found = trained(cola(tmp_path / "tasks"), "--learning_rate", 1e-9, "--seeds", 2)
    assert found["collapsed_seeds"] == found["seeds"]
    assert "collapsed" in (tmp_path / "out" / "results.md").read_text()  # which is printed
    assert found["metrics"]["matthews_correlation"]["values"] == [0.0, 0.0]


def test_a_dry_run_reports_its_plan_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    ended = run(cola(tmp_path / "tasks"), "--dry_run")
    assert ended.code == 0, ended.err
    assert "160" in ended.err
    assert not (tmp_path / "out").exists()
