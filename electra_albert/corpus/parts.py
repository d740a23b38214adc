"""Tokenises units of text into part files, in several processes; finished parts are kept.

The files of a part are renamed to their final names when complete. Its statistics are written last; a part without
matching statistics is written again. A part depends only on its unit, not on the number of processes or interruptions.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from electra_albert.contracts import LOG, DataError
from electra_albert.corpus.documents import Document
from electra_albert.corpus.near_duplicates import Signature
from electra_albert.corpus.sources import Unit, read_unit
from electra_albert.corpus.text_encoder import TextEncoder
from electra_albert.files import (
    DIGESTS,
    FileDigest,
    HashedFile,
    find_damage,
    read_json,
    replacing,
    write_json,
)

PART_FILES = ("tokens", "sentence_ends", "document_ends", "groups", "sketches")  # the last two: Signature's fields
_BATCH_CHARACTERS = 1 << 20  # tokenised at once
_SECONDS_BETWEEN_LINES = 10
_SECONDS_WITHOUT_BAR = 5  # on a terminal


class Part(NamedTuple):
    """One part of a token store: the unit of text it is made from, and its files."""

    unit: Unit
    number: int
    key: str  # hash of the unit, the read options and the tokenizer
    folder: Path
    dtype: np.dtype  # of the token ids
    statistics: dict[str, Any]  # empty until the part is complete

    def path(self, name: str) -> Path:
        return self.folder / f"{self.number:06d}.{name}"

    def damage(self) -> str | None:
        """The damage to the files of a complete part since they were written, in one line; None if there is none."""
        files = {self.path(name).name: FileDigest(*digest) for name, digest in self.statistics["files"].items()}
        return find_damage(self.folder, files, self.path("checked.json"))


class PartPlan(NamedTuple):
    """All parts of a token store: their units of text, the tokenizer and the output folder."""

    units: list[Unit]
    sources: list[int]  # source of each unit, ascending
    encoder: TextEncoder
    vocab_size: int
    folder: Path
    fingerprint: str  # of the corpus, the read options and the tokenizer
    parts_key: str  # of what decides the contents of the parts besides their units: as a rule the fingerprint
    seed: int
    max_seq_length: int  # of the examples

    def parts(self) -> list[Part]:
        """All parts in order; those that match the plan have their statistics. `Part.damage` compares hashes."""
        return [self.part(number) for number in range(len(self.units))]

    def part(self, number: int) -> Part:
        """As one of `parts`."""
        unit = self.units[number]
        spans = [(span.start, span.end, span.kind) for span in unit.spans]
        key = content_hash([self.parts_key, spans, unit.options])
        part = Part(unit, number, key, self.folder, token_dtype(self.vocab_size), {})
        found = read_json(part.path("json"), {"key": str, "files": DIGESTS})
        is_whole = (
            found.pop("hash", "") == content_hash(found)
            and found["key"] == key
            and all(
                part.path(name).is_file() and part.path(name).stat().st_size == found["files"][name][0]
                for name in PART_FILES
            )
        )
        return part._replace(statistics=found) if is_whole else part


def content_hash(content: object) -> str:
    """A hash of content that JSON can hold."""
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 if it holds every token id, else uint32."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def write_parts(plan: PartPlan, numbers: Sequence[int], num_workers: int) -> None:
    """Write the parts of these numbers that are missing or damaged."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    missing = [part for part in map(plan.part, numbers) if not part.statistics or part.damage()]
    if len(missing) < len(numbers):
        LOG.info(f"{len(numbers) - len(missing)} of {len(numbers)} parts of the token store are already complete")
    run_all("tokenising", write_part, missing, num_workers, plan.encoder)


def run_all(
    what: str, function: Callable[[Any, Any], Any], items: Sequence[Any], num_workers: int, shared: Any
) -> list[Any]:
    """function(item, shared) of each item, in this process or in workers that never outlive it; logs the progress."""
    results: list[Any] = [None] * len(items)
    logged = time.monotonic()
    outputs = _run_each(function, items, min(num_workers, len(items)), shared)
    settings: dict[str, Any] = {"unit": " parts", "delay": _SECONDS_WITHOUT_BAR, "disable": None, "leave": False}
    bar = tqdm(outputs, desc=what, total=len(items), **settings)
    for done, (number, result) in enumerate(bar, start=1):
        results[number] = result
        is_due = bar.disable and time.monotonic() - logged > _SECONDS_BETWEEN_LINES
        if is_due and done < len(items):
            logged = time.monotonic()
            LOG.info(f"{what}: {done} of {len(items)} parts done")
    return results


