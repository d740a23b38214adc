"""The built-in corpus: English prose of the documentation installed with Python and the packages we require.

Nothing is imported, run or downloaded: sources are parsed. The same Python and packages give the same bytes.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import inspect
import json
import os
import platform
import re
import signal
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from electra_albert.contracts import UsageError
from electra_albert.corpus.near_duplicates import NearDuplicates
from electra_albert.corpus.prose import plain_sentences
from electra_albert.corpus.sentences import word_set
from electra_albert.files import name_beside

FORMAT_VERSION = 2  # raised whenever the same packages would give another text
CORPUS_NAME = "docs.jsonl"
RECEIPT_NAME = "docs.receipt.json"
REQUIREMENTS = word_set(
    "torch transformers tokenizers datasets safetensors numpy tqdm tensorboard jsonargparse[signatures] scikit-learn "
    "scipy matplotlib"
)
_SKIPPED_FOLDERS = word_set(
    "test tests testing idle_test lib2to3 site-packages dist-packages __pycache__ _vendor _vendored vendored_packages "
    "bundled _bundled config licenses thirdparty externals"
)
_PROSE_SUFFIXES = frozenset({".rst", ".md"})
_PROSE_NAMES = re.compile(r"(readme|history|changelog|changes|news|faq|intro|about|todo|notes)[\w.-]*\.txt$", re.I)
_LICENCE = re.compile(r"licen[sc]e|copying|notice|authors|contributors|credits|top_level|entry_points", re.I)
# Hundreds of files that repeat each other, or hold hardly a sentence: a fifth of the time, a twentieth of the text.
_SKIPPED_TREES = ("transformers/models/", "pygments/lexers/", "python/encodings/", "sympy/polys/benchmarks/")
_MAX_SOURCE_BYTES = 4 << 20
_MIN_WORDS = 8
_MAX_REPEATS = 5  # of one sentence, over documents
_FILES_A_TASK = 48


class Source(NamedTuple):
    """A file to read: where it is, and the name it goes by in the corpus on every machine."""

    path: str
    name: str


class Extract(NamedTuple):
    """What a worker hands back: (source, sentences) for each document, and its counts."""

    documents: list[tuple[str, list[str]]]
    counts: Counter[str]


def installed_fingerprint() -> str:
    """A hash that changes with the Python version, the packages read and this module's rules."""
    parts = [f"format=={FORMAT_VERSION}", f"python=={platform.python_version()}"]
    parts += sorted(f"{name}=={dist.version}" for name, dist in _distributions().items())
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def write_installed_docs(folder: Path, workers: int | None = None) -> Path:
    """Write the corpus and its receipt into `folder` unless they are there already; returns the corpus file."""
    fingerprint = installed_fingerprint()
    if not _is_current(folder, fingerprint):
        write_documents(folder, installed_sources(), fingerprint, workers or _cores())
    return folder / CORPUS_NAME


def write_documents(folder: Path, sources: list[Source], fingerprint: str, workers: int) -> None:
    """Write the documents of `sources` and the receipt, each complete or not at all and the receipt last."""
    started = time.monotonic()
    counts: Counter[str] = Counter()
    documents = select_documents(extract_documents(sources, workers), counts)
    lines = [json.dumps({"source": source, "sentences": sentences}) + "\n" for source, sentences in documents]
    counts["bytes_written"] = sum(map(len, lines))
    receipt = {"fingerprint": fingerprint, "seconds": round(time.monotonic() - started, 1), "counts": dict(counts)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECEIPT_NAME).unlink(missing_ok=True)
        _write_atomically(folder / CORPUS_NAME, "".join(lines))
        _write_atomically(folder / RECEIPT_NAME, json.dumps(receipt, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot write the built-in corpus ({error.strerror}); name another folder"
        ) from error


def _is_current(folder: Path, fingerprint: str) -> bool:
    try:
        receipt = json.loads((folder / RECEIPT_NAME).read_text(encoding="utf-8"))
        size = (folder / CORPUS_NAME).stat().st_size
        return receipt["fingerprint"] == fingerprint and receipt["counts"]["bytes_written"] == size
    except (OSError, ValueError, KeyError, TypeError):
        return False  # missing, cut short or not ours: it is made again


def _write_atomically(path: Path, text: str) -> None:
    beside = name_beside(path.with_name(f".{path.name}"))  # hidden: no corpus, should it be left there
    with beside.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Which files: the standard library and the required distributions with what they need.


def _distributions() -> dict[str, metadata.Distribution]:
    """The installed distributions reached from REQUIREMENTS, by normalised name."""
    from packaging.requirements import Requirement

    found: dict[str, metadata.Distribution] = {}
    visited: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in sorted(REQUIREMENTS)]
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) in visited:
                continue
            visited.add((name, extra))
            try:
                found[name] = metadata.distribution(requirement.name)
            except metadata.PackageNotFoundError:
                continue
            for needed in map(Requirement, found[name].requires or ()):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    return found


