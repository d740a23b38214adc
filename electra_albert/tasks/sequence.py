"""One text or two with a class or a number: rows out of examples, predictions out of logits. Dimensions: C classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from electra_albert.tasks.encoding import (
    Decoded,
    EncodePlan,
    Ids,
    TextEncoder,
    are_labelled,
    lay_out,
    number_of_label,
    softmax,
    truncate_pair,
)
from electra_albert.tasks.examples import Report, SequenceExample
from electra_albert.tasks.rows import Rows

_Pair = tuple[Ids, Ids | None]


def encode(
    examples: Sequence[SequenceExample],
    encoder: TextEncoder,
    labels: tuple[str, ...],
    plan: EncodePlan,
    report: Report,
    *,
    is_training: bool,
    where: str,
) -> Rows:
    """One row an example, cut to max_seq_length; where `double_unordered`, training pairs a second time exchanged."""
    firsts = encoder.encode([example.text for example in examples])
    pairs = [number for number, example in enumerate(examples) if example.text_pair is not None]
    seconds = dict(zip(pairs, encoder.encode([examples[number].text_pair or "" for number in pairs]), strict=True))
    texts: list[_Pair] = [(first, seconds.get(number)) for number, first in enumerate(firsts)]
    sources = list(range(len(examples)))
    if is_training and plan.double_unordered and pairs:
        texts += [(seconds[number], firsts[number]) for number in pairs]
        sources += pairs
        report.note(
            f"pairs of {where} taken a second time with their texts exchanged", examples[pairs[0]].identity, len(pairs)
        )
    rows = [_fit(pair, plan.max_seq_length) for pair in texts]
    for number, (whole, cut) in enumerate(zip(texts[: len(examples)], rows, strict=False)):
        if _size(whole) > _size(cut):
            report.note_cut(f"examples of {where} {plan.cut}", examples[number].identity)
    numbers = _labels(examples, labels, plan, where)
    order = np.array(sources, dtype=np.int64)
    layout = lay_out(encoder, rows)
    return Rows(*layout, order, None if numbers is None else numbers[order], encoder.pad_id)


def _size(pair: _Pair) -> int:
    return sum(len(text) for text in pair if text is not None)


def _fit(pair: _Pair, max_seq_length: int) -> _Pair:
    """The texts cut so that they fill a row with its special tokens at most."""
    first, second = pair
    if second is None:
        return first[: max_seq_length - 2], None
    kept = truncate_pair(len(first), len(second), max_seq_length - 3)
    return first[: kept[0]], second[: kept[1]]


def _labels(
    examples: Sequence[SequenceExample], labels: tuple[str, ...], plan: EncodePlan, where: str
) -> NDArray[np.generic] | None:
    """float32 targets or int64 class numbers of the examples; None where they have none."""
    if not are_labelled([e.label for e in examples], [e.identity for e in examples], where):
        return None
    if plan.is_regression:
        return np.array([float(e.label) for e in examples if e.label is not None], dtype=np.float32)
    numbers = {label: number for number, label in enumerate(labels)}
    return np.array([number_of_label(str(e.label), numbers, e.identity, where) for e in examples], dtype=np.int64)


def decode(
    outputs: list[NDArray[np.float32]],
    rows: Rows,
    examples: Sequence[SequenceExample],
    labels: tuple[str, ...],
    plan: EncodePlan,
) -> Decoded:
    """Class names or numbers; values (predicted, gold). outputs: [C] logits of each unit, [1] for a regression."""
    logits = np.stack(outputs) if outputs else np.zeros((0, max(1, len(labels))), dtype=np.float32)  # [U, C]
    if plan.is_regression:
        predicted = logits[:, 0].astype(np.float64)
        # The examples' own numbers: those of the rows are rounded to float32.
        gold = None if rows.labels is None else np.array([float(e.label or 0) for e in examples], dtype=np.float64)
        return Decoded(predicted.tolist(), _beside(predicted, gold), None)
    chosen = logits.argmax(axis=1)
    values = _beside(chosen.astype(np.float64), None if rows.labels is None else rows.labels.astype(np.float64))
    return Decoded([labels[number] for number in chosen], values, softmax(logits).tolist())


def _beside(predicted: NDArray[np.float64], gold: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    return None if gold is None else np.stack([predicted, gold], axis=1)
