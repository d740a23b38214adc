"""Plain text to token ids and character offsets, and ids to rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

Text never becomes a special token: "[MASK]" in a sentence is read as any other word. Dimensions: R rows.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.contracts import DataError

Ids = NDArray[np.int32]
_TEXTS_AT_ONCE = 2048


class EncodePlan(NamedTuple):
    """What of the settings and the task decides how examples become rows, and outputs predictions."""

    max_seq_length: int  # tokens of a row, special ones included
    doc_stride: int  # tokens by which the windows over a long passage move on
    max_answer_length: int  # tokens
    has_null_answer: bool
    is_regression: bool
    double_unordered: bool
    max_position_embeddings: int | None = None  # tokens that the model can read; None where that is not known

    @property
    def cut(self) -> str:
        """How long texts become that are longer than a row, for what is reported."""
        most = self.max_position_embeddings
        limit = f", the model reads up to {most}" if most is not None and most > self.max_seq_length else ""
        return f"cut to {self.max_seq_length} tokens (--max_seq_length{limit})"


class Decoded(NamedTuple):
    """What the outputs say of each example."""

    predictions: list[Any]
    values: NDArray[np.float64] | None  # [examples, k] the numbers all metrics follow from; None without labels
    probabilities: list[Any] | None


class Pieces(NamedTuple):
    """The tokens of a text and which of its characters each stands for: text[start:end], without a space before."""

    ids: Ids
    starts: Ids
    ends: Ids


class TextEncoder:
    """A fast tokenizer that is given plain text only and puts no special token anywhere.

    `tokenizer` is one of transformers and is not changed. Text without a piece becomes the unknown token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.cls_id: int = tokenizer.cls_token_id
        self.sep_id: int = tokenizer.sep_token_id
        self.pad_id: int = tokenizer.pad_token_id
        unknown = tokenizer.unk_token_id
        self.filler_id: int = tokenizer.mask_token_id if unknown is None else unknown  # keeps the place of a lost word
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        special = {token["id"] for token in content["added_tokens"] if token["special"]} | {*tokenizer.all_special_ids}
        self._unknown_id: int | None = unknown
        self._backend = _plain_backend(content, special)
        # A table, for it is looked into once a text.
        self._is_special = np.zeros(max(self._backend.get_vocab_size(), *special) + 1, dtype=np.bool_)
        self._is_special[sorted(special - {unknown})] = True

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""
        found = self._in_batches(texts, self._backend.encode_batch_fast)
        return [self._mend(ids)[self._kept(ids)] for ids in map(_ids, found)]

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[Pieces]:
        """The ids and offsets of each text, one after the other."""
        for text, encoding in zip(texts, self._in_batches(texts, self._backend.encode_batch), strict=True):
            ids = _ids(encoding)
            kept = self._kept(ids)
            spans = np.array(cover(text, encoding.offsets), dtype=np.int32).reshape(-1, 2)[kept]
            yield Pieces(self._mend(ids)[kept], spans[:, 0], spans[:, 1])

    def _in_batches(self, texts: Sequence[str], encode_batch: Any) -> Iterator[Any]:
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            yield from encode_batch(list(texts[start : start + _TEXTS_AT_ONCE]), add_special_tokens=False)

    def _mend(self, ids: Ids) -> Ids:
        """The ids with the unknown one, where there is one, in the place of special ones."""
        return ids if self._unknown_id is None else np.where(self._is_special[ids], np.int32(self._unknown_id), ids)

    def _kept(self, ids: Ids) -> slice | NDArray[np.bool_]:
        """Which ids stay: all that `_mend` can mend."""
        return slice(None) if self._unknown_id is not None else ~self._is_special[ids]


def _ids(encoding: Any) -> Ids:
    return np.array(encoding.ids, dtype=np.int32)


