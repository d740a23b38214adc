"""Token classification: windows of whole words, tags from logits, entities. L length, C tags."""

import re
from collections.abc import Collection, Sequence
from itertools import chain, pairwise

import numpy as np

from electra_albert.contracts import IGNORED_LABEL
from electra_albert.tasks.encoding import (
    Decoded,
    EncodedExamples,
    EncodePlan,
    Encoding,
    Labels,
    Outputs,
    flatten,
)
from electra_albert.tasks.task import TokenExample
from electra_albert.tokenization.text_encoder import Ids

Entity = tuple[int, int, str]  # first word, one past the last word, type

_NO_WORD = -1
_AS_IOBES = str.maketrans("LU", "ES")  # BILOU, which seqeval does not know


def encode(examples: Sequence[TokenExample], encoding: Encoding) -> EncodedExamples:
    """Features `[CLS] words [SEP]`; a long sentence is split into windows without overlap.

    Only the first token of each word has a label. `Ada loves Rome` in windows of three tokens:

        [CLS] A ##da [SEP]         word_ids -1 0 -1 -1
        [CLS] loves Rome [SEP]     word_ids -1 1  2 -1
    """
    room = encoding.plan.max_seq_length - 2
    words = set(chain.from_iterable(example.words for example in examples))
    distinct = sorted(words)
    encoded = encoding.encoder.encode([" " + word for word in distinct])
    ids_of = dict(zip(distinct, encoded, strict=True))
    no_ids = np.zeros(0, dtype=np.int32)
    sequences = []
    index = []
    numbers = []  # of the word at its first token; -1 at other tokens
    for number, example in enumerate(examples):
        ids_of_words = [ids_of[word] for word in example.words]
        subwords = _fitted(ids_of_words, room, example, encoding)
        windows = _windows(list(map(len, subwords)), room)
        if len(windows) > 1:
            encoding.note("sentences", f"split into windows of {room + 2} tokens", example)
        for window in windows:
            inside = subwords[window.start : window.stop]
            sequences.append((np.concatenate([no_ids, *inside]), None))
            index.append(number)
            numbers.append(_NO_WORD)
            for word, ids in zip(window, inside, strict=True):
                numbers.append(word)
                numbers += [_NO_WORD] * (len(ids) - 1)
            numbers.append(_NO_WORD)
    word_ids = np.array(numbers, dtype=np.int32)
    labels = None
    tags = encoding.gold(examples, "tags")
    if tags is not None:
        labels = np.full(len(word_ids), IGNORED_LABEL)
        labels[word_ids >= 0] = encoding.label_ids(chain.from_iterable(tags))
    info = {"word_ids": word_ids}
    return flatten(
        encoding.encoder, sequences, index, labels, has_token_labels=True, token_info=info
    )


def _fitted(words: list[Ids], room: int, example: TokenExample, encoding: Encoding) -> list[Ids]:
    """Token ids of each word, of at least one and at most `room` tokens."""
    empty = sum(not len(ids) for ids in words)
    if empty:
        encoding.note("words", "without a token replaced by the unknown token", example, empty)
    long = sum(len(ids) > room for ids in words)
    if long:
        encoding.note("words", f"truncated to {room} tokens", example, long, is_truncated=True)
    unknown = np.array([encoding.encoder.filler_id], dtype=np.int32)
    return [ids[:room] if len(ids) else unknown for ids in words]


def _windows(lengths: list[int], room: int) -> list[range]:
    """Split a sentence into windows of at most `room` tokens. lengths: tokens of each word."""
    starts = [0]
    used = 0
    for position, length in enumerate(lengths):
        if used + length > room:
            starts.append(position)
            used = 0
        used += length
    starts.append(len(lengths))
    return [range(start, end) for start, end in pairwise(starts)]


def word_logits(
    outputs: Outputs, features: EncodedExamples, examples: Sequence[TokenExample]
) -> Outputs:
    """Logits [words, C] of each example, at the first token of each word. outputs: [L, C]."""
    windows: list[Outputs] = [[] for _ in examples]
    is_first = features.token_info["word_ids"] >= 0
    numbers = features.example_index.tolist()
    for number, at, logits in zip(numbers, features.slices(), outputs, strict=True):
        windows[number].append(logits[is_first[at]])
    return list(map(np.concatenate, windows))


def decode(
    outputs: Outputs,
    features: EncodedExamples,
    examples: Sequence[TokenExample],
    labels: Labels,
    plan: EncodePlan,
) -> Decoded:
    """A tag per word. outputs: [L, C] logits.

    values: (correct entities, predicted ones, gold ones, correct tags, tags).
    """
    names = np.array(labels, dtype=object)
    predictions = []
    for logits in word_logits(outputs, features, examples):
        tags = names[logits.argmax(axis=1)]
        predictions.append(tags.tolist())
    if features.labels is None:
        return Decoded(predictions, None, None)
    is_entities = is_entity_tagging(labels)
    values = np.zeros((len(examples), 5))
    for row, example, tags in zip(values, examples, predictions, strict=True):
        gold = example.tags or ()
        if is_entities:
            predicted = entities(tags)
            annotated = entities(gold)
            row[:3] = (len(predicted & annotated), len(predicted), len(annotated))
        correct_tags = sum(tag == right for tag, right in zip(tags, gold, strict=True))
        row[3:] = (correct_tags, len(gold))
    return Decoded(predictions, values, None)


def entities(tags: Sequence[str]) -> set[Entity]:
    """Entities of one sentence in IOB1, IOB2, IOBES or BILOU tags, as in CoNLL's script."""
    from seqeval.metrics.sequence_labeling import get_entities

    as_iobes = [tag[0].translate(_AS_IOBES) + tag[1:] for tag in tags]
    spans = get_entities(as_iobes)  # (type, first word, last word)
    return {(first, last + 1, kind) for kind, first, last in spans}


def is_entity_tagging(labels: Collection[str]) -> bool:
    """Whether the tags mark entities (IOB and the like), unlike parts of speech."""
    form = "[BIESLU]-"
    # A bare B or I without a type counts only together with O: it could be a tag of its own.
    if "O" in labels:
        form = r"[BIESLU](-|\Z)"
    marks = [label for label in labels if label != "O"]
    return bool(marks) and all(re.match(form, mark) for mark in marks)
