"""Corpus files to documents of sentences: files are cut into units of work, and a unit is read as a stream."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple, cast, get_args

from electra_albert.contracts import DataError
from electra_albert.corpus import documents
from electra_albert.corpus.documents import BadUtf8, Decoder, Document, Record
from electra_albert.data_files import streams
from electra_albert.data_files.finding import format_of, read_sample
from electra_albert.data_files.streams import BYTE_ORDER_MARK, COMPRESSED_SUFFIXES, Lines, open_regular, open_stream
from electra_albert.data_files.tables import SEPARATORS, csv_delimiter, csv_rows, json_kind, json_objects, open_columnar

if TYPE_CHECKING:
    import pyarrow

Layout = documents.Layout  # of the lines of a text file
Kind = Layout | Literal["records", "csv", "tsv", "parquet", "arrow"]

_TO_THE_END = -1
_KIND_BYTES = 1 << 18  # of each sample that the kind of text is detected from
_PARAGRAPH_SENTENCES = 1.35  # per line on average, above which the lines of a file are paragraphs
_FEW_LINES = 64  # up to which a file without a blank line is one document
_WRAPPED = 0.5  # share of the lines of hard-wrapped text that the next word does not fit into
_LOWER = 0.4  # share of its lines that begin within a sentence, in lower case
_MIN_WRAPPED_LINES, _MIN_WRAPPED_WORDS = 20, 4  # mean words a line
_WRAPPED_WIDTHS = range(40, 200)  # characters
_EXPANSION = 4  # approximate compression ratio, only used to size units
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)[ \t\x0b\x0c\x1c-\x1f]*(?>\r\n|\n|\r)")
_UNBROKEN = {
    "sentences": "long files are one document, without a blank line (--documents line: each line is one)",
    "wrapped": "long files of wrapped lines are one document, without a blank line (insert them between documents)",
}
_ROWS = 256  # converted to Python strings at once


class ReadOptions(NamedTuple):
    """Options for reading files."""

    text_column: str = "text"  # of records and tables
    bad_utf8: BadUtf8 = "replace"  # for bytes of a line or record that are not in the encoding
    encoding: str = streams.UTF8  # of text, JSON and CSV; Parquet and Arrow are in UTF-8
    documents: Literal["auto", "blank", "line"] = "auto"  # what ends a document of a text file


class Span(NamedTuple):
    """A part of one file that begins and ends at document boundaries."""

    path: str
    start: int  # in bytes, Parquet row groups or Arrow record batches
    end: int  # -1: end of the file, if it is compressed or cannot be cut
    kind: Kind


class Unit(NamedTuple):
    """A unit of work: a part of the corpus that one process reads."""

    spans: tuple[Span, ...]
    options: ReadOptions


def require_columns(files: Iterable[Path], options: ReadOptions) -> None:
    """Raise DataError if the first record of a file lacks the text column."""
    for path in files:
        if format_of(path) != "text":
            for span, _ in islice(_cut_file(path, options, unit_bytes=sys.maxsize), 1):
                next(_records(span, options, Counter()), None)


def plan_units(files: list[Path], options: ReadOptions | None = None, unit_bytes: int = 8 << 20) -> list[Unit]:
    """Cut files into units of about `unit_bytes`, in order; small files share a unit."""
    units: list[list[Span]] = []
    size, options = 0, options or ReadOptions()
    for span, span_bytes in chain.from_iterable(_cut_file(path, options, unit_bytes) for path in files):
        if not units or size + span_bytes > unit_bytes:
            units.append([])
            size = 0
        if units[-1] and (units[-1][-1].path, units[-1][-1].end) == (span.path, span.start):  # continues the last span
            units[-1][-1] = units[-1][-1]._replace(end=span.end)
        else:
            units[-1].append(span)
        size += span_bytes
    return [Unit(tuple(spans), options) for spans in units]


def _cut_file(path: Path, options: ReadOptions, unit_bytes: int) -> Iterator[tuple[Span, int]]:
    """Spans of a file with their approximate bytes of text."""
    if (form := format_of(path)) == "parquet" or form == "arrow":
        if path.suffix.lower() in COMPRESSED_SUFFIXES:
            raise DataError(f"{path}: a compressed Parquet or Arrow file cannot be read in parts; decompress it first")
        with open_columnar(path) as opened:
            _check_column(str(path), opened.schema, options.text_column)
            yield from ((Span(str(path), number, number + 1, form), size) for number, size in enumerate(opened.sizes))
        return
    with open_regular(path) as file:
        size = path.stat().st_size
        is_compressed = streams.compression(file.read(16)) is not None
        kind = _find_kind(path, None if is_compressed else file, options)
        if is_compressed or kind in ("csv", "tsv") or path.suffix.lower() in COMPRESSED_SUFFIXES:
            yield Span(str(path), 0, _TO_THE_END, kind), size * (_EXPANSION if is_compressed else 1)
            return
        start = 0
        while start < size:
            target = (start // unit_bytes + 1) * unit_bytes
            end = _border_after(file, target, kind) if target < size else size
            yield Span(str(path), start, end, kind), end - start
            start = end


def _find_kind(path: Path, plain: BinaryIO | None, options: ReadOptions) -> Kind:
    """Detect what a line of the file holds, from its beginning and, if uncompressed, from its middle."""
    if (form := format_of(path)) == "csv" or form == "tsv":
        return form
    if form == "jsonl":
        return "records"
    if options.documents == "line":
        return "documents"
    sample = read_sample(path)[0][:_KIND_BYTES]
    size = path.stat().st_size * (1 if plain else _EXPANSION)
    if plain and size > 2 * _KIND_BYTES:
        plain.seek(size // 2)
        sample += b"\n" + plain.read(_KIND_BYTES).partition(b"\n")[2]
    decoded = streams.with_line_feeds(sample.decode(options.encoding, "surrogateescape"))
    text = Decoder("replace", Counter()).lines(decoded, str)
    lines = [line.strip() for line in text.split("\n")]
    if options.documents == "auto" and _are_wrapped(lines):
        return "wrapped"
    counts = [len(documents.split_sentences(line)) for line in lines if line]
    if sum(counts) <= _PARAGRAPH_SENTENCES * len(counts):
        return "sentences"
    has_blank_line = len(counts) < len("\n".join(lines).strip().split("\n"))
    # Estimated without two lines, because the sample may cut them.
    is_long = len(counts) > _FEW_LINES or (len(counts) - 2) * size > _FEW_LINES * len(sample)
    return "documents" if options.documents == "auto" and is_long and not has_blank_line else "paragraphs"


def _are_wrapped(lines: list[str]) -> bool:
    """Whether the sentences of stripped lines continue in the next line, cut at one width."""
    pairs = [(line, following) for line, following in pairwise(lines) if line and following]
    if len(pairs) < _MIN_WRAPPED_LINES:
        return False
    lengths = sorted(len(line) for line in lines if line)
    width = lengths[int(0.9 * len(lengths))]  # wrapped by hand, lines differ
    is_full = [len(line) + 1 + len(following.split()[0]) > width for line, following in pairs]
    begins_lower = [following[0].islower() and line[-1] not in ".!?…" for line, following in pairs]
    words = sum(len(line.split()) for line, _ in pairs)
    is_prose = sum(begins_lower) >= _LOWER * len(pairs) and words >= _MIN_WRAPPED_WORDS * len(pairs)
    return width in _WRAPPED_WIDTHS and is_prose and sum(is_full) >= _WRAPPED * len(pairs)


def _border_after(file: BinaryIO, position: int, kind: Kind) -> int:
    """The offset after the first document boundary at or after `position`, or the end of the file."""
    border = re.compile(rb"\n") if kind in ("records", "documents") else _BLANK_LINE
    file.seek(position)
    tail = b""  # a possible start of a blank line that ends in the next block
    while block := file.read(streams.BLOCK_BYTES):
        while block.endswith(b"\r") and (following := file.read(1)):
            block += following  # \r\n is one line end
        position += len(block)
        window = tail + block
        if found := border.search(window):
            return position - len(window) + found.end()
        ending = window[len(window.rstrip()) :]
        tail = b"\n" if b"\n" in ending or b"\r" in ending else b""
    return position


def read_unit(unit: Unit, counts: Counter[str]) -> Iterator[Document]:
    """Read the documents of a unit in order, with bounded memory; adds what was read and skipped to `counts`."""
    for span in unit.spans:
        if span.start == 0:
            counts["files"] += 1
            counts[f"files_of_{span.kind}"] += 1
        before = counts["documents"], counts["sentences"]
        yield from documents.counted(_read_span(span, unit.options, counts), counts)
        is_long = span.kind in _UNBROKEN and counts["sentences"] > before[1] + _FEW_LINES
        if is_long and span.start == 0 and counts["documents"] == before[0] + 1:
            counts[_UNBROKEN[span.kind]] += span.end in (_TO_THE_END, Path(span.path).stat().st_size)


def _read_span(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    decoder = Decoder(options.bad_utf8, counts)
    if span.kind in get_args(Layout):
        with _lines(span, options, counts, cut=True) as lines:
            texts = (decoder.lines(text, partial(lines.location, first)) for first, text in lines)
            yield from documents.documents_of_lines(texts, cast("Layout", span.kind), counts)
    else:
        yield from documents.documents_of_records(_records(span, options, counts), decoder)


@contextmanager
def _lines(span: Span, options: ReadOptions, counts: Counter[str], *, cut: bool) -> Iterator[Lines]:
    with open_stream(span.path) if span.end == _TO_THE_END else open_regular(span.path) as file:
        if span.start:
            file.seek(span.start)
        yield Lines(span.path, file, span.start, span.end, counts, cut=cut, encoding=options.encoding)


def _numbered(lines: Lines) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from 0 at the span's start."""
    for first, text in lines:
        for number, line in enumerate(text[:-1].split("\n"), start=first):
            lines.counts["byte_order_marks"] += line.startswith(BYTE_ORDER_MARK)
            yield number, line.removeprefix(BYTE_ORDER_MARK)