def _plain_backend(content: dict[str, Any], special: set[int]) -> Any:
    """A tokenizer with the pieces and rules of `content` to which special tokens are text, and which cuts nothing."""
    from tokenizers import Tokenizer

    model = content["model"]
    if model["type"] == "Unigram":
        # Unigram knows no control pieces and would find "[SEP]" in text. Spaces hardly ever reach it.
        for number in special:
            if number < len(model["vocab"]):
                model["vocab"][number][0] = " " + model["vocab"][number][0]
        content["added_tokens"] = [token for token in content["added_tokens"] if not token["special"]]
    backend = Tokenizer.from_str(json.dumps(content | {"post_processor": None, "truncation": None, "padding": None}))
    backend.encode_special_tokens = True
    return backend


def cover(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Offsets such that no piece begins with a space and each character of a word lies in a piece of it.

    A normaliser that drops or joins characters leaves some out: combining marks then go to the piece before them,
    the first half of a quotation mark written as two to the piece behind it.
    """
    spans: list[list[int]] = []
    reached = 0  # up to here the text is accounted for
    for start, end in offsets:
        while start < end and text[start].isspace():
            start += 1
        if start > reached:
            gap = text[reached:start]
            marks = _leading_marks(gap) if spans else 0
            if marks:
                spans[-1][1] += marks
            start -= _trailing_word(gap[marks:])
        spans.append([start, max(start, end)])
        reached = max(reached, end)
    if spans:
        spans[-1][1] += _leading_marks(text[reached:])
    return [(start, end) for start, end in spans]


def _leading_marks(gap: str) -> int:
    """How many characters at the beginning belong to the letter before: marks, and signs without a width."""
    count = 0
    while count < len(gap) and not gap[count].isspace() and unicodedata.category(gap[count])[0] in "MC":
        count += 1
    return count


def _trailing_word(gap: str) -> int:
    """How many characters at the end are no spaces."""
    return 0 if not gap or gap[-1].isspace() else len(gap.split()[-1])


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of two texts after tokens are taken from the longer one, one at a time, until both fit into `room`.

    Where they are equally long the second gives one, as in Google's code.
    """
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= room - half:
        return first, room - first
    if second <= half:
        return room - second, second
    return room - half, half


class Layout(NamedTuple):
    """Rows with their special tokens, one after the other."""

    ids: Ids  # [tokens]
    starts: NDArray[np.int64]  # [R + 1]
    first_lengths: NDArray[np.int64]  # [R]


def lay_out(encoder: TextEncoder, rows: Sequence[tuple[Ids, Ids | None]]) -> Layout:
    """Put `[CLS]` and `[SEP]` around one or two texts a row."""
    cls, sep = np.array([encoder.cls_id], dtype=np.int32), np.array([encoder.sep_id], dtype=np.int32)
    pieces: list[Ids] = []
    for first, second in rows:
        pieces += (cls, first, sep) if second is None else (cls, first, sep, second, sep)
    first_lengths = np.array([len(first) + 2 for first, _ in rows], dtype=np.int64)
    further = np.array([0 if second is None else len(second) + 1 for _, second in rows], dtype=np.int64)
    ids = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)
    return Layout(ids, np.concatenate([[0], np.cumsum(first_lengths + further)]).astype(np.int64), first_lengths)


def are_labelled(labels: Sequence[Any], identities: Sequence[str], where: str) -> bool:
    """Whether the examples have labels; DataError where only some have."""
    missing = [identity for label, identity in zip(labels, identities, strict=True) if label is None]
    if missing and len(missing) < len(labels):
        raise DataError(
            f"{where}: {len(missing):,} of {len(labels):,} examples have no label (first: {missing[0]}); "
            "label all of them, or none"
        )
    return not missing


def number_of_label(label: str, numbers: dict[str, int], identity: str, where: str) -> int:
    """The number of a class; DataError for one that is not among them."""
    if label not in numbers:
        raise DataError(f"{where}, {identity}: label {label!r} is none of {', '.join(numbers)}; mend or remove it")
    return numbers[label]


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Probabilities along the last axis."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def row_slices(starts: NDArray[np.int64]) -> Iterator[slice]:
    """Where each row lies in arrays that stand beside the ids."""
    yield from (slice(start, end) for start, end in pairwise(starts.tolist()))
