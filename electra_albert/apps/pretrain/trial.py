"""Cost of a run: disk space, and for --dry_run FLOPs from the shapes, memory and time from a few trial steps.

The trial steps change the job's weights, so the job cannot be trained afterwards.
"""

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import cast

import torch
from torch.utils.benchmark import timer
from torch.utils.flop_counter import FlopCounterMode

from electra_albert.apps.machine import memory_advice, memory_of, peak_memory
from electra_albert.apps.pretrain.job import Job
from electra_albert.config import PretrainConfig
from electra_albert.contracts import Batch, Objective, SpecialIds
from electra_albert.corpus.examples import eval_batches
from electra_albert.hub.load import locate, read_config
from electra_albert.model import electra
from electra_albert.objectives import evaluation, rtd, spec_of
from electra_albert.training.checkpoint import is_milestone, list_checkpoints
from electra_albert.training.distributed import World
from electra_albert.training.graphs import WARM_CALLS, CudaRecorder, own_stream
from electra_albert.training.monitor import Monitor
from electra_albert.training.optimizer import MUON_ITERATIONS, checkpoint_bytes
from electra_albert.training.signals import StopSignal
from electra_albert.training.step import RunSettings, TrainingStep, autocast, count_step

_TIMED_SECONDS, _MOST = 10.0, 20  # limits of timing micro-batches: seconds and number
NOT_TIMED = "not timed"  # start of the line for a model that does not fit into memory
_STATE_BYTES = 16  # per parameter: weight, gradient and Adam's two moments in float32
DISK_ADVICE = "free disk space, lower --save_total_limit or name another --output_dir"


def disk_space(job: Job, folder: Path, done_steps: int = 0) -> tuple[str, bool]:
    """Bytes for the checkpoints after done_steps and free ones on the disk of the run's folder; if they are enough."""
    training = job.config.training
    size = checkpoint_bytes(job.objective, training)
    due = ceil(training.max_steps / training.save_steps) - ceil(done_steps / training.save_steps)
    first, steps = training.save_milestones, [step for step, _ in list_checkpoints(folder / "checkpoints")]
    others = training.max_steps - training.save_total_limit * training.save_steps  # steps before the last checkpoints
    kept = sum(done_steps < first << power < others for power in range(32))
    more = training.save_total_limit + 1 - sum(not is_milestone(step, first) for step in steps)
    needed = size * min(due, max(1, more) + kept)  # a checkpoint is written before an old one is removed
    free = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free
    return f"checkpoints need {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free", needed <= free


def measure(job: Job, world: World, done_steps: int = 0) -> Iterator[str]:
    """Report lines on FLOPs, memory and time of the steps after done_steps, each as soon as it is known."""
    training, device, count = job.config.training, world.device, flops_per_step(job.config, world.world_size)
    token = count / (job.batches.global_batch_size * job.config.corpus.max_seq_length)
    yield f"FLOPs: {token:.3g} per token, {count:.3g} per step (matrix products, forward and backward, with padding)"
    state = _STATE_BYTES * sum(parameter.numel() for parameter in job.objective.parameters())
    state += sum(parameter.nbytes for parameter in job.fixed.parameters()) if job.fixed else 0
    yield f"memory: {state / 1e9:.2f} GB for weights, gradients and optimizer state, plus activations"
    if state > memory_of(device):
        yield f"{NOT_TIMED}: {device} has {memory_of(device) / 1e9:.1f} GB; to train here, {memory_advice(training)}"
        return
    yield "timing a few micro-batches …"
    step, example = time_parts(job, world)
    yield f"peak memory measured: {peak_memory(device) / 1e9:.2f} GB"
    steps = max(0, training.max_steps - done_steps)
    seconds = step * steps
    held_out = [job.held_out, job.origin.held_out if job.origin else None]
    scored = sum(ceil(min(training.eval_examples, part.table.count) / world.world_size) for part in held_out if part)
    evaluations = ceil(training.max_steps / training.eval_steps) - done_steps // training.eval_steps
    # A resumed run repeats the evaluation of its checkpoint; a run with --budget or --init_from starts with one.
    is_repeated = done_steps > 0 and done_steps % training.eval_steps == 0
    is_first = done_steps == 0 and job.origin is not None
    evaluations += is_repeated or is_first or job.config.run.budget is not None
    scoring = evaluations * scored * example
    apart = "" if world.world_size == 1 else f", without communication between {world.world_size} processes"
    parts = f"{steps:,} steps in {_short(seconds)}, {evaluations:,} evaluations in {_short(scoring)}"
    yield f"time: {_short(step)} per step{apart}: {parts}, {_short(seconds + scoring)} in total"


