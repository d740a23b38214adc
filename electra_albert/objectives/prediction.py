"""The parts that the objectives have in common: predicted tokens and their loss, and sentence order.

Sentence order, ALBERT section 3.1: the corpus swaps the segments and labels the rows, 0 in order, 1 swapped,
IGNORED_LABEL where there is no order to tell.
Dimensions: B batch, L length, K slots a row, M any number of predicted tokens, V vocab, D hidden.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra_albert.config import MlmConfig, RtdConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, Term
from electra_albert.model.electra import Generator
from electra_albert.model.heads import SentenceOrderHead
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


class Prediction(NamedTuple):
    """Masked inputs, targets and the logits at them."""

    masked_ids: Tensor  # [B, L] int64, the input of the generator
    targets: Targets
    is_shown_masked: Tensor  # [B, K] bool
    hidden_states: Tensor  # [B, L, D]
    logits: Tensor  # [B, K, V] float32, the generator's scores at the targets


def predict(
    generator: Generator, batch: Batch, options: MlmConfig | RtdConfig, special: SpecialIds, seed: int
) -> Prediction:
    """Mask the batch and let the generator fill it. Draws are keyed by batch.example_id."""
    ids, example_id = batch.input_ids, batch.example_id
    is_maskable = maskable(ids, batch.attention_mask, special)
    targets = choose_targets(ids, is_maskable, options.mask_rate, seed, example_id)
    masked_ids, is_shown_masked = show_masked(ids, targets, special.mask, options.mask_token_share, seed, example_id)
    if isinstance(options, MlmConfig) and options.random_token_share:
        others = other_tokens(targets, special, generator.config.vocab_size, seed, example_id)
        masked_ids = show_others(masked_ids, targets, others, options.random_token_share, seed, example_id)
    hidden_states = generator(masked_ids, batch.attention_mask, batch.token_type_ids)  # [B, L, D]
    index = targets.positions[:, :, None].expand(-1, -1, hidden_states.shape[-1])
    logits = generator.logits(hidden_states.gather(1, index)).float()  # [B, K, V]
    return Prediction(masked_ids, targets, is_shown_masked, hidden_states, logits)


def prediction_count(batch: Batch, mask_rate: float, special: SpecialIds) -> int:
    """Tokens of the batch that `predict` chooses, found on the host."""
    return int(quota(maskable(batch.input_ids, batch.attention_mask, special), mask_rate).sum())


class _CrossEntropy(torch.autograd.Function):
    """Computes the softmax again where PyTorch's own keeps a log-softmax and fills a gradient with zeros first."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits, labels)
        return -logits.log_softmax(-1).gather(1, labels[:, None]).squeeze(1)  # [M]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (logits, labels) = gradients, ctx.saved_tensors
        error = logits.softmax(-1)  # [M, V]
        error.scatter_add_(1, labels[:, None], error.new_full((1, 1), -1.0).expand(len(labels), 1))
        return error.mul_(gradient[:, None]), None


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Nats of each label, float [M], from logits any float [M, V], which alone are kept, and labels int64 [M]."""
    nats: Tensor = _CrossEntropy.apply(logits, labels)
    return nats


def prediction_terms(logits: Tensor, targets: Targets, is_shown_masked: Tensor, name: str) -> dict[str, Term]:
    """Cross-entropy over the targets, and how often the top prediction is right at [MASK]; logits float32 [B, K, V]."""
    weight, labels = targets.weight, targets.labels
    nats = cross_entropy(logits.flatten(0, 1), labels.flatten()).view_as(weight)  # [B, K]
    best = logits.detach().max(-1).indices  # [B, K]; on the CPU twice as fast as argmax, which finds the same
    is_right = (best == labels) & is_shown_masked
    return {
        f"{name}_loss": Term((nats * weight).sum(), weight.sum().long()),
        f"{name}_accuracy": Term(is_right.sum().float(), is_shown_masked.sum()),
    }


def order_counts(batch: Batch) -> dict[str, int]:
    """Rows with an order, found on the host."""
    return {"sop_loss": int((batch.sentence_order_label != IGNORED_LABEL).sum())}


def order_terms(head: SentenceOrderHead | None, hidden_states: Tensor, batch: Batch) -> dict[str, Term]:
    """Loss and metrics of rows with an order, none without a head; a batch without such rows gives sums of 0."""
    if head is None:
        return {}
    logits, labels = head(hidden_states).float(), batch.sentence_order_label  # [B, 2], [B]
    nats = F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    rows = (labels != IGNORED_LABEL).sum()
    is_right = logits.detach().argmax(-1) == labels  # an ignored label is no class, so its row is never right
    return {
        "sop_loss": Term(nats, rows),
        "sop_accuracy": Term(is_right.sum().float(), rows),
        "swapped_fraction": Term((labels == 1).sum().float(), rows),
    }
