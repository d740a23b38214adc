"""Raw text to a pretrained encoder: prepare, build, check, train, evaluate, export, show.

python Pretraining.py
python Pretraining.py --corpus my.txt --preset small --output_dir runs/mine
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import check_can_write, parse_pretraining
from electra_albert.config import PretrainConfig
from electra_albert.contracts import STOPPED_BY_SIGNAL, DataError, Metrics, UsageError

if TYPE_CHECKING:
    import torch

    from electra_albert.apps.prepare import Prepared
    from electra_albert.corpus.batches import TrainBatches
    from electra_albert.corpus.examples import Rows
    from electra_albert.objectives.evaluation import Unigram
    from electra_albert.objectives.rtd import ReplacedTokenDetection
    from electra_albert.training.distributed import World
    from electra_albert.training.guards import StopSignal
    from electra_albert.training.loop import Evaluate, Outcome
    from electra_albert.training.monitor import Monitor

RUNS = Path("runs")


class Job(NamedTuple):
    """Everything a run trains with, ready to start."""

    config: PretrainConfig  # with the tokenizer's vocabulary
    prepared: Prepared
    objective: ReplacedTokenDetection
    batches: TrainBatches
    held_out: Rows
    unigram: Unigram


def main(argv: Sequence[str]) -> int:
    """Entry point of Pretraining.py; returns the exit code."""
    preset, config = parse_pretraining(argv, "Pretraining.py")
    from electra_albert.training.distributed import leave, start

    world = start(config.run.device)
    return leave(world, _run(argv, preset, config, world))


def _run(argv: Sequence[str], preset: str, config: PretrainConfig, world: World) -> int:
    from electra_albert.apps.closing import plan_lines
    from electra_albert.training.checkpoint import find_checkpoint
    from electra_albert.training.guards import RunLock, StopSignal
    from electra_albert.training.monitor import Monitor

    folder = run_folder(config, preset)
    if world.is_main:
        check_can_write(folder)
    with (
        StopSignal() as stop,
        Monitor(folder, config.training.max_steps, is_main=world.is_main) as monitor,
    ):
        job = make_job(config, world, monitor)
        for line in plan_lines(job.config, job.objective, job.batches, job.held_out, world):
            monitor.say(line)
        if config.run.dry_run:
            return 0
        with RunLock(folder) if world.is_main else nullcontext():
            found = find_checkpoint(folder / "checkpoints", config.run.resume, monitor.say)
            settings = _open_run_folder(folder, preset, job, argv, world, monitor, is_resumed=found is not None)
            outcome = _train(job, folder, world, monitor, stop, found, settings)
            if outcome.is_stopped:
                return STOPPED_BY_SIGNAL
            if world.is_main:
                _finish(job, folder, argv, outcome.metrics, outcome.step)
    return 0


def run_folder(config: PretrainConfig, preset: str) -> Path:
    """The run's folder: as asked for, or named after corpus and preset."""
    if config.run.output_dir:
        return Path(config.run.output_dir)
    name = Path(config.corpus.corpus.rstrip("/*?[]")).stem or "corpus"
    return RUNS / f"{name}-{preset}"


def make_job(config: PretrainConfig, world: World, monitor: Monitor) -> Job:
    """Prepare the corpus (one process does, the others find it done), build the pair and check it."""
    import torch

    from electra_albert.apps.prepare import prepare
    from electra_albert.apps.self_check import self_check
    from electra_albert.corpus.batches import TrainBatches
    from electra_albert.corpus.examples import Rows
    from electra_albert.keyed_random import Stream, derived_seed
    from electra_albert.objectives.evaluation import Unigram
    from electra_albert.objectives.masking import SpecialIds
    from electra_albert.objectives.rtd import ReplacedTokenDetection
    from electra_albert.training.distributed import main_first

    training, length, seed = config.training, config.corpus.max_seq_length, config.training.seed
    with main_first(world):
        prepared = prepare(config.corpus, seed, monitor.say)
    store, tokenizer = prepared.store, prepared.tokenizer
    rows = Rows(store.train, prepared.train_table, length, seed)
    held_out = Rows(store.validation, prepared.validation_table, length, seed)
    config = replace(config, model=replace(config.model, vocab_size=len(tokenizer)))
    batches = TrainBatches(
        rows,
        seed,
        training.per_device_train_batch_size,
        training.gradient_accumulation_steps,
        world.rank,
        world.world_size,
        pin_memory=world.device.type == "cuda",
    )
    if batches.global_batch_size > rows.table.count:
        raise DataError(
            f"the corpus gives {rows.table.count} rows, one update takes {batches.global_batch_size}; "
            "lower --per_device_train_batch_size or give more text"
        )
    if held_out.table.count < world.world_size:
        raise DataError(
            f"the corpus holds out {held_out.table.count} rows for {world.world_size} processes; give more text"
        )
    torch.manual_seed(derived_seed(seed, Stream.DROPOUT))
    special = SpecialIds(tokenizer.mask_token_id, tuple(sorted(tokenizer.all_special_ids)))
    objective = ReplacedTokenDetection(config.model, config.rtd, special, seed).to(world.device)
    self_check(objective, batches.micro_batches(1)[0], training.weight_decay, monitor.say)
    unigram = Unigram.from_counts(store.token_counts, special.never_masked)
    return Job(config, prepared, objective, batches, held_out, unigram)


