"""The time that a training step takes, measured on a job's own objective and batches, which are of no more use then."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from electra_albert.apps.pretrain.step_memory import trial_run
from electra_albert.contracts import Objective
from electra_albert.corpus.batches import eval_batches
from electra_albert.objectives.evaluation import Detections, detection_scores
from electra_albert.training.optimizer import build_optimizer
from electra_albert.training.step import autocast, backward, count_step, term_scales

if TYPE_CHECKING:
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.config import TrainingConfig
    from electra_albert.contracts import Batch
    from electra_albert.training.distributed import World
    from electra_albert.training.settings import RunSettings

_TIMED_SECONDS = 10.0  # micro-batches are timed for so long,
_MOST = 20  # but so many times at most
_UPDATES = 3
# Between two looks at the clock: a GPU works behind Python, and waiting for each piece would be part of its time.
_AT_ONCE = {"cuda": 10}


@dataclass(frozen=True)
class StepTime:
    """Seconds: of a micro-batch, measured some times; of an update; and of scoring one batch of held-out rows."""

    micro_batches: list[float]
    update: float
    evaluation_batch: float
    peak_memory: int | None  # bytes of tensors during the first two, on a GPU

    def step(self, gradient_accumulation_steps: int) -> float:
        """Seconds from one update to the next."""
        return gradient_accumulation_steps * median(self.micro_batches) + self.update


def measure_step_time(job: Job, world: World) -> StepTime:
    """Time micro-batches, updates and a batch of held-out rows, by the training loop's own pieces.

    Of several processes each times its own, without a word to the others.
    """
    training, device = job.config.training, world.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    run = trial_run(training, world._replace(world_size=1), job.arithmetic)
    optimizer = build_optimizer(job.objective, training)
    job.objective.train()
    at_once = _AT_ONCE.get(device.type, 1)
    update = _updater(job, training, optimizer)
    stream = job.batches.steps(1)
    try:
        micro_batch = _passer(job, run, optimizer, stream)
        for _ in range(1 if job.compilation == "none" else 2):  # the first ones compile and find memory
            micro_batch()
        seconds: list[float] = []
        while not seconds or (len(seconds) < _MOST and sum(seconds) * at_once < _TIMED_SECONDS):
            seconds.append(timed(micro_batch, device, at_once))
        update()
        updates = [timed(update, device, at_once) for _ in range(_UPDATES)]
    finally:
        if isinstance(stream, Generator):
            stream.close()
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return StepTime(seconds, median(updates), _time_evaluation(job, run), peak)


def timed(action: Callable[[], object], device: torch.device, times: int) -> float:
    """Seconds that `action` takes, of so many one after the other."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        action()
    _wait(device)
    return (time.perf_counter() - began) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _passer(
    job: Job, run: RunSettings, optimizer: torch.optim.Optimizer, stream: Iterator[list[Batch]]
) -> Callable[[], None]:
    """What the loop does with one micro-batch, waiting for it included; each call takes the next one."""
    objective = cast(Objective, job.objective)
    batches = (batch for micro_batches in stream for batch in micro_batches)

    def micro_batch() -> None:
        if run.config.gradient_accumulation_steps == 1:
            optimizer.zero_grad(set_to_none=True)
        batch = [next(batches)]
        counts = count_step(objective, batch, run)
        backward(job.objective, batch, term_scales(objective.weights, counts.terms, 1), 1, run)

    return micro_batch


def _updater(job: Job, training: TrainingConfig, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def update() -> None:
        nn.utils.clip_grad_norm_(job.objective.parameters(), training.max_grad_norm)
        optimizer.step()

    return update


def _time_evaluation(job: Job, run: RunSettings) -> float:
    """Seconds that scoring one batch of held-out rows takes; a large one is not made whole."""
    training, device = run.config, run.world.device
    size = min(training.eval_examples, training.per_device_eval_batch_size)
    measured = min(size, training.per_device_train_batch_size)
    batch = next(eval_batches(job.held_out, measured, measured))

    def score() -> None:
        detections = Detections()
        job.objective.score(batch.to(device), job.unigram, detections)
        if job.objective.discriminator is not None:
            detection_scores(*detections.arrays(), training.seed)

    job.objective.eval()
    with torch.no_grad(), autocast(device, job.arithmetic):
        score()
        return timed(score, device, 1) * size / measured
