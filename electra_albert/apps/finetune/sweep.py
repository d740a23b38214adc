"""The seeds of a sweep, trained by pretraining's loop; result.json, written last, closes a seed's folder."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from electra_albert.apps.finetune.job import TaskJob, build_objective, data_fingerprint
from electra_albert.apps.finetune.results import RESULT, SeedResult, best_of, export_best, read_result
from electra_albert.apps.machine import one_line_errors
from electra_albert.apps.run_folder import write_whole, writing
from electra_albert.contracts import Metrics
from electra_albert.hub.load import load_task_model
from electra_albert.model.task_model import depth_scales
from electra_albert.tasks.encoding import Decoded
from electra_albert.tasks.kinds import KINDS, TaskObjective
from electra_albert.tasks.metrics import MEASURES, is_collapsed
from electra_albert.tasks.rows import Rows, TaskBatches, eval_batches, outputs_by_unit
from electra_albert.training.checkpoint import find_checkpoint, read_state
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.guards import StopSignal
from electra_albert.training.loop import Outcome
from electra_albert.training.monitor import EVALUATION_PREFIX, Monitor, read_metrics
from electra_albert.training.step import RunSettings, autocast

LOG = logging.getLogger(__name__)

_BEST_WEIGHTS = "best.safetensors"


# One evaluation: `loss` and the metrics, those of other sets than the deciding one as set_name; predictions by set.
Scored = tuple[Metrics, dict[str, Decoded]]


def score(job: TaskJob, objective: TaskObjective, world: World, stop: StopSignal) -> Scored | None:
    """Score all evaluation sets, the same result on every rank; None where one process alone was stopped."""
    metrics: Metrics = {}
    decoded: dict[str, Decoded] = {}
    for name, rows in job.evaluation.items():
        found = model_outputs(rows, objective, job.training.per_device_eval_batch_size, world, stop)
        if found is None:
            return None
        examples = job.data.evaluation[name]
        decoded[name] = KINDS[job.task.kind].decode(found[0], rows, examples, job.data.labels, job.plan)
        values = decoded[name].values
        if values is None:
            raise ValueError(f"evaluation set {name} has no labels to score by")
        prefix = "" if name == job.deciding_set else f"{name}_"
        metrics |= {f"{prefix}{metric}": v for metric, v in {"loss": found[1], **MEASURES[job.measure](values)}.items()}
    return metrics, decoded


def model_outputs(
    rows: Rows, objective: TaskObjective, batch_size: int, world: World, stop: StopSignal
) -> tuple[list[np.ndarray], float | None] | None:
    """An array of outputs a unit, cut to its row, and the mean loss (None without labels); None if stopped."""
    device = next(objective.parameters()).device
    mine: dict[int, np.ndarray] = {}
    loss, count = 0.0, 0
    for on_host in eval_batches(rows, max(1, batch_size // rows.rows_per_unit), world.rank, world.world_size):
        if world.world_size == 1 and stop.requested:
            return None
        units, batch = on_host.example_id[:: rows.rows_per_unit].numpy(), on_host.to(device)
        outputs = objective.outputs(batch)
        if batch.labels is not None:
            term = objective.terms(outputs, batch)[next(iter(objective.weights))]
            loss, count = loss + float(term.sum), count + int(term.count)
        mine |= dict(zip(units.tolist(), outputs_by_unit(outputs[0].float().cpu().numpy(), units, rows), strict=True))
    gathered = gather_objects((mine, loss, count), world)
    by_unit = {unit: output for part, _, _ in gathered for unit, output in part.items()}
    total, counted = sum(part[1] for part in gathered), sum(part[2] for part in gathered)
    return [by_unit[unit] for unit in range(rows.unit_count)], total / counted if counted else None


@contextmanager
def inference(objective: TaskObjective, job: TaskJob) -> Iterator[None]:
    """Without gradients and dropout, in the arithmetic of the training. UsageError where a GPU's memory is full."""
    was_training, device = objective.training, next(objective.parameters()).device
    objective.eval()
    with one_line_errors(job.training, "none"), torch.no_grad(), autocast(device, job.arithmetic):
        yield
    objective.train(was_training)


