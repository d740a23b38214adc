"""Making the objective that is pretrained with."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from electra_albert.config import PretrainConfig
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.mlm import MaskedLanguageModeling
from electra_albert.objectives.registry import spec_of
from electra_albert.objectives.rtd import ReplacedTokenDetection

# All have one shape: a contracts.Objective with
#   seed           what its draws are keyed by
#   special        the ids that are never masked
#   guessing       what each weighted term costs, in nats a count, when everything is guessed
#   generator      the model that fills masks
#   discriminator  the model that finds what was filled in, or None
#   rate_scales    what each parameter's learning rate is multiplied with, by name, or None
#   corrupt(batch) what the batch becomes: masked_ids, targets, is_shown_masked, logits at the targets, …
#   score(batch, unigram, detections)  the terms of a held-out batch and of its baselines
PretrainingObjective = MaskedLanguageModeling | ReplacedTokenDetection


def make_objective(config: PretrainConfig, special: SpecialIds) -> PretrainingObjective:
    """The objective that config.run.objective names, with initial weights from torch's stream."""
    spec = spec_of(config)
    module, _, name = spec.built_by.partition(":")
    build = getattr(import_module(module), name)
    return cast(PretrainingObjective, build(config.model, *spec.groups(config), special, config.training.seed))
