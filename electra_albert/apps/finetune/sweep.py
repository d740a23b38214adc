"""Sweeps over the seeds of tasks with pretraining's training loop; result.json, written last, marks a finished seed."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from safetensors import torch as safetensors

from electra_albert.apps import machine, run_folder
from electra_albert.apps.finetune import job as jobs
from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.job import TaskJob
from electra_albert.apps.finetune.predict import predict, score
from electra_albert.contracts import LOG, CheckpointError, Metrics, RunResult
from electra_albert.files import read_json, recorded_damage, replacing, write_text
from electra_albert.hub import load, save
from electra_albert.model.task_model import depth_scales
from electra_albert.tasks import encoding, kinds
from electra_albert.training import checkpoint, guards, loop, monitor
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.graphs import CudaRecorder, Recorder
from electra_albert.training.step import RunSettings, TrainingStep

_BEST_WEIGHTS = "best.safetensors"
_RECORDED_LENGTHS = 32  # batches have a multiple of this length: each length is recorded by itself


@dataclass
class Sweep:
    """All seeds of one task in a folder, also those of earlier commands, and their results so far."""

    job: TaskJob
    world: World
    stop: guards.StopSignal
    results: dict[int, files.SeedResult] = field(default_factory=dict)
    is_stopped: bool = False
    training_step: TrainingStep | None = None  # of the seed in training

    def __post_init__(self) -> None:
        """Build the model of the first seed, or the one to evaluate, before anything is written.

        Weights that do not fit are refused by then.
        """
        seed = self.job.training.seed
        self._built = {seed: jobs.build_objective(self.job, seed, self.world.device)}

    @cached_property
    def recorder(self) -> Recorder | None:
        """Records the training step, which all seeds share, in CUDA graphs."""
        return CudaRecorder(self.world.device) if self.job.is_recorded else None

    def remaining_seeds(self) -> Iterator[int]:
        """Yield the seeds without a result until one is stopped; reads the results of earlier commands."""
        if self.job.train is None:
            return
        first, begun = self.job.config.training.seed, set[int]()
        asked = set(range(first, first + self.job.config.tuning.seeds))
        with main_first(self.world):
            if self.world.is_main:
                begun = {int(path.name[5:]) for path in self.job.folder.glob("seed-*") if path.name[5:].isdecimal()}
                found = {seed: files.read_result(self.job.folder / f"seed-{seed}") for seed in sorted(begun)}
                self.results = {seed: result for seed, result in found.items() if result is not None}
                for seed in self.results:  # a kill may have interrupted it
                    _remove_training_files(self.job.folder / f"seed-{seed}")
        begun, self.results = gather_objects((begun, self.results), self.world)[0]
        if begun - asked:
            LOG.info(f"seeds of earlier commands are part of this sweep: {', '.join(map(str, sorted(begun - asked)))}")
        for seed in sorted((asked | begun) - self.results.keys()):
            if not self.is_stopped:
                yield seed

    @contextmanager
    def open_seed(self, seed: int) -> Iterator["SeedRun"]:
        """Set up the training loop for one seed, resumed from its last checkpoint if there is one."""
        job, folder, world = self.job, self.job.folder / f"seed-{seed}", self.world
        if seed not in self._built:
            self._built = {seed: jobs.build_objective(job, seed, world.device)}
        objective, new = self._built.pop(seed)
        training = replace(job.training, seed=seed)
        outputs = folder, training.max_steps, training.report_to
        watch = monitor.Monitor(*outputs, is_main=world.is_main, settings=asdict(training))
        with watch, machine.one_line_errors(training, "none"):
            found = checkpoint.find_checkpoint(folder / "checkpoints", "auto")
            LOG.info(f"{job.task.name}, seed {seed}: {training.max_steps:,} updates, new weights in {', '.join(new)}")
            assert job.train is not None
            step = checkpoint.read_state(found)["step"] if found else 0
            name = f"{monitor.EVALUATION_PREFIX}{job.task.main}"
            log = monitor.read_metrics(folder / "metrics.jsonl") if world.is_main else []
            # The evaluation at the step of the checkpoint is repeated.
            scores = [row[name] for row in log if row.get(name) is not None and row["step"] < step]
            sizes = training.per_device_train_batch_size, training.gradient_accumulation_steps
            ends, pin_memory = (seed, training.max_steps), world.device.type == "cuda"
            multiple = 1 if self.recorder is None else _RECORDED_LENGTHS
            batches = encoding.TaskBatches(job.train, *sizes, *ends, world.rank, world.world_size, pin_memory, multiple)
            scales, tuning = None, job.config.tuning
            if tuning.layer_decay != 1:
                names = [name for name, _ in objective.model.named_parameters()]
                by_name = depth_scales(names, job.shape, tuning.layer_decay)
                scales = {f"model.{name}": scale for name, scale in by_name.items()}
            recorded = {"seed": seed, "data": job.data_fingerprint}
            shared = (training, world, watch, self.stop, job.arithmetic, found)
            settings = RunSettings(folder, *shared, lr_multipliers=scales, settings=recorded, record=self.recorder)
            if self.training_step is None:
                self.training_step = TrainingStep(objective, settings)
            else:
                self.training_step.restart(objective.state_dict(), settings)
                objective = self.training_step.module
            scores, patience = gather_objects(scores, world)[0], tuning.early_stopping_patience or math.inf
            run = SeedRun(job, objective, batches, settings, new, scores, patience)
            run.settings = replace(settings, should_stop=run.should_stop)
            yield run

    def close_seed(self, run: "SeedRun", outcome: loop.Outcome) -> None:
        """Write a seed's result, and export its model if no finished seed has a better score."""
        result = None if outcome.is_stopped else run.final_result(outcome.step)
        if result is None:
            self.is_stopped = True
            return
        self.results = dict(sorted({**self.results, result.seed: result}.items()))
        with main_first(self.world):
            if self.world.is_main:
                folder = run.settings.folder
                if files.best_of(self.job, self.results.values()) is result:
                    files.export_best(self.job, run.objective, result)
                with run_folder.writing(folder):
                    write_text(folder / files.RESULT, json.dumps(result._asdict()) + "\n")
                _remove_training_files(folder)

    def finish(self) -> RunResult:
        """Evaluate if nothing was trained, then write results and predictions on the main rank; same result on all."""
        job, result = self.job, RunResult(self.job.folder, {}, 0, is_stopped=True)
        if job.train is None and job.evaluation:
            scored = score(job, self._best_model(), self.world, self.stop)
            self.is_stopped, self.results = scored is None, {scored.seed: scored} if scored else {}
        if not self.is_stopped:
            with main_first(self.world):
                if self.world.is_main:
                    result = self._write()
        main_result: RunResult = gather_objects(result, self.world)[0]
        return main_result if self.world.is_main else main_result._replace(summary="")

    def _best_model(self) -> kinds.TaskObjective:
        """The exported model of the best seed, or the one to evaluate."""
        if self.job.train is None:
            return self._built[self.job.training.seed][0]
        model = load.locate(self.job.folder / files.MODEL)
        return jobs.load_objective(self.job, model, self.world.device)

    def _write(self) -> RunResult:
        """Write results and predictions; the summary has the table and the files written."""
        job, folder, done = self.job, self.job.folder, [*self.results.values()]
        result, lines = RunResult(folder, {}, 0), list[str]()
        if done:
            best, model = files.best_of(job, done), folder / files.MODEL
            found = read_json(model / load.TASK_FILE).get("seed")
            state = "is missing or damaged" if found is None else f"is from seed {found}"
            damage = f"{model} {state}" if found != best.seed else recorded_damage(folder, files.MODEL_FILES)
            if job.train is not None and damage:
                advice = f"the best seed is {best.seed}; remove {folder / f'seed-{best.seed}'} to train it again"
                raise CheckpointError(f"{damage}, {advice}")
            lines = [files.write_results(job, done, best)]
            result = RunResult(folder, best.metrics, best.step)
        if job.config.tuning.predict is not None:
            if (written := predict(job, self._best_model(), self.world, self.stop)) is None:
                return result._replace(is_stopped=True, summary="\n".join(lines))
            lines += [f"written: {file}" for file in written]
        elif not done:
            LOG.info(f"{job.task.name}: no labels, so no scores; give --predict test to write predictions")
        kind = "stock Hugging Face folder" if job.shape.is_stock else "this toolkit's own format"
        notes = {files.MODEL: f"/ (best seed, {kind})"}
        names = (files.RESULTS, files.TABLE, "predictions.tsv", "confusion.tsv", files.MODEL)
        there = [f"{name}{notes.get(name, '')}" for name in names if (folder / name).exists()]
        lines += [f"written to {folder}: {', '.join(there)}"] if there else []
        if (repository := job.config.tuning.push_to_hub) is not None and done:
            save.upload(folder / files.MODEL, repository, f"{job.task.name}, seed {files.best_of(job, done).seed}")
        return result._replace(summary="\n".join(lines))


