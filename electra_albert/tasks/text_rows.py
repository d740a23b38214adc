"""Texts and pairs of texts with a label, from the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from electra_albert.contracts import DataError
from electra_albert.tasks.read_rules import Reading, as_label, as_text, text_lines
from electra_albert.tasks.tables import Table, open_table
from electra_albert.tasks.task import SequenceExample

_MOST_LABELS = 100  # of a task whose labels are found


def read_texts(path: Path, reading: Reading) -> list[SequenceExample]:
    """The examples of a file; of a .txt file each line is a text."""
    if path.suffix.lower() == ".txt" and reading.purpose == "test" and not reading.task.takes_pairs:
        texts = [line.removesuffix("\r") for line in text_lines(path, reading.config.encoding)]
        if not any(map(str.strip, texts)):
            raise DataError(f"{path}: holds nothing to predict; give a file with a text in each line")
        for number, text in enumerate(texts, start=1):
            _is_kept(text, None, f"{path}:{number}", reading)
        return [SequenceExample(text, None, None, str(i)) for i, text in enumerate(texts)]
    columns = reading.task.columns
    return text_rows(open_table(path, columns.text, columns.without_header, reading), reading)


def text_rows(table: Table, reading: Reading) -> list[SequenceExample]:
    """The examples of a table. Raises DataError where columns are missing or a label is none of the task's."""
    columns = reading.task.columns
    text_column = table.require(columns.text, "the text", "--text_column")
    pair_column = table.require(columns.pair, "the second text", "--text_pair_column") if columns.pair else None
    label_column = None
    if reading.purpose != "test":
        label_column = table.require(columns.label, "the label", "--label_column")
    label_of = _number if reading.task.is_regression else _class
    names = (text_column, pair_column, label_column, table.find(columns.identity))
    examples = []
    for index, row in enumerate(table.rows(names)):
        if row.problem:
            reading.leave_out(row.problem, row.place)
            continue
        text = as_text(row.cells[0], row.place, text_column)
        pair = None if pair_column is None else as_text(row.cells[1], row.place, pair_column)
        label = None
        if label_column is not None:
            label = label_of(row.cells[2], label_column, row.place, reading)
            if label is None:
                continue
        if _is_kept(text, pair, row.place, reading):
            identity = index if row.cells[3] is None else row.cells[3]
            examples.append(SequenceExample(text, pair, label, as_text(identity, row.place, "index")))
    return examples


def _is_kept(text: str, pair: str | None, place: str, reading: Reading) -> bool:
    if not text.strip():
        return reading.keeps("the text", place)
    return pair is None or bool(pair.strip()) or reading.keeps("the second text", place)


def _class(value: object, column: str, place: str, reading: Reading) -> str | None:
    if isinstance(value, list):
        way_out = "several labels a text (multi-label) cannot be learned; give a column with one label a row"
        raise DataError(f"{place}: {column!r} holds a list; {way_out}")
    label = as_label(value, place, column, reading.task.no_label)
    if label is None:
        reading.leave_out("no label", place)
        return None
    label = reading.task.label_aliases.get(label, label)
    return label if reading.knows_label(label, place) else None


def _number(value: object, column: str, place: str, reading: Reading) -> float | None:
    """A label as a number; None, and counted, where it is missing. Raises DataError for what is no number."""
    text = as_label(value, place, column, reading.task.no_label)
    lowest, highest = reading.task.score_range or (-math.inf, math.inf)
    if text is None:
        reading.leave_out("no label", place)
        return None
    try:
        number = float(text)
    except ValueError as error:
        raise DataError(f"{place}: label {text!r} is not a number; mend the file") from error
    if math.isfinite(number) and lowest <= number <= highest:
        return number
    limits = f"from {lowest:g} to {highest:g}" if reading.task.score_range else "that is finite"
    if reading.purpose != "train":
        raise DataError(f"{place}: label {text} is not a number {limits}; mend the file")
    reading.leave_out(f"the label is not a number {limits}", place)
    return None


def found_labels(labels: set[str], place: str) -> tuple[str, ...]:
    """Labels of the training data in order. Raises DataError where there is one, or they look like numbers to meet."""
    if len(labels) == 1:
        raise DataError(f"{place}: all rows have the label {min(labels)!r}; there is nothing to learn")
    order: Callable[[str], object] = int if all(map(_is_whole, labels)) else str
    hint = "if they are numbers to be met, give --regression true"
    if len(labels) > _MOST_LABELS:
        raise DataError(f"{place}: {len(labels):,} labels, more than {_MOST_LABELS}; {hint}, or check --label_column")
    if labels and order is str and all(map(_is_number, labels)):
        raise DataError(f"{place}: the labels are numbers such as {min(labels)}; {hint}")
    return tuple(sorted(labels, key=lambda label: (order(label), label)))


def _is_whole(label: str) -> bool:
    return label.removeprefix("-").isdecimal() and label.isascii() and len(label) < _MOST_LABELS


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False
