"""Reads files, plain or compressed, as bytes or as blocks of whole lines, with bounded memory."""

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files import encoding_hint

COMPRESSED_SUFFIXES = frozenset((".gz", ".bz2", ".xz", ".zst"))
UTF8 = "utf-8"
BYTE_ORDER_MARK = "\ufeff"
MAX_LINE_BYTES = 1 << 20  # in UTF-8; a longer line of text is cut at white space
MAX_RECORD = 64 << 20  # characters; a longer line in a file of records is an error
SURROGATE = re.compile("[\ud800-\udfff]")  # an undecodable byte, or a lone surrogate in JSON
BLOCK_BYTES = 1 << 18  # below MAX_LINE_BYTES: only the first line of a block can be too long
SHORTER = "became shorter while being read; do not change it, and start again"
_COMPRESSED_BYTES = 1 << 16  # read at once
_MAGIC_BYTES = 10
_MAGIC = {
    b"\x1f\x8b\x08": "gzip",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x50\x2a\x4d\x18": "zstd",  # a skippable frame, written first by pzstd
}
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")  # of data or of an empty file


@contextmanager
def open_regular(path: str | Path, *, takes_pipes: bool = False) -> Iterator[io.BufferedReader]:
    """Open a regular file or, if `takes_pipes`, a pipe, for which it waits.

    Raises UsageError if it cannot be read.
    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not (takes_pipes and stat.S_ISFIFO(mode)):
            raise OSError("not a regular file")
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}); check path and permissions"
        ) from error


@contextmanager
def open_stream(path: str | Path, *, takes_pipes: bool = False) -> Iterator[io.BufferedReader]:
    """Open a file and decompress it if needed, by content, not name.

    Raises DataError if it is damaged.
    """
    with open_regular(path, takes_pipes=takes_pipes) as file:
        method = compression(file.peek(_MAGIC_BYTES))
        suffix = Path(path).suffix
        if method is None and suffix.lower() in COMPRESSED_SUFFIXES and file.peek(1):
            raise DataError(
                f"{path}: named {suffix}, but not compressed; download it again or rename it"
            )
        try:
            if method is None:
                yield file
            else:
                yield io.BufferedReader(_decompressed(method, file), _COMPRESSED_BYTES)
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if method is None or (isinstance(error, OSError) and error.errno is not None):
                raise  # a disk error
            raise DataError(
                f"{path}: damaged or incomplete {method} data ({error}); download it again"
            ) from error


def compression(beginning: bytes) -> str | None:
    """The compression of a file by its first bytes: gzip, bzip2, xz, zstd or None."""
    if beginning.startswith(b"BZh") and beginning[4:10] in _BZIP2_BLOCKS:
        return "bzip2"
    for magic, name in _MAGIC.items():
        if beginning.startswith(magic):
            return name
    return None


def _decompressed(method: str, file: BinaryIO) -> Any:
    if method == "gzip":
        return gzip.GzipFile(fileobj=file)
    if method == "zstd":
        import pyarrow

        return pyarrow.CompressedInputStream(file, "zstd")
    return _Members(file, bz2.BZ2Decompressor if method == "bzip2" else lzma.LZMADecompressor)


class _Members(io.RawIOBase):
    """Decompresses bzip2 or xz members.

    The standard library silently stops at damage after the first one.
    """

    def __init__(self, file: BinaryIO, new: Callable[[], Any]) -> None:
        self._file = file
        self._new = new
        self._member = new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content:
            block = b""
            if self._member.eof:
                padding = self._member.unused_data
                block = padding.lstrip(b"\0")
                while padding and not block:
                    padding = self._file.read(_COMPRESSED_BYTES)
                    block = padding.lstrip(b"\0")
                if not block:
                    break
                self._member = self._new()
            elif self._member.needs_input:
                block = self._file.read(_COMPRESSED_BYTES)
                if not block:
                    raise EOFError("unexpected end of file")
            content = self._member.decompress(block, len(buffer))
        buffer[: len(content)] = content
        return len(content)


def text_lines(path: Path, encoding: str = UTF8, max_bytes: int = MAX_RECORD) -> Iterator[str]:
    """Lines of a file or pipe, without line feeds and byte order mark.

    Raises DataError for undecodable bytes, and for a line that is not shorter than max_bytes (-1:
    any length).
    """
    with open_stream(path, takes_pipes=True) as file:
        for number, raw in enumerate(iter(partial(file.readline, max_bytes), b""), start=1):
            if len(raw) == max_bytes:
                raise DataError(
                    f"{path}:{number}: a line of {max_bytes:,} bytes or more; "
                    "write one example per line"
                )
            try:
                line = raw.decode(encoding).removesuffix("\n")
            except UnicodeDecodeError as error:
                advice = encoding_hint(raw) if encoding == UTF8 else "choose another --encoding"
                raise DataError(
                    f"{path}:{number}: bytes that are not {encoding.upper()}; {advice}"
                ) from error
            yield line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


@dataclass
class Lines:
    """Iterates over blocks of whole lines of `file` from byte `start` to `end`; -1: to its end.

    A block is the number of its first line, counted from 0 at `start`, and its text, which ends in
    a line feed. A line ends at a line feed, a carriage return, or both. Undecodable bytes become
    lone surrogates.
    """

    path: str
    file: BinaryIO
    start: int
    end: int
    counts: Counter[str]
    cut: bool  # cut long lines, else raise DataError
    encoding: str

    def location(self, number: int, more: int = 0) -> str:
        """Format file and line `number` + `more`, counted from `start`."""
        number += more + 1
        with open_stream(self.path) as file:
            before = replace(self, file=file, start=0, end=self.start, counts=Counter(), cut=True)
            number += sum(text.count("\n") for _, text in before)
        number -= before.counts["long_lines_cut"]
        return f"{self.path}, line {number}"

    def __iter__(self) -> Iterator[tuple[int, str]]:
        start: list[str] = []  # of an incomplete line
        size = number = 0
        enough = MAX_LINE_BYTES // 4 if self.cut else MAX_RECORD
        for block in self._blocks():
            start.append(block)
            size += len(block)
            if "\n" not in block and size <= enough:
                continue
            text = "".join(start)
            halves = cut_line(text) if self.cut else None
            while halves:
                head, text = halves
                self.counts["long_lines_cut"] += 1
                yield number, head + "\n"
                halves = cut_line(text)
            if len(text.partition("\n")[0]) > MAX_RECORD:
                raise DataError(
                    f"{self.location(number)}: a line of over 64 million characters; "
                    "use a line per record"
                )
            lines, line_feed, rest = text.rpartition("\n")
            if line_feed:
                yield number, lines + line_feed
                number += lines.count("\n") + 1
            start = [rest]
            size = len(rest)
        if size:
            yield number, "".join(start) + "\n"

    def _blocks(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self.encoding)("surrogateescape")
        to_line_feeds = io.IncrementalNewlineDecoder(decoder, translate=True)
        end = self.end if self.end >= 0 else sys.maxsize
        left = end - self.start  # unread bytes
        while block := self.file.read(min(BLOCK_BYTES, left)):
            self.counts["bytes"] += len(block)
            left -= len(block)
            yield to_line_feeds.decode(block)
        if left and self.end >= 0:
            raise DataError(f"{self.path}: {SHORTER}")
        yield to_line_feeds.decode(b"", final=True)


def with_line_feeds(text: str) -> str:
    """Replace every line end by one line feed."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def cut_line(text: str) -> tuple[str, str] | None:
    """Split text whose first line exceeds MAX_LINE_BYTES, if possible at a space.

    None if it does not.
    """
    length = len(text.partition("\n")[0])
    if length <= MAX_LINE_BYTES // 4:
        return None
    raw = SURROGATE.sub("\udcff", text[:length]).encode(UTF8, "surrogateescape")
    if len(raw) <= MAX_LINE_BYTES:
        return None
    end = raw.rfind(b" ", MAX_LINE_BYTES // 2, MAX_LINE_BYTES) + 1 or MAX_LINE_BYTES
    decoder = codecs.getincrementaldecoder(UTF8)("surrogateescape")
    length = len(decoder.decode(raw[:end]))  # without an incomplete last character
    return text[:length], text[length:]
