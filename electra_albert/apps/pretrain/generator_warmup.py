"""A generator that --init_from did not bring learns to fill masks, before the discriminator learns from what it fills.

It is trained by the one loop as a run of its own in the folder generator_warmup, so it can be stopped and goes on like
any other. The tables it shares with the discriminator stay as they are: a generator that guesses would spoil them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from electra_albert.apps.pretrain.evaluation import score
from electra_albert.config import MlmConfig, TrainingConfig
from electra_albert.objectives.mlm import MaskedLanguageModeling
from electra_albert.training.checkpoint import find_checkpoint
from electra_albert.training.loop import train
from electra_albert.training.monitor import Monitor

if TYPE_CHECKING:
    from torch import nn

    from electra_albert.apps.pretrain.job import Job
    from electra_albert.contracts import Metrics
    from electra_albert.training.step import RunSettings

LOG = logging.getLogger(__name__)

FOLDER = "generator_warmup"
_RISING_SHARE = 10  # of the updates, one in so many with a rising rate


def warm_up(job: Job, run: RunSettings) -> bool:
    """Train the generator alone, or go on doing so; False where it was told to stop.

    Raises as `train` and `find_checkpoint` do.
    """
    steps, folder = job.config.generator_warmup_steps, run.folder / FOLDER
    if not steps:
        return True
    LOG.info(f"training the new generator alone for {steps:,} steps; discriminator and shared tables stay as they are")
    generator, rtd = job.objective.generator, job.config.rtd
    masking = MlmConfig(rtd.mask_rate, rtd.mask_token_share, random_token_share=0.0)
    alone = MaskedLanguageModeling(
        generator.config, masking, job.objective.special, job.objective.seed, generator=generator
    )
    resume = "never" if job.config.run.resume == "never" else "auto"
    found = find_checkpoint(folder / "checkpoints", resume)
    training = _training(run.config, steps)
    with Monitor(folder, steps, is_main=run.world.is_main) as monitor, _frozen(generator.embeddings):
        warm = replace(
            run,
            folder=folder,
            config=training,
            monitor=monitor,
            resume_from=found,
            scores_start=False,
            rate_scales=None,
        )

        def evaluate(step: int) -> Metrics | None:
            return score(alone, job, job.held_out, warm)

        outcome = train(alone, job.batches, evaluate, warm)
    loss = outcome.metrics.get("mlm_loss")
    if not outcome.is_stopped and loss is not None:
        LOG.info(f"the new generator's loss on held-out text is {loss:.3f}")
    return not outcome.is_stopped


def _training(config: TrainingConfig, steps: int) -> TrainingConfig:
    """The run's own settings but for the schedule, which is as short as the warm-up."""
    return replace(config, max_steps=steps, warmup_steps=steps // _RISING_SHARE, eval_steps=steps)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)
