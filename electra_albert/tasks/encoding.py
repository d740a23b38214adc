"""Plain text to token ids and character offsets, and ids to rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

Text never becomes a special token: "[MASK]" in a sentence is read as any other word. Dimensions: R rows.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.contracts import DataError
from electra_albert.tasks.task import Report

Ids = NDArray[np.int32]
Pair = tuple[Ids, Ids | None]  # a text, or two
Outputs = list[NDArray[np.float32]]  # of each unit
Labels = tuple[str, ...]  # in the order of their numbers
_TEXTS_AT_ONCE = 2048
_RECORDED = ("max_seq_length", "doc_stride", "max_answer_length", "has_null_answer", "is_regression")


class EncodePlan(NamedTuple):
    """The settings that decide how examples become rows, and outputs predictions."""

    max_seq_length: int  # tokens of a row, special ones included
    doc_stride: int  # tokens by which the windows over a long passage move on
    max_answer_length: int  # tokens
    has_null_answer: bool = False
    is_regression: bool = False
    double_unordered: bool = False
    max_position_embeddings: int | None = None  # tokens that the model can read; None where that is not known

    @property
    def cut(self) -> str:
        """The phrase by which texts longer than a row are reported."""
        most = self.max_position_embeddings
        limit = f", the model reads up to {most}" if most is not None and most > self.max_seq_length else ""
        return f"cut to {self.max_seq_length} tokens (--max_seq_length{limit})"


def trained_plan(plan: EncodePlan, details: Mapping[str, Any]) -> EncodePlan:
    """The plan by which a fine-tuned model was trained, as far as its folder's details record it."""
    return plan._replace(**{name: details[name] for name in _RECORDED if name in details})


class Decoded(NamedTuple):
    """The predictions for each example."""

    predictions: list[Any]
    values: NDArray[np.float64] | None  # [examples, k] the numbers all metrics follow from; None without labels
    probabilities: list[Any] | None


class Subwords(NamedTuple):
    """The subwords of a text and the characters each covers: text[start:end], without a space before."""

    ids: Ids
    starts: Ids
    ends: Ids


class TextEncoder:
    """A fast tokenizer of transformers, which is not changed, for plain text only, without special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.cls_id: int = tokenizer.cls_token_id
        self.sep_id: int = tokenizer.sep_token_id
        self.pad_id: int = tokenizer.pad_token_id
        unknown = tokenizer.unk_token_id
        self.filler_id: int = tokenizer.mask_token_id if unknown is None else unknown  # for a word without subwords
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        special = {token["id"] for token in content["added_tokens"] if token["special"]} | {*tokenizer.all_special_ids}
        self._unknown_id: int | None = unknown
        self._backend = _plain_backend(content, special)
        self._is_special = np.zeros(max(self._backend.get_vocab_size(), *special) + 1, dtype=np.bool_)
        self._is_special[sorted(special - {unknown})] = True

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""
        return [self._without_special(found)[0] for found in self._in_batches(texts, self._backend.encode_batch_fast)]

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[Subwords]:
        """The ids and offsets of each text, one after the other."""
        for text, encoding in zip(texts, self._in_batches(texts, self._backend.encode_batch), strict=True):
            ids, kept = self._without_special(encoding)
            spans = np.array(cover(text, encoding.offsets), dtype=np.int32).reshape(-1, 2)[kept]
            yield Subwords(ids, spans[:, 0], spans[:, 1])

    def _in_batches(self, texts: Sequence[str], encode_batch: Any) -> Iterator[Any]:
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            yield from encode_batch(list(texts[start : start + _TEXTS_AT_ONCE]), add_special_tokens=False)

    def _without_special(self, encoding: Any) -> tuple[Ids, slice | NDArray[np.bool_]]:
        """The ids with the unknown token in place of special ones, and which are kept: without one, special are not."""
        ids = np.array(encoding.ids, dtype=np.int32)
        if self._unknown_id is not None:
            return np.where(self._is_special[ids], np.int32(self._unknown_id), ids), slice(None)
        return ids[~self._is_special[ids]], ~self._is_special[ids]


def _plain_backend(content: dict[str, Any], special: set[int]) -> Any:
    """A tokenizer with the subwords and rules of `content` to which special tokens are text, and which cuts nothing."""
    from tokenizers import Tokenizer

    model = content["model"]
    if model["type"] == "Unigram":
        # Unigram knows no control tokens and would find "[SEP]" in text. Spaces hardly ever reach it.
        for number in special:
            if number < len(model["vocab"]):
                model["vocab"][number][0] = " " + model["vocab"][number][0]
        content["added_tokens"] = [token for token in content["added_tokens"] if not token["special"]]
    backend = Tokenizer.from_str(json.dumps(content | {"post_processor": None, "truncation": None, "padding": None}))
    backend.encode_special_tokens = True
    return backend


def cover(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Offsets such that no subword begins with a space and each character of a word is in a subword of it.

    Characters that a normaliser drops go to the subword before them if they are combining marks, else to that after.
    """
    spans: list[list[int]] = []
    reached = 0  # up to here the text is accounted for
    for start, end in offsets:
        while start < end and text[start].isspace():
            start += 1
        if start > reached:
            gap = text[reached:start]
            marks = _count_marks(gap) if spans else 0
            if marks:
                spans[-1][1] += marks
            start -= len(re.search(r"\S*\Z", gap[marks:])[0])  # type: ignore[index]  # always matches
        spans.append([start, max(start, end)])
        reached = max(reached, end)
    if spans:
        spans[-1][1] += _count_marks(text[reached:])
    return [(start, end) for start, end in spans]


