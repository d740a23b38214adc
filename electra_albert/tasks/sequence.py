"""Texts, pairs and multiple-choice questions. F features, C classes, K options."""

from collections.abc import Sequence
from itertools import compress

import numpy as np
import regex
import torch
from numpy.typing import NDArray

from electra_albert.contracts import DataError
from electra_albert.tasks.encoding import (
    Decoded,
    EncodedExamples,
    EncodePlan,
    Encoding,
    Labels,
    Outputs,
    Pair,
    flatten,
)
from electra_albert.tasks.task import ChoiceExample, SequenceExample

# A gap is better apart from words than before or after one; names such as snake_case and __init__
# hold none. Scripts that put no spaces between words have gaps anywhere.
_LETTER = (
    r"[[\p{L}\p{M}\p{N}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]"
)
_NO_WORD_BEFORE = rf"(?<!{_LETTER}|_)"
_NO_WORD_AFTER = rf"(?!{_LETTER}|_)"
_BEFORE_WORD = rf"{_NO_WORD_BEFORE}_+(?={_LETTER}+{_NO_WORD_AFTER})"
_AFTER_WORD = rf"(?<={_NO_WORD_BEFORE}{_LETTER}+)_+{_NO_WORD_AFTER}"
_GAPS = (
    regex.compile(rf"(?V1){_NO_WORD_BEFORE}_+{_NO_WORD_AFTER}"),
    regex.compile(rf"(?V1){_BEFORE_WORD}|{_AFTER_WORD}|___+"),
)
_MAX_QUESTION_LENGTH = 128  # tokens of question and option, as in the code published for RACE
GROUPS = {"middle": 0, "high": 1}


def encode(examples: Sequence[SequenceExample], encoding: Encoding) -> EncodedExamples:
    """One sequence per example, truncated to max_seq_length.

    With `double_unordered`, training pairs are encoded in both orders.
    """
    plan = encoding.plan
    firsts = encoding.encoder.encode([example.text for example in examples])
    seconds = encoding.encoder.encode([example.text_pair or "" for example in examples])
    pairs = [number for number, example in enumerate(examples) if example.text_pair is not None]
    texts: list[Pair] = [(first, None) for first in firsts]
    for number in pairs:
        texts[number] = (firsts[number], seconds[number])
    index = list(range(len(examples)))
    if encoding.is_training and plan.double_unordered and pairs:
        texts += [(seconds[number], firsts[number]) for number in pairs]
        index += pairs
        encoding.note("pairs", "added with their two texts swapped", examples[pairs[0]], len(pairs))
    sequences: list[Pair] = []
    for number, (first, second) in enumerate(texts):
        if second is None:
            room = plan.max_seq_length - 2
            sequences.append((first[:room], None))
            is_truncated = len(first) > room
        else:
            room = plan.max_seq_length - 3
            lengths = truncate_pair(len(first), len(second), room)
            sequences.append((first[: lengths[0]], second[: lengths[1]]))
            is_truncated = len(first) + len(second) > room
        if is_truncated and number < len(examples):
            encoding.note("examples", plan.truncated, examples[number], is_truncated=True)
    gold = encoding.gold(examples)
    labels: NDArray[np.generic] | None = None
    if gold is not None:
        if plan.is_regression:
            labels = np.array(gold, dtype=np.float32)
        elif plan.is_multi_label:
            is_label = [[label in names for label in encoding.labels] for names in gold]
            labels = np.array(is_label, dtype=np.float32)
        else:
            labels = encoding.label_ids(gold)
        labels = labels[index]
    return flatten(encoding.encoder, sequences, index, labels)


