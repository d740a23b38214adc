"""Finds the files of a corpus, detects their format, and checks whether they changed."""

import codecs
import glob
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from electra_albert.contracts import DataError, UsageError, UserError, one_line
from electra_albert.data_files import encoding_hint, hub_name, remote
from electra_albert.data_files.streams import (
    BYTE_ORDER_MARK,
    COMPRESSED_SUFFIXES,
    UTF8,
    open_regular,
    open_stream,
)

Format = Literal["text", "jsonl", "csv", "tsv", "parquet", "arrow"]

SAMPLE_BYTES = 1 << 20
_TRAIN = "train"
_STATE = ("path", "size", "mtime_ns", "ctime_ns")  # file status on disk
_FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_NOT_TEXT = re.compile(
    r"\.(zip|7z|tar|tgz|tbz|txz|rar|lz4|z|png|jpe?g|gif|webp|bmp|tiff?|pdf|docx?|odt|epub|xlsx?"
    r"|pptx?|mp[34]|wav|avi|bin|pth?|np[yz]|pkl|pickle|safetensors|onnx|h5|sqlite|db|so|o|a|exe|dll"
    r"|class|jar|pyc|model|json|feather|orc|avro|lock)"
)
_BINARY = (
    b"PK\x03\x04",
    b"%PDF-",
    b"7z\xbc\xaf\x27\x1c",
    b"\xff\xfe",
    b"\xfe\xff",
    b"\x00\x00\xfe\xff",
)
# Invalid bytes tolerated in any file.
_STRAY_BYTES = 3
_STRAY_SHARE = 0.001
_MAX_INVALID_SHARE = 0.2  # of the bytes; above it the file is in another encoding
_MAX_CONTROL_SHARE = 0.05  # of the bytes; above it the file is not text
_CONTROL = bytes(c for c in range(32) if not chr(c).isspace() and c not in (8, 27)) + b"\x7f"


def find_files(corpus: str, counts: Counter[str], encoding: str = UTF8) -> list[Path]:
    """List the text files of `corpus`, each once, in a fixed order, and count the skipped files.

    `corpus` is a file, a folder (read recursively), a folder saved by `datasets`, a glob, a URL of
    any of these, or OWNER/NAME or OWNER/NAME:CONFIG of a hub dataset. Raises UsageError if it is
    missing or cannot be read, DataError if it is not text.
    """
    corpus = expanded(corpus)
    matches = [Path(corpus)]
    if not os.path.lexists(corpus):
        matches = sorted(_expand(corpus))
    files: dict[str, Path] = {}
    visited: set[str] = set()
    for match in matches or _download(corpus):
        for path in _files_below(match, visited, counts) if match.is_dir() else [match]:
            if files.setdefault(os.path.realpath(path), path) is not path:
                counts["repeated_files_skipped"] += 1
    if not files:
        raise DataError(
            f"--corpus {corpus}: the folder holds no text file; put .txt, .jsonl (one object per "
            "line, unlike .json), .csv, .tsv, .parquet or .arrow files there"
        )
    texts = [path for path in files.values() if not _is_blank(path, encoding)]
    counts["blank_files_skipped"] += len(files) - len(texts)
    if not texts:
        raise DataError(f"--corpus {corpus} contains no text; give a file with sentences")
    return texts


def expanded(path: str) -> str:
    """The path without its ~, which a shell leaves in --corpus=~/text."""
    return path if os.path.lexists(path) else os.path.expanduser(path)


def _download(corpus: str) -> list[Path]:
    """Local copies of a URL or a hub dataset. Raises UsageError if `corpus` names neither."""
    if remote.URL in corpus:
        return remote.fetch(corpus, "corpus")
    names = hub_name(corpus)
    if names is None or Path(corpus).parent.exists():
        raise UsageError(
            f"--corpus {corpus}: no such file or folder, and no file matches it; check the path, "
            "or give a hub dataset as OWNER/NAME"
        )
    problem = f"neither a local file or folder, nor a hub dataset with a split {_TRAIN!r}"
    return _arrow_files(remote.load_from_hub(*names, _TRAIN, f"--corpus {corpus}: {problem}"))


def _arrow_files(dataset: Any) -> list[Path]:
    return [Path(entry["filename"]) for entry in dataset.cache_files]