def _records(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Record]:
    """The text of each record. Raises DataError with file and line for a record without it."""
    column = options.text_column
    if span.kind in ("parquet", "arrow"):
        yield from _column_records(span, column, counts)
        return
    with _lines(span, options, counts, cut=False) as lines:
        if span.kind in ("csv", "tsv"):
            yield from _csv_records(lines, span.kind, column)
            return
        for number, record in json_objects(_numbered(lines), lines.location, (column,)):
            location = partial(lines.location, number)
            if column not in record:
                raise _missing_column(location(), column, list(record))
            text = record[column]
            if text is not None and not isinstance(text, str):
                raise DataError(f"{location()}: {column!r} holds {json_kind(text)}, not text; correct the record")
            yield text, location


def _csv_records(lines: Lines, kind: Kind, column: str) -> Iterator[Record]:
    """The field `column` of each row that is not blank; counts a separator other than the comma."""
    texts = (line + "\n" for _, line in _numbered(lines))
    first = next(texts, "")
    delimiter = "\t" if kind == "tsv" else csv_delimiter((first,), (column,))
    if kind == "csv" and delimiter != ",":
        lines.counts[f"CSV files separated by {SEPARATORS.get(delimiter, delimiter)}"] += 1
    location = partial(lines.location, -1)  # rows are numbered from 1
    rows = csv_rows(chain((first,), texts), delimiter, location)
    _, header = next(rows, (1, []))
    if header.count(column) != 1:
        raise _missing_column(lines.path, column, header)
    position = header.index(column)
    for number, row in rows:
        if row and len(row) != len(header):
            found = f"{len(row)} fields where the header has {len(header)}"
            raise DataError(f"{location(number)}: {found}; quote fields that contain {delimiter!r}")
        if row:
            yield row[position], partial(location, number)


