"""The seeds of a sweep, one after the other, each trained by the loop that pretraining uses; the best is kept.

A seed's folder holds its log and, until it is done, its checkpoints; result.json is written last and closes it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_albert.apps.finetune.files import export_best
from electra_albert.apps.finetune.job import TaskJob, build_objective, data_fingerprint
from electra_albert.apps.finetune.scoring import Scored, inference, score
from electra_albert.apps.machine import one_line_errors
from electra_albert.apps.run_folder import write_whole, writing
from electra_albert.contracts import CheckpointError, Metrics
from electra_albert.hub.load import load_task_model
from electra_albert.model.task_model import depth_scales
from electra_albert.tasks.batches import TaskBatches
from electra_albert.tasks.metrics import is_collapsed
from electra_albert.tasks.objective import TaskObjective
from electra_albert.training.checkpoint import find_checkpoint, read_state
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.guards import StopSignal
from electra_albert.training.loop import train
from electra_albert.training.monitor import EVALUATION_PREFIX, Monitor, read_metrics
from electra_albert.training.settings import RunSettings

LOG = logging.getLogger(__name__)

RESULT = "result.json"
_BEST_WEIGHTS = "best.safetensors"


class SeedResult(NamedTuple):
    """What came of one seed."""

    seed: int
    step: int
    metrics: Metrics
    values: dict[str, list[list[float]]]  # by evaluation set: the numbers all metrics follow from, one row an example
    predictions: dict[str, list[Any]]  # by evaluation set
    probabilities: dict[str, list[Any] | None]
    is_collapsed: bool  # the same answer whatever was asked
    new_parts: list[str]  # of the model, that began with random weights


def run_seeds(job: TaskJob, folder: Path, world: World, stop: StopSignal) -> list[SeedResult] | None:
    """Train, or read, every seed's result; None where it was told to stop. The best one's model is exported.

    Seeds that were begun by an earlier command belong to the sweep, whether or not this one asks for them: the model
    may be theirs.
    """
    results: dict[int, SeedResult] = {}
    seeds = _all_seeds(job, folder, world)
    with main_first(world):
        if world.is_main:
            found = {seed: read_result(_place(folder, seed)) for seed in seeds}
            results = {seed: result for seed, result in found.items() if result is not None}
    results = gather_objects(results, world)[0]
    for seed in seeds:
        if seed not in results:
            result = _run_seed(job, seed, folder, world, stop, results)
            if result is None:
                return None
            results[seed] = result
    return [results[seed] for seed in seeds]


def _place(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def _all_seeds(job: TaskJob, folder: Path, world: World) -> list[int]:
    first = job.config.training.seed
    asked = set(range(first, first + job.config.tuning.seeds))
    begun = {int(path.name.removeprefix("seed-")) for path in folder.glob("seed-*") if path.name[5:].isdecimal()}
    begun = gather_objects(begun, world)[0]
    if begun - asked:
        LOG.info(f"seeds begun earlier belong to this sweep too: {', '.join(map(str, sorted(begun - asked)))}")
    return sorted(asked | begun)


def best_of(job: TaskJob, results: Sequence[SeedResult]) -> SeedResult:
    """The result with the best score in ELECTRA's convention; of equal ones the first."""
    return max(results, key=lambda result: result.metrics[job.task.main])


def read_result(place: Path) -> SeedResult | None:
    """The result in a seed's folder; None where it is not done."""
    file = place / RESULT
    try:
        return SeedResult(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); remove {place} to train this seed again") from None


def _run_seed(
    job: TaskJob, seed: int, folder: Path, world: World, stop: StopSignal, others: Mapping[int, SeedResult]
) -> SeedResult | None:
    """Train one seed to its end and put its result down; None where it was told to stop.

    The model is exported where no seed that is done has a better one.
    """
    place = _place(folder, seed)
    objective, new = build_objective(job, seed, world.device)
    training = replace(job.training, seed=seed)
    with Monitor(place, training.max_steps, is_main=world.is_main) as monitor:
        found = find_checkpoint(place / "checkpoints", "auto")
        start_step = read_state(found)["step"] if found else 0
        LOG.info(f"{job.task.name}, seed {seed}: {training.max_steps:,} updates, {', '.join(new)} with new weights")
        watch = _Watch(job, objective, place, world, stop)
        watch.recall(start_step)
        run = RunSettings(
            place,
            training,
            world,
            monitor,
            stop,
            job.arithmetic,
            found,
            rate_scales=_rate_scales(job, objective),
            is_enough=watch.is_enough,
            settings={"seed": seed, "data": data_fingerprint(job)},
        )
        with one_line_errors(training, "none"):
            outcome = train(objective, _batches(job, seed, world), watch.evaluate, run)
        scored = None if outcome.is_stopped else watch.settle()
        if scored is None:
            return None
    result = seed_result(job, seed, outcome.step, scored, new)
    with main_first(world):
        if world.is_main:
            rivals = sorted([*others.values(), result], key=lambda rival: rival.seed)
            _close(job, objective, place, result, is_best=best_of(job, rivals) is result)
    return result


