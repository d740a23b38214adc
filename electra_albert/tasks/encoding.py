"""Examples as rows of token ids: how they are encoded, their flat arrays, and batches for training and evaluation.

A unit is drawn and scored as one: a row, or the rows of one multiple-choice question. R rows, U units, B batch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from electra_albert.contracts import IGNORED_LABEL, Batch, DataError
from electra_albert.corpus.text_encoder import Ids, TextEncoder
from electra_albert.keyed_random import Stream, bits, derived_seed, permute
from electra_albert.tasks.task import Report

Integers = NDArray[np.int64]
Pair = tuple[Ids, Ids | None]  # a text, or two
Outputs = list[NDArray[np.float32]]  # of each unit
Labels = tuple[str, ...]  # in the order of their numbers
_RECORDED = ("max_seq_length", "doc_stride", "max_answer_length", "has_null_answer", "is_regression")
_STEPS_SORTED_TOGETHER = 64


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
        most = self.max_position_embeddings or 0
        limit = f", the model reads up to {most}" if most > self.max_seq_length else ""
        return f"cut to {self.max_seq_length} tokens (--max_seq_length{limit})"


def trained_plan(plan: EncodePlan, details: Mapping[str, Any]) -> EncodePlan:
    """The plan by which a fine-tuned model was trained, as far as its folder's details record it."""
    return plan._replace(**{name: details[name] for name in _RECORDED if name in details})


class Decoded(NamedTuple):
    """The predictions for each example."""

    predictions: list[Any]
    values: NDArray[np.float64] | None  # [examples, k] the numbers all metrics follow from; None without labels
    probabilities: list[Any] | None


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of two texts after the longer one (of equals the second) has given tokens until both fit into `room`."""
    kept = first if first + second <= room else min(first, room - min(second, room // 2))
    return kept, min(second, room - kept)


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
        """Count in the report: `what` of this set, such as answers, and how they were changed."""
        self.report.note(f"{what} of {self.where} {how}", example.identity, count, is_cut=is_cut)

    def gold(self, examples: Sequence[Any], field: str = "label") -> list[Any] | None:
        """This field of all examples; None where none of them has it, DataError where only some have."""
        found = [getattr(example, field) for example in examples]
        missing = [example.identity for example, label in zip(examples, found, strict=True) if label is None]
        if missing and len(missing) < len(examples):
            raise DataError(
                f"{self.where}: {len(missing):,} examples lack a label (first: {missing[0]}); label all or none"
            )
        return None if missing else found

    def class_numbers(self, gold: Iterable[tuple[str, Any]]) -> NDArray[np.int64]:
        """The number of each label of an example, int64 [labels]; DataError for one that is no class."""
        gold, numbers = [*gold], {label: number for number, label in enumerate(self.labels)}
        for label, example in gold:
            if label not in numbers:
                wanted = f"label {label!r} is none of {', '.join(self.labels)}"
                raise DataError(f"{self.where}, {example.identity}: {wanted}; mend or remove it")
        return np.array([numbers[label] for label, _ in gold], dtype=np.int64)


@dataclass(frozen=True)
class EncodedExamples:
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


def lay_out(
    encoder: TextEncoder, pairs: Sequence[Pair], units: Sequence[int], labels: NDArray[np.generic] | None, **fields: Any
) -> EncodedExamples:
    """Rows of one or two texts each with `[CLS]` and `[SEP]`; units and fields are Rows' examples and other fields."""
    cls, sep = np.array([encoder.cls_id], dtype=np.int32), np.array([encoder.sep_id], dtype=np.int32)
    parts: list[Ids] = [cls[:0]]
    for first, second in pairs:
        parts += (cls, first, sep) if second is None else (cls, first, sep, second, sep)
    first_lengths = np.array([len(first) + 2 for first, _ in pairs], dtype=np.int64)
    further = np.array([0 if second is None else len(second) + 1 for _, second in pairs], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(first_lengths + further)]).astype(np.int64)
    examples = np.array(units, dtype=np.int64)
    return EncodedExamples(np.concatenate(parts), starts, first_lengths, examples, labels, encoder.pad_id, **fields)


@dataclass(frozen=True)
class TaskBatches:
    """The micro-batches of one rank; implements contracts.StepBatches. The run ends at update `max_steps`.

    Position i of a run is (epoch, k) = divmod(i, U), and a keyed bijection of the epoch sends k to a unit: batches
    straddle epochs. The units of some updates are sorted by length and dealt to them, whatever ranks there are.
    """

    rows: EncodedExamples
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
                if step < first_step:
                    continue
                parts = units.reshape(self.gradient_accumulation_steps, self.world_size, -1)
                # Ranks take turns at the longer parts.
                mine = [part[(self.rank + turn + number) % self.world_size] for number, part in enumerate(parts)]
                batches = [self.rows.collate(part) for part in mine]
                yield [batch.map(torch.Tensor.pin_memory) for batch in batches] if self.pin_memory else batches
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


def eval_batches(rows: EncodedExamples, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
    """Every unit once over all ranks, longest first, `batch_size` units each: a full memory shows at once."""
    order = (-rows.unit_lengths).argsort(kind="stable")
    for start in range(rank * batch_size, len(order), world_size * batch_size):
        yield rows.collate(order[start : start + batch_size])


def outputs_by_unit(outputs: NDArray[np.float32], units: Integers, rows: EncodedExamples) -> list[NDArray[np.float32]]:
    """The outputs [B, ...] of a batch by unit, without those of the padding."""
    if rows.rows_per_unit > 1:
        return list(outputs.reshape(len(units), rows.rows_per_unit))
    if outputs.ndim == 2:  # one vector a row
        return list(outputs)
    return [output[:length] for output, length in zip(outputs, rows.unit_lengths[units], strict=True)]
