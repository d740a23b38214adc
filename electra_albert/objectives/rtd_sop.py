"""Replaced-token detection and sentence-order prediction. Papers: ELECTRA section 2, ALBERT section 3.1."""

from __future__ import annotations

from electra_albert.config import ModelConfig, RtdConfig, SopConfig
from electra_albert.contracts import Batch, Term
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.rtd import Corruption, Judgement, ReplacedTokenDetection
from electra_albert.objectives.sentence_order import ORDER_GUESSING, order_counts, order_terms


class ReplacedTokenDetectionWithOrder(ReplacedTokenDetection):
    """Replaced-token detection whose discriminator also tells, from the corrupted text, whether it was swapped."""

    def __init__(self, model: ModelConfig, rtd: RtdConfig, sop: SopConfig, special: SpecialIds, seed: int) -> None:
        super().__init__(model, rtd, special, seed, with_sentence_order=True)
        self.weights["sop_loss"] = sop.weight
        self.guessing |= ORDER_GUESSING

    def counts(self, batch: Batch) -> dict[str, int]:
        """Predicted tokens, tokens that are not padding and rows with an order, found on the host."""
        return super().counts(batch) | order_counts(batch)

    def terms(self, batch: Batch, corruption: Corruption, judgement: Judgement) -> dict[str, Term]:
        """Loss and metric terms of a batch that was corrupted and judged."""
        order = order_terms(self.discriminator.sentence_order, judgement.hidden_states, batch)
        return super().terms(batch, corruption, judgement) | order