@dataclass
class Sweep:
    """The seeds of one task in a folder, those begun by an earlier command among them, and their results so far."""

    job: TaskJob
    folder: Path
    world: World
    stop: StopSignal
    results: dict[int, SeedResult] = field(default_factory=dict)
    is_stopped: bool = False

    def seeds_left(self) -> Iterator[int]:
        """The seeds without a result, until one is stopped; results of earlier commands are read."""
        first = self.job.config.training.seed
        asked = set(range(first, first + self.job.config.tuning.seeds))
        begun = {int(path.name[5:]) for path in self.folder.glob("seed-*") if path.name[5:].isdecimal()}
        begun = gather_objects(begun, self.world)[0]
        if begun - asked:
            LOG.info(f"seeds begun earlier belong to this sweep too: {', '.join(map(str, sorted(begun - asked)))}")
        with main_first(self.world):
            if self.world.is_main:
                found = {seed: read_result(self.folder / f"seed-{seed}") for seed in sorted(begun)}
                self.results = {seed: result for seed, result in found.items() if result is not None}
        self.results = gather_objects(self.results, self.world)[0]
        for seed in sorted((asked | begun) - self.results.keys()):
            if not self.is_stopped:
                yield seed

    @contextmanager
    def open_seed(self, seed: int) -> Iterator[Trial]:
        """Everything that the training loop needs for one seed, resumed where it was left."""
        job, folder, world = self.job, self.folder / f"seed-{seed}", self.world
        objective, new = build_objective(job, seed, world.device)
        training = replace(job.training, seed=seed)
        with Monitor(folder, training.max_steps, is_main=world.is_main) as monitor:
            found = find_checkpoint(folder / "checkpoints", "auto")
            LOG.info(f"{job.task.name}, seed {seed}: {training.max_steps:,} updates, {', '.join(new)} with new weights")
            scales, decay = None, job.config.tuning.layer_decay
            if decay != 1:
                names = [name for name, _ in objective.model.named_parameters()]
                scales = {f"model.{name}": scale for name, scale in depth_scales(names, job.shape, decay).items()}
            settings = {"seed": seed, "data": data_fingerprint(job)}
            shared = (training, world, monitor, self.stop, job.arithmetic, found)
            run = RunSettings(folder, *shared, rate_scales=scales, settings=settings)
            trial = Trial(job, objective, new, run)
            trial.recall(read_state(found)["step"] if found else 0)
            trial.run = replace(run, is_enough=trial.is_enough)
            with one_line_errors(training, "none"):
                yield trial

    def close_seed(self, trial: Trial, outcome: Outcome) -> None:
        """Write a seed's result, and export its model where no seed that is done has a better one."""
        scored = None if outcome.is_stopped else trial.settle()
        if scored is None:
            self.is_stopped = True
            return
        result = seed_result(self.job, trial.run.config.seed, outcome.step, scored, trial.new_parts)
        self.results[result.seed] = result
        with main_first(self.world):
            if self.world.is_main:
                folder = trial.run.folder
                if best_of(self.job, self.in_order()) is result:
                    export_best(self.job, trial.objective, result.seed, self.folder, result.metrics)
                with writing(folder):
                    write_whole(folder / RESULT, json.dumps(result._asdict()) + "\n")
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
                (folder / _BEST_WEIGHTS).unlink(missing_ok=True)

    def in_order(self) -> list[SeedResult]:
        """The results by seed."""
        return [self.results[seed] for seed in sorted(self.results)]

    def score_start(self) -> None:
        """Score a fine-tuned model that is not trained any further."""
        job = self.job
        assert job.start.files is not None  # make_task_job refuses it
        model, _ = load_task_model(job.start.files)
        objective = TaskObjective(model, is_regression=job.plan.is_regression).to(self.world.device)
        with inference(objective, job):
            scored = score(job, objective, self.world, self.stop)
        self.is_stopped = scored is None
        if scored is not None:
            seed = job.config.training.seed
            self.results[seed] = seed_result(job, seed, 0, scored, [])


