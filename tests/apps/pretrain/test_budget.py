"""--budget and --flops: the run ends when time or FLOPs are used up, also when the speed changes or
it is resumed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from electra_albert.apps.pretrain import budget, evaluation, main, trial
from electra_albert.apps.pretrain.job import Job, make_job
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.config.pretraining import as_settings
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import Metrics
from electra_albert.training import loop
from electra_albert.training import step as training_step
from electra_albert.training.checkpoint import list_checkpoints
from electra_albert.training.monitor import Monitor
from electra_albert.training.optimizer import learning_rate
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, rows, succeed
from tests.refusals import rows as rows_of
from tests.training.toy import ALONE

SECONDS = 1000.0


class Clock(Monitor):
    """A monitor whose time is set by the test."""

    seconds = 0.0

    @property
    def elapsed_seconds(self) -> float:
        return self.seconds


def run_on_time(
    folder: Path,
    slowest: float,
    evaluation_seconds: float,
    save_seconds: float = 0.0,
    before: int = 0,
) -> Iterator[Clock]:
    """The clock after each plan.

    A step takes a second, after 500 steps `slowest` as long.

    Every 200th step is followed by an evaluation, as is the last one, and every 100th by a save.
    The run is resumed after `before` steps.
    """
    clock = Clock(folder, 1000, is_main=False)
    clock.seconds = float(before)
    pace = budget.Pace(SECONDS, 200, clock)

    def slow(_: int) -> Metrics:
        clock.seconds += evaluation_seconds
        return {}

    evaluate = pace.timed(slow)
    evaluate(before)
    step, training_seconds = before, 0.0
    while step < clock.max_steps:
        step += 1
        seconds = 1.0 if step < 500 else slowest
        clock.seconds += seconds
        training_seconds += seconds
        if step % 20 == 0:
            clock.max_steps = max(step, pace(step, training_seconds))
            yield clock
        clock.seconds += save_seconds * (step % 100 == 0)
        if step % 200 == 0 or step == clock.max_steps:
            evaluate(step)
    yield clock


@pytest.mark.parametrize("evaluation_seconds", [0.0, 100.0])
@pytest.mark.parametrize("slowest", [0.5, 4.0])
def test_a_run_ends_on_time_if_its_speed_changes(
    tmp_path: Path, slowest: float, evaluation_seconds: float
) -> None:
    *_, clock = run_on_time(tmp_path, slowest, evaluation_seconds)
    # Time that is left over is less than the evaluation which a few more steps would need.
    assert 0.97 * SECONDS - evaluation_seconds < clock.seconds < 1.03 * SECONDS


def test_a_plan_does_not_jump_after_evaluations_and_saves(tmp_path: Path) -> None:
    # Regression: evaluations counted as slow steps, so that plan and learning rate jumped after
    # each.
    for before in (0, 500):
        plans = [clock.max_steps for clock in run_on_time(tmp_path, 1.0, 30.0, 4.0, before)]
        assert max(plans[3:]) - min(plans[3:]) < 0.05 * plans[-1]
    plans = [clock.max_steps for clock in run_on_time(tmp_path, 1.0, 30.0, save_seconds=20.0)]
    assert max(plans[10:]) - min(plans[10:]) < 0.06 * plans[-1]


def test_a_plan_follows_the_recent_speed(tmp_path: Path) -> None:
    """Steps from the 500th on take four seconds; the plan is final when such steps took a quarter
    of the time.
    """
    plans = [clock.max_steps for clock in run_on_time(tmp_path, 4.0, 0.0)]
    assert plans[23] == 1000  # after 480 steps
    assert {*plans[26:]} == {499 + (1000 - 499) // 4}  # from 540 steps on


def test_evaluations_are_planned_as_often_as_they_take_place(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_measured_seconds", lambda *_: (1.0, 10.0))
    # One before the training, then one every 5 steps or, with a larger interval, eight in all.
    for interval, steps in ((5, (1000 - 10) // 3), (4000, 1000 - 10 - 80)):
        _, job = planned_job(finished, f"--budget 1000s --eval_steps {interval}")
        assert job.config.training.max_steps == steps


def options(finished: Finished, output: Path | None, more: str) -> list[str]:
    """Options of the tiny run without --max_steps."""
    argv = finished.options(output, *more.split())
    at = argv.index("--max_steps")
    return argv[:at] + argv[at + 2 :]


def test_flops_become_the_nearest_number_of_steps(finished: Finished) -> None:
    _, config = parse_pretraining(options(finished, None, ""))
    step = trial.flops_per_step(config)
    settings = as_settings(config) | {"flops": step}
    for shares in (7.6, 8.0, 8.4):
        run = replace(config, run=replace(config.run, flops=shares * step))
        assert budget.recorded_plan(run, {"settings": settings}, 1).training.max_steps == 8
    for shares in (7.6, 8.4):
        flops = shares * trial.flops_per_step(finished.config())
        assert planned_job(finished, f"--flops {flops}")[1].config.training.max_steps == 8


def test_a_larger_plan_is_that_of_a_new_run_with_the_closer_intervals(finished: Finished) -> None:
    # Regression: intervals were ignored.
    _, config = parse_pretraining(options(finished, None, "--eval_steps 7 --flops 3e12"))
    plan = replace(config.training, max_steps=5000, eval_steps=600)
    settings = as_settings(replace(config, training=plan))
    for processes in (1, 2):
        state = {"settings": settings | {"flops": 2e12}}
        new = budget.recorded_plan(config, state, processes).training
        steps = round(3e12 / trial.flops_per_step(config, processes))
        assert (new.max_steps, new.eval_steps) == (steps, 7)
        same = budget.recorded_plan(config, {"settings": settings}, processes)
        assert same.training.max_steps == 5000


def saved_steps(run: Path) -> list[int]:
    return [step for step, _ in list_checkpoints(run / "checkpoints")]


def test_a_run_with_a_budget_keeps_milestones_and_a_larger_one_extends_it(
    finished: Finished, tmp_path: Path
) -> None:
    of_step = trial.flops_per_step(finished.config())
    for steps, kept in ((16, [1, 2, 4, 8, 15, 16]), (20, [1, 2, 4, 8, 16, 19, 20])):
        flops = float(of_step * steps)
        ended = succeed(main.main, *options(finished, tmp_path, f"--flops {flops}"))
        assert saved_steps(tmp_path) == kept
        written = yaml.safe_load((tmp_path / "config.yaml").read_text())
        assert [written[f"{name}_steps"] for name in ("max", "warmup", "save")] == [steps, 1, 1]
    assert "after step 16" in ended.err
    smaller = call(main.main, *options(finished, tmp_path, "--flops 1e7"))
    assert_refused(smaller, 2, "exceeds --flops 10000000.0; raise it")


REFUSED = rows_of("""
--budget 30 | must be a number above 0 with a unit
--budget 0m | must be a number above 0 with a unit
--budget 5m --flops 1e9 | exclude each other
--budget 5m --max_steps 20 | --max_steps has no effect with --budget
--budget 5m --save_milestones 0 | --save_milestones has no effect with --budget
--max_steps 20 --save_steps 2 --save_milestones 5 | multiple of --save_steps 2
--flops 1e3 | too little for a step
--flops 1e24 | max_steps=
""")


def test_meaningless_budgets_are_refused(finished: Finished, tmp_path: Path) -> None:
    for more, text in REFUSED:
        assert_refused(call(main.main, *options(finished, tmp_path, more)), 2, text)


def test_a_run_with_a_time_budget_is_repeated_without_training_and_resumed_by_a_larger_one(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: the first plan was taken, which is shorter or longer than the last one.
    # Far too slow, so that the plan grows.
    monkeypatch.setattr(budget, "_measured_seconds", lambda *_: (0.2, 0.0))
    lengths = dict[int, set[int]]()

    def spied(step: int, config: TrainingConfig) -> float:
        lengths.setdefault(step, set()).add(config.max_steps)
        return learning_rate(step, config)

    for module in (loop, training_step):
        monkeypatch.setattr(module, "learning_rate", spied)
    succeed(main.main, *options(finished, tmp_path, "--budget 2s"))
    # Regression: the logged learning rate was of the next plan.
    assert {*map(len, lengths.values())} == {1}
    last = saved_steps(tmp_path)[-1]
    assert rows(tmp_path)[-1]["phase"] == "eval"  # of the last step
    assert rows(tmp_path)[-1]["step"] == last
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["max_steps"] == last
    assert (tmp_path / "discriminator" / "model.safetensors").is_file()
    succeed(main.main, *options(finished, tmp_path, "--budget 2s"))
    assert saved_steps(tmp_path)[-1] == last
    succeed(main.main, *options(finished, tmp_path, "--budget 3s"))
    assert saved_steps(tmp_path)[-1] > last
    other = call(main.main, *options(finished, tmp_path, "--flops 1e12"))
    assert_refused(other, 2, "--flops: the run began with --budget")


def test_saves_are_as_frequent_as_asked_for_and_milestones_are_kept(
    finished: Finished, tmp_path: Path
) -> None:
    flops = 32.0 * trial.flops_per_step(finished.config())  # a milestone every 2 steps
    succeed(main.main, *options(finished, tmp_path, f"--save_steps 1 --flops {flops}"))
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert (written["save_steps"], written["save_milestones"]) == (1, 2)
    assert saved_steps(tmp_path) == [2, 4, 8, 16, 31, 32]


def test_options_that_suit_the_text_are_suggested_and_exist(finished: Finished) -> None:
    (line,) = (line for line in finished.ended.err.splitlines() if line.startswith("usual for "))
    tokens = int(line.split()[2].replace(",", ""))
    preset, config = parse_pretraining(line.partition("text: ")[2].split())
    training = config.training
    examples = training.max_steps * training.per_device_train_batch_size
    assert (preset, config.corpus.vocab_size) == ("tiny", 4000)
    assert training.warmup_steps == training.max_steps // 20
    assert tokens > 1000
    assert examples * config.corpus.max_seq_length <= max(10 * tokens, 100 * 2048)


def planned_job(finished: Finished, more: str) -> tuple[Job, Job]:
    """A job before and after its plan."""
    _, config = parse_pretraining(options(finished, None, more))
    job = make_job(config, ALONE)
    return job, budget.planned(job, ALONE)


def test_timing_the_steps_of_a_run_with_a_budget_changes_no_weight(finished: Finished) -> None:
    job, _ = planned_job(finished, "--budget 4s")
    new = make_job(job.config, ALONE).objective
    assert all(map(torch.equal, job.objective.parameters(), new.parameters()))


def test_a_budget_includes_the_last_evaluation(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]

    def slow(function: Callable[..., Any], duration: float) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            seconds[0] += duration
            return function(*arguments, **named)

        return timed

    monkeypatch.setattr(budget, "_measured_seconds", lambda *_: (2.0, 0.0))
    monkeypatch.setattr(Monitor, "elapsed_seconds", property(lambda _: seconds[0]))
    step = training_step.TrainingStep
    monkeypatch.setattr(step, "finish", slow(step.finish, 2.0))
    monkeypatch.setattr(evaluation, "score", slow(evaluation.score, 10.0))
    more = "--budget 100s --eval_steps 5 --logging_steps 5"
    succeed(main.main, *options(finished, tmp_path, more))
    assert 90 - 3 < seconds[0] < 103  # an evaluation of 10 s may be left over


def test_a_run_with_flops_logs_and_evaluates_as_planned(finished: Finished, tmp_path: Path) -> None:
    flops = 8 * trial.flops_per_step(finished.config())
    succeed(main.main, *options(finished, tmp_path, f"--flops {float(flops)}"))
    written = rows(tmp_path)
    for name in ("loss", "eval_loss"):
        assert [row["step"] for row in written if name in row] == [1, 2, 3, 4, 5, 6, 7, 8]
