"""Rows of .jsonl, .csv, .tsv, .parquet and .arrow files, read with bounded memory."""

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.contracts import DataError, UsageError, UserError
from electra_albert.data_files import finding, streams

if TYPE_CHECKING:
    import pyarrow

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}  # of .csv files, the default first
_SEPARATED_LINES = 100  # used to detect the separator of a file without a header
_SEPARATOR_LINE = re.compile(r'"?sep=([^\s\w"]|\t)"?\s*', re.IGNORECASE)  # first in a .csv written for Excel
_QUOTED_LINES = 1_000  # used to detect whether a .tsv is quoted as a .csv is
_QUOTED = re.compile(r'(?:(?:"(?:[^"]|"")*+"|[^"\t\n]*+)[\t\n])*+(?:"(?:[^"]|"")*+"?|[^"\t\n]*+)')
_QUOTED_CELL = re.compile(r'(?:^|\t)"[^"\t]*"(?:\t|$)')
_DOUBLED_QUOTES = re.compile(r'[^\t\n]""|""[^\t\n]')
_ROWS = 256  # read at once
_BUFFER_BYTES = 1 << 20
_ARROW_FILE = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"

Locate = Callable[[int], str]  # line number to file and line


def json_objects(
    lines: Iterable[tuple[int, str]], location: Locate, unique: Collection[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parse each non-blank line as a JSON object. Raises DataError for a repeated key (only of `unique`, if given)."""
    repeated: list[str] = []

    def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            counted = Counter(key for key, _ in pairs if unique is None or key in unique)
            repeated.extend(key for key, count in counted.items() if count > 1)
        return found

    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=as_object)
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:100]
            raise DataError(f"{location(number)}: not JSON ({reason}); write one JSON object per line") from error
        if repeated:
            raise DataError(f"{location(number)}: key {repeated[0]!r} occurs twice in one object; keep one")
        if not isinstance(record, dict):
            raise DataError(f"{location(number)}: {json_kind(record)}, not an object; write one per line")
        yield number, record


def json_kind(value: object) -> str:
    """The JSON type of a value."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "an object" if isinstance(value, dict) else "null")


def csv_rows(lines: Iterable[str], delimiter: str, location: Locate) -> Iterator[tuple[int, list[str]]]:
    """CSV rows, except Excel's `sep=;`, with the number of the line each starts at. Raises DataError for bad quotes."""
    csv.field_size_limit(streams.MAX_RECORD)  # a global setting; not restored, because another reader may be active
    rows, number = csv.reader(lines, delimiter=delimiter, strict=True), 1
    is_start = True  # nothing but blank lines so far
    try:
        for row in rows:
            if not (is_start and _SEPARATOR_LINE.fullmatch(delimiter.join(row))):
                yield number, row
            is_start = is_start and not any(map(str.strip, row))
            number = rows.line_num + 1
    except csv.Error as error:
        advice = "correct its quotes (a quote within quotes is doubled) and line ends, or use .jsonl"
        raise DataError(f"{location(number)}: not a valid CSV row ({error}); {advice}") from error


def csv_delimiter(lines: Iterable[str], wanted: Collection[str] = (), widths: Collection[int] = ()) -> str:
    """Detect the separator of a .csv file: the one whose header has a `wanted` column, else the most columns.

    A first line such as `sep=;` names it, as Excel writes it.
    Without a header, the one that most often gives a column count in `widths`. Ties go to the first in SEPARATORS.
    """
    sample = list(islice(lines, _SEPARATED_LINES if widths else 1))
    named = _SEPARATOR_LINE.fullmatch("".join(sample[:1]))
    if named:
        return named[1]

    def fit(delimiter: str) -> tuple[int, int]:
        rows: list[list[str]] = []
        for line in sample:
            with suppress(csv.Error):
                rows += csv.reader([line], delimiter=delimiter, strict=True)
        if widths:
            return sum(len(row) in widths for row in rows), 0
        return any(name in wanted for row in rows for name in row), sum(map(len, rows))

    return max(SEPARATORS, key=fit)  # the first of several maxima


class Columnar(NamedTuple):
    """An open Parquet or Arrow file."""

    schema: "pyarrow.Schema"
    sizes: list[int]  # approximate bytes of each row group or record batch
    batches: Callable[[int, int, list[str]], Iterator[tuple[int, "pyarrow.RecordBatch"]]]  # and the first row


@contextmanager
def open_columnar(path: str | Path) -> Iterator[Columnar]:
    """Open a Parquet file, or an Arrow file or stream as written by `datasets`. Raises DataError if it is damaged."""
    import pyarrow

    with streams.open_regular(path) as regular:
        try:
            yield _parquet(regular) if finding.format_of(Path(path)) == "parquet" else _arrow(str(path), regular)
        except (pyarrow.ArrowException, OSError, EOFError, ValueError, LookupError) as error:
            if isinstance(error, UserError) or (isinstance(error, OSError) and error.errno is not None):
                raise  # our own error, or a disk error
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{path}: damaged, changed or misnamed ({reason}); write it again") from error


def _parquet(regular: Any) -> Columnar:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(  # a buffer at a time, not a row group
        regular, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
    )
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]

    def batches(start: int, end: int, columns: list[str]) -> Iterator[tuple[int, "pyarrow.RecordBatch"]]:
        row = sum(group.num_rows for group in groups[:start])
        for batch in file.iter_batches(_ROWS, row_groups=range(start, end), columns=columns, use_threads=False):
            yield row, batch
            row += batch.num_rows

    return Columnar(file.schema_arrow, [group.total_byte_size for group in groups], batches)


def _arrow(path: str, regular: Any) -> Columnar:
    from pyarrow import ipc, memory_map

    is_file = regular.read(len(_ARROW_FILE)) == _ARROW_FILE
    regular.seek(max(0, regular.seek(0, os.SEEK_END) - len(_STREAM_END)))
    if not is_file and regular.read() != _STREAM_END:
        raise ValueError("the end of the stream is missing")

    def opened() -> Any:  # memory-mapped, because a record batch may be the whole file
        return (ipc.open_file if is_file else ipc.open_stream)(memory_map(path))

    def parts() -> Iterator["pyarrow.RecordBatch"]:
        reader = opened()
        return map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)

    def batches(start: int, end: int, columns: list[str]) -> Iterator[tuple[int, "pyarrow.RecordBatch"]]:
        row, number = 0, -1
        for number, batch in enumerate(islice(parts(), end)):
            if number >= start:
                yield row, batch.select(columns)
            row += batch.num_rows
        if number < end - 1:
            raise DataError(f"{path}: became shorter while being read; do not change it, and start again")

    return Columnar(opened().schema, [batch.get_total_buffer_size() for batch in parts()], batches)


