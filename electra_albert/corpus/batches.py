"""Rows to the batches of a run: a pure function of the step, split over ranks, prepared a little ahead.

Position i of a run is (epoch, k) = divmod(i, N); a keyed bijection of the epoch sends k to a row (mixture.py). Nothing
is stored, so any batch is found at once and nothing is dropped. Dimensions: B batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import torch

from electra_albert.contracts import Batch
from electra_albert.corpus.examples import Rows
from electra_albert.corpus.mixture import RowOrder

_STEPS_AHEAD = 3
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class TrainBatches:
    """The micro-batches of one rank. A step takes the same rows however they are split over ranks and micro-batches."""

    rows: Rows
    order: RowOrder
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
                yield [_pinned(batch) for batch in batches] if self.pin_memory else batches

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


def _pinned(batch: Batch) -> Batch:
    return batch._replace(**{name: field.pin_memory() for name, field in batch._asdict().items() if field is not None})


def eval_batches(
    rows: Rows, limit: int, batch_size: int, rank: int = 0, world_size: int = 1, borders: Sequence[int] = ()
) -> Iterator[Batch]:
    """`limit` rows spread evenly over the text, or all there are, in batches of at most `batch_size`.

    They come in their order; each rank gets every world_size-th. No batch crosses one of the rows `borders`, ascending.
    """
    taken = min(limit, rows.table.count)
    row = torch.arange(rank, taken, world_size) * rows.table.count // max(1, taken)
    for chunk in row.split(batch_size) if len(row) else ():
        for part in chunk.tensor_split(torch.searchsorted(chunk, torch.tensor(borders, dtype=torch.int64))):
            if len(part):
                yield rows.gather(part, example_id=part)
