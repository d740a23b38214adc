"""Rules for reading a task: by its purpose, an unusable row is left out, refused or kept, and never in silence."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.data_files.streams import text_lines
from electra_albert.data_files.tables import Table, open_table
from electra_albert.finetuning_config import DataConfig
from electra_albert.hub.config import are_unnamed, name_the_labels
from electra_albert.tasks.task import Report, Task

Purpose = Literal["train", "evaluation", "test"]
_COLUMN_OPTIONS = ("text_column", "text_pair_column", "label_column", "column_names")
_SHOWN_LABELS = 20
SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class Reading:
    """One file being read: for which task and purpose, and with which labels if they are known."""

    task: Task
    config: DataConfig
    purpose: Purpose
    report: Report
    name: str  # of the file or split, in what is reported
    labels: tuple[str, ...] = ()  # empty: any

    @property
    def column_names(self) -> tuple[tuple[str, ...], ...]:
        """The columns that a file without a header may have, as the options name them: new text may lack the label."""
        names = tuple(map(str.strip, (self.config.column_names or "").split(",")))
        unlabelled = tuple(name for name in names if name not in self.task.columns.label)
        if names == ("",):
            return ()
        return (names, unlabelled) if self.purpose == "test" else (names,)

    def open_table(self, path: Path) -> Table:
        columns = self.task.columns
        header, without_header = (columns.text, columns.without_header) if self.task.kind == "sequence" else ((), ())
        encoding, note = self.config.encoding, self.report.note
        return open_table(path, header, without_header, named=self.column_names, encoding=encoding, note=note)

    def leave_out(self, why: str, place: str) -> None:
        """Count an example that is not used. Raises DataError for a test set, where each row needs a prediction."""
        if self.purpose == "test":
            raise DataError(f"{place}: {why}; every row of a file to predict needs to be whole: mend it")
        ending = "left out of training" if self.purpose == "train" else "NOT SCORED"
        self.report.note(f"rows of {self.name} {ending}: {why}", place)

    def keeps(self, text: str, what: str, place: str) -> bool:
        """Whether an example with this text is used: an empty one only outside of training, and counted either way."""
        if text.strip():
            return True
        if self.purpose == "train":
            self.leave_out(f"{what} is empty", place)
            return False
        self.report.note(f"rows of {self.name} kept although {what} is empty", place)
        return True

    def refuse_options(self, names: Iterable[str], place: str, why: str) -> None:
        """Raise UsageError where one of these options is given without effect; of new text none is refused."""
        for name in names:
            value = getattr(self.config, name)
            if value is not None and self.purpose != "test":
                raise UsageError(f"--{name} {value[:SHOWN_CHARACTERS]}: {place} {why}")

    def knows_label(self, label: str, place: str) -> bool:
        """Whether a row's label is known; a row to score may be skipped for it if asked, else an unknown one raises."""
        if not self.labels or label in self.labels:
            return True
        found = f"{place}: label {label[:SHOWN_CHARACTERS]!r} is none of"
        if self.task.labels and are_unnamed(self.labels):
            raise CheckpointError(f"{found} the model's: {name_the_labels(self.labels)}")
        if self.purpose == "evaluation" and self.config.unknown_labels == "skip":
            self.leave_out("a label that the training data lack", place)
            return False
        known = "" if self.task.labels else "those in the training data, "
        skip = ", or leave such rows out by --unknown_labels skip" if self.purpose == "evaluation" else ""
        raise DataError(f"{found} {known}{shown(self.labels)}; mend the file{skip}")


class Item(NamedTuple):
    """The cells of one example by the columns of the task, and of the columns that its kind has besides."""

    text: Any
    pair: Any
    label: Any
    identity: str
    others: Sequence[Any]
    place: str


def require_column(table: Table, names: Sequence[str], what: str, option: str) -> str | None:
    """The first of the names that is a column, or DataError that lists the columns there are; None without names."""
    if not names:
        return None
    found = table.find(names)
    if found is None:
        lower = {column.lower(): column for column in table.columns}
        near = difflib.get_close_matches(names[0].lower(), lower, n=1, cutoff=0.7)
        guess = f" (did you mean {lower[near[0]]!r}?)" if near else ""
        hint = "" if table.names_columns else "; of a file without a header name all columns by --column_names"
        wanted = f"{table.place}: no column {' or '.join(map(repr, names))} for {what}{guess}"
        raise DataError(f"{wanted}; it has {shown(table.columns)}: choose one by {option}{hint}")
    if table.columns.count(found) > 1:
        raise DataError(f"{table.place}: column {found!r} is there twice; rename one")
    return found


def shown(names: Iterable[str]) -> str:
    """Names for a message: the first of them, and whether there are more."""
    names = list(names)
    first = ", ".join(repr(name[:SHOWN_CHARACTERS]) for name in names[:_SHOWN_LABELS])
    return first + (", …" if len(names) > _SHOWN_LABELS else "") or "none"


def as_text(value: object, place: str, column: str) -> str:
    """A cell as text: null and NaN as empty, other numbers and truth values as in JSON; DataError for anything else."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise DataError(f"{place}: {column!r} holds half of a surrogate pair, which is no character; mend the file")
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise DataError(f"{place}: {column!r} holds {type(value).__name__}, not text; mend the file")


def as_label(value: object, place: str, no_label: Collection[str]) -> str | None:
    """A label as text; None where there is none: nothing, or one of the signs in `no_label`."""
    label = as_text(value, place, "label").strip()
    return None if label == "" or label in no_label else label


def parse_json(path: Path, reading: Reading) -> Any:
    reading.refuse_options(_COLUMN_OPTIONS, str(path), "has a form of its own, without columns; leave it out")
    text = "\n".join(text_lines(path, reading.config.encoding))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter where it is too deep
        raise DataError(f"{path}: not JSON ({error}); mend the file") from error


def member(found: Any, key: str, kind: Any, place: str) -> Any:
    """The value of a key of an object. Raises DataError where it is not there or of another type."""
    if not isinstance(found, dict) or not isinstance(found.get(key), kind):
        raise DataError(f"{place}: no {key!r} as in a file of this task; check that this is the right file")
    return found[key]