def seed_result(job: TaskJob, seed: int, step: int, scored: Scored, new: list[str]) -> SeedResult:
    """An evaluation as it is written to result.json."""
    metrics, decoded = scored
    values = {name: found.values.tolist() for name, found in decoded.items() if found.values is not None}
    predictions = {name: found.predictions for name, found in decoded.items()}
    probabilities = {name: found.probabilities for name, found in decoded.items()}
    collapsed = is_collapsed(job.measure, np.asarray(values[job.deciding_set]))
    return SeedResult(seed, step, metrics, values, predictions, probabilities, collapsed, new)


@dataclass
class Trial:
    """One seed while it is trained. Where it may stop early, its best weights are kept."""

    job: TaskJob
    objective: TaskObjective
    new_parts: list[str]
    run: RunSettings
    last: Scored | None = None
    scores: list[float] = field(default_factory=list)  # of the deciding metric, one an evaluation

    @property
    def batches(self) -> TaskBatches:
        """This rank's share of the training rows."""
        assert self.job.train is not None
        training, world = self.run.config, self.run.world
        sizes = training.per_device_train_batch_size, training.gradient_accumulation_steps
        ends, pin_memory = (training.seed, training.max_steps), world.device.type == "cuda"
        return TaskBatches(self.job.train, *sizes, *ends, world.rank, world.world_size, pin_memory)

    @property
    def _patience(self) -> int | None:
        return self.job.config.tuning.early_stopping_patience

    def recall(self, step: int) -> None:
        """Read the scores from before the checkpoint of `step`; the evaluation at that step is made again."""
        name, world = f"{EVALUATION_PREFIX}{self.job.task.main}", self.run.world
        with main_first(world):
            rows = read_metrics(self.run.folder / "metrics.jsonl") if world.is_main else []
        mine = [row[name] for row in rows if row.get(name) is not None and row["step"] < step]
        self.scores = gather_objects(mine, world)[0]

    def evaluate(self, step: int) -> Metrics | None:
        """Score the evaluation sets, as the loop asks for; None where it was stopped."""
        self.last = score(self.job, self.objective, self.run.world, self.run.stop)
        if self.last is None:
            return None
        current = self.last[0][self.job.task.main]
        if self._patience is not None and all(current > past for past in self.scores):
            with main_first(self.run.world):
                if self.run.world.is_main:
                    self._save()
        self.scores.append(current)
        return self.last[0]

    def is_enough(self) -> bool:
        """Whether the last evaluations, as many as the patience, were no better than the best before."""
        if self._patience is None:
            return False
        return len(self.scores) - 1 - self.scores.index(max(self.scores)) >= self._patience

    def _save(self) -> None:
        from safetensors.torch import save_file

        file = self.run.folder / _BEST_WEIGHTS
        temporary = file.with_name(f"{_BEST_WEIGHTS}.writing")
        with writing(self.run.folder):
            weights = {name: tensor.contiguous() for name, tensor in self.objective.state_dict().items()}
            save_file(weights, str(temporary))
            os.replace(temporary, file)

    def settle(self) -> Scored | None:
        """The evaluation of the weights that are kept, which the objective holds afterwards; None if stopped."""
        if self._patience is not None:
            from safetensors.torch import load_file

            with main_first(self.run.world):  # the others read what the main rank has written
                self.objective.load_state_dict(load_file(str(self.run.folder / _BEST_WEIGHTS)))
            with inference(self.objective, self.job):
                self.last = score(self.job, self.objective, self.run.world, self.run.stop)
        self.objective.eval()
        return self.last
