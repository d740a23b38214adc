"""Corpus files to documents of sentences: files are cut into units, which are read as streams."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast, get_args

from electra_albert.contracts import DataError
from electra_albert.corpus.documents import (
    BadUtf8,
    Decoder,
    Document,
    Layout,
    Record,
    counted,
    documents_of_lines,
    documents_of_records,
    split_sentences,
)
from electra_albert.data_files import streams
from electra_albert.data_files.columnar import open_columnar
from electra_albert.data_files.finding import format_of, read_sample
from electra_albert.data_files.streams import (
    BYTE_ORDER_MARK,
    COMPRESSED_SUFFIXES,
    Lines,
    open_regular,
    open_stream,
)
from electra_albert.data_files.tables import (
    QUOTED_LINES,
    SEPARATORS,
    csv_delimiter,
    json_kind,
    json_objects,
    quoting,
    split_rows,
)

Kind = Layout | Literal["records", "csv", "tsv", "parquet", "arrow"]

_TO_THE_END = -1
_KIND_BYTES = 1 << 18  # of each sample that the kind of text is detected from
_PARAGRAPH_SENTENCES = 1.35  # per line on average, above which the lines of a file are paragraphs
_FEW_LINES = 64  # up to which a file without a blank line is one document
_WRAPPED = 0.5  # share of the lines of hard-wrapped text that the next word does not fit into
_LOWER = 0.4  # share of its lines that begin within a sentence, in lower case
_MIN_WRAPPED_LINES = 20
_MIN_WRAPPED_WORDS = 4  # per line on average
_WRAPPED_WIDTHS = range(40, 200)  # characters
_EXPANSION = 4  # approximate compression ratio, only used to size units
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)[ \t\x0b\x0c\x1c-\x1f]*(?>\r\n|\n|\r)")
_UNBROKEN = {
    "sentences": "long files are one document, without a blank line "
    "(--documents line: each line is one)",
    "wrapped": "long files of wrapped lines are one document, without a blank line "
    "(insert them between documents)",
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
        if format_of(path) not in ("text", None):
            for span, _ in islice(_cut_file(path, options, sys.maxsize), 1):
                next(_records(span, options, Counter()), None)


def plan_units(
    files: list[Path], options: ReadOptions | None = None, unit_bytes: int = 8 << 20
) -> list[Unit]:
    """Cut files into units of about `unit_bytes`, in order; small files share a unit."""
    options = options or ReadOptions()
    units: list[list[Span]] = []
    size = 0
    spans_of_files = (_cut_file(path, options, unit_bytes) for path in files)
    for span, span_bytes in chain.from_iterable(spans_of_files):
        if not units or size + span_bytes > unit_bytes:
            units.append([])
            size = 0
        spans = units[-1]
        if spans and (spans[-1].path, spans[-1].end) == (span.path, span.start):
            spans[-1] = spans[-1]._replace(end=span.end)
        else:
            spans.append(span)
        size += span_bytes
    return [Unit(tuple(spans), options) for spans in units]


def _cut_file(path: Path, options: ReadOptions, unit_bytes: int) -> Iterator[tuple[Span, int]]:
    """Spans of a file with their approximate bytes of text."""
    form = format_of(path)
    name = str(path)
    if form == "parquet" or form == "arrow":
        if path.suffix.lower() in COMPRESSED_SUFFIXES:
            raise DataError(f"{path}: a compressed Parquet or Arrow file; decompress it first")
        with open_columnar(path) as opened:
            _check_column(name, opened.schema, options.text_column)
            for number, size in enumerate(opened.sizes):
                yield Span(name, number, number + 1, form), size
        return
    with open_regular(path) as file:
        size = path.stat().st_size
        is_compressed = streams.compression(file.read(16)) is not None
        plain = None if is_compressed else file
        if is_compressed:
            size *= _EXPANSION
        kind = _find_kind(path, plain, size, options)
        if is_compressed or kind in ("csv", "tsv"):
            yield Span(name, 0, _TO_THE_END, kind), size
        else:
            start = 0
            while start < size:
                target = (start // unit_bytes + 1) * unit_bytes
                end = size
                if target < size:
                    end = _border_after(file, target, kind)
                yield Span(name, start, end, kind), end - start
                start = end


def _find_kind(path: Path, plain: BinaryIO | None, size: int, options: ReadOptions) -> Kind:
    """Detect what a line of the file holds, from its beginning and, if plain, from its middle.

    size: approximate bytes of its text.
    """
    form = format_of(path)
    if form == "csv" or form == "tsv":
        return form
    if form == "jsonl":
        return "records"
    if options.documents == "line":
        return "documents"
    sample, _ = read_sample(path)
    sample = sample[:_KIND_BYTES]
    if plain and size > 2 * _KIND_BYTES:
        plain.seek(size // 2)
        _, _, whole_lines = plain.read(_KIND_BYTES).partition(b"\n")
        sample += b"\n" + whole_lines
    decoded = streams.with_line_feeds(sample.decode(options.encoding, "surrogateescape"))
    text = Decoder("replace", Counter()).lines(decoded, str)
    lines = [line.strip() for line in text.split("\n")]
    is_auto = options.documents == "auto"
    if is_auto and _are_wrapped(lines):
        return "wrapped"
    counts = [len(split_sentences(line)) for line in lines if line]
    if sum(counts) <= _PARAGRAPH_SENTENCES * len(counts):
        return "sentences"
    has_blank_line = "\n\n" in "\n".join(lines).strip()
    # Without two lines, because the sample may cut them.
    estimate = (len(counts) - 2) * size / len(sample)
    has_few_lines = max(len(counts), estimate) <= _FEW_LINES
    if is_auto and not has_blank_line and not has_few_lines:
        return "documents"
    return "paragraphs"


def _are_wrapped(lines: list[str]) -> bool:
    """Whether the sentences of stripped lines continue in the next line, cut at one width."""
    pairs = [(line, following) for line, following in pairwise(lines) if line and following]
    pair_count = len(pairs)
    if pair_count < _MIN_WRAPPED_LINES:
        return False
    lengths = sorted(len(line) for line in lines if line)
    width = lengths[int(0.9 * len(lengths))]  # wrapped by hand, lines differ
    full = 0
    lower = 0
    words = 0
    for line, following in pairs:
        words += len(line.split())
        next_word = following.split()[0]
        full += len(line) + 1 + len(next_word) > width
        lower += next_word[0].islower() and line[-1] not in ".!?…"
    is_prose = lower >= _LOWER * pair_count and words >= _MIN_WRAPPED_WORDS * pair_count
    is_filled = full >= _WRAPPED * pair_count
    return is_prose and is_filled and width in _WRAPPED_WIDTHS


def _border_after(file: BinaryIO, position: int, kind: Kind) -> int:
    """The offset after the first document boundary from `position` on, or the file's end."""
    border = _BLANK_LINE
    if kind in ("records", "documents"):
        border = re.compile(rb"\n")
    file.seek(position)
    tail = b""  # a possible start of a blank line that ends in the next block
    for block in iter(partial(file.read, streams.BLOCK_BYTES), b""):
        while block.endswith(b"\r"):  # \r\n is one line end
            following = file.read(1)
            if not following:
                break
            block += following
        position += len(block)
        window = tail + block
        match = border.search(window)
        if match:
            return position - len(window) + match.end()
        ending = window[len(window.rstrip()) :]
        tail = b""
        if b"\n" in ending or b"\r" in ending:
            tail = b"\n"
    return position


