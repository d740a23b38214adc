"""The seeds of a sweep, trained by pretraining's loop; result.json, written last, closes a seed's folder."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors import torch as safetensors

from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.job import TaskJob, build_objective, data_fingerprint
from electra_albert.apps.finetune.predict import inference, load_objective, predict, score
from electra_albert.apps.finetune.results import SeedResult
from electra_albert.apps.machine import one_line_errors
from electra_albert.apps.run_folder import writing
from electra_albert.contracts import Metrics, RunResult
from electra_albert.files import replacing, write_text
from electra_albert.model.attention import stock_computes
from electra_albert.model.task_model import depth_scales
from electra_albert.tasks.kinds import TaskObjective
from electra_albert.tasks.rows import TaskBatches
from electra_albert.training.checkpoint import find_checkpoint, read_state
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.guards import StopSignal
from electra_albert.training.loop import Outcome
from electra_albert.training.monitor import EVALUATION_PREFIX, Monitor, read_metrics
from electra_albert.training.settings import RunSettings

LOG = logging.getLogger(__name__)

_BEST_WEIGHTS = "best.safetensors"


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
        if self.job.train is None:
            return
        first = self.job.config.training.seed
        asked = set(range(first, first + self.job.config.tuning.seeds))
        begun: set[int] = set()
        with main_first(self.world):
            if self.world.is_main:
                begun = {int(path.name[5:]) for path in self.folder.glob("seed-*") if path.name[5:].isdecimal()}
                found = {seed: files.read_result(self.folder / f"seed-{seed}") for seed in sorted(begun)}
                self.results = {seed: result for seed, result in found.items() if result is not None}
        begun, self.results = gather_objects((begun, self.results), self.world)[0]
        if begun - asked:
            LOG.info(f"seeds begun earlier belong to this sweep too: {', '.join(map(str, sorted(begun - asked)))}")
        for seed in sorted((asked | begun) - self.results.keys()):
            if not self.is_stopped:
                yield seed

    @contextmanager
    def open_seed(self, seed: int) -> Iterator[SeedRun]:
        """Everything that the training loop needs for one seed, resumed from its last checkpoint."""
        job, folder, world = self.job, self.folder / f"seed-{seed}", self.world
        objective, new = build_objective(job, seed, world.device)
        training = replace(job.training, seed=seed)
        with Monitor(folder, training.max_steps, is_main=world.is_main) as monitor, one_line_errors(training, "none"):
            found = find_checkpoint(folder / "checkpoints", "auto")
            LOG.info(f"{job.task.name}, seed {seed}: {training.max_steps:,} updates, {', '.join(new)} with new weights")
            scales, decay = None, job.config.tuning.layer_decay
            if decay != 1:
                names = [name for name, _ in objective.model.named_parameters()]
                scales = {f"model.{name}": scale for name, scale in depth_scales(names, job.shape, decay).items()}
            settings = {"seed": seed, "data": data_fingerprint(job)}
            shared = (training, world, monitor, self.stop, job.arithmetic, found)
            run = SeedRun(job, objective, new, RunSettings(folder, *shared, rate_scales=scales, settings=settings))
            run.read_scores(read_state(found)["step"] if found else 0)
            run.settings = replace(run.settings, is_enough=run.is_enough)
            yield run

    def close_seed(self, run: SeedRun, outcome: Outcome) -> None:
        """Write a seed's result, and export its model where no seed that is done has a better one."""
        result = None if outcome.is_stopped else run.final_result(outcome.step)
        if result is None:
            self.is_stopped = True
            return
        self.results[result.seed] = result
        with main_first(self.world):
            if self.world.is_main:
                folder = run.settings.folder
                if files.best_of(self.job, self.in_order()) is result:
                    files.export_best(self.job, run.objective, result, self.folder)
                with writing(folder):
                    write_text(folder / files.RESULT, json.dumps(result._asdict()) + "\n")
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
                (folder / _BEST_WEIGHTS).unlink(missing_ok=True)

    def in_order(self) -> list[SeedResult]:
        """The results by seed."""
        return [self.results[seed] for seed in sorted(self.results)]

    def finish(self) -> RunResult:
        """Score what was not trained, then write results and predictions on the main rank; the same on all ranks."""
        job, result = self.job, RunResult(self.folder, {}, 0, is_stopped=True)
        if job.train is None and job.evaluation:
            assert job.start.files is not None  # make_task_job refuses it
            objective, _ = load_objective(job, job.start.files, self.world.device)
            with inference(objective, job):
                scored = score(job, objective, self.world, self.stop)
            self.is_stopped = scored is None
            self.results = {} if scored is None else {scored.seed: scored}
        if not self.is_stopped:
            with main_first(self.world):
                if self.world.is_main:
                    result = self._write()
        result = gather_objects(result, self.world)[0]
        return result if self.world.is_main else result._replace(summary="")

    def _write(self) -> RunResult:
        """Write the results and the predictions asked for; the summary holds the table and what was written."""
        job, folder, done, lines = self.job, self.folder, self.in_order(), []
        result = RunResult(folder, {}, 0)
        if done:
            best = files.best_of(job, done)
            if job.train is not None:
                files.check_model(folder, best.seed)
            lines = [files.write_results(job, folder, done, best)]
            result = RunResult(folder, best.metrics, best.step)
        if job.config.tuning.predict is not None:
            written = predict(job, folder, self.world.device, self.stop)
            if written is None:
                return result._replace(is_stopped=True, summary="\n".join(lines))
            lines += [f"written: {file}" for file in written]
        elif not done:
            LOG.info(f"{job.task.name}: its data hold no labels, so nothing was scored; --predict test labels them")
        kind = "a stock folder" if stock_computes(job.shape) else "in this toolkit's own format"
        notes = {files.MODEL: f"/ (the best seed's, {kind})"}
        names = (files.RESULTS, files.TABLE, "predictions.tsv", "confusion.tsv", files.MODEL)
        there = [f"{name}{notes.get(name, '')}" for name in names if (folder / name).exists()]
        lines += [f"written to {folder}: {', '.join(there)}"] if there else []
        return result._replace(summary="\n".join(lines))


