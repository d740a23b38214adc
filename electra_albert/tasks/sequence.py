"""Texts, pairs and questions with options: examples to rows, logits to predictions. U units, C classes, K options."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from electra_albert.contracts import DataError
from electra_albert.corpus.text_encoder import Ids, TextEncoder
from electra_albert.tasks.encoding import (
    Decoded,
    EncodePlan,
    Labels,
    Outputs,
    are_labelled,
    lay_out,
    number_of_label,
    softmax,
    truncate_pair,
)
from electra_albert.tasks.rows import Rows
from electra_albert.tasks.task import ChoiceExample, Report, SequenceExample

_GAP = re.compile(r"_+")
_LONGEST_QUESTION = 128  # tokens of question and option, as in the code published for RACE
GROUPS = {"middle": 0, "high": 1}
OTHER_GROUP = -1


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
    texts: list[tuple[Ids, Ids | None]] = [(first, seconds.get(number)) for number, first in enumerate(firsts)]
    order = list(range(len(examples)))
    if is_training and plan.double_unordered and pairs:
        texts += [(seconds[number], firsts[number]) for number in pairs]
        order += pairs
        exchanged = f"pairs of {where} taken a second time with their texts exchanged"
        report.note(exchanged, examples[pairs[0]].identity, len(pairs))
    rows: list[tuple[Ids, Ids | None]] = []
    for number, (first, second) in enumerate(texts):
        room = plan.max_seq_length - (2 if second is None else 3)
        kept = truncate_pair(len(first), 0 if second is None else len(second), room)
        rows.append((first[: kept[0]], None if second is None else second[: kept[1]]))
        if number < len(examples) and sum(kept) < len(first) + (0 if second is None else len(second)):
            report.note_cut(f"examples of {where} {plan.cut}", examples[number].identity)
    gold, units = _labels(examples, labels, plan, where), np.array(order, dtype=np.int64)
    return Rows(*lay_out(encoder, rows), units, None if gold is None else gold[units], encoder.pad_id)


def _labels(
    examples: Sequence[SequenceExample], labels: tuple[str, ...], plan: EncodePlan, where: str
) -> NDArray[np.generic] | None:
    """float32 targets or int64 class numbers of the examples; None where they have none."""
    if not are_labelled(examples, "label", where):
        return None
    if plan.is_regression:
        return np.array([float(example.label or 0) for example in examples], dtype=np.float32)
    numbers = {label: number for number, label in enumerate(labels)}
    return np.array([number_of_label(str(e.label), numbers, e.identity, where) for e in examples], dtype=np.int64)


def decode(
    outputs: Outputs, rows: Rows, examples: Sequence[SequenceExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """Class names or numbers; values (predicted, gold). outputs: [C] logits of each unit, [1] for a regression."""
    logits = np.stack(outputs) if outputs else np.zeros((0, max(1, len(labels))), dtype=np.float32)  # [U, C]
    chosen = logits[:, 0] if plan.is_regression else logits.argmax(axis=1)
    # A regression's own numbers: those of the rows are rounded to float32.
    gold = [example.label or 0 for example in examples] if plan.is_regression else rows.labels
    values = None if rows.labels is None else np.stack([chosen, np.array(gold)], axis=1, dtype=np.float64)
    if plan.is_regression:
        return Decoded(chosen.astype(np.float64).tolist(), values, None)
    return Decoded([labels[number] for number in chosen], values, softmax(logits).tolist())


def encode_choices(
    examples: Sequence[ChoiceExample],
    encoder: TextEncoder,
    labels: tuple[str, ...],
    plan: EncodePlan,
    report: Report,
    *,
    is_training: bool,
    where: str,
) -> Rows:
    """Rows `[CLS] passage [SEP] question and option [SEP]`, as many to a unit as there are options.

    The passage is cut first. Question and option get at most half of a row; of longer ones the end, with the option, is
    kept. DataError where questions differ in their number of options, or a label names none of them.
    """
    option_count = len(examples[0].options) if examples else 1
    is_labelled = are_labelled(examples, "label", where)
    for example in examples:
        if len(example.options) != option_count or option_count == 0:
            counts = f"{len(example.options)} options where the first has {option_count}"
            raise DataError(f"{where}, {example.identity}: {counts}; all questions need the same number, at least one")
        if is_labelled and example.label not in range(option_count):
            raise DataError(f"{where}, {example.identity}: answer {example.label} is none of {option_count} options")
    contexts = sorted({example.context for example in examples})  # several questions share one
    context_ids = dict(zip(contexts, encoder.encode(contexts), strict=True))
    filled = encoder.encode([fill(example.question, option) for example in examples for option in example.options])
    room = plan.max_seq_length - 3
    longest = min(_LONGEST_QUESTION, room // 2)
    rows: list[tuple[Ids, Ids | None]] = []
    for number, example in enumerate(examples):
        context, questions = context_ids[example.context], filled[number * option_count :][:option_count]
        kept = [question[-longest:] for question in questions]
        room_left = room - max(len(question) for question in kept)
        rows += [(context[:room_left], question) for question in kept]
        if len(context) > room_left:
            report.note_cut(f"passages of {where} with their question {plan.cut}", example.identity)
        if any(len(question) > longest for question in questions):
            report.note_cut(f"questions of {where} with an option cut to {longest} tokens", example.identity)
    gold = np.array([example.label for example in examples], dtype=np.int64) if is_labelled else None
    return Rows(*lay_out(encoder, rows), np.arange(len(examples)), gold, encoder.pad_id, rows_per_unit=option_count)


def fill(question: str, option: str) -> str:
    """The question with the option in its gap `_`, or after it where there is no gap."""
    return _GAP.sub(lambda _: option, question) if "_" in question else f"{question} {option}"


def decode_choices(
    outputs: Outputs, rows: Rows, examples: Sequence[ChoiceExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """The number of the chosen option; values (predicted, gold, group). outputs: [K] a logit an option of each unit."""
    logits = np.stack(outputs) if outputs else np.zeros((0, rows.rows_per_unit), dtype=np.float32)  # [U, K]
    chosen = logits.argmax(axis=1)
    groups = np.array([GROUPS.get(example.group, OTHER_GROUP) for example in examples])
    values = None if rows.labels is None else np.stack([chosen, rows.labels, groups], axis=1, dtype=np.float64)
    return Decoded(chosen.tolist(), values, softmax(logits).tolist())