class Row(NamedTuple):
    """The cells of the requested columns, or the reason why the row has none."""

    cells: tuple[Any, ...]
    location: str
    problem: str | None = None


@dataclass(frozen=True)
class Table:
    """A table that is read row by row."""

    location: str
    columns: tuple[str, ...]
    read: Callable[[list[str]], Iterator[Row]]
    names_columns: bool = True  # the format stores column names, the first row is never a header

    def find(self, names: Sequence[str]) -> str | None:
        """The first of `names` that is a column."""
        return next((name for name in names if name in self.columns), None)

    def rows(self, names: Sequence[str | None]) -> Iterator[Row]:
        """All rows with the cells of the columns `names`; a name of None gives None in each row."""
        wanted = [name for name in dict.fromkeys(names) if name is not None]
        for row in self.read(wanted):
            cells: dict[str | None, Any] = dict(zip(wanted, row.cells, strict=False))
            yield row if row.problem else row._replace(cells=tuple(map(cells.get, names)))


def open_table(
    path: Path,
    header: Sequence[str] = (),
    without_header: tuple[str, ...] = (),
    *,
    named: Sequence[tuple[str, ...]] = (),
    encoding: str = streams.UTF8,
    may_be_quoted: bool = False,
    note: Callable[[str, str], None] = lambda what, where: None,
) -> Table:
    """Open a table by file suffix; .txt and no suffix are read as .tsv, without quoting unless it may be quoted and is.

    If the first row holds no name in `header` and has as many cells as `without_header`, it is data, and these are the
    columns. `named` lists possible columns of a file without a header. `note` receives each remark and its file.
    """
    form = finding.format_of(path)
    if form == "parquet" or form == "arrow":
        return _columnar_table(path)
    if form is None or (form == "text" and path.suffix.lower() not in (".txt", "")):
        raise UsageError(f"{path}: a table is .tsv, .csv, .jsonl, .parquet or .arrow, not {path.suffix}; convert it")
    lines: Callable[[], Iterator[str]] = partial(streams.text_lines, path, encoding)
    if path.is_fifo():  # a pipe can be read only once
        lines = list(lines()).__iter__
    if form == "jsonl":
        return _json_table(path, lines())
    delimiter = None
    if form == "csv":
        delimiter = csv_delimiter(filter(str.strip, lines()), header, [*map(len, named)])
        if delimiter != ",":
            note(f"files separated by {SEPARATORS.get(delimiter, delimiter)}", str(path))
    elif may_be_quoted and _is_quoted(lines()):
        delimiter = "\t"
        note("files with cells in quotes, read as in .csv", str(path))
    elif may_be_quoted and any(_QUOTED_CELL.search(line) for line in islice(lines(), _QUOTED_LINES)):
        note("files with some cells in quotes, which are kept (as .csv they are not)", str(path))
    rows = partial(_split, path, lines, delimiter)
    header_line, first = next((row for row in rows() if any(map(str.strip, row[1]))), (0, []))
    if not first:
        raise DataError(f"{path}: empty; give a file with rows")
    has_header = not named and (any(name in first for name in header) or len(first) != len(without_header))
    columns = tuple(first) if has_header else _columns_of(path, first, named) if named else without_header
    if len(named) > 1:
        note(f"files without a header read as columns {', '.join(columns)}", str(path))

    def read(wanted: list[str]) -> Iterator[Row]:
        indices = [columns.index(name) for name in wanted]
        for number, cells in rows():
            location = f"{path}:{number}"
            if (has_header and number <= header_line) or (cells == [""] and len(columns) > 1):
                continue  # a blank line; with a single column it is an empty cell
            if len(cells) != len(columns):
                yield Row((), location, f"{len(cells)} columns instead of {len(columns)}")
            else:
                yield Row(tuple(cells[i] for i in indices), location)

    return Table(str(path), columns, read, names_columns=False)


