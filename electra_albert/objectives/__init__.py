"""Pretraining objectives; their options and names are in registry.py."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast

from electra_albert.config import PretrainConfig
from electra_albert.objectives.registry import spec_of

if TYPE_CHECKING:
    from electra_albert.objectives.masking import SpecialIds
    from electra_albert.objectives.mlm import MaskedLanguageModeling
    from electra_albert.objectives.rtd import ReplacedTokenDetection

# All have one shape: a contracts.Objective with
#   seed           keys its draws
#   special        the ids that are never masked
#   guessing       nats a count of each weighted term at chance level
#   generator      the model that fills masks
#   discriminator  the model that finds what was filled in, or None
#   rate_scales    multiples of the learning rate by parameter name, or None
#   corrupt(batch) the masked batch: masked_ids, targets, is_shown_masked, logits at the targets, …
#   score(batch, unigram, detections)  the terms of a held-out batch and of its baselines
PretrainingObjective: TypeAlias = "MaskedLanguageModeling | ReplacedTokenDetection"


def make_objective(config: PretrainConfig, special: SpecialIds) -> PretrainingObjective:
    """The objective that config.run.objective names, with initial weights from torch's stream."""
    spec = spec_of(config)
    module, _, name = spec.built_by.partition(":")
    build = getattr(import_module(module), name)
    objective = build(model=config.model, special=special, seed=config.training.seed, **spec.groups(config))
    return cast("PretrainingObjective", objective)
