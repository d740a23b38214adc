"""Programs for subprocesses: runs that are killed, and distributed ranks.

python -m tests.training.faults kill FOLDER        kills run after run, each at a later file
operation python -m tests.training.faults rank FOLDER NAME   one rank (torchrun's environment) of a
program below
"""

import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import replace
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import torch

from electra_albert.apps import command_line
from electra_albert.contracts import RankLostError
from electra_albert.training import checkpoint, distributed
from electra_albert.training.checkpoint import find_checkpoint, list_checkpoints
from electra_albert.training.monitor import Monitor
from electra_albert.training.run_log import RunLog
from electra_albert.training.signals import StopSignal
from electra_albert.training.step import RunSettings, TrainingStep, count_step
from tests.apps.tiny_run import untimed_rows
from tests.training import toy
from tests.training.recorder import ReplayingRecorder
from tests.training.toy import CONFIG, ToyBatches, ToyObjective, fingerprint, run_toy

KILL_CONFIG = replace(CONFIG, max_steps=6, save_steps=2, save_total_limit=1)
# Saves have different numbers of calls, so every third call covers all phases in about forty runs.
_EACH = 3
_EVENTS = {
    *("open", "shutil.rmtree"),
    *(f"os.{name}" for name in ("mkdir", "rename", "remove", "rmdir", "chmod", "truncate")),
}


def _kill_at(call: int, folder: Path) -> None:
    """Kill this process (SIGKILL) just before its `call`-th file operation in folder, or fsync."""
    seen = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in _EVENTS and (
            str(folder) in str(arguments[0]) or event in ("os.remove", "os.rmdir")
        ):
            seen += 1
            if seen == call:
                os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Callable[..., Any], *arguments: Any) -> Any:
        count("open", (folder,))
        return function(*arguments)

    sys.addaudithook(count)
    os.fsync = partial(counted, os.fsync)
    checkpoint.save_file = partial(counted, checkpoint.save_file)


def _in_child(action: Callable[[], object]) -> int:
    """Run action in a forked process; returns its signal or exit status."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        finally:  # the fork must always exit here and not continue as a second test process
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return os.waitpid(child, 0)[1]


def kill(folder: Path) -> None:
    """Print the result of an uninterrupted run, then that of each run killed at its 1st, 4th, …
    file operation.
    """

    def resume(run: Path) -> None:
        logged = BufferingHandler(1000)
        logging.getLogger("electra_albert").addHandler(logged)
        found = find_checkpoint(run / "checkpoints", "auto")
        warnings = [record.getMessage() for record in logged.buffer]
        _, objective = run_toy(run, KILL_CONFIG, resume_from=found)
        result = {
            "found": found.name if found else None,
            "weights": fingerprint(objective),
            "left": sorted(path.name for path in (run / "checkpoints").iterdir()),
            "rows": untimed_rows(run),
            "warnings": warnings,
        }
        print(json.dumps(result), flush=True)

    # Also imports all modules before the forks.
    _, through = run_toy(folder / "through", KILL_CONFIG)
    expected = {"weights": fingerprint(through), "rows": untimed_rows(folder / "through")}
    print(json.dumps(expected), flush=True)
    call, status = 1 - _EACH, int(signal.SIGKILL)
    while status == signal.SIGKILL:
        call += _EACH
        run = folder / str(call)

        def train(call: int = call, run: Path = run) -> None:
            _kill_at(call, run / "checkpoints")
            run_toy(run, KILL_CONFIG)

        status = _in_child(train)
        assert _in_child(lambda run=run: resume(run)) == 0
        shutil.rmtree(run)
    assert status == 0


def _gradients(folder: Path, world: distributed.World) -> None:
    """Print each rank's gradient of one step of twelve examples in two micro-batches per rank,
    correct and planted.
    """
    config, step = replace(CONFIG, per_device_train_batch_size=3, gradient_accumulation_steps=2), 2
    micro_batches = next(ToyBatches(config, world).steps(step))
    run = RunSettings(folder, config, world, Monitor(folder, 8, is_main=False), StopSignal())
    for name in ("as the loop does", "never"):
        training_step = TrainingStep(ToyObjective(0.0, torch.float64), run)
        training_step.distribute()
        counts = count_step(training_step.module, micro_batches, run)
        # Planted: no_sync around the last micro-batch too.
        with training_step.model.no_sync() if name == "never" else nullcontext():
            training_step.accumulate(micro_batches, counts.terms, step)
        gathered = distributed.gather_objects(toy.gradient_of(training_step.module).tolist(), world)
        if world.is_main:
            print(json.dumps([name, gathered]))


def _resume(folder: Path, world: distributed.World) -> None:
    """Train to the end, then resume from each checkpoint; print the last weights' hash."""
    config = replace(CONFIG, max_steps=4, save_steps=1, gradient_accumulation_steps=2)
    for start in range(config.max_steps):
        checkpoint = folder / "0" / "checkpoints" / f"step-{start:07d}" if start else None
        objective = ToyObjective(hidden=131)  # wide enough for several chunks in the all-reduce
        run_toy(
            folder / str(start), config, objective=objective, world=world, resume_from=checkpoint
        )
        if world.is_main:
            print(json.dumps([fingerprint(objective), untimed_rows(folder / str(start))[-1]]))


