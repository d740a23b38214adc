"""Texts, pairs and questions with options: examples to rows, logits to predictions. U units, C classes, K options."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from electra_albert.contracts import DataError
from electra_albert.tasks.encoding import (
    Decoded,
    EncodedExamples,
    EncodePlan,
    Encoding,
    Labels,
    Outputs,
    Pair,
    lay_out,
    truncate_pair,
)
from electra_albert.tasks.task import ChoiceExample, SequenceExample

_GAP = re.compile(r"_+")
_LONGEST_QUESTION = 128  # tokens of question and option, as in the code published for RACE
GROUPS = {"middle": 0, "high": 1}


def encode(examples: Sequence[SequenceExample], encoding: Encoding) -> EncodedExamples:
    """One row an example, cut to max_seq_length; where `double_unordered`, training pairs a second time exchanged."""
    encoder, plan = encoding.encoder, encoding.plan
    firsts = encoder.encode([example.text for example in examples])
    pairs = [number for number, example in enumerate(examples) if example.text_pair is not None]
    seconds = dict(zip(pairs, encoder.encode([examples[number].text_pair or "" for number in pairs]), strict=True))
    texts: list[Pair] = [(first, seconds.get(number)) for number, first in enumerate(firsts)]
    units = [*range(len(examples))]
    if encoding.is_training and plan.double_unordered and pairs:
        texts += [(seconds[number], firsts[number]) for number in pairs]
        units += pairs
        encoding.note("pairs", "taken a second time with their texts exchanged", examples[pairs[0]], len(pairs))
    rows: list[Pair] = []
    for number, (first, second) in enumerate(texts):
        lengths = len(first), 0 if second is None else len(second)
        kept = truncate_pair(*lengths, plan.max_seq_length - (2 if second is None else 3))
        rows.append((first[: kept[0]], None if second is None else second[: kept[1]]))
        if number < len(examples) and kept != lengths:
            encoding.note("examples", plan.cut, examples[number], is_cut=True)
    gold = encoding.gold(examples)
    labels: NDArray[np.generic] | None = None
    if gold is not None and plan.is_regression:
        labels = np.array(gold, dtype=np.float32)[units]
    elif gold is not None:
        labels = encoding.class_numbers(zip(gold, examples, strict=True))[units]
    return lay_out(encoder, rows, units, labels)


def decode(
    outputs: Outputs, rows: EncodedExamples, examples: Sequence[SequenceExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """Class names or numbers; values (predicted, gold). outputs: [C] logits of each unit, [1] for a regression."""
    logits = np.array(outputs, dtype=np.float64).reshape(-1, 1 if plan.is_regression else len(labels))  # [U, C]
    chosen = logits[:, 0] if plan.is_regression else logits.argmax(axis=1)
    # A regression's own numbers: those of the rows are rounded to float32.
    gold = [example.label or 0 for example in examples] if plan.is_regression else rows.labels
    values = None if rows.labels is None else np.stack([chosen, np.array(gold)], axis=1, dtype=np.float64)
    if plan.is_regression:
        return Decoded(chosen.tolist(), values, None)
    return Decoded([labels[number] for number in chosen], values, softmax(logits, axis=1).tolist())


def encode_choices(examples: Sequence[ChoiceExample], encoding: Encoding) -> EncodedExamples:
    """Rows `[CLS] passage [SEP] question and option [SEP]`, one for each option of a unit; DataError for a misfit.

    The passage is cut first. Question and option get at most half of a row, of which the end, with the option, is kept.
    """
    encoder, plan, gold = encoding.encoder, encoding.plan, encoding.gold(examples)
    option_count = len(examples[0].options) if examples else 1
    for example in examples:
        place, count = f"{encoding.where}, {example.identity}", len(example.options)
        if count != option_count or not count:
            raise DataError(f"{place}: {count} options where the first has {option_count}; all need the same, not 0")
        if gold is not None and example.label not in range(option_count):
            raise DataError(f"{place}: answer {example.label} is none of {option_count} options")
    texts = sorted({example.context for example in examples})  # several questions share one
    contexts = dict(zip(texts, encoder.encode(texts), strict=True))
    filled = encoder.encode([fill(example.question, option) for example in examples for option in example.options])
    room = plan.max_seq_length - 3
    longest = min(_LONGEST_QUESTION, room // 2)
    rows: list[Pair] = []
    for number, example in enumerate(examples):
        context, questions = contexts[example.context], filled[number * option_count :][:option_count]
        room_left = room - min(longest, max(map(len, questions)))
        rows += [(context[:room_left], question[-longest:]) for question in questions]
        if len(context) > room_left:
            encoding.note("passages", f"with their question {plan.cut}", example, is_cut=True)
        if any(len(question) > longest for question in questions):
            encoding.note("questions", f"with an option cut to {longest} tokens", example, is_cut=True)
    labels = None if gold is None else np.array(gold, dtype=np.int64)
    return lay_out(encoder, rows, range(len(examples)), labels, rows_per_unit=option_count)


def fill(question: str, option: str) -> str:
    """The question with the option in its gap `_`, or after it where there is no gap."""
    return _GAP.sub(lambda _: option, question) if "_" in question else f"{question} {option}"


def decode_choices(
    outputs: Outputs, rows: EncodedExamples, examples: Sequence[ChoiceExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """The number of the chosen option; values (predicted, gold, group). outputs: [K] a logit an option of each unit."""
    logits = np.array(outputs, dtype=np.float64).reshape(-1, rows.rows_per_unit)  # [U, K]
    chosen = logits.argmax(axis=1)
    groups = np.array([GROUPS.get(example.group, -1) for example in examples])
    values = None if rows.labels is None else np.stack([chosen, rows.labels, groups], axis=1, dtype=np.float64)
    return Decoded(chosen.tolist(), values, softmax(logits, axis=1).tolist())
