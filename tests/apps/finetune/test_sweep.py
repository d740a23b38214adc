"""A sweep over seeds: independence of the seeds, resuming after a kill, and comparison of two
sweeps.
"""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.apps.finetune import job as jobs
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.finetune import sweep as sweeps
from electra_albert.contracts import STOPPED_BY_SIGNAL
from tests.apps.conftest import Finished
from tests.apps.finetune.conftest import QUICK, Again, Tuned
from tests.apps.tiny_run import (
    assert_refused,
    call,
    finish,
    interrupt,
    rows,
    sha256,
    start,
    untimed_rows,
)
from tests.apps.tiny_tasks import SEED, Tiny, ner, results, rte, tune
from tests.training.recorder import ReplayingRecorder

LOSS_TOLERANCE = 1e-5  # float32 sums in another order; no dropout
LONG = (*QUICK, "--num_train_epochs", 12, "--seeds", 2)


def outcome(folder: Path, seeds: int = 2) -> tuple[Any, ...]:
    """Everything that is equal in equal sweeps: results, logs without times, and the exported
    model.
    """
    folders = [folder / f"seed-{seed}" for seed in range(SEED, SEED + seeds)]
    weights = sha256(folder / "model" / "model.safetensors")
    timeless = {name: value for name, value in results(folder).items() if name != "seconds"}
    return timeless | {"model": weights}, [logged(seed_folder) for seed_folder in folders]


