"""A recorded step equals the plain one (law 12), replayed by operators on the CPU."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from electra_albert.contracts import Batch, DivergedError, Term
from electra_albert.training import step as steps
from electra_albert.training.graphs import Graphs
from electra_albert.training.loop import train
from electra_albert.training.loss_scale import UpdateGuard
from electra_albert.training.monitor import Monitor, Tally
from electra_albert.training.signals import StopSignal
from electra_albert.training.step import RunSettings, TrainingStep
from tests.apps.tiny_run import untimed_rows
from tests.objectives.toy import LENGTHS, MODEL, build, make_batch, ordered
from tests.training import toy
from tests.training.recorder import ReplayingRecorder
from tests.training.test_distributed import run_ranks
from tests.training.test_loop import check_resume
from tests.training.toy import ALONE, ToyObjective, fingerprint, run_toy

STEPS, SHORT_STEPS = 16, 8
CONFIG = replace(
    toy.CONFIG, learning_rate=1e-3, max_steps=STEPS, save_steps=STEPS, logging_steps=3, eval_steps=5
)


class TextBatches:
    """Batches of two shapes, one after the other, of one or three micro-batches in turns."""

    def __init__(self, before: Callable[[int], object] = bool) -> None:
        self.before = before

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        for step in count(first_step):
            self.before(step)
            length = 11 if step <= SHORT_STEPS else 23
            lengths = [min(one, length) for one in LENGTHS[step % len(LENGTHS)]]
            number = 3 if step % 4 == 0 else 1
            salts = range(10 * step, 10 * step + number)
            yield [ordered(make_batch(tuple(lengths), length, salt=salt)) for salt in salts]

    def epoch(self, step: int) -> float:
        return 0.0


class Trained(NamedTuple):
    """The end of a run: weights, optimizer state, and rows of metrics.jsonl without times."""

    state: Tensor
    rows: list[dict[str, Any]]


def poisoned(objective: torch.nn.Module) -> Callable[[int], None]:
    """Make a weight infinite before step 12, which is recorded and skipped, and repair it after."""
    weight = next(objective.parameters())

    def before(step: int) -> None:
        if step in (12, 13):
            with torch.no_grad():
                weight[0, 0] = torch.inf if step == 12 else 0.1

    return before


def trained(
    folder: Path,
    recorder: ReplayingRecorder | None,
    name: str = "rtd_sop",
    optimizer: Any = "adamw",
    *,
    is_poisoned: bool = False,
    **shape: Any,
) -> Trained:
    """Train a small objective with dropout for STEPS steps, logs and evaluations in between."""
    folder.mkdir()
    config = replace(CONFIG, optimizer=optimizer)
    model = replace(MODEL, hidden_dropout_prob=0.1, **shape)
    objective = build(name, model)
    batches = TextBatches(poisoned(objective)) if is_poisoned else TextBatches()
    held_out = ordered(make_batch(salt=10**6))
    with Monitor(folder, STEPS, "none") as monitor:
        run = RunSettings(folder, config, ALONE, monitor, StopSignal(), record=recorder)
        training_step = TrainingStep(objective, run)

        def evaluate(step: int) -> dict[str, float]:
            terms = objective(held_out)
            return {name: float(terms[name].sum) for name in objective.weights}

        train(objective, batches, evaluate, run, training_step)
    moments = [
        value for state in training_step.optimizer.state.values() for value in state.values()
    ]
    tensors = [*objective.parameters(), *moments]
    state = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return Trained(state, untimed_rows(folder))


def check_recorded_is_plain(folder: Path, *arguments: Any, **options: Any) -> None:
    """Assert that a recorded run has the weights, optimizer state, metrics and skipped steps of a
    plain one.
    """
    recorder = ReplayingRecorder()
    plain = trained(folder / "plain", None, *arguments, **options)
    recorded = trained(folder / "recorded", recorder, *arguments, **options)
    assert len(recorder.replays) == 3  # two shapes and the update
    assert min(recorder.replays) >= 4
    assert torch.equal(plain.state, recorded.state)
    assert plain.rows == recorded.rows


@pytest.mark.parametrize("name", ["rtd with options", "rtd with shared", "mlm_sop", "electric"])
def test_a_recorded_run_equals_the_plain_one_for_every_objective(tmp_path: Path, name: str) -> None:
    check_recorded_is_plain(tmp_path, name)


@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
def test_a_recorded_run_equals_the_plain_one_for_every_optimizer(
    tmp_path: Path, optimizer: str
) -> None:
    check_recorded_is_plain(tmp_path, "rtd_sop", optimizer)


@pytest.mark.parametrize("shape", [{"attention": "local"}, {"block": "modern", "hidden_size": 24}])
def test_a_recorded_run_equals_the_plain_one_for_every_block(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    check_recorded_is_plain(tmp_path, "rtd_sop", **shape)


def test_a_recorded_step_with_an_infinite_loss_is_skipped(tmp_path: Path) -> None:
    check_recorded_is_plain(tmp_path, is_poisoned=True)
    assert untimed_rows(tmp_path / "recorded")[-2]["skipped_steps"] == 1


def accumulate_at_new_rates(self: TrainingStep, batches: Any, counts: Any, step: int) -> None:
    """Planted: the learning rates are new tensors instead of those that are recorded."""
    for group in self.optimizer.param_groups:
        rate = steps.learning_rate(step, self.run.config) * group["lr_multiplier"]
        group["lr"] = torch.tensor(rate, dtype=torch.float64)
    accumulate(self, batches, counts, step)


def keep_gradient(self: TrainingStep) -> None:
    self._sums.zero_()
    self._counts.zero_()
    if self._gradient is None:
        self.optimizer.zero_grad()


def observe_in_a_new_tensor(self: UpdateGuard, norm: Tensor, has_overflowed: Tensor) -> Tensor:
    self._counts = self._counts.clone()
    return observe(self, norm, has_overflowed)


def read_value(self: TrainingStep, batch: Batch) -> None:
    micro(self, batch)
    float(self._scales.sum())


accumulate, micro = TrainingStep.accumulate, TrainingStep.micro
observe = UpdateGuard.observe
FAULTS: dict[str, tuple[type, str, Any]] = {
    "learning rate": (TrainingStep, "accumulate", accumulate_at_new_rates),
    "gradients are not zeroed": (TrainingStep, "_clear", keep_gradient),
    "guard not in place": (UpdateGuard, "observe", observe_in_a_new_tensor),
    "tally not in place": (Tally, "clear", lambda self: self._start(self._names)),
    "stale input": (Graphs, "to_device", lambda self, batch, device: batch.to(device)),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("plain") / "run", None, is_poisoned=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_recording_is_seen(
    fault: str, plain: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    unrecorded = trained(tmp_path / "unrecorded", None, is_poisoned=True)
    assert torch.equal(plain.state, unrecorded.state)  # the fault is one of recording
    assert plain.rows == unrecorded.rows
    # A gradient that is not zeroed is infinite after the poisoned step.
    diverges = fault == "gradients are not zeroed"
    with pytest.raises(DivergedError) if diverges else nullcontext():
        recorded = trained(tmp_path / "recorded", ReplayingRecorder(), is_poisoned=True)
        assert not (torch.equal(plain.state, recorded.state) and plain.rows == recorded.rows)


def test_a_step_that_reads_a_value_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingStep, "micro", read_value)
    with pytest.raises(AssertionError, match="reads values"):
        trained(tmp_path / "run", ReplayingRecorder())


@pytest.mark.parametrize("step", [1, 7])
def test_a_resumed_recorded_run_equals_the_uninterrupted_one_bitwise(
    tmp_path: Path, step: int
) -> None:
    check_resume(tmp_path, toy.CONFIG, ToyObjective, step, record=ReplayingRecorder())


def test_recorded_steps_of_several_ranks_equal_those_of_ddp(tmp_path: Path) -> None:
    # With two ranks no sum depends on its order, and the factor 2 of DDP's mean is exact.
    plain, recorded = map(json.loads, run_ranks(2, tmp_path, "recorded").splitlines())
    assert recorded == plain


def test_a_recorded_step_can_be_started_again_with_other_weights_or_from_a_checkpoint(
    tmp_path: Path,
) -> None:
    recorder = ReplayingRecorder()
    config = replace(toy.CONFIG, save_steps=1)
    training_step = None
    # Step 4 is between two logs, so the sums of the terms are restored too.
    for seed, start in ((3, 0), (4, 0), (4, 4)):
        config = replace(config, seed=seed)
        objective = ToyObjective()
        with torch.no_grad():
            objective.table.weight += seed
        weights = copy.deepcopy(objective.state_dict())
        alone, folder = tmp_path / f"alone-{seed}-{start}", tmp_path / f"shared-{seed}-{start}"
        run_toy(alone, config, objective=objective)
        resumed_from = alone / "checkpoints" / f"step-{start:07d}" if start else None
        with Monitor(folder, config.max_steps, "none") as monitor:
            shared = {"record": recorder, "resume_from": resumed_from}
            run = RunSettings(folder, config, ALONE, monitor, StopSignal(), **shared)
            if training_step is None:
                fresh = ToyObjective()
                fresh.load_state_dict(weights)
                training_step = TrainingStep(fresh, run)
            else:  # after a run that stopped between two logs, with a skipped step
                training_step.guard.observe(torch.tensor(torch.nan), torch.tensor(False))
                norm = Term(torch.tensor(7.0), torch.tensor(1))
                left = {**training_step.terms(), steps.GRADIENT_NORM: norm}
                training_step.tally.add(left, torch.tensor(True))
                training_step.restart(weights, run)
            module = training_step.module
            evaluate = toy.held_out(module, config)
            train(module, toy.ToyBatches(config), evaluate, run, training_step)
        assert fingerprint(module) == fingerprint(objective)
        rows, expected = (
            [row for row in untimed_rows(one) if row["step"] > start] for one in (folder, alone)
        )
        assert rows == expected
    assert len(recorder.replays) == 2  # the later runs record nothing
