"""Words with tags: rows of whole words, a label on the first token of each, and tags out of logits.

Dimensions: U windows (units), L length, C tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.contracts import IGNORED_LABEL, DataError
from electra_albert.tasks.encoding import (
    Decoded,
    EncodePlan,
    Ids,
    TextEncoder,
    are_labelled,
    lay_out,
    number_of_label,
    row_slices,
)
from electra_albert.tasks.entities import entities, is_entity_tagging
from electra_albert.tasks.examples import Report, TokenExample
from electra_albert.tasks.rows import Rows

_NO_WORD = -1


class _Window(NamedTuple):
    """Consecutive words of a sentence that fit into a row."""

    example: int
    first_word: int
    words: list[Ids]


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
    """Rows `[CLS] words [SEP]`. A sentence too long for one goes on in the next, no word lost and none twice."""
    tags = _tag_numbers(examples, labels, where)
    room = plan.max_seq_length - 2
    pieces = _word_pieces(examples, encoder)
    windows: list[_Window] = []
    for number, example in enumerate(examples):
        words = [pieces[word] for word in example.words]
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


def _word_pieces(examples: Sequence[TokenExample], encoder: TextEncoder) -> dict[str, Ids]:
    """The tokens of each distinct word as they are behind a space."""
    distinct = sorted({word for example in examples for word in example.words})
    return dict(zip(distinct, encoder.encode([" " + word for word in distinct]), strict=True))


def _windows(number: int, words: list[Ids], room: int) -> list[_Window]:
    """A sentence cut before each word that does not fit any more."""
    found = [_Window(number, 0, [])]
    used = 0
    for place, word in enumerate(words):
        if used + len(word) > room:
            found.append(_Window(number, place, []))
            used = 0
        found[-1].words.append(word)
        used += len(word)
    return found


def _tag_numbers(examples: Sequence[TokenExample], labels: tuple[str, ...], where: str) -> list[list[int]] | None:
    """The number of each word's tag; None where there are no tags."""
    if not are_labelled([e.tags for e in examples], [e.identity for e in examples], where):
        return None
    numbers = {label: number for number, label in enumerate(labels)}
    found = []
    for example in examples:
        tags = example.tags or ()
        if len(tags) != len(example.words):
            raise DataError(
                f"{where}, {example.identity}: {len(tags)} tags for {len(example.words)} words; give each word one tag"
            )
        found.append([number_of_label(tag, numbers, example.identity, where) for tag in tags])
    return found


def _rows(windows: list[_Window], tags: list[list[int]] | None, encoder: TextEncoder) -> Rows:
    texts = [np.concatenate([np.zeros(0, dtype=np.int32), *window.words]) for window in windows]
    layout = lay_out(encoder, [(text, None) for text in texts])
    words = np.full(len(layout.ids), _NO_WORD, dtype=np.int32)
    labels = np.full(len(layout.ids), IGNORED_LABEL, dtype=np.int64)
    for window, row_start in zip(windows, layout.starts.tolist(), strict=False):
        lengths = np.array([len(word) for word in window.words], dtype=np.int64)
        firsts = row_start + 1 + np.cumsum(lengths) - lengths
        numbers = np.arange(window.first_word, window.first_word + len(lengths))
        words[firsts] = numbers
        if tags is not None:
            labels[firsts] = np.array(tags[window.example], dtype=np.int64)[numbers]
    return Rows(
        *layout,
        np.array([window.example for window in windows], dtype=np.int64),
        None if tags is None else labels,
        encoder.pad_id,
        has_token_labels=True,
        token_info={"words": words},
    )


def word_logits(
    outputs: list[NDArray[np.float32]], rows: Rows, examples: Sequence[TokenExample]
) -> list[NDArray[np.float32]]:
    """Of each example the logits [words, C] at the first token of each word. outputs: [L, C] of each unit."""
    info = rows.token_info["words"].astype(np.int64)
    found: list[list[NDArray[np.float32]]] = [[] for _ in examples]
    for number, at, logits in zip(rows.examples.tolist(), row_slices(rows.starts), outputs, strict=True):
        found[number].append(logits[info[at] >= 0])  # words are in order, as are the windows of an example
    return [np.concatenate(windows) for windows in found]


def decode(
    outputs: list[NDArray[np.float32]],
    rows: Rows,
    examples: Sequence[TokenExample],
    labels: tuple[str, ...],
    plan: EncodePlan,
) -> Decoded:
    """A tag for each word; values (right entities, predicted, gold, right tags, tags). outputs: [L, C] of each unit.

    Where the tags are no entity tags, the first three are 0.
    """
    chosen = [
        [labels[tag] for tag in logits.argmax(axis=1).tolist()] for logits in word_logits(outputs, rows, examples)
    ]
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
