"""Files as streams of the bytes they hold: plain or compressed, recognised by their first bytes, never held whole."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files import encoding_hint

COMPRESSED_SUFFIXES = frozenset((".gz", ".bz2", ".xz", ".zst"))
UTF8 = "utf-8"
BYTE_ORDER_MARK = "\ufeff"
_BLOCK_BYTES = 1 << 16
_MAGIC_BYTES = 10
_MAGIC = {b"\x1f\x8b\x08": "gzip", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC |= {b"\x50\x2a\x4d\x18": "zstd"}  # a frame to be skipped, with which pzstd begins
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")  # of text, or of nothing


@contextmanager
def open_regular(path: str | Path, *, takes_pipes: bool = False) -> Iterator[io.BufferedReader]:
    """The file as it is on disk. Raises UsageError where it cannot be read; a FIFO or device is never waited for."""
    try:
        with open(path, "rb", opener=None if takes_pipes else _open_without_waiting) as file:
            if not takes_pipes and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path}: not a regular file; copy its text into a file first")
            yield file
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}); check path and permissions") from error


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextmanager
def open_stream(path: str | Path, *, takes_pipes: bool = False) -> Iterator[io.BufferedReader]:
    """The content of a file, decompressed where it is compressed, whatever its name."""
    with open_regular(path, takes_pipes=takes_pipes) as file:
        method = compression(file.peek(_MAGIC_BYTES)[:_MAGIC_BYTES])
        if method is not None:
            yield io.BufferedReader(_Decompressed(path, method, file), _BLOCK_BYTES)
        elif Path(path).suffix.lower() in COMPRESSED_SUFFIXES and file.peek(1):
            raise DataError(f"{path}: named {Path(path).suffix}, but not compressed; fetch it again or rename it")
        else:
            yield file


def compression(beginning: bytes) -> str | None:
    """The compression of a file that begins so: gzip, bzip2, xz, zstd or None."""
    if beginning.startswith(b"BZh") and beginning[4:10] in _BZIP2_BLOCKS:
        return "bzip2"
    return next((name for magic, name in _MAGIC.items() if beginning.startswith(magic)), None)


class _Decompressed(io.RawIOBase):
    """The decompressed bytes of a file; DataError where it is damaged or its end is missing."""

    def __init__(self, path: str | Path, method: str, file: BinaryIO) -> None:
        self._path, self._method = path, method
        self._bytes = _OPENERS[method](file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            block = self._bytes.read(len(buffer))
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk
            reason = " ".join(str(error).split())
            message = f"{self._path}: damaged or incomplete {self._method} data ({reason}); fetch it again"
            raise DataError(message) from error
        buffer[: len(block)] = block
        return len(block)


class _Members:
    """One xz or bzip2 stream after another. The standard library's files end at the first damaged one in silence."""

    def __init__(self, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor], file: BinaryIO) -> None:
        self._file, self._new = file, new
        self._member = new()

    def read(self, size: int, /) -> bytes:
        while True:
            block = b""
            if self._member.eof:
                block = self._member.unused_data.lstrip(b"\0") or self._file.read(_BLOCK_BYTES).lstrip(b"\0")
                if not block and self._file.peek(1):  # type: ignore[attr-defined]
                    continue  # a block of padding
                if not block:
                    return b""
                self._member = self._new()
            elif self._member.needs_input:
                block = self._file.read(_BLOCK_BYTES)
                if not block:
                    raise EOFError("it ends too early")
            if found := self._member.decompress(block, size):
                return found


def _open_zstd(file: BinaryIO) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(file, "zstd")


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "bzip2": partial(_Members, bz2.BZ2Decompressor),
    "xz": partial(_Members, lzma.LZMADecompressor),
    "zstd": _open_zstd,
}


def text_lines(path: Path, encoding: str = UTF8) -> Iterator[str]:
    """The lines of a file or pipe without their line feeds and the byte order mark."""
    with open_stream(path, takes_pipes=True) as file:
        for number, raw in enumerate(file, start=1):
            line = _decoded(raw, path, number, encoding).removesuffix("\n")
            yield line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def read_text(path: Path, encoding: str = UTF8) -> str:
    """A file as text without its byte order mark. Raises DataError naming the line that is not so encoded."""
    with open_stream(path, takes_pipes=True) as file:
        return _decoded(file.read(), path, 1, encoding).removeprefix(BYTE_ORDER_MARK)


def _decoded(raw: bytes, path: Path, line: int, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        advice = encoding_hint(raw) if encoding == UTF8 else "choose another --encoding"
        line += raw.count(b"\n", 0, error.start)
        raise DataError(f"{path}:{line}: bytes that are not {encoding.upper()}; {advice}") from error
