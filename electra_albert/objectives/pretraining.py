"""The objectives one can pretrain with, by the names of the command line."""

from __future__ import annotations

from collections.abc import Callable

from electra_albert.config import PretrainConfig
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.mlm import MaskedLanguageModeling
from electra_albert.objectives.mlm_sop import MaskedLanguageModelingWithOrder
from electra_albert.objectives.rtd import ReplacedTokenDetection
from electra_albert.objectives.rtd_sop import ReplacedTokenDetectionWithOrder

# All have one shape: a contracts.Objective with
#   seed           what its draws are keyed by
#   guessing       what each weighted term costs, in nats a count, when everything is guessed
#   generator      the model that fills masks
#   discriminator  the model that finds what was filled in, or None
#   rate_scales    what each parameter's learning rate is multiplied with, by name, or None
#   corrupt(batch) what the batch becomes: masked_ids, targets, is_shown_masked, logits at the targets, …
#   score(batch, unigram, detections)  the terms of a held-out batch and of its baselines
PretrainingObjective = MaskedLanguageModeling | ReplacedTokenDetection

OBJECTIVES: dict[str, Callable[[PretrainConfig, SpecialIds], PretrainingObjective]] = {
    "rtd": lambda config, special: ReplacedTokenDetection(config.model, config.rtd, special, config.training.seed),
    "rtd_sop": lambda config, special: ReplacedTokenDetectionWithOrder(
        config.model, config.rtd, config.sop, special, config.training.seed
    ),
    "mlm": lambda config, special: MaskedLanguageModeling(config.model, config.mlm, special, config.training.seed),
    "mlm_sop": lambda config, special: MaskedLanguageModelingWithOrder(
        config.model, config.mlm, config.sop, special, config.training.seed
    ),
}


def make_objective(config: PretrainConfig, special: SpecialIds) -> PretrainingObjective:
    """The objective that config.run.objective names, with initial weights from torch's stream."""
    return OBJECTIVES[config.run.objective](config, special)
