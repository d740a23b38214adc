"""Files that are renamed into place once they are written in full, and that are known to be as they were written."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import numpy as np


def name_beside(path: Path) -> Path:
    """A name in the same folder that nobody else takes; the number of a process repeats on another machine."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name `path` once all of it is written; where that fails nothing of it is left."""
    beside = name_beside(path)
    try:
        with beside.open("xb") as file:
            yield file
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write beside, then rename: the file is whole or not there."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of ours, empty where there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


class Written(NamedTuple):
    """The size and SHA-256 that a file was meant to have."""

    bytes: int
    sha256: str


class ArrayFile:
    """Writes arrays to an open file and keeps account of them, whatever is found on the disk.

    `ndarray.tofile` overlooks what fails when its last bytes are flushed; this does not.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = 0
        self._digest = hashlib.sha256()

    def write(self, array: np.ndarray) -> None:
        """Append the array's bytes."""
        content = array.tobytes()
        self._file.write(content)
        self._digest.update(content)
        self._size += len(content)

    def finish(self) -> Written:
        """See the file to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return Written(self._size, self._digest.hexdigest())


def find_damage(folder: Path, files: Mapping[str, Written], note: Path) -> str | None:
    """Which of `files`, by names in `folder`, is not as it was written, in one line; None where all are.

    A file is hashed only where its size or times are not those that `note` remembers from the last check.
    """
    checked, found = read_json(note), {}
    for name, written in files.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is gone"
        stat = path.stat()
        if stat.st_size != written.bytes:
            return f"{path} has {stat.st_size} bytes, not {written.bytes}"
        found[name] = [written.sha256, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        if checked.get(name) != found[name]:
            with path.open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != written.sha256:
                    return f"{path} has changed since it was written"
    if checked != found:
        with suppress(OSError):  # then the files are read again the next time
            write_json(note, found)
    return None


_BLOCK = 1 << 20  # numbers looked at at once


def gaps(edges: np.ndarray) -> tuple[int, int]:
    """The smallest and the largest difference between neighbours of edges [at least 2], memory-mapped integers."""
    import numpy as np

    parts = (np.diff(edges[first : first + _BLOCK + 1]) for first in range(0, len(edges) - 1, _BLOCK))
    bounds = [(int(part.min()), int(part.max())) for part in parts]
    return min(low for low, _ in bounds), max(high for _, high in bounds)