def read_unit(unit: Unit, counts: Counter[str]) -> Iterator[Document]:
    """Read the documents of a unit, with bounded memory; counts what was read and skipped."""
    for span in unit.spans:
        if span.start == 0:
            counts["files"] += 1
            counts[f"files_of_{span.kind}"] += 1
        documents_before = counts["documents"]
        sentences_before = counts["sentences"]
        yield from counted(_read_span(span, unit.options, counts), counts)
        is_long = counts["sentences"] > sentences_before + _FEW_LINES
        is_one = span.start == 0 and counts["documents"] == documents_before + 1
        if span.kind in _UNBROKEN and is_long and is_one:
            is_whole = span.end in (_TO_THE_END, Path(span.path).stat().st_size)
            counts[_UNBROKEN[span.kind]] += is_whole


def _read_span(span: Span, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    decoder = Decoder(options.bad_utf8, counts)
    if span.kind in get_args(Layout):
        with _lines(span, options, counts, cut=True) as lines:
            texts = (decoder.lines(text, partial(lines.location, first)) for first, text in lines)
            yield from documents_of_lines(texts, cast("Layout", span.kind), counts)
    else:
        yield from documents_of_records(_records(span, options, counts), decoder)


@contextmanager
def _lines(span: Span, options: ReadOptions, counts: Counter[str], *, cut: bool) -> Iterator[Lines]:
    open_file = open_stream if span.end == _TO_THE_END else open_regular
    with open_file(span.path) as file:
        if span.start:
            file.seek(span.start)
        yield Lines(span.path, file, span.start, span.end, counts, cut, options.encoding)


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
                kind = json_kind(text)
                raise DataError(f"{location()}: {column!r} holds {kind}, not text; correct it")
            yield text or "", location


def _csv_records(lines: Lines, kind: Kind, column: str) -> Iterator[Record]:
    """The field `column` of each row that is not blank; counts separators other than commas."""
    texts = (line for _, line in _numbered(lines))
    first = [*islice(texts, QUOTED_LINES)]
    delimiter: str | None = "\t"
    if kind == "csv":
        delimiter = csv_delimiter(first, (column,))
        if delimiter != ",":
            name = SEPARATORS.get(delimiter, delimiter)
            lines.counts[f"CSV files separated by {name}"] += 1
    elif "\t" in "".join(first[:1]):
        delimiter, _ = quoting(first)
    location = partial(lines.location, -1)  # rows are numbered from 1
    rows = split_rows(chain(first, texts), delimiter, location)
    _, header = next(rows, (1, []))
    if header.count(column) != 1:
        raise _missing_column(lines.path, column, header)
    position = header.index(column)
    for number, row in rows:
        if row == [""]:
            continue
        if len(row) != len(header):
            raise DataError(
                f"{location(number)}: {len(row)} fields where the header has {len(header)}; "
                f"quote fields that contain {delimiter!r}"
            )
        yield row[position], partial(location, number)


def _column_records(span: Span, column: str, counts: Counter[str]) -> Iterator[Record]:
    """The texts of row groups or record batches.

    Read as bytes, because even string columns may not be UTF-8.
    """
    with open_columnar(span.path) as opened:
        for first, batch in opened.batches(span.start, span.end, [column]):
            texts = batch.column(0)
            for start in range(0, len(texts), _ROWS):
                content = _as_bytes(texts.slice(start, _ROWS))
                for row, raw in enumerate(content, first + start + 1):
                    counts["bytes"] += len(raw or b"")
                    text = (raw or b"").decode("utf-8", "surrogateescape")
                    yield text, partial("{}, row {}".format, span.path, row)


def _as_bytes(texts: Any) -> list[bytes | None]:
    """The bytes of each text of a pyarrow.Array."""
    import pyarrow
    from pyarrow import types

    if types.is_null(texts.type):
        return [None] * len(texts)
    if types.is_dictionary(texts.type):
        texts.validate(full=True)
        texts = texts.dictionary_decode()
    kind = pyarrow.large_binary()
    if types.is_string_view(texts.type):
        kind = pyarrow.binary_view()
    elif types.is_string(texts.type):
        kind = pyarrow.binary()
    texts = texts.view(kind)
    texts.validate(full=True)  # Arrow trusts offsets, so damage could cause reads out of bounds
    return list(texts.to_pylist())


def _check_column(path: str, schema: Any, column: str) -> None:
    """Raise DataError unless `column` of a pyarrow.Schema occurs once and holds text."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise _missing_column(path, column, schema.names)
    kind = schema.field(column).type
    value = kind
    if types.is_dictionary(kind):
        value = kind.value_type
    checks = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(is_kind(value) for is_kind in checks):
        raise DataError(f"{path}: column {column!r} holds {kind}, not text; set --text_column")


def _missing_column(location: str, column: str, columns: list[str]) -> DataError:
    names = ", ".join(map(repr, columns[:20])) or "none"
    if len(columns) > 20:
        names += ", …"
    problem = "missing"
    if column in columns:
        problem = "duplicated"
    return DataError(
        f"{location}: column {column!r} is {problem} (columns: {names}); set --text_column"
    )
