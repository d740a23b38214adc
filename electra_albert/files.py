"""Paths of the shipped files; atomic and durable writes; SHA-256 checks.

Every write goes to a temporary file or folder first, is synced to disk and renamed, and the folder is synced.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

_INSTALLED = Path(__file__).parent / "data"  # in a wheel; a checkout has them next to the package
SHIPPED = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[1] / "data"
SAMPLE_TEXT = SHIPPED / "sample" / "simple-wikipedia.txt.xz"
SAMPLE_TASK = SHIPPED / "topics"
MODELS = SHIPPED / "models"
_TEMPORARY = ".writing-"  # name prefix
_DIGESTS = "digests.json"


def sync(path: Path) -> None:
    """Flush a file or folder to disk. Windows cannot sync folders, and files only if they are writable."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Flush a folder and everything in it to disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def temporary_name(path: Path) -> Path:
    """A free name next to `path` for what is being written or deleted; see `remove_leftovers`."""
    # Process ids repeat on the machines of a cluster.
    return path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}-{path.name}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary binary file that is renamed to `path` at the end; on failure it is removed."""
    part = temporary_name(path)
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path`, a free name, at the end; on failure it is removed."""
    part = temporary_name(path)
    part.mkdir()
    try:
        yield part
        sync_all(part)
        part.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def filling(folder: Path, last: tuple[str, ...]) -> Iterator[Path]:
    """Yield a temporary folder; at the end its files replace those in `folder`, names that end in `last` at the end.

    What killed processes had begun to write into `folder` is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    part = temporary_name(folder / "files")
    part.mkdir()
    try:
        yield part
        for file in sorted(filter(Path.is_file, part.rglob("*")), key=lambda file: file.name.endswith(last)):
            sync(file)
            path = folder / file.relative_to(part)
            path.parent.mkdir(exist_ok=True)
            file.replace(path)
            sync(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what killed processes had begun to write or delete in a folder, in which no other one is writing now."""
    for path in folder.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically: UTF-8, line endings unchanged."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing, damaged or not regular."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


class FileDigest(NamedTuple):
    """Size and SHA-256 of a file as it was written."""

    bytes: int
    sha256: str


class HashedFile:
    """Writes to an open file and hashes the bytes before they reach the disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size, self._digest = file, 0, hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self._size += len(content)

    def finish(self) -> FileDigest:
        """Size and hash of what was written."""
        return FileDigest(self._size, self._digest.hexdigest())


def record_digests(folder: Path, pattern: str) -> None:
    """Write sizes and hashes of the files of this pattern in a folder, for `recorded_damage`."""
    files = {file.relative_to(folder).as_posix(): file for file in folder.glob(pattern) if file.is_file()}
    write_json(folder / _DIGESTS, {name: (file.stat().st_size, sha256(file)) for name, file in files.items()})


def recorded_damage(folder: Path, pattern: str) -> str | None:
    """Describe damage to the files since `record_digests`; None if there is none. Without a record, it is made now."""
    if not (found := read_json(folder / _DIGESTS)):
        with suppress(OSError):
            record_digests(folder, pattern)
    return find_damage(folder, {name: FileDigest(*entry) for name, entry in found.items()}, folder / "checked.json")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_damage(folder: Path, files: Mapping[str, FileDigest], cache: Path) -> str | None:
    """Describe the first of `files` (by name in `folder`) that is missing or changed; None if there is none.

    A file is hashed only if its size or times differ from those of the last check, which the file `cache` records.
    """
    found = dict(checked := read_json(cache))
    for name, written in files.items():
        if not (path := folder / name).is_file():
            return f"{path} is missing"
        if (stat := path.stat()).st_size != written.bytes:
            return f"{path} has {stat.st_size} bytes, not {written.bytes}"
        found[name] = [written.sha256, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        if checked.get(name) != found[name] and sha256(path) != written.sha256:
            return f"{path} has changed since it was written"
    if checked != found:
        with suppress(OSError):  # then the files are hashed again next time
            write_json(cache, found)
    return None
