"""Encoded examples: encoding settings, flat arrays of token ids, and batches.

As in transformers' scripts an example becomes one feature, or several if it is read in windows.
A feature is one token sequence, or for multiple choice one sequence per option.
Dimensions: B batch, L length, F features, N sequences.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra_albert.contracts import IGNORED_LABEL, Batch
from electra_albert.keyed_random import Stream, bits, derived_seed, permute
from electra_albert.tasks.task import Report
from electra_albert.tokenization.text_encoder import Ids, TextEncoder

Integers = NDArray[np.int64]
Pair = tuple[Ids, Ids | None]  # token ids of one text, or of two
Outputs = list[NDArray[np.float32]]  # one array per feature
Labels = tuple[str, ...]  # class names by id
_STEPS_SORTED_TOGETHER = 64


class EncodePlan(NamedTuple):
    """Settings for encoding examples and decoding outputs."""

    max_seq_length: int  # tokens, special tokens included
    doc_stride: int  # tokens between the starts of two windows over a long passage
    max_answer_length: int  # tokens
    has_null_answer: bool = False
    is_regression: bool = False
    is_multi_label: bool = False
    double_unordered: bool = False
    max_position_embeddings: int | None = None  # of the model; None if unknown

    @property
    def truncated(self) -> str:
        """The phrase for truncated texts in reports."""
        most = self.max_position_embeddings
        limit = ""
        if most is not None and most > self.max_seq_length:
            limit = f", the model takes up to {most}"
        return f"truncated to {self.max_seq_length} tokens (--max_seq_length{limit})"


RECORDED = EncodePlan._fields[:6]  # in the details of a fine-tuned model


def trained_plan(plan: EncodePlan, details: Mapping[str, Any]) -> EncodePlan:
    """Replace settings by those that a fine-tuned model's details record."""
    recorded = {}
    for name in RECORDED:
        if name in details:
            recorded[name] = details[name]
    return plan._replace(**recorded)


class Decoded(NamedTuple):
    """The prediction for each example."""

    predictions: list[Any]
    values: NDArray[np.float64] | None  # [examples, k] inputs of the metrics; None without labels
    probabilities: list[Any] | None


@dataclass(frozen=True)
class Encoding:
    """Context for encoding the examples of one dataset split."""

    encoder: TextEncoder
    labels: Labels
    plan: EncodePlan
    report: Report
    set_name: str  # in messages
    is_training: bool = False

    def note(
        self, what: str, how: str, example: Any, count: int = 1, *, is_truncated: bool = False
    ) -> None:
        """Add to the report: `what` of this set, such as answers, and `how` they were changed."""
        self.report.note(f"{what} of {self.set_name} {how}", example.identity, count)
        if is_truncated and self.report.first_truncated is None:
            self.report.first_truncated = example.identity

    def gold(self, examples: Sequence[Any], field: str = "label") -> list[Any] | None:
        """The gold labels of all examples; None if they have none."""
        labels = [getattr(example, field) for example in examples]
        if None in labels:
            return None
        return labels

    def label_ids(self, labels: Iterable[str]) -> NDArray[np.int64]:
        """Ids of labels, int64 [labels]."""
        ids = {label: index for index, label in enumerate(self.labels)}
        return np.array([ids[label] for label in labels], dtype=np.int64)


