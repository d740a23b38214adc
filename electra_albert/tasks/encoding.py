"""Token ids to rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`. Dimensions: R rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.contracts import DataError
from electra_albert.corpus.text_encoder import Ids, TextEncoder
from electra_albert.tasks.task import Report

Pair = tuple[Ids, Ids | None]  # a text, or two
Outputs = list[NDArray[np.float32]]  # of each unit
Labels = tuple[str, ...]  # in the order of their numbers
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
        """Count in the report: `what` of this set, such as answers, and how they were changed."""
        self.report.note(f"{what} of {self.where} {how}", example.identity, count, is_cut=is_cut)

    def gold(self, examples: Sequence[Any], field: str = "label") -> list[Any] | None:
        """This field of all examples; None where none of them has it, DataError where only some have."""
        found = [getattr(example, field) for example in examples]
        missing = [example.identity for example, label in zip(examples, found, strict=True) if label is None]
        if missing and len(missing) < len(examples):
            raise DataError(
                f"{self.where}: {len(missing):,} examples have no label (first: {missing[0]}); label all or none"
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
