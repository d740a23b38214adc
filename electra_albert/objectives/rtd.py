"""Replaced-token detection: a generator fills masks, a discriminator finds what it filled. Paper: ELECTRA section 2.

Dimensions: B batch, L length, K slots a row, V vocab, D hidden.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig, RtdConfig
from electra_albert.contracts import Batch, Term
from electra_albert.model.electra import Electra
from electra_albert.objectives.masking import (
    SpecialIds,
    Targets,
    choose_targets,
    maskable,
    quota,
    sample,
    show_masked,
)


class Corruption(NamedTuple):
    """What one batch became on its way through the generator."""

    masked_ids: Tensor  # [B, L] int64, what the generator saw
    targets: Targets
    is_shown_masked: Tensor  # [B, K] bool
    logits: Tensor  # [B, K, V] the generator's scores at the targets
    corrupted_ids: Tensor  # [B, L] int64, what the discriminator sees
    is_replaced: Tensor  # [B, L] bool, differs from the text as it was


class ReplacedTokenDetection(nn.Module):
    """The joint objective: MLM loss of the generator plus weighted detection loss of the discriminator."""

    def __init__(self, model: ModelConfig, rtd: RtdConfig, special: SpecialIds, seed: int) -> None:
        super().__init__()
        self.rtd, self.special, self.seed = rtd, special, seed
        self.weights = {"generator_loss": rtd.generator_weight, "discriminator_loss": rtd.discriminator_weight}
        self.electra = Electra(rtd.generator(model), model)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Predicted tokens and tokens that are not padding, found on the host."""
        is_maskable = maskable(batch.input_ids, batch.attention_mask, self.special)
        return {
            "generator_loss": int(quota(is_maskable, self.rtd.mask_rate).sum()),
            "discriminator_loss": int(batch.attention_mask.sum()),
        }

    def corrupt(self, batch: Batch) -> Corruption:
        """Mask the batch, let the generator fill it, and mark what changed. Draws are keyed by batch.example_id."""
        ids, mask, segments, example_id = (
            batch.input_ids,
            batch.attention_mask,
            batch.token_type_ids,
            batch.example_id,
        )
        is_maskable = maskable(ids, mask, self.special)
        targets = choose_targets(ids, is_maskable, self.rtd.mask_rate, self.seed, example_id)
        masked_ids, is_shown_masked = show_masked(
            ids, targets, self.special.mask, self.rtd.mask_token_share, self.seed, example_id
        )
        generator = self.electra.generator
        hidden_states = generator(masked_ids, mask, segments)  # [B, L, D]
        index = targets.positions[:, :, None].expand(-1, -1, hidden_states.shape[-1])
        logits = generator.logits(hidden_states.gather(1, index))  # [B, K, V]
        keys = example_id[:, None].expand_as(targets.positions)
        drawn = sample(
            logits.flatten(0, 1), self.rtd.temperature, self.seed, keys.flatten(), targets.positions.flatten()
        ).view_as(targets.positions)  # [B, K]
        filled = torch.where(targets.weight > 0, drawn, targets.labels)
        corrupted_ids = ids.scatter(1, targets.positions, filled)
        # Compared with the text as it was: a guess that happens to be right is an original token.
        return Corruption(masked_ids, targets, is_shown_masked, logits, corrupted_ids, corrupted_ids != ids)

    def detect(self, batch: Batch, corruption: Corruption) -> Tensor:
        """The discriminator's logits [B, L] on the corrupted batch, above 0 = replaced."""
        return self.electra.discriminator(corruption.corrupted_ids, batch.attention_mask, batch.token_type_ids)

    def forward(self, batch: Batch, step: Tensor) -> dict[str, Term]:
        """Loss and metric terms of one batch; `step` is not used, example_id is already new in every epoch."""
        corruption = self.corrupt(batch)
        return self.terms(batch, corruption, self.detect(batch, corruption))

    def terms(self, batch: Batch, corruption: Corruption, detected: Tensor) -> dict[str, Term]:
        """Loss and metric terms of a batch that was corrupted and judged; detected float [B, L]."""
        return self._generator_terms(corruption) | self._discriminator_terms(batch, corruption, detected)

    def _generator_terms(self, corruption: Corruption) -> dict[str, Term]:
        weight, labels = corruption.targets.weight, corruption.targets.labels
        logits = corruption.logits.float()
        nats = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(weight)  # [B, K]
        best = logits.detach().max(-1).indices  # [B, K]; on the CPU twice as fast as argmax, which finds the same
        is_right = (best == labels) & corruption.is_shown_masked
        return {
            "generator_loss": Term((nats * weight).sum(), weight.sum().long()),
            "generator_accuracy": Term(is_right.sum().float(), corruption.is_shown_masked.sum()),
        }

    def _discriminator_terms(self, batch: Batch, corruption: Corruption, detected: Tensor) -> dict[str, Term]:
        mask, is_replaced = batch.attention_mask, corruption.is_replaced
        nats = F.binary_cross_entropy_with_logits(detected.float(), is_replaced.float(), reduction="none")  # [B, L]
        is_flagged = (detected.detach() > 0) & mask
        hits = (is_flagged & is_replaced).sum().float()
        tokens, replaced = mask.sum(), is_replaced.sum()
        return {
            "discriminator_loss": Term((nats * mask).sum(), tokens),
            "replaced_fraction": Term(replaced.float(), tokens),
            "discriminator_precision": Term(hits, is_flagged.sum()),
            "discriminator_recall": Term(hits, replaced),
        }
