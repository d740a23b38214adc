"""Types that cross folders, and the errors a user can cause. Dimensions: B batch, L length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

Arithmetic = Literal["fp32", "bf16", "fp16"]  # of the matrix products
IGNORED_LABEL = -100  # a label that takes no part in a loss or a count, as in PyTorch and transformers
STOPPED_BY_SIGNAL = 75  # exit code of a run that saved and left because of a signal
# Raised by yaml in addition to its own error: by a malformed date, number or truth value, and by endless nesting.
NOT_YAML = (ValueError, LookupError, AttributeError, TypeError, RecursionError)
Metrics = dict[str, Any]  # one row of metrics.jsonl: numbers, or None where a count was 0


class Batch(NamedTuple):
    """One micro-batch of examples. Only fine-tuning batches have labels; a multiple-choice example has several rows."""

    input_ids: Tensor  # [B, L] int64
    attention_mask: Tensor  # [B, L] bool, True = take part
    token_type_ids: Tensor  # [B, L] int64, 0 up to and including the first [SEP], then 1
    sentence_order_label: Tensor  # [B] int64: 0 in order, 1 swapped, IGNORED_LABEL where there is no order
    example_id: Tensor  # [B] int64, position of the example in the whole run; keys the randomness
    labels: Tensor | None = None  # [B] int64 or float32, [B, 2] int64 (start, end), or [B, L] int64

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with every field changed alike."""
        return Batch(*(None if field is None else change(field) for field in self))  # type: ignore[arg-type]

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`; pinned host tensors are copied to a CUDA GPU without waiting."""
        return self.map(lambda field: field.to(device, non_blocking=device.type == "cuda"))


class SpecialIds(NamedTuple):
    """Ids of a tokenizer's special tokens; `unk` is None if it has no unknown token."""

    pad: int
    unk: int | None
    cls: int
    sep: int
    mask: int
    never_masked: tuple[int, ...]  # these, and further special tokens of the tokenizer


class Term(NamedTuple):
    """A sum and its divisor. Means exist only at the edge; a loss sum is in nats."""

    sum: Tensor  # [] float32
    count: Tensor  # type: ignore[assignment]  # [] int64; hides tuple.count


class Objective(Protocol):
    """A module that corrupts a batch and returns its terms; those with a weight in `weights` are losses."""

    weights: Mapping[str, float]

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts of the weighted terms, found on the host; `forward` will return the same."""

    def __call__(self, batch: Batch, step: Tensor) -> dict[str, Term]:
        """Terms of `batch`; `step` is an int64 tensor [] that keys draws that differ at each step."""


class StepBatches(Protocol):
    """The micro-batches of a run, a pure function of the step."""

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        """Yield this rank's micro-batches for update `first_step`, `first_step` + 1, … without end."""

    def epoch(self, step: int) -> float:
        """Passes over the corpus once updates 1 to `step` are done."""


class RunResult(NamedTuple):
    """Outcome of pretraining or fine-tuning."""

    folder: Path
    metrics: Metrics  # of the last evaluation
    step: int  # updates made
    is_stopped: bool = False  # by a signal, after saving; the same call resumes it
    summary: str = ""  # the closing report


class UserError(ValueError):
    """An error the user can fix. The message is one line: what, why, what to do."""

    exit_code = 1


class UsageError(UserError):
    """Options, and paths that are missing or cannot be written."""

    exit_code = 2


class DataError(UserError):
    """Contents of a corpus or task file."""

    exit_code = 3


class CheckpointError(UserError):
    """Contents of a checkpoint, tokenizer or run folder, or two of them that do not match."""

    exit_code = 4


class DivergedError(UserError):
    """Training produced numbers that are not finite."""

    exit_code = 5