def decode(
    outputs: Outputs,
    features: EncodedExamples,
    examples: Sequence[SequenceExample],
    labels: Labels,
    plan: EncodePlan,
) -> Decoded:
    """Class names, numbers for a regression, or lists of labels; values (predicted, gold).

    outputs: [C] logits, [1] for a regression. A label with a probability above .5 is predicted; the
    values of a multi-label task have a column for each label, 2 C in all.
    """
    size = 1 if plan.is_regression else len(labels)
    logits = np.array(outputs, dtype=np.float64).reshape(-1, size)  # [F, C]
    values = None
    if plan.is_multi_label:
        is_predicted = logits > 0
        if features.labels is not None:
            values = np.concatenate([is_predicted, features.labels], axis=1, dtype=np.float64)
        predictions = [list(compress(labels, of_text)) for of_text in is_predicted]
        return Decoded(predictions, values, torch.from_numpy(logits).sigmoid().tolist())
    chosen = logits[:, 0] if plan.is_regression else logits.argmax(axis=1)
    if features.labels is not None:
        # Gold numbers of a regression come from the examples: the features hold them as float32.
        numbers = [example.label for example in examples]
        gold = np.array(numbers) if plan.is_regression else features.labels
        values = np.stack([chosen, gold], axis=1, dtype=np.float64)
    if plan.is_regression:
        return Decoded(chosen.tolist(), values, None)
    probabilities = torch.from_numpy(logits).softmax(1).tolist()
    names = [labels[number] for number in chosen]
    return Decoded(names, values, probabilities)


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of two texts truncated to `room` tokens in total.

    The longer one is cut first, of equal ones the second: 5 and 2 become 3 and 2 in 5 tokens.
    """
    if first + second > room:
        least = min(second, room // 2)  # of the second
        first = min(first, room - least)
    return first, min(second, room - first)


def encode_choices(examples: Sequence[ChoiceExample], encoding: Encoding) -> EncodedExamples:
    """One sequence `[CLS] passage [SEP] question and option [SEP]` per option.

    The passage is truncated first. Question and option get at most half of the sequence; their
    last tokens are used. DataError for unequal option counts.
    """
    plan = encoding.plan
    gold = encoding.gold(examples)
    texts = sorted({example.context for example in examples})  # several questions share one
    contexts = dict(zip(texts, encoding.encoder.encode(texts), strict=True))
    option_count = len(examples[0].options) if examples else 1
    filled = []
    for example in examples:
        count = len(example.options)
        if count != option_count:
            raise DataError(
                f"{encoding.set_name}, {example.identity}: {count} options, but the first example "
                f"has {option_count}; give all as many"
            )
        filled += [fill(example.question, option) for option in example.options]
    encoded = encoding.encoder.encode(filled)
    room = plan.max_seq_length - 3
    longest = min(_MAX_QUESTION_LENGTH, room // 2)
    sequences = []
    for number, example in enumerate(examples):
        questions = encoded[number * option_count :][:option_count]
        length = max(map(len, questions))
        room_left = room - min(longest, length)
        context = contexts[example.context]
        sequences += [(context[:room_left], question[-longest:]) for question in questions]
        if len(context) > room_left:
            how = f"with question and option {plan.truncated}"
            encoding.note("passages", how, example, is_truncated=True)
        if length > longest:
            how = f"with option truncated to {longest} tokens"
            encoding.note("questions", how, example, is_truncated=True)
    labels = None
    if gold is not None:
        labels = np.array(gold, dtype=np.int64)
    return flatten(
        encoding.encoder, sequences, range(len(examples)), labels, num_choices=option_count
    )


def fill(question: str, option: str) -> str:
    """Put the option into the gap `_` of the question, or after a question without a gap."""
    for gap in _GAPS:
        if gap.search(question):
            return str(gap.sub(lambda _: option, question))
    return f"{question} {option}"


def decode_choices(
    outputs: Outputs,
    features: EncodedExamples,
    examples: Sequence[ChoiceExample],
    labels: Labels,
    plan: EncodePlan,
) -> Decoded:
    """Index of the predicted option; values (predicted, gold, group). outputs: [K] logits."""
    logits = np.array(outputs, dtype=np.float64).reshape(-1, features.num_choices)  # [F, K]
    chosen = logits.argmax(axis=1)
    values = None
    if features.labels is not None:
        groups = np.array([GROUPS.get(example.group, -1) for example in examples])
        values = np.stack([chosen, features.labels, groups], axis=1, dtype=np.float64)
    probabilities = torch.from_numpy(logits).softmax(1).tolist()
    return Decoded(chosen.tolist(), values, probabilities)
