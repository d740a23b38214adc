"""What happens to a row that cannot be used: it depends on what it is read for, and is never silent."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from electra_albert.contracts import DataError
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.examples import Report
from electra_albert.tasks.task import Task

Purpose = Literal["train", "evaluation", "test"]
_NO_LABEL = frozenset(("", "-", "-1"))
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

    def check_label(self, label: str, place: str) -> None:
        """Raise DataError unless the label is one of those known."""
        if self.labels and label not in self.labels:
            known = "one of" if self.task.labels else "in the training data, which has"
            raise DataError(
                f"{place}: label {label[:_SHOWN_CHARACTERS]!r} is not {known} {shown(self.labels)}; mend the file"
            )


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
    """A cell as text: nothing as empty, numbers and truth values as in JSON. Raises DataError for others."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise DataError(f"{place}: {column!r} holds half of a surrogate pair, which is no character; mend the file")
        return value
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise DataError(f"{place}: {column!r} holds {type(value).__name__}, not text; mend the file")


def as_label(value: object, place: str, column: str) -> str | None:
    """A label as text; None where there is none: nothing, `-`, -1, or a number that is none."""
    if isinstance(value, float) and math.isnan(value):
        return None
    label = as_text(value, place, column).strip()
    return None if label in _NO_LABEL else label


def read_text(path: Path) -> str:
    """A file as text without its byte order mark. Raises DataError naming the line that is not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and who may read it") from error
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: bytes that are not UTF-8; save the file as UTF-8") from error


def parse_json(text: str, place: str) -> Any:
    """What a JSON text holds. Raises DataError where it is none, too deep, or holds a number without end."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, line {error.lineno} column {error.colno}"
        raise DataError(f"{place}: not JSON ({reason}); mend the file") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: JSON that is too deep, or with too long a number; mend the file") from error