def _stop(folder: Path, world: distributed.World) -> None:
    """Train while only the last rank gets a signal; print the step at which each rank stopped."""
    is_last = world.rank == world.world_size - 1
    before = toy.at_steps({4: lambda: os.kill(os.getpid(), signal.SIGTERM)} if is_last else {})
    with StopSignal() as stop:
        outcome, _ = run_toy(folder, world=world, before=before, stop=stop)
    left = distributed.gather_objects([outcome.step, outcome.is_stopped], world)
    if world.is_main:
        print(json.dumps([left, [step for step, _ in list_checkpoints(folder / "checkpoints")]]))


def _lose(folder: Path, world: distributed.World, lose: Callable[[], object]) -> None:
    """Train until the first or the last of three ranks is lost in step 4; print the error of the
    one that reports.
    """
    before = toy.at_steps({4: lose} if world.rank == (0 if folder.name == "first" else 2) else {})
    distributed._ANSWER_SECONDS = 2
    command_line._FIRST_RANK_SECONDS = 0
    try:
        with RunLog() as log, distributed.naming_lost_ranks(world, log.take_over):
            if world.is_main:
                folder.mkdir(exist_ok=True)
            log.open(folder)
            run_toy(folder, world=world, before=before)
    except RankLostError as error:
        with redirect_stderr(sys.stdout):
            code = command_line.report(error)
        distributed.leave(code)


def _overflow(folder: Path, world: distributed.World) -> None:
    """Print each rank's loss scale after an fp16 step that overflows on the last rank only."""
    run = RunSettings(
        folder, CONFIG, world, Monitor(folder, 8, is_main=False), StopSignal(), "fp16"
    )
    objective = ToyObjective(0.0)
    weight = 1e6 if world.rank == world.world_size - 1 else 1e-6
    objective.weights = dict.fromkeys(objective.weights, weight)
    training_step = TrainingStep(objective, run)
    training_step.distribute()
    micro_batches = next(ToyBatches(CONFIG, world).steps(1))
    training_step.accumulate(micro_batches, dict.fromkeys(objective.weights, 1), 1)
    training_step.loss_scale.unscale_(training_step.optimizer)
    training_step.loss_scale.update_scale()
    states = distributed.gather_objects(training_step.loss_scale.state(), world)
    if world.is_main:
        print(json.dumps(states))


def _recorded(folder: Path, world: distributed.World) -> None:
    """Train by DDP, then with a recorded step; print the final weights' hash and the rows of
    metrics each time.
    """
    config = replace(CONFIG, gradient_accumulation_steps=2, max_steps=12)
    for recorder in (None, ReplayingRecorder()):
        run = folder / ("plain" if recorder is None else "recorded")
        objective = ToyObjective()
        with torch.no_grad():
            objective.table.weight += world.rank  # ranks take the weights of the first one
        run_toy(run, config, objective=objective, world=world, record=recorder)
        if world.is_main:
            print(json.dumps([fingerprint(objective), untimed_rows(run)]))


def rank(folder: Path, name: str) -> None:
    """Join the process group and run a program."""
    world = distributed.start("cpu", 5)
    programs = {"gradients": _gradients, "resume": _resume, "stop": _stop, "overflow": _overflow}
    programs |= {"recorded": _recorded}
    programs |= {"kill": partial(_lose, lose=lambda: os.kill(os.getpid(), signal.SIGKILL))}
    programs |= {"hang": partial(_lose, lose=lambda: os.kill(os.getpid(), signal.SIGSTOP))}
    programs[name](folder, world)
    distributed.leave(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, where, *rest = sys.argv[1:]
    if what == "kill":
        kill(Path(where))
    else:
        rank(Path(where), rest[0])
