"""Files that ship with the toolkit, and durable writes: renamed into place when complete, hashed, checked."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

_INSTALLED = Path(__file__).parent / "data"  # in a wheel; in a checkout they lie next to the package
SHIPPED = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[1] / "data"
SAMPLE_TEXT = SHIPPED / "sample" / "simple-wikipedia.txt.xz"
SAMPLE_TASK = SHIPPED / "topics"
MODELS = SHIPPED / "models"


def sync(path: Path) -> None:
    """Flush a file or folder to the disk; Windows syncs no folder, and files only where they may be written."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new binary file that takes the name `path` when all of it is written; on failure nothing of it remains."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")  # process numbers repeat on machines of a cluster
    try:
        with part.open("xb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically, in UTF-8 and with line ends as they are."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of ours; empty where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


class Written(NamedTuple):
    """The size and SHA-256 that a file was meant to have."""

    bytes: int
    sha256: str


class HashedFile:
    """Writes to an open file and hashes the bytes it is given, not those that arrive on the disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size, self._digest = file, 0, hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self._size += len(content)

    def finish(self) -> Written:
        """Flush the file to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return Written(self._size, self._digest.hexdigest())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_damage(folder: Path, files: Mapping[str, Written], note: Path) -> str | None:
    """A line on the first of `files`, by names in `folder`, that is not as it was written; None if all are.

    A file is hashed only where its size or times differ from those of the last check, in the file `note`.
    """
    checked, found = read_json(note), {}
    for name, written in files.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        stat = path.stat()
        if stat.st_size != written.bytes:
            return f"{path} has {stat.st_size} bytes, not {written.bytes}"
        found[name] = [written.sha256, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        if checked.get(name) != found[name] and sha256(path) != written.sha256:
            return f"{path} has changed since it was written"
    if checked != found:
        with suppress(OSError):  # then the files are hashed again the next time
            write_json(note, found)
    return None
