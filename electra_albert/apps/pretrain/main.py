"""Pretrain an encoder on raw text: prepare, build, check, train, evaluate, export, report."""

import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps import run_folder as files
from electra_albert.apps.command_line import check_can_write, print_results, started_as
from electra_albert.apps.pretrain.options import parse_pretraining, refuse_idle_options
from electra_albert.config import PretrainConfig
from electra_albert.contracts import LOG, RunResult, UsageError

if TYPE_CHECKING:
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.training.distributed import World

RUNS = Path("runs")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert pretrain`; returns the exit code."""
    preset, config = parse_pretraining(argv)
    from electra_albert.training.distributed import start

    world = start(config.run.device, config.training.ddp_timeout)
    return print_results(run_pretraining(preset, config, world, started_as("pretrain", argv)))


def pretrain(config: PretrainConfig | None = None, **options: Any) -> RunResult:
    """Pretrain an encoder on text, or resume a stopped run.

    `options` are those of `electra-albert pretrain` by name; a group is a mapping: model={"num_hidden_layers": 6}.
    `config` is given instead of options. Returns the run's folder, held-out metrics and steps. Raises UsageError,
    DataError, CheckpointError or DivergedError.
    """
    from electra_albert.training.distributed import start, stop
    from electra_albert.training.run_log import console_log

    if config is not None and options:
        raise UsageError(f"give either a config or options such as {next(iter(options))}, not both")
    argv = ["--config", json.dumps(options, default=str)] if options else []
    preset, parsed = parse_pretraining(argv)
    names = [f"{name}.{each}" for name, group in options.items() if isinstance(group, dict) for each in group]
    refuse_idle_options([f"--{name}" for name in (*names, *options)], parsed)
    config = config or parsed
    world = start(config.run.device, config.training.ddp_timeout)
    try:
        with console_log():
            result = run_pretraining(preset, config, world, started_as("pretrain", argv))
            LOG.info(result.summary)
        return result
    finally:
        stop(world)


def run_pretraining(preset: str, config: PretrainConfig, world: "World", command: Sequence[str]) -> RunResult:
    """Train, then export unless a signal stopped the run. `command` is recorded in its folder and model card."""
    from electra_albert.apps import machine
    from electra_albert.apps.pretrain import alarms, budget, evaluation, generator_warmup, summary, trial
    from electra_albert.apps.pretrain.job import job_settings, make_job
    from electra_albert.hub import save
    from electra_albert.inference.scoring import read_sets
    from electra_albert.training import checkpoint, distributed, graphs, guards, loop, run_log, step
    from electra_albert.training.monitor import Monitor, check_trackers

    folder = run_folder(config, preset)
    with distributed.main_first(world):
        _check_folder(folder, config)
    check_trackers(config.training.report_to)
    with ExitStack() as stack:
        log = stack.enter_context(run_log.RunLog())
        found = checkpoint.find_checkpoint(folder / "checkpoints", config.run.resume)
        if resume_point := files.find_resume_point(folder, found):
            config = budget.recorded_plan(config, resume_point[1], world.world_size)
            files.check_settings(resume_point, preset, config, world.world_size)
        state = resume_point[1] if resume_point and found else None
        stack.enter_context(machine.one_line_errors(config.training, config.run.torch_compile))
        stack.enter_context(distributed.naming_lost_ranks(world, log.take_over))
        job = make_job(config, world, state["settings"] if state else None)
        job = job if resume_point else budget.planned(job, world)
        config = job.config
        if (pairs := config.run.eval_pairs) is not None:  # read, to refuse wrong ones before the training
            read_sets(Path(pairs), job.prepared.tokenizer, config.model.max_position_embeddings)
        timed = trial.measure(job, world, state["step"] if state else 0) if config.run.dry_run else ()
        for line in chain(summary.start_lines(job, world), budget.suggestion(job), timed):
            LOG.info(line)
        if config.run.dry_run:
            return RunResult(folder, {}, 0)
        with distributed.main_first(world):
            if world.is_main:
                text, is_enough = trial.disk_space(job, folder, state["step"] if state else 0)
                if not is_enough:
                    raise UsageError(f"{folder}: {text}; {trial.DISK_ADVICE}")
                stack.enter_context(guards.run_lock(folder))
        if found != checkpoint.find_checkpoint(folder / "checkpoints", config.run.resume):
            raise UsageError(f"another run has just written into {folder}; start again to resume it")
        stop, settings = stack.enter_context(guards.StopSignal()), job_settings(preset, job, world)
        training, outputs = config.training, (folder, config.training.max_steps, config.training.report_to)
        monitor = Monitor(*outputs, is_main=world.is_main, settings=settings, alarms=alarms.Alarms(config))
        stack.enter_context(monitor)
        pace = budget.Pace(config.run.budget_seconds, training.eval_steps, monitor) if config.run.budget else None
        run = step.RunSettings(
            folder,
            training,
            world,
            monitor,
            stop,
            job.arithmetic,
            resume_from=found,
            settings=settings,
            plan=pace,
            eval_on_start=job.origin is not None,
            lr_multipliers=job.objective.lr_multipliers,
            record=graphs.CudaRecorder(world.device) if job.is_recorded else None,
        )
        if resume_point := files.find_resume_point(folder, found):
            files.log_changes(resume_point, run)
        record = {"settings": settings, **summary.record(job, world)}
        if not world.is_main:
            log.open(folder)
        with distributed.main_first(world):
            if world.is_main:
                _record(folder, preset, job, command, record)
                log.open(folder)
                if (repository := config.run.push_to_hub) is not None:
                    save.create_repository(repository, is_private=config.run.hub_private_repo)
        if job.lacks_generator and not generator_warmup.warm_up(job, run):
            return RunResult(folder, {}, 0, is_stopped=True)
        evaluate = evaluation.evaluator(job, run)
        evaluate = pace.timed(evaluate) if pace else evaluate
        outcome = loop.train(job.objective, job.batches, evaluate, run)
        outcome = evaluation.average(job, run, evaluate, outcome)
        LOG.info(f"peak memory: {machine.peak_memory(world.device) / 1e9:.2f} GB")
        result = RunResult(folder, outcome.metrics, outcome.step, outcome.is_stopped)
        if world.is_main and not outcome.is_stopped:
            if run.plan is not None:
                job = job._replace(config=replace(config, training=replace(training, max_steps=outcome.step)))
                _record(folder, preset, job, command, record | {"settings": job_settings(preset, job, world)})
            result = result._replace(summary=_export(job, result, command))
            run_log.log_to_file(_COLOUR.sub("", result.summary))
            if config.run.push_to_hub is not None:
                save.upload(folder, config.run.push_to_hub, f"Step {outcome.step}", save.RUN_PARTS)
    return result


def _check_folder(folder: Path, config: PretrainConfig) -> None:
    """Raise UsageError if the run cannot write into its folder, or would overwrite its initial weights."""
    check_can_write(folder)
    files.check_is_ours(folder)
    if (source := config.run.init_from) is not None and Path(source).resolve() == folder.resolve():
        raise UsageError(f"--init_from {source} is the run's own folder; name another --output_dir")


def run_folder(config: PretrainConfig, preset: str) -> Path:
    """The run's folder: output_dir, or by default a name from corpus and preset."""
    from electra_albert.apps.prepare import short_name

    return Path(config.run.output_dir or RUNS / f"{short_name(config.corpus.corpus)}-{preset}")


def _record(folder: Path, preset: str, job: "Job", command: Sequence[str], record: dict[str, Any]) -> None:
    """Write settings, command and tokenizer of the run."""
    from electra_albert.corpus.tokenizer import save_tokenizer

    with files.writing(folder):
        files.write_run_record(folder, preset, job.config, command, record)
        save_tokenizer(job.prepared.tokenizer, folder / "tokenizer", job.config.model.max_position_embeddings)


def _export(job: "Job", result: RunResult, command: Sequence[str]) -> str:
    """Export the models, write the card, and return the final report."""
    from electra_albert.apps.pretrain.summary import final_report
    from electra_albert.apps.report import write_report
    from electra_albert.hub.save import save_model

    folder, facts = result.folder, files.run_facts(job.config, result.metrics, result.step)
    objective = job.objective.cpu().eval()
    for name, model in (("generator", objective.generator), ("discriminator", objective.discriminator)):
        if model is not None:
            model.embeddings.merge_base()
            save_model(model, job.prepared.tokenizer, folder / name, facts=facts)
    with files.writing(folder):
        files.write_card(folder, files.format_command(command, is_public=True), job.config, facts)
        write_report(folder, folder / files.REPORT)
    return final_report(job, result.metrics, folder)
