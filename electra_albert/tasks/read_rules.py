"""Rules for reading a task: by its purpose, an unusable row is left out, refused or kept, and never in silence."""

import difflib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files.streams import text_lines
from electra_albert.data_files.tables import Table, open_table
from electra_albert.finetuning_config import DataConfig
from electra_albert.hub.formats import require_named
from electra_albert.tasks.task import Report, Task

_SHOWN_LABELS = 20
SHOWN_CHARACTERS = 100


class LeftOut(Exception):
    """A row that is not used, and counted."""


@dataclass(frozen=True)
class Reading:
    """One set being read: for which task and purpose, and with which labels if they are known."""

    task: Task
    config: DataConfig
    purpose: Literal["train", "evaluation", "test"]
    report: Report
    source: Path | Table
    labels: tuple[str, ...] = ()  # empty: any

    @property
    def place(self) -> str:
        """The file or split, as errors name it."""
        return self.source.location if isinstance(self.source, Table) else str(self.source)

    @property
    def name(self) -> str:
        """The file or split, as the report names it."""
        return self.source.location if isinstance(self.source, Table) else self.source.name

    def table(self) -> Table:
        """The set as a table; of new text the label may be missing in a file without a header."""
        if isinstance(self.source, Table):
            return self.source
        columns = self.task.columns
        names = [name.strip() for name in (self.config.column_names or "").split(",") if name]
        named = [tuple(names)] if names else []
        if names and self.purpose == "test":
            named.append(tuple(name for name in names if name not in columns.label))
        form = columns.text if self.task.kind == "sequence" else (), self.task.without_header
        return open_table(self.source, *form, named=named, encoding=self.config.encoding, note=self.report.note)

    def leave_out(self, why: str, place: str) -> NoReturn:
        """Count an example and raise LeftOut; of a test set, where each row needs a prediction, raise DataError."""
        if self.purpose == "test":
            raise DataError(f"{place}: {why}; every row of a file to predict needs to be whole: mend it")
        ending = "left out of training" if self.purpose == "train" else "NOT SCORED"
        self.report.note(f"rows of {self.name} {ending}: {why}", place)
        raise LeftOut

    def text(self, value: object, column: str, place: str) -> str:
        """A cell as text. Where it is empty, a training example is left out and another kept; both are counted."""
        text = as_text(value, place, column)
        if not text.strip() and self.purpose == "train":
            self.leave_out(f"the {column} is empty", place)
        elif not text.strip():
            self.report.note(f"rows of {self.name} kept although the {column} is empty", place)
        return text

    def check_label(self, label: str, place: str) -> None:
        """Raise DataError for a label that is not known; if asked, leave out a row to score for it."""
        if not self.labels or label in self.labels:
            return
        found = f"{place}: label {label[:SHOWN_CHARACTERS]!r} is none of"
        if self.task.labels:
            require_named(self.labels, f"{found} the model's")
        if self.purpose == "evaluation" and self.config.unknown_labels == "skip":
            self.leave_out("a label that the training data lack", place)
        known = "" if self.task.labels else "those in the training data, "
        skip = ", or leave such rows out by --unknown_labels skip" if self.purpose == "evaluation" else ""
        raise DataError(f"{found} {known}{shown(self.labels)}; mend the file{skip}")

    def refuse_options(self, place: str, why: str, *names: str) -> None:
        """Raise UsageError where one of these options is given without effect; of new text none is refused."""
        for name in names:
            value = getattr(self.config, name)
            if value is not None and self.purpose != "test":
                raise UsageError(f"--{name} {value[:SHOWN_CHARACTERS]}: {place} {why}")

    def as_label(self, value: object, place: str) -> str | None:
        """A label as text; None where there is none: nothing, or one of the task's signs for it."""
        label = as_text(value, place, "label").strip()
        return None if label in ("", *self.task.no_label) else label

    def parse_json(self, path: Path) -> Any:
        """The content of a file in the task's own form of JSON."""
        options = ("text_column", "text_pair_column", "label_column", "column_names")
        self.refuse_options(str(path), "has a form of its own, without columns; leave it out", *options)
        text = "\n".join(text_lines(path, self.config.encoding))
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:  # the latter where it is too deep
            raise DataError(f"{path}: not JSON ({error}); mend the file") from error


class Item(NamedTuple):
    """The cells of one example by the columns of the task, and of the columns that only its kind has."""

    text: Any
    pair: Any
    label: Any
    identity: str
    place: str
    others: Sequence[Any] = ()


def require_column(table: Table, names: Sequence[str], what: str, option: str) -> str | None:
    """The first of the names that is a column, or DataError that lists the columns there are; None without names."""
    found = table.find(names)
    if names and found is None:
        lower = {column.lower(): column for column in table.columns}
        near = difflib.get_close_matches(names[0].lower(), lower, n=1, cutoff=0.7)
        guess = f" (did you mean {lower[near[0]]!r}?)" if near else ""
        hint = "" if table.names_columns else "; of a file without a header name all columns by --column_names"
        wanted = f"{table.location}: no column {' or '.join(map(repr, names))} for {what}{guess}"
        raise DataError(f"{wanted}; it has {shown(table.columns)}: choose one by {option}{hint}")
    if table.columns.count(found) > 1:
        raise DataError(f"{table.location}: column {found!r} is there twice; rename one")
    return found


def shown(names: Sequence[str]) -> str:
    """Names for a message: the first of them, and whether there are more."""
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
    if isinstance(value, bool | int | float):
        return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
    raise DataError(f"{place}: {column!r} holds {type(value).__name__}, not text; mend the file")


def member(found: Any, key: str, kind: Any, place: str) -> Any:
    """The value of a key of an object. Raises DataError where it is not there or of another type."""
    if not isinstance(found, dict) or not isinstance(found.get(key), kind):
        raise DataError(f"{place}: no {key!r} as in a file of this task; check that this is the right file")
    return found[key]
