"""Types shared by several folders, and the errors a user can cause.

Dimensions: B batch, L length.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

LOG = logging.getLogger("electra_albert")  # of the whole package
Arithmetic = Literal["fp32", "bf16", "fp16"]  # of the matrix products
IGNORED_LABEL = -100  # excluded from losses and counts, as in PyTorch and transformers
STOPPED_BY_SIGNAL = 75  # exit code of a run that a signal stopped after saving
Metrics = dict[str, Any]  # one line of metrics.jsonl: numbers, or None where a count was 0
# User and password of an address, up to the last @ before its path; also a password with a slash.
# Paths have one slash where addresses have two.
_LOGIN = re.compile(
    r"(?:(?<=://)|(?<=\w\w:/)(?!/))"
    r"(?:[^\s/?#]*|[^\s/?#:]*:(?!\d+\b)(?:(?!:/)[^\n\"'])*)@"
)
_QUERY = re.compile(
    r"(\w\w:/+(?:(?!:/)[^\n?#])*)[?#]"
    r"(?:[^\s\"`<>]*[^\s\"`<>'.,:;)\]])?"
)


def redacted(value: Any) -> Any:
    """The value without user, password, query and fragment of each address in its texts."""
    if isinstance(value, dict):
        return {name: redacted(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(entry) for entry in value]
    if isinstance(value, str):
        return _QUERY.sub(r"\1", _LOGIN.sub("", value))
    return value


def one_line(error: BaseException) -> str:
    """The message of a library's error in one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _redact(record: logging.LogRecord) -> bool:
    """Redact a record before any handler, also the caller's, gets it."""
    record.msg = redacted(record.getMessage())
    record.args = None
    return True


LOG.addFilter(_redact)


class Batch(NamedTuple):
    """One micro-batch. Only those of fine-tuning have labels.

    A multiple-choice example has several sequences.
    """

    input_ids: Tensor  # [B, L] int64
    attention_mask: Tensor  # [B, L] bool, False = padding
    token_type_ids: Tensor  # [B, L] int64, 0 up to and including the first [SEP], then 1
    sentence_order_label: Tensor  # [B] int64: 0 in order, 1 not in order, IGNORED_LABEL
    example_id: Tensor  # [B] int64, index of the example in the whole run; keys the randomness
    # [B] int64 or float32, [B, C] float32, [B, 2] int64 (start, end), or [B, L] int64
    labels: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with `change` applied to every field."""
        fields = (None if field is None else change(field) for field in self)
        return Batch(*fields)  # type: ignore[arg-type]

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`; pinned host tensors are copied to a CUDA GPU asynchronously."""
        return self.map(lambda field: field.to(device, non_blocking=device.type == "cuda"))


class SpecialIds(NamedTuple):
    """Ids of a tokenizer's special tokens; `unk` is None if it has no unknown token."""

    pad: int
    unk: int | None
    cls: int
    sep: int
    mask: int
    never_masked: tuple[int, ...]  # all special tokens: these and further ones of the tokenizer
    starts_word: Tensor | None = None  # [V] bool, on the objective's device, for mask units


class Term(NamedTuple):
    """A sum and its count, divided only after summing over micro-batches and ranks.

    Losses are in nats.
    """

    sum: Tensor  # [] float32
    count: Tensor  # type: ignore[assignment]  # [] int64; hides tuple.count


class Objective(Protocol):
    """A module that computes the loss and metric terms of a batch."""

    weights: Mapping[str, float]  # of the terms that are losses

    def counts(self, batch: Batch) -> dict[str, int]:
        """Counts of the weighted terms, computed on the host; must equal those of `forward`."""

    def __call__(self, batch: Batch) -> dict[str, Term]:
        """Terms of `batch`; `example_id`, different in every epoch, is a key for random draws."""


class PretrainingObjective(Objective, Protocol):
    """An objective that pretrains models, which are exported and evaluated."""

    chance_level: Mapping[str, float]  # of each loss, in nats: that of a model with random weights
    generator: Any  # model.electra.Generator, a masked language model, or None
    discriminator: Any  # model.electra.Discriminator, or None
    lr_multipliers: Mapping[str, float] | None  # by parameter name; None: all are 1

    def score(self, batch: Batch, unigram: Any, detections: Any) -> dict[str, Term]:
        """Terms of a held-out batch.

        A masked language model adds the baselines of objectives.evaluation.Unigram, and a
        discriminator adds its logits to objectives.evaluation.Detections.
        """


class StepBatches(Protocol):
    """The micro-batches of a run as a pure function of the step."""

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        """Yield this rank's micro-batches of step `first_step`, `first_step` + 1, … without end."""

    def epoch(self, step: int) -> float:
        """Number of epochs after steps 1 to `step`, with fraction."""


class Callbacks(NamedTuple):
    """Functions of the caller, which get rows of metrics.jsonl on the main rank."""

    on_step: Callable[[Metrics], object] | None = None  # every logging_steps
    on_evaluation: Callable[[Metrics], object] | None = None  # returns True to end the training


NO_CALLBACKS = Callbacks()


@dataclass(frozen=True)
class RunResult:
    """Outcome of pretraining or fine-tuning."""

    folder: Path
    metrics: Metrics  # of the last evaluation
    step: int  # finished steps
    is_stopped: bool = False  # by a signal, after saving; the same call resumes it
    summary: str = field(default="", repr=False)  # the final report


class UserError(ValueError):
    """An error the user can fix. The message is one line: what, why, what to do; no credentials."""

    exit_code = 1

    def __init__(self, message: object = "") -> None:
        super().__init__(redacted(str(message)))


class UsageError(UserError):
    """Wrong options, missing paths, paths that cannot be written."""

    exit_code = 2


class DataError(UserError):
    """Invalid contents of a corpus or task file."""

    exit_code = 3


class CheckpointError(UserError):
    """Invalid or mismatched contents of a checkpoint, tokenizer or run folder."""

    exit_code = 4


class DivergedError(UserError):
    """Training produced non-finite numbers."""

    exit_code = 5


class RankLostError(UserError):
    """Another process of a distributed run has ended or does not answer."""

    exit_code = 6
    is_first_left = True  # whether this rank is the first that is left, which reports the error
