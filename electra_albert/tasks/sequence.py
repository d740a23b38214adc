"""Texts, pairs and multiple-choice questions: encoding and decoding. F features, C classes, K options."""

from collections.abc import Sequence

import numpy as np
import regex
from numpy.typing import NDArray
from scipy.special import softmax

from electra_albert.contracts import DataError
from electra_albert.tasks.encoding import Decoded, EncodedExamples, EncodePlan, Encoding, Labels, Outputs, Pair, flatten
from electra_albert.tasks.task import ChoiceExample, SequenceExample

# A gap is better apart from words than before or after one; names such as snake_case and __init__ hold none.
# Scripts that put no spaces between words have gaps anywhere.
_LETTER = r"[[\p{L}\p{M}\p{N}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]"
_NO_WORD_BEFORE, _NO_WORD_AFTER = rf"(?<!{_LETTER}|_)", rf"(?!{_LETTER}|_)"
_BEFORE_WORD = rf"{_NO_WORD_BEFORE}_+(?={_LETTER}+{_NO_WORD_AFTER})"
_AFTER_WORD = rf"(?<={_NO_WORD_BEFORE}{_LETTER}+)_+{_NO_WORD_AFTER}"
_GAPS = [
    regex.compile(rf"(?V1){pattern}")
    for pattern in (rf"{_NO_WORD_BEFORE}_+{_NO_WORD_AFTER}", rf"{_BEFORE_WORD}|{_AFTER_WORD}|___+")
]
_MAX_QUESTION_LENGTH = 128  # tokens of question and option, as in the code published for RACE
GROUPS = {"middle": 0, "high": 1}


def encode(examples: Sequence[SequenceExample], encoding: Encoding) -> EncodedExamples:
    """One sequence per example, truncated to max_seq_length; with `double_unordered`, training pairs in both orders."""
    encoder, plan = encoding.encoder, encoding.plan
    firsts = encoder.encode([example.text for example in examples])
    pairs = [number for number, example in enumerate(examples) if example.text_pair is not None]
    seconds = dict(zip(pairs, encoder.encode([examples[number].text_pair or "" for number in pairs]), strict=True))
    texts: list[Pair] = [(first, seconds.get(number)) for number, first in enumerate(firsts)]
    index = [*range(len(examples))]
    if encoding.is_training and plan.double_unordered and pairs:
        texts += [(seconds[number], firsts[number]) for number in pairs]
        index += pairs
        encoding.note("pairs", "added with their two texts swapped", examples[pairs[0]], len(pairs))
    sequences: list[Pair] = []
    for number, (first, second) in enumerate(texts):
        lengths = len(first), 0 if second is None else len(second)
        kept = truncate_pair(*lengths, plan.max_seq_length - (2 if second is None else 3))
        sequences.append((first[: kept[0]], None if second is None else second[: kept[1]]))
        if number < len(examples) and kept != lengths:
            encoding.note("examples", plan.truncated, examples[number], is_truncated=True)
    gold = encoding.gold(examples)
    labels: NDArray[np.generic] | None = None
    if gold is not None and plan.is_regression:
        labels = np.array(gold, dtype=np.float32)[index]
    elif gold is not None:
        labels = encoding.label_ids(zip(gold, examples, strict=True))[index]
    return flatten(encoder, sequences, index, labels)


def decode(
    outputs: Outputs, features: EncodedExamples, examples: Sequence[SequenceExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """Class names, or numbers for a regression; values (predicted, gold). outputs: [C] logits, [1] for a regression."""
    logits = np.array(outputs, dtype=np.float64).reshape(-1, 1 if plan.is_regression else len(labels))  # [F, C]
    chosen = logits[:, 0] if plan.is_regression else logits.argmax(axis=1)
    # Gold numbers of a regression come from the examples: the features hold them as float32.
    gold = [example.label or 0 for example in examples] if plan.is_regression else features.labels
    values = None if features.labels is None else np.stack([chosen, np.array(gold)], axis=1, dtype=np.float64)
    if plan.is_regression:
        return Decoded(chosen.tolist(), values, None)
    return Decoded([labels[number] for number in chosen], values, softmax(logits, axis=1).tolist())


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of two texts truncated to `room` tokens in total, longest first; of equal ones the second is cut."""
    kept = first if first + second <= room else min(first, room - min(second, room // 2))
    return kept, min(second, room - kept)


def encode_choices(examples: Sequence[ChoiceExample], encoding: Encoding) -> EncodedExamples:
    """One sequence `[CLS] passage [SEP] question and option [SEP]` per option; DataError for unequal option counts.

    The passage is truncated first. Question and option get at most half of the sequence; their last tokens are kept.
    """
    encoder, plan, gold = encoding.encoder, encoding.plan, encoding.gold(examples)
    option_count = len(examples[0].options) if examples else 1
    for example in examples:
        location, count = f"{encoding.set_name}, {example.identity}", len(example.options)
        if count != option_count or not count:
            raise DataError(f"{location}: {count} options, but the first example has {option_count}; give all as many")
        if gold is not None and example.label not in range(option_count):
            raise DataError(f"{location}: answer {example.label} is not one of the {option_count} options; correct it")
    texts = sorted({example.context for example in examples})  # several questions share one
    contexts = dict(zip(texts, encoder.encode(texts), strict=True))
    filled = encoder.encode([fill(example.question, option) for example in examples for option in example.options])
    room = plan.max_seq_length - 3
    longest = min(_MAX_QUESTION_LENGTH, room // 2)
    sequences: list[Pair] = []
    for number, example in enumerate(examples):
        context, questions = contexts[example.context], filled[number * option_count :][:option_count]
        room_left = room - min(longest, max(map(len, questions)))
        sequences += [(context[:room_left], question[-longest:]) for question in questions]
        if len(context) > room_left:
            encoding.note("passages", f"with question and option {plan.truncated}", example, is_truncated=True)
        if any(len(question) > longest for question in questions):
            encoding.note("questions", f"with option truncated to {longest} tokens", example, is_truncated=True)
    labels = None if gold is None else np.array(gold, dtype=np.int64)
    return flatten(encoder, sequences, range(len(examples)), labels, num_choices=option_count)


def fill(question: str, option: str) -> str:
    """Put the option into the gap `_` of the question, or after the question if it has no gap."""
    for gap in _GAPS:
        if gap.search(question):
            return str(gap.sub(lambda _: option, question))
    return f"{question} {option}"


def decode_choices(
    outputs: Outputs, features: EncodedExamples, examples: Sequence[ChoiceExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """Index of the predicted option; values (predicted, gold, group). outputs: [K] logits."""
    logits = np.array(outputs, dtype=np.float64).reshape(-1, features.num_choices)  # [F, K]
    chosen = logits.argmax(axis=1)
    groups = np.array([GROUPS.get(example.group, -1) for example in examples])
    values = None if features.labels is None else np.stack([chosen, features.labels, groups], axis=1, dtype=np.float64)
    return Decoded(chosen.tolist(), values, softmax(logits, axis=1).tolist())
