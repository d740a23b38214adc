"""Tables with named columns: .tsv without quoting, .csv with it, .jsonl and .parquet."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files import SEPARATORS, csv_delimiter
from electra_albert.tasks.read_rules import Reading, near, parse_json, shown, text_lines
from electra_albert.tasks.task import TABLE_SUFFIXES

_SUFFIXES = (*TABLE_SUFFIXES, ".txt", "")  # the last two hold what .tsv does
NAMES_ITS_COLUMNS = "names its columns itself; leave it out"
_LONGEST_FIELD = 1 << 30  # characters of a field in CSV
_ROWS = 1000  # of Parquet turned into Python values at once


class Row(NamedTuple):
    """The cells of the columns asked for, or why the row has none."""

    cells: tuple[Any, ...]
    place: str
    problem: str | None = None


@dataclass(frozen=True)
class Table:
    """The columns of a table, and its rows by the positions of the columns that are wanted."""

    place: str
    columns: tuple[str, ...]
    read: Callable[[Sequence[int]], Iterator[Row]]
    hint: str = ""  # to end the message that a column is missing

    def find(self, names: Sequence[str]) -> str | None:
        """The first of the names that is a column."""
        return next((name for name in names if name in self.columns), None)

    def require(self, names: Sequence[str], what: str, option: str) -> str:
        """The same, or DataError that says which columns there are."""
        found = self.find(names)
        if found is None:
            wanted = " or ".join(map(repr, names))
            guess = near(names[0], self.columns)
            way_out = f"choose one by {option}" if option else "mend the file, or check that it is the task's own"
            found = f"{self.place}: no column {wanted} for {what}{guess}; it has {shown(self.columns)}"
            raise DataError(f"{found}: {way_out}{self.hint}")
        if self.columns.count(found) > 1:
            raise DataError(f"{self.place}: column {found!r} stands twice; rename one")
        return found

    def rows(self, names: Sequence[str | None]) -> Iterator[Row]:
        """All rows, with the cells of these columns; None where no column was found gives None in each row."""
        wanted = [name for name in names if name is not None]
        for row in self.read([self.columns.index(name) for name in wanted]):
            cells = iter(row.cells)
            yield (
                row
                if row.problem
                else row._replace(cells=tuple(None if name is None else next(cells) for name in names))
            )


def open_table(
    path: Path, header: Sequence[str] = (), without_header: tuple[str, ...] = (), reading: Reading | None = None
) -> Table:
    """A table by the ending of its name; .txt and a name without an ending are read as .tsv.

    Rows are read anew each time they are asked for; those of .jsonl and the lines of a pipe are kept.

    Where the first row holds none of the names in `header`, it is a row, and `without_header` names the columns if it
    has as many. `reading` has the encoding and, where no file has a header, the names of the columns. Raises DataError
    for an empty file, UsageError for another ending.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(f"{path}: a table is {', '.join(TABLE_SUFFIXES)}, not {path.suffix}; unpack or convert it")
    if reading is not None and suffix in (".parquet", ".jsonl"):
        reading.refuse_options(("column_names",), str(path), NAMES_ITS_COLUMNS)
    if suffix == ".parquet":
        return _parquet(path)
    lines = _lines(path, reading.config.encoding if reading else "utf-8")
    if suffix == ".jsonl":
        return _json_lines(path, lines())
    named = reading.column_names if reading else ()
    rows = _tsv_rows
    if suffix == ".csv":
        delimiter = csv_delimiter(filter(str.strip, lines()), header, [*map(len, named)])
        rows = partial(_csv_rows, path, delimiter)
        if reading is not None and delimiter != ",":
            reading.report.note(f"files separated by {SEPARATORS[delimiter]}", str(path))
    header_line, first = next((row for row in rows(lines()) if any(map(str.strip, row[1]))), (0, []))
    if not first:
        raise _empty(path)
    has_header = not named and (any(name in first for name in header) or len(first) != len(without_header))
    columns = tuple(first) if has_header else _columns_of(path, first, named) if named else without_header

    if named and reading is not None and reading.purpose == "test":  # with or without a label, so say which
        reading.report.note(f"files without a header read as columns {', '.join(columns)}", str(path))

    def read(wanted: Sequence[int]) -> Iterator[Row]:
        for number, cells in rows(lines()):
            if has_header and number <= header_line:
                continue
            place = f"{path}:{number}"
            if not any(cells) and len(columns) > 1 and len(cells) < 2:
                continue  # a blank line; where there is but one column, it is an empty cell
            if len(cells) != len(columns):
                yield Row((), place, f"{len(cells)} columns instead of {len(columns)}")
            else:
                yield Row(tuple(cells[i] for i in wanted), place)

    hint = "; of a file without a header name all columns by --column_names" if reading else ""
    return Table(str(path), columns, read, hint)