def _remove_training_files(folder: Path) -> None:
    """Delete the files in a finished seed's folder that only its training needs."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / _BEST_WEIGHTS).unlink(missing_ok=True)


@dataclass
class SeedRun:
    """One seed during training. With early stopping, its best weights are kept."""

    job: TaskJob
    objective: kinds.TaskObjective
    batches: encoding.TaskBatches  # this rank's share of the training data
    settings: RunSettings
    new_parts: list[str]
    scores: list[float]  # main metric, one per evaluation
    patience: float  # evaluations without a better score; inf: no early stopping
    last: files.SeedResult | None = None

    def evaluate(self, step: int) -> Metrics | None:
        """Evaluate for the training loop; None if it was stopped."""
        world, folder = self.settings.world, self.settings.folder
        self.last = score(self.job, self.objective, world, self.settings.stop)
        if self.last is None:
            return None
        current = self.last.metrics[self.job.task.main]
        if self.patience < math.inf and all(current > past for past in self.scores):
            weights = {name: tensor.contiguous() for name, tensor in self.objective.state_dict().items()}
            with main_first(world):
                if world.is_main:
                    with run_folder.writing(folder), replacing(folder / _BEST_WEIGHTS) as file:
                        file.write(safetensors.save(weights))
        self.scores.append(current)
        return self.last.metrics

    def should_stop(self) -> bool:
        """Whether none of the last `patience` evaluations improved on the best score."""
        since_best = len(self.scores) - 1 - self.scores.index(max(self.scores)) if self.patience < math.inf else 0
        return since_best >= self.patience

    def final_result(self, step: int) -> files.SeedResult | None:
        """The evaluation of the final weights, with early stopping the best ones, which are loaded; None if stopped."""
        if self.patience < math.inf:
            with main_first(self.settings.world):  # the other ranks read what the main rank has written
                self.objective.load_state_dict(safetensors.load_file(self.settings.folder / _BEST_WEIGHTS))
            self.last = score(self.job, self.objective, self.settings.world, self.settings.stop)
        seed = self.settings.config.seed
        return self.last and self.last._replace(seed=seed, step=step, new_parts=self.new_parts)
