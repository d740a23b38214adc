"""A fine-tuning task as data, its examples, and the report on how they were read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Patterns = tuple[str, ...]  # names of a file, the best first; a * matches any text
TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Names that the columns of a table may have, the official one first."""

    text: tuple[str, ...]
    pair: tuple[str, ...] = ()  # empty: one text
    label: tuple[str, ...] = ("label",)
    identity: tuple[str, ...] = ("index", "idx", "id")


@dataclass(frozen=True)
class Files:
    """File names of a task; evaluation and test sets by the names of the sets."""

    folders: tuple[str, ...]  # the official name of the task's folder first
    train: Patterns
    evaluation: Mapping[str, Patterns]
    test: Mapping[str, Patterns]


@dataclass(frozen=True)
class Hub:
    """The task's dataset on the hub, and the splits that hold its sets."""

    dataset: str
    config: str | None = None
    evaluation: Mapping[str, str] = field(default_factory=lambda: {"dev": "validation"})
    test: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})


@dataclass(frozen=True)
class Task:
    """A task. `main` is the metric that ELECTRA reports, `metrics` are the official ones."""

    name: str
    kind: Literal["sequence", "choice", "span", "token"]
    metrics: tuple[str, ...]
    main: str
    columns: Columns
    files: Files
    hub: Hub | None = None
    without_header: tuple[str, ...] = ()  # all columns by position, for files that have no header
    labels: tuple[str, ...] = ()  # in the order of their numbers; empty: found in the training data, or none
    no_label: tuple[str, ...] = ("-", "-1")  # values that mean a missing label, besides nothing
    label_aliases: Mapping[str, str] = field(default_factory=dict)  # as the hub spells them
    is_regression: bool = False
    is_symmetric: bool = False  # the two texts of a pair may change places
    score_range: tuple[float, float] | None = None
    has_null_answer: bool = False
    tag_column: int = -1  # of CoNLL files
    trained_by: str | None = None  # the task whose model scores this one, which has no training data
    submission: str | None = None  # file of the predictions of the test set; by default it has the name of the set

    @property
    def takes_pairs(self) -> bool:
        return bool(self.columns.pair)


class SequenceExample(NamedTuple):
    """A text, or two, with one label."""

    text: str
    text_pair: str | None
    label: str | float | None  # a number of a regression; None: unlabelled
    identity: str  # the example's own index, or else its number, from 0


class ChoiceExample(NamedTuple):
    """A passage, a question on it, and the options one of which answers it."""

    context: str
    question: str  # may hold a gap, `_`, that the option fills
    options: tuple[str, ...]
    label: int | None
    identity: str
    group: str  # such as `middle` or `high`; scored apart as well


class Answer(NamedTuple):
    """An answer as it is in the passage."""

    text: str
    start: int  # in characters


class SpanExample(NamedTuple):
    """A passage and a question that is answered by a span of it, or by nothing."""

    context: str
    question: str
    answers: tuple[Answer, ...] | None  # all that count as right; empty: no answer; None: unlabelled
    identity: str


class TokenExample(NamedTuple):
    """The words of a sentence, each with its tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    identity: str


@dataclass
class Report:
    """Counts of what was left out, changed or odd, and where each was first seen."""

    counts: Counter[str] = field(default_factory=Counter)
    first_seen: dict[str, str] = field(default_factory=dict)
    first_cut: str | None = None  # the first example that lost tokens

    def note(self, what: str, where: str, count: int = 1, *, is_cut: bool = False) -> None:
        """Count something; `what` completes the sentence `N …`. is_cut: some tokens of these examples are not read."""
        self.counts[what] += count
        self.first_seen.setdefault(what, where)
        self.first_cut = self.first_cut or (where if is_cut else None)

    def lines(self) -> list[str]:
        """One sentence for each thing noted."""
        return [f"{count:,} {what} (first: {self.first_seen[what]})" for what, count in self.counts.items()]


class TaskData(NamedTuple):
    """All examples of a task. The first of the evaluation sets is the one that decides."""

    train: Sequence[Any]
    evaluation: Mapping[str, Sequence[Any]]  # by name: `dev`, or `matched` and `mismatched`
    test: Mapping[str, Sequence[Any]]  # without labels, by the name of the submission file
    labels: tuple[str, ...]  # names of the classes in the order of their numbers; empty for numbers and spans
    report: Report
