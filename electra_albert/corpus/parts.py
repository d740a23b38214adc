"""Units of text to part files of tokens, by several processes; what is already there is not done again.

A part is written under names of its own, renamed, and its receipt last: without a fitting receipt it does not count.
Parts depend on their unit alone, so neither the number of processes nor an interruption shows in them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.near_duplicates import Group
from electra_albert.corpus.sources import Document, Unit, read_unit
from electra_albert.corpus.word_encoder import Encoder, make_encoder
from electra_albert.corpus.writing import replacing, write_json

LOG = logging.getLogger(__name__)

PART_FILES = ("tokens", "sentence_ends", "document_ends", "groups", "sketches")
_ENCODED_CHARACTERS = 1 << 20  # of text tokenised at once
_SECONDS_BETWEEN_LINES = 10


class Part(NamedTuple):
    """One finished part: its receipt, and where its files are."""

    receipt: dict[str, Any]
    folder: Path
    number: int

    def path(self, name: str) -> Path:
        return self.folder / f"{self.number:06d}.{name}"


class PartPlan(NamedTuple):
    """All parts of a store: what each is made from, how, and where they go."""

    units: list[Unit]
    settings: str  # of the encoder
    folder: Path
    fingerprint: str  # of corpus, reading and tokenizer
    dtype: np.dtype  # of the ids

    def tasks(self) -> list[_Task]:
        """The work of each part, in order."""
        return [
            _Task(unit, number, _part_key(self.fingerprint, unit), str(self.folder), self.dtype.str)
            for number, unit in enumerate(self.units)
        ]


class _Task(NamedTuple):
    unit: Unit
    number: int
    key: str
    folder: str
    dtype: str


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned integers that hold every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def write_parts(plan: PartPlan, numbers: Iterable[int], num_workers: int) -> None:
    """Tokenise the units of these numbers whose parts are not there yet."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    tasks = plan.tasks()
    wanted = [tasks[number] for number in numbers]
    missing = [task for task in wanted if _read_receipt(task) is None]
    if len(missing) < len(wanted):
        LOG.info(f"{len(wanted) - len(missing)} of {len(wanted)} parts of the token store are there already")
    said = time.monotonic()
    for done, _ in enumerate(_run(missing, plan.settings, min(num_workers, len(missing))), start=1):
        if time.monotonic() - said > _SECONDS_BETWEEN_LINES and done < len(missing):
            said = time.monotonic()
            LOG.info(f"tokenising: {done} of {len(missing)} parts done")


def missing_parts(plan: PartPlan) -> list[int]:
    """Numbers of the parts that are not there, or were made from something else."""
    return [task.number for task in plan.tasks() if _read_receipt(task) is None]


def finished_parts(plan: PartPlan) -> list[Part]:
    """All parts in order; UsageError where one is missing."""
    parts = []
    for task in plan.tasks():
        receipt = _read_receipt(task)
        if receipt is None:
            raise UsageError(f"{plan.folder}: part {task.number} is not there or was made otherwise; write it again")
        parts.append(Part(receipt, plan.folder, task.number))
    return parts


def _part_key(fingerprint: str, unit: Unit) -> str:
    spans = [(span.start, span.end, span.kind) for span in unit.spans]
    return hashlib.blake2b(json.dumps([fingerprint, spans, unit.reading]).encode(), digest_size=16).hexdigest()


def _read_receipt(task: _Task) -> dict[str, Any] | None:
    """The receipt of a part that is whole and was made from the same unit and tokenizer."""
    part = Part({}, Path(task.folder), task.number)
    try:
        receipt = json.loads(part.path("json").read_text(encoding="utf-8"))
        sizes = {name: part.path(name).stat().st_size for name in PART_FILES}
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(receipt, dict) or receipt.get("key") != task.key or receipt.get("sizes") != sizes:
        return None
    return receipt


def _run(tasks: list[_Task], settings: str, num_workers: int) -> Iterator[None]:
    """Do the tasks, here or in processes of their own; yields as often as one is done.

    No process outlives this, and none is waited for: what it was at is begun anew another time.
    """
    if num_workers <= 1:
        encoder = make_encoder(settings)
        for task in tasks:
            _write_part(task, encoder)
            yield
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    watched, held = context.Pipe(duplex=False)
    initargs = (settings, os.getpid(), watched)
    pool = ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=initargs)
    try:
        for future in as_completed([pool.submit(_work, task) for task in tasks]):
            future.result()
            yield
    except BrokenProcessPool:
        message = "a process that tokenises was killed, perhaps for want of memory"
        raise DataError(
            f"{message}; start again with fewer --preprocessing_num_workers, what is done is kept"
        ) from None
    finally:
        held.close()  # the workers leave at once
        pool.shutdown(cancel_futures=True)
        watched.close()


