"""A sweep over seeds: independence of the seeds, resuming after a kill, and comparison of two
sweeps.
"""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electra_albert.apps.finetune import job as jobs
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.finetune import sweep as sweeps
from electra_albert.contracts import STOPPED_BY_SIGNAL, Batch
from electra_albert.hub import load
from electra_albert.tasks.encoding import EncodedExamples
from tests.apps.conftest import Finished
from tests.apps.finetune.conftest import QUICK, Again, Tuned
from tests.apps.tiny_run import assert_refused, call, finish, rows, sha256, start, untimed_rows
from tests.apps.tiny_tasks import SEED, Tiny, interrupt, ner, results, rte, tune
from tests.training.recorder import ReplayingRecorder

LOSS_TOLERANCE = 1e-5  # float32 sums in another order; no dropout
LONG: tuple[object, ...] = (
    "--num_train_epochs",
    12,
    "--logging_steps",
    1,
    "--hidden_dropout_prob",
    0.1,
    "--seeds",
    2,
)


def outcome(folder: Path, seeds: int = 2) -> tuple[Any, ...]:
    """Everything that is equal in equal sweeps: results, logs without times, and the exported
    model.
    """
    folders = [folder / f"seed-{seed}" for seed in range(SEED, SEED + seeds)]
    found = [json.loads((one / "result.json").read_text(encoding="utf-8")) for one in folders]
    same = {
        name: value for name, value in results(folder).items() if name not in ("model", "seconds")
    }
    return (
        same,
        found,
        [untimed_rows(one) for one in folders],
        sha256(folder / "model" / "model.safetensors"),
    )


# Seeds.


def test_a_seed_does_not_depend_on_those_before_it(
    again: Again, sweep: Path, tmp_path: Path
) -> None:
    tune(*again(tmp_path / "alone", "--seeds", 1, "--seed", SEED + 1))
    alone, among = (folder / f"seed-{SEED + 1}" for folder in (tmp_path / "alone", sweep))
    assert json.loads((alone / "result.json").read_text()) == json.loads(
        (among / "result.json").read_text()
    )
    assert untimed_rows(alone) == untimed_rows(among)


