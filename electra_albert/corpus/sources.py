"""A corpus as documents of sentences: cut its files into units, read a unit as a stream.

In plain text a blank line ends a document, and what a line is, a sentence or a paragraph, is found from a bounded
sample. In files of records each record is a document.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from electra_albert.contracts import DataError
from electra_albert.corpus.compressed import COMPRESSED_SUFFIXES, ByteStream, compression, open_regular, open_stream
from electra_albert.corpus.decoding import BadUtf8, Decoder
from electra_albert.corpus.documents import (
    Document,
    Record,
    documents_of_lines,
    documents_of_named,
    documents_of_records,
)
from electra_albert.corpus.formats import format_of, read_sample
from electra_albert.corpus.lines import BLOCK_BYTES, MAX_LINE_BYTES, UTF8, Lines, transcoder, with_line_feeds
from electra_albert.corpus.records import DELIMITERS, is_named_record, read_csv, read_json_lines, read_named_records
from electra_albert.corpus.sentences import split_sentences
from electra_albert.corpus.tables import arrow_pieces, parquet_pieces, read_arrow, read_parquet
from electra_albert.corpus.text_files import find_files, identity, refreshed, same_content

__all__ = [
    "MAX_LINE_BYTES",
    "BadUtf8",
    "Document",
    "Reading",
    "Span",
    "Unit",
    "find_files",
    "identity",
    "plan_units",
    "read_unit",
    "refreshed",
    "require_columns",
    "same_content",
]

Kind = Literal["sentences", "paragraphs", "documents", "records", "csv", "tsv", "parquet", "arrow"]

_TO_THE_END = -1
_KIND_BYTES = 1 << 18  # of a sample, that are looked at for the kind of text
_PARAGRAPH_SENTENCES = 1.35  # a line on average, from which the lines of a file are taken to be paragraphs
_EXPANSION = 4  # of compressed text, about: only for how much goes into one unit
_BLANK_LINE = re.compile(rb"\n[ \t\x0b\x0c\x1c-\x1f]*\n")
_BLANK_LINE_ANY = re.compile(rb"(?>\r\n|\n|\r)[ \t\x0b\x0c\x1c-\x1f]*(?>\r\n|\n|\r)")
_TABLE_READERS = {"parquet": read_parquet, "arrow": read_arrow}
_TABLE_PIECES = {"parquet": parquet_pieces, "arrow": arrow_pieces}


class Reading(NamedTuple):
    """How files are read."""

    text_column: str = "text"  # of records and tables
    bad_utf8: BadUtf8 = "replace"  # what becomes of a line (of a piece of one over 1 MiB) or record that is not UTF-8
    encoding: str = UTF8  # of text, JSON and CSV; our own form, Parquet and Arrow are in UTF-8


_AS_USUAL = Reading()


class Span(NamedTuple):
    """A piece of one file; it begins and ends where documents do."""

    path: str
    start: int  # bytes of lines; row groups of Parquet; record batches, or bytes of a stream, of Arrow
    end: int  # -1: to the end, of what is compressed or cannot be cut
    kind: Kind  # what it holds


class Unit(NamedTuple):
    """A piece of the corpus that one process reads on its own."""

    spans: tuple[Span, ...]
    reading: Reading = _AS_USUAL


class _Sized(NamedTuple):
    span: Span
    size: int  # bytes of text, about


# Where to cut.


def require_columns(files: Iterable[Path], reading: Reading) -> None:
    """Raise DataError where a file of records does not hold the column of texts, as far as its first record shows."""
    for path in files:
        form = format_of(path)
        if form == "parquet" or form == "arrow":
            next(_cut_table(path, form, reading.text_column), None)
        elif form != "text" and (kind := _find_kind(path, None, reading)) != "documents":
            with open_stream(path) as stream:
                lines = _lines(Span(str(path), 0, _TO_THE_END, kind), stream, reading, Counter())
                next(_records(lines, kind, reading.text_column), None)


def plan_units(files: list[Path], reading: Reading = _AS_USUAL, unit_bytes: int = 8 << 20) -> list[Unit]:
    """Units of about `unit_bytes`, in order: a big file gives many, many small files give one.

    Raises DataError where a file is damaged or has no column of texts, and UsageError where it cannot be read.
    """
    units = []
    spans: list[Span] = []
    size = 0
    for path in files:
        for sized in _cut_file(path, reading, unit_bytes):
            if spans and size + sized.size > unit_bytes:
                units.append(Unit(tuple(spans), reading))
                spans, size = [], 0
            if spans and (spans[-1].path, spans[-1].end) == (sized.span.path, sized.span.start):  # it goes on
                spans[-1] = spans[-1]._replace(end=sized.span.end)
            else:
                spans.append(sized.span)
            size += sized.size
    return [*units, Unit(tuple(spans), reading)] if spans else units


def _cut_file(path: Path, reading: Reading, unit_bytes: int) -> Iterator[_Sized]:
    form = format_of(path) or "text"
    if form == "parquet" or form == "arrow":
        yield from _cut_table(path, form, reading.text_column)
        return
    with open_regular(path) as file:
        size = path.stat().st_size
        is_compressed = compression(file.read(16)) is not None
        kind = _find_kind(path, None if is_compressed else file, reading)
        if is_compressed or kind in DELIMITERS or path.suffix.lower() in COMPRESSED_SUFFIXES:
            yield _Sized(Span(str(path), 0, _TO_THE_END, kind), size * (_EXPANSION if is_compressed else 1))
            return
        start = 0
        while start < size:
            target = (start // unit_bytes + 1) * unit_bytes
            end = _border_after(file, target, kind) if target < size else size
            yield _Sized(Span(str(path), start, end, kind), end - start)
            start = end


def _cut_table(path: Path, kind: Literal["parquet", "arrow"], column: str) -> Iterator[_Sized]:
    if path.suffix.lower() in COMPRESSED_SUFFIXES:
        raise DataError(f"{path}: a compressed table cannot be read in pieces; decompress it first")
    for piece in _TABLE_PIECES[kind](str(path), column):
        yield _Sized(Span(str(path), piece.start, piece.end, kind), piece.size)


def _find_kind(path: Path, plain: BinaryIO | None, reading: Reading) -> Kind:
    """What a line of the file holds, from its first bytes and, of a plain file, a piece of its middle.

    Records are taken for our own form only where no other column than the usual one is asked for.
    """
    form = format_of(path)
    if form == "csv" or form == "tsv":
        return form
    sample, is_whole = read_sample(path)
    if form == "jsonl":
        first_line = with_line_feeds(sample).lstrip(b"\n").partition(b"\n")[0]
        is_own = reading.text_column == _AS_USUAL.text_column and is_named_record(first_line)
        return "documents" if is_own else "records"
    size = path.stat().st_size
    if is_whole and len(sample) <= _KIND_BYTES:
        sample += b"\n"  # its last line is whole as well
    sample = sample[:_KIND_BYTES]
    if plain is not None and size > 2 * _KIND_BYTES:
        plain.seek(size // 2)
        sample += b"\n" + plain.read(_KIND_BYTES).partition(b"\n")[2]
    sample = transcoder(reading.encoding)(sample, True)
    text = Decoder("replace", Counter()).lines(with_line_feeds(sample), str)
    lines = [line for line in text.split("\n")[:-1] if line.strip()]
    sentences = sum(len(split_sentences(line)) for line in lines)
    return "paragraphs" if sentences > _PARAGRAPH_SENTENCES * len(lines) else "sentences"


def _border_after(file: BinaryIO, position: int, kind: Kind) -> int:
    """The offset behind the first document border found from `position` on, or the end of the file."""
    file.seek(position)
    tail = b""  # what may be the beginning of a blank line that ends in the next block
    is_records = kind in ("documents", "records")
    while block := file.read(BLOCK_BYTES):
        while block.endswith(b"\r") and (following := file.read(1)):
            block += following  # a line feed belongs to it
        position += len(block)
        window = tail + block
        pattern = re.compile(rb"\n") if is_records else _BLANK_LINE_ANY if b"\r" in window else _BLANK_LINE
        if found := pattern.search(window):
            return position - len(window) + found.end()
        ending = window[len(window.rstrip()) :]
        tail = b"\n" if b"\n" in ending or b"\r" in ending else b""
    return position


# Reading.


def read_unit(unit: Unit, counts: Counter[str]) -> Iterator[Document]:
    """The documents of a unit in order, with bounded memory. What was read, mended and left out is added to `counts`.

    Raises DataError where a file is damaged, changed or holds what `unit.reading` does not allow, and UsageError where
    it cannot be read any more.
    """
    for span in unit.spans:
        if span.start == 0:
            counts["files"] += 1
            counts[f"files_of_{span.kind}"] += 1
        yield from _read_span(span, unit.reading, counts)


def _read_span(span: Span, reading: Reading, counts: Counter[str]) -> Iterator[Document]:
    decoder = Decoder(reading.bad_utf8, counts)
    if span.kind in _TABLE_READERS:
        records = _TABLE_READERS[span.kind](span.path, span.start, span.end, reading.text_column)
        yield from documents_of_records(_with_bytes_counted(records, counts), decoder)
    elif span.end == _TO_THE_END:
        with open_stream(span.path) as stream:
            yield from _documents(_lines(span, stream, reading, counts), span.kind, reading.text_column, decoder)
    else:
        with open_regular(span.path) as file:
            file.seek(span.start)
            yield from _documents(_lines(span, file, reading, counts), span.kind, reading.text_column, decoder)


def _lines(span: Span, file: ByteStream, reading: Reading, counts: Counter[str]) -> Lines:
    is_text = span.kind in ("sentences", "paragraphs")
    encoding = UTF8 if span.kind == "documents" else reading.encoding  # our own form is always in UTF-8
    return Lines(span.path, file, span.start, span.end, counts, cut=is_text, encoding=encoding)


def _documents(lines: Lines, kind: Kind, column: str, decoder: Decoder) -> Iterator[Document]:
    if kind == "documents":
        return documents_of_named(read_named_records(lines), decoder)
    if kind == "records" or kind in DELIMITERS:
        return documents_of_records(_records(lines, kind, column), decoder)
    texts = (decoder.lines(run.raw, partial(lines.place_in, run)) for run in lines)
    return documents_of_lines(texts, split=kind == "paragraphs", counts=decoder.counts)


def _records(lines: Lines, kind: Kind, column: str) -> Iterator[Record]:
    return read_csv(lines, column, DELIMITERS[kind]) if kind in DELIMITERS else read_json_lines(lines, column)


def _with_bytes_counted(records: Iterator[Record], counts: Counter[str]) -> Iterator[Record]:
    for record in records:
        counts["bytes"] += len(record.raw or b"")
        yield record
