"""Words with tags: rows of whole words, tags out of logits, their entities. U windows (units), L length, C tags."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from electra_albert.contracts import IGNORED_LABEL, DataError
from electra_albert.corpus.text_encoder import Ids, TextEncoder
from electra_albert.tasks.encoding import (
    Decoded,
    EncodePlan,
    Labels,
    Outputs,
    are_labelled,
    lay_out,
    number_of_label,
)
from electra_albert.tasks.rows import Rows
from electra_albert.tasks.task import Report, TokenExample

Entity = tuple[int, int, str]  # first word, one past the last word, type

_NO_WORD = -1
_OUTSIDE = "O"
_PREFIXES = frozenset("BIESLU")
_AS_IOBES = str.maketrans("LU", "ES")  # BILOU, which seqeval does not know


# Consecutive words of a sentence that fit into a row: the number of the example, of the first word, and their ids.
_Window = tuple[int, int, list[Ids]]


def encode(
    examples: Sequence[TokenExample],
    encoder: TextEncoder,
    labels: tuple[str, ...],
    plan: EncodePlan,
    report: Report,
    *,
    is_training: bool,
    where: str,
) -> Rows:
    """Rows `[CLS] words [SEP]`. A sentence too long for one continues in the next, no word lost and none twice."""
    tags = _tag_numbers(examples, labels, where)
    room = plan.max_seq_length - 2
    distinct = sorted({word for example in examples for word in example.words})
    ids_of = dict(zip(distinct, encoder.encode([" " + word for word in distinct]), strict=True))
    windows: list[_Window] = []
    for number, example in enumerate(examples):
        words = [ids_of[word] for word in example.words]
        if empty := sum(not len(word) for word in words):
            report.note(f"words of {where} that give no token, read as unknown", example.identity, empty)
            words = [word if len(word) else np.array([encoder.filler_id], dtype=np.int32) for word in words]
        if long := sum(len(word) > room for word in words):
            report.note_cut(f"words of {where} cut to {room} tokens", example.identity, long)
            words = [word[:room] for word in words]
        mine = _windows(number, words, room)
        if len(mine) > 1:
            report.note(f"sentences of {where} read in windows of {plan.max_seq_length} tokens", example.identity)
        windows += mine
    return _rows(windows, tags, encoder)


def _windows(number: int, words: list[Ids], room: int) -> list[_Window]:
    """A sentence cut before each word that does not fit any more."""
    found: list[_Window] = [(number, 0, [])]
    used = 0
    for position, word in enumerate(words):
        if used + len(word) > room:
            found.append((number, position, []))
            used = 0
        found[-1][2].append(word)
        used += len(word)
    return found


def _tag_numbers(examples: Sequence[TokenExample], labels: tuple[str, ...], where: str) -> list[list[int]] | None:
    """The number of each word's tag; None where there are no tags."""
    if not are_labelled(examples, "tags", where):
        return None
    for words, tags, identity in examples:
        if len(tags or ()) != len(words):
            counts = f"{len(tags or ())} tags for {len(words)} words"
            raise DataError(f"{where}, {identity}: {counts}; give each word one tag")
    numbers = {label: number for number, label in enumerate(labels)}
    return [[number_of_label(tag, numbers, e.identity, where) for tag in e.tags or ()] for e in examples]


def _rows(windows: list[_Window], tags: list[list[int]] | None, encoder: TextEncoder) -> Rows:
    none = np.zeros(0, dtype=np.int32)
    layout = lay_out(encoder, [(np.concatenate([none, *words]), None) for _, _, words in windows])
    word_numbers = np.full(len(layout[0]), _NO_WORD, dtype=np.int32)
    labels = np.full(len(layout[0]), IGNORED_LABEL, dtype=np.int64)
    for (example, first_word, words), row_start in zip(windows, layout[1].tolist(), strict=False):
        lengths = np.array([len(word) for word in words], dtype=np.int64)
        firsts = row_start + 1 + np.cumsum(lengths) - lengths
        numbers = np.arange(first_word, first_word + len(lengths))
        word_numbers[firsts] = numbers
        if tags is not None:
            labels[firsts] = np.array(tags[example], dtype=np.int64)[numbers]
    return Rows(
        *layout,
        np.array([example for example, _, _ in windows], dtype=np.int64),
        None if tags is None else labels,
        encoder.pad_id,
        has_token_labels=True,
        token_info={"words": word_numbers},
    )


def word_logits(outputs: Outputs, rows: Rows, examples: Sequence[TokenExample]) -> Outputs:
    """Of each example the logits [words, C] at the first token of each word. outputs: [L, C] of each unit."""
    found: list[Outputs] = [[] for _ in examples]
    for number, at, logits in zip(rows.examples.tolist(), rows.slices(), outputs, strict=True):
        # Words are in order, as are the windows of an example.
        found[number].append(logits[rows.token_info["words"][at].astype(np.int64) >= 0])
    return [np.concatenate(windows) for windows in found]


def decode(outputs: Outputs, rows: Rows, examples: Sequence[TokenExample], labels: Labels, plan: EncodePlan) -> Decoded:
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
    # A bare B or I without a type counts only beside O: it may be a tag of its own.
    is_marked = all(mark[:1] in _PREFIXES and (mark[1:2] == "-" or mark[1:] == "") for mark in marks)
    return is_marked and bool(marks) and (_OUTSIDE in labels or all("-" in mark for mark in marks))
