"""What is known of a task: the names of its files and columns, its labels, how it is scored and handed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["sequence", "choice", "span", "token"]
Patterns = tuple[str, ...]  # names of a file, the best first; a * stands for any text

TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Names that the columns of a table may have, the official one first."""

    text: tuple[str, ...]
    pair: tuple[str, ...] = ()  # empty: one text
    label: tuple[str, ...] = ("label",)
    identity: tuple[str, ...] = ("index", "idx", "id")
    without_header: tuple[str, ...] = ()  # all columns by position, for files that have no header


@dataclass(frozen=True)
class Files:
    """What the files of a task are called; evaluation and test sets by the names of the sets."""

    folders: tuple[str, ...]  # the official name of the task's folder first
    train: Patterns
    evaluation: Mapping[str, Patterns]
    test: Mapping[str, Patterns]


@dataclass(frozen=True)
class Hub:
    """Where the task lies on the hub, and the splits that hold its sets."""

    dataset: str
    config: str | None = None
    evaluation: Mapping[str, str] = field(default_factory=lambda: {"dev": "validation"})
    test: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})


@dataclass(frozen=True)
class Task:
    """A task. `main` is the metric that ELECTRA reports, `metrics` are the official ones."""

    name: str
    kind: Kind
    metrics: tuple[str, ...]
    main: str
    columns: Columns
    files: Files
    hub: Hub | None = None
    labels: tuple[str, ...] = ()  # in the order of their numbers; empty: found in the training data, or none
    no_label: tuple[str, ...] = ("-", "-1")  # what stands for a label that is missing, besides nothing
    label_aliases: Mapping[str, str] = field(default_factory=dict)  # as the hub spells them
    is_regression: bool = False
    is_symmetric: bool = False  # the two texts of a pair may change places
    score_range: tuple[float, float] | None = None
    has_null_answer: bool = False
    tag_column: int = -1  # of CoNLL files
    trained_by: str | None = None  # the task whose model scores this one, which has no training data
    submission: Mapping[str, str] = field(default_factory=dict)  # file to hand in for each test set

    @property
    def folder(self) -> str:
        """The official name of the task's folder."""
        return self.files.folders[0]

    @property
    def takes_pairs(self) -> bool:
        return bool(self.columns.pair)
