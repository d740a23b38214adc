"""The seeds of one task, trained by pretraining's loop; result.json marks a finished seed."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from safetensors import torch as safetensors

from electra_albert.apps import machine
from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.job import TaskJob, build_objective, load_objective
from electra_albert.apps.finetune.predict import predict, score
from electra_albert.apps.finetune.results import SeedResult
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import LOG, Callbacks, CheckpointError, Metrics, RunResult
from electra_albert.files import read_json, recorded_damage, replacing, write_text, writing
from electra_albert.hub import load, save
from electra_albert.model.task_model import depth_scales
from electra_albert.tasks.encoding import TaskBatches
from electra_albert.tasks.kinds import TaskObjective
from electra_albert.training import checkpoint, monitor
from electra_albert.training.distributed import gather_objects, main_first
from electra_albert.training.graphs import CudaRecorder
from electra_albert.training.loop import Outcome
from electra_albert.training.signals import StopSignal
from electra_albert.training.step import RunSettings, TrainingStep

_BEST_WEIGHTS = "best.safetensors"
_RECORDED_LENGTHS = 32  # batches have a multiple of this length: each length is recorded by itself


@dataclass
class Sweep:
    """All seeds of one task, also those of earlier commands, and their results so far."""

    job: TaskJob
    stop: StopSignal
    results: dict[int, SeedResult] = field(default_factory=dict)
    is_stopped: bool = False
    training_step: TrainingStep | None = None  # of the seed in training

    def __post_init__(self) -> None:
        """Build the model of the first seed, or the one to evaluate, before anything is written.

        Raises UserError for weights that do not fit, and for CUDA graphs that are not possible.
        """
        job = self.job
        self.recorder = None  # of the training step, which all seeds share
        if job.is_recorded:
            self.recorder = CudaRecorder(job.world.device)
        self.objective, self.new_parts = build_objective(job, job.training.seed)

    def remaining_seeds(self) -> Iterator[int]:
        """Yield the seeds without a result, also of earlier commands, until one is stopped."""
        job = self.job
        if job.train is None:
            return
        first = job.training.seed
        requested = set(range(first, first + job.config.tuning.seeds))
        begun = set()
        with main_first(job.world):
            if job.world.is_main:
                for path in job.folder.glob("seed-*"):
                    name = path.name.removeprefix("seed-")
                    if name.isdecimal():
                        begun.add(int(name))
                for seed in sorted(begun):
                    folder = job.folder / f"seed-{seed}"
                    result = files.read_result(folder)
                    if result is not None:
                        self.results[seed] = result
                        _remove_training_files(folder)  # a kill may have interrupted it
        begun, self.results = gather_objects((begun, self.results), job.world)[0]
        earlier = ", ".join(map(str, sorted(begun - requested)))
        if earlier:
            LOG.info(f"seeds of earlier commands are part of this sweep: {earlier}")
        for seed in sorted((requested | begun) - self.results.keys()):
            if not self.is_stopped:
                yield seed

    @contextmanager
    def open_seed(self, seed: int, callbacks: Callbacks) -> Iterator["SeedRun"]:
        """Set up the training loop for one seed, resumed from its last checkpoint, if any."""
        job = self.job
        world = job.world
        folder = job.folder / f"seed-{seed}"
        training = replace(job.training, seed=seed)
        objective = self.objective
        if seed != job.training.seed:
            objective, _ = build_objective(job, seed)
        steps = training.max_steps
        log = monitor.Monitor(
            folder,
            steps,
            training.report_to,
            is_main=world.is_main,
            settings=asdict(training),
            callbacks=callbacks,
        )
        with log, machine.one_line_errors(training, "none"):
            newest = checkpoint.find_checkpoint(folder / "checkpoints", "auto")
            new = ", ".join(self.new_parts)
            LOG.info(f"{job.task.name}, seed {seed}: {steps:,} updates, new weights in {new}")
            settings = RunSettings(
                folder,
                training,
                world,
                log,
                self.stop,
                job.arithmetic,
                resume_from=newest,
                lr_multipliers=_learning_rates(job, objective),
                settings={"seed": seed, "data": job.data_fingerprint},
                record=self.recorder,
            )
            if self.training_step is None:
                self.training_step = TrainingStep(objective, settings)
            else:
                self.training_step.restart(objective.state_dict(), settings)
                objective = self.training_step.module
            scores = gather_objects(_scores_before(job, folder, newest), world)[0]
            run = SeedRun(job, objective, self._batches(training), settings, scores)
            run.settings = replace(settings, should_stop=run.should_stop)
            yield run

    def _batches(self, training: TrainingConfig) -> TaskBatches:
        """This rank's share of the training data."""
        world = self.job.world
        assert self.job.train is not None
        return TaskBatches(
            self.job.train,
            training.per_device_train_batch_size,
            training.gradient_accumulation_steps,
            training.seed,
            training.max_steps,
            world.rank,
            world.world_size,
            pin_memory=world.device.type == "cuda",
            multiple=1 if self.recorder is None else _RECORDED_LENGTHS,
        )

    def close_seed(self, run: "SeedRun", outcome: Outcome) -> None:
        """Write a seed's result, and export its model if no finished seed has a better score."""
        result = None if outcome.is_stopped else run.final_result()
        if result is None:
            self.is_stopped = True
            return
        seed = run.settings.config.seed
        result = result._replace(seed=seed, step=outcome.step, new_parts=self.new_parts)
        self.results[seed] = result
        self.results = dict(sorted(self.results.items()))
        folder = run.settings.folder
        with main_first(self.job.world):
            if self.job.world.is_main:
                if files.best_of(self.job, self.results.values()) is result:
                    files.export_best(self.job, run.objective, result)
                with writing(folder):
                    write_text(folder / files.RESULT, json.dumps(result._asdict()) + "\n")
                _remove_training_files(folder)

    def finish(self) -> RunResult:
        """Evaluate if nothing was trained, then write results and predictions on the main rank.

        All ranks return the same result; only that of the main rank has a summary.
        """
        job = self.job
        if job.train is None and job.evaluation:
            result = score(job, self.objective, self.stop)
            self.is_stopped = result is None
            if result is not None:
                self.results[result.seed] = result
        main_result: RunResult = RunResult(job.folder, {}, 0, is_stopped=True)
        if not self.is_stopped:
            with main_first(job.world):
                if job.world.is_main:
                    main_result = self._write()
        main_result = gather_objects(main_result, job.world)[0]
        if not job.world.is_main:
            main_result = replace(main_result, summary="")
        return main_result

    def _write(self) -> RunResult:
        """Write results and predictions; the summary has the table and the files written."""
        job = self.job
        tuning = job.config.tuning
        done = [*self.results.values()]
        result = RunResult(job.folder, {}, 0)
        lines = []
        if done:
            best = files.best_of(job, done)
            if job.train is not None:
                self._check_model(best.seed)
            lines.append(files.write_results(job, done, best))
            result = RunResult(job.folder, best.metrics, best.step)
        if tuning.predict is not None:
            objective = self.objective
            if job.train is not None:
                objective = load_objective(job, load.locate(job.folder / files.MODEL))
            written = predict(job, objective, self.stop)
            if written is None:
                return replace(result, is_stopped=True, summary="\n".join(lines))
            lines += written
        elif not done:
            LOG.info(
                f"{job.task.name}: no labels, so no scores; "
                "give --predict test to write predictions"
            )
        lines += files.describe_files(job)
        if tuning.push_to_hub is not None and done:
            message = f"{job.task.name}, seed {best.seed}"
            save.upload(job.folder / files.MODEL, tuning.push_to_hub, message)
        return replace(result, summary="\n".join(lines))

    def _check_model(self, best_seed: int) -> None:
        """Raise CheckpointError unless the exported model is that of the best seed, unchanged."""
        folder = self.job.folder
        model = folder / files.MODEL
        seed = read_json(model / load.TASK_FILE).get("seed")
        if seed == best_seed:
            damage = recorded_damage(folder, files.MODEL_FILES)
        elif seed is None:
            damage = f"{model} is missing or damaged"
        else:
            damage = f"{model} is from seed {seed}"
        if damage:
            advice = f"remove {folder / f'seed-{best_seed}'} to train it again"
            raise CheckpointError(f"{damage}, the best seed is {best_seed}; {advice}")


