"""What a task's files hold once they are read, and what was noticed on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class SequenceExample(NamedTuple):
    """A text, or two, with one label."""

    text: str
    text_pair: str | None
    label: str | float | None  # a number where the task is a regression; None where there is none
    identity: str  # the row's own index, or else its number, from 0


class ChoiceExample(NamedTuple):
    """A passage, a question on it, and the options one of which answers it."""

    context: str
    question: str  # may hold a gap, `_`, that the option fills
    options: tuple[str, ...]
    label: int | None
    identity: str
    group: str  # such as `middle` or `high`; scored apart as well


class Answer(NamedTuple):
    """An answer as it stands in the passage."""

    text: str
    start: int  # in characters


class SpanExample(NamedTuple):
    """A passage and a question that is answered by a stretch of it, or by nothing."""

    context: str
    question: str
    answers: tuple[Answer, ...] | None  # all that count as right; empty: no answer; None: not told
    identity: str


class TokenExample(NamedTuple):
    """The words of a sentence, each with its tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    identity: str


Example = SequenceExample | ChoiceExample | SpanExample | TokenExample


@dataclass
class Report:
    """Counts what was left out, changed or odd, and remembers where each was first seen."""

    counts: Counter[str] = field(default_factory=Counter)
    first_seen: dict[str, str] = field(default_factory=dict)
    first_cut: str | None = None  # the first example that lost tokens

    def note(self, what: str, where: str, count: int = 1) -> None:
        """Count something; `what` completes the sentence `N …`, such as `rows left out: no label`."""
        self.counts[what] += count
        self.first_seen.setdefault(what, where)

    def note_cut(self, what: str, where: str, count: int = 1) -> None:
        """The same, where tokens of an example are not read."""
        self.first_cut = self.first_cut or where
        self.note(what, where, count)

    def lines(self) -> list[str]:
        """One sentence for each thing noticed."""
        return [f"{count:,} {what} (first: {self.first_seen[what]})" for what, count in self.counts.items()]


class TaskData(NamedTuple):
    """All examples of a task. The first of the evaluation sets is the one that decides."""

    train: Sequence[Any]
    evaluation: Mapping[str, Sequence[Any]]  # by name: `dev`, or `matched` and `mismatched`
    test: Mapping[str, Sequence[Any]]  # without labels, by the name of the file handed in
    labels: tuple[str, ...]  # names of the classes in the order of their numbers; empty for numbers and spans
    report: Report
