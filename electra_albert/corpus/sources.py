"""Text files to documents of sentences: find them, cut them into units, read a unit as a stream.

A blank line ends a document. What a file is, one sentence or one paragraph a line, is found from a bounded sample.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.near_duplicates import HEAD_CHARACTERS, groups_of, name_group
from electra_albert.corpus.sentences import split_sentences
from electra_albert.corpus.text_files import BYTE_ORDER_MARK, SAMPLE_BYTES, find_files, identity, same_content

__all__ = ["Document", "Unit", "find_files", "identity", "plan_units", "read_unit", "same_content"]

Kind = Literal["sentences", "paragraphs", "documents"]

MAX_LINE_BYTES = 1 << 20  # a longer line is cut at white space
_BLOCK_BYTES = 1 << 18
_MAX_SENTENCES = 100_000  # of one Document; the same document goes on in the next
_MAX_CHARACTERS = 8 << 20
_HEAD_SENTENCES = 400  # that are looked at for the group
_PARAGRAPH_SENTENCES = 1.35  # a line on average, from which the lines of a file are taken to be paragraphs

_INNER_SPACE = bytes(c for c in range(33) if chr(c).isspace() and c != 10)
_TO_SPACE = bytes.maketrans(_INNER_SPACE, b" " * len(_INNER_SPACE))
_WIDE_SPACE = re.compile(r"[^\S \n]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK_LINE = re.compile(rb"\n[ \t\x0b\x0c\x1c-\x1f]*\n")
_BLANK_LINE_ANY = re.compile(rb"(?>\r\n|\n|\r)[ \t\x0b\x0c\x1c-\x1f]*(?>\r\n|\n|\r)")


class Document(NamedTuple):
    """Consecutive sentences of one document."""

    group: int  # 63 bits: documents of one group stay on one side of the held-out split
    sentences: list[str]  # stripped, none empty, no line ends inside
    continues: bool = False  # the same document goes on in the next Document


class Unit(NamedTuple):
    """A piece of the corpus that one process reads on its own; it begins and ends where documents do."""

    path: str
    start: int  # byte offsets
    end: int
    kind: Kind  # what a line holds: a sentence, a paragraph, or {"source": …, "sentences": […]}


# Where to cut.


def plan_units(files: list[Path], unit_bytes: int = 8 << 20) -> list[Unit]:
    """Units of about `unit_bytes`, in order: each ends at the first document border at or after a multiple of it."""
    units = []
    for path in files:
        kind = _find_kind(path)
        size = path.stat().st_size
        start = 0
        with path.open("rb") as file:
            while start < size:
                target = (start // unit_bytes + 1) * unit_bytes
                end = _border_after(file, target, kind) if target < size else size
                units.append(Unit(str(path), start, end, kind))
                start = end
    return units


def _find_kind(path: Path) -> Kind:
    """What a line of the file holds, from its first bytes and a piece of its middle."""
    with path.open("rb") as file:
        sample = file.read(SAMPLE_BYTES)
        if path.suffix == ".jsonl":
            if _is_document(sample.partition(b"\n")[0]):
                return "documents"
            raise DataError(f'{path}: a line must be {{"source": text, "sentences": [text, …]}}; or give plain text')
        size = path.stat().st_size
        if size > 2 * SAMPLE_BYTES:
            file.seek(size // 2)
            sample += b"\n" + file.read(SAMPLE_BYTES // 4).partition(b"\n")[2]
    lines = [line for line in _to_text(_with_line_feeds(sample), Counter()).split("\n")[:-1] if line.strip()]
    sentences = sum(len(split_sentences(line)) for line in lines)
    return "paragraphs" if sentences > _PARAGRAPH_SENTENCES * len(lines) else "sentences"


def _is_document(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and {"source", "sentences"} <= record.keys()


def _border_after(file: BinaryIO, position: int, kind: Kind) -> int:
    """The offset behind the first document border found from `position` on, or the end of the file."""
    file.seek(position)
    tail = b""  # what may be the beginning of a blank line that ends in the next block
    while block := file.read(_BLOCK_BYTES):
        while block.endswith(b"\r") and (following := file.read(1)):
            block += following  # a line feed belongs to it
        position += len(block)
        window = tail + block
        pattern = re.compile(rb"\n") if kind == "documents" else _BLANK_LINE_ANY if b"\r" in window else _BLANK_LINE
        if found := pattern.search(window):
            return position - len(window) + found.end()
        ending = window[len(window.rstrip()) :]
        tail = b"\n" if b"\n" in ending or b"\r" in ending else b""
    return position


# Reading.


def read_unit(unit: Unit, counts: Counter[str]) -> Iterator[Document]:
    """The documents of a unit in order, with bounded memory. What was read, mended and cut is added to `counts`."""
    counts["bytes"] += unit.end - unit.start
    if unit.start == 0:
        counts["files"] += 1
        counts[f"files_of_{unit.kind}"] += 1
    try:
        with open(unit.path, "rb") as file:
            pieces = _pieces(file, unit, counts)
            read = _read_records if unit.kind == "documents" else _read_lines
            yield from read(unit, pieces, counts)
    except OSError as error:
        raise UsageError(f"{unit.path}: cannot be read ({error.strerror}); it was there a moment ago") from error


def _pieces(file: BinaryIO, unit: Unit, counts: Counter[str]) -> Iterator[str]:
    """Runs of whole lines, each ended by a newline."""
    file.seek(unit.start)
    left = unit.end - unit.start
    rest = b""
    if unit.start == 0:
        rest = file.read(min(len(BYTE_ORDER_MARK), left))
        left -= len(rest)
        if rest == BYTE_ORDER_MARK:
            counts["byte_order_marks"] += 1
            rest = b""
    while left:
        block = file.read(min(_BLOCK_BYTES, left))
        if not block:
            raise DataError(f"{unit.path}: became shorter while it was read; leave it alone and start again")
        left -= len(block)
        block = rest + block
        held_back = b"\r" if block.endswith(b"\r") and left else b""  # its line feed may follow
        block = block.removesuffix(held_back)
        block = _with_line_feeds(block)
        cut = b""
        while unit.kind != "documents" and _first_line_bytes(block) > MAX_LINE_BYTES:
            head, block = _cut_line(block)
            cut += head + b"\n"
            counts["long_lines_cut"] += 1
        whole, newline, rest = block.rpartition(b"\n")
        rest += held_back
        if cut or newline:
            yield _to_text(cut + whole + newline, counts)
    if rest:
        yield _to_text(rest + b"\n", counts)


def _with_line_feeds(raw: bytes) -> bytes:
    """Every line end as one line feed."""
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw


def _first_line_bytes(block: bytes) -> int:
    """Only the first line of a block can be long: what follows began in the block itself."""
    end = block.find(b"\n")
    return len(block) if end < 0 else end


def _cut_line(line: bytes) -> tuple[bytes, bytes]:
    """A line of more than MAX_LINE_BYTES in two: at the last space that fits, else between two characters."""
    at = line.rfind(b" ", MAX_LINE_BYTES // 2, MAX_LINE_BYTES) + 1
    if not at:
        at = MAX_LINE_BYTES
        while at > MAX_LINE_BYTES - 4 and line[at] & 0xC0 == 0x80:
            at -= 1
    return line[:at], line[at:]


def _to_text(raw: bytes, counts: Counter[str]) -> str:
    """Decoded text in which every white space but the newline is a plain space."""
    raw = raw.translate(_TO_SPACE)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text, invalid = _SURROGATE.subn("\ufffd", raw.decode("utf-8", "surrogateescape"))
        counts["invalid_bytes"] += invalid
    return text if text.isascii() else _WIDE_SPACE.sub(" ", text)


def _read_lines(unit: Unit, pieces: Iterable[str], counts: Counter[str]) -> Iterator[Document]:
    """Documents between blank lines. Those that end in one piece get their keys together, which is much faster."""
    sentences: list[str] = []  # of the document that has not ended
    group: int | None = None  # its key, once a first part of it was handed on
    for piece in pieces:
        ended: list[list[str]] = []
        for line in map(str.strip, piece[:-1].split("\n")):
            if line and unit.kind == "sentences":
                sentences.append(line)
            elif line:
                sentences += split_sentences(line)
                counts["paragraphs_split"] += 1
            elif sentences:
                ended.append(sentences)
                sentences = []
        if ended and group is not None:
            yield _counted(Document(group, ended.pop(0)), counts)
            group = None
        if ended:
            for key, document in zip(groups_of(list(map(_head, ended))), ended, strict=True):
                yield _counted(Document(key, document), counts)
        if len(sentences) > _MAX_SENTENCES or sum(map(len, sentences)) > _MAX_CHARACTERS:
            group = groups_of([_head(sentences)])[0] if group is None else group
            last = sentences.pop()  # held back, so that a part follows
            yield _counted(Document(group, sentences, continues=True), counts)
            sentences = [last]
    if sentences:
        group = groups_of([_head(sentences)])[0] if group is None else group
        yield _counted(Document(group, sentences), counts)


def _head(sentences: list[str]) -> str:
    """The beginning of a document, which decides its group."""
    return " ".join(sentences[:_HEAD_SENTENCES])[:HEAD_CHARACTERS]


def _read_records(unit: Unit, pieces: Iterable[str], counts: Counter[str]) -> Iterator[Document]:
    for piece in pieces:
        for line in filter(str.strip, piece[:-1].split("\n")):
            try:
                record = json.loads(line)
                source, texts = str(record["source"]), [" ".join(text.split()) for text in record["sentences"]]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                shown = line[:40].encode("unicode_escape").decode()
                raise DataError(f"{unit.path}: not a document of sentences: {shown}…; write the file anew") from error
            if sentences := [text for text in texts if text]:
                yield _counted(Document(name_group(source), sentences), counts)
            else:
                counts["documents_without_sentences"] += 1


def _counted(document: Document, counts: Counter[str]) -> Document:
    counts["documents"] += not document.continues
    counts["sentences"] += len(document.sentences)
    return document
