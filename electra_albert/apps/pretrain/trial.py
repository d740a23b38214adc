"""Cost of a run: disk space, FLOPs from the shapes, memory and time from a few trial steps.

The trial steps change the job's weights, so the job cannot be trained afterwards.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from electra_albert.apps.machine import memory_of, peak_memory
from electra_albert.apps.pretrain.job import Job
from electra_albert.config.pretraining import PretrainConfig
from electra_albert.contracts import Batch, SpecialIds
from electra_albert.corpus.examples import eval_batches
from electra_albert.hub.load import locate, read_config
from electra_albert.model.electra import Generator
from electra_albert.objectives import spec_of
from electra_albert.objectives.evaluation import Detections
from electra_albert.objectives.rtd import make_objective
from electra_albert.training.checkpoint import is_milestone, list_checkpoints
from electra_albert.training.distributed import World
from electra_albert.training.graphs import WARM_CALLS, CudaRecorder, own_stream
from electra_albert.training.monitor import Monitor
from electra_albert.training.optimizer import (
    checkpoint_bytes,
    orthogonalized,
    parameter_groups,
    wide,
)
from electra_albert.training.signals import StopSignal
from electra_albert.training.step import RunSettings, TrainingStep, autocast, count_step

_TIMED_SECONDS = 10.0  # limit of timing micro-batches
_MOST_TIMED = 20
NOT_TIMED = "not timed"  # start of the line for a model that does not fit into memory
DISK_ADVICE = "free disk space, lower --save_total_limit or name another --output_dir"


def disk_space(job: Job, folder: Path, done_steps: int = 0) -> tuple[str, bool]:
    """Bytes for the checkpoints after done_steps, and free ones on the disk; if they are enough."""
    training = job.config.training
    every = training.save_steps
    due = ceil(training.max_steps / every) - ceil(done_steps / every)
    # Milestones stay: save_milestones times 1, 2, 4, 8, …, unless they are among the last ones.
    first = training.save_milestones
    before_last = training.max_steps - training.save_total_limit * every
    milestones = sum(done_steps < first << power < before_last for power in range(32))
    checkpoints = list_checkpoints(folder / "checkpoints")
    removable = sum(not is_milestone(step, first) for step, _ in checkpoints)
    # A checkpoint is written before an old one is removed.
    more = max(1, training.save_total_limit + 1 - removable)
    needed = checkpoint_bytes(job.objective, training) * min(due, more + milestones)
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    text = f"checkpoints need {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free"
    return text, needed <= free


def measure(job: Job, world: World, done_steps: int = 0) -> Iterator[str]:
    """Report lines on the steps after done_steps, each as soon as it is known."""
    training = job.config.training
    device = world.device
    flops = flops_per_step(job.config, world.world_size)
    positions = job.batches.global_batch_size * job.config.corpus.max_seq_length
    yield (
        f"FLOPs: {flops / positions:.3g} per token, {flops:.3g} per step "
        "(matrix products, with padding)"
    )
    state = checkpoint_bytes(job.objective, training)
    state += sum(parameter.nbytes for parameter in job.objective.parameters())  # gradients
    if job.fixed:
        state += sum(parameter.nbytes for parameter in job.fixed.parameters())
    yield (
        f"memory: {state / 1e9:.2f} GB for weights, gradients and optimizer state, plus activations"
    )
    available = memory_of(device)
    if state > available:
        has = f"{device} has {available / 1e9:.1f} GB"
        yield f"{NOT_TIMED}: {has}; choose a smaller model"
        return
    yield "timing a few micro-batches …"
    step, example = time_parts(job, world)
    yield f"peak memory measured: {peak_memory(device) / 1e9:.2f} GB"
    steps = max(0, training.max_steps - done_steps)
    evaluations = ceil(training.max_steps / training.eval_steps) - done_steps // training.eval_steps
    # A resumed run repeats the evaluation of its checkpoint.
    is_due = done_steps % training.eval_steps == 0 and (done_steps > 0 or job.origin is not None)
    if is_due or job.config.run.budget is not None:
        evaluations += 1
    seconds = step * steps
    scoring = evaluations * scored_examples(job, world) * example
    apart = ""
    if world.world_size > 1:
        apart = f", without communication between {world.world_size} processes"
    yield (
        f"time: {_short(step)} per step{apart}: {steps:,} steps in {_short(seconds)}, "
        f"{evaluations:,} evaluations in {_short(scoring)}, {_short(seconds + scoring)} in total"
    )


def scored_examples(job: Job, world: World) -> int:
    """Examples that a process scores in one evaluation."""
    scored = 0
    for packed in (job.held_out, job.origin and job.origin.held_out):
        if packed:
            examples = min(job.config.training.eval_examples, packed.table.count)
            scored += ceil(examples / world.world_size)
    return scored


def flops_per_step(config: PretrainConfig, world_size: int = 1) -> int:
    """FLOPs of the matrix products of one step, of all processes."""
    try:
        example, update = _count_flops(config, "meta")  # shapes without numbers or memory
    except RuntimeError:  # an objective reads the value of a tensor
        example, update = _count_flops(config, "cpu")
    return world_size * (config.training.step_examples * example + update)


def _count_flops(config: PretrainConfig, device: str) -> tuple[int, int]:
    """FLOPs of the matrix products for one example, and in one update."""
    size = config.model.vocab_size
    with torch.device(device):
        special = SpecialIds(0, 1, 2, 3, 4, (), torch.ones(size, dtype=torch.bool))
        fixed = None
        if spec_of(config).has_discriminator and not config.rtd.trains_generator:
            shape = read_config(locate(Path(config.rtd.generator), "generator"))
            fixed = Generator(replace(shape, vocab_size=size)).requires_grad_(False)
        objective = make_objective(config, special, fixed)
        ids = torch.zeros(1, config.corpus.max_seq_length, dtype=torch.int64)
        batch = Batch(ids, ids.bool(), ids, ids[:, 0], ids[:, 0])
        # In bfloat16, attention on the CPU is made of products that are counted.
        with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
            terms = objective(batch)
            losses = [terms[name].sum for name in objective.weights]
            torch.autograd.backward(torch.stack(losses).sum())
    update = 0
    if config.training.optimizer == "muon":
        update = _muon_flops(objective)
    return counter.get_total_flops(), update


def _muon_flops(objective: nn.Module) -> int:
    with FlopCounterMode(display=False) as counter:
        for group in parameter_groups(objective, 0.0, muon_rate=1.0):
            for parameter in group["params"] if group["is_orthogonal"] else ():
                orthogonalized(wide(parameter.to("meta"), group))
    return int(counter.get_total_flops())


def quiet_run(job: Job, world: World) -> RunSettings:
    """Settings for steps of one process that are not logged."""
    monitor = Monitor(Path(), 1, is_main=False)
    alone = world._replace(world_size=1)
    training = job.config.training
    return RunSettings(Path(), training, alone, monitor, StopSignal(), job.arithmetic)


def time_parts(job: Job, world: World) -> tuple[float, float]:
    """Seconds of one step, with data loading, and of scoring one example."""
    training = job.config.training
    device = world.device
    objective: Any = job.objective.train()
    batches: Any = replace(job.batches, gradient_accumulation_steps=1).steps(1)
    warm_calls = 1
    run = quiet_run(job, world)
    if job.is_recorded:
        warm_calls += WARM_CALLS
        run = replace(run, record=CudaRecorder(device))
    training_step = TrainingStep(objective, run)

    def micro_batch() -> None:
        batch = next(batches)
        counts = count_step(objective, batch, run)
        training_step.accumulate(batch, counts.terms, 1)

    with own_stream(device), closing(batches):
        training_step.check(next(batches)[0], 1)  # compiles and allocates memory
        for _ in range(warm_calls):
            micro_batch()
            training_step.finish()
        seconds = [_timed(micro_batch)]
        while len(seconds) < _MOST_TIMED and sum(seconds) < _TIMED_SECONDS:
            seconds.append(_timed(micro_batch))
        step = training.gradient_accumulation_steps * median(seconds)
        step += _timed(training_step.finish)
    objective.eval()
    size = min(
        training.eval_examples,
        training.per_device_eval_batch_size,
        training.per_device_train_batch_size,
    )
    held_out = next(eval_batches(job.held_out, size, size))
    with torch.no_grad(), autocast(device, job.arithmetic):
        scoring = _timed(lambda: objective.score(held_out.to(device), job.unigram, Detections()))
    return step, scoring / len(held_out.input_ids)


def _timed(action: Callable[[], object]) -> float:
    """Seconds of `action`, with its work on a GPU."""
    _wait()
    began = perf_counter()
    action()
    _wait()
    return perf_counter() - began


def _wait() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _short(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1000 * seconds:.3g} ms"
