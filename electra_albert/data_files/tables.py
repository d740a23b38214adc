"""Rows of .jsonl, .csv, .tsv, .parquet and .arrow files, read with bounded memory."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.contracts import DataError, UsageError, one_line
from electra_albert.data_files import finding, streams
from electra_albert.data_files.columnar import ROWS, open_columnar

# Of .csv files, the default first.
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SEPARATED_LINES = 100  # used to detect the separator of a file without a header
# First in a .csv written for Excel.
_SEPARATOR_LINE = re.compile(r'"?sep=([^\s\w"]|\t)"?\s*', re.IGNORECASE)
QUOTED_LINES = 1_000  # used to detect whether a .tsv is quoted as a .csv is
_QUOTED = re.compile(r'(?:(?:"(?:[^"]|"")*+"|[^"\t\n]*+)[\t\n])*+(?:"(?:[^"]|"")*+"?|[^"\t\n]*+)')
_QUOTED_CELL = re.compile(r'(?:^|\t)"[^"\t\n]*"(?:\t|$)', re.MULTILINE)
_DOUBLED_QUOTES = re.compile(r'[^\t\n]""|""[^\t\n]')

Locate = Callable[[int], str]  # line number to file and line
Rows = Iterator[tuple[int, list[str]]]  # the number of the first line, and the cells, of each row


def json_objects(
    lines: Iterable[tuple[int, str]], location: Locate, unique: Collection[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parse each non-blank line as a JSON object.

    Raises DataError for a repeated key (only of `unique`, if it is not None).
    """

    def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) == len(pairs):
            return content
        key_counts = Counter(key for key, _ in pairs)
        for key, number in key_counts.items():
            is_checked = unique is None or key in unique
            if number > 1 and is_checked:
                raise KeyError(key)
        return content

    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=as_object)
        except KeyError as error:
            raise DataError(
                f"{location(number)}: key {error} occurs twice in one object; keep one"
            ) from error
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{location(number)}: not JSON ({one_line(error)}); write one JSON object per line"
            ) from error
        if not isinstance(record, dict):
            raise DataError(
                f"{location(number)}: {json_kind(record)}, not an object; write one per line"
            )
        yield number, record


def json_kind(value: object) -> str:
    """The JSON type of a value."""
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")


def csv_delimiter(
    lines: Iterable[str], header: Collection[str], widths: Collection[int] = ()
) -> str:
    """Detect the separator of a .csv file by its first lines.

    A first line such as `sep=;` names it, as Excel writes it. Else it is the one whose first row
    has a name in `header`, then the most columns; without a header, the one that most often gives a
    column count in `widths`. Ties go to the first in SEPARATORS.
    """
    line_count = _SEPARATED_LINES if widths else 1
    sample = list(islice(lines, line_count))
    separator_line = _SEPARATOR_LINE.fullmatch("".join(sample[:1]))
    if separator_line:
        return separator_line[1]

    def fit(delimiter: str) -> tuple[int, int]:
        rows: list[list[str]] = []
        for line in sample:
            with suppress(csv.Error):
                rows += csv.reader([line], delimiter=delimiter, strict=True)
        if widths:
            return sum(len(row) in widths for row in rows), 0
        names = list(chain.from_iterable(rows))
        has_name = not set(header).isdisjoint(names)
        return has_name, len(names)

    return max(SEPARATORS, key=fit)  # the first of several maxima


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
        for name in names:
            if name in self.columns:
                return name
        return None

    def rows(self, names: Sequence[str | None]) -> Iterator[Row]:
        """All rows with the cells of the columns `names`; a name of None gives None in each row."""
        columns = [name for name in dict.fromkeys(names) if name is not None]
        for row in self.read(columns):
            if not row.problem:
                cells: Any = dict(zip(columns, row.cells, strict=True))
                row = row._replace(cells=tuple(map(cells.get, names)))
            yield row


