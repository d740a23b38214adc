"""Token streams to rows, cut once and for all and laid out again each time they are read, and rows to batches.

Dimensions: B batch, L length. Position i of a run is (epoch, k) = divmod(i, N); a keyed bijection of the epoch sends k
to a row (mixture.py), so any batch is found at once.
Differs from ELECTRA: its builder throws away what passes the end of a row; here it begins the next one.
Differs from ALBERT: it swaps the segments as a whole and truncates after that, which loses text. Here two runs of whole
sentences in the middle of a row are swapped, else an unfinished sentence would show whether its segment was moved.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra_albert.contracts import IGNORED_LABEL, Batch, CheckpointError, SpecialIds
from electra_albert.corpus.mixture import ExampleOrder
from electra_albert.corpus.store import TokenStream
from electra_albert.files import FileDigest, HashedFile, find_damage, read_json, replacing, write_json
from electra_albert.keyed_random import Stream, bits, uniform

LOG = logging.getLogger(__name__)

TABLE_VERSION = 1
SHORT_ROW_RATE = 0.05  # Paper: ELECTRA's example builder
ONE_SEGMENT_RATE = 0.1
SHORTEST_ROW = 8
_FEWEST_ENDS = 3  # of sentences inside a row, between which there are two whole ones to swap
_BLOCK = 1 << 16
_STEPS_AHEAD = 3
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class ExampleTable:
    """Row r holds the tokens edges[r] to edges[r + 1] of its stream; edges [N + 1] int64, memory-mapped."""

    edges: np.ndarray

    @property
    def count(self) -> int:
        return len(self.edges) - 1


def build_table(stream: TokenStream, max_seq_length: int, seed: int, folder: Path) -> ExampleTable:
    """The rows of a stream, from the file in `folder` if it is there; `folder` must belong to the stream alone."""
    path = folder / f"rows-{TABLE_VERSION}-{max_seq_length}-{seed}.bin"
    if damage := _find_damage(path):
        if path.exists():
            LOG.warning("%s; cutting the rows again", damage)
        with replacing(path) as opened:
            file = HashedFile(opened)
            file.write(np.zeros(1, "<i8").tobytes())
            for ends in _cut_rows(stream, max_seq_length, seed):
                file.write(np.array(ends, "<i8").tobytes())
            written = file.finish()
        write_json(path.with_suffix(".json"), {path.name: written._asdict()})
        if damage := _find_damage(path):
            raise CheckpointError(f"{damage}, a moment ago; check the disk, then start again")
    return ExampleTable(np.memmap(path, "<i8", "r"))


def _find_damage(path: Path) -> str | None:
    """Why the file is not the table that was written, in one line; None if it is."""
    entry = read_json(path.with_suffix(".json")).get(path.name)
    if not isinstance(entry, dict) or entry.keys() != {*FileDigest._fields}:
        return f"{path} has no size and hash next to it"
    return find_damage(path.parent, {path.name: FileDigest(**entry)}, path.with_suffix(".checked.json"))


def _cut_rows(stream: TokenStream, max_seq_length: int, seed: int) -> Iterator[list[int]]:
    """Where each row ends, in blocks. A row takes as many tokens as fit next to [CLS] and its [SEP]s."""
    token_count = len(stream.tokens)
    ends_in = stream.document_ends
    borders = (end for first in range(0, len(ends_in), _BLOCK) for end in ends_in[first : first + _BLOCK].tolist())
    border = next(borders)  # the first document end after the row's start
    start = 0
    for first_row in count(0, _BLOCK):
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
            if start == token_count:
                yield ends
                return
            border = next(borders) if border == start else border
        yield ends


def _row_lengths(first_row: int, max_seq_length: int, seed: int) -> list[int]:
    """The lengths the next rows are cut to: mostly the full one, now and then a shorter one."""
    row = torch.arange(first_row, first_row + _BLOCK)
    is_short = uniform(bits(seed, Stream.SHORT_EXAMPLE, row, torch.zeros_like(row))) < SHORT_ROW_RATE
    short = bits(seed, Stream.SHORT_EXAMPLE, row, torch.ones_like(row)) % (max_seq_length - SHORTEST_ROW + 1)
    return torch.where(is_short, SHORTEST_ROW + short, max_seq_length).tolist()


def padding_share(stream: TokenStream, table: ExampleTable, max_seq_length: int) -> float:
    """The share of all positions of all rows that is padding."""
    padding = 0
    for first in range(0, table.count, _BLOCK):
        edges = table.edges[first : first + _BLOCK + 1]
        sentences, borders = (_inside(ends, edges[:-1], edges[1:])[1] for ends in stream[1:])
        padding += int((max_seq_length - 2 - np.diff(edges) - np.maximum(borders, sentences > 0)).sum())
    return padding / (table.count * max_seq_length)


def _inside(ends: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of the ends strictly between a row's start and end, and how many there are."""
    first = np.searchsorted(ends, start, side="right")
    return first, np.maximum(np.searchsorted(ends, end, side="left") - first, 0)


