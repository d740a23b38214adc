"""A generator that --init_from did not bring learns to fill masks, before the discriminator learns from what it fills.

It is trained by the one loop as a run of its own in the folder generator_warmup, so it is stopped and resumed like any
other. The tables it shares with the discriminator stay as they are: an untrained generator would spoil them.
"""

import logging
from dataclasses import replace

from electra_albert.apps.pretrain.evaluation import score
from electra_albert.apps.pretrain.job import Job
from electra_albert.apps.run_folder import WARMUP
from electra_albert.config import MlmConfig
from electra_albert.objectives.mlm import MaskedLanguageModeling
from electra_albert.training.checkpoint import find_checkpoint
from electra_albert.training.loop import train
from electra_albert.training.monitor import Monitor
from electra_albert.training.step import RunSettings

LOG = logging.getLogger(__name__)

_RISING_SHARE = 10  # of the updates, one in so many with a rising learning rate


def warm_up(job: Job, run: RunSettings) -> bool:
    """Train the generator alone, or resume that; False where a signal stopped it. Raises as `train` does."""
    steps, folder, objective = job.config.generator_warmup_steps, run.folder / WARMUP, job.objective
    if not steps:
        return True
    LOG.info(f"training the new generator alone for {steps:,} steps; discriminator and shared tables stay as they are")
    generator, rtd = objective.generator, job.config.rtd
    masking = MlmConfig(rtd.mask_rate, rtd.mask_token_share, random_token_share=0.0)
    alone = MaskedLanguageModeling(generator.config, masking, objective.special, objective.seed, generator=generator)
    config = replace(run.config, max_steps=steps, warmup_steps=steps // _RISING_SHARE, eval_steps=steps)
    begun = find_checkpoint(folder / "checkpoints", "never" if job.config.run.resume == "never" else "auto")
    warm = replace(run, folder=folder, config=config, resume_from=begun, eval_on_start=False, lr_multipliers=None)
    generator.embeddings.requires_grad_(False)
    try:
        with Monitor(folder, steps, is_main=run.world.is_main) as monitor:
            warm = replace(warm, monitor=monitor)
            outcome = train(alone, job.batches, lambda step: score(alone, job, job.held_out, warm), warm)
    finally:
        generator.embeddings.requires_grad_(True)
    loss = outcome.metrics.get("mlm_loss")
    if not outcome.is_stopped and loss is not None:
        LOG.info(f"the new generator's loss on held-out text is {loss:.3f}")
    return not outcome.is_stopped
