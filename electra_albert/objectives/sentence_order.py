"""What the objectives with sentence-order prediction have in common. Paper: ALBERT section 3.1.

The corpus swaps the segments and labels the rows: 0 in order, 1 swapped, IGNORED_LABEL where there is no order to tell.
Dimensions: B batch, L length, D hidden.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from electra_albert.contracts import IGNORED_LABEL, Batch, Term
from electra_albert.model.heads import SentenceOrderHead

ORDER_GUESSING = {"sop_loss": math.log(2)}


def order_counts(batch: Batch) -> dict[str, int]:
    """Rows with an order, found on the host."""
    return {"sop_loss": int((batch.sentence_order_label != IGNORED_LABEL).sum())}


def order_terms(head: SentenceOrderHead | None, hidden_states: Tensor, batch: Batch) -> dict[str, Term]:
    """Loss and metrics of the rows with an order; hidden_states any float [B, L, D].

    A batch without such a row gives sums of 0 that stay connected to the head, and counts of 0.
    """
    assert head is not None, "the objective builds its model with a sentence-order head"
    logits, labels = head(hidden_states).float(), batch.sentence_order_label  # [B, 2], [B]
    nats = F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    rows = (labels != IGNORED_LABEL).sum()
    is_right = logits.detach().argmax(-1) == labels  # an ignored label is no class, so its row is never right
    return {
        "sop_loss": Term(nats, rows),
        "sop_accuracy": Term(is_right.sum().float(), rows),
        "swapped_fraction": Term((labels == 1).sum().float(), rows),
    }
