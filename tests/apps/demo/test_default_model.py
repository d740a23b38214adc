"""The model that is taken where none is named: the newest finished run, else the one that comes with the toolkit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from electra_albert.apps import default_model, demo
from tests.apps.conftest import Finished
from tests.apps.tiny_run import call, copy_as_learned

LOGGED = "which comes with the toolkit (runs/ holds no finished run)"


def ship(finished: Finished, folder: Path, name: str = "little") -> Path:
    """A generator and a discriminator without anything else of a run."""
    placed = folder / "data" / "models" / name
    for part in ("generator", "discriminator"):
        shutil.copytree(finished.folder / part, placed / part)
    return placed


def test_without_a_run_the_demo_takes_the_shipped_model_from_any_folder(
    finished: Finished, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several the last by name, and says so."""
    (in_folder / "data" / "models" / "z").mkdir(parents=True)
    placed = [ship(finished, in_folder, name) for name in ("b", "c", "a")][1]
    ended = call(demo.main)
    assert (ended.code, ended.err) == (0, f"model: data/models/c, {LOGGED}\n")
    assert all(sentence in ended.out for sentence in demo.SENTENCES)
    (in_folder / "elsewhere").mkdir()
    monkeypatch.chdir(in_folder / "elsewhere")
    assert call(demo.main).err == f"model: {placed}, {LOGGED}\n"


def test_with_runs_the_newest_is_taken_and_not_the_shipped_model(finished: Finished, in_folder: Path) -> None:
    """The others are broken: taking one would fail. A model that was copied to the runs is none of them."""
    placed = ship(finished, in_folder)
    for name in ("older", "newest"):
        copy_as_learned(finished.folder, in_folder / "runs" / name)
    shutil.copytree(placed, in_folder / "runs" / "copied", copy_function=shutil.copy)  # written later
    for folder in (placed, in_folder / "runs" / "older", in_folder / "runs" / "copied"):
        (folder / "generator" / "model.safetensors").write_bytes(b"broken")
    ended = call(demo.main)
    assert (ended.code, ended.err) == (0, "model: runs/newest, the newest run\n")
    (in_folder / "runs" / "older" / "generator" / "config.json").touch()
    assert call(demo.main).code == 4
    assert default_model.newest_run().name == "older"


def spoil(run: Path, flaw: str) -> None:
    """Make of a run that learned one that did not."""
    if flaw == "stopped at step 20 of 40":
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("max_steps: 20", "max_steps: 40"))
    else:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(lines[:-1]))


@pytest.mark.parametrize(
    "flaw",
    ["stopped at step 20 of 40", "not clear of the baselines after 20 steps"],
)
def test_a_run_that_did_not_finish_or_learn_is_passed_over_and_named(
    finished: Finished, in_folder: Path, caplog: pytest.LogCaptureFixture, flaw: str
) -> None:
    caplog.set_level("INFO", logger="electra_albert")
    ship(finished, in_folder)
    learned = copy_as_learned(finished.folder, in_folder / "runs" / "learned")
    spoil(copy_as_learned(finished.folder, in_folder / "runs" / "newer"), flaw)
    assert default_model.default_model("--gen") == Path("runs/learned")
    notice = f"notice: not taken by default: runs/newer ({flaw}); to take it: --gen runs/newer"
    assert caplog.messages == [notice, "model: runs/learned, the newest run"]
    shutil.rmtree(learned)
    assert default_model.default_model("--gen") == Path("data/models/little")
    assert "holds no other finished run" in caplog.messages[-1]