def test_seeds_have_different_heads_on_the_same_encoder(
    finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    models = []
    for seed in (SEED, SEED + 1):
        more = ("--seed", seed, "--max_steps", 1, "--learning_rate", 1e-12)
        tune(*tiny.options(finished.folder, tmp_path / str(seed), *more))
        models.append(load_file(tmp_path / str(seed) / "model" / "model.safetensors"))
    own = {
        name
        for name, one in models[0].items()
        if not torch.allclose(one, models[1][name], rtol=0, atol=1e-9)
    }
    assert own == {"classifier.weight", "albert.pooler.weight"}


def test_seeds_that_share_a_recorded_step_train_as_each_alone(
    again: Again, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders: list[ReplayingRecorder] = []

    def recorder(device: torch.device) -> ReplayingRecorder:
        recorders.append(ReplayingRecorder())
        return recorders[-1]

    multiples = set[int]()
    collate = EncodedExamples.collate

    def spied(self: EncodedExamples, features: Any, multiple: int = 1) -> Batch:
        multiples.add(multiple)
        return collate(self, features, multiple)

    monkeypatch.setattr(EncodedExamples, "collate", spied)
    # On a CPU, as the recorder of CUDA graphs on a GPU.
    monkeypatch.setattr(jobs, "choose_recording", lambda *_: True)
    monkeypatch.setattr(sweeps, "CudaRecorder", recorder)
    tune(*again(tmp_path / "both"))
    tune(*again(tmp_path / "alone", "--seeds", 1, "--seed", SEED + 1))
    both, alone = (
        folder / f"seed-{SEED + 1}" for folder in (tmp_path / "both", tmp_path / "alone")
    )
    assert json.loads((both / "result.json").read_text()) == json.loads(
        (alone / "result.json").read_text()
    )
    assert untimed_rows(both) == untimed_rows(alone)
    shared, single = (recorder.replays for recorder in recorders)
    # Batches of one length, and the update. The second seed records nothing.
    assert len(shared) == len(single) == 2
    assert multiples == {1, 32}  # in evaluation and in training
    assert sum(shared) > sum(single) > 0
    best = results(tmp_path / "both")["best_seed"]
    tune(*again(tmp_path / "best", "--seeds", 1, "--seed", best))
    kept, own = (tmp_path / name / "model" / "model.safetensors" for name in ("both", "best"))
    assert sha256(kept) == sha256(own)


def test_the_weights_are_read_once_for_each_seed_and_once_without_training(
    again: Again, finished: Finished, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Counter[Path]()

    def spied(files: load.ModelFiles) -> Any:
        read[files.weights] += 1
        return read_weights(files)

    read_weights = load.read_weights
    monkeypatch.setattr(load, "read_weights", spied)
    tune(*again(tmp_path / "out"))
    assert read[finished.folder / "discriminator" / "model.safetensors"] == 2
    model = tmp_path / "out" / "model"
    read.clear()
    more = ("--num_train_epochs", 0, "--predict", "test")
    tune(*tiny.options(model, tmp_path / "scored", *more))
    assert read == {model / "model.safetensors": 1}


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


def test_more_seeds_are_added_to_a_finished_sweep(again: Again, copy: Path) -> None:
    before = sha256(copy / f"seed-{SEED}" / "result.json")
    tune(*again(copy, "--seeds", 3))
    assert results(copy)["seeds"] == [SEED, SEED + 1, SEED + 2]
    assert len(results(copy)["metrics"]["accuracy"]["values"]) == 3
    assert sha256(copy / f"seed-{SEED}" / "result.json") == before


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
    stopped = interrupt(argv, folder / f"seed-{seed}" / "metrics.jsonl", 37, number)
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
    more = (
        "--early_stopping_patience",
        3,
        "--learning_rate",
        1e-9,
        "--logging_steps",
        1,
        "--num_train_epochs",
        30,
    )
    argv = tiny.options(finished.folder, tmp_path / "sweep", *more)
    stopped = interrupt(
        argv, tmp_path / "sweep" / f"seed-{SEED}" / "metrics.jsonl", 24, signal.SIGKILL
    )
    assert stopped.code == -signal.SIGKILL
    tune(*argv)
    assert results(tmp_path / "sweep")["updates"] == [40]


@pytest.mark.parametrize(
    ("changed", "code", "word"),
    [
        (("--learning_rate", 0.001), 4, "learning_rate"),
        (("--max_train_examples", 100), 4, "max_train_examples"),
        (("--resume", "never"), 2, "--resume never"),
    ],
)
def test_new_settings_are_refused(
    again: Again, copy: Path, changed: tuple[object, ...], code: int, word: str
) -> None:
    same = outcome(copy)
    assert_refused(call(finetune.main, *again(copy, *changed)), code, word)
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


def test_a_comparison_is_antisymmetric(sweep: Path, other_sweep: Path, tiny: Tiny) -> None:
    forth, back = (
        compared(other_sweep, sweep)[tiny.main_metric],
        compared(sweep, other_sweep)[tiny.main_metric],
    )
    means = [
        100 * results(folder)["metrics"][tiny.main_metric]["mean"]
        for folder in (other_sweep, sweep)
    ]
    assert float(forth[2]) == pytest.approx(means[0] - means[1], abs=0.011)
    assert float(forth[2]) == -float(back[2]) > 0
    low, high = map(float, forth[3].split(" to "))
    assert 0 < low <= float(forth[2]) <= high


def test_different_sweeps_are_not_compared(
    finished: Finished, sweep: Path, copy: Path, tmp_path: Path
) -> None:
    tune(*rte(tmp_path / "tasks").options(finished.folder, tmp_path / "rte", *QUICK))
    assert_refused(call(finetune.main, "--compare", sweep, tmp_path / "rte"), 2, "rte", "cola")
    assert_refused(call(finetune.main, "--compare", sweep, tmp_path / "nowhere"), 2, "nowhere")
    assert_refused(call(finetune.main, "--compare", sweep), 2)
    (copy / f"seed-{SEED}" / "result.json").unlink()
    assert_refused(call(finetune.main, "--compare", sweep, copy), 4, "copy")
    (copy / "results.json").write_text("{")
    assert_refused(call(finetune.main, "--compare", sweep, copy), 4, "results.json")


# One batch, split differently.


def furthest(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> float:
    """The largest relative difference of a loss in two logs of the same steps."""
    both = list(zip(one, other, strict=True))
    assert all(a["step"] == b["step"] for a, b in both)
    pairs = [(a[name], b[name]) for a, b in both for name in ("loss", "eval_loss") if a.get(name)]
    assert len(pairs) == len(one)
    return max(abs(a - b) / abs(a) for a, b in pairs)


# Dropout is drawn per micro-batch.
SPLIT: tuple[object, ...] = ("--num_train_epochs", 2, "--logging_steps", 1)


def test_accumulation_gives_the_losses_of_one_large_batch(
    finished: Finished, tmp_path: Path
) -> None:
    """Tags of sentences of different lengths, where a mean of means would differ."""
    task, split = (
        ner(tmp_path / "tasks"),
        ("--per_device_train_batch_size", 4, "--gradient_accumulation_steps", 4),
    )
    for name, more in (("one", ()), ("split", split)):
        tune(*task.options(finished.folder, tmp_path / name, *SPLIT, *more))
    one, accumulated = (rows(tmp_path / name / f"seed-{SEED}") for name in ("one", "split"))
    assert furthest(one, accumulated) < LOSS_TOLERANCE


@pytest.mark.slow
def test_two_ranks_train_and_evaluate_like_one(finished: Finished, tmp_path: Path) -> None:
    task = ner(tmp_path / "tasks")
    torchrun = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        2,
        "Finetuning.py",
    )
    halves = ("--per_device_train_batch_size", 8)
    ended = finish(
        start(
            [*torchrun, *task.options(finished.folder, tmp_path / "two", *SPLIT, *halves)], tmp_path
        )
    )
    assert ended.code == 0, ended.err
    assert ended.out.count("written to") == 1
    tune(*task.options(finished.folder, tmp_path / "one", *SPLIT))
    one, two = (rows(tmp_path / name / f"seed-{SEED}") for name in ("one", "two"))
    assert furthest(one, two) < LOSS_TOLERANCE
    predictions = [
        (tmp_path / name / "predictions.tsv").read_text(encoding="utf-8") for name in ("one", "two")
    ]
    assert predictions[0] == predictions[1]
