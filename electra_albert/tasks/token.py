"""Words with tags: rows of whole words, tags out of logits, their entities. U windows (units), L length, C tags."""

from collections.abc import Collection, Sequence
from itertools import chain, pairwise

import numpy as np

from electra_albert.contracts import IGNORED_LABEL, DataError
from electra_albert.tasks.encoding import Decoded, EncodedExamples, EncodePlan, Encoding, Labels, Outputs, Pair, lay_out
from electra_albert.tasks.task import TokenExample

Entity = tuple[int, int, str]  # first word, one past the last word, type

_NO_WORD = -1
_OUTSIDE = "O"
_PREFIXES = frozenset("BIESLU")
_AS_IOBES = str.maketrans("LU", "ES")  # BILOU, which seqeval does not know


def encode(examples: Sequence[TokenExample], encoding: Encoding) -> EncodedExamples:
    """Rows `[CLS] words [SEP]`. A sentence too long for one continues in the next, no word lost and none twice."""
    encoder, room = encoding.encoder, encoding.plan.max_seq_length - 2
    tags = encoding.gold(examples, "tags")
    distinct = sorted({word for example in examples for word in example.words})
    ids_of = dict(zip(distinct, encoder.encode([" " + word for word in distinct]), strict=True))
    rows: list[Pair] = []
    sources: list[int] = []
    word_numbers: list[int] = []  # of each token; only the first of a word has one
    for number, example in enumerate(examples):
        if tags is not None and len(tags[number]) != len(example.words):
            counts = f"{len(tags[number])} tags for {len(example.words)} words"
            raise DataError(f"{encoding.where}, {example.identity}: {counts}; give each word one tag")
        words = [ids_of[word] for word in example.words]
        if empty := sum(not len(word) for word in words):
            encoding.note("words", "that give no token, read as unknown", example, empty)
            words = [word if len(word) else np.array([encoder.filler_id], dtype=np.int32) for word in words]
        if long := sum(len(word) > room for word in words):
            encoding.note("words", f"cut to {room} tokens", example, long, is_cut=True)
            words = [word[:room] for word in words]
        windows = _windows([len(word) for word in words], room)
        if len(windows) > 1:
            encoding.note("sentences", f"read in windows of {room + 2} tokens", example)
        for window in windows:
            rows.append((np.concatenate([np.zeros(0, dtype=np.int32), *(words[i] for i in window)]), None))
            sources.append(number)
            numbered = ([i, *[_NO_WORD] * (len(words[i]) - 1)] for i in window)
            word_numbers += [_NO_WORD, *chain.from_iterable(numbered), _NO_WORD]
    info = {"words": np.array(word_numbers, dtype=np.int32)}
    labels = None
    if tags is not None:
        labels = np.full(len(word_numbers), IGNORED_LABEL, dtype=np.int64)
        # Words and windows are in order.
        labels[info["words"] >= 0] = encoding.class_numbers((tag, one) for one in examples for tag in one.tags or ())
    return lay_out(encoder, rows, sources, labels, has_token_labels=True, token_info=info)


def _windows(lengths: list[int], room: int) -> list[range]:
    """The words of a sentence, cut before each that does not fit any more. lengths: tokens of each word."""
    starts, used = [0], 0
    for position, length in enumerate(lengths):
        if used + length > room:
            starts.append(position)
            used = 0
        used += length
    return [range(start, end) for start, end in pairwise([*starts, len(lengths)])]


def word_logits(outputs: Outputs, rows: EncodedExamples, examples: Sequence[TokenExample]) -> Outputs:
    """Of each example the logits [words, C] at the first token of each word. outputs: [L, C] of each unit."""
    found: list[Outputs] = [[] for _ in examples]
    for number, at, logits in zip(rows.examples.tolist(), rows.slices(), outputs, strict=True):
        found[number].append(logits[rows.token_info["words"][at].astype(np.int64) >= 0])
    return [np.concatenate(windows) for windows in found]


def decode(
    outputs: Outputs, rows: EncodedExamples, examples: Sequence[TokenExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """A tag for each word; values (right entities, predicted, gold, right tags, tags). outputs: [L, C] of each unit."""
    logits = word_logits(outputs, rows, examples)
    chosen = [[labels[tag] for tag in of_words.argmax(axis=1).tolist()] for of_words in logits]
    if rows.labels is None:
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
    """All entities of one sentence in IOB1, IOB2, IOBES or BILOU tags, by the rules of CoNLL's script."""
    from seqeval.metrics.sequence_labeling import get_entities

    found = get_entities([tag[0].translate(_AS_IOBES) + tag[1:] for tag in tags])
    return {(first, last + 1, kind) for kind, first, last in found}


def is_entity_tagging(labels: Collection[str]) -> bool:
    """Whether the tags mark entities, so that they can be counted; plain tags, such as parts of speech, do not."""
    marks = [label for label in labels if label != _OUTSIDE]
    # A bare B or I without a type counts only next to O: it may be a tag of its own.
    is_marked = all(mark[:1] in _PREFIXES and (mark[1:2] == "-" or mark[1:] == "") for mark in marks)
    return is_marked and bool(marks) and (_OUTSIDE in labels or all("-" in mark for mark in marks))