_encoder: Encoder | None = None  # one a worker process, so that its memo of words lasts from unit to unit


def _start_worker(settings: str, parent: int, watched: Connection) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends its workers
    threading.Thread(target=_leave_with, args=(parent, watched), daemon=True).start()
    _encoder = make_encoder(settings)


def _leave_with(parent: int, watched: Connection) -> None:
    """End this process once its parent closes the other end of `watched`, or is gone: killed, it can tell nobody."""
    while os.getppid() == parent and not watched.poll(1):
        pass
    os._exit(1)


def _work(task: _Task) -> None:
    assert _encoder is not None
    _write_part(task, _encoder)


def _write_part(task: _Task, encoder: Encoder) -> None:
    started = time.perf_counter()
    part = Part({}, Path(task.folder), task.number)
    counts: Counter[str] = Counter()
    specials_before = encoder.special_texts
    unknown_before, lost_before = encoder.unknown_characters, encoder.lost.copy()
    with ExitStack() as stack:
        files = {name: stack.enter_context(replacing(part.path(name))) for name in PART_FILES}
        writer = _PartWriter(files, np.dtype(task.dtype), encoder)
        for document in read_unit(task.unit, counts):
            writer.add(document)
        writer.flush()
    receipt = {
        "key": task.key,
        "sizes": writer.sizes,
        "read": dict(counts),
        "written": {
            **writer.counts,
            "special_texts": encoder.special_texts - specials_before,
            "unknown_characters": encoder.unknown_characters - unknown_before,
            **(encoder.lost - lost_before),
        },
        "seconds": time.perf_counter() - started,
    }
    write_json(part.path("json"), receipt)


class _PartWriter:
    """Gathers sentences up to a bound, tokenises them together, and appends to the part's files."""

    def __init__(self, files: Mapping[str, BinaryIO], dtype: np.dtype, encoder: Encoder) -> None:
        self.counts: Counter[str] = Counter()
        self.sizes = dict.fromkeys(files, 0)  # bytes that were handed over, whatever is found on the disk
        self._files, self._dtype, self._encoder = files, dtype, encoder
        self._sentences: list[str] = []
        self._characters = 0
        self._ends: list[tuple[int, Group]] = []  # (sentences gathered when a document ended, its group)
        self._group: Group | None = None  # of a document that goes on
        self._tokens = 0  # written so far
        self._document_start = 0  # tokens written when the last document ended

    def add(self, document: Document) -> None:
        self._sentences += document.sentences
        characters = sum(map(len, document.sentences))
        self._characters += characters
        self.counts["characters"] += characters - sum(sentence.count(" ") for sentence in document.sentences)
        if self._group is None:
            self._group = document.group
        if not document.continues:
            self._ends.append((len(self._sentences), self._group))
            self._group = None
        if self._characters >= _ENCODED_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        ids, lengths = self._encoder.encode(self._sentences)
        ends = lengths.cumsum() + self._tokens
        filled = ends[lengths > 0]
        self.counts["sentences"] += len(filled)
        self.counts["sentences_without_a_token"] += len(lengths) - len(filled)
        self.counts["tokens"] += len(ids)
        self.counts["unknown_tokens"] += int((ids == self._encoder.unknown_id).sum())
        document_ends: list[int] = []
        groups: list[Group] = []
        for sentence_count, group in self._ends:
            end = int(ends[sentence_count - 1]) if sentence_count else self._tokens
            if end > self._document_start:
                document_ends.append(end)
                groups.append(group)
            else:
                self.counts["documents_without_a_token"] += 1
            self._document_start = end
        self.counts["documents"] += len(document_ends)
        self._write("tokens", ids.astype(self._dtype))
        self._write("sentence_ends", filled.astype("<i8"))
        self._write("document_ends", np.array(document_ends, "<i8"))
        self._write("groups", np.array([group.key for group in groups], "<i8"))
        self._write("sketches", np.frombuffer(b"".join(group.sketch for group in groups), np.uint8))
        self._tokens += len(ids)
        self._sentences, self._characters, self._ends = [], 0, []

    def _write(self, name: str, array: np.ndarray) -> None:
        self._files[name].write(array.tobytes())
        self.sizes[name] += array.nbytes
