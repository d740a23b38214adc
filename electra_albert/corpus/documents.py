"""Bytes to documents of sentences: one rule of decoding for all sources, and the group that keeps a document on one
side of the held-out split.

Every white space but the line feed becomes a plain space. Nothing is mended or left out without being counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from electra_albert.contracts import DataError
from electra_albert.corpus.near_duplicates import HEAD_CHARACTERS, Group, groups_of
from electra_albert.corpus.sentences import split_sentences
from electra_albert.data_files.lines import MAX_LINE_BYTES, cut_line, with_line_feeds
from electra_albert.data_files.streams import BYTE_ORDER_MARK

BadUtf8 = Literal["replace", "skip", "error"]

_INNER_SPACE = bytes(c for c in range(33) if chr(c).isspace() and c != 10) + b"\0"
_TO_SPACE = bytes.maketrans(_INNER_SPACE, b" " * len(_INNER_SPACE))
_WIDE_SPACE = re.compile(r"[^\S \n]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_OTHER_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # those that stand for no byte
_MAX_SENTENCES = 100_000  # of one Document; the same document goes on in the next
_MAX_CHARACTERS = 8 << 20
_HEAD_SENTENCES = 400  # that are looked at for the group
_GATHERED_CHARACTERS = 1 << 20  # of records that get their groups together, which is much faster


class Document(NamedTuple):
    """Consecutive sentences of one document."""

    group: Group  # documents of one group stay on one side of the held-out split
    sentences: list[str]  # stripped, none empty, no line ends inside
    continues: bool = False  # the same document goes on in the next Document


class Record(NamedTuple):
    """The text of one document, as a file of records holds it."""

    raw: bytes | None  # None where the field is null
    place: Callable[[], str]  # file and line or row


def escape(raw: bytes) -> str:
    """Text for a parser: bytes that are not UTF-8 become lone surrogates, which `unescape` turns back."""
    return raw.decode("utf-8", "surrogateescape")


def unescape(text: str) -> bytes:
    """The bytes of a parsed text; a lone surrogate of its own becomes one byte that is not UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _OTHER_SURROGATE.sub("\udcff", text).encode("utf-8", "surrogateescape")


class Decoder(NamedTuple):
    """Turns bytes into text and counts what it does to them."""

    bad_utf8: BadUtf8
    counts: Counter[str]

    def lines(self, raw: bytes, place: Callable[[int], str]) -> str:
        """The text of whole lines; `place` gives file and line for a number in `raw`. A bad line may be missing.

        A line over MAX_LINE_BYTES comes in parts, each a line here: of such a line only the bad parts are left out.
        Raises DataError where bytes are not UTF-8 and that is to be an error.
        """
        raw = self._without_nul(raw)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            if self.bad_utf8 == "error":
                raise _refusal(place(raw.count(b"\n", 0, error.start)), error) from error
            text = self._without_bad_lines(raw) if self.bad_utf8 == "skip" else self._replaced(raw)
        return self._plain(text)

    def record(self, raw: bytes, place: Callable[[], str]) -> str | None:
        """The text of one document at `place`; None where it is left out because of bad bytes.

        Raises DataError where bytes are not UTF-8 and that is to be an error.
        """
        raw = self._cut(self._without_nul(with_line_feeds(raw)))
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            if self.bad_utf8 == "error":
                raise _refusal(place(), error) from error
            if self.bad_utf8 == "skip":
                self.counts["skipped_documents"] += 1
                self.counts["skipped_bytes"] += len(raw)
                return None
            text = self._replaced(raw)
        return self._plain(text)

    def _without_nul(self, raw: bytes) -> bytes:
        self.counts["nul_bytes"] += raw.count(0)
        return raw.translate(_TO_SPACE)

    def _replaced(self, raw: bytes) -> str:
        text, invalid = _SURROGATE.subn("\ufffd", escape(raw))
        self.counts["invalid_bytes"] += invalid
        return text

    def _without_bad_lines(self, raw: bytes) -> str:
        kept = []
        for line in raw.split(b"\n"):
            try:
                kept.append(line.decode())
            except UnicodeDecodeError:
                self.counts["skipped_lines"] += 1
                self.counts["skipped_bytes"] += len(line)
        return "\n".join(kept)

    def _plain(self, text: str) -> str:
        if text.isascii():
            return text
        if marks := text.count(BYTE_ORDER_MARK):
            self.counts["byte_order_marks"] += marks
            text = text.replace(BYTE_ORDER_MARK, "")
        return _WIDE_SPACE.sub(" ", text)

    def _cut(self, raw: bytes) -> bytes:
        """A document without lines that are too long."""
        if len(raw) <= MAX_LINE_BYTES:
            return raw
        lines = []
        for line in raw.split(b"\n"):
            while len(line) > MAX_LINE_BYTES:
                head, line = cut_line(line)
                lines.append(head)
                self.counts["long_lines_cut"] += 1
            lines.append(line)
        return b"\n".join(lines)


