"""Read a file or split of a task: unusable examples are counted and left out, or refused."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn
from unicodedata import normalize

from electra_albert.config.finetuning import DataConfig
from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files.streams import text_lines
from electra_albert.data_files.tables import Row, Table, open_table
from electra_albert.files import parse_json
from electra_albert.hub.formats import require_named
from electra_albert.tasks.task import Report, Task

_SHOWN_LABELS = 20
MAX_SHOWN = 100  # characters of a value in a message
_NO_WIDTH = dict.fromkeys((0xAD, 0x200B, 0x2060, 0xFEFF))  # soft hyphen, spaces without width
# Of a text: its tokens with their offsets take hundreds of bytes per character.
_MAX_CHARACTERS = 1 << 21


class Skipped(Exception):
    """Raised to leave an example out once it is counted."""


class RawExample(NamedTuple):
    """The unparsed cells of one example."""

    text: Any
    pair: Any
    label: Any
    identity: str
    location: str
    more: Sequence[Any] = ()  # columns that only this kind of task has


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
        if isinstance(self.source, Table):
            return self.source.location
        return str(self.source)

    @property
    def name(self) -> str:
        """The file or split, in reports."""
        if isinstance(self.source, Table):
            return self.source.location
        return self.source.name

    def table(self) -> Table:
        """The source as a table; new text without a header may lack the label column."""
        if isinstance(self.source, Table):
            return self.source
        columns = self.task.columns
        names = [name.strip() for name in (self.config.column_names or "").split(",") if name]
        named = [tuple(names)] if names else []
        if names and self.purpose == "test":
            named.append(tuple(name for name in names if name not in columns.label))
        return open_table(
            self.source,
            columns.text if self.task.kind == "sequence" else (),
            self.task.without_header,
            named=named,
            encoding=self.config.encoding,
            # Published scores on QQP, of which some cells are quoted, are those with the quotes.
            may_be_quoted=self.task.hub is None,
            note=self.report.note,
        )

    def lines(self, path: Path) -> list[str]:
        """The lines of a text file; DataError if all are blank."""
        lines = [line.removesuffix("\r") for line in text_lines(path, self.config.encoding)]
        if not any(map(str.strip, lines)):
            raise DataError(f"{path}: empty; give a file with text")
        return lines

    def skip(self, why: str, raw: RawExample | Row) -> NoReturn:
        """Count an example and raise Skipped; DataError in a test set, which is predicted whole."""
        if self.purpose == "test":
            raise DataError(
                f"{raw.location}: {why}; every example to predict must be complete: correct it"
            )
        ending = "NOT SCORED"
        if self.purpose == "train":
            ending = "left out of training"
        self.report.note(f"examples of {self.name} {ending}: {why}", raw.location)
        raise Skipped

    def text(self, value: object, column: str, raw: RawExample) -> str:
        """A cell as text. Examples with an empty one are counted, those of training left out."""
        text = as_text(value, raw.location, column)
        if text.strip():
            return text
        if self.purpose == "train":
            self.skip(f"the {column} is empty", raw)
        self.report.note(
            f"examples of {self.name} kept although the {column} is empty", raw.location
        )
        return text

    def check_label(self, label: str, raw: RawExample) -> None:
        """DataError for an unknown label; with --unknown_labels skip, Skipped in evaluation."""
        if not self.labels or label in self.labels:
            return
        problem = f"{raw.location}: label {label[:MAX_SHOWN]!r} is not one of"
        if self.task.labels:
            require_named(self.labels, f"{problem} the task's")
        else:
            problem += " those in the training data,"
        advice = "correct the file"
        if self.purpose == "evaluation":
            if self.config.unknown_labels == "skip":
                self.skip("a label missing from the training data", raw)
            advice += ", or leave such examples out with --unknown_labels skip"
        raise DataError(f"{problem} {quote_names(self.labels)}; {advice}")

    def reject_options(self, why: str, *names: str) -> None:
        """UsageError if one of these options is given and has no effect; never for new text."""
        for name in names:
            value = getattr(self.config, name)
            if value is not None and self.purpose != "test":
                raise UsageError(f"--{name} {value[:MAX_SHOWN]}: {self.location} {why}")

    def as_label(self, value: object, location: str) -> str | None:
        """A label as text; None if it is empty or a mark of the task for a missing label."""
        label = label_text(value, location)
        if label in ("", *self.task.no_label):
            return None
        return label

    def score(self, label: str, raw: RawExample) -> float:
        """The label of a regression; Skipped in training for one that is out of range."""
        lowest, highest = self.task.score_range or (-math.inf, math.inf)
        try:
            number = float(label)
        except ValueError as error:
            raise DataError(
                f"{raw.location}: label {label[:MAX_SHOWN]!r} is not a number; correct it, "
                "or leave the cell empty if there is no label"
            ) from error
        if math.isfinite(number) and lowest <= number <= highest:
            return number
        limits = "that is finite"
        if self.task.score_range:
            limits = f"from {lowest:g} to {highest:g}"
        if self.purpose != "train":
            raise DataError(
                f"{raw.location}: label {label} is not a number {limits}; correct it, "
                "or leave the cell empty if there is no label"
            )
        self.skip(f"the label is not a number {limits}", raw)

    def label_set(self, raw: RawExample) -> tuple[str, ...]:
        """The labels of a multi-label example, given as a list or separated by commas.

        Skipped if one is missing; an empty list or text means none.
        """
        cells = raw.label
        if cells is None or (isinstance(cells, list) and None in cells):
            self.skip("no label", raw)
        if not isinstance(cells, list):
            text = as_text(cells, raw.location, "label").strip()
            if text[:1] + text[-1:] == "[]":
                raise DataError(
                    f"{raw.location}: label {text[:MAX_SHOWN]!r} is a printed list; "
                    "write a .jsonl or .parquet file"
                )
            cells = text.split(",")
        labels = {label_text(cell, raw.location) for cell in cells} - {""}
        names = sorted(labels)
        for name in names:
            if "," in name:
                raise DataError(
                    f"{raw.location}: label {name[:MAX_SHOWN]!r} has a comma; give it another name"
                )
            self.check_label(name, raw)
        return tuple(names)

    def parse_json(self, path: Path) -> Any:
        """The content of a JSON file in the task's own format."""
        self.reject_options(
            "has the task's own format, without columns; drop the option",
            "text_column",
            "text_pair_column",
            "label_column",
            "column_names",
        )
        text = "\n".join(text_lines(path, self.config.encoding, max_bytes=-1))
        try:
            return parse_json(text)
        except ValueError as error:
            raise DataError(f"{path}: not JSON ({error}); correct the file") from error


