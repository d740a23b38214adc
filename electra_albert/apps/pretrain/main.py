"""Raw text to a pretrained encoder: prepare, build, check, train, evaluate, export, show.

python Pretraining.py
python Pretraining.py --corpus my.txt --preset small --output_dir runs/mine
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from electra_albert.apps.command_line import check_can_write, last_output, parse_pretraining, report
from electra_albert.config import PretrainConfig
from electra_albert.contracts import STOPPED_BY_SIGNAL, Metrics, UsageError, UserError

if TYPE_CHECKING:
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.training.distributed import World
    from electra_albert.training.loop import Outcome
    from electra_albert.training.settings import RunSettings

LOG = logging.getLogger(__name__)

RUNS = Path("runs")


def main(argv: Sequence[str]) -> int:
    """Entry point of Pretraining.py; returns the exit code."""
    preset, config = parse_pretraining(argv, "Pretraining.py")
    from electra_albert.training.distributed import leave, start

    world = start(config.run.device)
    try:
        code = _run(argv, preset, config, world)
    except UserError as error:
        code = report(error)
    return leave(world, code)


def _run(argv: Sequence[str], preset: str, config: PretrainConfig, world: World) -> int:
    from electra_albert.apps.obstacles import told_in_one_line
    from electra_albert.apps.pretrain.closing import peak_memory_line, plan_lines
    from electra_albert.apps.pretrain.estimate import estimate_lines
    from electra_albert.apps.pretrain.job import job_settings, make_job
    from electra_albert.apps.pretrain.taking_up import check_settings
    from electra_albert.apps.run_folder import check_is_ours
    from electra_albert.training.checkpoint import find_checkpoint, read_state
    from electra_albert.training.distributed import main_first
    from electra_albert.training.guards import RunLock, StopSignal
    from electra_albert.training.monitor import Monitor
    from electra_albert.training.run_log import RunLog
    from electra_albert.training.settings import RunSettings

    folder = run_folder(config, preset)
    with main_first(world):
        check_can_write(folder)
        check_is_ours(folder)
        _require_another(config.run.init_from, folder)
    with ExitStack() as stack:
        log = stack.enter_context(RunLog())
        monitor = stack.enter_context(Monitor(folder, config.training.max_steps, is_main=world.is_main))
        found = find_checkpoint(folder / "checkpoints", config.run.resume)
        check_settings(folder, found, preset, config, world.world_size)
        state = read_state(found) if found else None
        with told_in_one_line(config.training, "none"):
            job = make_job(config, world, state["settings"] if state else None)
        for line in plan_lines(job, world):
            LOG.info(line)
        if config.run.dry_run:
            for line in estimate_lines(job, world, state["step"] if state else 0):
                LOG.info(line)
            return 0
        with main_first(world):
            if world.is_main:
                stack.enter_context(RunLock(folder))
        if found != find_checkpoint(folder / "checkpoints", config.run.resume):
            raise UsageError(f"another run has written into {folder} just now; start again to go on from there")
        stop = stack.enter_context(StopSignal())
        run = RunSettings(folder, config.training, world, monitor, stop, job.arithmetic, found)
        run = replace(
            run,
            scores_start=job.origin is not None,
            rate_scales=job.objective.rate_scales,
            settings=job_settings(preset, job, world),
        )
        _open_run_folder(run, job, preset, argv)
        if world.is_main:
            log.open(folder)
        outcome = _train(job, run)
        LOG.info(peak_memory_line(world.device))
        if outcome is None or outcome.is_stopped:
            return STOPPED_BY_SIGNAL
        if world.is_main:
            _finish(job, folder, argv, outcome.metrics, outcome.step)
    return 0


def _train(job: Job, run: RunSettings) -> Outcome | None:
    """Train to the end or until told to stop; None where that was while the generator was warmed up."""
    from electra_albert.apps.obstacles import told_in_one_line
    from electra_albert.apps.pretrain.evaluation import evaluator
    from electra_albert.apps.pretrain.generator_warmup import warm_up
    from electra_albert.training.loop import train

    with told_in_one_line(run.config, job.compilation):
        if job.lacks_generator and not warm_up(job, run):
            return None
        return train(job.objective, job.batches, evaluator(job, run), run)


def _require_another(init_from: str | None, folder: Path) -> None:
    if init_from is not None and Path(init_from).resolve() == folder.resolve():
        raise UsageError(f"--init_from {init_from} is the run's own folder; name another --output_dir")


def run_folder(config: PretrainConfig, preset: str) -> Path:
    """The run's folder: as asked for, or named after corpus and preset."""
    from electra_albert.apps.prepare.folder import short_name

    if config.run.output_dir:
        return Path(config.run.output_dir)
    return RUNS / f"{short_name(config.corpus.corpus)}-{preset}"


def _open_run_folder(run: RunSettings, job: Job, preset: str, argv: Sequence[str]) -> None:
    """Refuse a checkpoint of another run, say what else has changed since, then record this one."""
    from electra_albert.apps.pretrain.taking_up import say_changes
    from electra_albert.apps.run_folder import describe_run, writing
    from electra_albert.corpus.tokenizer import save_tokenizer
    from electra_albert.training.distributed import main_first

    folder = run.folder
    say_changes(run)
    with main_first(run.world):
        if run.world.is_main:
            with writing(folder):
                describe_run(folder, preset, job.config, ["Pretraining.py", *argv], dict(run.settings))
                save_tokenizer(job.prepared.tokenizer, folder / "tokenizer", job.config.model.max_position_embeddings)


def _finish(job: Job, folder: Path, argv: Sequence[str], metrics: Metrics, steps: int) -> None:
    """Export both models, write the card, and show what was learned."""
    from electra_albert.apps.export.models import export_discriminator, export_generator
    from electra_albert.apps.pretrain.closing import print_closing
    from electra_albert.apps.run_folder import run_facts, write_card, writing

    facts = run_facts(job.config, metrics, steps)
    objective, tokenizer = job.objective.cpu().eval(), job.prepared.tokenizer
    export_generator(objective.generator, tokenizer, folder / "generator", facts=facts)
    if objective.discriminator is not None:
        export_discriminator(objective.discriminator, tokenizer, folder / "discriminator", facts=facts)
    with writing(folder):
        write_card(folder, shlex.join(["python", "Pretraining.py", *argv]), job.config, facts)
    with last_output():
        print_closing(job, metrics, folder)
