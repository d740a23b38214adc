"""Data classes for fine-tuning tasks, their examples, and the report on reading them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Patterns = tuple[str, ...]  # file names in order of preference; * matches any text
Examples = Sequence[Any]
MAX_DIGITS = 9  # of a column number; no file has that many columns


class Columns(NamedTuple):
    """Accepted column names of a table, the official one first."""

    text: tuple[str, ...]
    pair: tuple[str, ...] = ()  # empty: one text
    label: tuple[str, ...] = ("label",)
    identity: tuple[str, ...] = ("index", "idx", "id")


class Files(NamedTuple):
    """File names of a task; for evaluation and test sets by set name."""

    folders: tuple[str, ...]  # the official folder name first
    train: Patterns
    evaluation: Mapping[str, Patterns]
    test: Mapping[str, Patterns]


class Hub(NamedTuple):
    """The task's dataset on the hub, and its splits by set name."""

    dataset: str
    config: str | None = None
    evaluation: Mapping[str, str] = {"dev": "validation"}
    test: Mapping[str, str] = {"test": "test"}


@dataclass(frozen=True)
class Task:
    """Definition of a task; `main` is the metric that ELECTRA reports, `metrics` are official."""

    name: str
    kind: Literal["sequence", "choice", "span", "token"]
    metrics: tuple[str, ...]
    main: str
    columns: Columns
    files: Files
    hub: Hub | None = None
    without_header: tuple[str, ...] = ()  # all columns by position, for files without a header
    labels: tuple[str, ...] = ()  # class names by id; empty: found in the training data, or none
    no_label: tuple[str, ...] = ("-", "-1")  # values that mean a missing label, as does ""
    label_aliases: Mapping[str, str] = field(default_factory=dict)  # the hub's class names
    is_regression: bool = False
    is_multi_label: bool = False
    is_symmetric: bool = False  # the order of the two texts has no meaning
    score_range: tuple[float, float] | None = None
    has_null_answer: bool = False
    tag_column: int = -1  # in CoNLL files
    # For a task without training data: the task whose model is evaluated on it.
    trained_by: str | None = None
    submission: str | None = None  # submission file; by default named after the test set

    @property
    def takes_pairs(self) -> bool:
        return bool(self.columns.pair)


class SequenceExample(NamedTuple):
    """One or two texts with one label."""

    text: str
    text_pair: str | None
    # A number for a regression, all labels of a multi-label task; None: unlabelled.
    label: str | float | tuple[str, ...] | None
    identity: str  # the example's id in the data, else its index from 0


class ChoiceExample(NamedTuple):
    """A passage, a question on it, and the answer options."""

    context: str
    question: str  # may have a gap `_` for the option
    options: tuple[str, ...]
    label: int | None  # index of the correct option
    identity: str
    group: str  # such as `middle` or `high`; also scored separately


class Answer(NamedTuple):
    """An answer span of the passage."""

    text: str
    start: int  # character offset in the passage


class SpanExample(NamedTuple):
    """A passage and a question that is answered by a span of it, or unanswerable."""

    context: str
    question: str
    answers: tuple[Answer, ...] | None  # all accepted ones; empty: unanswerable; None: unlabelled
    identity: str


class TokenExample(NamedTuple):
    """The words of a sentence and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    identity: str


@dataclass
class Report:
    """Counts of unusual data and where each kind was first seen."""

    counts: Counter[str] = field(default_factory=Counter)
    first_seen: dict[str, str] = field(default_factory=dict)
    first_truncated: str | None = None  # id of the first truncated example

    def note(self, what: str, where: str, count: int = 1) -> None:
        """Count `what`, a plural such as `examples of FILE left out`, first seen at `where`."""
        self.counts[what] += count
        self.first_seen.setdefault(what, where)

    def lines(self) -> list[str]:
        """One message for each kind: `3 examples of FILE left out (first: FILE:7)`."""
        lines = []
        for what, count in self.counts.items():
            line = f"{count:,} {what} (first: {self.first_seen[what]})"
            lines.append(re.sub(r"^(1 \w+)s of ", r"\1 of ", line))
        return lines


class TaskData(NamedTuple):
    """All examples of a task. The score on the first evaluation set selects the best seed."""

    train: Examples
    evaluation: Mapping[str, Examples]  # by name: `dev`, or `matched` and `mismatched`
    test: Mapping[str, Examples]  # without labels, by the name of the submission file
    labels: tuple[str, ...]  # class names by id; empty for regression, spans and multiple choice
    report: Report
