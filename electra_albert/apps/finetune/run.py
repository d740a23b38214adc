"""Fine-tuning: find tasks and model, plan, train and evaluate each seed; or predict new text."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from electra_albert.apps import command_line, default_model
from electra_albert.apps.finetune import grid
from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.base_model import BaseModel, apply_recipe, find_base_model
from electra_albert.apps.finetune.compare import find_glue, glue_tasks, write_glue
from electra_albert.apps.finetune.job import Assignment, TaskJob, make_task_job
from electra_albert.apps.finetune.predict import predict_new_text
from electra_albert.apps.finetune.sweep import Sweep
from electra_albert.config.checks import require
from electra_albert.config.finetuning import (
    CUSTOM,
    GLUE,
    PREDICT_TEST,
    TOPICS,
    DataConfig,
    FinetuneConfig,
    table_name,
)
from electra_albert.contracts import LOG, NO_CALLBACKS, Callbacks, RunResult
from electra_albert.files import SAMPLE_TASK
from electra_albert.hub import save
from electra_albert.tasks import reading, registry
from electra_albert.tasks.task import Report, Task
from electra_albert.training import loop
from electra_albert.training.distributed import World, main_first, naming_lost_ranks
from electra_albert.training.run_log import RunLog, log_to_file
from electra_albert.training.signals import StopSignal, run_lock
from electra_albert.training.trackers import check_trackers

# Options that name or describe the user's data.
_OWN_DATA = (
    "task train_file validation_file test_file text_column text_pair_column label_column "
    "column_names regression"
)


def run_finetuning(
    config: FinetuneConfig,
    world: World,
    command: Sequence[str],
    callbacks: Callbacks = NO_CALLBACKS,
) -> RunResult:
    """Train and evaluate every seed of a task or of all of GLUE, or predict new text.

    `command` is recorded in the folder of each task.
    """
    with StopSignal() as stop, RunLog() as log, naming_lost_ranks(world, log.take_over):
        if config.only_predicts:
            return predict_new_text(config, world, stop)
        is_glue = config.data.task == GLUE
        finished = []
        folder, tasks = _find_tasks(config, world)
        result = RunResult(folder, {}, 0)
        run_one = partial(_run_sweep, world=world, stop=stop, log=log, command=command)
        for assignment in tasks:
            task, task_config, _, _ = assignment
            chosen: Assignment | None = assignment
            if task_config.tuning.has_trials:
                # Refuses before the trials what it refuses after.
                metric = _plan(assignment, world, stop).job.task.main
                chosen = grid.choose(assignment, metric, run_one)
            result = RunResult(folder, {}, 0, is_stopped=True)
            if chosen:
                result = run_one(chosen, callbacks=callbacks)
            log_summary = LOG.info if is_glue and not result.is_stopped else log_to_file
            log_summary(result.summary)
            if result.is_stopped:
                LOG.info(f"stopped; run the same command to resume {result.folder}")
                return result
            finished.append(task.name)
            log.hold()
        if is_glue and world.is_main and not config.tuning.dry_run:
            return RunResult(folder, {}, 0, summary=write_glue(folder, finished))
    return replace(result, folder=folder)


def _run_sweep(
    assignment: Assignment,
    *,
    world: World,
    stop: StopSignal,
    log: RunLog,
    command: Sequence[str],
    callbacks: Callbacks = NO_CALLBACKS,
) -> RunResult:
    """Train and evaluate every seed of a task; with --dry_run only log the plan."""
    log.hold()
    sweep = _plan(assignment, world, stop)
    if sweep.job.config.tuning.dry_run:
        return RunResult(sweep.job.folder, {}, 0)
    with _open_folder(sweep.job, log, command):
        for seed in sweep.remaining_seeds():
            with sweep.open_seed(seed, callbacks) as run:
                outcome = loop.train(
                    run.objective, run.batches, run.evaluate, run.settings, sweep.training_step
                )
                sweep.close_seed(run, outcome)
        return sweep.finish()


def _find_tasks(config: FinetuneConfig, world: World) -> tuple[Path, Iterable[Assignment]]:
    """The output folder, and each task with its settings, base model and folder."""
    if config.data.task == GLUE:
        names = find_glue(config)
        base = find_base_model(config, world)
        folder = _output_folder(config, GLUE, base)
        return folder, glue_tasks(config, names, base, folder, world)
    task, data = _find_task(config)  # before the model: missing data is fatal
    base = find_base_model(config, world)
    folder = _output_folder(config, task.name, base)
    task_config = replace(apply_recipe(config, task.name, base), data=data)
    return folder, [(task, task_config, base, folder)]


def _find_task(config: FinetuneConfig) -> tuple[Task, DataConfig]:
    """The requested task and its data; by default the built-in task."""
    data = config.data
    train_file = str(SAMPLE_TASK / "train.csv")
    validation_file = str(SAMPLE_TASK / "dev.csv")
    topics = replace(registry.TASKS[CUSTOM], name=TOPICS)
    needs_test = config.tuning.predict == PREDICT_TEST
    if any(getattr(data, name) for name in _OWN_DATA.split()):
        task = registry.find_task(data.task or CUSTOM)
        files = (data.task, data.train_file, data.validation_file)
        if files == (None, train_file, validation_file):  # of the config.yaml of a run
            task = topics
        is_trained = config.tuning.is_training
        reading.locate(task, data, Report(), needs_test=needs_test, is_trained=is_trained)
        return task, data
    needs_task = "needs --task, the name of the task whose"
    require(data.data_dir is None, f"--data_dir {data.data_dir} {needs_task} data it holds")
    own_data = "data of your own: --train_file, or --task and --data_dir"
    require(data.validation_split is None, f"--validation_split needs {own_data}")
    require(not needs_test, f"--predict test {needs_task} test set to predict")
    return topics, replace(data, train_file=train_file, validation_file=validation_file)


def _output_folder(config: FinetuneConfig, name: str, base: BaseModel) -> Path:
    """--output_dir, else a folder in runs/ named after task, or the user's table, and model."""
    if config.tuning.output_dir is not None:
        return Path(config.tuning.output_dir)
    if name == CUSTOM:
        name = table_name(config.data)
    suffix = "-from-scratch" if config.tuning.from_scratch or base.files is None else ""
    return default_model.RUNS / f"{name}-{base.name}{suffix}"