def job_settings(preset: str, job: Job, world: World) -> dict[str, Any]:
    """What is recorded of a run and compared when it is taken up again: its options, its batch and its corpus."""
    from electra_albert.apps.run_folder import run_settings
    from electra_albert.corpus.tokenizer import fingerprint

    corpus = {"store": job.prepared.store.fingerprint, "tokenizer_fingerprint": fingerprint(job.prepared.tokenizer)}
    return run_settings(preset, job.config, world.world_size, corpus)


def _open_run_folder(
    folder: Path, preset: str, job: Job, argv: Sequence[str], world: World, monitor: Monitor, *, is_resumed: bool
) -> dict[str, Any]:
    """Refuse a folder of another run, then record this one. Returns what each checkpoint records of it."""
    from electra_albert.apps.run_folder import check_same_run, describe_run
    from electra_albert.corpus.tokenizer import save_tokenizer

    settings = job_settings(preset, job, world)
    if is_resumed:
        for change in check_same_run(folder, settings):
            monitor.say(f"changed since the run began: {change}")
    if world.is_main:
        try:
            describe_run(folder, preset, job.config, argv, settings)
            save_tokenizer(job.prepared.tokenizer, folder / "tokenizer", job.config.model.max_position_embeddings)
        except OSError as error:
            raise UsageError(f"cannot write into {folder} ({error.strerror}); choose another --output_dir") from None
    return settings


def _train(
    job: Job,
    folder: Path,
    world: World,
    monitor: Monitor,
    stop: StopSignal,
    found: Path | None,
    settings: dict[str, Any],
) -> Outcome:
    from electra_albert.training.loop import Run, train

    use_bf16 = takes_bf16(job.config.training.precision, world.device)
    run = Run(folder, job.config.training, world, monitor, stop, use_bf16, found, settings)
    return train(job.objective, job.batches, _evaluator(job, world, monitor, stop), run)


def takes_bf16(precision: str, device: torch.device) -> bool:
    """Whether matrix products are made in bfloat16: as asked for, or where the processor computes in it."""
    import torch

    if precision == "auto":
        if device.type == "cuda":
            return torch.cuda.is_bf16_supported()
        found = torch.cpu.get_capabilities()
        return any(found.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
    return precision == "bf16"


def _evaluator(job: Job, world: World, monitor: Monitor, stop: StopSignal) -> Evaluate:
    """Scores held-out rows; every rank takes its share and all ranks return the same numbers."""
    import numpy as np
    import torch

    from electra_albert.apps.closing import guesses_in_markdown
    from electra_albert.corpus.batches import eval_batches
    from electra_albert.objectives.evaluation import Detections, detection_scores, score_batch
    from electra_albert.training.distributed import gather_objects
    from electra_albert.training.monitor import Tally, mean

    training = job.config.training

    def evaluate(step: int) -> Metrics | None:
        tally, detections = Tally(world.device), Detections()
        kept = torch.ones((), dtype=torch.bool, device=world.device)
        for batch in eval_batches(
            job.held_out, training.eval_examples, training.per_device_eval_batch_size, world.rank, world.world_size
        ):
            if stop.requested and world.world_size == 1:
                return None
            tally.add(score_batch(job.objective, batch.to(world.device), job.unigram, detections), kept)
        totals = {name: mean(*total) for name, total in tally.take(world).items()}
        gathered = gather_objects(detections.arrays(), world)
        scores, is_replaced = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
        weights = job.objective.weights
        loss = sum(weight * (totals[name] or 0.0) for name, weight in weights.items())
        if world.is_main:
            monitor.text(step, "guesses", guesses_in_markdown(job.objective, job.prepared.tokenizer, job.held_out))
        return {"loss": loss, **totals, **detection_scores(scores, is_replaced, training.seed)}

    return evaluate


def _finish(job: Job, folder: Path, argv: Sequence[str], metrics: Metrics, steps: int) -> None:
    """Export both models, write the card, and show what was learned."""
    from electra_albert.apps.closing import print_closing
    from electra_albert.apps.export import export_discriminator, export_generator
    from electra_albert.apps.run_folder import write_card

    electra, tokenizer = job.objective.electra.cpu().eval(), job.prepared.tokenizer
    export_generator(electra.generator, tokenizer, folder / "generator")
    export_discriminator(electra.discriminator, tokenizer, folder / "discriminator")
    write_card(folder, shlex.join(["python", "Pretraining.py", *argv]), job.config, metrics, steps)
    print_closing(
        job.objective, tokenizer, job.held_out, metrics, folder, is_newest_default=not job.config.run.output_dir
    )
