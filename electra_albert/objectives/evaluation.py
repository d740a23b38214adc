"""Held-out metrics and context-free baselines.

Dimensions: B batch, L length, K = masking.max_targets, V vocab.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra_albert.contracts import Metrics, Term
from electra_albert.objectives.masking import Targets

_ABOVE_NOISE = 0.1  # nats
# Nats by which a generator is below the unigram entropy, so that context reveals its replacements,
# and the ROC-AUC that a discriminator then has at least: by chance alone it stays below .51 with
# 30,000 tokens.
_LEAST_AUC = ((1.0, 0.52), (1.5, 0.6))


class Unigram(NamedTuple):
    """Unigram distribution of the training text."""

    most_frequent_id: int
    entropy: float  # nats per token
    nats: Tensor  # [V] float32, -log p of each token with add-one smoothing

    @classmethod
    def from_counts(cls, token_counts: NDArray[np.int64], special_ids: Iterable[int]) -> Self:
        """token_counts [V]: frequencies in the training text; special tokens are ignored."""
        counts = torch.tensor(token_counts, dtype=torch.float64)
        counts[list(special_ids)] = 0
        share = counts / counts.sum()
        entropy = -torch.special.xlogy(share, share).sum()
        smoothed = (counts + 1) / (counts + 1).sum()
        nats = -smoothed.log().float()
        return cls(int(counts.argmax()), float(entropy), nats)


class Detections:
    """Discriminator logits and labels of all tokens except padding, collected over batches."""

    def __init__(self) -> None:
        self.logits = [torch.zeros(0)]
        self.is_replaced = [torch.zeros(0, dtype=torch.bool)]

    def add(self, logits: Tensor, is_replaced: Tensor, attention_mask: Tensor) -> None:
        """Add a batch: logits any float [B, L], is_replaced and attention_mask bool [B, L]."""
        mask = attention_mask.cpu()
        self.logits.append(logits.detach().float().cpu()[mask])
        self.is_replaced.append(is_replaced.cpu()[mask])

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Logits float32 [tokens] and labels bool [tokens]."""
        return torch.cat(self.logits).numpy(), torch.cat(self.is_replaced).numpy()


def baseline_terms(targets: Targets, is_masked: Tensor, unigram: Unigram) -> dict[str, Term]:
    """Unigram loss and accuracy of the most frequent token on the same targets.

    is_masked bool [B, K].
    """
    labels = targets.labels
    is_correct = (labels == unigram.most_frequent_id) & is_masked  # [B, K]
    nats = unigram.nats.to(labels.device)[labels] * targets.weight  # [B, K]
    return {
        "most_frequent_accuracy": Term(is_correct.sum().float(), is_masked.sum()),
        "unigram_loss": Term(nats.sum(), targets.weight.sum().long()),
    }


def detection_scores(
    logits: NDArray[np.float32],
    is_replaced: NDArray[np.bool_],
    seed: int,
) -> Metrics:
    """ROC-AUC, average precision and ROC-AUC with shuffled labels.

    None for a single class or non-finite logits.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    shuffled = np.random.default_rng(seed).permutation(is_replaced)
    scorers = {
        "discriminator_auc": (roc_auc_score, is_replaced),
        "discriminator_average_precision": (average_precision_score, is_replaced),
        "shuffled_labels_auc": (roc_auc_score, shuffled),
    }
    is_one_class = is_replaced.all() or not is_replaced.any()
    if is_one_class or not np.isfinite(logits).all():
        return dict.fromkeys(scorers)
    return {name: float(score(labels, logits)) for name, (score, labels) in scorers.items()}


def is_discriminator_at_chance(metrics: Metrics) -> bool:
    """Whether the discriminator is at or near chance level although the generator uses context."""
    gain = _number(metrics, "unigram_loss") - _number(metrics, "generator_loss")
    auc = _number(metrics, "discriminator_auc")
    return any(gain > nats and auc < least for nats, least in _LEAST_AUC)


def is_at_token_frequencies(metrics: Metrics) -> bool:
    """Whether the masked tokens are predicted no better than by the token frequencies.

    In loss or in accuracy.
    """
    model = "generator" if "generator_loss" in metrics else "mlm"
    accuracy = _number(metrics, f"{model}_accuracy")
    if accuracy <= 1.05 * _number(metrics, "most_frequent_accuracy"):
        return True
    loss = _number(metrics, f"{model}_loss")
    return loss > _number(metrics, "unigram_loss") - _ABOVE_NOISE


def _number(metrics: Metrics, name: str) -> float:
    """A metric, or NaN if it is missing or None: comparisons with NaN are false."""
    value = metrics.get(name)
    return math.nan if value is None else float(value)
