"""What happens to a row that cannot be used: it depends on what it is read for, and is never silent."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.data_files import encoding_hint
from electra_albert.finetuning_config import DataConfig
from electra_albert.hub.config import are_unnamed, name_the_labels
from electra_albert.tasks.examples import Report
from electra_albert.tasks.task import Task

Purpose = Literal["train", "evaluation", "test"]
COLUMN_OPTIONS = ("text_column", "text_pair_column", "label_column", "column_names")
_SHOWN_LABELS = 20
_SHOWN_CHARACTERS = 100


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

    def leave_out(self, why: str, place: str) -> None:
        """Count an example that is not used. Raises DataError for a test set, where each row needs a prediction."""
        if self.purpose == "test":
            raise DataError(f"{place}: {why}; every row of a file to predict needs to be whole: mend it")
        ending = "left out of training" if self.purpose == "train" else "NOT SCORED"
        self.report.note(f"rows of {self.name} {ending}: {why}", place)

    def keeps(self, empty: str, place: str) -> bool:
        """Whether an example in which a text is empty is used: always but in training. Counted either way."""
        if self.purpose == "train":
            self.leave_out(f"{empty} is empty", place)
            return False
        self.report.note(f"rows of {self.name} kept although {empty} is empty", place)
        return True

    def refuse_options(self, names: Iterable[str], place: str, why: str) -> None:
        """Raise UsageError where one of these options is given, though what is read with labels has no use for it.

        A file of new text may have another form than the one trained on, so there they are let be.
        """
        for name in names:
            value = getattr(self.config, name)
            if value is not None and self.purpose != "test":
                raise UsageError(f"--{name} {value}: {place} {why}")

    def knows_label(self, label: str, place: str) -> bool:
        """Whether the label is one of those known; a row to score with another may be skipped, which is counted.

        Raises DataError for any other unknown label, CheckpointError where the model does not name its labels.
        """
        if self.labels and label not in self.labels:
            if self.task.labels and are_unnamed(self.labels):
                found = f"{place}: label {label[:_SHOWN_CHARACTERS]!r} is none of the model's"
                raise CheckpointError(f"{found}: {name_the_labels(self.labels)}")
            if self.purpose == "evaluation" and self.config.unknown_labels == "skip":
                self.leave_out("a label that the training data lack", place)
                return False
            known = "one of" if self.task.labels else "in the training data, which has"
            raise DataError(
                f"{place}: label {label[:_SHOWN_CHARACTERS]!r} is not {known} {shown(self.labels)}; mend the file"
                + (", or leave such rows out by --unknown_labels skip" if self.purpose == "evaluation" else "")
            )
        return True


def shown(names: Iterable[str]) -> str:
    """Names for a message: the first of them, and that there are more."""
    names = list(names)
    return (
        ", ".join(repr(name[:_SHOWN_CHARACTERS]) for name in names[:_SHOWN_LABELS])
        + (", …" if len(names) > _SHOWN_LABELS else "")
        or "none"
    )


def near(name: str, others: Sequence[str]) -> str:
    """` (did you mean …?)` where one of the others looks like the name."""
    lower = {other.lower(): other for other in others}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.7)
    return f" (did you mean {lower[found[0]]!r}?)" if found else ""


def as_text(value: object, place: str, column: str) -> str:
    """A cell as text: nothing as empty, as is a number that is none; others, and truth values, as in JSON.

    Raises DataError for what is neither text nor number.
    """
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


def as_label(value: object, place: str, column: str, no_label: Collection[str]) -> str | None:
    """A label as text; None where there is none: nothing, or one of the signs in `no_label`."""
    label = as_text(value, place, column).strip()
    return None if label == "" or label in no_label else label


def is_there(path: Path, option: str) -> bool:
    """Whether there is such a file or folder. Raises UsageError for a path that cannot be looked up."""
    try:
        return path.exists()
    except OSError as error:
        raise UsageError(f"--{option} {str(path)[:_SHOWN_CHARACTERS]}: {error.strerror}; check the path") from error


def text_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a file without their ends (a line feed alone) and the byte order mark, one held at a time.

    Raises DataError naming the line that is not so encoded.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                line = raw.decode(encoding).removesuffix("\n")
                yield line.removeprefix("\ufeff") if number == 1 else line
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise _not_encoded(path, number, encoding, error) from error


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A file as text without its byte order mark. Raises DataError naming the line that is not so encoded."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        return raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise _not_encoded(path, raw.count(b"\n", 0, error.start) + 1, encoding, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read ({error.strerror}); check the path and who may read it")


def _not_encoded(path: Path, line: int, encoding: str, error: UnicodeDecodeError) -> DataError:
    way_out = encoding_hint(error.object) if encoding == "utf-8" else "choose another --encoding"
    return DataError(f"{path}:{line}: bytes that are not {encoding.upper()}; {way_out}")


def parse_json(text: str, place: str) -> Any:
    """What a JSON text holds. Raises DataError where it is none, too deep, or holds a number without end."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, line {error.lineno} column {error.colno}"
        raise DataError(f"{place}: not JSON ({reason}); mend the file") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: JSON that is too deep, or with too long a number; mend the file") from error
