"""A pretraining run: prepare, build, check, train, evaluate, export, report."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from electra_albert.apps import machine
from electra_albert.apps import run_folder as run_files
from electra_albert.apps.command_line import check_can_write
from electra_albert.apps.pretrain import (
    alarms,
    budget,
    evaluation,
    generator_warmup,
    run_card,
    summary,
    trial,
)
from electra_albert.apps.pretrain.job import Job, job_settings, make_job
from electra_albert.apps.report import write_report
from electra_albert.apps.settings import check_settings, find_resume_point, log_changes
from electra_albert.config.pretraining import PretrainConfig
from electra_albert.contracts import LOG, NO_CALLBACKS, Callbacks, RunResult, UsageError
from electra_albert.corpus.folder import short_name
from electra_albert.files import writing
from electra_albert.hub import card, save
from electra_albert.inference.scoring import read_sets
from electra_albert.tokenization.tokenizer import save_tokenizer
from electra_albert.training import checkpoint, distributed, graphs, loop, run_log, signals, step
from electra_albert.training.distributed import World
from electra_albert.training.monitor import Monitor
from electra_albert.training.trackers import check_trackers

RUNS = Path("runs")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def run_pretraining(
    preset: str,
    config: PretrainConfig,
    world: World,
    command: Sequence[str],
    callbacks: Callbacks = NO_CALLBACKS,
) -> RunResult:
    """Train, then export unless a signal stopped the run; `command` is recorded."""
    folder = folder_of_run(config, preset)
    with distributed.main_first(world):
        _check_folder(folder, config)
    check_trackers(config.training.report_to)
    with run_log.RunLog() as log, ExitStack() as stack:
        stack.enter_context(machine.one_line_errors(config.training, config.run.torch_compile))
        stack.enter_context(distributed.naming_lost_ranks(world, log.take_over))
        newest = checkpoint.find_checkpoint(folder / "checkpoints", config.run.resume)
        resume_point = find_resume_point(folder, newest, config.run.resume)
        if resume_point:
            config = budget.recorded_plan(config, resume_point.state, world.world_size)
            check_settings(resume_point, preset, config, world.world_size)
        # Without `newest` it is of a warm-up, after which the run itself is new.
        state = resume_point.state if resume_point and newest else None
        job = make_job(config, world, state["settings"] if state else None)
        if not resume_point:
            job = budget.planned(job, world)
        done_steps = state["step"] if state else 0
        _announce(job, world, done_steps)
        if config.run.dry_run:
            return RunResult(folder, {}, 0)
        _lock(stack, folder, job, world, newest, done_steps)
        settings = job_settings(preset, job, world)
        run = _open_run(stack, job, folder, settings, newest, world, callbacks)
        pace: Any = run.plan  # of --budget
        facts = {"settings": settings, **summary.record(job, world)}
        _start(folder, preset, job, run, log, command, facts)
        if job.lacks_generator and not generator_warmup.warm_up(job, run):
            return RunResult(folder, {}, 0, is_stopped=True)
        evaluate = evaluation.evaluator(job, run)
        if pace:
            evaluate = pace.timed(evaluate)
        outcome = loop.train(job.objective, job.batches, evaluate, run)
        LOG.info(f"peak memory: {machine.peak_memory(world.device) / 1e9:.2f} GB")
        result = RunResult(folder, outcome.metrics, outcome.step, outcome.is_stopped)
        if world.is_main and not outcome.is_stopped:
            if pace:
                training = replace(job.config.training, max_steps=outcome.step)
                job = job._replace(config=replace(job.config, training=training))
                facts["settings"] = job_settings(preset, job, world)
                _write_record(folder, preset, job, command, facts)
            result = _export(job, result, command)
    return result


def folder_of_run(config: PretrainConfig, preset: str) -> Path:
    """The run's folder: output_dir, or by default a name from corpus and preset."""
    return Path(config.run.output_dir or RUNS / f"{short_name(config.corpus.corpus)}-{preset}")


def _check_folder(folder: Path, config: PretrainConfig) -> None:
    """Raise UsageError if the run cannot write there, or would overwrite its initial weights."""
    check_can_write(folder)
    run_files.check_is_ours(folder)
    source = config.run.init_from
    if source is not None and Path(source).resolve() == folder.resolve():
        raise UsageError(f"--init_from {source} is the run's own folder; name another --output_dir")