def _expand(pattern: str) -> Iterator[Path]:
    """Paths matching a glob.

    For each part of it a folder is searched once, however many links lead there.
    """
    path = Path(pattern)
    folders = [Path(path.anchor)]
    last = path.name
    for part in path.relative_to(path.anchor).parts[:-1]:
        is_deep = part == "**"
        below = {os.path.realpath(folder): folder for folder in folders if is_deep}
        for folder in folders:
            for name in sorted(glob.glob(f"{part}/", root_dir=folder)):  # here ** is the same as *
                inside = folder / name
                if below.setdefault(os.path.realpath(inside), inside) is inside and is_deep:
                    folders.append(inside)  # the loop searches it next
        folders = [*below.values()]
    if pattern.endswith("/"):
        last += "/"
    for folder in folders:
        for name in glob.glob(last, root_dir=folder):
            yield folder / name


def _files_below(folder: Path, visited: set[str], counts: Counter[str]) -> Iterator[Path]:
    """Text files below a folder, without hidden ones.

    Each folder is visited once, also through links.
    """
    waiting = [folder]
    while waiting:
        entry = waiting.pop()
        if entry.is_dir():
            real = os.path.realpath(entry)
            if real in visited:
                continue
            visited.add(real)
            try:
                entries = sorted(entry.iterdir(), reverse=True)  # the last is visited next
            except OSError as error:
                raise UsageError(
                    f"{entry}: cannot be read ({error.strerror}); check its permissions"
                ) from error
            names = {path.name for path in entries}
            if names >= {"dataset_info.json", "state.json"} or "dataset_dict.json" in names:
                yield from _saved_files(entry, counts)
                continue
            if _is_dataset_card(entry / "README.md"):
                raise DataError(
                    f"{entry}: a dataset of the hub with its card and all splits; name the files "
                    f"of its split train, such as '{entry}/data/train-*'"
                )
            visible = [path for path in entries if not path.name.startswith(".")]
            counts["hidden_entries_skipped"] += len(entries) - len(visible)
            waiting += visible
        elif not entry.is_file():
            counts["special_files_skipped"] += 1
        elif format_of(entry) is None:
            counts["other_files_skipped"] += 1
        else:
            yield entry


def _is_dataset_card(path: Path) -> bool:
    """Whether this file begins with the data that the hub's datasets have in their card."""
    try:
        sample = read_sample(path)[0].decode(UTF8, "replace")
    except (OSError, UserError):
        return False
    header = sample.partition("\n---")[0]
    return header.startswith("---") and bool(re.search(r"^(configs|dataset_info):", header, re.M))


def _saved_files(folder: Path, counts: Counter[str]) -> list[Path]:
    """The Arrow files of a dataset written by `save_to_disk`, or of its split train."""
    import datasets

    try:
        dataset = datasets.load_from_disk(str(folder))
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        datasets.exceptions.DatasetsError,
    ) as error:
        raise DataError(f"{folder}: a damaged dataset ({one_line(error)}); save again") from error
    if isinstance(dataset, datasets.DatasetDict):
        if _TRAIN not in dataset:
            raise UsageError(
                f"{folder}: the dataset has no split {_TRAIN!r}; "
                f"give one of its folders: {[*dataset]}"
            )
        counts["splits_skipped"] += len(dataset) - 1
        dataset = dataset[_TRAIN]
    files = _arrow_files(dataset)
    inside = os.path.join(os.path.abspath(folder), "")
    # By name, because a file may be a link.
    if not all(os.path.abspath(file).startswith(inside) for file in files):
        raise DataError(
            f"{folder}: a damaged dataset, with files outside its folder; save it again"
        )
    return files


def format_of(path: Path) -> Format | None:
    """The format by file name, ignoring .gz, .bz2, .xz and .zst; None if it is not text."""
    name = Path(path.name.lower())
    if name.suffix in COMPRESSED_SUFFIXES:
        name = name.with_suffix("")
        if name.suffix == ".json":  # published corpora name JSON lines so
            return "jsonl"
    if _NOT_TEXT.fullmatch(name.suffix):
        return None
    return _FORMATS.get(name.suffix, "text")


