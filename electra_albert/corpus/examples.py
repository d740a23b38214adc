"""Batches of packed training examples.

Dimensions: B batch, L length, N examples. Segments are chosen again each time an example is drawn.
Position i of a run is (epoch, k) = divmod(i, N); a keyed permutation of the epoch maps k to an
example (mixture.py).
Differs from ALBERT: it swaps whole segments and then truncates, which drops tokens. Here two runs
of whole sentences within the example are swapped, because a cut-off sentence would reveal whether
its segment was moved.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra_albert.contracts import IGNORED_LABEL, Batch, CheckpointError, SpecialIds
from electra_albert.corpus.mixture import ExampleOrder
from electra_albert.corpus.rows import ExampleTable, Split, TokenStream, inside
from electra_albert.keyed_random import Stream, bits, uniform

ONE_SEGMENT_RATE = 0.1
_MIN_SENTENCE_ENDS = 3  # inside an example, so that two whole sentences fit between them
_STEPS_AHEAD = 3
_EXAMPLES_AT_ONCE = 4096


class _Cuts(NamedTuple):
    """Segment cuts of examples, all [B]; in tokens from the example's start, 0 if there is none."""

    head: np.ndarray  # of a swapped example: start of its first whole sentence
    cut: np.ndarray  # start of segment B or, in a swapped example, of its second run of sentences
    tail: np.ndarray  # of a swapped example: end of its last whole sentence
    first_length: np.ndarray  # tokens of segment A, after swapping
    label: np.ndarray  # sentence_order_label

    def read_order(self, nth: np.ndarray) -> np.ndarray:
        """Position, from the example's start, of its nth token after swapping, [B, L]."""
        head, cut, tail = (edge[:, None] for edge in self[:3])
        middle = head + tail - cut
        # Nothing moves in an example that is not swapped, because its head and tail are 0.
        moved_up = (nth >= head) & (nth < middle)
        moved_down = (nth >= middle) & (nth < tail)
        shift = np.where(moved_up, cut - head, 0)
        shift -= np.where(moved_down, tail - cut, 0)
        return nth + shift