def _count_marks(gap: str) -> int:
    """How many characters at the beginning belong to the letter before: marks, and signs without a width."""
    is_mark = (not character.isspace() and unicodedata.category(character)[0] in "MC" for character in gap)
    return sum(takewhile(bool, is_mark))


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of two texts after the longer one (of equals the second) has given tokens until both fit into `room`."""
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= room - half:
        return first, room - first
    return (room - second, second) if second <= half else (room - half, half)


def lay_out(encoder: TextEncoder, rows: Sequence[Pair]) -> tuple[Ids, NDArray[np.int64], NDArray[np.int64]]:
    """Rows of one or two texts with `[CLS]` and `[SEP]`: ids [tokens], starts [R + 1] and first_lengths [R]."""
    cls, sep = np.array([encoder.cls_id], dtype=np.int32), np.array([encoder.sep_id], dtype=np.int32)
    parts: list[Ids] = [cls[:0]]
    for first, second in rows:
        parts += (cls, first, sep) if second is None else (cls, first, sep, second, sep)
    first_lengths = np.array([len(first) + 2 for first, _ in rows], dtype=np.int64)
    further = np.array([0 if second is None else len(second) + 1 for _, second in rows], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(first_lengths + further)]).astype(np.int64)
    return np.concatenate(parts), starts, first_lengths


@dataclass(frozen=True)
class Encoding:
    """How the examples of one set become rows."""

    encoder: TextEncoder
    labels: Labels
    plan: EncodePlan
    report: Report
    where: str  # the name of the set in messages
    is_training: bool = False

    def note(self, what: str, how: str, example: Any, count: int = 1, *, is_cut: bool = False) -> None:
        """Count in the report: `what` of this set, such as answers, and what became of them."""
        self.report.note(f"{what} of {self.where} {how}", example.identity, count, is_cut=is_cut)

    def gold(self, examples: Sequence[Any], field: str = "label") -> list[Any] | None:
        """This field of all examples; None where none of them has it, DataError where only some have."""
        found = [getattr(example, field) for example in examples]
        missing = [example.identity for example, label in zip(examples, found, strict=True) if label is None]
        if missing and len(missing) < len(examples):
            some = f"{len(missing):,} of {len(examples):,} examples have no label (first: {missing[0]})"
            raise DataError(f"{self.where}: {some}; label all of them, or none")
        return None if missing else found

    def class_number(self, label: str, example: Any) -> int:
        """The number of a class; DataError for one that is not among the labels."""
        if label not in self._numbers:
            wanted = f"label {label!r} is none of {', '.join(self.labels)}"
            raise DataError(f"{self.where}, {example.identity}: {wanted}; mend or remove it")
        return self._numbers[label]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}