def open_table(
    path: Path,
    header: Sequence[str] = (),
    without_header: tuple[str, ...] = (),
    *,
    named: Sequence[tuple[str, ...]] = (),
    encoding: str = streams.UTF8,
    may_be_quoted: bool = False,
    note: Callable[[str, str], None] = lambda remark, path: None,
) -> Table:
    """Open a table by file suffix; .txt and no suffix are read as .tsv.

    A .tsv has no quoting, unless it may be quoted and is. If the first row has no name in `header`
    and as many cells as `without_header`, it is data, and these are the columns. `named` lists
    possible columns of a file without a header. `note` receives each remark and its file.
    """
    form = finding.format_of(path)
    if form in ("parquet", "arrow"):
        return _columnar_table(path)
    is_other_text = form == "text" and path.suffix.lower() not in (".txt", "")
    if form is None or is_other_text:
        raise UsageError(
            f"{path}: a table is .tsv, .csv, .jsonl, .parquet or .arrow, not {path.suffix}; "
            "convert it"
        )
    lines: Callable[[], Iterator[str]] = partial(streams.text_lines, path, encoding)
    if path.is_fifo():  # a pipe can be read only once
        lines = list(lines()).__iter__
    if form == "jsonl":
        return _json_table(path, lines())
    delimiter = None
    remark = ""
    if form == "csv":
        lines_with_text = filter(str.strip, lines())
        delimiter = csv_delimiter(lines_with_text, header, [*map(len, named)])
        if delimiter != ",":
            remark = f"files separated by {SEPARATORS.get(delimiter, delimiter)}"
    elif may_be_quoted:
        delimiter, remark = quoting(lines())
    if remark:
        note(remark, str(path))
    location = partial("{}:{}".format, path)

    def rows() -> Rows:
        return split_rows(lines(), delimiter, location)

    rows_with_text = (row for row in rows() if any(map(str.strip, row[1])))
    number, first = next(rows_with_text, (0, []))
    if not first:
        raise DataError(f"{path}: empty; give a file with rows")
    has_header = len(first) != len(without_header) or not set(header).isdisjoint(first)
    if has_header and not named:
        return _split_table(path, rows, tuple(first), number)
    columns = without_header
    if named:
        columns = _columns_of(path, first, named)
    if len(named) > 1:
        note(f"files without a header read as columns {', '.join(columns)}", str(path))
    return _split_table(path, rows, columns, 0)


def _split_table(
    path: Path,
    rows: Callable[[], Rows],
    columns: tuple[str, ...],
    header_line: int,
) -> Table:
    """A table of rows of cells, which begins after the header's line, 0 if there is none."""

    def read(names: list[str]) -> Iterator[Row]:
        indices = [columns.index(name) for name in names]
        for number, cells in rows():
            location = f"{path}:{number}"
            is_blank = cells == [""] and len(columns) > 1  # else it is a row with an empty cell
            if number <= header_line or is_blank:
                continue
            if len(cells) != len(columns):
                yield Row((), location, f"{len(cells)} columns instead of {len(columns)}")
            else:
                requested = tuple(cells[index] for index in indices)
                yield Row(requested, location)

    return Table(str(path), columns, read, names_columns=False)