@dataclass(frozen=True)
class PackedExamples:
    """Builds batches from the packed examples of one split."""

    split: Split
    table: ExampleTable
    max_seq_length: int
    seed: int
    special: SpecialIds
    swap_rate: float = 0.0
    one_segment_rate: float = ONE_SEGMENT_RATE

    def gather(self, index: Tensor, example_id: Tensor) -> Batch:
        """The examples `index` [B] int64; example_id [B] int64 keys their cuts and swaps.

        input_ids [B, L]: an example that crosses document borders has a [SEP] at each of them and
        no other cut; any other example is cut at one of its sentence ends.
            [CLS] a a a [SEP] b b [SEP] c c c [SEP] <pad>     documents a, b and c
            [CLS] d d d d d [SEP] d d d d [SEP] <pad> <pad>   inside document d
            0     0 0 0 0 0 0     1 1 1 1 1     0     0       token_type_ids of the second
        """
        stream, start, end = self._read(index.numpy())
        first_border, border_count = inside(stream.document_ends, start, end)
        cuts = self._choose_cuts(stream, start, end, border_count > 0, example_id)

        example = np.arange(len(start))  # [B]
        is_sep = np.zeros((len(example), self.max_seq_length), bool)  # [B, L]
        cut_example = np.flatnonzero(cuts.first_length)
        cut_position = 1 + cuts.first_length[cut_example]
        is_sep[cut_example, cut_position] = True
        border_example = example.repeat(border_count)  # [borders]
        earlier = border_count.cumsum() - border_count  # [B] borders of earlier examples
        nth = np.arange(len(border_example)) - earlier[border_example]  # [borders] [SEP]s before
        border = stream.document_ends[first_border[border_example] + nth]
        border_position = 1 + border - start[border_example] + nth
        is_sep[border_example, border_position] = True
        last = 1 + end - start + is_sep.sum(axis=1)  # [B] position of the last [SEP]
        is_sep[example, last] = True

        segment = is_sep.cumsum(axis=1) - is_sep  # [B, L] earlier [SEP]
        position = np.arange(self.max_seq_length)  # [L]
        mask = position <= last[:, None]  # [B, L]
        is_token = mask & ~is_sep & (position > 0)
        nth_token = cuts.read_order(position - 1 - segment)  # [B, L] from the example's start
        token_index = np.where(is_token, start[:, None] + nth_token, 0)
        tokens = stream.tokens[token_index]  # [B, L]
        ids = np.where(is_token, tokens, self.special.pad).astype(np.int64)
        ids[:, 0] = self.special.cls
        ids[is_sep] = self.special.sep
        token_type_ids = ((segment > 0) & mask).astype(np.int64)
        arrays = (ids, mask, token_type_ids, cuts.label)
        input_ids, attention_mask, types, label = map(torch.from_numpy, arrays)
        return Batch(input_ids, attention_mask, types, label, example_id)

    def _read(self, index: np.ndarray) -> tuple[TokenStream, np.ndarray, np.ndarray]:
        """The text of examples [B] as one stream, and their starts and ends in it [B].

        Raises CheckpointError for damage that sizes and times of the files do not show.
        """
        firsts = self.table.firsts
        part_of = np.searchsorted(firsts, index, side="right") - 1  # [B]
        number = index - firsts[part_of]
        bounds = np.empty((3, 2, len(index)), np.int64)  # of the slices of each array
        start, end = bounds[0]
        for part in np.unique(part_of).tolist():
            is_here = part_of == part
            edges = self.table.edges[part]
            start[is_here] = edges[number[is_here]]
            end[is_here] = edges[number[is_here] + 1]
            ends_of_part = self.split.parts[part][1:]
            for (first, last), ends in zip(bounds[1:], ends_of_part, strict=True):
                first[is_here] = ends.searchsorted(start[is_here], "right")
                last[is_here] = ends.searchsorted(end[is_here])
        after = (end - start).cumsum()
        before = after - end + start
        streams = [self.split.parts[part] for part in part_of.tolist()]
        arrays = []
        for column, (first, last) in enumerate(bounds):
            spans = zip(streams, first.tolist(), last.tolist(), strict=True)
            slices = [stream[column][begin:stop] for stream, begin, stop in spans]
            array = np.concatenate(slices)
            if column:  # of ends, which are in tokens from the part's start
                end_counts = (last - first).clip(0)
                array += np.repeat(before - start, end_counts)
            arrays.append(array)
        stream = TokenStream(*arrays)
        is_ascending = True
        for ends in stream[1:]:
            steps = np.diff(ends, prepend=0, append=after[-1])
            is_ascending &= steps.min() > 0
        if not is_ascending or stream.tokens.max() >= self.split.vocab_size:
            raise CheckpointError(
                f"{self.split.folder} is damaged; run electra-albert prepare --verify "
                "with the options of this corpus, then start again"
            )
        return stream, before, after

    def _choose_cuts(
        self,
        stream: TokenStream,
        start: np.ndarray,
        end: np.ndarray,
        has_border: np.ndarray,
        example_id: Tensor,
    ) -> _Cuts:
        """Cut the examples that cross no document border, and swap some; arguments are [B]."""
        first, number = inside(stream.sentence_ends, start, end)

        def draws(stream: Stream) -> Tensor:
            return bits(self.seed, stream, example_id, torch.zeros_like(example_id))

        is_single = (uniform(draws(Stream.ONE_SEGMENT)) < self.one_segment_rate).numpy()
        has_cut = ~has_border & ~is_single & (number > 0)
        # In an example that may be swapped, a whole sentence precedes and follows the cut.
        can_swap = has_cut & (number >= _MIN_SENTENCE_ENDS) & (self.swap_rate > 0)
        choices = np.where(can_swap, number - 2, np.maximum(number, 1))
        chosen = first + can_swap + draws(Stream.SEGMENT_CUT).numpy() % choices
        is_drawn = (uniform(draws(Stream.SWAP)) < self.swap_rate).numpy()
        is_swapped = can_swap & is_drawn

        def ends_at(index: np.ndarray, where: np.ndarray) -> np.ndarray:
            ends = np.zeros_like(start)
            ends[where] = stream.sentence_ends[index[where]] - start[where]
            return ends

        head = ends_at(first, is_swapped)
        cut = ends_at(chosen, has_cut)
        tail = ends_at(first + number - 1, is_swapped)
        has_order = has_cut
        if self.swap_rate > 0:
            has_order = can_swap
        label = np.where(has_order, is_swapped, IGNORED_LABEL)
        first_length = np.where(is_swapped, head + tail - cut, cut)
        return _Cuts(head, cut, tail, first_length, label)


