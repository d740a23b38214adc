"""Which files a corpus is made of, and whether they are still the same."""

from __future__ import annotations

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.compressed import open_regular
from electra_albert.corpus.formats import format_of, read_sample, refuse_foreign
from electra_albert.corpus.hub import dataset_files, hub_files, is_dataset_folder
from electra_albert.corpus.lines import UTF8
from electra_albert.data_files import hub_name

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TABLES = ("parquet", "arrow")


def find_files(corpus: str, counts: Counter[str], encoding: str = UTF8) -> list[Path]:
    """The files a name stands for, each once, in a fixed order; what is left out is added to `counts`.

    A name is that of a file, of a folder (all below it), of a folder that `datasets` wrote, a glob, or, where nothing
    here is called so, OWNER/NAME or OWNER/NAME:CONFIG of a dataset of the hub. Raises UsageError where there is
    nothing of that name or it cannot be read, DataError where it is no text.
    """
    files: dict[str, Path] = {}
    for path in _named(corpus, counts):
        if files.setdefault(os.path.realpath(path), path) is not path:
            counts["repeated_files_skipped"] += 1
    if not files:
        raise DataError(f"--corpus {corpus}: the folder holds no text file; put .txt files there")
    kept = [path for path in files.values() if not _is_blank(path, encoding)]
    counts["blank_files_skipped"] += len(files) - len(kept)
    if not kept:
        raise DataError(f"--corpus {corpus}: there is no text in it; give a file with sentences")
    return kept


def _named(corpus: str, counts: Counter[str]) -> Iterator[Path]:
    if not os.path.lexists(corpus):
        corpus = os.path.expanduser(corpus)  # a shell leaves the ~ of --corpus=~/text as it is
    matches = [Path(corpus)] if os.path.lexists(corpus) else sorted(map(Path, glob.glob(corpus, recursive=True)))
    on_hub = hub_name(corpus)
    if not matches and on_hub and not Path(corpus).parent.exists():
        yield from hub_files(*on_hub)
    elif not matches:
        looks_remote = "://" in corpus or os.sep not in corpus
        way_out = "check the path" + looks_remote * ", or give a dataset of the hub as OWNER/NAME"
        raise UsageError(f"--corpus {corpus}: no such file or folder, and no file matches it; {way_out}")
    for match in matches:
        if match.is_dir():
            yield from _files_below(match, set(), counts)
        else:
            yield match


def _files_below(folder: Path, visited: set[Path], counts: Counter[str]) -> Iterator[Path]:
    """Without hidden files and those that are no text; a link that leads back up is not followed again."""
    if folder.resolve() in visited:
        return
    visited.add(folder.resolve())
    try:
        if is_dataset_folder(folder):
            yield from dataset_files(folder, counts)
            return
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read ({error.strerror}); check its permissions") from error
    for entry in entries:
        if entry.name.startswith("."):
            counts["hidden_entries_skipped"] += 1
        elif entry.is_dir():
            yield from _files_below(entry, visited, counts)
        elif not entry.is_file():
            counts["special_files_skipped"] += 1
        elif format_of(entry) is None:
            counts["other_files_skipped"] += 1
        else:
            yield entry


def _is_blank(path: Path, encoding: str) -> bool:
    """True where a file holds white space only, as far as its sample tells; refuses what is not text so encoded."""
    with open_regular(path) as file:
        is_empty = not file.read(1)
    if is_empty or format_of(path) in _TABLES:
        return is_empty
    sample = read_sample(path)
    refuse_foreign(path, sample.raw, encoding)
    return sample.is_whole and not sample.raw.replace(_BYTE_ORDER_MARK, b"").strip(b" \t\n\r\x0b\x0c\0")


def identity(files: list[Path]) -> dict[str, Any]:
    """What tells these files, in this order, from any others: state on disk and a hash of the content of each."""
    return {"files": [_describe(path) for path in files]}


def same_content(files: list[Path], recorded: dict[str, Any]) -> bool:
    """Whether `files` hold what they held when `recorded` was taken; read only where their state on disk differs."""
    return refreshed(files, recorded) is not None


def refreshed(files: list[Path], recorded: dict[str, Any]) -> dict[str, Any] | None:
    """`recorded` with the present state on disk where `files` hold what they held when it was taken; else None.

    A file is read only where its state differs; so who keeps the answer reads a touched file once and not every time.
    """
    entries = recorded["files"]
    if [str(path) for path in files] != [entry["path"] for entry in entries]:
        return None
    present = []
    for path, entry in zip(files, entries, strict=True):
        state = _disk_state(path)
        found = entry
        if any(entry[name] != value for name, value in state.items()):
            if state["size"] != entry["size"]:
                return None
            found = _describe(path)
        if found["blake2b"] != entry["blake2b"]:
            return None
        present.append(found)
    return recorded | {"files": present}


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