def require_column(table: Table, names: Sequence[str], what: str, option: str) -> str | None:
    """The first of `names` that is a column, None without names; DataError if none of them is."""
    column = table.find(names)
    if names and column is None:
        hint = ""
        if not table.names_columns:
            hint = "; for a file without a header name all columns with --column_names"
        raise DataError(
            f"{table.location}: no column {' or '.join(map(repr, names))} for {what}; "
            f"it has {quote_names(table.columns)}: choose one with {option}{hint}"
        )
    if table.columns.count(column) > 1:
        raise DataError(f"{table.location}: column {column!r} appears twice; rename one")
    return column


def quote_names(names: Sequence[str]) -> str:
    """Names in quotes for a message, with an ellipsis after the first ones."""
    if not names:
        return "none"
    first = [repr(name[:MAX_SHOWN]) for name in names[:_SHOWN_LABELS]]
    if len(names) > _SHOWN_LABELS:
        first.append("…")
    return ", ".join(first)


def as_text(value: object, location: str, column: str) -> str:
    """A cell as text: null and NaN as "", other numbers and booleans as in JSON; else DataError."""
    if isinstance(value, str):
        if len(value) > _MAX_CHARACTERS:
            raise DataError(
                f"{location}: {column!r} has over {_MAX_CHARACTERS:,} characters; shorten it"
            )
        if not value.isascii() and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise DataError(f"{location}: {column!r} holds an unpaired surrogate; correct the file")
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float):  # or a boolean
        return json.dumps(value)
    raise DataError(
        f"{location}: {column!r} holds {type(value).__name__}, not text; correct the file"
    )


def is_set(value: object, column: str, location: str) -> bool | None:
    """Whether a cell of a column of 0 and 1 is 1, None if it is empty; DataError for others."""
    text = as_text(value, location, column).strip().lower()
    if text in ("1", "1.0", "true"):
        return True
    if text in ("0", "0.0", "false"):
        return False
    if not text:
        return None
    raise DataError(
        f"{location}: {column!r} holds {text[:MAX_SHOWN]!r}, neither 0 nor 1; correct the file"
    )


def label_text(value: object, location: str) -> str:
    """A label or tag with composed letters, without outer blanks or characters of no width."""
    label = as_text(value, location, "label").translate(_NO_WIDTH)
    return normalize("NFC", label.strip())


def member(record: Any, key: str, kind: Any, location: str) -> Any:
    """The value of a key of a JSON object; DataError if it is missing or has another type."""
    if not isinstance(record, dict) or not isinstance(record.get(key), kind):
        raise DataError(f"{location}: no valid {key!r}; check that this is a file of the task")
    return record[key]
