"""Cost of the planned steps, for --dry_run: operations by shapes, memory and time by making some of them.

The job's weights change on the way: it is of no use for training afterwards.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from math import ceil
from pathlib import Path
from statistics import median
from typing import cast

import torch
from torch import nn

from electra_albert.apps.machine import memory_of, peak_memory, smaller_step
from electra_albert.apps.pretrain.job import Job
from electra_albert.config import PretrainConfig
from electra_albert.contracts import Batch, Objective
from electra_albert.corpus.examples import eval_batches
from electra_albert.model import heads
from electra_albert.model.attention import TRAINING_PASSES
from electra_albert.model.encoder import Encoder
from electra_albert.objectives import spec_of
from electra_albert.objectives.evaluation import Detections
from electra_albert.objectives.masking import max_targets
from electra_albert.training.distributed import World
from electra_albert.training.guards import StopSignal
from electra_albert.training.monitor import Monitor
from electra_albert.training.optimizer import build_optimizer
from electra_albert.training.step import RunSettings, autocast, backward, count_step, term_scales

_TIMED_SECONDS, _MOST = 10.0, 20  # micro-batches are timed for so long, but so many times at most
_STATE_BYTES = 16  # of each weight: itself, its gradient and Adam's two moments in float32


def measure(job: Job, world: World, done_steps: int = 0) -> Iterator[str]:
    """Lines on operations, memory and time of the steps after done_steps, each as soon as it is known."""
    training, device, rows = job.config.training, world.device, job.batches.global_batch_size
    count = step_flops(job.config, rows)
    token = count / (rows * job.config.corpus.max_seq_length)
    yield f"{token:.3g} FLOPs a token, {count:.3g} a step (matrix products, forward and backward, padding included)"
    state = _STATE_BYTES * sum(parameter.numel() for parameter in job.objective.parameters())
    yield f"memory: {state / 1e9:.2f} GB of weights, gradients and optimizer state, and the activations"
    if state > memory_of(device):
        yield f"not timed: {device} has {memory_of(device) / 1e9:.1f} GB; to train here, {smaller_step(training)}"
        return
    yield "timing some micro-batches …"
    step, example = _time_parts(job, world)
    yield f"peak memory measured: {peak_memory(device) / 1e9:.2f} GB"
    steps = max(0, training.max_steps - done_steps)
    held_out = [job.held_out, job.origin.held_out if job.origin else None]
    scored = sum(ceil(min(training.eval_examples, part.table.count) / world.world_size) for part in held_out if part)
    evaluations = ceil(training.max_steps / training.eval_steps) - done_steps // training.eval_steps
    # One more at the start of a run from given weights; that of the checkpoint's own step is made again.
    evaluations += done_steps % training.eval_steps == 0 if done_steps else job.origin is not None
    scoring = evaluations * scored * example
    apart = "" if world.world_size == 1 else f", without the exchange between {world.world_size} processes"
    yield (
        f"time: {_short(step)} a step{apart}: {steps:,} steps in {_short(steps * step)}, {evaluations:,} evaluations "
        f"in {_short(scoring)}, {_short(steps * step + scoring)} in all"
    )


def step_flops(config: PretrainConfig, rows: int) -> int:
    """Operations of the matrix products of one step over `rows` examples, forward and backward; padding counts too."""
    length, spec = config.corpus.max_seq_length, spec_of(config)
    generator, rate = spec.generator(config), spec.mask_rate(config)
    row = Encoder.flops(generator, length) + heads.MlmHead.flops(generator, max_targets(length, rate) if rate else 0)
    if spec.has_discriminator:
        row += Encoder.flops(config.model, length) + heads.RtdHead.flops(config.model, length)
    if spec.has_sentence_order:
        row += heads.SentenceOrderHead.flops(config.model)
    return TRAINING_PASSES * rows * row


def _time_parts(job: Job, world: World) -> tuple[float, float]:
    """Seconds of one step, data included, by the median of its micro-batches, and of scoring one held-out row."""
    training, device, monitor = job.config.training, world.device, Monitor(Path(), 1, is_main=False)
    run = RunSettings(Path(), training, world._replace(world_size=1), monitor, StopSignal(), job.arithmetic)
    objective, optimizer = cast(Objective, job.objective), build_optimizer(job.objective, training)
    size = min(training.eval_examples, training.per_device_eval_batch_size, training.per_device_train_batch_size)
    held_out = next(eval_batches(job.held_out, size, size))
    job.objective.train()

    def micro_batch() -> None:
        batch = next(stream)[:1]
        counts = count_step(objective, batch, run)
        backward(job.objective, batch, term_scales(objective.weights, counts.terms, 1), 1, run)

    def update() -> None:
        nn.utils.clip_grad_norm_(job.objective.parameters(), training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with closing(cast("Generator[list[Batch]]", job.batches.steps(1))) as stream:
        for action in (micro_batch, update, micro_batch, update):  # the first ones compile and find memory
            action()
        seconds: list[float] = []
        while not seconds or (len(seconds) < _MOST and sum(seconds) < _TIMED_SECONDS):
            seconds.append(_timed(micro_batch, device))
        step = training.gradient_accumulation_steps * median(seconds) + _timed(update, device)
    job.objective.eval()
    with torch.no_grad(), autocast(device, job.arithmetic):
        scoring = _timed(lambda: job.objective.score(held_out.to(device), job.unigram, Detections()), device)
    return step, scoring / size


def _timed(action: Callable[[], object], device: torch.device) -> float:
    """Seconds that `action` takes, its work on the device included."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    began = time.perf_counter()
    action()
    synchronize()
    return time.perf_counter() - began


def _short(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