@dataclass(frozen=True)
class EncodedExamples:
    """Features as flat arrays; sequences are `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    Two sequences of 3 and 5 tokens, of which the second is a pair:

        input_ids      [CLS] a [SEP] [CLS] b [SEP] c [SEP]
        starts         0, 3, 8
        first_lengths  3, 3
    """

    input_ids: NDArray[np.int32]  # [tokens] of all sequences, concatenated
    starts: Integers  # [N + 1] start of each sequence in input_ids
    first_lengths: Integers  # [N] tokens of segment 0: `[CLS] A [SEP]`
    example_index: Integers  # [F] the example of each feature
    # [F] int64 or float32, [F, C] float32, [F, 2] int64, or [tokens] int64; None: unknown
    labels: NDArray[np.generic] | None
    pad_id: int
    num_choices: int = 1  # sequences per feature
    has_token_labels: bool = False
    # Arrays [tokens] for decoding.
    token_info: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)

    @property
    def feature_count(self) -> int:
        return len(self.example_index)

    @cached_property
    def feature_lengths(self) -> Integers:
        """[F] tokens of the longest sequence of each feature."""
        lengths = np.diff(self.starts).reshape(-1, self.num_choices)  # [F, options]
        return np.asarray(lengths.max(axis=1))

    def collate(self, features: Sequence[int] | Integers, multiple: int = 1) -> Batch:
        """A batch of features, given by index, which its example_id holds.

        Its length is that of its longest sequence, rounded up to a multiple, but at most that of
        the longest of all features. Features 1 and 0 of the example above, without `multiple`:

            input_ids         [CLS] b [SEP] c [SEP]
                              [CLS] a [SEP] [PAD] [PAD]
            token_type_ids    0 0 0 1 1
                              0 0 0 0 0
        """
        chosen = np.asarray(features, dtype=np.int64)
        options = np.arange(self.num_choices)
        first = chosen[:, None] * self.num_choices
        sequences = (first + options).ravel()  # [B]
        starts = self.starts[sequences, None]  # [B, 1]
        lengths = self.starts[sequences + 1, None] - starts  # [B, 1]
        rounded = -(-lengths.max() // multiple) * multiple
        length = min(rounded, self.feature_lengths.max())
        position = np.arange(length)  # [L]
        mask = position < lengths  # [B, L]
        source = np.where(mask, starts + position, 0)  # [B, L]
        ids = np.where(mask, self.input_ids[source], self.pad_id)
        segments = (position >= self.first_lengths[sequences, None]) & mask
        labels = None
        if self.labels is not None and self.has_token_labels:
            labels = torch.from_numpy(np.where(mask, self.labels[source], IGNORED_LABEL))
        elif self.labels is not None:
            labels = torch.from_numpy(self.labels[chosen])
        return Batch(
            input_ids=torch.from_numpy(ids).long(),
            attention_mask=torch.from_numpy(mask),
            token_type_ids=torch.from_numpy(segments).long(),
            sentence_order_label=torch.full((len(sequences),), IGNORED_LABEL),
            example_id=torch.from_numpy(np.repeat(chosen, self.num_choices)),
            labels=labels,
        )

    def slices(self) -> list[slice]:
        """The slice of each sequence in `input_ids` and in the arrays of `token_info`."""
        return [slice(start, end) for start, end in pairwise(self.starts.tolist())]


def flatten(
    encoder: TextEncoder,
    pairs: Sequence[Pair],
    index: Sequence[int],
    labels: NDArray[np.generic] | None,
    **fields: Any,
) -> EncodedExamples:
    """Concatenate texts or pairs with `[CLS]` and `[SEP]`; `index` is that of their examples."""
    cls = np.array([encoder.cls_id], dtype=np.int32)
    sep = np.array([encoder.sep_id], dtype=np.int32)
    parts = [cls[:0]]
    starts = [0]
    first_lengths = []
    for first, second in pairs:
        length = len(first) + 2
        parts += (cls, first, sep)
        first_lengths.append(length)
        if second is not None:
            parts += (second, sep)
            length += len(second) + 1
        starts.append(starts[-1] + length)
    return EncodedExamples(
        np.concatenate(parts),
        np.array(starts, dtype=np.int64),
        np.array(first_lengths, dtype=np.int64),
        np.array(index, dtype=np.int64),
        labels,
        encoder.pad_id,
        **fields,
    )


@dataclass(frozen=True)
class TaskBatches:
    """Micro-batches of one rank up to update `max_steps`; implements contracts.StepBatches.

    Position i of the run is (epoch, k) = divmod(i, F); a keyed permutation per epoch maps k to a
    feature: a batch may span two epochs. Features of several updates are sorted by length together,
    for any number of ranks alike:

        lengths of 8 features, permuted     9 2 5 3 | 7 4 8 6
        sorted: 4 updates of 2 features     2 3 | 4 5 | 6 7 | 8 9
        in random order                     6 7 | 2 3 | 8 9 | 4 5
    """

    features: EncodedExamples
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    seed: int
    max_steps: int
    rank: int = 0
    world_size: int = 1
    pin_memory: bool = False
    multiple: int = 1  # of which each batch's length is

    @property
    def global_batch_size(self) -> int:
        """Features per update, over all ranks and micro-batches."""
        return self.world_size * self.gradient_accumulation_steps * self.per_device_train_batch_size

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        """Yield this rank's micro-batches for each update from `first_step` on, counted from 1."""
        chunk = self._chunk(first_step)
        while True:
            turns = self._noise(chunk, 2).tolist()
            for step, chosen, turn in zip(chunk, self._features(chunk), turns, strict=True):
                if step < first_step:
                    continue
                batches: list[Batch] = []
                for part in chosen.reshape(self.gradient_accumulation_steps, self.world_size, -1):
                    # Rotated, so that no rank always gets the longest sequences.
                    row = (self.rank + turn + len(batches)) % self.world_size
                    batch = self.features.collate(part[row], self.multiple)
                    if self.pin_memory:
                        batch = batch.map(Tensor.pin_memory)
                    batches.append(batch)
                yield batches
            chunk = self._chunk(chunk.stop)

    def epoch(self, step: int) -> float:
        """Epochs completed after update `step`."""
        return step * self.global_batch_size / self.features.feature_count

    def _noise(self, chunk: range, position: int) -> Tensor:
        """Keyed noise of each update, int64 [steps]."""
        steps = torch.arange(chunk.start, chunk.stop)
        return bits(self.seed, Stream.BUCKET, steps, torch.tensor(position))

    def _chunk(self, step: int) -> range:
        """The updates sorted together with `step`: at most an epoch, up to max_steps."""
        epoch_steps = self.features.feature_count // self.global_batch_size
        size = min(_STEPS_SORTED_TOGETHER, max(1, epoch_steps))
        first = (step - 1) // size * size + 1
        end = first + size
        after_last = self.max_steps + 1
        if step < after_last:
            return range(first, min(end, after_last))
        return range(max(first, after_last), end)

    def _features(self, chunk: range) -> Integers:
        """The features of each update of a chunk, grouped by length: [steps, global batch]."""
        size = self.global_batch_size
        count = self.features.feature_count
        position = torch.arange((chunk.start - 1) * size, (chunk.stop - 1) * size)
        epochs = position // count
        key = derived_seed(self.seed, Stream.TASK_ORDER)
        chosen = permute(position % count, count, key, epochs).numpy()
        tie = bits(self.seed, Stream.BUCKET, position, torch.tensor(0)).numpy()
        # Sorted by epoch first: by length alone an update could hold the same feature of two epochs
        # twice.
        lengths = self.features.feature_lengths[chosen]
        order = np.lexsort((tie, lengths, epochs.numpy()))
        by_length = chosen[order].reshape(len(chunk), size)
        shuffled = self._noise(chunk, 1).numpy().argsort()
        return by_length[shuffled]


def eval_batches(
    features: EncodedExamples, batch_size: int, rank: int = 0, world_size: int = 1
) -> Iterator[Batch]:
    """Batches of all features, once over all ranks; longest first, to run out of memory early."""
    order = (-features.feature_lengths).argsort(kind="stable")
    for start in range(rank * batch_size, len(order), world_size * batch_size):
        yield features.collate(order[start : start + batch_size])


def split_outputs(
    outputs: NDArray[np.float32], chosen: Integers, features: EncodedExamples
) -> Outputs:
    """Split outputs [B, ...] of the chosen features into one array each, without padding."""
    if outputs.ndim == 2:  # one vector per sequence
        return list(outputs.reshape(len(chosen), -1))
    pairs = zip(outputs, features.feature_lengths[chosen], strict=True)
    return [output[:length] for output, length in pairs]
