"""What the planned steps will take, said before they are made: operations, memory, and time.

Operations and memory are counted from shapes. Time is measured on the job's own objective and batches, whose weights
change on the way: the job is of no use for training afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

from electra_albert.objectives.registry import spec_of

if TYPE_CHECKING:
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.apps.pretrain.step_memory import MemoryEstimate
    from electra_albert.apps.pretrain.step_time import StepTime
    from electra_albert.config import PretrainConfig, TrainingConfig
    from electra_albert.training.distributed import World

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def estimate_lines(job: Job, world: World, done_steps: int = 0) -> Iterator[str]:
    """Operations, memory and time of the steps after done_steps, each line as soon as it is known.

    What does not fit into the device's memory is not tried, and so not timed.
    """
    from electra_albert.apps.obstacles import memory_of, smaller_step, told_in_one_line
    from electra_albert.apps.pretrain.step_memory import step_memory
    from electra_albert.apps.pretrain.step_time import measure_step_time

    config, device = job.config, world.device
    yield _flops_line(config, job.batches.global_batch_size)
    memory = step_memory(config, job.arithmetic, device.type)
    yield _memory_line(memory, is_compiled=job.compilation != "none")
    if memory.peak > memory_of(device):
        yield (
            f"not timed: {device} has {_bytes(memory_of(device))} of memory in all; to train here, "
            f"{smaller_step(config.training)}"
        )
        return
    yield "timing some micro-batches …"
    with told_in_one_line(config.training, job.compilation):
        times = measure_step_time(job, world)
    if times.peak_memory is not None:
        yield f"memory of a step, measured: {_bytes(times.peak_memory)}"
    yield time_line(job, times, world, done_steps)


def step_flops(config: PretrainConfig, rows: int) -> int:
    """Operations of the matrix products of one step over `rows` rows, forward and backward; padding counts too."""
    from electra_albert.model.flops import (
        TRAINING_PASSES,
        encoder_flops,
        mlm_head_flops,
        rtd_head_flops,
        sentence_order_head_flops,
    )
    from electra_albert.objectives.masking import slots

    length, spec = config.corpus.max_seq_length, spec_of(config)
    generator, rate = spec.generator(config), spec.mask_rate(config)
    row = encoder_flops(generator, length) + mlm_head_flops(generator, slots(length, rate) if rate else 0)
    if spec.has_discriminator:
        row += encoder_flops(config.model, length) + rtd_head_flops(config.model, length)
    if spec.has_sentence_order:
        row += sentence_order_head_flops(config.model)
    return TRAINING_PASSES * rows * row


def _flops_line(config: PretrainConfig, rows: int) -> str:
    flops = step_flops(config, rows)
    token = flops / (rows * config.corpus.max_seq_length)
    return (
        f"{_amount(token)} FLOPs a token, {_amount(flops)} a step (matrix products, forward and backward, "
        "padding included)"
    )


def _memory_line(memory: MemoryEstimate, *, is_compiled: bool) -> str:
    left_aside = "; torch.compile, left aside here, changes the last" if is_compiled else ""
    return (
        f"memory of a step, counted: {_bytes(memory.peak)} (weights {_bytes(memory.weights)}, gradients "
        f"{_bytes(memory.gradients)}, optimiser {_bytes(memory.optimizer)}, activations "
        f"{_bytes(memory.activations)}{left_aside})"
    )


def time_line(job: Job, times: StepTime, world: World, done_steps: int) -> str:
    """What the measured seconds make of the planned steps and evaluations."""
    training = job.config.training
    step, steps = times.step(training.gradient_accumulation_steps), max(0, training.max_steps - done_steps)
    evaluations = evaluation_count(training, done_steps, scores_start=job.origin is not None)
    evaluation = times.evaluation_batch * _evaluation_batches(job, world)
    slowest, fastest = max(times.micro_batches), min(times.micro_batches)
    alone = "" if world.world_size == 1 else f", without the exchange between {world.world_size} processes"
    return (
        f"time: {_seconds(step)} a step (median of {len(times.micro_batches)} measured micro-batches of "
        f"{_seconds(median(times.micro_batches))}, {_seconds(fastest)} to {_seconds(slowest)}{alone}), {steps:,} steps "
        f"in {_duration(steps * step)}; {evaluations:,} evaluations of {_seconds(evaluation)} in "
        f"{_duration(evaluations * evaluation)}: {_duration(steps * step + evaluations * evaluation)} in all"
    )


def evaluation_count(training: TrainingConfig, done_steps: int, *, scores_start: bool) -> int:
    """Evaluations of a run that goes on after done_steps: every eval_steps updates, after the last, and at the start.

    A checkpoint is written before the evaluation of its step, which is made again; a new run makes one where asked to.
    """

    def is_due(step: int) -> bool:
        return step % training.eval_steps == 0 or step == training.max_steps

    regular = training.max_steps // training.eval_steps - done_steps // training.eval_steps
    odd_end = done_steps < training.max_steps and training.max_steps % training.eval_steps != 0
    return regular + odd_end + (is_due(done_steps) if done_steps else scores_start)


def _evaluation_batches(job: Job, world: World) -> int:
    """Batches that one process scores at an evaluation; where the run began with another, old text is scored too."""
    training = job.config.training
    held_out: list[Any] = [job.held_out]
    if job.origin is not None and job.origin.held_out is not None:
        held_out.append(job.origin.held_out)
    rows = (math.ceil(min(training.eval_examples, part.table.count) / world.world_size) for part in held_out)
    return sum(math.ceil(count / training.per_device_eval_batch_size) for count in rows)


def _amount(number: float) -> str:
    for size, name in ((1e18, "quintillion"), (1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number / 1e6:.3g} million"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _duration(seconds: float) -> str:
    """The two largest units, rounded."""
    if seconds < 2 * _MINUTE:
        return _seconds(seconds)
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        hours, minutes = divmod(round(seconds / _MINUTE), 60)
        return f"{hours} h {minutes} min"
    days, hours = divmod(round(seconds / _HOUR), 24)
    return f"{days:,} days {hours} h"