def _columns_of(path: Path, first: list[str], named: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The entry of `named` with as many columns as a file without a header has; DataError if there is none."""
    for columns in named:
        if columns == tuple(first):
            raise DataError(f"{path}: its first row is a header; omit --column_names")
        if len(columns) == len(first):
            return columns
    raise DataError(f"{path}: its first row has {len(first)} columns, --column_names names {len(named[0])}; correct it")


def _split(path: Path, lines: Callable[[], Iterator[str]], delimiter: str | None) -> Iterator[tuple[int, list[str]]]:
    """CSV rows; without a delimiter, the fields between tabs, without quoting."""
    if delimiter is None:
        return ((number, line.removesuffix("\r").split("\t")) for number, line in enumerate(lines(), start=1))
    rows = csv_rows((line + "\n" for line in lines()), delimiter, partial("{}:{}".format, path))
    return ((number, row or [""]) for number, row in rows)


def _is_quoted(lines: Iterable[str]) -> bool:
    """Whether all quotes of a .tsv are around cells, and doubled inside, as CSV libraries write them.

    Unlike quotes of the text, some must be doubled, or as many cells quoted as there are rows.
    """
    text = "\n".join(islice(lines, _QUOTED_LINES)).replace("\r\n", "\n").strip()
    if not _QUOTED.fullmatch(text):
        return False
    return bool(_DOUBLED_QUOTES.search(text)) or text.count('"') >= 2 * text.count("\n") > 0


def _json_table(path: Path, lines: Iterable[str]) -> Table:
    location = partial("{}:{}".format, path)
    records = [(location(number), record) for number, record in json_objects(enumerate(lines, start=1), location)]
    if not records:
        raise DataError(f"{path}: empty; give a file with rows")
    names = tuple(dict.fromkeys(key for _, record in records for key in record))
    return Table(str(path), names, lambda wanted: (Row(tuple(map(one.get, wanted)), where) for where, one in records))


def _columnar_table(path: Path) -> Table:
    with open_columnar(path) as opened:
        names = tuple(opened.schema.names)

    def read(wanted: list[str]) -> Iterator[Row]:
        with open_columnar(path) as opened:
            for first, batch in opened.batches(0, len(opened.sizes), wanted):
                batch.validate(full=True)  # Arrow trusts the offsets in a file, even damaged ones
                columns = [batch.column(name).to_pylist() for name in wanted]
                for row, cells in enumerate(zip(*columns, strict=True), first + 1):
                    yield Row(cells, f"{path}, row {row}")

    return Table(str(path), names, read)


def dataset_table(dataset: Any, location: str) -> Table:
    """A split of a dataset, also a streamed one; class ids, also in lists, become class names, and -1 becomes None."""

    def read(wanted: list[str]) -> Iterator[Row]:
        features = [(dataset.features or {}).get(name) for name in wanted]  # a stream may not know them
        classes = [getattr(getattr(feature, "feature", feature), "names", None) for feature in features]
        numbers = count(1)
        for batch in _batches(dataset.select_columns(wanted), location):
            for cells in zip(*(batch[name] for name in wanted), strict=True):
                yield Row(tuple(map(_class_name, cells, classes)), f"{location}, row {next(numbers)}")

    return Table(location, tuple(dataset.column_names or next(_batches(dataset, location), ())), read)


def _batches(dataset: Any, location: str) -> Iterator[dict[str, list[Any]]]:
    try:
        yield from dataset.iter(_ROWS)
    except Exception as error:  # of a stream: every file system raises errors of its own library
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{location}: cannot be read ({reason}); check the data and the network") from error


def _class_name(cell: Any, names: list[str] | None) -> Any:
    if not names:
        return cell
    if isinstance(cell, list):
        return [_class_name(one, names) for one in cell]
    return names[cell] if isinstance(cell, int) and 0 <= cell < len(names) else None
