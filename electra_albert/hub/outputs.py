"""What each model gives, and its loss, under the names and with the numbers of its stock transformers class.

Dimensions: B batch, L length, V vocab, D hidden, N heads, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.hub.losses import class_loss, detection_loss, sequence_loss, span_loss
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import Body
from electra_albert.model.task_model import TaskModel

Model = Body | Generator | Discriminator | TaskModel


class Labels(NamedTuple):
    """What the loss is taken against; a model takes those its stock class takes, and all of them."""

    labels: Tensor | None = None  # int64 [B, L], of sentences [B] or float [B, C], of multiple choice int64 [B]
    sentence_order_label: Tensor | None = None  # [B] int64: 0 in order, 1 swapped
    start_positions: Tensor | None = None  # [B] int64
    end_positions: Tensor | None = None  # [B] int64


class Outputs(NamedTuple):
    """What a model gives; None where it has none or it was not asked for. In multiple choice B · choices rows run."""

    loss: Tensor | None = None  # []
    logits: Tensor | None = None  # [B, L, V], detection [B, L], sentences [B, C], choice [B, choices], tokens [B, L, C]
    sop_logits: Tensor | None = None  # [B, 2]
    start_logits: Tensor | None = None  # [B, L]
    end_logits: Tensor | None = None  # [B, L]
    last_hidden_state: Tensor | None = None  # [B, L, D]
    pooler_output: Tensor | None = None  # [B, D]
    hidden_states: tuple[Tensor, ...] | None = None  # each [B, L, D]: the mapped embeddings, then after every block
    attentions: tuple[Tensor, ...] | None = None  # each [B, N, L, L], rows sum to 1; one for every block that runs


class _Encoded(NamedTuple):
    """Rows that have passed through the encoder."""

    hidden_states: tuple[Tensor, ...]  # each [B, L, D]; the last alone where the others were not asked for
    attentions: tuple[Tensor, ...]  # each [B, N, L, L]

    @property
    def last(self) -> Tensor:
        return self.hidden_states[-1]


class _Kind(NamedTuple):
    """How one kind of model goes on from the last hidden state."""

    head: Callable[[Any, Tensor, torch.Size], Outputs]  # model, hidden states, shape of input_ids without L
    labels: tuple[str, ...] = ()  # the names its loss is taken against
    loss: Callable[[Any, Any, Tensor], Tensor] | None = None  # outputs, labels, mask [B, L]


def _pool(model: Body, last: Tensor, rows: torch.Size) -> Outputs:
    return Outputs(pooler_output=None if model.pooler is None else model.pooled(last))


def _predict(model: Generator, last: Tensor, rows: torch.Size) -> Outputs:
    order = None if model.sentence_order is None else model.sentence_order(last)
    return Outputs(logits=model.logits(last), sop_logits=order)


def _detect(model: Discriminator, last: Tensor, rows: torch.Size) -> Outputs:
    order = None if model.sentence_order is None else model.sentence_order(last)
    return Outputs(logits=model.discriminator_predictions(last), sop_logits=order)


def _score_rows(model: TaskModel, last: Tensor, rows: torch.Size) -> Outputs:
    scores = model.output(model.dropout(model.features(last)))  # [B, C]
    return Outputs(logits=scores.view(rows) if model.head.kind == "choice" else scores)


def _score_tokens(model: TaskModel, last: Tensor, rows: torch.Size) -> Outputs:
    return Outputs(logits=model.output(model.dropout(model.features(last))))


def _locate(model: TaskModel, last: Tensor, rows: torch.Size) -> Outputs:
    start, end = model.output(model.features(last)).unbind(-1)  # each [B, L]; stock has no dropout here
    return Outputs(start_logits=start, end_logits=end)


_KINDS: dict[str, _Kind] = {
    "body": _Kind(_pool),
    "masked_lm": _Kind(_predict, ("labels",), lambda out, gold, mask: class_loss(out.logits, gold.labels)),
    "pretraining": _Kind(
        _predict,
        ("labels", "sentence_order_label"),
        lambda out, gold, mask: (
            class_loss(out.logits, gold.labels) + class_loss(out.sop_logits, gold.sentence_order_label)
        ),
    ),
    "detection": _Kind(_detect, ("labels",), lambda out, gold, mask: detection_loss(out.logits, gold.labels, mask)),
    "sequence": _Kind(_score_rows, ("labels",), lambda out, gold, mask: sequence_loss(out.logits, gold.labels)),
    "choice": _Kind(_score_rows, ("labels",), lambda out, gold, mask: class_loss(out.logits, gold.labels)),
    "token": _Kind(_score_tokens, ("labels",), lambda out, gold, mask: class_loss(out.logits, gold.labels)),
    "span": _Kind(
        _locate,
        ("start_positions", "end_positions"),
        lambda out, gold, mask: span_loss(out.start_logits, out.end_logits, gold.start_positions, gold.end_positions),
    ),
}


def outputs(
    model: Model,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    *,
    labels: Labels | None = None,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
) -> Outputs:
    """One pass: logits, the loss where labels are given, hidden states and attention probabilities where asked for.

    input_ids, token_type_ids int64 and attention_mask bool or 0 and 1, each [B, L], in multiple choice
    [B, choices, L]. Without a mask every token takes part, without types every one is of segment 0. Everything has
    the model's own dtype. Raises ValueError for ids of another shape and for labels that are not the model's.
    """
    name = _name_of(model)
    kind = _KINDS[name]
    _check_shapes(name, input_ids, attention_mask, token_type_ids)
    longest = model.config.max_position_embeddings
    if input_ids.shape[-1] > longest:
        raise ValueError(f"rows are {input_ids.shape[-1]} tokens long, the model reads {longest}; cut them")
    _check_labels(name, labels, kind.labels)
    ids = input_ids.flatten(0, -2)  # [B, L]
    mask = torch.ones_like(ids).bool() if attention_mask is None else attention_mask.flatten(0, -2).bool()
    types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids.flatten(0, -2)
    embedded = model.embeddings(ids, types)  # [B, L, E]
    encoded = _encode(model, embedded, mask, output_hidden_states or output_attentions, output_attentions)
    found = kind.head(model, encoded.last, input_ids.shape[:-1])
    return found._replace(
        loss=None if labels is None or kind.loss is None else kind.loss(found, labels, mask),
        last_hidden_state=encoded.last,
        hidden_states=encoded.hidden_states if output_hidden_states else None,
        attentions=encoded.attentions if output_attentions else None,
    )


def _encode(model: Model, embedded: Tensor, mask: Tensor, every_block: bool, with_attentions: bool) -> _Encoded:
    """The encoder's own pass, or the same one block at a time where what lies between is wanted."""
    if not every_block:
        return _Encoded((model.encoder(embedded, mask),), ())
    hidden_states = [model.encoder.embedding_hidden_mapping_in(embedded)]
    attentions = []
    for block in model.encoder.blocks():
        if with_attentions:
            attentions.append(block.attention.probabilities(hidden_states[-1], mask))
        hidden_states.append(block(hidden_states[-1], mask))
    return _Encoded(tuple(hidden_states), tuple(attentions))