def _scores_before(job: TaskJob, folder: Path, newest: Path | None) -> list[float]:
    """The main metric of each evaluation before a checkpoint's, which is repeated."""
    if newest is None or not job.world.is_main:
        return []
    step = checkpoint.read_state(newest)["step"]
    name = f"{monitor.EVALUATION_PREFIX}{job.task.main}"
    return [
        row[name]
        for row in monitor.read_metrics(folder / "metrics.jsonl")
        if row["step"] < step and row.get(name) is not None
    ]


def _learning_rates(job: TaskJob, objective: TaskObjective) -> dict[str, float] | None:
    """Multiples of the learning rate by the names of the parameters."""
    decay = job.config.tuning.layer_decay
    if decay == 1:
        return None
    names = [name for name, _ in objective.model.named_parameters()]
    scales = depth_scales(names, job.shape, decay)
    return {f"model.{name}": scale for name, scale in scales.items()}


def _remove_training_files(folder: Path) -> None:
    """Delete the files in a finished seed's folder that only its training needs."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / _BEST_WEIGHTS).unlink(missing_ok=True)


@dataclass
class SeedRun:
    """One seed during training. With early stopping, its best weights are kept."""

    job: TaskJob
    objective: TaskObjective
    batches: TaskBatches
    settings: RunSettings
    scores: list[float]  # main metric, one per evaluation
    last: SeedResult | None = None

    @property
    def patience(self) -> float:
        """Evaluations without a better score before it stops; inf: no early stopping."""
        return self.job.config.tuning.early_stopping_patience or math.inf

    def evaluate(self, step: int) -> Metrics | None:
        """Evaluate for the training loop; None if it was stopped."""
        folder = self.settings.folder
        self.last = score(self.job, self.objective, self.settings.stop)
        if self.last is None:
            return None
        current = self.last.metrics[self.job.task.main]
        is_best = all(current > past for past in self.scores)
        if is_best and self.patience < math.inf:
            state = self.objective.state_dict()
            weights = {name: tensor.contiguous() for name, tensor in state.items()}
            with main_first(self.job.world):
                if self.job.world.is_main:
                    with writing(folder), replacing(folder / _BEST_WEIGHTS) as file:
                        file.write(safetensors.save(weights))
        self.scores.append(current)
        return self.last.metrics

    def should_stop(self) -> bool:
        """Whether none of the last `patience` evaluations improved on the best score."""
        best = self.scores.index(max(self.scores))
        later = len(self.scores) - 1 - best
        return later >= self.patience

    def final_result(self) -> SeedResult | None:
        """The evaluation of the final weights; None if stopped.

        With early stopping the best weights, which are loaded.
        """
        if self.patience < math.inf:
            with main_first(self.job.world):  # the other ranks read what the main rank has written
                best = safetensors.load_file(self.settings.folder / _BEST_WEIGHTS)
                self.objective.load_state_dict(best)
            self.last = score(self.job, self.objective, self.settings.stop)
        return self.last