def _column_records(span: Span, column: str, counts: Counter[str]) -> Iterator[Record]:
    """The texts of row groups or record batches, read as bytes because even string columns may not be UTF-8."""
    with open_columnar(span.path) as opened:
        _check_column(span.path, opened.schema, column)
        for first, batch in opened.batches(span.start, span.end, [column]):
            texts = batch.column(0)
            for start in range(0, len(texts), _ROWS):
                for row, raw in enumerate(_as_bytes(texts.slice(start, _ROWS)), first + start + 1):
                    counts["bytes"] += len(raw or b"")
                    text = None if raw is None else raw.decode("utf-8", "surrogateescape")
                    yield text, partial("{}, row {}".format, span.path, row)


def _as_bytes(texts: pyarrow.Array) -> list[bytes | None]:
    import pyarrow
    from pyarrow import types

    if types.is_null(texts.type):
        return [None] * len(texts)
    if types.is_dictionary(texts.type):
        texts.validate(full=True)
        texts = texts.dictionary_decode()
    is_string = types.is_string(texts.type)
    is_view = types.is_string_view(texts.type)
    texts = texts.view((pyarrow.binary_view if is_view else pyarrow.binary if is_string else pyarrow.large_binary)())
    texts.validate(full=True)  # Arrow trusts the offsets in a file, so damage could cause reads out of bounds
    return list(texts.to_pylist())


def _check_column(path: str, schema: pyarrow.Schema, column: str) -> None:
    """Raise DataError unless `column` occurs once and holds text."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise _missing_column(path, column, schema.names)
    kind = schema.field(column).type
    value = kind.value_type if types.is_dictionary(kind) else kind
    is_text = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(is_kind(value) for is_kind in is_text):
        raise DataError(f"{path}: column {column!r} holds {kind}, not text; choose another with --text_column")


def _missing_column(location: str, column: str, columns: list[str]) -> DataError:
    held = ", ".join(map(repr, columns[:20])) + (", …" if len(columns) > 20 else "")
    found = ("duplicated" if columns.count(column) > 1 else "missing") + f" (columns: {held or 'none'})"
    return DataError(f"{location}: column {column!r} is {found}; choose one with --text_column")
