"""What the planned steps will take, for --dry_run: operations by shapes, memory and time by making some of them.

The job's weights change on the way: it is of no use for training afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from math import ceil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from electra_albert.apps.machine import memory_of, peak_memory, smaller_step
from electra_albert.contracts import Objective
from electra_albert.corpus.batches import eval_batches
from electra_albert.objectives.evaluation import Detections
from electra_albert.objectives.registry import spec_of
from electra_albert.training.guards import StopSignal
from electra_albert.training.monitor import Monitor
from electra_albert.training.optimizer import build_optimizer
from electra_albert.training.step import RunSettings, autocast, backward, count_step, term_scales

if TYPE_CHECKING:
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.config import PretrainConfig
    from electra_albert.training.distributed import World

_TIMED_SECONDS, _MOST = 10.0, 20  # micro-batches are timed for so long, but so many times at most
_STATE_BYTES = 16  # of each weight: itself, its gradient and Adam's two moments in float32


def measure(job: Job, world: World, done_steps: int = 0) -> Iterator[str]:
    """Lines on operations, memory and time of the steps after done_steps, each as soon as it is known.

    What cannot fit into the device's memory is not tried.
    """
    training, device = job.config.training, world.device
    rows = job.batches.global_batch_size
    flops = step_flops(job.config, rows)
    token = flops / (rows * job.config.corpus.max_seq_length)
    yield f"{token:.3g} FLOPs a token, {flops:.3g} a step (matrix products, forward and backward, padding included)"
    state = _STATE_BYTES * sum(parameter.numel() for parameter in job.objective.parameters())
    yield f"memory: {state / 1e9:.2f} GB of weights, gradients and optimizer state, and the activations"
    if state > memory_of(device):
        yield f"not timed: {device} has {memory_of(device) / 1e9:.1f} GB; to train here, {smaller_step(training)}"
        return
    yield "timing some micro-batches …"
    monitor, alone = Monitor(Path(), 1, is_main=False), world._replace(world_size=1)
    run = RunSettings(Path(), training, alone, monitor, StopSignal(), job.arithmetic)
    micro_batches, update = _time_update(job, run)
    yield f"peak memory measured: {peak_memory(device) / 1e9:.2f} GB"
    step = training.gradient_accumulation_steps * median(micro_batches) + update
    steps = max(0, training.max_steps - done_steps)
    held_out = [job.held_out, *([job.origin.held_out] if job.origin and job.origin.held_out else [])]
    scored = (ceil(min(training.eval_examples, part.table.count) / world.world_size) for part in held_out)
    evaluation = _time_example(job, run) * sum(scored)
    evaluations = ceil(training.max_steps / training.eval_steps) - done_steps // training.eval_steps
    # One more at the start of a run from given weights; that of the checkpoint's own step is made again.
    evaluations += done_steps % training.eval_steps == 0 if done_steps else job.origin is not None
    apart = "" if world.world_size == 1 else f", without the exchange between {world.world_size} processes"
    yield (
        f"time: {_short(step)} a step (median of {len(micro_batches)} micro-batches, {_short(min(micro_batches))} to "
        f"{_short(max(micro_batches))}{apart}): {steps:,} steps in {_short(steps * step)}, {evaluations:,} evaluations "
        f"in {_short(evaluations * evaluation)}, {_short(steps * step + evaluations * evaluation)} in all"
    )


def step_flops(config: PretrainConfig, rows: int) -> int:
    """Operations of the matrix products of one step over `rows` examples, forward and backward; padding counts too."""
    from electra_albert.model import flops
    from electra_albert.objectives.masking import slots

    length, spec = config.corpus.max_seq_length, spec_of(config)
    generator, rate = spec.generator(config), spec.mask_rate(config)
    row = flops.encoder_flops(generator, length) + flops.mlm_head_flops(generator, slots(length, rate) if rate else 0)
    if spec.has_discriminator:
        row += flops.encoder_flops(config.model, length) + flops.rtd_head_flops(config.model, length)
    if spec.has_sentence_order:
        row += flops.sentence_order_head_flops(config.model)
    return flops.TRAINING_PASSES * rows * row


def _time_update(job: Job, run: RunSettings) -> tuple[list[float], float]:
    """Seconds of some micro-batches, data included, and of one update of the weights."""
    training, device = run.config, run.world.device
    objective, optimizer = cast(Objective, job.objective), build_optimizer(job.objective, training)
    job.objective.train()
    stream = job.batches.steps(1)

    def micro_batch() -> None:
        batch = next(stream)[:1]
        counts = count_step(objective, batch, run)
        backward(job.objective, batch, term_scales(objective.weights, counts.terms, 1), 1, run)

    def update() -> None:
        nn.utils.clip_grad_norm_(job.objective.parameters(), training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    try:
        for _ in range(2):  # the first ones compile and find memory
            micro_batch()
            update()
        seconds: list[float] = []
        while not seconds or (len(seconds) < _MOST and sum(seconds) < _TIMED_SECONDS):
            seconds.append(_timed(micro_batch, device))
        return seconds, _timed(update, device)
    finally:
        if isinstance(stream, Generator):
            stream.close()


def _time_example(job: Job, run: RunSettings) -> float:
    """Seconds that scoring one held-out example takes, in a batch."""
    training, device = run.config, run.world.device
    size = min(training.eval_examples, training.per_device_eval_batch_size, training.per_device_train_batch_size)
    batch = next(eval_batches(job.held_out, size, size))
    job.objective.eval()
    with torch.no_grad(), autocast(device, job.arithmetic):
        return _timed(lambda: job.objective.score(batch.to(device), job.unigram, Detections()), device) / size


def _timed(action: Callable[[], object], device: torch.device) -> float:
    """Seconds that `action` takes, its work on the device included."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    began = time.perf_counter()
    action()
    synchronize()
    return time.perf_counter() - began


def _short(seconds: float) -> str:
    """In the largest unit that gives at least two."""
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