def _announce(job: Job, world: World, done_steps: int) -> None:
    """Log the plan of the run, for --dry_run with memory and time; refuses wrong --eval_pairs."""
    config = job.config
    if config.run.eval_pairs is not None:
        longest = config.model.max_position_embeddings
        read_sets(Path(config.run.eval_pairs), job.prepared.tokenizer, longest)
    timed = trial.measure(job, world, done_steps) if config.run.dry_run else ()
    for line in chain(summary.start_lines(job, world), budget.suggestion(job), timed):
        LOG.info(line)


def _lock(
    stack: ExitStack, folder: Path, job: Job, world: World, newest: Path | None, done_steps: int
) -> None:
    """Lock the folder. Raises UsageError if the disk is too full, or another run has written."""
    with distributed.main_first(world):
        if world.is_main:
            text, is_enough = trial.disk_space(job, folder, done_steps)
            if not is_enough:
                raise UsageError(f"{folder}: {text}; {trial.DISK_ADVICE}")
            stack.enter_context(signals.run_lock(folder))
    if newest != checkpoint.find_checkpoint(folder / "checkpoints", job.config.run.resume):
        raise UsageError(f"another run has just written into {folder}; start again to resume it")


def _open_run(
    stack: ExitStack,
    job: Job,
    folder: Path,
    settings: dict[str, Any],
    newest: Path | None,
    world: World,
    callbacks: Callbacks,
) -> step.RunSettings:
    """The settings of the loop, whose plan is the pace of --budget; signals and logging open."""
    config = job.config
    training = config.training
    stop = stack.enter_context(signals.StopSignal())
    monitor = stack.enter_context(
        Monitor(
            folder,
            training.max_steps,
            training.report_to,
            is_main=world.is_main,
            settings=settings,
            alarms=alarms.Alarms(config),
            callbacks=callbacks,
        )
    )
    pace = None
    if config.run.budget:
        pace = budget.Pace(config.run.budget_seconds, training.eval_steps, monitor)
    return step.RunSettings(
        folder,
        training,
        world,
        monitor,
        stop,
        job.arithmetic,
        resume_from=newest,
        settings=settings,
        plan=pace,
        eval_on_start=job.origin is not None,
        lr_multipliers=job.objective.lr_multipliers,
        record=graphs.CudaRecorder(world.device) if job.is_recorded else None,
    )


def _start(
    folder: Path,
    preset: str,
    job: Job,
    run: step.RunSettings,
    log: run_log.RunLog,
    command: Sequence[str],
    facts: dict[str, Any],
) -> None:
    """Log what changed since the run began, write its record, and create its repository."""
    resume_point = find_resume_point(folder, run.resume_from, job.config.run.resume)
    if resume_point:
        log_changes(resume_point, run)
    if not run.world.is_main:
        log.open(folder)
    with distributed.main_first(run.world):
        if run.world.is_main:
            _write_record(folder, preset, job, command, facts)
            log.open(folder)
            if job.config.run.push_to_hub is not None:
                is_private = job.config.run.hub_private_repo
                save.create_repository(job.config.run.push_to_hub, is_private=is_private)


def _write_record(
    folder: Path, preset: str, job: Job, command: Sequence[str], facts: dict[str, Any]
) -> None:
    """Write settings, command and tokenizer of the run."""
    with writing(folder):
        run_files.write_run_record(folder, preset, job.config, command, facts)
        longest = job.config.model.max_position_embeddings
        save_tokenizer(job.prepared.tokenizer, folder / "tokenizer", longest)


def _export(job: Job, result: RunResult, command: Sequence[str]) -> RunResult:
    """Export the models, write card and report, upload them, and add the final report."""
    folder = result.folder
    facts = run_card.run_facts(job.config, result.metrics, result.step)
    save_models(job, folder, facts)
    with writing(folder):
        public_command = run_files.format_command(command, is_public=True)
        run_card.write_card(folder, public_command, job.config, facts)
        write_report(folder, folder / run_files.REPORT)
    text = summary.final_report(job, result.metrics, folder)
    run_log.log_to_file(_COLOUR.sub("", text))
    repository = job.config.run.push_to_hub
    if repository is not None:
        save.upload(folder, repository, f"Step {result.step}", save.RUN_PARTS)
    return replace(result, summary=text)


def save_models(job: Job, folder: Path, facts: card.Facts | None = None) -> None:
    """Save the generator and the discriminator, those that there are, as folders in `folder`."""
    objective = job.objective.cpu().eval()
    for name in ("generator", "discriminator"):
        model = getattr(objective, name)
        if model is not None:
            model.embeddings.merge_base()
            save.save_model(model, job.prepared.tokenizer, folder / name, facts=facts)
