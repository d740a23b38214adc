"""Warm-up of a new generator: masked language modelling alone, before joint training.

The discriminator has the weights of --init_from. The warm-up is a run of its own in the folder
generator_warmup, trained by the same loop, and resumes like any run. The shared embeddings and
layers are frozen: gradients of an untrained generator would damage them.
"""

from dataclasses import replace
from typing import Any

from torch import nn

from electra_albert.apps.pretrain.evaluation import score
from electra_albert.apps.pretrain.job import Job
from electra_albert.apps.run_folder import WARMUP
from electra_albert.config.objectives import MlmConfig
from electra_albert.contracts import LOG
from electra_albert.objectives.mlm import MaskedLanguageModeling
from electra_albert.training import checkpoint, loop
from electra_albert.training.monitor import Monitor
from electra_albert.training.step import RunSettings

_LR_WARMUP_DIVISOR = 10  # learning rate warmup takes one tenth of the steps


def warm_up(job: Job, run: RunSettings) -> bool:
    """Train the generator alone, or resume its warm-up; False if a signal stopped it.

    Raises as `train` does.
    """
    steps = job.config.generator_warmup_steps
    if not steps:
        return True
    LOG.info(
        f"training the new generator alone for {steps:,} steps; "
        "discriminator and shared embeddings are frozen"
    )
    objective: Any = job.objective
    generator = objective.generator
    rtd = job.config.rtd
    frozen = nn.ModuleList([generator.embeddings])
    if rtd.generator == "shared":
        frozen.append(generator.encoder)
    masking = MlmConfig(rtd.mask_rate, rtd.mask_token_share, 0.0, rtd.mask_unit)
    alone = MaskedLanguageModeling(
        generator.config, masking, objective.special, run.config.seed, generator=generator
    )
    folder = run.folder / WARMUP
    lr_warmup = steps // _LR_WARMUP_DIVISOR
    config = replace(run.config, max_steps=steps, warmup_steps=lr_warmup, eval_steps=steps)
    warm = replace(
        run, folder=folder, config=config, eval_on_start=False, lr_multipliers=None, plan=None
    )
    newest = checkpoint.find_checkpoint(folder / "checkpoints", "auto")
    frozen.requires_grad_(False)
    try:
        with Monitor(folder, steps, config.report_to, is_main=run.world.is_main) as monitor:
            # Few steps of a small model: not recorded.
            warm = replace(warm, resume_from=newest, monitor=monitor, record=None)
            outcome = loop.train(
                alone, job.batches, lambda step: score(alone, job, job.held_out, warm), warm
            )
    finally:
        frozen.requires_grad_(True)
    loss = outcome.metrics.get("mlm_loss")
    if loss is not None and not outcome.is_stopped:
        LOG.info(f"held-out loss of the new generator: {loss:.3f}")
    return not outcome.is_stopped