def _plan(assignment: Assignment, world: World, stop: StopSignal) -> Sweep:
    """Prepare, check and log the sweep of one task; writes nothing."""
    _, config, _, folder = assignment
    command_line.check_can_write(folder)
    files.check_output_folder(folder)
    check_trackers(config.training.report_to)
    job = make_task_job(*assignment, world)
    sets = job.data.evaluation.items()
    sizes = ", ".join(f"{len(examples):,} {name}" for name, examples in sets) or "0 evaluation"
    name = job.task.name
    length = f"sequences of up to {job.plan.max_seq_length} tokens"
    training = job.training
    count = "evaluation only" if job.train is None else f"{len(job.data.train):,} train"
    LOG.info(f"{name}: {count}, {sizes} examples, {length}")
    if job.train is None:
        return Sweep(job, stop)
    updates = f"{config.tuning.seeds} seed(s) of {training.max_steps:,} updates"
    rates = f"learning rate {training.learning_rate:g}, layer decay {config.tuning.layer_decay:g}"
    devices = f"{world.world_size} x {world.device.type}, {job.arithmetic}"
    updates += f", batch size {job.global_batch_size}, {rates}"
    LOG.info(f"{name}: {updates}, {job.head.style} head, {devices}")
    if training.warmup_steps >= training.max_steps:
        LOG.info(
            f"notice: --warmup_steps {training.warmup_steps:,} of {training.max_steps:,} updates: "
            "the full learning rate is never reached"
        )
    return Sweep(job, stop)


@contextmanager
def _open_folder(job: TaskJob, log: RunLog, command: Sequence[str]) -> Iterator[None]:
    """Lock the task's folder and record settings and `command` in it; log what has changed."""
    changes = []
    repository = job.config.tuning.push_to_hub
    with ExitStack() as stack:
        with main_first(job.world):
            if job.world.is_main:
                stack.enter_context(run_lock(job.folder))
                changes = files.open_folder(job, command)
                if repository is not None:
                    is_private = job.config.tuning.hub_private_repo
                    save.create_repository(repository, is_private=is_private)
            log.open(job.folder)
            for change in changes:
                LOG.info(f"changed since the sweep began: {change}")
        yield
