"""Fine-tune an encoder on a task: read, encode, train every seed, score, export, predict."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.command_line import check_can_write, print_results, report
from electra_albert.apps.default_model import RUNS
from electra_albert.apps.finetune.options import parse_finetuning, refuse_idle_options
from electra_albert.contracts import STOPPED_BY_SIGNAL, RunResult, UsageError, UserError
from electra_albert.files import SAMPLE_TASK
from electra_albert.finetuning_config import CUSTOM, GLUE, PREDICT_TEST, TOPICS, DataConfig, FinetuneConfig, table_name

if TYPE_CHECKING:
    from electra_albert.apps.finetune.job import Start, TaskJob
    from electra_albert.tasks.task import Task
    from electra_albert.training.distributed import World

LOG = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert finetune`; returns the exit code."""
    config = parse_finetuning(argv)  # options first: what they hold is refused before a model is looked for
    refuse_idle_options(argv, config)
    if config.tuning.compare:
        from electra_albert.apps.finetune.compare import compare_folders

        print(compare_folders(*map(Path, config.tuning.compare)))
        return 0
    from electra_albert.training.distributed import leave, start

    world = start(config.tuning.device)
    try:
        result = run_finetuning(config, world, ["Finetuning.py", *argv])
        print_results(result.summary)
        code = STOPPED_BY_SIGNAL if result.is_stopped else 0
    except UserError as error:
        code = report(error)
    return leave(world, code)


def finetune(config: FinetuneConfig | None = None, **options: Any) -> RunResult:
    """Fine-tune an encoder on a task, or resume a sweep that was stopped.

    `options` are those of `electra-albert finetune` by name; a `config` stands for all of them. Returns the folder, the
    best seed's metrics and its steps. Raises UsageError, DataError, CheckpointError or DivergedError.
    """
    from electra_albert.training.distributed import start, stop
    from electra_albert.training.run_log import console_log

    if config is not None and options:
        raise UsageError(f"give either a config or options such as {next(iter(options))}, not both")
    argv = ["--config", json.dumps(options, default=str)] if options else []
    if config is None:
        config = parse_finetuning(argv)
        refuse_idle_options([f"--{name}" for name in options], config)
    if config.tuning.compare:
        raise UsageError("compare is for the command line: electra-albert finetune --compare A B")
    world = start(config.tuning.device)
    try:
        with console_log():
            result = run_finetuning(config, world, ["Finetuning.py", *argv])
            LOG.info(result.summary)
        return result
    finally:
        stop(world)


def run_finetuning(config: FinetuneConfig, world: World, command: Sequence[str]) -> RunResult:
    """Train and score every seed of a task, or of all of GLUE, or label new text. `command` is what folders record."""
    from electra_albert.apps.finetune.compare import find_glue, glue_tasks, write_glue
    from electra_albert.apps.finetune.job import find_start, with_recipe
    from electra_albert.apps.finetune.predict import label_text
    from electra_albert.apps.finetune.results import open_folder
    from electra_albert.apps.finetune.sweep import Sweep
    from electra_albert.training.distributed import main_first
    from electra_albert.training.guards import RunLock, StopSignal
    from electra_albert.training.loop import train
    from electra_albert.training.run_log import RunLog, log_shown

    with StopSignal() as stop, RunLog() as log:
        if config.only_predicts:
            return label_text(config, world, stop)
        names = find_glue(config) if config.data.task == GLUE else []
        task, data = (None, config.data) if names else _find_task(config)  # missing data is refused before a model
        start = find_start(config.tuning.model, config.data.prepared_dir, world)
        folder = _output_folder(config, task.name if task else GLUE, start)
        tasks: Iterable[tuple[Task, FinetuneConfig, Start, Path]]
        tasks = glue_tasks(config, names, start, folder, world)
        if task is not None:
            tasks = [(task, replace(with_recipe(config, task.name, start), data=data), start, folder)]
        result = RunResult(folder, {}, 0)
        for job, own in (_plan(*each, world) for each in tasks):
            if config.tuning.dry_run:
                continue
            with ExitStack() as stack:
                with main_first(world):
                    if world.is_main:
                        stack.enter_context(RunLock(own))
                        changes = open_folder(job, own, command)
                        log.open(own)
                        for change in changes:
                            LOG.info(f"changed since the sweep began: {change}")
                sweep = Sweep(job, own, world, stop)
                for seed in sweep.seeds_left():
                    with sweep.open_seed(seed) as run:
                        sweep.close_seed(run, train(run.objective, run.batches, run.evaluate, run.settings))
                result = sweep.finish()
            log_shown(result.summary)
            if result.is_stopped:
                LOG.info(f"stopped; run the same command to resume {own}")
                return result
            if names:
                LOG.info(result.summary)
        if names and world.is_main and not config.tuning.dry_run:
            return RunResult(folder, {}, 0, summary=write_glue(folder, names))
    return result._replace(folder=folder)