def _columns_of(path: Path, first: list[str], named: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The entry of `named` with as many columns as a file without a header has.

    Raises DataError if there is none.
    """
    for columns in named:
        if columns == tuple(first):
            raise DataError(f"{path}: its first row is a header; omit --column_names")
        if len(columns) == len(first):
            return columns
    raise DataError(
        f"{path}: its first row has {len(first)} columns, --column_names names {len(named[0])}; "
        "correct it"
    )


def split_rows(lines: Iterable[str], delimiter: str | None, location: Locate) -> Rows:
    """CSV rows, except Excel's `sep=;`; without a delimiter, the fields between tabs, unquoted.

    Raises DataError for bad quotes.
    """
    if delimiter is None:
        for number, line in enumerate(lines, start=1):
            yield number, line.removesuffix("\r").split("\t")
        return
    # A global setting; not restored, because another reader may be active.
    csv.field_size_limit(streams.MAX_RECORD)
    texts = (line + "\n" for line in lines)
    rows = csv.reader(texts, delimiter=delimiter, strict=True)
    number = 1
    is_start = True  # nothing but blank lines so far
    try:
        for row in rows:
            names_separator = is_start and _SEPARATOR_LINE.fullmatch(delimiter.join(row))
            if not names_separator:
                yield number, row or [""]
            is_start = is_start and not any(map(str.strip, row))
            number = rows.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{location(number)}: not a valid CSV row ({error}); correct its quotes (a quote "
            "within quotes is doubled) and line ends, or use .jsonl"
        ) from error


def quoting(lines: Iterable[str]) -> tuple[str | None, str]:
    """The delimiter of a .tsv, None if it has no quoting, and a remark about its quotes.

    It is quoted if all quotes are around cells, and doubled inside, as in .csv. Unlike quotes of
    the text, some must be doubled, or as many cells quoted as there are rows, or no row has as
    many cells as the others without them. Read are the first lines.

        "A ""new"" film" <tab> 1      quoted
        "new" and "old"  <tab> 0      not quoted, nor is any other row of its file
        "Two <line feed>
        lines"           <tab> 1      quoted: without quotes, the first line has one cell
    """
    sample = [line.removesuffix("\r") for line in islice(lines, QUOTED_LINES)]
    text = "\n".join(sample).strip()
    if _QUOTED.fullmatch(text):
        has_many = text.count('"') >= 2 * text.count("\n") > 0
        if has_many or _DOUBLED_QUOTES.search(text) or _needs_quotes(sample):
            return "\t", "files with cells in quotes, read as in .csv"
    if _QUOTED_CELL.search(text):
        return None, "files with some cells in quotes, which are kept (as .csv they are not)"
    return None, ""


def _needs_quotes(lines: list[str]) -> bool:
    """Whether rows have equal numbers of cells only if quotes may hold tabs and line ends."""

    def widths(delimiter: str | None) -> set[int]:
        rows = split_rows(lines, delimiter, "line {}".format)
        found: set[int] = set()
        try:
            found.update(len(cells) for _, cells in rows if cells != [""])
        except DataError:
            if len(lines) < QUOTED_LINES:  # else the sample ends inside a cell
                return set()
        return found

    return len(widths(None)) > 1 == len(widths("\t"))


def _json_table(path: Path, lines: Iterable[str]) -> Table:
    location = partial("{}:{}".format, path)
    records = [*json_objects(enumerate(lines, start=1), location)]
    if not records:
        raise DataError(f"{path}: empty; give a file with rows")
    keys = chain.from_iterable(record for _, record in records)
    names = tuple(dict.fromkeys(keys))

    def read(columns: list[str]) -> Iterator[Row]:
        for number, record in records:
            cells = tuple(map(record.get, columns))
            yield Row(cells, location(number))

    return Table(str(path), names, read)


def _columnar_table(path: Path) -> Table:
    with open_columnar(path) as opened:
        columns = tuple(opened.schema.names)

    def read(names: list[str]) -> Iterator[Row]:
        with open_columnar(path) as opened:
            for first, batch in opened.batches(0, len(opened.sizes), names):
                batch.validate(full=True)  # Arrow trusts the offsets in a file, even damaged ones
                cells = (batch.column(name).to_pylist() for name in names)
                for number, row in enumerate(zip(*cells, strict=True), first + 1):
                    yield Row(row, f"{path}, row {number}")

    return Table(str(path), columns, read)


def dataset_table(dataset: Any, location: str) -> Table:
    """A split of a dataset, also a streamed one.

    Class ids, also in lists, become class names, and -1 becomes None.
    """

    def read(names: list[str]) -> Iterator[Row]:
        features = dataset.features or {}  # unknown to some streams
        classes = []
        for name in names:
            feature = features.get(name)
            entry = getattr(feature, "feature", feature)  # of a list
            classes.append(getattr(entry, "names", None))
        numbers = count(1)
        for batch in _batches(dataset.select_columns(names), location):
            batch_columns = [batch[name] for name in names]
            for cells in zip(*batch_columns, strict=True):
                named_cells = tuple(map(_class_name, cells, classes))
                yield Row(named_cells, f"{location}, row {next(numbers)}")

    columns = dataset.column_names or next(_batches(dataset, location), ())
    return Table(location, tuple(columns), read)


def _batches(dataset: Any, location: str) -> Iterator[dict[str, list[Any]]]:
    try:
        yield from dataset.iter(ROWS)
    except Exception as error:  # of a stream: every file system raises errors of its own library
        raise DataError(
            f"{location}: cannot be read ({one_line(error)}); check the data and the network"
        ) from error


def _class_name(cell: Any, names: list[str] | None) -> Any:
    if not names:
        return cell
    if isinstance(cell, list):
        return [_class_name(label, names) for label in cell]
    if isinstance(cell, int) and 0 <= cell < len(names):
        return names[cell]
    return None
