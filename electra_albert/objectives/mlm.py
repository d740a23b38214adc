"""Masked language modelling, 80/10/10, alone or with sentence order. Papers: BERT section 3.1, ALBERT section 3.1.

Dimensions: B batch, L length, K slots a row, V vocab, D hidden.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from electra_albert.config import MlmConfig, ModelConfig, SopConfig
from electra_albert.contracts import Batch, Term, UsageError
from electra_albert.model.electra import masked_language_model
from electra_albert.objectives.evaluation import Detections, Unigram, baseline_terms
from electra_albert.objectives.masking import (
    SpecialIds,
    Targets,
    choose_targets,
    maskable,
    other_tokens,
    quota,
    show_masked,
    show_others,
)
from electra_albert.objectives.prediction import order_counts, order_terms, predict, prediction_terms

if TYPE_CHECKING:
    from electra_albert.model.electra import Discriminator, Generator


class Prediction(NamedTuple):
    """Masked inputs, targets and the logits at them."""

    masked_ids: Tensor  # [B, L] int64
    targets: Targets
    is_shown_masked: Tensor  # [B, K] bool
    hidden_states: Tensor  # [B, L, D]
    logits: Tensor  # [B, K, V] scores at the targets


class MaskedLanguageModeling(nn.Module):
    """The loss of predicting masked tokens and, where `sop` is given, of sentence order.

    It trains the generator given, of shape `model`, or else a new one. Raises UsageError where the vocabulary has no
    other token to replace one by.
    """

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
        if generator is None:
            generator = masked_language_model(model, with_sentence_order=sop is not None)
        self.generator = generator

    def counts(self, batch: Batch) -> dict[str, int]:
        """Predicted tokens, and rows with an order, found on the host."""
        is_maskable = maskable(batch.input_ids, batch.attention_mask, self.special)
        counts = {"mlm_loss": int(quota(is_maskable, self.mlm.mask_rate).sum())}
        return counts if self.sop is None else counts | order_counts(batch)

    def corrupt(self, batch: Batch) -> Prediction:
        """Mask the batch and let the model fill it. Draws are keyed by batch.example_id."""
        ids, example_id = batch.input_ids, batch.example_id
        is_maskable = maskable(ids, batch.attention_mask, self.special)
        targets = choose_targets(ids, is_maskable, self.mlm.mask_rate, self.seed, example_id)
        masked_ids, is_shown_masked = show_masked(
            ids, targets, self.special.mask, self.mlm.mask_token_share, self.seed, example_id
        )
        if self.mlm.random_token_share:
            others = other_tokens(targets, self.special, self.generator.config.vocab_size, self.seed, example_id)
            masked_ids = show_others(masked_ids, targets, others, self.mlm.random_token_share, self.seed, example_id)
        hidden_states, logits = predict(self.generator, masked_ids, batch, targets)
        return Prediction(masked_ids, targets, is_shown_masked, hidden_states, logits)

    def forward(self, batch: Batch, step: Tensor) -> dict[str, Term]:
        """Loss and metric terms of one batch; `step` is not used, example_id is already new in every epoch."""
        return self.terms(batch, self.corrupt(batch))

    def terms(self, batch: Batch, prediction: Prediction) -> dict[str, Term]:
        """Loss and metric terms of a batch that was masked and filled."""
        terms = prediction_terms(prediction.logits, prediction.targets, prediction.is_shown_masked, "mlm")
        if self.sop is not None:
            terms |= order_terms(self.generator.sentence_order, prediction.hidden_states, batch)
        return terms

    def score(self, batch: Batch, unigram: Unigram, detections: Detections) -> dict[str, Term]:
        """All terms of a held-out batch and of its baselines; there is nothing to add to `detections`."""
        prediction = self.corrupt(batch)
        baselines = baseline_terms(prediction.targets, prediction.is_shown_masked, unigram)
        return self.terms(batch, prediction) | baselines