def read_sample(path: Path) -> tuple[bytes, bool]:
    """The first SAMPLE_BYTES of the decompressed content, and whether that is all of it."""
    with open_stream(path) as file:
        sample = file.read(SAMPLE_BYTES)
        return sample, not file.read(1)


def _is_blank(path: Path, encoding: str) -> bool:
    """Whether a file holds only white space, by its sample.

    Raises DataError if it is not text in `encoding`.
    """
    with open_regular(path):  # files of /proc have no size, and reading one may wait for ever
        is_empty = path.stat().st_size == 0
    if is_empty or format_of(path) in ("parquet", "arrow"):
        return is_empty
    sample, is_whole = read_sample(path)
    _require_text(path, sample, encoding)
    text = sample.replace(BYTE_ORDER_MARK.encode(), b"")
    return is_whole and not text.strip(b" \t\n\r\x0b\x0c\0")


def _is_jsonl(sample: bytes) -> bool:
    """Whether the first two lines are JSON objects."""
    with suppress(ValueError, RecursionError):
        return all(isinstance(json.loads(line), dict) for line in sample.split(b"\n")[:2])
    return False


def _require_text(path: Path, sample: bytes, encoding: str) -> None:
    """Raise DataError if the sample is not text, or not in `encoding` except for a few bytes."""
    if path.name.lower().endswith(".json"):
        raise DataError(f"{path}: a .json file; write one object per line into a .jsonl file")
    if format_of(path) == "text" and _is_jsonl(sample):
        raise DataError(f"{path}: lines of JSON in a file of text; name it .jsonl")
    if sample.startswith(b"version https://git-lfs"):
        raise DataError(f"{path}: a git LFS pointer, not the file; run git lfs pull")
    control = len(sample) - len(sample.translate(None, _CONTROL))
    is_tar = sample[257:262] == b"ustar"
    if is_tar or sample.startswith(_BINARY) or control > _MAX_CONTROL_SHARE * len(sample):
        raise DataError(
            f"{path}: binary (zip, tar, 7z, PDF, an image …), UTF-16 or UTF-32, or full of control "
            "characters; unpack it, convert it with iconv -f UTF-16 -t UTF-8, or remove them"
        )
    decoder = codecs.getincrementaldecoder(UTF8)("replace")
    text = decoder.decode(sample)  # ignores an incomplete last character
    invalid = text.count("\ufffd") - sample.count("\ufffd".encode())
    valid = len(text) - len(text.encode("ascii", "ignore")) - invalid
    if encoding != UTF8 and valid and not invalid:
        raise DataError(
            f"{path}: UTF-8, not {encoding}; omit --encoding, and convert other files to UTF-8"
        )
    is_stray = invalid <= max(_STRAY_BYTES, _STRAY_SHARE * len(sample), valid)
    if encoding == UTF8 and (invalid > _MAX_INVALID_SHARE * len(sample) or not is_stray):
        raise DataError(f"{path}: not UTF-8; {encoding_hint(sample)}")


def identity(files: list[Path], *recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Status on disk and content hash of each file, in order.

    The hash is copied from an identity in `recorded` with the same status; damaged identities are
    ignored.
    """
    known: dict[tuple[Any, ...], str] = {}
    for before in recorded:
        with suppress(LookupError, TypeError):
            for entry in before["files"]:
                state = tuple(entry[name] for name in _STATE)
                known[state] = entry["blake2b"]

    def entry_of(path: Path) -> dict[str, Any]:
        with open_regular(path) as file:
            state = _state(path)
            digest = known.get(state) or hashlib.file_digest(file, "blake2b").hexdigest()
            if state != _state(path):
                raise DataError(
                    f"{path}: changed while being read; do not change it, and start again"
                )
        return dict(zip(_STATE, state, strict=True), blake2b=digest)

    with ThreadPoolExecutor() as threads:
        return {"files": list(threads.map(entry_of, files))}


def same_content(files: list[Path], recorded: Mapping[str, Any]) -> bool:
    """Whether the content of `files` equals `recorded`.

    Reads a file only if its status on disk differs.
    """
    return _hashes(identity(files, recorded)) == _hashes(recorded)


def _hashes(files: Mapping[str, Any]) -> list[str]:
    return [entry["blake2b"] for entry in files["files"]]


def _state(path: Path) -> tuple[Any, ...]:
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns
