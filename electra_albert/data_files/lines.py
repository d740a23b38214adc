"""Whole lines of a file as text, in runs of bounded size, with their numbers.

A line ends at a line feed, a carriage return, or both; nothing else ends one. Bytes that are not in the encoding become
lone surrogates.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from electra_albert.contracts import DataError
from electra_albert.data_files.streams import UTF8, open_stream

MAX_LINE_BYTES = 1 << 20  # of UTF-8; a longer line of text is cut at white space
MAX_RECORD = 64 << 20  # characters; a longer line of a file of records is refused
SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that is not in the encoding, or what JSON holds alone
BLOCK_BYTES = 1 << 18  # less than the longest line, so that only the first line of a block can be too long


class Lines:
    """Iterates over runs of whole lines of `file` from byte `start` to `end`, or, where that is -1, to its end.

    Each run is the number of its first line, from 0 where the reading began, and its text, which ends in a line feed.
    """

    def __init__(
        self, path: str, file: BinaryIO, start: int, end: int, counts: Counter[str], *, cut: bool, encoding: str = UTF8
    ) -> None:
        self.path, self.counts = path, counts
        self._file, self._start, self._end, self._cut, self._encoding = file, start, end, cut, encoding

    def place(self, number: int, more: int = 0) -> str:
        """File and line, by its number from where the reading began and so many more; counts the lines before that."""
        before = 0
        with open_stream(self.path) as file:
            for first, text in Lines(self.path, file, 0, self._start, Counter(), cut=True, encoding=self._encoding):
                before = first + text.count("\n")
        return f"{self.path}, line {before + number + more + 1}"

    def __iter__(self) -> Iterator[tuple[int, str]]:
        held: list[str] = []  # the beginning of a line whose end has not come
        size = number = 0
        for block in self._blocks():
            held.append(block)
            size += len(block)
            if "\n" not in block and size <= (MAX_LINE_BYTES // 4 if self._cut else MAX_RECORD):
                continue
            joined = "".join(held)
            if not self._cut and len(joined) > MAX_RECORD and len(joined.partition("\n")[0]) > MAX_RECORD:
                raise DataError(f"{self.place(number)}: a line of over 64 million characters; give one record a line")
            while self._cut and (found := cut_line(joined)):
                head, joined = found
                self.counts["long_lines_cut"] += 1
                yield number, head + "\n"
            whole, newline, rest = joined.rpartition("\n")
            if newline:
                yield number, whole + newline
                number += whole.count("\n") + 1
            held, size = [rest], len(rest)
        if size:
            yield number, "".join(held) + "\n"

    def _blocks(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self._encoding)("surrogateescape")
        to_line_feeds = io.IncrementalNewlineDecoder(decoder, translate=True)
        left = self._end - self._start if self._end >= 0 else None  # bytes not read yet, where that is known
        while block := self._file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left)):
            self.counts["bytes"] += len(block)
            left = None if left is None else left - len(block)
            yield to_line_feeds.decode(block)
        if left:
            raise DataError(f"{self.path}: became shorter while it was read; leave it alone and start again")
        yield to_line_feeds.decode(b"", final=True)


def with_line_feeds(text: str) -> str:
    """Every line end as one line feed."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def cut_line(text: str) -> tuple[str, str] | None:
    """Text in two where its first line has more than MAX_LINE_BYTES: at the last space that fits, else anywhere."""
    length = text.find("\n") if "\n" in text else len(text)
    if length <= MAX_LINE_BYTES // 4:
        return None
    raw = SURROGATE.sub("\udcff", text[:length]).encode("utf-8", "surrogateescape")
    if len(raw) <= MAX_LINE_BYTES:
        return None
    at = raw.rfind(b" ", MAX_LINE_BYTES // 2, MAX_LINE_BYTES) + 1
    if not at:
        at = MAX_LINE_BYTES
        while at > MAX_LINE_BYTES - 4 and raw[at] & 0xC0 == 0x80:
            at -= 1
    kept = len(raw[:at].decode("utf-8", "surrogateescape"))
    return text[:kept], text[kept:]