@dataclass
class SeedRun:
    """One seed while it is trained. Where it may stop early, its best weights are kept."""

    job: TaskJob
    objective: TaskObjective
    new_parts: list[str]
    settings: RunSettings
    last: SeedResult | None = None
    scores: list[float] = field(default_factory=list)  # of the deciding metric, one an evaluation

    @property
    def batches(self) -> TaskBatches:
        """This rank's share of the training rows."""
        assert self.job.train is not None
        training, world = self.settings.config, self.settings.world
        sizes = training.per_device_train_batch_size, training.gradient_accumulation_steps
        ends, pin_memory = (training.seed, training.max_steps), world.device.type == "cuda"
        return TaskBatches(self.job.train, *sizes, *ends, world.rank, world.world_size, pin_memory)

    @property
    def _patience(self) -> int | None:
        return self.job.config.tuning.early_stopping_patience

    def read_scores(self, step: int) -> None:
        """Read the scores from before the checkpoint of `step`; the evaluation at that step is made again."""
        name, world = f"{EVALUATION_PREFIX}{self.job.task.main}", self.settings.world
        rows = read_metrics(self.settings.folder / "metrics.jsonl") if world.is_main else []
        mine = [row[name] for row in rows if row.get(name) is not None and row["step"] < step]
        self.scores = gather_objects(mine, world)[0]

    def evaluate(self, step: int) -> Metrics | None:
        """Score the evaluation sets, as the loop asks for; None where it was stopped."""
        world, folder = self.settings.world, self.settings.folder
        self.last = score(self.job, self.objective, world, self.settings.stop)
        if self.last is None:
            return None
        current = self.last.metrics[self.job.task.main]
        if self._patience is not None and all(current > past for past in self.scores):
            weights = {name: tensor.contiguous() for name, tensor in self.objective.state_dict().items()}
            with main_first(world):
                if world.is_main:
                    with writing(folder), replacing(folder / _BEST_WEIGHTS) as file:
                        file.write(safetensors.save(weights))
        self.scores.append(current)
        return self.last.metrics

    def is_enough(self) -> bool:
        """Whether the last evaluations, as many as the patience, were no better than the best before."""
        if self._patience is None:
            return False
        return len(self.scores) - 1 - self.scores.index(max(self.scores)) >= self._patience

    def final_result(self, step: int) -> SeedResult | None:
        """The evaluation of the weights that are kept, which the objective holds afterwards; None if stopped."""
        if self._patience is not None:
            with main_first(self.settings.world):  # the others read what the main rank has written
                self.objective.load_state_dict(safetensors.load_file(self.settings.folder / _BEST_WEIGHTS))
            with inference(self.objective, self.job):
                self.last = score(self.job, self.objective, self.settings.world, self.settings.stop)
        if self.last is None:
            return None
        return self.last._replace(seed=self.settings.config.seed, step=step, new_parts=self.new_parts)
