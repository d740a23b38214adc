"""The four kinds of task: how examples become rows, outputs a loss in training, and predictions afterwards.

Dimensions: S dropout samples, B batch, L length, C classes, U units (of several rows each in multiple choice).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from numpy import float32
from numpy.typing import NDArray
from torch import Tensor, nn

from electra_albert.contracts import IGNORED_LABEL, Batch, Term
from electra_albert.model.task_model import TaskModel
from electra_albert.tasks import sequence, span, token
from electra_albert.tasks.encoding import Decoded, EncodePlan
from electra_albert.tasks.rows import Rows


class Kind(NamedTuple):
    """The two directions of a kind.

    encode(examples, encoder, labels, plan, report, *, is_training, where) -> Rows: `where` names the set in messages;
    what is cut is counted in `report`. Only in training may examples give further rows, or rows without a use be left
    out. decode takes rows that were not encoded for training.
    """

    encode: Callable[..., Rows]
    decode: Callable[[list[NDArray[float32]], Rows, Sequence[Any], tuple[str, ...], EncodePlan], Decoded]


KINDS: dict[str, Kind] = {
    "sequence": Kind(sequence.encode, sequence.decode),
    "choice": Kind(sequence.encode_choices, sequence.decode_choices),
    "span": Kind(span.encode, span.decode),
    "token": Kind(token.encode, token.decode),
}


class _Scored(NamedTuple):
    """Sums over a micro-batch."""

    losses: Tensor  # [] float32, summed over dropout samples and whatever counts
    right: Tensor | None  # [] int64, summed likewise; None where nothing is right or wrong


def _classify(outputs: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> _Scored:
    """Cross-entropy in nats. outputs [S, ..., C], labels int64 [...] with IGNORED_LABEL for what does not count.

    class_weights float32 [C], if any, multiply the cross-entropy of each class.
    """
    logits = outputs.flatten(0, -2)  # [S · …, C]
    gold = labels.expand(outputs.shape[:-1]).flatten()
    losses = F.cross_entropy(logits, gold, class_weights, ignore_index=IGNORED_LABEL, reduction="sum")
    return _Scored(losses, (logits.argmax(-1) == gold).sum())


def _choose(outputs: Tensor, labels: Tensor) -> _Scored:
    """outputs [S, B, 1], one score for each option; labels int64 [U]."""
    return _classify(outputs.view(len(outputs), len(labels), -1), labels)  # [S, U, options]


def _regress(outputs: Tensor, labels: Tensor) -> _Scored:
    """Squared error. outputs [S, B, 1], labels float32 [B]."""
    return _Scored((outputs.squeeze(-1) - labels).square().sum(), None)


def _locate(outputs: Tensor, labels: Tensor) -> _Scored:
    """Mean of the cross-entropies of start and end. outputs [S, B, L, 2], labels int64 [B, 2]."""
    logits = outputs.transpose(-1, -2).flatten(0, -2)  # [S · B · 2, L]
    gold = labels.expand(len(outputs), *labels.shape).flatten()  # [S · B · 2]
    is_right = (logits.argmax(-1) == gold).view(-1, 2).all(-1)
    return _Scored(F.cross_entropy(logits, gold, reduction="sum") / 2, is_right.sum())


class _Loss(NamedTuple):
    name: str  # of the term
    score: Callable[[Tensor, Tensor], _Scored]
    counts_labels: bool  # divided by the number of labels that are not ignored, else of examples


_LOSSES = {
    "sequence": _Loss("classification_loss", _classify, True),
    "choice": _Loss("choice_loss", _choose, False),
    "span": _Loss("span_loss", _locate, False),
    "token": _Loss("tag_loss", _classify, True),
}
_REGRESSION = _Loss("regression_loss", _regress, False)


class TaskObjective(nn.Module):
    """A contracts.Objective on labelled batches: one loss and, where something can be right, an accuracy.

    dropout_samples is the number of dropout masks before the classifier whose losses are averaged (multi-sample
    dropout, Inoue 2019); only the classifier is computed that often. class_weights, float32 [C] with a mean of 1 over
    the training examples, weight the loss of a classification while it is trained, not where it is evaluated.
    """

    def __init__(
        self,
        model: TaskModel,
        *,
        is_regression: bool = False,
        dropout_samples: int = 1,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.dropout_samples = dropout_samples
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", class_weights, persistent=False)
        self._loss = _REGRESSION if is_regression else _LOSSES[model.head.kind]
        self.weights: Mapping[str, float] = {self._loss.name: 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many labels count, found on the host."""
        return {self._loss.name: int(self._count(_labels(batch)))}

    def forward(self, batch: Batch, step: Tensor) -> dict[str, Term]:
        """Terms of a labelled batch; nothing is drawn but dropout, so `step` is not used."""
        return self.terms(self.outputs(batch, self.dropout_samples), batch)

    def outputs(self, batch: Batch, samples: int = 1) -> Tensor:
        """The model's outputs, float32 [S, B, ...]; at padding the two logits of a span are lowest."""
        outputs = self.model(batch.input_ids, batch.attention_mask, batch.token_type_ids, samples)
        if self.model.head.kind == "span":
            outputs = outputs.masked_fill(~batch.attention_mask[:, :, None], torch.finfo(outputs.dtype).min)
        return outputs

    def terms(self, outputs: Tensor, batch: Batch) -> dict[str, Term]:
        """Loss and accuracy of outputs [S, B, ...]."""
        labels = _labels(batch)
        is_weighted = self.class_weights is not None and self.training
        scored = _classify(outputs, labels, self.class_weights) if is_weighted else self._loss.score(outputs, labels)
        count = self._count(labels)
        terms = {self._loss.name: Term(scored.losses / len(outputs), count)}
        if scored.right is not None:
            terms["accuracy"] = Term(scored.right.float(), count * len(outputs))
        return terms

    def _count(self, labels: Tensor) -> Tensor:
        """By what the loss is divided, [] int64."""
        if self._loss.counts_labels:
            return (labels != IGNORED_LABEL).sum()
        return torch.full((), len(labels), dtype=torch.int64, device=labels.device)


def _labels(batch: Batch) -> Tensor:
    if batch.labels is None:
        raise ValueError("a batch without labels cannot be trained or scored on")
    return batch.labels
