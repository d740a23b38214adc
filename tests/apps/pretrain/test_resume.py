"""Law 8 in whole runs: a run that was killed or stopped and is resumed equals an uninterrupted one,
except times.
"""

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.contracts import STOPPED_BY_SIGNAL
from electra_albert.corpus.examples import TrainBatches
from tests.apps import tiny_run
from tests.apps.conftest import Finished, Once
from tests.apps.tiny_run import (
    STEPS,
    Ended,
    assert_refused,
    call,
    interrupt,
    options,
    outcome,
    rows,
    succeed,
)

# Accumulation and dropout, so that micro-batches and torch's random stream matter; every step is
# logged, for the kill.
LENGTH = 60
SETTINGS = (
    f"--gradient_accumulation_steps 2 --per_device_train_batch_size 16 --max_steps {LENGTH} "
    "--save_steps 4 --logging_steps 1 --eval_steps 15 --model.hidden_dropout_prob 0.1"
)


def command(finished: Finished, folder: Path) -> list[str]:
    """The options of the interrupted run."""
    return options(finished.corpus, finished.prepared, folder, *SETTINGS.split())


@pytest.fixture(scope="session")
def uninterrupted(finished: Finished, shared_folder: Path, make_once: Once) -> Path:
    """The same run without interruption."""
    folder = shared_folder / "uninterrupted"
    argv = command(finished, folder)
    assert make_once("uninterrupted", lambda: call(pretrain.main, *argv)).code == 0
    return folder


def resumed_from(ended: Ended) -> int:
    """The step after which a run resumed, from its log."""
    line = next(line for line in ended.err.splitlines() if line.startswith("resuming from"))
    return int(line.rsplit(" ", 1)[1])


@pytest.mark.parametrize(
    ("number", "step"),
    [  # in the second epoch, later on a busy machine
        (signal.SIGKILL, 14),
        pytest.param(signal.SIGKILL, 6, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 6, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_or_stopped_in_any_epoch_equals_an_uninterrupted_one(
    finished: Finished, uninterrupted: Path, tmp_path: Path, number: signal.Signals, step: int
) -> None:
    folder = tmp_path / "run"
    argv = command(finished, folder)
    log = folder / "metrics.jsonl"
    interrupted = interrupt(["Pretraining.py", *argv], log, step, number)
    last = rows(folder)[-1]["step"]
    if number == signal.SIGTERM:
        assert interrupted.code == STOPPED_BY_SIGNAL, interrupted.err
        assert f"stopped by a signal after step {last}" in interrupted.err
        assert (folder / "checkpoints" / f"step-{last:07d}" / "MANIFEST.json").is_file()
        assert not (folder / "generator").exists()
    else:
        assert interrupted.code == -signal.SIGKILL
    ended = succeed(pretrain.main, *argv)
    assert number == signal.SIGKILL or resumed_from(ended) == last
    after = next(row for row in rows(folder) if row["step"] == resumed_from(ended))
    assert step - 4 < after["step"] < LENGTH
    assert outcome(folder, LENGTH) == outcome(uninterrupted, LENGTH)


@pytest.mark.parametrize("written", [0, 4])  # environment.json, and the last file of the tokenizer
def test_a_full_disk_at_the_start_leaves_a_folder_that_can_be_resumed(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    argv = finished.options(tmp_path / "run", "--max_steps", 1)
    replace, done = os.replace, list[object]()

    def fills_up(source: Path, target: Path) -> None:
        if (tmp_path / "run") in Path(target).parents:
            if len(done) == written:
                raise OSError(errno.ENOSPC, "No space left on device")
            done.append(target)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fills_up)
        assert_refused(call(pretrain.main, *argv), 2, "then run the same command again")
    succeed(pretrain.main, *argv)


def test_a_resume_that_skips_a_batch_is_detected(
    finished: Finished, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault for the tests above: resuming one batch too late, like a prefetching data
    loader.
    """
    folder, steps = shutil.copytree(uninterrupted, tmp_path / "run"), TrainBatches.steps
    shutil.rmtree(folder / "checkpoints" / f"step-{LENGTH:07d}")
    monkeypatch.setattr(
        TrainBatches, "steps", lambda batches, first_step: steps(batches, first_step + 1)
    )
    assert resumed_from(call(pretrain.main, *command(finished, folder))) == LENGTH - 4
    weights, log = outcome(folder, LENGTH)
    assert weights != outcome(uninterrupted, LENGTH)[0]
    assert log != outcome(uninterrupted, LENGTH)[1]


def exported(folder: Path) -> list[str]:
    return [
        tiny_run.sha256(folder / name / "model.safetensors")
        for name in ("generator", "discriminator")
    ]


def test_a_finished_run_is_not_trained_again(finished: Finished, copied: Path) -> None:
    weights = copied / "checkpoints" / f"step-{STEPS:07d}" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    ended = succeed(pretrain.main, *finished.options(copied))
    assert resumed_from(ended) == STEPS
    assert weights.stat().st_mtime_ns == before
    assert tiny_run.untimed_rows(copied) == tiny_run.untimed_rows(finished.folder)
    assert "generator accuracy" in ended.out
    assert exported(copied) == exported(finished.folder)


def test_another_instruction_set_is_logged(
    finished: Finished, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: without /proc, PyTorch uses none, and a run had other weights without a notice.
    found = torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NONE")
    ended = succeed(pretrain.main, *finished.options(copied))
    assert f"cpu_capability was {found}, is now NONE" in ended.err


def test_a_run_that_would_end_before_its_checkpoint_is_refused(finished: Finished) -> None:
    ended = call(pretrain.main, *finished.options(finished.folder, "--max_steps", 5))
    assert_refused(ended, 2, "--max_steps 5")


@pytest.mark.slow
def test_max_steps_extends_a_run_and_the_change_is_logged(finished: Finished, copied: Path) -> None:
    longer = ("--max_steps", STEPS + 2, "--save_steps", 2)
    ended = succeed(pretrain.main, *finished.options(copied, *longer))
    assert f"max_steps: {STEPS} before, {STEPS + 2} now" in ended.err
    assert rows(copied)[-1]["step"] == STEPS + 2


def test_a_second_run_in_the_same_folder_is_refused(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = finished.options(tmp_path / "run")

    def run_again(*_: object) -> None:
        assert_refused(call(pretrain.main, *argv), 2, "is in use by another run")
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainBatches, "steps", run_again)
    assert call(pretrain.main, *argv).code == 130
