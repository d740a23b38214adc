"""A generator's guesses at masked tokens, and what they cost: the part that mlm and rtd have in common.

Dimensions: B batch, L length, K slots a row, V vocab, D hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from electra_albert.contracts import Batch, Term
from electra_albert.model.electra import Generator
from electra_albert.objectives.masking import Targets


def predict(generator: Generator, masked_ids: Tensor, batch: Batch, targets: Targets) -> tuple[Tensor, Tensor]:
    """Hidden states [B, L, D] of masked_ids int64 [B, L], and scores of every token at the targets only.

    The scores are float32 [B, K, V]: what they cost and what is drawn from them are computed in it.
    """
    hidden_states = generator(masked_ids, batch.attention_mask, batch.token_type_ids)  # [B, L, D]
    index = targets.positions[:, :, None].expand(-1, -1, hidden_states.shape[-1])
    return hidden_states, generator.logits(hidden_states.gather(1, index)).float()  # [B, K, V]


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
    """Cross-entropy over the targets, and how often the top guess is right where [MASK] was shown.

    logits float32 [B, K, V], is_shown_masked bool [B, K]; the terms are `<name>_loss` and `<name>_accuracy`.
    """
    weight, labels = targets.weight, targets.labels
    nats = cross_entropy(logits.flatten(0, 1), labels.flatten()).view_as(weight)  # [B, K]
    best = logits.detach().max(-1).indices  # [B, K]; on the CPU twice as fast as argmax, which finds the same
    is_right = (best == labels) & is_shown_masked
    return {
        f"{name}_loss": Term((nats * weight).sum(), weight.sum().long()),
        f"{name}_accuracy": Term(is_right.sum().float(), is_shown_masked.sum()),
    }
