"""Scores on held-out text and baselines that know no context. Dimensions: B batch, L length, K slots a row, V vocab."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra_albert.contracts import Metrics, Term
from electra_albert.objectives.masking import Targets

_IDLE_AUC = 0.52  # a discriminator below it is at chance, which over 30,000 tokens stays below .51
_LEARNED_NATS = 1.0  # a generator so far below the token frequencies makes replacements that context can reveal


class Unigram(NamedTuple):
    """Token frequencies of the training text."""

    most_frequent_id: int
    entropy: float  # nats a token
    nats: Tensor  # [V] float32, cost of each token under the (add-one) unigram distribution

    @staticmethod
    def from_counts(token_counts: NDArray[np.int64], special_ids: Iterable[int]) -> Unigram:
        """token_counts [V]: how often each token is in the training text; special tokens are left out."""
        counts = torch.from_numpy(np.asarray(token_counts)).double()
        counts[list(special_ids)] = 0
        share = counts / counts.sum()
        entropy = -torch.special.xlogy(share, share).sum()
        smoothed = (counts + 1) / (counts + 1).sum()
        return Unigram(int(counts.argmax()), float(entropy), -smoothed.log().float())


@dataclass
class Detections:
    """The discriminator's scores of real tokens and whether each was replaced, gathered over batches."""

    scores: list[Tensor] = field(default_factory=lambda: [torch.zeros(0)])
    is_replaced: list[Tensor] = field(default_factory=lambda: [torch.zeros(0, dtype=torch.bool)])

    def add(self, detected: Tensor, is_replaced: Tensor, attention_mask: Tensor) -> None:
        """detected any float [B, L], is_replaced and attention_mask bool [B, L]; padding is left out."""
        mask = attention_mask.cpu()
        self.scores.append(detected.detach().float().cpu()[mask])
        self.is_replaced.append(is_replaced.cpu()[mask])

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Scores float32 [tokens] and labels bool [tokens]."""
        return torch.cat(self.scores).numpy(), torch.cat(self.is_replaced).numpy()


def baseline_terms(targets: Targets, is_shown_masked: Tensor, unigram: Unigram) -> dict[str, Term]:
    """Loss and accuracy at the same targets of predictions that ignore the context; is_shown_masked bool [B, K]."""
    is_hit = (targets.labels == unigram.most_frequent_id) & is_shown_masked  # [B, K]
    nats = unigram.nats.to(targets.labels.device)[targets.labels] * targets.weight  # [B, K]
    return {
        "most_frequent_accuracy": Term(is_hit.sum().float(), is_shown_masked.sum()),
        "unigram_loss": Term(nats.sum(), targets.weight.sum().long()),
    }


def detection_scores(scores: NDArray[np.float32], is_replaced: NDArray[np.bool_], seed: int) -> Metrics:
    """ROC-AUC, average precision and the AUC of shuffled labels; None with one kind of token or a score not finite."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    can_score = is_replaced.any() and not is_replaced.all() and np.isfinite(scores).all()
    scorers = {
        "discriminator_auc": (roc_auc_score, is_replaced),
        "discriminator_average_precision": (average_precision_score, is_replaced),
        "shuffled_labels_auc": (roc_auc_score, np.random.default_rng(seed).permutation(is_replaced)),
    }
    return {name: float(score(labels, scores)) if can_score else None for name, (score, labels) in scorers.items()}


def has_learned(metrics: Metrics) -> bool | None:
    """Whether the scores are clearly above their baselines; None where the objective has no score with a bar."""
    # The least of each score: a multiple of its baseline.
    accuracy = 2.5 * _number(metrics, "most_frequent_accuracy")
    least: dict[str, float] = {name: accuracy for name in ("mlm_accuracy", "generator_accuracy") if name in metrics}
    if "replaced_fraction" in metrics:  # a term of detection: there is a discriminator
        precision = 1.5 * _number(metrics, "replaced_fraction")
        least |= {"discriminator_auc": 1.3 * 0.5, "discriminator_average_precision": precision}
    scores = {name: _number(metrics, name) for name in least}
    return all(0 < score < math.inf and score >= least[name] for name, score in scores.items()) if least else None


def is_discriminator_idle(metrics: Metrics) -> bool:
    """Whether the discriminator is at chance although the generator has learned from context."""
    is_learned = _number(metrics, "generator_loss") < _number(metrics, "unigram_loss") - _LEARNED_NATS
    return is_learned and _number(metrics, "discriminator_auc") < _IDLE_AUC


def _number(metrics: Metrics, name: str) -> float:
    """A metric, NaN where there is none: no comparison with it holds."""
    value = metrics.get(name)
    return math.nan if value is None else float(value)