def logged(seed_folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The result of a seed and its log without times."""
    return (seed_folder / "result.json").read_text(encoding="utf-8"), untimed_rows(seed_folder)


# Seeds.


def test_a_seed_does_not_depend_on_those_before_it(
    again: Again, sweep: Path, tmp_path: Path
) -> None:
    tune(*again(tmp_path / "alone", "--seeds", 1, "--seed", SEED + 1))
    alone, among = (folder / f"seed-{SEED + 1}" for folder in (tmp_path / "alone", sweep))
    assert logged(alone) == logged(among)


def test_seeds_that_share_a_recorded_step_train_as_each_alone(
    again: Again, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders: list[ReplayingRecorder] = []

    def recorder(device: torch.device) -> ReplayingRecorder:
        recorders.append(ReplayingRecorder())
        return recorders[-1]

    # On a CPU, as the recorder of CUDA graphs on a GPU.
    monkeypatch.setattr(jobs, "choose_recording", lambda *_: True)
    monkeypatch.setattr(sweeps, "CudaRecorder", recorder)
    tune(*again(tmp_path / "both"))
    tune(*again(tmp_path / "alone", "--seeds", 1, "--seed", SEED + 1))
    both, alone = (tmp_path / name / f"seed-{SEED + 1}" for name in ("both", "alone"))
    assert logged(both) == logged(alone)
    shared, single = (recorder.replays for recorder in recorders)
    # Batches of one length, and the update. The second seed records nothing.
    assert len(shared) == len(single) == 2
    assert sum(shared) > sum(single) > 0


def test_the_model_kept_is_that_of_the_best_seed(
    again: Again, tiny: Tiny, sweep: Path, tmp_path: Path
) -> None:
    best = results(sweep)["best_seed"]
    values = results(sweep)["metrics"][tiny.main_metric]["values"]
    assert values[best - SEED] == max(values)
    tune(*again(tmp_path / "best", "--seeds", 1, "--seed", best))
    assert sha256(tmp_path / "best" / "model" / "model.safetensors") == sha256(
        sweep / "model" / "model.safetensors"
    )


def test_a_finished_sweep_run_again_trains_nothing(again: Again, copy: Path) -> None:
    made = [path for path in copy.rglob("*") if "seed-" in str(path) or "model" in path.parts]
    before, same = {path: path.stat().st_mtime_ns for path in made}, outcome(copy)
    ended = tune(*again(copy))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert outcome(copy) == same
    assert (copy / "results.md").read_text(encoding="utf-8").strip() in ended.out


# Killed and resumed.


@pytest.fixture(scope="session")
def uninterrupted(tuned: Tuned, tiny: Tiny) -> Path:
    return tuned("uninterrupted-sweep", tiny, *LONG)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "number"),
    [(SEED, signal.SIGTERM), (SEED + 1, signal.SIGTERM), (SEED + 1, signal.SIGKILL)],
)
def test_an_interrupted_sweep_gives_the_same_results(
    finished: Finished,
    tiny: Tiny,
    uninterrupted: Path,
    tmp_path: Path,
    seed: int,
    number: signal.Signals,
) -> None:
    argv, folder = tiny.options(finished.folder, tmp_path / "sweep", *LONG), tmp_path / "sweep"
    log = folder / f"seed-{seed}" / "metrics.jsonl"
    stopped = interrupt(["Finetuning.py", *argv], log, 37, number)
    assert stopped.code == (STOPPED_BY_SIGNAL if number == signal.SIGTERM else -number), stopped.err
    assert not (folder / "results.json").exists()
    assert "Traceback" not in stopped.err
    if number == signal.SIGTERM:
        assert "run the same command" in stopped.err
    first = folder / f"seed-{SEED}" / "result.json"
    done = sha256(first) if seed > SEED else None
    ended = tune(*argv)
    assert done in (None, sha256(first))
    assert "resuming from" in ended.err
    assert outcome(folder) == outcome(uninterrupted)
    assert not list(folder.glob("seed-*/checkpoints"))


@pytest.mark.slow
def test_early_stopping_counts_no_evaluation_twice_after_a_kill(
    finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    # Four evaluations, ten updates apart; the second, before the kill, is repeated.
    more = ("--early_stopping_patience", 3, "--learning_rate", 1e-9, "--num_train_epochs", 30)
    folder = tmp_path / "sweep"
    argv = tiny.options(finished.folder, folder, *more, "--logging_steps", 1)
    log = folder / f"seed-{SEED}" / "metrics.jsonl"
    stopped = interrupt(["Finetuning.py", *argv], log, 24, signal.SIGKILL)
    assert stopped.code == -signal.SIGKILL
    tune(*argv)
    assert results(folder)["updates"] == [40]


def test_new_settings_are_refused(again: Again, copy: Path) -> None:
    same = outcome(copy)
    for option, value, code in (("learning_rate", 0.001, 4), ("resume", "never", 2)):
        ended = call(finetune.main, *again(copy, f"--{option}", value))
        assert_refused(ended, code, option)
    assert outcome(copy) == same


# Two sweeps side by side.


def compared(first: Path, second: Path) -> dict[str, list[str]]:
    """The cells of the table that --compare prints, by metric."""
    ended = tune("--compare", first, second)
    assert "with fewer than 5 seeds per sweep" in ended.out
    lines = [
        line.strip("| ").split(" | ") for line in ended.out.splitlines() if line.startswith("|")
    ]
    return {name: cells for name, *cells in lines[2:]}


@pytest.fixture(scope="session")
def other_sweep(tuned: Tuned, tiny: Tiny) -> Path:
    """A well-trained sweep of the same task."""
    return tuned("sweep-other", tiny, "--seeds", 2)[0]


def test_a_comparison_is_first_minus_second(sweep: Path, other_sweep: Path, tiny: Tiny) -> None:
    metric = tiny.main_metric
    forth = compared(other_sweep, sweep)[metric]
    new, old = (results(folder)["metrics"][metric]["mean"] for folder in (other_sweep, sweep))
    assert float(forth[2]) == pytest.approx(100 * (new - old), abs=0.011)
    low, high = map(float, forth[3].split(" to "))
    assert 0 < low <= float(forth[2]) <= high


def test_different_sweeps_are_not_compared(
    finished: Finished, sweep: Path, copy: Path, tmp_path: Path
) -> None:
    tune(*rte(tmp_path / "tasks").options(finished.folder, tmp_path / "rte", *QUICK))
    assert_refused(call(finetune.main, "--compare", sweep, tmp_path / "rte"), 2, "rte", "cola")
    assert_refused(call(finetune.main, "--compare", sweep, tmp_path / "nowhere"), 2, "nowhere")
    (copy / f"seed-{SEED}" / "result.json").unlink()
    assert_refused(call(finetune.main, "--compare", sweep, copy), 4, "copy")
    (copy / "results.json").write_text("{")
    assert_refused(call(finetune.main, "--compare", sweep, copy), 4, "results.json")


# One batch, split differently.


def losses(folder: Path) -> list[float]:
    """The losses of a seed in training and evaluation."""
    logged_rows = rows(folder / f"seed-{SEED}")
    return [row[name] for row in logged_rows for name in ("loss", "eval_loss") if row.get(name)]


# Dropout is drawn per micro-batch.
SPLIT: tuple[object, ...] = ("--num_train_epochs", 2, "--logging_steps", 1)


def test_accumulation_gives_the_losses_of_one_large_batch(
    finished: Finished, tmp_path: Path
) -> None:
    """Tags of sentences of different lengths, where a mean of means would differ."""
    task = ner(tmp_path / "tasks")
    split = ("--per_device_train_batch_size", 4, "--gradient_accumulation_steps", 4)
    for name, more in (("one", ()), ("split", split)):
        tune(*task.options(finished.folder, tmp_path / name, *SPLIT, *more))
    expected = pytest.approx(losses(tmp_path / "one"), rel=LOSS_TOLERANCE)
    assert losses(tmp_path / "split") == expected


@pytest.mark.slow
def test_two_ranks_train_and_evaluate_like_one(finished: Finished, tmp_path: Path) -> None:
    task = ner(tmp_path / "tasks")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2)
    halves = ("--per_device_train_batch_size", 8)
    argv = task.options(finished.folder, tmp_path / "two", *SPLIT, *halves)
    ended = finish(start([*torchrun, "Finetuning.py", *argv], tmp_path))
    assert ended.code == 0, ended.err
    assert ended.out.count("written to") == 1
    tune(*task.options(finished.folder, tmp_path / "one", *SPLIT))
    expected = pytest.approx(losses(tmp_path / "one"), rel=LOSS_TOLERANCE)
    assert losses(tmp_path / "two") == expected
    hashes = {sha256(tmp_path / name / "predictions.tsv") for name in ("one", "two")}
    assert len(hashes) == 1
