"""Token streams to rows: where rows are cut once and for all, and how a row is laid out anew each time it is read.

Dimensions: B batch, L length. Rows are cut at the token and follow one another without a gap, so nothing is dropped.
Differs from ELECTRA: its builder throws away what passes the end of a row; here it begins the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra_albert.contracts import IGNORED_LABEL, Batch
from electra_albert.corpus.store import TokenStream
from electra_albert.corpus.tokenizer import CLS_ID, PAD_ID, SEP_ID
from electra_albert.keyed_random import Stream, bits, uniform

TABLE_VERSION = 1
SHORT_ROW_RATE = 0.05  # Paper: ELECTRA's example builder
ONE_SEGMENT_RATE = 0.1
SHORTEST_ROW = 8
_BLOCK = 1 << 16


@dataclass(frozen=True)
class ExampleTable:
    """Row r holds the tokens edges[r] to edges[r + 1] of its stream; edges [N + 1] int64, memory-mapped."""

    edges: np.ndarray

    @property
    def count(self) -> int:
        return len(self.edges) - 1


def build_table(stream: TokenStream, max_seq_length: int, seed: int, folder: Path) -> ExampleTable:
    """The rows of a stream, from the file in `folder` where it is there; `folder` must belong to the stream alone."""
    path = folder / f"rows-{TABLE_VERSION}-{max_seq_length}-{seed}.bin"
    token_count = len(stream.tokens)
    if not path.is_file() or not _is_table(path, token_count):
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        with beside.open("wb") as file:
            np.zeros(1, "<i8").tofile(file)
            for ends in _cut_rows(stream, max_seq_length, seed):
                np.array(ends, "<i8").tofile(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    return ExampleTable(np.memmap(path, "<i8", "r"))


def _is_table(path: Path, token_count: int) -> bool:
    """Whether the file covers the whole stream: it is renamed into place, so half a table can only be damage."""
    size = path.stat().st_size
    if size < 16 or size % 8:
        return False
    edges = np.memmap(path, "<i8", "r")
    return int(edges[0]) == 0 and int(edges[-1]) == token_count


def _cut_rows(stream: TokenStream, max_seq_length: int, seed: int) -> Iterator[list[int]]:
    """Where each row ends, in blocks. A row takes as many tokens as fit beside [CLS] and its [SEP]s."""
    token_count = len(stream.tokens)
    borders = _document_ends(stream)
    border = next(borders)  # the first document end behind the row's start
    start, first_row = 0, 0
    while start < token_count:
        ends: list[int] = []
        for row_length in _row_lengths(first_row, max_seq_length, seed):
            end = min(start + row_length - 3, token_count)  # [CLS] A [SEP] B [SEP]; a row needs room for its cut
            inside = 0
            while border < end:
                inside += 1
                if inside > 1:  # the first border takes the place of the cut, each further one another [SEP]
                    end = min(end, max(border, start + row_length - 2 - inside))
                border = next(borders) if border < end else border
            ends.append(end)
            start = end
            if border == start and start < token_count:
                border = next(borders)
            if start == token_count:
                break
        yield ends
        first_row += len(ends)


def _document_ends(stream: TokenStream) -> Iterator[int]:
    for first in range(0, len(stream.document_ends), _BLOCK):
        yield from stream.document_ends[first : first + _BLOCK].tolist()


def _row_lengths(first_row: int, max_seq_length: int, seed: int) -> list[int]:
    """The lengths the next rows are cut to: mostly the full one, now and then a shorter one."""
    row = torch.arange(first_row, first_row + _BLOCK)
    is_short = uniform(bits(seed, Stream.SHORT_ROW, row, torch.zeros_like(row))) < SHORT_ROW_RATE
    choices = max_seq_length - SHORTEST_ROW + 1
    short = SHORTEST_ROW + bits(seed, Stream.SHORT_ROW, row, torch.ones_like(row)) % choices
    return torch.where(is_short, short, max_seq_length).tolist()


def padding_share(stream: TokenStream, table: ExampleTable, max_seq_length: int) -> float:
    """The share of all positions of all rows that is padding."""
    padding = 0
    for first in range(0, table.count, _BLOCK):
        edges = table.edges[first : min(first + _BLOCK, table.count) + 1]
        rows = _inside(stream.document_ends, edges[:-1], edges[1:])
        cuts = np.maximum(rows.number, _inside(stream.sentence_ends, edges[:-1], edges[1:]).number > 0)
        padding += int((max_seq_length - 2 - np.diff(edges) - cuts).sum())
    return padding / (table.count * max_seq_length)


class _Inside(NamedTuple):
    """Which ends lie strictly between a row's start and end: `number` of them from index `first` on."""

    first: np.ndarray
    number: np.ndarray


