"""Paths of the shipped files; atomic and durable writes; SHA-256 checks.

Every write goes to a temporary file or folder first, is synced to disk and renamed, and the folder
is synced.
"""

import hashlib
import json
import os
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, NamedTuple, get_args, get_origin

from safetensors import SafetensorError

from electra_albert.contracts import UsageError

_INSTALLED = Path(__file__).parent / "data"  # in a wheel; a checkout has them next to the package
SHIPPED = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[1] / "data"
SAMPLE_TEXT = SHIPPED / "sample" / "simple-wikipedia.txt.xz"
SAMPLE_TASK = SHIPPED / "topics"
MODELS = SHIPPED / "models"
_TEMPORARY = ".writing-"  # name prefix
_DIGESTS = "digests.json"
_LARGEST = (1 << 63) - 1  # a larger integer in JSON is damage


def sync(path: Path) -> None:
    """Flush to disk. Windows cannot sync folders, and files only if they are writable."""
    flags = os.O_RDONLY
    if os.name == "nt":
        if path.is_dir():
            return
        flags = os.O_RDWR
    descriptor = os.open(path, flags)
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
def writing(path: Path) -> Iterator[None]:
    """Turn errors while writing a file or folder into UsageError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        advice = "free disk space or choose another path, then run the same command again"
        raise UsageError(f"cannot write {path} ({reason}); {advice}") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary binary file, renamed to `path` at the end; on failure it is removed."""
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
    """Yield a temporary folder, renamed to the free name `path`; on failure it is removed."""
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
    """Yield a temporary folder, whose files replace those in `folder`, those of `last` at the end.

    What killed processes had begun to write into `folder` is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    part = temporary_name(folder / "files")
    part.mkdir()
    try:
        yield part
        files = filter(Path.is_file, part.rglob("*"))
        for file in sorted(files, key=lambda file: file.name.endswith(last)):
            sync(file)
            path = folder / file.relative_to(part)
            path.parent.mkdir(exist_ok=True)
            file.replace(path)
            sync(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what killed processes left in a folder, in which no other one is writing now."""
    for path in folder.glob(f"{_TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically: UTF-8, line endings unchanged."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def is_of_kind(value: Any, kind: Any) -> bool:
    """Whether a value from JSON is of a kind; a missing entry of an object is None.

    A kind is a type such as dict[str, list[int]] | None, where float is any finite number and
    tuple[int, str] a list of the two; or the kinds of an object's entries by key, of which it may
    have more: {"seed": int, "files": dict[str, str]}; the key `str` is for all of them.
    """
    if kind is Any:
        return True
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return False
        kinds = kind
        if str in kind:
            kinds = dict.fromkeys(value, kind[str])
        return all(is_of_kind(value.get(key), kinds[key]) for key in kinds)
    container = get_origin(kind) or kind
    parts = get_args(kind)
    if container is UnionType:
        return any(is_of_kind(value, part) for part in parts)
    if container in (int, float):
        is_number = isinstance(value, int | container) and not isinstance(value, bool)
        largest = _LARGEST if container is int else sys.float_info.max
        return is_number and abs(value) <= largest
    if container is tuple:
        is_whole = isinstance(value, list) and len(value) == len(parts)
        return is_whole and all(map(is_of_kind, value, parts))
    if not parts or not isinstance(value, container):
        return isinstance(value, container)
    entries = value
    if isinstance(value, dict):
        entries = value.values()
    return all(is_of_kind(entry, parts[-1]) for entry in entries)


def parse_json(text: str, kind: Any = Any) -> Any:
    """The content of a JSON text. Raises ValueError unless it is of this kind."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if isinstance(kind, dict):
        for key in kind:
            if not is_of_kind(content, {key: kind[key]}):
                raise ValueError(f"{key} is missing or of another type")
    elif not is_of_kind(content, kind):
        raise ValueError("of another type")
    return content


def strict_loader() -> type:
    """YAML's safe loader that raises YAMLError for a duplicate key, which PyYAML overwrites."""
    import yaml

    def construct_mapping(loader: Any, node: Any, deep: bool = False) -> Any:
        names = Counter(str(key.value) for key, _ in node.value)
        for name, count in names.items():
            if count > 1:
                raise yaml.YAMLError(f"the key {name!r} occurs twice in one entry")
        return yaml.SafeLoader.construct_mapping(loader, node, deep)

    return type("StrictLoader", (yaml.SafeLoader,), {"construct_mapping": construct_mapping})


def load_json(path: Path, kind: Any = dict) -> Any:
    """The content of a JSON file. Raises OSError, or ValueError for damage or another kind."""
    return parse_json(path.read_text(encoding="utf-8"), kind)


def read_json(path: Path, kind: Any = dict) -> dict[str, Any]:
    """The JSON object of this kind in a file; empty if it is missing, damaged or not regular."""
    with suppress(FileNotFoundError, ValueError):
        if path.is_file():
            content: dict[str, Any] = load_json(path, kind)
            return content
    return {}


class FileDigest(NamedTuple):
    """Size and SHA-256 of a file as it was written."""

    size: int
    sha256: str


class HashedFile:
    """Writes to an open file and hashes the bytes before they reach the disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = 0
        self._digest = hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self._size += len(content)

    def finish(self) -> FileDigest:
        """Size and hash of what was written."""
        return FileDigest(self._size, self._digest.hexdigest())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(content: object) -> str:
    """A hash of content that JSON can hold."""
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def write_manifest(path: Path, files: Mapping[str, FileDigest], **content: Any) -> None:
    """Write a manifest: files by their names in a folder, further content, and a hash of it all."""
    entries = {name: digest._asdict() for name, digest in files.items()}
    manifest = content | {"files": entries}
    write_json(path, manifest | {"hash": content_hash(manifest)})


def load_manifest(path: Path) -> dict[str, Any]:
    """The content of a manifest, with a FileDigest for each of its files.

    Raises OSError, or ValueError for damage.
    """
    manifest: dict[str, Any] = load_json(path, {"files": {str: FileDigest.__annotations__}})
    if manifest.pop("hash", None) != content_hash(manifest):
        raise ValueError("changed since it was written")
    files = {}
    for name, digest in manifest["files"].items():
        files[name] = FileDigest(digest["size"], digest["sha256"])
    return manifest | {"files": files}


def read_manifest(path: Path) -> dict[str, Any]:
    """The content of a manifest; empty if it is missing or damaged."""
    with suppress(FileNotFoundError, ValueError):
        if path.is_file():
            return load_manifest(path)
    return {}


def record_digests(folder: Path, pattern: str) -> None:
    """Write a manifest of the files of this pattern in a folder, for `recorded_damage`."""
    digests = {}
    for file in folder.glob(pattern):
        if file.is_file():
            name = file.relative_to(folder).as_posix()
            digests[name] = digest_of(file)
    write_manifest(folder / _DIGESTS, digests)


def digest_of(file: Path) -> FileDigest:
    return FileDigest(file.stat().st_size, sha256(file))


def recorded_damage(folder: Path, pattern: str) -> str | None:
    """Describe damage to the files since `record_digests`; without a record, it is made now."""
    files = read_manifest(folder / _DIGESTS).get("files", {})
    if not files:
        with suppress(OSError):
            record_digests(folder, pattern)
    return find_damage(folder, files, folder / "checked.json")


def find_damage(
    folder: Path,
    files: Mapping[str, FileDigest],
    cache: Path | None = None,
    *,
    compares_hashes: bool = True,
) -> str | None:
    """Describe the first of `files` that is missing or changed; None if there is none.

    With a cache, a file that records the last check, only those files are hashed whose size or
    times have changed since then.
    """
    checked = read_json(cache) if cache else {}
    states = dict(checked)
    for name, written in files.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        stat = path.stat()
        if stat.st_size != written.size:
            return f"{path} has {stat.st_size} bytes, not {written.size}"
        state = [written.sha256, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        is_known = checked.get(name) == state or not compares_hashes
        if not is_known and sha256(path) != written.sha256:
            return f"{path} has changed since it was written"
        states[name] = state
    if cache and compares_hashes and checked != states:
        with suppress(OSError):  # then the files are hashed again next time
            write_json(cache, states)
    return None
