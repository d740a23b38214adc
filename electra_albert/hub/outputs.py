"""Outputs of every kind of model under the names of its stock transformers class, and their comparison.

Dimensions: B batch, L length, V vocabulary, D hidden, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import Body
from electra_albert.model.task_model import TaskModel

Model = Body | Generator | Discriminator | TaskModel

TOLERANCE = 1e-4  # float32, relative to the largest value: what another order of additions may change


def outputs(model: Model, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
    """All outputs of a model. Ids int64, mask bool or 0 and 1, each [B, L]; a row of multiple choice is one choice.

    Returns last_hidden_state [B, L, D]; logits of a masked language model [B, L, V], of a discriminator [B, L], of
    sentences [B, C], of a choice [B, 1], of tokens [B, L, C]; start_logits and end_logits [B, L] of a span; sop_logits
    [B, 2] and pooler_output [B, D] where the model has the layers.
    """
    last = model.encoder(model.embeddings(input_ids, token_type_ids), attention_mask.bool())  # [B, L, D]
    found = {}
    if isinstance(model, TaskModel):
        scores = model.output(model.features(last))
        if model.head.kind == "span":
            found = dict(zip(("start_logits", "end_logits"), scores.unbind(-1), strict=True))
        else:
            found = {"logits": scores}
    elif isinstance(model, Generator):
        found = {"logits": model.logits(last)}
    elif isinstance(model, Discriminator):
        found = {"logits": model.discriminator_predictions(last)}
    if isinstance(model, Generator | Discriminator) and model.sentence_order is not None:
        found["sop_logits"] = model.sentence_order(last)
    if isinstance(model, Body | Generator) and model.pooler is not None:
        found["pooler_output"] = model.pooler(last[:, 0]).tanh()
    return {"last_hidden_state": last, **found}


def pooler_of(model: Model) -> nn.Module | None:
    """The pooler that a model's file holds: its own, or that of its sentence-order head."""
    order = getattr(model, "sentence_order", None)
    return getattr(model, "pooler", None) if order is None else order.pooler


def probe(config: ModelConfig, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fixed ids, mask and segments, each int64 [B, L], with every segment and, in the last row, padding."""
    ids = (torch.arange(batch * length) * 7919 % config.vocab_size).view(batch, length)
    mask = torch.ones_like(ids)
    mask[-1, (length + 1) // 2 :] = 0
    segments = (torch.arange(length) * config.type_vocab_size // length).repeat(batch, 1)
    return ids, mask, segments


def require_equal(ours: Tensor, theirs: Tensor, refusal: str) -> None:
    """Raise CheckpointError with the text `refusal` unless shapes are equal and values within TOLERANCE; NaN is not."""
    same_shape = ours.shape == theirs.shape
    difference = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1)) if same_shape else float("inf")
    if not difference <= TOLERANCE:
        raise CheckpointError(f"{refusal} (off by {difference:.1e})")