def _name_of(model: Model) -> str:
    """Under which name of _KINDS a model stands."""
    if isinstance(model, TaskModel):
        return model.head.kind
    if isinstance(model, Generator):
        return "masked_lm" if model.sentence_order is None else "pretraining"
    return "detection" if isinstance(model, Discriminator) else "body"


def _check_shapes(name: str, input_ids: Tensor, *others: Tensor | None) -> None:
    dimensions = 3 if name == "choice" else 2
    if input_ids.ndim != dimensions:
        raise ValueError(f"input_ids of a model of kind {name} have {dimensions} dimensions, not {input_ids.ndim}")
    for other in others:
        if other is not None and other.shape != input_ids.shape:
            raise ValueError(
                f"mask and token types should have the shape of input_ids, {[*input_ids.shape]}, not {[*other.shape]}"
            )


def _check_labels(name: str, labels: Labels | None, wanted: tuple[str, ...]) -> None:
    if labels is None:
        return
    given = tuple(field for field, value in zip(Labels._fields, labels, strict=True) if value is not None)
    if not wanted:
        raise ValueError(f"a model of kind {name} has no loss; leave labels out")
    if given != wanted:
        found = " and ".join(given) or "none"
        raise ValueError(f"labels for a model of kind {name} are {' and '.join(wanted)}; given: {found}")