def _run_each(
    function: Callable[[Any, Any], Any], items: Sequence[Any], num_workers: int, shared: Any
) -> Iterator[tuple[int, Any]]:
    if num_workers <= 1:
        yield from ((number, function(item, shared)) for number, item in enumerate(items))
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    read_end, write_end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(shared, read_end))
    try:
        number_of = {pool.submit(_run_in_worker, function, item): number for number, item in enumerate(items)}
        yield from ((number_of[future], future.result()) for future in as_completed(number_of))
    except BrokenProcessPool:
        advice = "start again with fewer --preprocessing_num_workers; finished parts are kept"
        raise DataError(f"a worker of the preparation was killed, probably out of memory; {advice}") from None
    finally:
        write_end.close()  # makes the workers exit at once
        pool.shutdown(cancel_futures=True)
        read_end.close()


_shared: Any = None  # of a worker process, sent to it once


def _run_in_worker(function: Callable[[Any, Any], Any], item: Any) -> Any:
    return function(item, _shared)


def _start_worker(shared: Any, read_end: Connection) -> None:
    """Store what all items share; exit when the parent process closes the other end of the pipe or is killed."""
    global _shared
    _shared = shared
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent stops its workers

    def exit_with_parent() -> None:
        read_end.poll(None)
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def write_part(
    part: Part, encoder: TextEncoder, documents: Iterable[Document] | None = None, read: Counter[str] | None = None
) -> None:
    """Tokenise the part's unit, or documents that `read` counts, into the files of the part."""
    started = time.perf_counter()
    counts = Counter[str]() if read is None else read
    with ExitStack() as stack:
        files = {name: HashedFile(stack.enter_context(replacing(part.path(name)))) for name in PART_FILES}
        writer = _PartWriter(files, part.dtype, encoder)
        for document in read_unit(part.unit, counts) if documents is None else documents:
            writer.add(document)
        writer.flush()
    written = {name: file.finish() for name, file in files.items()}
    statistics: dict[str, Any] = {"key": part.key, "files": written, "read": counts, "written": writer.counts}
    statistics["seconds"] = time.perf_counter() - started
    write_json(part.path("json"), statistics | {"hash": content_hash(statistics)})


class _PartWriter:
    """Batches sentences, tokenises them and appends the result to the files of a part."""

    def __init__(self, files: Mapping[str, HashedFile], dtype: np.dtype, encoder: TextEncoder) -> None:
        self.counts: Counter[str] = Counter()
        self._files, self._dtype, self._encoder = files, dtype, encoder
        self._sentences: list[str] = []
        self._ends: list[tuple[int, Signature]] = []  # (sentences in the batch at the document's end, its signature)
        self._characters = 0
        self._document_start = 0  # tokens before the current document

    def add(self, document: Document) -> None:
        self._sentences += document.sentences
        characters = sum(map(len, document.sentences))
        self._characters += characters
        self.counts["characters"] += characters - sum(sentence.count(" ") for sentence in document.sentences)
        if not document.continues:
            self._ends.append((len(self._sentences), document.signature))
        if self._characters >= _BATCH_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        ids, lengths, counts = self._encoder.encode_counted(self._sentences)
        ends = np.append(0, lengths).cumsum() + self.counts["tokens"]  # [sentences + 1] in tokens
        filled = ends[1:][lengths > 0]
        without, unknown = len(lengths) - len(filled), int((ids == self._encoder.unknown_id).sum())
        counts.update(sentences=len(filled), sentences_without_a_token=without, tokens=len(ids), unknown_tokens=unknown)
        self.counts.update(counts)
        documents: list[tuple[int, Signature]] = []
        for sentence_count, signature in self._ends:
            end = int(ends[sentence_count])
            if end > self._document_start:
                documents.append((end, signature))
            else:
                self.counts["documents_without_a_token"] += 1
            self._document_start = end
        self.counts["documents"] += len(documents)
        arrays = {
            "tokens": ids.astype(self._dtype),
            "sentence_ends": filled.astype("<i8"),
            "document_ends": np.array([end for end, _ in documents], "<i8"),
            "groups": np.array([signature.key for _, signature in documents], "<i8"),
            "sketches": np.frombuffer(b"".join(signature.minhashes for _, signature in documents), np.uint8),
        }
        for name, array in arrays.items():
            self._files[name].write(array.tobytes())
        self._sentences, self._characters, self._ends = [], 0, []
