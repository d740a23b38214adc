"""Which text files a corpus is made of, and whether they are still the same."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.sentences import word_set

SAMPLE_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_INVALID_SHARE = 0.2  # of the bytes: above it the file is in another encoding
_LOG = logging.getLogger(__name__)

_NOT_TEXT = word_set(
    ".gz .xz .zst .bz2 .zip .7z .tar .tgz .rar .lz4 .png .jpg .jpeg .gif .webp .bmp .tif .tiff .pdf .doc .docx .odt "
    ".epub .xls .xlsx .ppt .pptx .mp3 .mp4 .wav .avi .bin .pt .pth .npy .npz .pkl .pickle .safetensors .onnx .h5 "
    ".sqlite .db .so .o .a .exe .dll .class .jar .pyc .model"
)
_TABLES = word_set(".csv .tsv .json .parquet .arrow")
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


def find_files(corpus: str) -> list[Path]:
    """The text files a name stands for, each once: a file, all files in a folder and below it, or those of a glob."""
    named = Path(corpus)
    if os.path.lexists(named):
        matches = [named]
    else:
        matches = sorted(Path(match) for match in glob.glob(corpus, recursive=True))
        if not matches:
            raise UsageError(f"--corpus {corpus}: no such file or folder, and no file matches it; check the path")
    files: dict[str, Path] = {}
    if matches == [named] and named.suffix.lower() in _TABLES:
        raise DataError(f"{named}: a table, and tables are not read; give plain text, a sentence or paragraph a line")
    for match in matches:
        for path in _text_files_below(match) if match.is_dir() else [match]:
            files.setdefault(os.path.realpath(path), path)  # which a loop of links does not stop
    if not files:
        raise DataError(f"--corpus {corpus}: the folder holds no text file; put .txt files there")
    kept = [path for path in files.values() if not _is_blank(path)]
    if not kept:
        raise DataError(f"--corpus {corpus}: there is no text in it; give a file with sentences")
    if len(kept) < len(files):
        _LOG.warning("%s: %d files without text skipped", corpus, len(files) - len(kept))
    return kept


def _text_files_below(folder: Path) -> list[Path]:
    """In a fixed order, without hidden files and those whose suffix says that they are something else."""
    found = list(_walk(folder, set()))
    files = [path for path in found if path.is_file() and path.suffix.lower() not in _NOT_TEXT | _TABLES]
    if len(files) < len(found):
        _LOG.warning("%s: %d entries skipped that are not text files", folder, len(found) - len(files))
    return files


def _walk(folder: Path, visited: set[Path]) -> Iterator[Path]:
    """What lies below `folder` and is no folder; a link that leads back up is not followed again."""
    if folder.resolve() in visited:
        return
    visited.add(folder.resolve())
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read ({error.strerror}); check its permissions") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(entry, visited)
        else:
            yield entry


def _is_blank(path: Path) -> bool:
    """True where a file holds white space only, as far as its sample tells; refuses what is not UTF-8 text."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path}: not a regular file; copy its text into a file first")
        with path.open("rb") as file:
            sample = file.read(SAMPLE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    _refuse_foreign(path, sample)
    return status.st_size <= len(sample) and not sample.removeprefix(BYTE_ORDER_MARK).strip()


def _refuse_foreign(path: Path, sample: bytes) -> None:
    """Raise DataError where a sample from the start of a file is compressed, binary or in another encoding."""
    for magic, name in _COMPRESSED.items():
        if sample.startswith(magic):
            raise DataError(f"{path}: compressed with {name}; decompress it first")
    nul = sample.count(0)
    looks_wide = nul > len(sample) // 5 and max(sample[::2].count(0), sample[1::2].count(0)) > 0.9 * nul
    if sample.startswith(_WIDE_MARKS) or looks_wide:
        raise DataError(f"{path}: UTF-16 or UTF-32; convert it with iconv -f UTF-16 -t UTF-8")
    if nul:
        raise DataError(f"{path}: binary, it holds NUL bytes; give UTF-8 text")
    invalid = sample[:-4].decode("utf-8", "replace").count("\ufffd")
    if invalid > _MAX_INVALID_SHARE * len(sample):
        raise DataError(f"{path}: not UTF-8; convert it with iconv -f <its encoding> -t UTF-8")


def identity(files: list[Path]) -> dict[str, Any]:
    """What tells these files, in this order, from any others: state on disk and a hash of the content of each."""
    return {"files": [_describe(path) for path in files]}


def same_content(files: list[Path], recorded: dict[str, Any]) -> bool:
    """Whether `files` hold what they held when `recorded` was taken; read only where their state on disk differs."""
    entries = recorded["files"]
    if [str(path) for path in files] != [entry["path"] for entry in entries]:
        return False
    for path, entry in zip(files, entries, strict=True):
        state = _disk_state(path)
        is_untouched = all(entry[name] == value for name, value in state.items())
        if not is_untouched and (state["size"] != entry["size"] or _describe(path)["blake2b"] != entry["blake2b"]):
            return False
    return True


def _disk_state(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}


def _describe(path: Path) -> dict[str, Any]:
    try:
        before = _disk_state(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "blake2b").hexdigest()
        changed = before != _disk_state(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    if changed:
        raise DataError(f"{path}: changed while it was read; leave it alone and start again")
    return {"path": str(path), **before, "blake2b": digest}
