"""Whole lines of a file as UTF-8 bytes, in runs of bounded size, with their numbers.

A line ends at a line feed, a carriage return, or both; nothing else ends one.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from electra_albert.contracts import DataError
from electra_albert.data_files.streams import UTF8, open_stream

MAX_LINE_BYTES = 1 << 20  # a longer line of text is cut at white space
MAX_RECORD_BYTES = 64 << 20  # a longer line of a file of records is refused
BLOCK_BYTES = 1 << 18  # less than the longest line, so that only the first line of a block can be too long
_SURROGATE = re.compile("[\ud800-\udfff]")


class Run(NamedTuple):
    """Whole lines, each ended by a line feed."""

    raw: bytes
    first: int  # number of the first one, from 0 where the reading began


class Lines:
    """Iterates over the runs of lines of `file` from byte `start` to `end`, or to the end of the file where that is -1.

    Raises DataError where the file ends before `end`, and where a line that must not be cut is too long.
    """

    def __init__(
        self,
        path: str,
        file: BinaryIO,
        start: int,
        end: int,
        counts: Counter[str],
        *,
        cut: bool,
        encoding: str = UTF8,
    ) -> None:
        self.path, self.counts = path, counts
        self._to_utf8 = transcoder(encoding)
        self._file, self._start, self._cut = file, start, cut
        self._left = end - start if end >= 0 else None  # bytes not read yet, where that is known

    def place(self, number: int, more: int = 0) -> str:
        """File and line, by the number of the line from where the reading began, and so many more."""
        return f"{self.path}, line {_count_lines(self.path, self._start) + number + more + 1}"

    def __iter__(self) -> Iterator[Run]:
        longest = MAX_LINE_BYTES if self._cut else MAX_RECORD_BYTES
        held: list[bytes] = []  # the beginning of a line whose end has not come
        held_bytes = number = 0
        for block in self._blocks():
            held.append(block)
            held_bytes += len(block)
            if b"\n" not in block and held_bytes <= longest:
                continue
            joined = b"".join(held)
            while _first_line_bytes(joined) > longest:
                if not self._cut:
                    message = f"{self.place(number)}: more than {longest >> 20} MB in one line"
                    raise DataError(f"{message}; give one record a line")
                head, joined = cut_line(joined)
                self.counts["long_lines_cut"] += 1
                yield Run(head + b"\n", number)
            whole, newline, rest = joined.rpartition(b"\n")
            if newline:
                yield Run(whole + newline, number)
                number += whole.count(b"\n") + 1
            held, held_bytes = [rest], len(rest)
        if held_bytes:
            yield Run(b"".join(held) + b"\n", number)

    def _blocks(self) -> Iterator[bytes]:
        """Blocks in UTF-8 with line feeds only; a carriage return at the end of a block waits for what follows."""
        waiting = b""
        while block := self._read():
            self.counts["bytes"] += len(block)
            block = waiting + self._to_utf8(block, False)
            waiting = b"\r" if block.endswith(b"\r") else b""
            yield with_line_feeds(block.removesuffix(waiting))
        if rest := with_line_feeds(waiting + self._to_utf8(b"", True)):
            yield rest

    def _read(self) -> bytes:
        if self._left is None:
            return self._file.read(BLOCK_BYTES)
        block = self._file.read(min(BLOCK_BYTES, self._left))
        self._left -= len(block)
        if self._left and not block:
            raise DataError(f"{self.path}: became shorter while it was read; leave it alone and start again")
        return block


def transcoder(encoding: str) -> Callable[[bytes, bool], bytes]:
    """Turns blocks of bytes into UTF-8; a character may go on in the next block, unless the block is the last one.

    Each byte that is not in the encoding becomes one that is not in UTF-8 either.
    """
    if encoding == UTF8:
        return lambda block, is_last: block
    decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")

    def to_utf8(block: bytes, is_last: bool) -> bytes:
        return _SURROGATE.sub("\udcff", decoder.decode(block, is_last)).encode("utf-8", "surrogateescape")

    return to_utf8


def with_line_feeds(raw: bytes) -> bytes:
    """Every line end as one line feed."""
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw


def _first_line_bytes(block: bytes) -> int:
    end = block.find(b"\n")
    return len(block) if end < 0 else end


def cut_line(line: bytes) -> tuple[bytes, bytes]:
    """A line of more than MAX_LINE_BYTES in two: at the last space that fits, else between two characters."""
    at = line.rfind(b" ", MAX_LINE_BYTES // 2, MAX_LINE_BYTES) + 1
    if not at:
        at = MAX_LINE_BYTES
        while at > MAX_LINE_BYTES - 4 and line[at] & 0xC0 == 0x80:
            at -= 1
    return line[:at], line[at:]


def _count_lines(path: str, end: int) -> int:
    """The lines before byte `end` of a file: read once more, for only a message needs it."""
    with open_stream(path) as file:
        before = Lines(path, file, 0, end, Counter(), cut=True)
        runs = [run.first + run.raw.count(b"\n") for run in before] if end else [0]
    return runs[-1]
