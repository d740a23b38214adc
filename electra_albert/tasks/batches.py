"""Encoded rows to the batches of a run: rows of like length together, a pure function of the step.

Position i of a run is (epoch, k) = divmod(i, U), and a keyed bijection of the epoch sends k to a unit: nothing is
dropped, and batches straddle passes. Positions of some updates are sorted by length and dealt to these updates, so that
an update takes the same units however they are split over ranks and micro-batches. Dimensions: U units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from electra_albert.contracts import Batch
from electra_albert.keyed_random import Stream, bits, derived_seed, permute
from electra_albert.tasks.rows import Rows

_STEPS_SORTED_TOGETHER = 64


@dataclass(frozen=True)
class TaskBatches:
    """The micro-batches of one rank; implements contracts.StepBatches. The run ends at update `max_steps`."""

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

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return self.rows.unit_lengths()

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        """Yield this rank's micro-batches of update `first_step`, counted from 1, and those after it."""
        chunk = self._chunk(first_step)
        while True:
            turns = bits(self.seed, Stream.BUCKET, torch.arange(chunk.start, chunk.stop), torch.tensor(2)).tolist()
            for step, units, turn in zip(chunk, self._deal(chunk), turns, strict=True):
                if step >= first_step:
                    yield self._lay_out(units, turn)
            chunk = self._chunk(chunk.stop)

    def micro_batches(self, step: int) -> list[Batch]:
        """This rank's micro-batches of one update."""
        return next(self.steps(step))

    def epoch(self, step: int) -> float:
        """How often the units have been passed over once updates 1 to `step` are done."""
        return step * self.global_batch_size / self.rows.unit_count

    def _chunk(self, step: int) -> range:
        """The updates whose units are sorted together with those of `step`: at most a pass, none beyond the run's end.

        More would shuffle small sets across passes.
        """
        size = min(_STEPS_SORTED_TOGETHER, max(1, self.rows.unit_count // self.global_batch_size))
        first = (step - 1) // size * size + 1
        chunk = range(first, first + size)
        if self.max_steps not in chunk:
            return chunk
        if step <= self.max_steps:
            return range(first, self.max_steps + 1)
        return range(self.max_steps + 1, first + size)

    def _deal(self, chunk: range) -> NDArray[np.int64]:
        """The units of each update of a chunk, sorted by length: [steps, global batch]."""
        size = self.global_batch_size
        position = torch.arange((chunk.start - 1) * size, (chunk.stop - 1) * size)
        unit_count = self.rows.unit_count
        order_seed = derived_seed(self.seed, Stream.TASK_ORDER)
        passes = position // unit_count
        units = permute(position % unit_count, unit_count, order_seed, passes).numpy()
        tie = bits(self.seed, Stream.BUCKET, position, torch.tensor(0)).numpy()
        # Each pass for itself: by length alone a unit of two passes would lie beside itself, twice in one update.
        order = np.lexsort((tie, self._lengths[units], passes.numpy()))
        by_length = units[order].reshape(len(chunk), size)
        turn = bits(self.seed, Stream.BUCKET, torch.arange(chunk.start, chunk.stop), torch.tensor(1)).numpy()
        return by_length[turn.argsort()]

    def _lay_out(self, units: NDArray[np.int64], turn: int) -> list[Batch]:
        """This rank's micro-batches of an update.

        Ranks at the same micro-batch have neighbours in length, and take turns at the longer ones.
        """
        pieces = units.reshape(self.gradient_accumulation_steps, self.world_size, -1)
        mine = [piece[(self.rank + turn + number) % self.world_size] for number, piece in enumerate(pieces)]
        batches = [self.rows.collate(piece) for piece in mine]
        return [batch.map(torch.Tensor.pin_memory) for batch in batches] if self.pin_memory else batches


def eval_batches(rows: Rows, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
    """Every unit once over all ranks, longest first, in batches of at most `batch_size` units.

    The longest first, so that a batch too large for the memory shows at once. The units of a batch are its
    example_id[:: rows.rows_per_unit].
    """
    order = (-rows.unit_lengths()).argsort(kind="stable")
    for start in range(rank * batch_size, len(order), world_size * batch_size):
        yield rows.collate(order[start : start + batch_size])