class _Cuts(NamedTuple):
    """How some rows are cut in two, all [B]; lengths are in tokens from the row's start, 0 where there is none."""

    head: np.ndarray  # of a swapped row: where its first whole sentence begins
    cut: np.ndarray  # where its second run of sentences begins
    tail: np.ndarray  # where its last whole sentence ends
    first_length: np.ndarray  # tokens of the first segment as it is laid out
    label: np.ndarray  # sentence_order_label

    def read_order(self, nth: np.ndarray) -> np.ndarray:
        """The token of the row, counted in the text, at each position nth [B, L] of the laid-out row."""
        head, cut, tail = (edge[:, None] for edge in self[:3])
        moved_up = (nth >= head) & (nth < head + tail - cut)
        moved_down = (nth >= head + tail - cut) & (nth < tail)
        return nth + np.where(moved_up, cut - head, 0) - np.where(moved_down, tail - cut, 0)


@dataclass(frozen=True)
class PackedExamples:
    """Lays out rows of one stream as batches."""

    stream: TokenStream
    table: ExampleTable
    max_seq_length: int
    seed: int
    special: SpecialIds
    swap_rate: float = 0.0
    one_segment_rate: float = ONE_SEGMENT_RATE

    def gather(self, row: Tensor, example_id: Tensor) -> Batch:
        """The rows `row` [B] int64 of the table; example_id [B] int64 keys the cut, the swap and the one-segment draw.

        Input ids are [B, L]: [CLS] A [SEP] B [SEP] and padding. A row in which documents end has a [SEP] at each
        border and no other cut. Any other row is cut at one of its sentence ends.
        """
        row_number = row.numpy()
        start, end = self.table.edges[row_number], self.table.edges[row_number + 1]  # [B]
        first_border, borders = _inside(self.stream.document_ends, start, end)
        cuts = self._choose_cuts(start, end, borders > 0, example_id)

        count = end - start  # [B] tokens
        is_sep = np.zeros((len(row_number), self.max_seq_length), bool)  # [B, L]
        has_cut = np.flatnonzero(cuts.first_length)
        is_sep[has_cut, 1 + cuts.first_length[has_cut]] = True
        of_row = np.repeat(np.arange(len(row_number)), borders)  # one entry a border
        nth = np.arange(len(of_row)) - np.repeat(borders.cumsum() - borders, borders)
        border = self.stream.document_ends[first_border[of_row] + nth]
        is_sep[of_row, 1 + border - start[of_row] + nth] = True
        last = 1 + count + is_sep.sum(axis=1)  # [B] position of the last [SEP]
        is_sep[np.arange(len(row_number)), last] = True

        seps_before = is_sep.cumsum(axis=1) - is_sep  # [B, L]
        position = np.arange(self.max_seq_length)  # [L]
        mask = position <= last[:, None]  # [B, L]
        is_token = mask & ~is_sep & (position > 0)
        nth_token = cuts.read_order(position - 1 - seps_before)  # [B, L] after the row's start
        tokens = self.stream.tokens[np.where(is_token, start[:, None] + nth_token, 0)]  # [B, L]
        ids = np.where(is_token, tokens, self.special.pad).astype(np.int64)
        ids[:, 0] = self.special.cls
        ids[is_sep] = self.special.sep
        token_type_ids = ((seps_before > 0) & mask).astype(np.int64)
        input_ids, attention_mask, types, label = map(torch.from_numpy, (ids, mask, token_type_ids, cuts.label))
        return Batch(input_ids, attention_mask, types, label, example_id)

    def _choose_cuts(self, start: np.ndarray, end: np.ndarray, has_border: np.ndarray, example_id: Tensor) -> _Cuts:
        """Cut the rows from start to end, both [B], that cross no border, and swap some of them."""
        first, number = _inside(self.stream.sentence_ends, start, end)
        zero = torch.zeros_like(example_id)
        single_draw, cut_draw, swap_draw = (
            bits(self.seed, name, example_id, zero) for name in (Stream.ONE_SEGMENT, Stream.SEGMENT_CUT, Stream.SWAP)
        )
        is_single = (uniform(single_draw) < self.one_segment_rate).numpy()
        has_cut = ~has_border & ~is_single & (number > 0)
        # A row that may be swapped has a whole sentence on either side of its cut, between those that its ends cut.
        can_swap = has_cut & (number >= _FEWEST_ENDS) & (self.swap_rate > 0)
        choices = np.where(can_swap, number - 2, np.maximum(number, 1))
        chosen = first + can_swap + cut_draw.numpy() % choices
        is_swapped = can_swap & (uniform(swap_draw) < self.swap_rate).numpy()

        def ends_at(index: np.ndarray, where: np.ndarray) -> np.ndarray:
            return np.where(where, self.stream.sentence_ends[np.where(where, index, 0)] - start, 0)

        head = ends_at(first, is_swapped)
        cut = ends_at(chosen, has_cut)
        tail = ends_at(first + number - 1, is_swapped)
        has_order = can_swap if self.swap_rate > 0 else has_cut
        label = np.where(has_order, is_swapped.astype(np.int64), IGNORED_LABEL)
        return _Cuts(head, np.where(is_swapped, cut, 0), tail, np.where(is_swapped, head + tail - cut, cut), label)


