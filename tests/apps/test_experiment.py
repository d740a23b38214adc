"""An experiment makes what its plan says, by commands that a user could type, each of them once, and tells it all."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from electra_albert.apps.experiment.__main__ import main
from tests.apps.conftest import Finished
from tests.apps.tiny_run import STEPS, Ended, call, finish, options, start
from tests.apps.tiny_tasks import cola
from tests.apps.tiny_tasks import options as task_options

pytestmark = pytest.mark.slow
TOO_FAST = 1e5


class Made(NamedTuple):
    """A finished experiment."""

    folder: Path
    argv: list[str]
    ended: Ended


def settings(words: list[str], *left_out: str) -> dict[str, object]:
    """Options as a plan holds them."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return {name[2:]: yaml.safe_load(value) for name, value in pairs if name[2:] not in left_out}


def write_plan(file: Path, finished: Finished, **arms: dict[str, object]) -> list[str]:
    """A plan of arms of the tiny run, and what the app is told to run it."""
    given = ("corpus", "prepared_dir", "task", "data_dir", "model", "seed", "learning_rate")
    tiny = settings(options(finished.corpus, finished.prepared, None, "--learning_rate", 0.002), *given)
    task = settings(task_options("cola", Path(), Path(), None, "--num_train_epochs", 1), *given)
    plan = {
        "title": "A tiny experiment",
        "pretraining": tiny,
        "arms": arms,
        "finetuning": {"seeds": 2, "options": task, "tasks": {"cola": {"learning_rate": 0.003}}},
    }
    file.write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    told = {"plan": file, "corpus": finished.corpus, "prepared_dir": finished.prepared, "jobs": 2}
    return [str(word) for name, value in told.items() for word in (f"--{name}", value)]


@pytest.fixture(scope="module")
def made(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Arms of every kind, one of which diverges."""
    folder = tmp_path_factory.mktemp("experiment")
    argv = write_plan(
        folder / "plan.yaml",
        finished,
        shared={"learning_rate": 0.002, "seeds": [1, 2]},
        untrained={"like": "shared", "weights": "random"},
        stock={"like": "shared", "weights": "stock"},
        reckless={"learning_rate": TOO_FAST, "max_grad_norm": 1e9},
    )
    data = cola(folder / "glue").folder
    text = folder / "held_out.txt"
    text.write_text("The old cat crossed the river today. Every quiet owl left the garden at noon.\n", encoding="utf-8")
    argv += ["--data_dir", str(data), "--text", str(text), "--output_dir", str(folder / "out")]
    return Made(folder / "out", argv, finish(start(["-m", "electra_albert.apps.experiment", *argv], folder)))


def test_what_was_found_is_told_of_every_arm(made: Made) -> None:
    found = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))["arms"]
    assert list(found) == ["shared", "untrained", "stock", "reckless"]
    for name in ("shared", "stock"):
        assert [(run["seed"], run["is_finished"]) for run in found[name]["pretraining"]] == [(1, True), (2, True)]
    assert {name for name, arm in found.items() if arm["tasks"]} == {"shared", "untrained", "stock"}
    assert all(len(found[name]["tasks"]["cola"]["matthews_correlation"]) == 2 for name in ("shared", "untrained"))
    assert {name for name, arm in found.items() if arm["scores"]} == {"shared", "stock"}
    table = (made.folder / "results.md").read_text(encoding="utf-8")
    assert table.startswith("# A tiny experiment\n")
    assert table in made.ended.out
    assert (made.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_trial_that_fails_stops_no_other_and_is_told_with_its_reason(made: Made) -> None:
    assert made.ended.code == 5
    assert "reckless: pretraining-42 ended with exit code 5: error: training diverged" in made.ended.out
    assert "reckless: not run: scores, cola, since pretraining-42 of reckless ended with exit code 5" in made.ended.out
    assert not (made.folder / "reckless" / "cola").exists()


def test_what_has_ended_well_is_not_run_again(made: Made) -> None:
    before = {file: file.stat().st_mtime_ns for file in made.folder.rglob("*.safetensors")}
    ended = call(main, *made.argv, "--arms", "shared", "untrained", "stock")
    assert (ended.code, ended.err) == (0, "")
    assert "reckless: pretraining-42 ended with exit code 5" in ended.out  # in an earlier call, and still true
    assert {file: file.stat().st_mtime_ns for file in made.folder.rglob("*.safetensors")} == before


def test_an_arm_is_not_mixed_with_one_that_was_made_otherwise(made: Made, finished: Finished, tmp_path: Path) -> None:
    argv = write_plan(tmp_path / "plan.yaml", finished, shared={"learning_rate": 0.001, "seeds": [1, 2]})
    ended = call(main, *argv, "--output_dir", made.folder)
    assert ended.code == 2
    assert "tells of another command (--learning_rate 0.001, which was 0.002); choose another --output_dir" in ended.err


def test_the_stock_composition_had_the_time_of_the_run_it_is_like(made: Made) -> None:
    found = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))["arms"]
    for ours, stock in zip(found["shared"]["pretraining"], found["stock"]["pretraining"], strict=True):
        assert stock["seconds"] == pytest.approx(ours["seconds"], abs=2.0)
        assert stock["held_out"]["generator_loss"] > 0
        assert (made.folder / "stock" / f"seed-{ours['seed']}" / "discriminator" / "model.safetensors").is_file()


def is_training(run: Path) -> bool:
    return (run / "metrics.jsonl").is_file() and bool((run / "metrics.jsonl").read_text(encoding="utf-8"))


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


def test_an_experiment_that_is_told_to_stop_saves_and_goes_on_later(finished: Finished, tmp_path: Path) -> None:
    argv = write_plan(tmp_path / "plan.yaml", finished, long={"learning_rate": 0.002, "max_steps": 20 * STEPS})
    command = ["-m", "electra_albert.apps.experiment", *argv, "--output_dir", tmp_path / "out"]
    run = tmp_path / "out" / "long" / "seed-42"
    process = start(command, tmp_path)
    wait_for(lambda: is_training(run))
    process.send_signal(signal.SIGTERM)
    stopped = finish(process)
    assert stopped.code == 75
    assert "- long: pretraining-42 was stopped and can go on" in (tmp_path / "out" / "results.md").read_text()
    saved = max(path.name for path in (run / "checkpoints").iterdir())
    assert not (run / "discriminator").exists()
    again = finish(start(command, tmp_path))
    assert again.code == 0
    assert f"going on from {run / 'checkpoints' / saved}" in (run.parent / "stages" / "pretraining-42.log").read_text()