def flops_per_step(config: PretrainConfig, world_size: int = 1) -> int:
    """FLOPs of the matrix products of one step, of all processes."""
    training = config.training
    examples = training.per_device_train_batch_size * training.gradient_accumulation_steps
    return world_size * (examples * _example_flops(config) + optimizer_flops(config))


def _example_flops(config: PretrainConfig) -> int:
    try:
        return _count_flops(config, "meta")  # shapes without numbers or memory
    except RuntimeError:  # an objective reads the value of a tensor
        return _count_flops(config, "cpu")


def _count_flops(config: PretrainConfig, device: str) -> int:
    with torch.device(device):
        special = SpecialIds(0, 1, 2, 3, 4, (), torch.ones(config.model.vocab_size, dtype=torch.bool))
        fixed = None
        if spec_of(config).has_discriminator and not config.rtd.trains_generator:
            shape = read_config(locate(Path(config.rtd.generator), "generator"))
            fixed = electra.Generator(replace(shape, vocab_size=config.model.vocab_size)).requires_grad_(False)
        objective = rtd.make_objective(config, special, fixed)
        ids = torch.zeros(1, config.corpus.max_seq_length, dtype=torch.int64)
        batch = Batch(ids, ids.bool(), ids, ids[:, 0], ids[:, 0])
        with FlopCounterMode(display=False) as counter:
            terms = objective(batch)
            torch.autograd.backward(torch.stack([terms[name].sum for name in objective.weights]).sum())
    return int(counter.get_total_flops())


def optimizer_flops(config: PretrainConfig) -> int:
    """FLOPs of the matrix products of Muon in one step; 0 for the other optimizers."""
    if config.training.optimizer != "muon":
        return 0
    spec = spec_of(config)
    generator = None if spec.has_discriminator and config.rtd.generator == "shared" else spec.generator(config)
    total = 0
    for model in filter(None, (generator, config.model if spec.has_discriminator else None)):
        hidden, (small, large) = model.hidden_size, sorted((model.hidden_size, model.intermediate_size))
        shapes = [(hidden, hidden)] * 4 + [(small, large)] * 2  # query, key, value, output; feed-forward
        of_block = sum(MUON_ITERATIONS * (4 * m * m * n + 2 * m**3) for m, n in shapes)
        total += model.num_hidden_groups * model.inner_group_num * of_block
    return total


def quiet_run(job: Job, world: World) -> RunSettings:
    """Settings for steps of one process that are not logged."""
    monitor = Monitor(Path(), 1, is_main=False)
    return RunSettings(Path(), job.config.training, world._replace(world_size=1), monitor, StopSignal(), job.arithmetic)


def time_parts(job: Job, world: World) -> tuple[float, float]:
    """Seconds of one step, from the median of its micro-batches with data loading, and of scoring one example."""
    training, device, objective = job.config.training, world.device, cast(Objective, job.objective)
    record = CudaRecorder(device) if job.is_recorded else None
    run = replace(quiet_run(job, world), record=record)
    training_step = TrainingStep(job.objective, run)
    size = min(training.eval_examples, training.per_device_eval_batch_size, training.per_device_train_batch_size)
    held_out = next(eval_batches(job.held_out, size, size))
    job.objective.train()

    def micro_batch() -> None:
        batch = next(stream)[:1]
        counts = count_step(objective, batch, run)
        training_step.accumulate(batch, training_step.scales(counts.terms), 1)

    batches = closing(cast("Generator[list[Batch]]", job.batches.steps(1)))
    with own_stream(device), batches as stream:
        training_step.check(next(stream)[0], 1)  # compiles and allocates memory
        for _ in range(1 if record is None else WARM_CALLS + 1):
            micro_batch()
            training_step.finish()
        seconds: list[float] = []
        while not seconds or (len(seconds) < _MOST and sum(seconds) < _TIMED_SECONDS):
            seconds.append(_timed(micro_batch))
        step = training.gradient_accumulation_steps * median(seconds) + _timed(training_step.finish)
    job.objective.eval()
    with torch.no_grad(), autocast(device, job.arithmetic):
        scoring = _timed(lambda: job.objective.score(held_out.to(device), job.unigram, evaluation.Detections()))
    return step, scoring / size


def _timed(action: Callable[[], object]) -> float:
    """Seconds of `action`, with its work on a GPU."""
    began = timer()
    action()
    return timer() - began


def _short(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
