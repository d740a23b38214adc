"""Units of text to part files of tokens, by several processes; what is already there is not done again.

The files of a part are renamed into place when complete, its statistics last: without fitting statistics it does not
count. Parts depend on their unit alone, so neither the number of processes nor an interruption changes them.
"""

import hashlib
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from electra_albert.contracts import DataError
from electra_albert.corpus.documents import Document
from electra_albert.corpus.near_duplicates import Signature
from electra_albert.corpus.sources import Unit, read_unit
from electra_albert.corpus.text_encoder import TextEncoder
from electra_albert.files import read_json, replacing, write_json

LOG = logging.getLogger(__name__)

PART_FILES = ("tokens", "sentence_ends", "document_ends", "groups", "sketches")
_ENCODED_CHARACTERS = 1 << 20  # of text tokenised at once
_SECONDS_BETWEEN_LINES = 10


class Part(NamedTuple):
    """One part of a store: the unit of text it is made from, and where its files are."""

    unit: Unit
    number: int
    key: str  # of the unit, how it is read, and the tokenizer
    folder: Path
    dtype: np.dtype  # of the ids
    statistics: dict[str, Any]  # empty until the part is there

    def path(self, name: str) -> Path:
        return self.folder / f"{self.number:06d}.{name}"


class PartPlan(NamedTuple):
    """All parts of a store: their units of text, how they are tokenised, and where they go."""

    units: list[Unit]
    sources: list[int]  # the source that each unit belongs to, ascending
    encoder: TextEncoder
    vocab_size: int
    folder: Path
    fingerprint: str  # of corpus, reading and tokenizer

    def parts(self) -> list[Part]:
        """All parts in order, with the statistics of those that are whole and were made from the same."""
        parts = []
        for number, unit in enumerate(self.units):
            spans = [(span.start, span.end, span.kind) for span in unit.spans]
            content = json.dumps([self.fingerprint, spans, unit.reading])
            key = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
            part = Part(unit, number, key, self.folder, token_dtype(self.vocab_size), {})
            found = read_json(part.path("json"))
            sizes = {name: part.path(name).stat().st_size for name in PART_FILES if part.path(name).is_file()}
            is_whole = found.get("key") == key and found["sizes"] == sizes
            parts.append(part._replace(statistics=found) if is_whole else part)
        return parts

    def missing(self) -> list[int]:
        return [part.number for part in self.parts() if not part.statistics]


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned integers that hold every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def write_parts(plan: PartPlan, numbers: Sequence[int], num_workers: int) -> None:
    """Tokenise the units of these numbers whose parts are not there yet."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    parts = plan.parts()
    missing = [parts[number] for number in numbers if not parts[number].statistics]
    if len(missing) < len(numbers):
        LOG.info(f"{len(numbers) - len(missing)} of {len(numbers)} parts of the token store are there already")
    logged = time.monotonic()
    for done, _ in enumerate(_write_all(missing, plan.encoder, min(num_workers, len(missing))), start=1):
        if time.monotonic() - logged > _SECONDS_BETWEEN_LINES and done < len(missing):
            logged = time.monotonic()
            LOG.info(f"tokenising: {done} of {len(missing)} parts done")


def _write_all(parts: list[Part], encoder: TextEncoder, num_workers: int) -> Iterator[None]:
    """Write the parts, here or in processes of their own, none of which outlives this; yields after each."""
    if num_workers <= 1:
        for part in parts:
            _write_part(part, encoder)
            yield
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    watched, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(encoder, watched))
    try:
        yield from (future.result() for future in as_completed([pool.submit(_write_part, part) for part in parts]))
    except BrokenProcessPool:
        way_out = "start again with fewer --preprocessing_num_workers, what is done is kept"
        raise DataError(f"a process that tokenises was killed, perhaps for want of memory; {way_out}") from None
    finally:
        held.close()  # the workers leave at once
        pool.shutdown(cancel_futures=True)
        watched.close()


_encoder: TextEncoder | None = None  # of a worker process, so that it is sent there once


def _start_worker(encoder: TextEncoder, watched: Connection) -> None:
    """Keep the encoder, and end this process when its parent closes the other end of `watched`, or is killed."""
    global _encoder
    _encoder = encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends its workers

    def leave_with_parent() -> None:
        watched.poll(None)
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


def _write_part(part: Part, encoder: TextEncoder | None = None) -> None:
    encoder = encoder or _encoder
    assert encoder is not None
    started = time.perf_counter()
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        files = {name: stack.enter_context(replacing(part.path(name))) for name in PART_FILES}
        writer = _PartWriter(files, part.dtype, encoder)
        for document in read_unit(part.unit, counts):
            writer.add(document)
        writer.flush()
    statistics = {"key": part.key, "sizes": writer.sizes, "read": counts, "written": writer.counts}
    write_json(part.path("json"), statistics | {"seconds": time.perf_counter() - started})


class _PartWriter:
    """Gathers sentences up to a bound, tokenises them together, and appends to the part's files."""

    def __init__(self, files: Mapping[str, BinaryIO], dtype: np.dtype, encoder: TextEncoder) -> None:
        self.counts: Counter[str] = Counter()
        self.sizes = dict.fromkeys(files, 0)  # bytes that were handed over, whatever is found on the disk
        self._files, self._dtype, self._encoder = files, dtype, encoder
        self._sentences: list[str] = []
        self._ends: list[tuple[int, Signature]] = []  # (sentences gathered when a document ended, its group)
        self._characters = 0
        self._document_start = 0  # tokens written when the last document ended

    def add(self, document: Document) -> None:
        self._sentences += document.sentences
        characters = sum(map(len, document.sentences))
        self._characters += characters
        self.counts["characters"] += characters - sum(sentence.count(" ") for sentence in document.sentences)
        if not document.continues:  # all parts of a document have its group
            self._ends.append((len(self._sentences), document.group))
        if self._characters >= _ENCODED_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        ids, lengths, counts = self._encoder.encode_counted(self._sentences)
        ends = np.append(0, lengths).cumsum() + self.counts["tokens"]  # of no sentence, of the first, …
        filled = ends[1:][lengths > 0]
        without, unknown = len(lengths) - len(filled), int((ids == self._encoder.unknown_id).sum())
        counts.update(sentences=len(filled), sentences_without_a_token=without, tokens=len(ids), unknown_tokens=unknown)
        self.counts.update(counts)
        documents: list[tuple[int, Signature]] = []
        for sentence_count, group in self._ends:
            end = int(ends[sentence_count])
            if end > self._document_start:
                documents.append((end, group))
            else:
                self.counts["documents_without_a_token"] += 1
            self._document_start = end
        self.counts["documents"] += len(documents)
        arrays = {
            "tokens": ids.astype(self._dtype),
            "sentence_ends": filled.astype("<i8"),
            "document_ends": np.array([end for end, _ in documents], "<i8"),
            "groups": np.array([group.key for _, group in documents], "<i8"),
            "sketches": np.frombuffer(b"".join(group.sketch for _, group in documents), np.uint8),
        }
        for name, array in arrays.items():
            self._files[name].write(array.tobytes())
            self.sizes[name] += array.nbytes
        self._sentences, self._characters, self._ends = [], 0, []
