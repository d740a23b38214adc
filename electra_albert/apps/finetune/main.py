"""Fine-tune an encoder on a task: read, encode, train every seed, score, export, predict."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.command_line import check_can_write, print_results, report
from electra_albert.apps.finetune.options import parse_finetuning, refuse_idle_options, with_recipe
from electra_albert.contracts import STOPPED_BY_SIGNAL, RunResult, UsageError, UserError
from electra_albert.files import SAMPLE_TASK
from electra_albert.finetuning_config import CUSTOM, GLUE, PREDICT_TEST, TOPICS, FinetuneConfig, table_name

if TYPE_CHECKING:
    from electra_albert.apps.finetune.job import Start, TaskJob
    from electra_albert.apps.finetune.sweep import Sweep
    from electra_albert.finetuning_config import DataConfig
    from electra_albert.tasks.task import Task
    from electra_albert.training.distributed import World
    from electra_albert.training.guards import StopSignal
    from electra_albert.training.run_log import RunLog

LOG = logging.getLogger(__name__)

RUNS = Path("runs")
_Planned = tuple["Task", FinetuneConfig, "Start", Path]


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
    from electra_albert.training.guards import StopSignal
    from electra_albert.training.loop import train
    from electra_albert.training.run_log import RunLog, log_shown

    result = RunResult(Path(), {}, 0)
    with StopSignal() as stop, RunLog() as log:
        if config.only_predicts:
            from electra_albert.apps.finetune.predict import label_text

            return label_text(config, world, stop)
        names, folder, tasks = _plan(config, world)
        with closing(_sweeps(tasks, world, stop, log, command)) as sweeps:
            for sweep in sweeps:
                for seed in sweep.seeds_left() if sweep.job.train else ():
                    with sweep.open_seed(seed) as trial:
                        outcome = train(trial.objective, trial.batches, trial.evaluate, trial.run)
                        sweep.close_seed(trial, outcome)
                result = _finish(sweep)
                log_shown(result.summary)
                if result.is_stopped:
                    LOG.info(f"stopped; run the same command to resume {sweep.folder}")
                    return result
                if names:
                    LOG.info(result.summary)
        if names and world.is_main and not config.tuning.dry_run:
            from electra_albert.apps.finetune.glue import write_glue

            return RunResult(folder, {}, 0, summary=write_glue(folder, names))
    return result._replace(folder=folder)


def _plan(config: FinetuneConfig, world: World) -> tuple[list[str], Path, Iterator[_Planned]]:
    """The names of GLUE's tasks, the folder, and what to train; missing data is refused before a missing model."""
    from electra_albert.apps.finetune.job import find_start

    model, prepared_dir = config.tuning.model, config.data.prepared_dir
    if config.data.task == GLUE:
        from electra_albert.apps.finetune.glue import find_glue, glue_tasks

        names = find_glue(config)
        start = find_start(model, prepared_dir, world)
        folder = _output_folder(config, GLUE, start)
        return names, folder, glue_tasks(config, names, start, folder, world)
    task, data = _find_task(config)
    start = find_start(model, prepared_dir, world)
    config = replace(with_recipe(config, task.name, start.family, start.config), data=data)
    folder = _output_folder(config, task.name, start)
    return [], folder, iter([(task, config, start, folder)])


def _find_task(config: FinetuneConfig) -> tuple[Task, DataConfig]:
    """The task asked for and its data; without any, the task that ships."""
    from electra_albert.tasks.reading import locate
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
    """The folder of the results: as asked for, or named after the task, or a table of one's own, and the model."""
    if config.tuning.output_dir is not None:
        return Path(config.tuning.output_dir)
    name = table_name(config.data) if name == CUSTOM else name
    begun = "-from-scratch" if config.tuning.from_scratch or start.files is None else ""
    return RUNS / f"{name}-{start.name}{begun}"


def _sweeps(
    tasks: Iterator[_Planned], world: World, stop: StopSignal, log: RunLog, command: Sequence[str]
) -> Generator[Sweep]:
    """Each task's sweep, its folder locked while it is worked on; none in a dry run, which only logs the plan."""
    from electra_albert.apps.finetune.job import build_objective, data_fingerprint, make_task_job
    from electra_albert.apps.finetune.results import check_is_ours, open_folder
    from electra_albert.apps.finetune.sweep import Sweep
    from electra_albert.training.distributed import main_first
    from electra_albert.training.guards import run_lock

    for task, config, start, folder in tasks:
        check_can_write(folder)
        check_is_ours(folder)
        job = make_task_job(task, config, start, world)
        for line in _plan_lines(job, world):
            LOG.info(line)
        if job.train is not None:
            build_objective(job, config.training.seed, world.device)  # a model that does not fit is refused here
        if config.tuning.dry_run:
            continue
        with ExitStack() as stack:
            with main_first(world):
                if world.is_main:
                    stack.enter_context(run_lock(folder))
                    changes = open_folder(job, folder, command, data_fingerprint(job))
                    log.open(folder)
                    for change in changes:
                        LOG.info(f"changed since the sweep began: {change}")
            yield Sweep(job, folder, world, stop)


def _plan_lines(job: TaskJob, world: World) -> list[str]:
    sizes = ", ".join(f"{len(examples):,} {name}" for name, examples in job.data.evaluation.items()) or "none"
    name, length = job.task.name, job.plan.max_seq_length
    if job.train is None:
        return [f"{name}: {sizes} to score, with a model that is not trained, in sequences of at most {length} tokens"]
    training, tuning = job.training, job.config.tuning
    lines = [
        f"{name}: {len(job.data.train):,} examples to train on, {sizes} to score",
        f"{name}: {tuning.seeds} seed(s) of {training.max_steps:,} updates of {job.global_batch_size} examples, "
        f"learning rate {training.learning_rate:g}, layer decay {tuning.layer_decay:g}, {job.head.style} head, "
        f"sequences of at most {length} tokens, on {world.world_size} x {world.device.type} in {job.arithmetic}",
    ]
    if training.warmup_steps >= training.max_steps:
        warmup = f"notice: --warmup_steps {training.warmup_steps:,} of {training.max_steps:,} updates"
        lines.append(f"{warmup}: the full learning rate is never reached")
    return lines


def _finish(sweep: Sweep) -> RunResult:
    """Score what was not trained, then write results and predictions on the main rank; the same result on all ranks."""
    from electra_albert.training.distributed import gather_objects, main_first

    result = RunResult(sweep.folder, {}, 0, is_stopped=True)
    if sweep.job.train is None and sweep.job.evaluation:
        sweep.score_start()
    if not sweep.is_stopped:
        with main_first(sweep.world):
            if sweep.world.is_main:
                result = _write(sweep)
    result = gather_objects(result, sweep.world)[0]
    return result if sweep.world.is_main else result._replace(summary="")


def _write(sweep: Sweep) -> RunResult:
    """Write the results and the predictions asked for; the summary says what was reached and written."""
    from electra_albert.apps.finetune import results as files
    from electra_albert.apps.finetune.predict import predict
    from electra_albert.model.attention import stock_computes

    job, folder, done, lines = sweep.job, sweep.folder, sweep.in_order(), []
    result = RunResult(folder, {}, 0)
    if done:
        best = files.best_of(job, done)
        if job.train is not None:
            files.check_model(folder, best.seed)
        files.write_results(job, folder, files.summarize_sweep(job, done, best), best)
        lines = [(folder / files.TABLE).read_text(encoding="utf-8").rstrip()]
        result = RunResult(folder, best.metrics, best.step)
    if job.config.tuning.predict is not None:
        written = predict(job, folder, sweep.world.device, sweep.stop)
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