def installed_sources() -> list[Source]:
    """The files the corpus is made from, sorted by name."""
    return sorted({source.name: source for source in _sources()}.values(), key=lambda source: source.name)


def _sources() -> Iterator[Source]:
    library = Path(sysconfig.get_path("stdlib"))
    for folder, subfolders, files in os.walk(library):
        subfolders[:] = sorted(name for name in subfolders if name not in _SKIPPED_FOLDERS)
        for name in files:
            path = Path(folder, name)
            if _is_wanted(f"python/{path.relative_to(library).as_posix()}"):
                yield Source(str(path), f"python/{path.relative_to(library).as_posix()}")
    for dist in _distributions().values():
        for entry in dist.files or ():
            if _is_wanted(entry.as_posix()):
                yield Source(str(dist.locate_file(entry)), entry.as_posix())


def _is_wanted(source_name: str) -> bool:
    *parts, name = source_name.split("/")
    if (
        source_name.startswith(_SKIPPED_TREES)
        or ".." in parts
        or not _SKIPPED_FOLDERS.isdisjoint(parts)
        or _LICENCE.search(name)
    ):
        return False
    is_description = name == "METADATA" and parts[-1].endswith(".dist-info")
    is_source = name.endswith(".py") and not name.startswith("test_")
    return is_source or is_description or Path(name).suffix in _PROSE_SUFFIXES or bool(_PROSE_NAMES.match(name))


# From files to documents of sentences.


def extract_documents(sources: list[Source], workers: int) -> Iterator[Extract]:
    """Extracts in the order of `sources`, whatever the number of workers."""
    rest = iter(sources)
    tasks = list(iter(lambda: list(islice(rest, _FILES_A_TASK)), []))
    if workers == 1:
        yield from map(_extract, tasks)
        return
    ignore = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends its workers
    with ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, ignore) as pool:
        yield from pool.map(_extract, tasks)


def _extract(sources: list[Source]) -> Extract:
    documents: list[tuple[str, list[str]]] = []
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    with _no_garbage_collection():
        for source in sources:
            for text in _texts(source, counts):
                counts["texts_found"] += 1
                if text in seen:
                    counts["texts_repeated_exactly"] += 1
                    continue
                seen.add(text)
                if sentences := plain_sentences(inspect.cleandoc(text), counts):
                    documents.append((source.name, sentences))
                else:
                    counts["texts_without_prose"] += 1
    return Extract(documents, counts)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Syntax trees hold no cycles, and looking for some takes a sixth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _texts(source: Source, counts: Counter[str]) -> Iterator[str]:
    """The pieces of documentation in one file."""
    try:
        raw = Path(source.path).read_bytes()
    except OSError:
        counts["files_unreadable"] += 1
        return
    counts["files_read"] += 1
    if len(raw) > _MAX_SOURCE_BYTES:
        counts["files_too_large"] += 1
    elif not source.name.endswith(".py"):
        text = raw.decode("utf-8", errors="replace").replace("\r\n", "\n")
        yield text.partition("\n\n")[2] if source.name.endswith("METADATA") else text
    elif b'"""' in raw or b"'''" in raw:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's sources
                tree = ast.parse(raw)
        except (SyntaxError, ValueError, RecursionError):
            counts["files_not_parsed"] += 1
            return
        yield from _literals(tree, is_topics=source.name.endswith("pydoc_data/topics.py"))


def _literals(tree: ast.Module, is_topics: bool) -> Iterator[str]:
    """Docstrings, strings handed to add_newdoc and its like, and the values of the documentation topics."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name.startswith(("add_newdoc", "add_docstr")):
                yield from _longest_string(node.value)
        elif is_topics and isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for value in node.value.values:
                yield from _longest_string(value)
        for block in ("body", "orelse", "handlers", "finalbody"):
            waiting += reversed(getattr(node, block, ()))


def _longest_string(node: ast.AST) -> Iterator[str]:
    strings = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if strings:
        yield max(strings, key=len)


# What is kept: no sentence for ever repeated, no near-duplicate.


def select_documents(extracts: Iterable[Extract], counts: Counter[str]) -> Iterator[tuple[str, list[str]]]:
    """The documents to keep, in order; adds to `counts` what was read, kept and left out, and why."""
    repeats: Counter[str] = Counter()
    near = NearDuplicates()
    for documents, extract_counts in extracts:
        counts.update(extract_counts)
        for source, sentences in documents:
            unique = list(dict.fromkeys(sentences))
            kept = [sentence for sentence in unique if repeats[sentence] < _MAX_REPEATS]
            counts["sentences_repeated"] += len(sentences) - len(kept)
            words = " ".join(kept).lower().split()
            if len(words) < _MIN_WORDS:
                counts["documents_too_short"] += 1
            elif near.add(words):
                counts["documents_near_duplicate"] += 1
            else:
                repeats.update(kept)
                counts["documents"] += 1
                counts["sentences"] += len(kept)
                counts["words"] += len(words)
                counts["bytes_of_text"] += sum(len(sentence.encode()) + 1 for sentence in kept)
                yield source, kept
