"""Raw text to a pretrained encoder: prepare, build, check, train, evaluate, export, report.

python Pretraining.py
python Pretraining.py --corpus my.txt --preset small --output_dir runs/mine
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.command_line import check_can_write, print_results, report
from electra_albert.apps.pretrain.options import parse_pretraining, refuse_idle_options
from electra_albert.config import PretrainConfig
from electra_albert.contracts import STOPPED_BY_SIGNAL, RunResult, UsageError, UserError

if TYPE_CHECKING:
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.training.distributed import World

LOG = logging.getLogger(__name__)

RUNS = Path("runs")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert pretrain`; returns the exit code."""
    preset, config = parse_pretraining(argv)
    from electra_albert.training.distributed import leave, start

    world = start(config.run.device)
    try:
        result = run_pretraining(preset, config, world, ["Pretraining.py", *argv])
        print_results(result.summary)
        code = STOPPED_BY_SIGNAL if result.is_stopped else 0
    except UserError as error:
        code = report(error)
    return leave(world, code)


def pretrain(config: PretrainConfig | None = None, **options: Any) -> RunResult:
    """Pretrain an encoder on text, or resume a run that was stopped.

    `options` are those of `electra-albert pretrain` by name; a group is a mapping: model={"num_hidden_layers": 6}.
    A `config` stands for all of them. Returns the run's folder, held-out metrics and steps. Raises UsageError,
    DataError, CheckpointError or DivergedError.
    """
    from electra_albert.training.distributed import start, stop
    from electra_albert.training.run_log import console_log

    if config is not None and options:
        raise UsageError(f"give either a config or options such as {next(iter(options))}, not both")
    argv = ["--config", json.dumps(options, default=str)] if options else []
    preset, parsed = parse_pretraining(argv)
    grouped = [f"--{name}.{option}" for name, group in options.items() if isinstance(group, dict) for option in group]
    refuse_idle_options([*grouped, *(f"--{name}" for name in options)], parsed)
    config = config or parsed
    world = start(config.run.device)
    try:
        with console_log():
            result = run_pretraining(preset, config, world, ["Pretraining.py", *argv])
            LOG.info(result.summary)
        return result
    finally:
        stop(world)


def run_pretraining(preset: str, config: PretrainConfig, world: World, command: Sequence[str]) -> RunResult:
    """Train to the end or until stopped by a signal, then export. `command` is what model card and folder record."""
    from electra_albert.apps.machine import one_line_errors, peak_memory
    from electra_albert.apps.pretrain.evaluation import evaluator
    from electra_albert.apps.pretrain.generator_warmup import warm_up
    from electra_albert.apps.pretrain.job import job_settings, make_job
    from electra_albert.apps.pretrain.resume import check_settings, log_changes
    from electra_albert.apps.pretrain.summary import plan_lines
    from electra_albert.apps.pretrain.trial import measure
    from electra_albert.training.checkpoint import find_checkpoint, read_state
    from electra_albert.training.distributed import main_first
    from electra_albert.training.guards import StopSignal, run_lock
    from electra_albert.training.loop import train
    from electra_albert.training.monitor import Monitor
    from electra_albert.training.run_log import RunLog, log_shown
    from electra_albert.training.step import RunSettings

    folder = run_folder(config, preset)
    with main_first(world):
        _check_folder(config, folder)
    with ExitStack() as stack:
        log = stack.enter_context(RunLog())
        found = find_checkpoint(folder / "checkpoints", config.run.resume)
        check_settings(folder, found, preset, config, world.world_size)
        state = read_state(found) if found else None
        stack.enter_context(one_line_errors(config.training, config.run.torch_compile))
        job = make_job(config, world, state["settings"] if state else None)
        for line in plan_lines(job, world):
            LOG.info(line)
        if config.run.dry_run:
            for line in measure(job, world, state["step"] if state else 0):
                LOG.info(line)
            return RunResult(folder, {}, 0)
        with main_first(world):
            if world.is_main:
                stack.enter_context(run_lock(folder))
        if found != find_checkpoint(folder / "checkpoints", config.run.resume):
            raise UsageError(f"another run has written into {folder} just now; start again to resume it")
        run = RunSettings(
            folder,
            config.training,
            world,
            stack.enter_context(Monitor(folder, config.training.max_steps, is_main=world.is_main)),
            stack.enter_context(StopSignal()),
            job.arithmetic,
            found,
            scores_start=job.origin is not None,
            rate_scales=job.objective.rate_scales,
            settings=job_settings(preset, job, world),
        )
        log_changes(run)
        _record(job, folder, preset, command, run.settings, world)
        if world.is_main:
            log.open(folder)
        if job.lacks_generator and not warm_up(job, run):
            return RunResult(folder, {}, 0, is_stopped=True)
        outcome = train(job.objective, job.batches, evaluator(job, run), run)
        LOG.info(f"peak memory: {peak_memory(world.device) / 1e9:.2f} GB")
        result = RunResult(folder, outcome.metrics, outcome.step, outcome.is_stopped)
        if world.is_main and not outcome.is_stopped:
            result = result._replace(summary=_export(job, result, command))
            log_shown(_COLOUR.sub("", result.summary))
    return result


def _check_folder(config: PretrainConfig, folder: Path) -> None:
    from electra_albert.apps.run_folder import check_is_ours

    check_can_write(folder)
    check_is_ours(folder)
    init_from = config.run.init_from
    if init_from is not None and Path(init_from).resolve() == folder.resolve():
        raise UsageError(f"--init_from {init_from} is the run's own folder; name another --output_dir")


def run_folder(config: PretrainConfig, preset: str) -> Path:
    """The run's folder: as asked for, or named after corpus and preset."""
    from electra_albert.apps.prepare.main import short_name

    if config.run.output_dir:
        return Path(config.run.output_dir)
    return RUNS / f"{short_name(config.corpus.corpus)}-{preset}"


def _record(job: Job, folder: Path, preset: str, command: Sequence[str], settings: Any, world: World) -> None:
    """Write the run's settings and tokenizer into its folder."""
    from electra_albert.apps.run_folder import describe_run, writing
    from electra_albert.corpus.tokenizer import save_tokenizer
    from electra_albert.training.distributed import main_first

    with main_first(world):
        if world.is_main:
            with writing(folder):
                describe_run(folder, preset, job.config, command, dict(settings))
                save_tokenizer(job.prepared.tokenizer, folder / "tokenizer", job.config.model.max_position_embeddings)


def _export(job: Job, result: RunResult, command: Sequence[str]) -> str:
    """Export both models and write the card; returns the closing report."""
    from electra_albert.apps.pretrain.summary import closing_report
    from electra_albert.apps.run_folder import run_facts, write_card, writing
    from electra_albert.hub.save import save_model

    folder, facts = result.folder, run_facts(job.config, result.metrics, result.step)
    objective, tokenizer = job.objective.cpu().eval(), job.prepared.tokenizer
    save_model(objective.generator, tokenizer, folder / "generator", facts=facts)
    if objective.discriminator is not None:
        save_model(objective.discriminator, tokenizer, folder / "discriminator", facts=facts)
    with writing(folder):
        write_card(folder, shlex.join(["python", *command]), job.config, facts)
    return closing_report(job, result.metrics, folder)
