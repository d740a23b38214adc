"""Going on from a run of ours with another corpus: its weights, shape and tokenizer, a schedule of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from electra_albert.apps import pretrain
from tests.apps.conftest import Finished
from tests.apps.tiny_run import STEPS, Ended, assert_refused, call, english, finish, rows, start

_SIZES = {
    "max_steps": 12,
    "warmup_steps": 3,
    "learning_rate": 0.002,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "precision": "fp32",
    "device": "cpu",
    "logging_steps": 4,
    "eval_steps": 6,
    "eval_examples": 16,
    "save_steps": 6,
    "preprocessing_num_workers": 1,
}


def options(finished: Finished, folder: Path, *more: object) -> list[str]:
    """Another corpus, the run to begin with, and nothing of the model's shape."""
    corpus = folder / "other.txt"
    if not corpus.exists():
        corpus.write_text(english(130, seed=9).replace("the", "some"), encoding="utf-8")
    argv = ["--corpus", str(corpus), "--init_from", str(finished.folder), "--prepared_dir", str(finished.prepared)]
    argv += [text for name, value in _SIZES.items() for text in (f"--{name}", str(value))]
    return [*argv, "--output_dir", str(folder / "run"), *map(str, more)]


@pytest.fixture(scope="module")
def continued(finished: Finished, make_once: Callable[[str, Callable[[], Ended]], Ended]) -> tuple[Path, Ended]:
    folder = finished.folder.parent / "continued"
    folder.mkdir(exist_ok=True)
    ended = make_once("continued", lambda: finish(start(["Pretraining.py", *options(finished, folder)], folder)))
    assert ended.code == 0, ended.err
    return folder / "run", ended


def evaluations(run: Path) -> list[dict[str, float]]:
    return [row for row in rows(run) if "eval_generator_loss" in row]


def test_shape_objective_and_tokenizer_are_those_of_the_run_begun_from(
    finished: Finished, continued: tuple[Path, Ended]
) -> None:
    then, now = (yaml.safe_load((run / "config.yaml").read_text()) for run in (finished.folder, continued[0]))
    assert (now["model"], now["rtd"], now["objective"]) == (then["model"], then["rtd"], then["objective"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (continued[0] / "tokenizer" / name).read_bytes() == (finished.folder / "tokenizer" / name).read_bytes()


def test_it_begins_where_the_other_run_ended_on_its_text(finished: Finished, continued: tuple[Path, Ended]) -> None:
    first, last = evaluations(continued[0])[0], evaluations(finished.folder)[-1]
    assert first["step"] == 0
    # Float32 and the very same rows, masks and draws; only the batches they stand in may be cut otherwise.
    assert first["eval_old_text_generator_loss"] == pytest.approx(last["eval_generator_loss"], rel=1e-5)
    assert first["eval_old_text_discriminator_loss"] == pytest.approx(last["eval_discriminator_loss"], rel=1e-5)


def test_loss_on_the_new_text_falls_and_both_texts_are_told(continued: tuple[Path, Ended]) -> None:
    run, ended = continued
    first, last = evaluations(run)[0], evaluations(run)[-1]
    assert last["eval_generator_loss"] < first["eval_generator_loss"]
    for told in ("new text", "old text", "at step 0", "at step 12", "schedule", "start anew"):
        assert told in ended.out + ended.err, told


def test_the_schedule_starts_anew(continued: tuple[Path, Ended]) -> None:
    first = next(row for row in rows(continued[0]) if row["step"] == 1)
    assert first["learning_rate"] == pytest.approx(0.002 / 3)


def test_a_stopped_run_goes_on_by_the_same_command(finished: Finished, tmp_path: Path) -> None:
    whole = call(pretrain.main, *options(finished, tmp_path))
    assert whole.code == 0, whole.err
    expected = rows(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000012")
    again = call(pretrain.main, *options(finished, tmp_path))
    assert (again.code, "after step 6" in again.err) == (0, True), again.err
    found = rows(tmp_path / "run")
    for row in (*expected, *found):
        row.pop("tokens_per_second", None)
    assert found == expected


def test_other_weights_than_the_run_was_begun_with_are_refused(finished: Finished, tmp_path: Path) -> None:
    assert call(pretrain.main, *options(finished, tmp_path, "--max_steps", 6)).code == 0
    other = tmp_path / "other-run"
    shutil.copytree(finished.folder, other)
    for path in (other / "checkpoints").iterdir():
        if path.name != "step-0000010":
            shutil.rmtree(path)
    ended = call(pretrain.main, *options(finished, tmp_path, "--max_steps", 6, "--init_from", other))
    assert_refused(ended, 4, "initial_weights")


def test_another_shape_is_refused_by_name(finished: Finished, tmp_path: Path) -> None:
    ended = call(pretrain.main, *options(finished, tmp_path, "--model.intermediate_size", 96))
    assert_refused(ended, 4, "ffn", str(finished.folder))


def test_another_objective_is_refused(finished: Finished, tmp_path: Path) -> None:
    ended = call(pretrain.main, *options(finished, tmp_path, "--objective", "mlm"))
    assert_refused(ended, 4, str(finished.folder))


@pytest.mark.parametrize("what", ["missing", "no checkpoint"])
def test_what_is_no_trained_run_is_refused(finished: Finished, tmp_path: Path, what: str) -> None:
    run = tmp_path / "origin"
    if what == "no checkpoint":
        shutil.copytree(finished.folder, run, ignore=shutil.ignore_patterns("checkpoints"))
    ended = call(pretrain.main, *options(finished, tmp_path, "--init_from", run))
    assert_refused(ended, 2, "--init_from", str(run))


def test_text_that_is_no_longer_prepared_is_said(finished: Finished, tmp_path: Path) -> None:
    run = tmp_path / "origin"
    shutil.copytree(finished.folder, run)
    environment = json.loads((run / "environment.json").read_text())
    environment["settings"]["prepared_dir"] = str(tmp_path / "gone")
    (run / "environment.json").write_text(json.dumps(environment))
    ended = call(pretrain.main, *options(finished, tmp_path, "--init_from", run, "--max_steps", 2))
    assert (ended.code, "no longer prepared" in ended.err) == (0, True), ended.err
    assert not any(name.startswith("eval_old_text") for row in rows(tmp_path / "run") for name in row)


def test_steps_of_the_run_begun_from_are_told(continued: tuple[Path, Ended]) -> None:
    assert f"after step {STEPS}" in continued[1].err
