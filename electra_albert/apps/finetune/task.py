"""One task from its data to its results: read, check, train every seed or score, write, predict."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from electra_albert.apps.command_line import check_can_write, last_output
from electra_albert.apps.finetune.files import (
    CONFUSION,
    MODEL,
    PREDICTED,
    PREDICTIONS,
    RESULTS,
    TABLE,
    check_is_ours,
    check_is_table,
    check_model,
    open_folder,
    summarize_sweep,
    write_results,
    writing,
)
from electra_albert.apps.finetune.job import TaskJob, build_objective, data_fingerprint, make_task_job
from electra_albert.apps.finetune.predict import predict
from electra_albert.apps.finetune.start import Start
from electra_albert.apps.finetune.sweep import SeedResult, best_of, run_seeds, score_model
from electra_albert.apps.run_folder import ENVIRONMENT
from electra_albert.contracts import STOPPED_BY_SIGNAL
from electra_albert.finetuning_config import FinetuneConfig
from electra_albert.model.attention import stock_computes
from electra_albert.tasks.task import Task
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.guards import RunLock, StopSignal
from electra_albert.training.run_log import RunLog

LOG = logging.getLogger(__name__)


class Session(NamedTuple):
    """What all tasks of one command have in common."""

    argv: Sequence[str]
    world: World
    stop: StopSignal
    log: RunLog


def run_task(task: Task, config: FinetuneConfig, start: Start, folder: Path, session: Session) -> int:
    """Fine-tune on one task, or score a fine-tuned model on it; returns the exit code."""
    check_can_write(folder)
    check_is_ours(folder)
    job = make_task_job(task, config, start, session.world)
    for line in _plan_lines(job, session.world):
        LOG.info(line)
    if job.train is not None:
        build_objective(job, config.training.seed, session.world.device)  # a model that does not fit is refused here
    if config.tuning.dry_run:
        return 0
    with ExitStack() as stack:
        with main_first(session.world):
            if session.world.is_main:
                stack.enter_context(RunLock(folder))
                changes = open_folder(job, folder, session.argv, _found(job, session.world))
                session.log.open(folder)
                for change in changes:
                    LOG.info(f"changed since the sweep began: {change}")
        results = _results(job, folder, session)
        is_stopped = results is None
        if results is not None:
            with main_first(session.world):
                if session.world.is_main:
                    with last_output():
                        is_stopped = not _finish(job, folder, results, session)
            is_stopped = gather_objects(is_stopped, session.world)[0]
    if is_stopped:
        LOG.info(f"stopped; run the same command to go on with {folder}")
        return STOPPED_BY_SIGNAL
    return 0


def label_text(task: Task, config: FinetuneConfig, start: Start, session: Session) -> int:
    """Label the file of --predict with a fine-tuned model, without labelled data; returns the exit code.

    The table goes into --output_dir, else beside the model: into the folder of its sweep, or the model's own.
    """
    assert start.files is not None
    model = start.files.config.parent
    beside = model.parent if model.name == MODEL and (model.parent / ENVIRONMENT).is_file() else model
    folder = Path(config.tuning.output_dir or beside)
    check_can_write(folder)
    check_is_table(folder / PREDICTED)
    if (folder / PREDICTED).exists():
        LOG.info(f"notice: {folder / PREDICTED} is replaced; --output_dir keeps another one apart")
    job = make_task_job(task, config, start, session.world)
    count, labels = sum(map(len, job.to_label.values())), ", ".join(job.data.labels[:5])
    LOG.info(
        f"{job.task.name}: {count:,} examples of {config.tuning.predict} to label by {model}"
        f"{' with labels ' * bool(labels)}{labels}{', ...' * (len(job.data.labels) > 5)}, in sequences of at most "
        f"{job.plan.max_seq_length} tokens"
    )
    if config.tuning.dry_run:
        return 0
    written: list[Path] | None = []
    with main_first(session.world):
        if session.world.is_main:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            written = predict(job, folder, session.world.device, session.stop)
            for file in written or ():
                print(f"written: {file}")
    if None in gather_objects(written, session.world):
        LOG.info("stopped; run the same command again")
        return STOPPED_BY_SIGNAL
    return 0


def _found(job: TaskJob, world: World) -> dict[str, object]:
    """What a sweep is compared by beside its options."""
    training = job.training
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps * world.world_size
    return {"data": data_fingerprint(job), "global_batch_size": batch}


def _results(job: TaskJob, folder: Path, session: Session) -> list[SeedResult] | None:
    """What every seed came to, or the model as it is; None where it was told to stop."""
    if job.train is not None:
        return run_seeds(job, folder, session.world, session.stop)
    if not job.evaluation:
        return []
    scored = score_model(job, session.world, session.stop)
    return None if scored is None else [scored]


def _plan_lines(job: TaskJob, world: World) -> list[str]:
    sizes = ", ".join(f"{len(examples):,} {name}" for name, examples in job.data.evaluation.items()) or "none"
    if job.train is None:
        return [
            f"{job.task.name}: {sizes} to score, with a model that is not trained any further, in rows of at most "
            f"{job.plan.max_seq_length} tokens, as it was trained"
        ]
    training, tuning = job.training, job.config.tuning
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps * world.world_size
    lines = [
        f"{job.task.name}: {len(job.data.train):,} examples to train on, {sizes} to score",
        f"{job.task.name}: {tuning.seeds} seed(s) of {training.max_steps:,} updates of {batch} examples, learning rate "
        f"{training.learning_rate:g}, layer decay {tuning.layer_decay:g}, {job.head.style} head, rows of at most "
        f"{job.plan.max_seq_length} tokens, on {world.world_size} x {world.device.type} in {job.arithmetic}",
    ]
    if training.warmup_steps >= training.max_steps:
        lines.append(
            f"notice: --warmup_steps {training.warmup_steps:,} of {training.max_steps:,} updates: the full learning "
            "rate is never reached"
        )
    return lines


def _finish(job: TaskJob, folder: Path, results: Sequence[SeedResult], session: Session) -> bool:
    """Write and show the results, predict what was asked for, and say what was written; false if told to stop."""
    if results:
        best = best_of(job, results)
        if job.train is not None:
            check_model(folder, best.seed)
        write_results(job, folder, summarize_sweep(job, results, best), best)
        print((folder / TABLE).read_text(encoding="utf-8").rstrip())
    if job.config.tuning.predict is not None:
        files = predict(job, folder, session.world.device, session.stop)
        if files is None:
            return False
        for file in files:
            print(f"written: {file}")
    elif not results:
        LOG.info(f"{job.task.name}: its data hold no labels, so nothing was scored; --predict test labels them")
    kind = "a stock folder" if stock_computes(job.shape) else "in this toolkit's own format"
    told = {RESULTS: "", TABLE: "", PREDICTIONS: "", CONFUSION: "", MODEL: f"/ (the best seed's, {kind})"}
    there = [f"{name}{what}" for name, what in told.items() if (folder / name).exists()]
    if there:
        print(f"written to {folder}: {', '.join(there)}")
    return True
