"""Records of text: a JSON object a line, or the rows of a table in CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from electra_albert.contracts import DataError
from electra_albert.corpus.decoding import escape, unescape
from electra_albert.corpus.documents import NamedRecord, Record
from electra_albert.corpus.lines import MAX_RECORD_BYTES, Lines
from electra_albert.data_files import SEPARATORS, csv_delimiter

DELIMITERS = {"csv": ",", "tsv": "\t"}
_BYTE_ORDER_MARK = "\ufeff"
_NAMED_KEYS = frozenset(("source", "sentences"))


class _RepeatedKeyError(ValueError):
    """A key that an object of JSON holds twice; a parser keeps the last value and drops the others."""


def is_named_record(line: bytes) -> bool:
    """True for a line of our own form: {"source": name, "sentences": [text, …]}."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return _is_named(record)


def _is_named(record: object) -> bool:
    """Our keys and no others, which may hold text."""
    if not isinstance(record, dict) or record.keys() != _NAMED_KEYS:
        return False
    sentences = record["sentences"]
    return isinstance(sentences, list) and all(isinstance(sentence, str) for sentence in sentences)


def read_json_lines(lines: Lines, column: str) -> Iterator[Record]:
    """The text under `column` of each object. Raises DataError naming the line that does not hold it."""
    for number, record in _objects(lines, frozenset((column,))):
        if column not in record:
            raise missing_column(lines.place(number), column, list(record))
        text = record[column]
        if text is not None and not isinstance(text, str):
            raise DataError(f"{lines.place(number)}: {column!r} holds {_shown(text)}, not text; mend the record")
        yield Record(None if text is None else unescape(text), partial(lines.place, number))


def read_named_records(lines: Lines) -> Iterator[NamedRecord]:
    """The documents of our own form. Raises DataError naming the line that is none."""
    for number, record in _objects(lines, _NAMED_KEYS):
        if not _is_named(record):
            wanted = '{"source": name, "sentences": [text, …]}'
            raise DataError(f"{lines.place(number)}: not a document of the form {wanted}; write the file anew")
        text = "\n".join(" ".join(sentence.split()) for sentence in record["sentences"])
        yield NamedRecord(str(record["source"]), unescape(text), partial(lines.place, number))


def _objects(lines: Lines, wanted: frozenset[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The object of each line; DataError where a wanted key stands twice in it, since one text would be lost."""
    for run in lines:
        for number, line in enumerate(run.raw[:-1].split(b"\n"), start=run.first):
            text = _without_mark(escape(line), lines).strip()
            if not text:
                continue
            try:
                record = json.loads(text, object_pairs_hook=partial(_object, wanted))
            except _RepeatedKeyError as error:
                raise DataError(f"{lines.place(number)}: key {error} stands twice in one object; keep one") from error
            except json.JSONDecodeError as error:
                reason = f"{error.msg}, column {error.colno}"
                raise DataError(f"{lines.place(number)}: not JSON ({reason}); give one JSON object a line") from error
            except (ValueError, RecursionError) as error:
                raise DataError(f"{lines.place(number)}: not JSON that can be read: too deep or too long") from error
            if not isinstance(record, dict):
                raise DataError(f"{lines.place(number)}: {_shown(record)}, not an object; give one JSON object a line")
            yield number, record


def _object(wanted: frozenset[str], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        if repeated := [key for key in keys if key in wanted and keys.count(key) > 1]:
            raise _RepeatedKeyError(repr(repeated[0]))
    return found


def read_csv(lines: Lines, column: str, delimiter: str) -> Iterator[Record]:
    """The field of `column` in each row; the first row holds the names. Raises DataError naming the line that is bad.

    A field in quotes may hold line ends. Blank lines are no rows. Where no comma but another separator gives the
    column, it is used and counted.
    """
    texts = _text_lines(lines)
    first = next(texts, "")
    if delimiter == DELIMITERS["csv"]:
        delimiter = csv_delimiter((first,), (column,))
        if delimiter != DELIMITERS["csv"]:
            lines.counts[f"CSV files separated by {SEPARATORS[delimiter]}"] += 1
    rows = csv.reader(chain((first,), texts), delimiter=delimiter, strict=True)
    csv.field_size_limit(MAX_RECORD_BYTES)  # of the process, and left so: another reader may be under way
    try:
        header = next(rows, [])
        if header.count(column) != 1:
            raise missing_column(lines.path, column, header)
        position = header.index(column)
        for row in filter(None, rows):
            number = rows.line_num - 1  # of the last line of the row
            if len(row) != len(header):
                found = f"{len(row)} fields where the header has {len(header)}"
                raise DataError(f"{lines.place(number)}: {found}; put fields that hold {delimiter!r} into quotes")
            yield Record(unescape(row[position]), partial(lines.place, number))
    except csv.Error as error:
        way_out = "mend its quotes (a quote within quotes is doubled), or give .jsonl"
        raise DataError(f"{lines.place(rows.line_num - 1)}: not a row of a table ({error}); {way_out}") from error


def _text_lines(lines: Lines) -> Iterator[str]:
    for run in lines:
        text = _without_mark(escape(run.raw), lines) if run.first == 0 else escape(run.raw)
        for line in text[:-1].split("\n"):
            yield line + "\n"


def _without_mark(text: str, lines: Lines) -> str:
    lines.counts["byte_order_marks"] += text.startswith(_BYTE_ORDER_MARK)
    return text.removeprefix(_BYTE_ORDER_MARK)


def missing_column(place: str, column: str, columns: list[str]) -> DataError:
    """What is said where a source has no such column."""
    held = ", ".join(map(repr, columns[:20])) + (", …" if len(columns) > 20 else "")
    found = "twice" if columns.count(column) > 1 else "not there"
    return DataError(f"{place}: column {column!r} is {found}; it holds {held or 'none'}: choose one by --text_column")


def _shown(value: object) -> str:
    """The kind of a JSON value, in JSON's words."""
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")
