"""Files as streams of the bytes they hold: plain or compressed, told by how they begin, and never held whole."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from electra_albert.contracts import DataError, UsageError

COMPRESSED_SUFFIXES = frozenset((".gz", ".bz2", ".xz", ".zst"))
_BLOCK_BYTES = 1 << 16
_MAGIC_BYTES = 10
_MAGIC = {
    b"\x1f\x8b\x08": "gzip",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x50\x2a\x4d\x18": "zstd",  # a frame to be skipped, with which pzstd begins
}
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")  # of text, or of nothing


class ByteStream(Protocol):
    """What is read from its beginning to its end."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none only at the end."""
        ...


@contextmanager
def open_regular(path: str | Path) -> Iterator[BinaryIO]:
    """The file as it lies on disk; a FIFO or a device is refused and never waited for.

    Raises UsageError where it cannot be opened or read.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path}: not a regular file; copy its text into a file first")
            yield file
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}); check its path and permissions"
        ) from error


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


@contextmanager
def open_stream(path: str | Path) -> Iterator[ByteStream]:
    """What the file holds, decompressed where it is compressed, whatever its name.

    Raises UsageError as `open_regular` does, and DataError where the name says compressed and the content does not.
    """
    with open_regular(path) as file:
        method = compression(file.read(_MAGIC_BYTES))
        file.seek(0)
        if method is not None:
            yield _Decompressed(path, method, file)
        elif Path(path).suffix.lower() in COMPRESSED_SUFFIXES and os.fstat(file.fileno()).st_size:
            raise DataError(f"{path}: named {Path(path).suffix}, but not compressed; fetch it anew or rename it")
        else:
            yield file


def compression(beginning: bytes) -> str | None:
    """How a file that begins so is compressed: gzip, bzip2, xz, zstd or None."""
    if beginning.startswith(b"BZh") and beginning[4:10] in _BZIP2_BLOCKS:
        return "bzip2"
    return next((name for magic, name in _MAGIC.items() if beginning.startswith(magic)), None)


class _Decompressed:
    """The decompressed bytes of a file; DataError where it is damaged or its end is missing."""

    def __init__(self, path: str | Path, method: str, file: BinaryIO) -> None:
        self._path, self._method = path, method
        self._bytes = _OPENERS[method](file)

    def read(self, size: int, /) -> bytes:
        try:
            return self._bytes.read(size)
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk
            reason = " ".join(str(error).split())
            message = f"{self._path}: damaged or incomplete {self._method} data ({reason}); fetch it anew"
            raise DataError(message) from error


class _Members:
    """One xz or bzip2 stream after another. The standard library's files end at the first damaged one in silence."""

    def __init__(self, file: BinaryIO, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> None:
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


def _open_zstd(file: BinaryIO) -> ByteStream:
    import pyarrow

    return pyarrow.CompressedInputStream(file, "zstd")


_OPENERS: dict[str, Callable[[BinaryIO], ByteStream]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "bzip2": lambda file: _Members(file, bz2.BZ2Decompressor),
    "xz": lambda file: _Members(file, lzma.LZMADecompressor),
    "zstd": _open_zstd,
}
