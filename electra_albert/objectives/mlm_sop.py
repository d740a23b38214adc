"""ALBERT's objective: masked language modelling and sentence-order prediction. Paper: ALBERT section 3.1."""

from __future__ import annotations

from electra_albert.config import MlmConfig, ModelConfig, SopConfig
from electra_albert.contracts import Batch, Term
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.mlm import MaskedLanguageModeling, Prediction
from electra_albert.objectives.sentence_order import ORDER_GUESSING, order_counts, order_terms


class MaskedLanguageModelingWithOrder(MaskedLanguageModeling):
    """Masked language modelling whose model also tells, from the masked text, whether its segments were swapped."""

    def __init__(self, model: ModelConfig, mlm: MlmConfig, sop: SopConfig, special: SpecialIds, seed: int) -> None:
        super().__init__(model, mlm, special, seed, with_sentence_order=True)
        self.weights["sop_loss"] = sop.weight
        self.guessing |= ORDER_GUESSING

    def counts(self, batch: Batch) -> dict[str, int]:
        """Predicted tokens and rows with an order, found on the host."""
        return super().counts(batch) | order_counts(batch)

    def terms(self, batch: Batch, prediction: Prediction) -> dict[str, Term]:
        """Loss and metric terms of a batch that was masked and filled."""
        order = order_terms(self.generator.sentence_order, prediction.hidden_states, batch)
        return super().terms(batch, prediction) | order
