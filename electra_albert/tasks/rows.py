"""Encoded examples in flat arrays, and their batches for training (a pure function of the step) and evaluation.

A unit is drawn and scored as one: a row, or the rows of one multiple-choice question. R rows, U units, B batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from electra_albert.contracts import IGNORED_LABEL, Batch
from electra_albert.keyed_random import Stream, bits, derived_seed, permute

Integers = NDArray[np.int64]
_STEPS_SORTED_TOGETHER = 64


@dataclass(frozen=True)
class Rows:
    """Rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` of some examples, one after the other."""

    ids: NDArray[np.int32]  # [tokens]
    starts: Integers  # [R + 1] where each row begins in ids
    first_lengths: Integers  # [R] tokens of segment 0: `[CLS] A [SEP]`
    examples: Integers  # [U] which example each unit comes from; a long one may give several
    labels: NDArray[np.generic] | None  # [U] int64 or float32, [U, 2] int64, or [tokens] int64; None: unknown
    pad_id: int
    rows_per_unit: int = 1
    has_token_labels: bool = False
    token_info: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)  # [tokens, …] for decoding

    @property
    def unit_count(self) -> int:
        return len(self.examples)

    @cached_property
    def unit_lengths(self) -> Integers:
        """[U] tokens of the longest row of each unit: what it is padded to on its own."""
        return np.diff(self.starts).reshape(-1, self.rows_per_unit).max(axis=1)

    def collate(self, units: Sequence[int] | Integers) -> Batch:
        """The rows of some units as a batch padded to the longest of them; example_id holds each row's unit."""
        chosen = np.asarray(units, dtype=np.int64)
        rows = (chosen[:, None] * self.rows_per_unit + np.arange(self.rows_per_unit)).ravel()  # [B]
        starts, lengths = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        position = np.arange(lengths.max())  # [L]
        mask = position < lengths[:, None]  # [B, L]
        source = np.where(mask, starts[:, None] + position, 0)  # [B, L]
        segments = (position >= self.first_lengths[rows, None]) & mask
        labels = self.labels
        if labels is not None:
            labels = np.where(mask, labels[source], IGNORED_LABEL) if self.has_token_labels else labels[chosen]
        return Batch(
            input_ids=torch.from_numpy(np.where(mask, self.ids[source], self.pad_id).astype(np.int64)),
            attention_mask=torch.from_numpy(mask),
            token_type_ids=torch.from_numpy(segments.astype(np.int64)),
            sentence_order_label=torch.full((len(rows),), IGNORED_LABEL),
            example_id=torch.from_numpy(np.repeat(chosen, self.rows_per_unit)),
            labels=None if labels is None else torch.from_numpy(labels),
        )

    def slices(self) -> list[slice]:
        """The position of each row in `ids` and in the arrays of `token_info`."""
        return [slice(start, end) for start, end in pairwise(self.starts.tolist())]


@dataclass(frozen=True)
class TaskBatches:
    """The micro-batches of one rank; implements contracts.StepBatches. The run ends at update `max_steps`.

    Position i of a run is (epoch, k) = divmod(i, U), and a keyed bijection of the epoch sends k to a unit: nothing is
    dropped, and batches straddle epochs. The units of some updates are sorted by length and dealt to these updates, so
    that an update takes the same units however they are split over ranks and micro-batches.
    """

    rows: Rows
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    seed: int
    max_steps: int
    rank: int = 0
    world_size: int = 1
    pin_memory: bool = False

    @property
    def global_batch_size(self) -> int:
        """Units of one update, over all ranks and micro-batches."""
        return self.world_size * self.gradient_accumulation_steps * self.per_device_train_batch_size

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        """Yield this rank's micro-batches of update `first_step`, counted from 1, and those after it."""
        chunk = self._chunk(first_step)
        while True:
            turns = bits(self.seed, Stream.BUCKET, torch.arange(chunk.start, chunk.stop), torch.tensor(2)).tolist()
            for step, units, turn in zip(chunk, self._deal(chunk), turns, strict=True):
                if step >= first_step:
                    yield self._micro_batches(units, turn)
            chunk = self._chunk(chunk.stop)

    def epoch(self, step: int) -> float:
        """How many epochs updates 1 to `step` are."""
        return step * self.global_batch_size / self.rows.unit_count

    def _chunk(self, step: int) -> range:
        """The updates whose units are sorted together with those of `step`: at most an epoch, none beyond the end."""
        size = min(_STEPS_SORTED_TOGETHER, max(1, self.rows.unit_count // self.global_batch_size))
        first = (step - 1) // size * size + 1
        end, border = first + size, self.max_steps + 1
        return range(first, min(border, end)) if step < border else range(max(first, border), end)

    def _deal(self, chunk: range) -> Integers:
        """The units of each update of a chunk, sorted by length: [steps, global batch]."""
        size, unit_count = self.global_batch_size, self.rows.unit_count
        position = torch.arange((chunk.start - 1) * size, (chunk.stop - 1) * size)
        epochs = position // unit_count
        units = permute(position % unit_count, unit_count, derived_seed(self.seed, Stream.TASK_ORDER), epochs).numpy()
        tie = bits(self.seed, Stream.BUCKET, position, torch.tensor(0)).numpy()
        # Each epoch for itself: by length alone a unit of two epochs would be twice in one update.
        order = np.lexsort((tie, self.rows.unit_lengths[units], epochs.numpy()))
        turn = bits(self.seed, Stream.BUCKET, torch.arange(chunk.start, chunk.stop), torch.tensor(1)).numpy()
        return units[order].reshape(len(chunk), size)[turn.argsort()]

    def _micro_batches(self, units: Integers, turn: int) -> list[Batch]:
        """This rank's micro-batches of an update; ranks take turns at the longer ones."""
        parts = units.reshape(self.gradient_accumulation_steps, self.world_size, -1)
        mine = [part[(self.rank + turn + number) % self.world_size] for number, part in enumerate(parts)]
        batches = [self.rows.collate(part) for part in mine]
        return [batch.map(torch.Tensor.pin_memory) for batch in batches] if self.pin_memory else batches


def eval_batches(rows: Rows, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
    """Every unit once over all ranks, longest first, `batch_size` units each: a full memory shows at once."""
    order = (-rows.unit_lengths).argsort(kind="stable")
    for start in range(rank * batch_size, len(order), world_size * batch_size):
        yield rows.collate(order[start : start + batch_size])


def outputs_by_unit(outputs: NDArray[np.float32], units: Integers, rows: Rows) -> list[NDArray[np.float32]]:
    """The outputs [B, ...] of a batch by unit, without those of the padding."""
    if rows.rows_per_unit > 1:
        return list(outputs.reshape(len(units), rows.rows_per_unit))
    if outputs.ndim == 2:  # one vector a row
        return list(outputs)
    return [output[:length] for output, length in zip(outputs, rows.unit_lengths[units], strict=True)]
