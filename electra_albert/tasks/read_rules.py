"""Reading one file or split of a task: unusable examples are left out, rejected or kept, and always counted."""

import difflib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn
from unicodedata import normalize

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files.streams import text_lines
from electra_albert.data_files.tables import Table, open_table
from electra_albert.files import parse_json
from electra_albert.finetuning_config import DataConfig
from electra_albert.hub.formats import require_named
from electra_albert.tasks.task import Report, Task

_SHOWN_LABELS = 20
MAX_SHOWN = 100  # characters of a value in a message
_NO_WIDTH = dict.fromkeys((0xAD, 0x200B, 0x2060, 0xFEFF))  # soft hyphen, spaces without width
_MAX_CHARACTERS = 1 << 21  # of a text: its tokens with their offsets take hundreds of bytes per character


class Skipped(Exception):
    """Raised to leave an example out once it is counted."""


@dataclass(frozen=True)
class SplitReader:
    """A file or split that is read for a task and a purpose."""

    task: Task
    config: DataConfig
    purpose: Literal["train", "evaluation", "test"]
    report: Report
    source: Path | Table
    labels: tuple[str, ...] = ()  # the known ones; empty: any

    @property
    def location(self) -> str:
        """The file or split, in errors."""
        return self.source.location if isinstance(self.source, Table) else str(self.source)

    @property
    def name(self) -> str:
        """The file or split, in reports."""
        return self.source.location if isinstance(self.source, Table) else self.source.name

    def table(self) -> Table:
        """The source as a table; new text without a header may lack the label column."""
        if isinstance(self.source, Table):
            return self.source
        columns = self.task.columns
        names = [name.strip() for name in (self.config.column_names or "").split(",") if name]
        named = [tuple(names)] if names else []
        if names and self.purpose == "test":
            named.append(tuple(name for name in names if name not in columns.label))
        form = columns.text if self.task.kind == "sequence" else (), self.task.without_header
        options: dict[str, Any] = {"named": named, "encoding": self.config.encoding, "note": self.report.note}
        # Published scores on QQP, of which some cells are quoted, are those with the quotes.
        return open_table(self.source, *form, may_be_quoted=self.task.hub is None, **options)

    def skip(self, why: str, location: str) -> NoReturn:
        """Count an example and raise Skipped; DataError in a test set, where each example needs a prediction."""
        if self.purpose == "test":
            raise DataError(f"{location}: {why}; every example to predict must be complete: correct it")
        ending = "left out of training" if self.purpose == "train" else "NOT SCORED"
        self.report.note(f"examples of {self.name} {ending}: {why}", location)
        raise Skipped

    def text(self, value: object, column: str, location: str) -> str:
        """A cell as text. If it is empty, training examples are left out and others kept; both are counted."""
        text = as_text(value, location, column)
        if not text.strip() and self.purpose == "train":
            self.skip(f"the {column} is empty", location)
        elif not text.strip():
            self.report.note(f"examples of {self.name} kept although the {column} is empty", location)
        return text

    def check_label(self, label: str, location: str) -> None:
        """Raise DataError for an unknown label; with --unknown_labels skip, leave the evaluation example out."""
        if not self.labels or label in self.labels:
            return
        found = f"{location}: label {label[:MAX_SHOWN]!r} is not one of"
        if self.task.labels:
            require_named(self.labels, f"{found} the model's")
        if self.purpose == "evaluation" and self.config.unknown_labels == "skip":
            self.skip("a label missing from the training data", location)
        known = "" if self.task.labels else "those in the training data, "
        skip = ", or leave such examples out with --unknown_labels skip" if self.purpose == "evaluation" else ""
        raise DataError(f"{found} {known}{quote_names(self.labels)}; correct the file{skip}")

    def reject_options(self, location: str, why: str, *names: str) -> None:
        """Raise UsageError if one of these options is given and has no effect; never for new text."""
        for name in names:
            if (value := getattr(self.config, name)) is not None and self.purpose != "test":
                raise UsageError(f"--{name} {value[:MAX_SHOWN]}: {location} {why}")

    def as_label(self, value: object, location: str) -> str | None:
        """A label as text; None if it is empty or one of the task's marks for a missing label."""
        label = label_text(value, location)
        return None if label in ("", *self.task.no_label) else label

    def parse_json(self, path: Path) -> Any:
        """The content of a JSON file in the task's own format."""
        options = ("text_column", "text_pair_column", "label_column", "column_names")
        self.reject_options(str(path), "has the task's own format, without columns; drop the option", *options)
        text = "\n".join(text_lines(path, self.config.encoding, max_bytes=-1))
        try:
            return parse_json(text)
        except ValueError as error:
            raise DataError(f"{path}: not JSON ({error}); correct the file") from error


class RawExample(NamedTuple):
    """The unparsed cells of one example."""

    text: Any
    pair: Any
    label: Any
    identity: str
    location: str
    others: Sequence[Any] = ()  # columns that only this kind of task has


def require_column(table: Table, names: Sequence[str], what: str, option: str) -> str | None:
    """The first of `names` that is a column, None without names; DataError with the columns if none of them is."""
    found = table.find(names)
    if names and found is None:
        lower = {column.lower(): column for column in table.columns}
        near = difflib.get_close_matches(names[0].lower(), lower, n=1, cutoff=0.7)
        match = f" (did you mean {lower[near[0]]!r}?)" if near else ""
        hint = "" if table.names_columns else "; for a file without a header name all columns with --column_names"
        wanted = f"{table.location}: no column {' or '.join(map(repr, names))} for {what}{match}"
        raise DataError(f"{wanted}; it has {quote_names(table.columns)}: choose one with {option}{hint}")
    if table.columns.count(found) > 1:
        raise DataError(f"{table.location}: column {found!r} appears twice; rename one")
    return found


def quote_names(names: Sequence[str]) -> str:
    """Names in quotes for a message, with an ellipsis after the first ones."""
    first = ", ".join(repr(name[:MAX_SHOWN]) for name in names[:_SHOWN_LABELS])
    return first + (", …" if len(names) > _SHOWN_LABELS else "") or "none"


def as_text(value: object, location: str, column: str) -> str:
    """A cell as text: null and NaN as "", other numbers and booleans as in JSON; DataError for anything else."""
    if isinstance(value, str):
        if len(value) > _MAX_CHARACTERS:
            raise DataError(f"{location}: {column!r} has over {_MAX_CHARACTERS:,} characters; shorten it")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise DataError(f"{location}: {column!r} holds an unpaired surrogate; correct the file")
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
    raise DataError(f"{location}: {column!r} holds {type(value).__name__}, not text; correct the file")


def label_text(value: object, location: str) -> str:
    """A label or tag as text, with composed letters and without blanks around it or characters of no width."""
    return normalize("NFC", as_text(value, location, "label").translate(_NO_WIDTH).strip())


def member(found: Any, key: str, kind: Any, location: str) -> Any:
    """The value of a key of a JSON object; DataError if it is missing or has another type."""
    if not isinstance(found, dict) or not isinstance(found.get(key), kind):
        raise DataError(f"{location}: no valid {key!r}; check that this is a file of the task")
    return found[key]
