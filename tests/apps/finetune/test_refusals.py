"""User errors in fine-tuning end in one line and the documented exit code, or are counted and
reported.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.apps.tiny_tasks import Tiny, cola, results, rte
from tests.refusals import rows

QUICK = ("--max_steps", 2)
Run = Callable[..., Ended]
Trained = Callable[..., dict[str, Any]]


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


INVALID = """
--task colla              | cola?
--task sts-embeddings     | examples/sentence_vectors.py
--loss a --task sts-embeddings | examples/sentence_vectors.py
--learning_rat 1          | learning_rate
--seeds 0                 | seeds=0
--num_train_epochs -1     | num_train_epochs=-1
--head bert               | --head
--model nowhere           | nowhere
--data_dir nowhere        | nowhere: no such folder
--data_dir nul\0          | data_dir='nul\\x00'
--data_dir empty          | no training data in empty
--train_file nowhere.tsv  | nowhere.tsv
--text_pair_column other  | cola has one text
--regression true         | cola has classes
--output_dir file         | is a file
--predict test            | no test set in
--config nowhere.yaml     | nowhere.yaml
"""


def test_invalid_options_are_refused_at_once(run: Run, in_folder: Path) -> None:
    (in_folder / "file").write_text("in the way")
    (in_folder / "empty").mkdir()
    tiny = cola(in_folder / "tasks")
    (tiny.folder / "test.tsv").unlink()
    for words, reason in rows(INVALID):
        assert_refused(run(tiny, *words.split(" ")), 2, reason)
        assert not list(in_folder.glob("out/seed-*"))


INCOMPLETE = """
--data_dir tasks/CoLA             | --task
--task glue                       | --data_dir
--task custom                     | --train_file
--task squad                      | --data_dir
--task glue --data_dir tasks/CoLA | holds none of CoLA
"""


def test_data_without_a_task_and_a_task_without_data_are_refused(
    finished: Finished, in_folder: Path
) -> None:
    cola(in_folder / "tasks")
    for words, reason in rows(INCOMPLETE):
        argv = ("--model", finished.folder, "--output_dir", "out", *words.split())
        assert_refused(call(finetune.main, *argv), 2, reason)


def test_the_folder_of_a_pretraining_run_is_not_written_into(
    run: Run, finished: Finished, tmp_path: Path
) -> None:
    shutil.copytree(finished.folder, tmp_path / "out")
    before = sorted((tmp_path / "out").rglob("*"))
    assert_refused(run(cola(tmp_path / "tasks")), 2, "is the folder of a pretraining run")
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_a_model_that_lacks_a_part_is_refused(run: Run, finished: Finished, tmp_path: Path) -> None:
    tiny = cola(tmp_path / "tasks")
    model = shutil.copytree(finished.folder / "discriminator", tmp_path / "model")
    content = json.loads((model / "config.json").read_text())
    (model / "model.safetensors").write_bytes(b"damaged")
    assert_refused(run(tiny, "--model", model), 4, "model.safetensors")
    (model / "config.json").write_text(json.dumps(content | {"vocab_size": 20}))
    assert_refused(run(tiny, "--model", model), 2, "the model only 20")
    for file in model.glob("*token*"):
        file.unlink()
    assert_refused(run(tiny, "--model", model), 2, "holds no tokenizer.json")
    assert not (tmp_path / "out").exists()


# Contents of files.


def test_a_file_that_cannot_be_used_is_refused_before_training(run: Run, tmp_path: Path) -> None:
    tiny = cola(tmp_path / "tasks")
    with (tiny.folder / "dev.tsv").open("a") as file:
        file.write("made\t7\t\tThe owl left.\n")
    assert_refused(run(tiny), 3, "dev.tsv:49", "7")
    assert not (tmp_path / "out").exists()


# Unusual data: reported, without a change of the denominator.


def test_texts_longer_than_max_seq_length_are_truncated_and_counted(
    trained: Trained, tmp_path: Path
) -> None:
    found = trained(rte(tmp_path / "tasks"), "--max_seq_length", 12)
    counts = [line.split(" ")[0] for line in found["noticed"] if "truncated to 12 tokens" in line]
    assert counts == ["160", "48"]
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
