"""What the planned steps will take, said before they are made: operations, memory, and time.

Operations and memory are counted from shapes. Time is measured on the job's own objective and batches, whose weights
change on the way: the job is of no use for training afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

from electra_albert.contracts import UsageError

if TYPE_CHECKING:
    from electra_albert.apps.job import Job
    from electra_albert.apps.step_memory import MemoryEstimate
    from electra_albert.apps.step_time import StepTime
    from electra_albert.config import PretrainConfig, TrainingConfig
    from electra_albert.training.distributed import World

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def estimate_lines(job: Job, world: World, done_steps: int = 0) -> Iterator[str]:
    """Operations, memory and time of the steps after done_steps, each line as soon as it is known.

    Raises UsageError where the memory of a GPU does not suffice for a step.
    """
    import torch

    from electra_albert.apps.step_memory import step_memory
    from electra_albert.apps.step_time import compilation, measure_step_time

    config = job.config
    yield _flops_line(config, job.batches.global_batch_size)
    memory = step_memory(config, job.arithmetic, world.device.type)
    yield _memory_line(memory, is_compiled=compilation(job, world) != "none")
    yield "timing some micro-batches …"
    try:
        if world.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(world.device)
        times = measure_step_time(job, world)
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"the memory of {world.device} does not suffice for a step, which takes about {_bytes(memory.peak)}; "
            "lower --per_device_train_batch_size (and raise --gradient_accumulation_steps as much) or set "
            "--gradient_checkpointing true"
        ) from error
    if world.device.type == "cuda":
        yield f"memory measured at the peak: {_bytes(torch.cuda.max_memory_allocated(world.device))}"
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

    length, is_rtd = config.corpus.max_seq_length, config.run.objective.startswith("rtd")
    generator = config.rtd.generator(config.model) if is_rtd else config.model
    predicted = slots(length, (config.rtd if is_rtd else config.mlm).mask_rate)
    row = encoder_flops(generator, length) + mlm_head_flops(generator, predicted)
    if is_rtd:
        row += encoder_flops(config.model, length) + rtd_head_flops(config.model, length)
    if config.run.has_sentence_order:
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
    evaluations = evaluation_count(training, done_steps)
    evaluation = times.evaluation_batch * _evaluation_batches(job, world)
    slowest, fastest = max(times.micro_batches), min(times.micro_batches)
    alone = "" if world.world_size == 1 else f", without the exchange between {world.world_size} processes"
    return (
        f"time: {_seconds(step)} a step (median of {len(times.micro_batches)} measured micro-batches of "
        f"{_seconds(median(times.micro_batches))}, {_seconds(fastest)} to {_seconds(slowest)}{alone}), {steps:,} steps "
        f"in {_duration(steps * step)}; {evaluations:,} evaluations of {_seconds(evaluation)} in "
        f"{_duration(evaluations * evaluation)}: {_duration(steps * step + evaluations * evaluation)} in all"
    )


def evaluation_count(training: TrainingConfig, done_steps: int) -> int:
    """Evaluations after done_steps: every eval_steps updates and after the last one."""
    if done_steps >= training.max_steps:
        return 0
    regular = training.max_steps // training.eval_steps - done_steps // training.eval_steps
    return regular + bool(training.max_steps % training.eval_steps)


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