def _inside(ends: np.ndarray, start: np.ndarray, end: np.ndarray) -> _Inside:
    first = np.searchsorted(ends, start, side="right")
    return _Inside(first, np.maximum(np.searchsorted(ends, end, side="left") - first, 0))


@dataclass(frozen=True)
class Rows:
    """Lays out rows of one stream as batches."""

    stream: TokenStream
    table: ExampleTable
    max_seq_length: int
    seed: int
    swap_rate: float = 0.0
    one_segment_rate: float = ONE_SEGMENT_RATE

    def gather(self, row: Tensor, example_id: Tensor) -> Batch:
        """The rows `row` [B] int64 of the table; example_id [B] int64 keys the cut, the swap and the one-segment draw.

        Input ids are [B, L]: [CLS] A [SEP] B [SEP] and padding. A row in which documents end has a [SEP] at each
        border, the first of which ends its first segment. Any other row is cut at one of its sentence ends.
        """
        row_number = row.numpy()
        start, end = self.table.edges[row_number], self.table.edges[row_number + 1]  # [B]
        borders = _inside(self.stream.document_ends, start, end)
        cut, is_swapped = self._choose_cut(start, end, borders.number > 0, example_id)
        shift = np.where(is_swapped, cut - start, 0)  # [B] how far segment A begins behind the row's start

        count = end - start  # [B] tokens
        is_sep = np.zeros((len(row_number), self.max_seq_length), bool)  # [B, L]
        has_cut = np.flatnonzero(cut > start)
        is_sep[has_cut, 1 + np.where(is_swapped, end - cut, cut - start)[has_cut]] = True
        of_row = np.repeat(np.arange(len(row_number)), borders.number)  # one entry a border
        nth = np.arange(len(of_row)) - np.repeat(borders.number.cumsum() - borders.number, borders.number)
        border = self.stream.document_ends[borders.first[of_row] + nth]
        is_sep[of_row, 1 + border - start[of_row] + nth] = True
        last = 1 + count + is_sep.sum(axis=1)  # [B] position of the last [SEP]
        is_sep[np.arange(len(row_number)), last] = True

        seps_before = is_sep.cumsum(axis=1) - is_sep  # [B, L]
        position = np.arange(self.max_seq_length)  # [L]
        mask = position <= last[:, None]  # [B, L]
        nth_token = position - 1 - seps_before + shift[:, None]  # [B, L] in the order it is read
        source = start[:, None] + np.where(nth_token < count[:, None], nth_token, nth_token - count[:, None])
        is_token = mask & ~is_sep & (position > 0)
        tokens = self.stream.tokens[np.where(is_token, source, 0)]  # [B, L]
        ids = np.where(is_token, tokens, PAD_ID).astype(np.int64)
        ids[:, 0] = CLS_ID
        ids[is_sep] = SEP_ID
        has_order = (cut > start) & (borders.number == 0)
        label = np.where(has_order, is_swapped.astype(np.int64), IGNORED_LABEL)
        token_type_ids = ((seps_before > 0) & mask).astype(np.int64)
        as_tensor = torch.from_numpy
        return Batch(as_tensor(ids), as_tensor(mask), as_tensor(token_type_ids), as_tensor(label), example_id)

    def _choose_cut(
        self, start: np.ndarray, end: np.ndarray, has_border: np.ndarray, example_id: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where in the stream a row without a border is cut [B], its start where it is not; whether it is swapped."""
        sentences = _inside(self.stream.sentence_ends, start, end)
        zero = torch.zeros_like(example_id)
        draw = {
            name: bits(self.seed, name, example_id, zero)
            for name in (Stream.ONE_SEGMENT, Stream.SEGMENT_CUT, Stream.SWAP)
        }
        is_single = (uniform(draw[Stream.ONE_SEGMENT]) < self.one_segment_rate).numpy()
        has_cut = ~has_border & ~is_single & (sentences.number > 0)
        chosen = sentences.first + draw[Stream.SEGMENT_CUT].numpy() % np.maximum(sentences.number, 1)
        cut = self.stream.sentence_ends[np.where(has_cut, chosen, 0)]
        is_swapped = has_cut & (uniform(draw[Stream.SWAP]) < self.swap_rate).numpy()
        return np.where(has_cut, cut, start), is_swapped