def _rate_scales(job: TaskJob, objective: TaskObjective) -> dict[str, float] | None:
    decay = job.config.tuning.layer_decay
    if decay == 1:
        return None
    scales = depth_scales([name for name, _ in objective.model.named_parameters()], job.shape, decay)
    return {f"model.{name}": scale for name, scale in scales.items()}


def _batches(job: TaskJob, seed: int, world: World) -> TaskBatches:
    if job.train is None:
        raise ValueError("a sweep without training rows has nothing to train on")
    return TaskBatches(
        job.train,
        job.training.per_device_train_batch_size,
        job.training.gradient_accumulation_steps,
        seed,
        job.training.max_steps,
        world.rank,
        world.world_size,
        pin_memory=world.device.type == "cuda",
    )


def seed_result(job: TaskJob, seed: int, step: int, scored: Scored, new: list[str]) -> SeedResult:
    """A scoring as it is put down."""
    values = {name: found.values.tolist() for name, found in scored.decoded.items() if found.values is not None}
    return SeedResult(
        seed,
        step,
        scored.metrics,
        values,
        {name: found.predictions for name, found in scored.decoded.items()},
        {name: found.probabilities for name, found in scored.decoded.items()},
        is_collapsed(job.measure, np.asarray(values[job.deciding_set])),
        new,
    )


def _close(job: TaskJob, objective: TaskObjective, place: Path, result: SeedResult, *, is_best: bool) -> None:
    """Export the model if it is the best so far, write the result, and remove what was needed to get there."""
    if is_best:
        export_best(job, objective, result.seed, place.parent, result.metrics)
    with writing(place):
        write_whole(place / RESULT, json.dumps(result._asdict()) + "\n")
    shutil.rmtree(place / "checkpoints", ignore_errors=True)
    (place / _BEST_WEIGHTS).unlink(missing_ok=True)


@dataclass
class _Watch:
    """Scores a seed as it is trained; where it may stop early, keeps its best weights."""

    job: TaskJob
    objective: TaskObjective
    place: Path
    world: World
    stop: StopSignal
    last: Scored | None = None
    scores: list[float] = field(default_factory=list)  # of the deciding metric, one an evaluation

    def recall(self, step: int) -> None:
        """Take up the scores from before the checkpoint of `step`; the evaluation at that step is made again."""
        name = f"{EVALUATION_PREFIX}{self.job.task.main}"
        with main_first(self.world):
            rows = read_metrics(self.place / "metrics.jsonl") if self.world.is_main else []
        mine = [row[name] for row in rows if row.get(name) is not None and row["step"] < step]
        self.scores = gather_objects(mine, self.world)[0]

    def evaluate(self, step: int) -> Metrics | None:
        """What the loop asks for at an evaluation."""
        self.last = score(self.job, self.objective, self.world, lambda: self.stop.requested)
        if self.last is None:
            return None
        current = self.last.metrics[self.job.task.main]
        if self._patience is not None and all(current > past for past in self.scores):
            with main_first(self.world):
                if self.world.is_main:
                    self._save()
        self.scores.append(current)
        return self.last.metrics

    @property
    def _patience(self) -> int | None:
        return self.job.config.tuning.early_stopping_patience

    def is_enough(self) -> bool:
        """Whether the last evaluations, as many as there is patience for, brought nothing better."""
        if self._patience is None:
            return False
        best = self.scores.index(max(self.scores))
        return len(self.scores) - 1 - best >= self._patience

    def _save(self) -> None:
        from safetensors.torch import save_file

        beside = self.place / f"{_BEST_WEIGHTS}.writing"
        with writing(self.place):
            save_file({name: tensor.contiguous() for name, tensor in self.objective.state_dict().items()}, str(beside))
            os.replace(beside, self.place / _BEST_WEIGHTS)

    def settle(self) -> Scored | None:
        """The scoring of the weights that are kept, which the objective holds afterwards; None if told to stop."""
        if self._patience is not None:
            from safetensors.torch import load_file

            with main_first(self.world):  # the others read what the main rank has written
                self.objective.load_state_dict(load_file(str(self.place / _BEST_WEIGHTS)))
            with inference(self.objective, self.job):
                self.last = score(self.job, self.objective, self.world, lambda: self.stop.requested)
        self.objective.eval()
        return self.last


def score_model(job: TaskJob, world: World, stop: StopSignal) -> SeedResult | None:
    """The result of a fine-tuned model that is not trained any further; None where it was told to stop."""
    if job.start.files is None:
        raise ValueError("only a fine-tuned model can be scored as it is")
    model, _ = load_task_model(job.start.files)
    objective = TaskObjective(model, is_regression=job.plan.is_regression).to(world.device)
    with inference(objective, job):
        scored = score(job, objective, world, lambda: stop.requested)
    if scored is None:
        return None
    return seed_result(job, job.config.training.seed, 0, scored, [])
