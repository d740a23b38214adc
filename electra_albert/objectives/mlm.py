"""Masked language modelling, 80/10/10, alone or with sentence order. Papers: BERT section 3.1, ALBERT section 3.1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn

from electra_albert.config import MlmConfig, ModelConfig, SopConfig
from electra_albert.contracts import Batch, Term, UsageError
from electra_albert.model.electra import masked_language_model
from electra_albert.objectives.evaluation import Detections, Unigram, baseline_terms
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.prediction import (
    Prediction,
    order_counts,
    order_terms,
    predict,
    prediction_count,
    prediction_terms,
)

if TYPE_CHECKING:
    from electra_albert.model.electra import Discriminator, Generator


class MaskedLanguageModeling(nn.Module):
    """Masked tokens predicted by the generator given or a new one and, where `sop` is given, sentence order."""

    discriminator: Discriminator | None = None
    rate_scales: dict[str, float] | None = None

    def __init__(
        self,
        model: ModelConfig,
        mlm: MlmConfig,
        special: SpecialIds,
        seed: int,
        sop: SopConfig | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        ordinary = model.vocab_size - len(special.never_masked)
        if mlm.random_token_share and ordinary < 2:
            raise UsageError(
                f"the vocabulary has {ordinary} tokens that are not special, so none can be shown for another; "
                "set --mlm.random_token_share 0 or take a larger vocabulary"
            )
        self.mlm, self.special, self.seed, self.sop = mlm, special, seed, sop
        self.weights = {"mlm_loss": 1.0}
        self.guessing = {"mlm_loss": math.log(model.vocab_size)}
        if sop is not None:
            self.weights["sop_loss"], self.guessing["sop_loss"] = sop.weight, math.log(2)
        self.generator = generator or masked_language_model(model, with_sentence_order=sop is not None)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Predicted tokens, and rows with an order, found on the host."""
        counts = {"mlm_loss": prediction_count(batch, self.mlm.mask_rate, self.special)}
        return counts if self.sop is None else counts | order_counts(batch)

    def corrupt(self, batch: Batch) -> Prediction:
        """Mask the batch and let the model fill it."""
        return predict(self.generator, batch, self.mlm, self.special, self.seed)

    def forward(self, batch: Batch, step: Tensor) -> dict[str, Term]:
        """Loss and metric terms of one batch; `step` is not used, example_id is already new in every epoch."""
        return self.terms(batch, self.corrupt(batch))

    def terms(self, batch: Batch, prediction: Prediction) -> dict[str, Term]:
        """Loss and metric terms of a batch that was masked and filled."""
        terms = prediction_terms(prediction.logits, prediction.targets, prediction.is_shown_masked, "mlm")
        return terms | order_terms(self.generator.sentence_order, prediction.hidden_states, batch)

    def score(self, batch: Batch, unigram: Unigram, detections: Detections) -> dict[str, Term]:
        """All terms of a held-out batch and of its baselines; there is nothing to add to `detections`."""
        prediction = self.corrupt(batch)
        baselines = baseline_terms(prediction.targets, prediction.is_shown_masked, unigram)
        return self.terms(batch, prediction) | baselines