# Batches: a pure function of the step, split over ranks, prepared a few steps ahead.


@dataclass(frozen=True)
class TrainBatches:
    """Micro-batches of one rank; a step's examples are the same for any split over ranks.

    example_id counts the examples of the run.
    """

    examples: PackedExamples
    order: ExampleOrder
    per_device_train_batch_size: int
    gradient_accumulation_steps: int = 1
    rank: int = 0
    world_size: int = 1
    pin_memory: bool = False

    @property
    def global_batch_size(self) -> int:
        """Examples per step, over all ranks and micro-batches."""
        return self.world_size * self.gradient_accumulation_steps * self.per_device_train_batch_size

    def micro_batches(self, step: int) -> list[Batch]:
        """This rank's micro-batches of `step`, counted from 1."""
        return next(self._following(step))

    def _following(self, first_step: int) -> Iterator[list[Batch]]:
        """Micro-batches of `first_step` and later; indices of many steps are computed at once."""
        size = self.per_device_train_batch_size
        micro_batch_count = self.gradient_accumulation_steps
        step_count = max(1, _EXAMPLES_AT_ONCE // (micro_batch_count * size))
        micro_batch = torch.arange(micro_batch_count)[:, None]
        offset = (micro_batch * self.world_size + self.rank) * size + torch.arange(size)
        for first in count(first_step - 1, step_count):
            step = torch.arange(first, first + step_count)[:, None, None]
            position = step * self.global_batch_size + offset  # [steps, micro-batches, B]
            index = self.order.indices(position)
            for example_ids, indices in zip(position, index, strict=True):
                batches = list(map(self.examples.gather, indices, example_ids))
                if self.pin_memory:
                    batches = [batch.map(Tensor.pin_memory) for batch in batches]
                yield batches

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        """Yield the micro-batches of `first_step` and later, prepared ahead in a thread."""
        following = self._following(first_step)
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
            ahead = deque(thread.submit(next, following) for _ in range(_STEPS_AHEAD))
            try:
                while True:
                    batches = ahead.popleft().result()
                    ahead.append(thread.submit(next, following))
                    yield batches
            finally:
                thread.shutdown(wait=False, cancel_futures=True)

    def epoch(self, step: int) -> float:
        """The number of epochs after `step` steps."""
        return step * self.global_batch_size / self.order.examples_per_epoch


def eval_batches(
    examples: PackedExamples,
    limit: int,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    cuts: Sequence[int] = (),
) -> Iterator[Batch]:
    """Yield at most `limit` examples, spread over the stream, in batches of at most `batch_size`.

    Each rank gets every world_size-th example. No batch crosses an index in ascending `cuts`.
    """
    count = examples.table.count
    taken = min(limit, count)
    nth = torch.arange(taken)[rank::world_size]
    index = nth * count // max(1, taken)
    borders = torch.tensor(cuts, dtype=torch.int64)
    for chunk in torch.split(index, batch_size):
        positions = torch.searchsorted(chunk, borders)
        for part in chunk.tensor_split(positions):
            if len(part):
                yield examples.gather(part, example_id=part)