def _columns_of(path: Path, first: list[str], named: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Those of the names that the first row of a file without a header has the cells for."""
    columns = next((names for names in named if len(names) == len(first)), None)
    if columns is None:
        raise DataError(
            f"{path}: its first row has {len(first)} columns, --column_names names {len(named[0])}; mend it"
        )
    if columns == tuple(first):
        raise DataError(f"{path}: its first row is a header; leave out --column_names")
    return columns


def _lines(path: Path, encoding: str) -> Callable[[], Iterator[str]]:
    """What reads the lines of a file, as often as it is called; a pipe gives them once, so they are kept."""
    if not path.is_fifo():
        return lambda: text_lines(path, encoding)
    kept = list(text_lines(path, encoding))
    return lambda: iter(kept)


def _empty(path: Path) -> DataError:
    return DataError(f"{path}: empty; give a file with rows")


def _tsv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Fields between tabs, whatever quotes they hold."""
    for number, line in enumerate(lines, start=1):
        yield number, line.removesuffix("\r").split("\t")


def _csv_rows(path: Path, delimiter: str, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=True)
    csv.field_size_limit(_LONGEST_FIELD)
    number = 1
    try:
        for row in rows:
            yield number, row or [""]
            number = rows.line_num + 1
    except csv.Error as error:
        way_out = "mend its quotes (a quote within quotes is doubled), or give .jsonl"
        raise DataError(f"{path}:{number}: not a row of a table ({error}); {way_out}") from error


def _json_lines(path: Path, lines: Iterable[str]) -> Table:
    records = []
    columns: dict[str, None] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}:{number}"
            record = parse_json(line, place)
            if not isinstance(record, dict):
                raise DataError(f"{place}: not an object; give one JSON object a line")
            records.append((place, record))
            columns.update(dict.fromkeys(record))
    if not records:
        raise _empty(path)
    names = tuple(columns)

    def read(wanted: Sequence[int]) -> Iterator[Row]:
        for place, record in records:
            yield Row(tuple(record.get(names[i]) for i in wanted), place)

    return Table(str(path), names, read)


def _parquet(path: Path) -> Table:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    damage = (pyarrow.ArrowException, OSError, EOFError, ValueError, LookupError)
    try:
        names = tuple(ParquetFile(path).schema_arrow.names)
    except damage as error:
        raise _damaged(path, error) from error

    def read(wanted: Sequence[int]) -> Iterator[Row]:
        chosen = [names[i] for i in wanted]
        number = 0
        try:
            for batch in ParquetFile(path).iter_batches(_ROWS, columns=chosen, use_threads=False):
                batch.validate(full=True)  # Arrow trusts the places in a file; those of a damaged one lie outside
                columns = [batch.column(name).to_pylist() for name in chosen]
                for cells in zip(*columns, strict=True):
                    number += 1
                    yield Row(cells, f"{path}, row {number}")
        except damage as error:
            raise _damaged(path, error) from error

    return Table(str(path), names, read)


def _damaged(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:200]
    return DataError(f"{path}: damaged, or not Parquet ({reason}); write it anew")
