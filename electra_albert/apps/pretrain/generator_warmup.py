"""Warm-up of a new generator: masked language modelling alone, before joint training with weights from --init_from.

The warm-up is a run of its own in the folder generator_warmup, trained by the same loop, and resumes like any run. The
shared embeddings and layers are frozen: gradients of an untrained generator would damage them.
"""

from dataclasses import replace
from typing import Any

from torch import nn

from electra_albert.apps.pretrain.evaluation import score
from electra_albert.apps.pretrain.job import Job
from electra_albert.apps.run_folder import WARMUP
from electra_albert.config import MlmConfig
from electra_albert.contracts import LOG
from electra_albert.objectives.mlm import MaskedLanguageModeling
from electra_albert.training import checkpoint, loop
from electra_albert.training.monitor import Monitor
from electra_albert.training.step import RunSettings

_LR_WARMUP_DIVISOR = 10  # learning rate warmup takes one tenth of the steps


def warm_up(job: Job, run: RunSettings) -> bool:
    """Train the generator alone, or resume its warm-up; False if a signal stopped it. Raises as `train` does."""
    steps, folder = job.config.generator_warmup_steps, run.folder / WARMUP
    objective: Any = job.objective
    if not steps:
        return True
    LOG.info(f"training the new generator alone for {steps:,} steps; discriminator and shared embeddings are frozen")
    generator, rtd = objective.generator, job.config.rtd
    assert generator is not None
    frozen = nn.ModuleList([generator.embeddings, *([generator.encoder] if rtd.generator == "shared" else [])])
    masking = MlmConfig(rtd.mask_rate, rtd.mask_token_share, random_token_share=0.0, mask_unit=rtd.mask_unit)
    special, seed = objective.special, run.config.seed
    alone = MaskedLanguageModeling(generator.config, masking, special, seed, generator=generator)
    config = replace(run.config, max_steps=steps, warmup_steps=steps // _LR_WARMUP_DIVISOR, eval_steps=steps)
    found = checkpoint.find_checkpoint(folder / "checkpoints", "never" if job.config.run.resume == "never" else "auto")
    warm = replace(run, folder=folder, config=config, eval_on_start=False, lr_multipliers=None, plan=None)
    warm = replace(warm, record=None)  # few steps of a small model, which is not compiled
    frozen.requires_grad_(False)
    try:
        with Monitor(folder, steps, config.report_to, is_main=run.world.is_main) as monitor:
            warm = replace(warm, resume_from=found, monitor=monitor)
            outcome = loop.train(alone, job.batches, lambda step: score(alone, job, job.held_out, warm), warm)
    finally:
        frozen.requires_grad_(True)
    if not outcome.is_stopped and (loss := outcome.metrics.get("mlm_loss")) is not None:
        LOG.info(f"held-out loss of the new generator: {loss:.3f}")
    return not outcome.is_stopped