def _find_task(config: FinetuneConfig) -> tuple[Task, DataConfig]:
    """The task asked for and its data; without any, the task that ships."""
    from electra_albert.tasks.locating import locate
    from electra_albert.tasks.registry import find_task
    from electra_albert.tasks.task import Report

    data, tuning = config.data, config.tuning
    of_a_table = (data.train_file, data.validation_file, data.test_file, data.text_column, data.text_pair_column)
    if data.task is not None or data.regression or any((*of_a_table, data.label_column, data.column_names)):
        task = find_task(data.task or CUSTOM)
        locate(task, data, Report(), needs_test=tuning.predict == PREDICT_TEST, is_trained=tuning.is_training)
        return task, data
    if data.data_dir is not None:
        raise UsageError(f"--data_dir {data.data_dir} needs --task, the name of the task whose data it holds")
    if data.validation_split is not None:
        raise UsageError("--validation_split needs data of your own: --train_file, or --task and --data_dir")
    if tuning.predict == PREDICT_TEST:
        raise UsageError("--predict test needs --task, the name of the task whose test set is to be labelled")
    train, dev = (str(SAMPLE_TASK / f"{name}.csv") for name in ("train", "dev"))
    return replace(find_task(CUSTOM), name=TOPICS), replace(data, train_file=train, validation_file=dev)


def _output_folder(config: FinetuneConfig, name: str, start: Start) -> Path:
    """The folder of the results: as asked for, or named after the task, or a user's own table, and the model."""
    if config.tuning.output_dir is not None:
        return Path(config.tuning.output_dir)
    name = table_name(config.data) if name == CUSTOM else name
    begun = "-from-scratch" if config.tuning.from_scratch or start.files is None else ""
    return RUNS / f"{name}-{start.name}{begun}"


def _plan(task: Task, config: FinetuneConfig, start: Start, folder: Path, world: World) -> tuple[TaskJob, Path]:
    """The job of one task, checked and logged, and its folder."""
    from electra_albert.apps.finetune.job import build_objective, make_task_job
    from electra_albert.apps.finetune.results import check_is_ours

    check_can_write(folder)
    check_is_ours(folder)
    job = make_task_job(task, config, start, world)
    sizes = ", ".join(f"{len(examples):,} {name}" for name, examples in job.data.evaluation.items()) or "none"
    name, length, training = job.task.name, f"in sequences of at most {job.plan.max_seq_length} tokens", job.training
    if job.train is None:
        LOG.info(f"{name}: {sizes} to score, with a model that is not trained, {length}")
        return job, folder
    LOG.info(f"{name}: {len(job.data.train):,} examples to train on, {sizes} to score")
    LOG.info(
        f"{name}: {config.tuning.seeds} seed(s) of {training.max_steps:,} updates of {job.global_batch_size} examples, "
        f"learning rate {training.learning_rate:g}, layer decay {config.tuning.layer_decay:g}, {job.head.style} head, "
        f"{length}, on {world.world_size} x {world.device.type} in {job.arithmetic}"
    )
    if training.warmup_steps >= training.max_steps:
        warmup = f"notice: --warmup_steps {training.warmup_steps:,} of {training.max_steps:,} updates"
        LOG.info(f"{warmup}: the full learning rate is never reached")
    build_objective(job, training.seed, world.device)  # a model that does not fit is refused here
    return job, folder
