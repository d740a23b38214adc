"""Encoded examples in flat arrays, and batches padded to their own longest row.

A unit is what is drawn and scored as one: a row, or the rows of one multiple-choice question.
Dimensions: R rows, U units, B batch, L length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra_albert.contracts import IGNORED_LABEL, Batch

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` of some examples, one after the other."""

    ids: NDArray[np.int32]  # [tokens]
    starts: Integers  # [R + 1] where each row begins in ids
    first_lengths: Integers  # [R] tokens of segment 0: `[CLS] A [SEP]`
    examples: Integers  # [U] which example each unit comes from; a long one may give several
    labels: (
        NDArray[np.generic] | None
    )  # [U] int64 or float32, [U, 2] int64, or [tokens] int64 beside ids; None: unknown
    pad_id: int
    rows_per_unit: int = 1
    has_token_labels: bool = False
    token_info: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)  # [tokens, …] for decoding

    @property
    def unit_count(self) -> int:
        return len(self.examples)

    def unit_lengths(self) -> Integers:
        """[U] tokens of the longest row of each unit: what it is padded to on its own."""
        return np.diff(self.starts).reshape(-1, self.rows_per_unit).max(axis=1)

    def collate(self, units: Sequence[int] | Integers) -> Batch:
        """The rows of some units as a batch padded to the longest of them; example_id holds each row's unit."""
        chosen = np.asarray(units, dtype=np.int64)
        rows = (chosen[:, None] * self.rows_per_unit + np.arange(self.rows_per_unit)).ravel()  # [B]
        starts, lengths = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        place = np.arange(lengths.max())  # [L]
        mask = place < lengths[:, None]  # [B, L]
        source = np.where(mask, starts[:, None] + place, 0)  # [B, L]
        segments = (place >= self.first_lengths[rows, None]) & mask
        return Batch(
            input_ids=torch.from_numpy(np.where(mask, self.ids[source], self.pad_id).astype(np.int64)),
            attention_mask=torch.from_numpy(mask),
            token_type_ids=torch.from_numpy(segments.astype(np.int64)),
            sentence_order_label=torch.full((len(rows),), IGNORED_LABEL),
            example_id=torch.from_numpy(np.repeat(chosen, self.rows_per_unit)),
            labels=self._labels(chosen, source, mask),
        )

    def _labels(self, units: Integers, source: Integers, mask: NDArray[np.bool_]) -> Tensor | None:
        if self.labels is None:
            return None
        chosen = np.where(mask, self.labels[source], IGNORED_LABEL) if self.has_token_labels else self.labels[units]
        return torch.from_numpy(chosen)
