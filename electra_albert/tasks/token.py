"""Token classification: windows of whole words, tags from logits, entities. F features, L length, C tags."""

from collections.abc import Collection, Sequence
from itertools import chain, pairwise

import numpy as np

from electra_albert.contracts import IGNORED_LABEL, DataError
from electra_albert.tasks.encoding import Decoded, EncodedExamples, EncodePlan, Encoding, Labels, Outputs, Pair, flatten
from electra_albert.tasks.task import TokenExample

Entity = tuple[int, int, str]  # first word, one past the last word, type

_NO_WORD = -1
_OUTSIDE = "O"
_PREFIXES = frozenset("BIESLU")
_AS_IOBES = str.maketrans("LU", "ES")  # BILOU, which seqeval does not know


def encode(examples: Sequence[TokenExample], encoding: Encoding) -> EncodedExamples:
    """Features `[CLS] words [SEP]`; a sentence too long for one is split into windows without overlap."""
    encoder, room = encoding.encoder, encoding.plan.max_seq_length - 2
    tags = encoding.gold(examples, "tags")
    distinct = sorted({word for example in examples for word in example.words})
    ids_of = dict(zip(distinct, encoder.encode([" " + word for word in distinct]), strict=True))
    sequences: list[Pair] = []
    index: list[int] = []
    word_ids: list[int] = []  # of the first token of each word; -1 for other tokens
    for number, example in enumerate(examples):
        if tags is not None and len(tags[number]) != len(example.words):
            counts = f"{len(tags[number])} tags for {len(example.words)} words"
            raise DataError(f"{encoding.set_name}, {example.identity}: {counts}; give one tag per word")
        words = [ids_of[word] for word in example.words]
        if empty := sum(not len(word) for word in words):
            encoding.note("words", "without a token replaced by the unknown token", example, empty)
            words = [word if len(word) else np.array([encoder.filler_id], dtype=np.int32) for word in words]
        if long := sum(len(word) > room for word in words):
            encoding.note("words", f"truncated to {room} tokens", example, long, is_truncated=True)
            words = [word[:room] for word in words]
        windows = _windows([len(word) for word in words], room)
        if len(windows) > 1:
            encoding.note("sentences", f"split into windows of {room + 2} tokens", example)
        for window in windows:
            sequences.append((np.concatenate([np.zeros(0, dtype=np.int32), *(words[i] for i in window)]), None))
            index.append(number)
            numbered = ([i, *[_NO_WORD] * (len(words[i]) - 1)] for i in window)
            word_ids += [_NO_WORD, *chain.from_iterable(numbered), _NO_WORD]
    info = {"word_ids": np.array(word_ids, dtype=np.int32)}
    labels = None
    if tags is not None:
        labels = np.full(len(word_ids), IGNORED_LABEL, dtype=np.int64)
        # Words and windows are in order.
        labels[info["word_ids"] >= 0] = encoding.label_ids((tag, one) for one in examples for tag in one.tags or ())
    return flatten(encoder, sequences, index, labels, has_token_labels=True, token_info=info)


def _windows(lengths: list[int], room: int) -> list[range]:
    """Split a sentence into windows of at most `room` tokens. lengths: tokens of each word."""
    starts, used = [0], 0
    for position, length in enumerate(lengths):
        if used + length > room:
            starts.append(position)
            used = 0
        used += length
    return [range(start, end) for start, end in pairwise([*starts, len(lengths)])]


def word_logits(outputs: Outputs, features: EncodedExamples, examples: Sequence[TokenExample]) -> Outputs:
    """Logits [words, C] of each example, at the first token of each word. outputs: [L, C] logits."""
    found: list[Outputs] = [[] for _ in examples]
    for number, at, logits in zip(features.example_index.tolist(), features.slices(), outputs, strict=True):
        found[number].append(logits[features.token_info["word_ids"][at].astype(np.int64) >= 0])
    return [np.concatenate(windows) for windows in found]


def decode(
    outputs: Outputs, features: EncodedExamples, examples: Sequence[TokenExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """A tag per word; values (correct entities, predicted, gold, correct tags, tags). outputs: [L, C] logits."""
    logits = word_logits(outputs, features, examples)
    chosen = [[labels[tag] for tag in of_words.argmax(axis=1).tolist()] for of_words in logits]
    if features.labels is None:
        return Decoded(chosen, None, None)
    is_entities = is_entity_tagging(labels)
    values = np.zeros((len(examples), 5))
    for row, example, predicted in zip(values, examples, chosen, strict=True):
        gold = example.tags or ()
        if is_entities:
            found, wanted = entities(predicted), entities(gold)
            row[:3] = (len(found & wanted), len(found), len(wanted))
        row[3:] = (sum(mine == theirs for mine, theirs in zip(predicted, gold, strict=True)), len(gold))
    return Decoded(chosen, values, None)


def entities(tags: Sequence[str]) -> set[Entity]:
    """Entities of one sentence in IOB1, IOB2, IOBES or BILOU tags, as in CoNLL's evaluation script."""
    from seqeval.metrics.sequence_labeling import get_entities

    found = get_entities([tag[0].translate(_AS_IOBES) + tag[1:] for tag in tags])
    return {(first, last + 1, kind) for kind, first, last in found}


def is_entity_tagging(labels: Collection[str]) -> bool:
    """Whether the tags mark entities (IOB and the like); plain tags, such as parts of speech, do not."""
    marks = [label for label in labels if label != _OUTSIDE]
    # A bare B or I without a type counts only together with O: it could be a tag of its own.
    is_marked = all(mark[:1] in _PREFIXES and (mark[1:2] == "-" or mark[1:] == "") for mark in marks)
    return is_marked and bool(marks) and (_OUTSIDE in labels or all("-" in mark for mark in marks))