# Batches: a pure function of the step, split over ranks, prepared a little ahead.


@dataclass(frozen=True)
class TrainBatches:
    """The micro-batches of one rank. A step takes the same rows however they are split over ranks and micro-batches."""

    rows: PackedExamples
    order: ExampleOrder
    per_device_train_batch_size: int
    gradient_accumulation_steps: int = 1
    rank: int = 0
    world_size: int = 1
    pin_memory: bool = False

    @property
    def global_batch_size(self) -> int:
        """Rows of one update, over all ranks and micro-batches."""
        return self.world_size * self.gradient_accumulation_steps * self.per_device_train_batch_size

    def micro_batches(self, step: int) -> list[Batch]:
        """This rank's micro-batches of update `step`, counted from 1."""
        return next(self._following(step))

    def _following(self, first_step: int) -> Iterator[list[Batch]]:
        """The same, update after update: rows are found for many at once, which costs as little as for one."""
        size, share_count = self.per_device_train_batch_size, self.gradient_accumulation_steps
        step_count = max(1, _ROWS_AT_ONCE // (share_count * size))
        share = torch.arange(share_count)[:, None] * self.world_size + self.rank
        for first in count(first_step - 1, step_count):
            step = torch.arange(first, first + step_count)[:, None, None]
            position = step * self.global_batch_size + share * size + torch.arange(size)  # [steps, micro-batches, B]
            for positions, rows in zip(position, self.order.rows(position), strict=True):
                batches = [self.rows.gather(row, example_id=p) for row, p in zip(rows, positions, strict=True)]
                yield [batch.map(Tensor.pin_memory) for batch in batches] if self.pin_memory else batches

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        """Yield the micro-batches of update `first_step` and those after it, made ahead by a thread of its own."""
        following = self._following(first_step)
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
            ahead: deque[Future[list[Batch]]] = deque(thread.submit(next, following) for _ in range(_STEPS_AHEAD))
            try:
                while True:
                    batches = ahead.popleft().result()
                    ahead.append(thread.submit(next, following))
                    yield batches
            finally:
                thread.shutdown(wait=False, cancel_futures=True)

    def epoch(self, step: int) -> float:
        """How often the corpus has been passed over once updates 1 to `step` are done."""
        return step * self.global_batch_size / self.order.pass_length


def eval_batches(
    rows: PackedExamples, limit: int, batch_size: int, rank: int = 0, world_size: int = 1, borders: Sequence[int] = ()
) -> Iterator[Batch]:
    """`limit` rows spread evenly over the text, or all there are, in batches of at most `batch_size`.

    Each rank gets every world_size-th. No batch crosses one of the rows `borders`, ascending.
    """
    taken = min(limit, rows.table.count)
    row = torch.arange(rank, taken, world_size) * rows.table.count // max(1, taken)
    for chunk in row.split(batch_size) if len(row) else ():
        for part in chunk.tensor_split(torch.searchsorted(chunk, torch.tensor(borders, dtype=torch.int64))):
            if len(part):
                yield rows.gather(part, example_id=part)