def _refusal(place: str, error: UnicodeDecodeError) -> DataError:
    found = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
    return DataError(f"{place}: {found}; mend it, or take --bad_utf8 replace or skip")


def documents_of_lines(texts: Iterable[str], split: bool, counts: Counter[str]) -> Iterator[Document]:
    """Documents between blank lines. `texts` are whole lines, of one sentence or, where `split`, of one paragraph."""
    sentences: list[str] = []  # of the document that has not ended
    group: Group | None = None  # its own, once a first part of it was handed on
    for text in filter(None, texts):  # nothing is left of a run whose lines are all skipped
        ended: list[list[str]] = []
        for line in map(str.strip, text[:-1].split("\n")):
            if line and not split:
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
        yield from _grouped(ended, counts)
        if _is_long(sentences):
            group = groups_of([_head(sentences)])[0] if group is None else group
            last = sentences.pop()  # held back, so that a part follows
            yield _counted(Document(group, sentences, continues=True), counts)
            sentences = [last]
    if sentences:
        group = groups_of([_head(sentences)])[0] if group is None else group
        yield _counted(Document(group, sentences), counts)


def documents_of_records(records: Iterable[Record], decoder: Decoder) -> Iterator[Document]:
    """A document for each record that holds text; a line of it is a paragraph."""
    counts = decoder.counts
    gathered: list[list[str]] = []
    characters = 0
    for record in records:
        text = "" if record.raw is None else decoder.record(record.raw, record.place)
        if text is None:
            continue
        lines = [line for line in map(str.strip, text.split("\n")) if line]
        counts["documents_without_text"] += not lines
        counts["paragraphs_split"] += len(lines)
        if lines:
            gathered.append([sentence for line in lines for sentence in split_sentences(line)])
            characters += len(text)
        if characters > _GATHERED_CHARACTERS:
            yield from _grouped(gathered, counts)
            gathered, characters = [], 0
    yield from _grouped(gathered, counts)


def _grouped(documents: list[list[str]], counts: Counter[str]) -> Iterator[Document]:
    """Documents, with their groups found together, a long one in parts."""
    groups = groups_of(list(map(_head, documents))) if documents else []
    for group, sentences in zip(groups, documents, strict=True):
        *parts, last = _parts(sentences) if _is_long(sentences) else [sentences]
        for part in parts:
            yield _counted(Document(group, part, continues=True), counts)
        yield _counted(Document(group, last), counts)


def _parts(sentences: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    characters = 0
    for sentence in sentences:
        if len(part) >= _MAX_SENTENCES or characters > _MAX_CHARACTERS:
            yield part
            part, characters = [], 0
        part.append(sentence)
        characters += len(sentence)
    yield part


def _is_long(sentences: list[str]) -> bool:
    return len(sentences) > _MAX_SENTENCES or sum(map(len, sentences)) > _MAX_CHARACTERS


def _head(sentences: list[str]) -> str:
    """The beginning of a document, which decides its group."""
    return " ".join(sentences[:_HEAD_SENTENCES])[:HEAD_CHARACTERS]


def _counted(document: Document, counts: Counter[str]) -> Document:
    counts["documents"] += not document.continues
    counts["sentences"] += len(document.sentences)
    return document
