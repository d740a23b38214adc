"""Fine-tune an encoder on a task: read, encode, train every seed, score, export, predict.

python Finetuning.py
python Finetuning.py --task cola --data_dir GLUE/CoLA --model runs/mine --seeds 5
python Finetuning.py --task glue --data_dir GLUE --model runs/mine
python Finetuning.py --compare runs/cola-mine runs/cola-other
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from electra_albert.apps.command_line import check_can_write, find_first, report
from electra_albert.apps.finetune_options import parse_finetuning
from electra_albert.contracts import STOPPED_BY_SIGNAL, UsageError, UserError

if TYPE_CHECKING:
    from electra_albert.apps.finetune_job import TaskJob
    from electra_albert.apps.finetune_start import Start
    from electra_albert.finetuning_config import DataConfig, FinetuneConfig
    from electra_albert.tasks.registry import Task
    from electra_albert.training.distributed import World
    from electra_albert.training.guards import StopSignal

RUNS = Path("runs")
ALL_OF_GLUE, CUSTOM, DOCS = "glue", "custom", "docs"


def main(argv: Sequence[str]) -> int:
    """Entry point of Finetuning.py; returns the exit code."""
    config = parse_finetuning(argv)  # options first: what they hold is complained of before a model is looked for
    if config.tuning.compare:
        from electra_albert.apps.finetune_compare import compare_folders

        return compare_folders(*map(Path, config.tuning.compare))
    from electra_albert.training.distributed import leave, start

    world = start(config.tuning.device)
    try:
        code = _run(argv, config, world)
    except UserError as error:
        code = report(error)
    return leave(world, code)


def _run(argv: Sequence[str], config: FinetuneConfig, world: World) -> int:
    from electra_albert.apps.finetune_start import find_start
    from electra_albert.training.guards import StopSignal

    say, tuning = saying(world), config.tuning
    with StopSignal() as stop:
        if config.data.task == ALL_OF_GLUE:
            from electra_albert.apps.finetune_glue import find_glue, run_glue

            names = find_glue(config, say)
            start = find_start(tuning.model, config.data.prepared_dir, world, say)
            return run_glue(argv, config, names, start, world, stop)
        task, data = _find_task(config, world)
        start = find_start(tuning.model, data.prepared_dir, world, say)
        config = replace(with_recipe(argv, task, start), data=data)
        return run_task(argv, task, config, start, output_folder(config, task, start), world, stop)


def saying(world: World) -> Callable[[str], None]:
    """What prints a line on the main rank."""

    def say(message: str) -> None:
        if world.is_main:
            print(message, file=sys.stderr, flush=True)

    return say


def _find_task(config: FinetuneConfig, world: World) -> tuple[Task, DataConfig]:
    """The task asked for and where its data lies; without any, a task made from the documentation installed."""
    from electra_albert.apps.docs_task import write_docs_task
    from electra_albert.tasks.examples import Report
    from electra_albert.tasks.locating import locate
    from electra_albert.tasks.registry import find_task
    from electra_albert.training.distributed import main_first

    data = config.data
    if data.task is not None or data.train_file is not None:
        task = find_task(data.task or CUSTOM)
        if config.tuning.num_train_epochs or config.tuning.max_steps:
            locate(task, data, Report(), needs_test=False)  # what is not there is said before a model is made
        return task, data
    if data.data_dir is not None:
        raise UsageError(f"--data_dir {data.data_dir} needs --task, the name of the task whose data lie there")
    with main_first(world):
        train, dev = write_docs_task(Path(data.prepared_dir), saying(world))
    task = replace(find_task(CUSTOM), name=DOCS)
    return task, replace(data, train_file=str(train), validation_file=str(dev))


def with_recipe(argv: Sequence[str], task: Task, start: Start) -> FinetuneConfig:
    """The options for one task: those given, over the published ones for the model and the task."""
    from electra_albert.tasks.recipes import recipe

    chosen = find_first(argv, ("recipe",))["recipe"]
    family = start.family if chosen in (None, "auto") else chosen
    return parse_finetuning(argv, recipe(family, task.name, start.config))  # type: ignore[arg-type]


def output_folder(config: FinetuneConfig, task: Task, start: Start) -> Path:
    """The folder of the results: as asked for, or named after task and model."""
    if config.tuning.output_dir is not None:
        return Path(config.tuning.output_dir)
    begun = "-from-scratch" if config.tuning.from_scratch or start.files is None else ""
    return RUNS / f"{task.name}-{start.name}{begun}"


def run_task(
    argv: Sequence[str],
    task: Task,
    config: FinetuneConfig,
    start: Start,
    folder: Path,
    world: World,
    stop: StopSignal,
) -> int:
    """One task from its data to its results; returns the exit code."""
    from electra_albert.apps.finetune_job import make_task_job

    say = saying(world)
    check_can_write(folder)
    _check_is_ours(folder)
    job = make_task_job(task, config, start, world, say)
    for line in _plan_lines(job, world):
        say(line)
    if config.tuning.dry_run:
        return 0
    with ExitStack() as stack:
        is_stopped = _sweep(argv, job, folder, world, stop, stack)
    if is_stopped:
        say(f"stopped; run the same command to go on with {folder}")
        return STOPPED_BY_SIGNAL
    if world.is_main:
        _finish(job, folder, world)
    return 0


def _sweep(argv: Sequence[str], job: TaskJob, folder: Path, world: World, stop: StopSignal, stack: ExitStack) -> bool:
    """Train every seed, or score the model as it is; writes all results. Returns whether it was told to stop."""
    from electra_albert.apps.finetune_files import open_folder, summarize_sweep, write_results
    from electra_albert.apps.finetune_job import data_fingerprint
    from electra_albert.apps.finetune_sweep import best_of, run_seeds, score_model
    from electra_albert.training.distributed import main_first
    from electra_albert.training.guards import RunLock

    batch = job.training.per_device_train_batch_size * job.training.gradient_accumulation_steps * world.world_size
    found = {"data": data_fingerprint(job), "global_batch_size": batch}
    with main_first(world):
        if world.is_main:
            stack.enter_context(RunLock(folder))
            for change in open_folder(job, folder, argv, found):
                saying(world)(f"changed since the sweep began: {change}")
    if job.train is None:
        if not job.evaluation:
            return False
        results = [score_model(job, world)]
    else:
        swept = run_seeds(job, folder, world, stop)
        if swept is None:
            return True
        results = swept
    if world.is_main:
        best = best_of(job, results)
        write_results(job, folder, summarize_sweep(job, results, best), best)
    return False


def _check_is_ours(folder: Path) -> None:
    """UsageError where the folder holds something else that a sweep would write into."""
    from electra_albert.apps.run_folder import ENVIRONMENT

    for taken in ("checkpoints", "generator"):
        if (folder / taken).exists():
            raise UsageError(f"{folder} is the folder of a pretraining run; choose another --output_dir")
    if (folder / "model").exists() and not (folder / ENVIRONMENT).is_file():
        raise UsageError(f"{folder} holds a model that no sweep of ours has written; choose another --output_dir")


def _plan_lines(job: TaskJob, world: World) -> list[str]:
    sizes = ", ".join(f"{len(examples):,} {name}" for name, examples in job.data.evaluation.items())
    lines = [f"{job.task.name}: {len(job.data.train):,} examples to train on, {sizes or 'none'} to score"]
    if job.train is not None:
        training, tuning = job.training, job.config.tuning
        batch = training.per_device_train_batch_size * training.gradient_accumulation_steps * world.world_size
        lines.append(
            f"{job.task.name}: {tuning.seeds} seed(s) of {training.max_steps:,} updates of {batch} examples, "
            f"learning rate {training.learning_rate:g}, layer decay {tuning.layer_decay:g}, {job.head.style} head, "
            f"rows of at most {tuning.max_seq_length} tokens, on {world.world_size} x {world.device.type} in "
            f"{job.arithmetic}"
        )
    return lines


def _finish(job: TaskJob, folder: Path, world: World) -> None:
    """Show the table, predict what was asked for, and say where everything lies."""
    from electra_albert.apps.finetune_files import TABLE

    if job.evaluation:
        print((folder / TABLE).read_text(encoding="utf-8").rstrip())
    if job.config.tuning.predict is not None:
        from electra_albert.apps.finetune_predict import predict

        for file in predict(job, folder, world.device):
            print(f"written: {file}")
    print(f"written to {folder}: results.json, results.md, predictions.tsv, model/ (the best seed's, a stock folder)")
