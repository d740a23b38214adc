"""The loss of each head as stock transformers takes it: a mean over the rows or tokens at hand, in nats.

Training sums and divides by counts of its own (objectives, tasks); these means are for who computes elsewhere and
compares. With nothing to take the mean of they are NaN, as there.
Dimensions: B batch, L length, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from electra_albert.contracts import IGNORED_LABEL


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy. logits any float [..., C], labels int [...] with IGNORED_LABEL for what does not count."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten().long(), ignore_index=IGNORED_LABEL)


def sequence_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss that one column of logits, or else the labels' type, asks for. logits any float [B, C].

    One column is a number to be met: squared error, labels [B] or [B, 1]. int32 or int64 labels [B] are one class of
    several: cross-entropy. Any other type [B, C] says of each class whether it holds: binary cross-entropy.
    """
    is_number = logits.shape[-1] == 1
    if not is_number and labels.dtype in (torch.int32, torch.int64):
        return class_loss(logits, labels)
    if labels.numel() != logits.numel():
        raise ValueError(f"labels of shape {list(labels.shape)} do not fit logits of shape {list(logits.shape)}")
    dtype = torch.promote_types(logits.dtype, labels.dtype)
    logits, labels = logits.to(dtype), labels.view(logits.shape).to(dtype)
    return F.mse_loss(logits, labels) if is_number else F.binary_cross_entropy_with_logits(logits, labels)


def detection_loss(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Binary cross-entropy over attended tokens. logits any float [B, L], labels [B, L] 1 = replaced, mask bool."""
    return F.binary_cross_entropy_with_logits(logits[mask], labels[mask].to(logits.dtype))


def span_loss(start_logits: Tensor, end_logits: Tensor, start_positions: Tensor, end_positions: Tensor) -> Tensor:
    """Mean of the cross-entropies of start and end. logits any float [B, L], positions int64 [B] or [B, 1].

    A position from L on lies outside the row and does not count; one below 0 is taken for 0.
    """
    return (_position_loss(start_logits, start_positions) + _position_loss(end_logits, end_positions)) / 2


def _position_loss(logits: Tensor, positions: Tensor) -> Tensor:
    outside = logits.shape[1]
    return F.cross_entropy(logits, positions.view(len(logits)).clamp(0, outside), ignore_index=outside)
