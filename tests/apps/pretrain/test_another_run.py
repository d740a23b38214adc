"""A run resumes only with the same settings; others are refused, and the message names the
difference.

The settings come from the run's checkpoints; config.yaml and environment.json are for people.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.pretrain.run import folder_of_run
from tests.apps.conftest import Finished
from tests.apps.pretrain.test_resume import resumed_from
from tests.apps.tiny_run import STEPS, assert_refused, call, hashes, outcome, succeed

HALF = STEPS // 2


@pytest.fixture
def half(copied: Path) -> Path:
    """A copy of the finished run, reset to half of its steps."""
    shutil.rmtree(copied / "checkpoints" / f"step-{STEPS:07d}")
    for name in ("generator", "discriminator"):
        shutil.rmtree(copied / name)
    return copied


def test_a_named_checkpoint_resumes_in_a_new_folder_only_with_its_settings(
    finished: Finished, tmp_path: Path
) -> None:
    before = hashes(finished.folder)
    checkpoint = finished.folder / "checkpoints" / f"step-{HALF:07d}"
    argv = finished.options(tmp_path / "new", "--resume", checkpoint)
    for option, value, difference in (
        ("--seed", 3, "seed: 42 before, 3 now"),
        ("--per_device_train_batch_size", 4, "global_batch_size: 8 before, 4 now"),
    ):
        assert_refused(call(pretrain.main, *argv, option, value), 4, difference)
        assert not (tmp_path / "new" / "environment.json").exists()
    assert resumed_from(succeed(pretrain.main, *argv)) == HALF
    weights, log = outcome(tmp_path / "new")
    assert weights == outcome(finished.folder)[0]
    assert log[-1] == outcome(finished.folder)[1][-1]
    assert hashes(finished.folder) == before


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "damage"), [("environment.json", Path.unlink), ("config.yaml", truncate)]
)
def test_a_missing_or_damaged_record_does_not_prevent_resuming_and_is_rewritten(
    finished: Finished, half: Path, name: str, damage: Callable[[Path], None]
) -> None:
    intact = (half / name).stat().st_size
    damage(half / name)
    assert resumed_from(succeed(pretrain.main, *finished.options(half))) == HALF
    assert outcome(half)[0] == outcome(finished.folder)[0]
    assert (half / name).stat().st_size > intact / 2
    if name == "config.yaml":
        again = parse_pretraining(["--config", str(half / name)], "Pretraining.py")
        assert again == parse_pretraining(finished.options(half), "Pretraining.py")


def test_different_settings_are_refused_even_if_the_record_is_damaged(
    finished: Finished, half: Path
) -> None:
    """Regression: without a record, nothing was compared."""
    truncate(half / "environment.json")
    before = hashes(half)
    ended = call(pretrain.main, *finished.options(half, "--seed", 3))
    assert_refused(ended, 4, "seed: 42 before, 3 now")
    assert hashes(half) == before


def test_a_record_is_replaced_atomically(finished: Finished, half: Path) -> None:
    """A crash leaves the old or the new one: a reader that has the old file open still reads all of
    it.
    """
    record = half / "environment.json"
    before = record.read_bytes()
    with record.open("rb") as held:
        succeed(pretrain.main, *finished.options(half, "--logging_steps", 1))
        assert held.read() == before
    assert record.read_bytes() != before
    assert not [path for path in half.iterdir() if "tmp" in path.name]


def test_a_run_resumes_with_the_same_corpus_by_another_path(
    finished: Finished, half: Path, in_folder: Path
) -> None:
    (in_folder / "link.txt").symlink_to(os.path.relpath(finished.corpus, in_folder))
    ended = succeed(pretrain.main, *finished.options(half, "--corpus", "link.txt"))
    assert resumed_from(ended) == HALF
    assert outcome(half)[0] == outcome(finished.folder)[0]


@pytest.mark.parametrize("name", ["README.md", "generator/config.json"])
def test_a_folder_that_is_not_a_run_is_refused_and_not_modified(
    finished: Finished, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    before = hashes(tmp_path)
    ended = call(pretrain.main, *finished.options(tmp_path / "mine"))
    assert_refused(ended, 2, str(tmp_path / "mine"), name.split("/")[0])
    assert hashes(tmp_path) == before


@pytest.mark.parametrize("corpus", ["*.txt", "texts/**/[a-c]?.txt"])
def test_the_default_folder_is_named_without_wildcards(in_folder: Path, corpus: str) -> None:
    preset, config = parse_pretraining(["--corpus", corpus], "Pretraining.py")
    name = folder_of_run(config, preset).name
    assert not set(name) & set("*?[]/")
    assert name.endswith(f"-{preset}")
    assert name[0].isalnum()
