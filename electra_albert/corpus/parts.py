"""Tokenises units of text into part files, in several processes; finished parts are kept.

The files of a part are renamed to their final names when complete. Its statistics are written last;
a part without matching statistics is written again. A part depends only on its unit, not on the
number of processes or interruptions.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from itertools import compress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from electra_albert.contracts import LOG, DataError
from electra_albert.corpus.documents import Document
from electra_albert.corpus.near_duplicates import Signature
from electra_albert.corpus.sources import Unit, read_unit
from electra_albert.files import (
    HashedFile,
    content_hash,
    find_damage,
    read_manifest,
    replacing,
    write_manifest,
)
from electra_albert.tokenization.text_encoder import TextEncoder

PART_FILES = ("tokens", "sentence_ends", "document_ends", "groups", "sketches")
_BATCH_CHARACTERS = 1 << 20  # tokenised at once
_QUICK_ITEMS_PER_WORKER = 16  # another process starts in the time of so many
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

    def damage(self, *, compares_hashes: bool = True) -> str | None:
        """The damage to the files of a complete part, in one line; None if there is none."""
        files = {}
        for name, digest in self.statistics.get("files", {}).items():
            files[self.path(name).name] = digest
        return find_damage(
            self.folder, files, self.path("checked.json"), compares_hashes=compares_hashes
        )


class PartPlan(NamedTuple):
    """All parts of a token store: their units of text, the tokenizer and the output folder."""

    units: list[Unit]
    sources: list[int]  # source of each unit, ascending
    encoder: TextEncoder
    vocab_size: int
    folder: Path
    fingerprint: str  # of the corpus, the read options and the tokenizer
    parts_key: str  # of all that decides the contents of the parts besides their units
    seed: int
    max_seq_length: int  # of the examples

    def parts(self) -> list[Part]:
        """All parts in order."""
        return [self.part(number) for number in range(len(self.units))]

    def part(self, number: int) -> Part:
        """A part, with its statistics if its files match the plan in key and size."""
        unit = self.units[number]
        spans = [(span.start, span.end, span.kind) for span in unit.spans]
        key = content_hash([self.parts_key, spans, unit.options])
        part = Part(unit, number, key, self.folder, token_dtype(self.vocab_size), {})
        written = part._replace(statistics=read_statistics(part.path("json"), key))
        if written.damage(compares_hashes=False):
            return part
        return written


def read_statistics(path: Path, key: str) -> dict[str, Any]:
    """The statistics in a manifest; empty if they are missing, damaged or of another key."""
    statistics = read_manifest(path)
    if statistics.get("key") != key:
        return {}
    return statistics


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 if it holds every token id, else uint32."""
    if vocab_size <= 1 << 16:
        return np.dtype("<u2")
    return np.dtype("<u4")


def write_parts(plan: PartPlan, numbers: Sequence[int], num_workers: int) -> None:
    """Write the parts of these numbers that are missing or damaged."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    parts = map(plan.part, numbers)
    missing = [part for part in parts if not part.statistics or part.damage()]
    if missing and not missing[0].unit.spans:
        raise DataError(
            f"{plan.folder}: part {missing[0].number} is missing or damaged; "
            "write the corpus again by its datatrove pipeline"
        )
    complete = len(numbers) - len(missing)
    if complete:
        LOG.info(f"{complete} of {len(numbers)} parts of the token store are already complete")
    run_all("tokenising", write_part, missing, num_workers, plan.encoder)


def run_all(
    label: str,
    function: Callable[[Any, Any], Any],
    items: Sequence[Any],
    num_workers: int,
    shared: Any,
    *,
    is_quick: bool = False,
) -> list[Any]:
    """function(item, shared) of each item, in this process or in workers that never outlive it.

    Returns the results as they come, and logs the progress. A few quick items need no worker.
    """
    items_per_worker = _QUICK_ITEMS_PER_WORKER if is_quick else 1
    num_workers = min(num_workers, len(items) // items_per_worker)
    results: list[Any] = []
    logged = time.monotonic()
    bar = tqdm(
        _run_each(function, items, num_workers, shared),
        desc=label,
        total=len(items),
        unit=" parts",
        delay=_SECONDS_WITHOUT_BAR,
        disable=None,
        leave=False,
    )
    for result in bar:
        results.append(result)
        is_due = bar.disable and time.monotonic() - logged > _SECONDS_BETWEEN_LINES
        if is_due and len(results) < len(items):
            logged = time.monotonic()
            LOG.info(f"{label}: {len(results)} of {len(items)} parts done")
    return results


class _Worker(SpawnProcess):
    """A process that does not import the caller's script, which may have no `__main__` guard."""

    def start(self) -> None:
        main = sys.modules["__main__"]
        spec, main.__spec__ = main.__spec__, None
        file = vars(main).pop("__file__", None)
        try:
            super().start()
        finally:
            main.__spec__ = spec
            if file is not None:
                main.__file__ = file


class _Context(SpawnContext):  # a fork would copy locks of other threads
    Process = _Worker


def _run_each(
    function: Callable[[Any, Any], Any], items: Sequence[Any], num_workers: int, shared: Any
) -> Iterator[Any]:
    if num_workers <= 1 or multiprocessing.current_process().daemon:  # may have no children
        yield from (function(item, shared) for item in items)
        return
    context = _Context()
    read_end, write_end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(num_workers, context, _start_worker, (shared, read_end))
    try:
        futures = [pool.submit(_run_in_worker, function, item) for item in items]
        yield from (future.result() for future in as_completed(futures))
    except BrokenProcessPool:
        raise DataError(
            "a worker of the preparation was killed, probably out of memory; "
            "start again with fewer --preprocessing_num_workers; finished parts are kept"
        ) from None
    finally:
        write_end.close()  # makes the workers exit at once
        pool.shutdown(cancel_futures=True)
        read_end.close()


_shared: Any = None  # of a worker process, sent to it once


def _run_in_worker(function: Callable[[Any, Any], Any], item: Any) -> Any:
    return function(item, _shared)


def _start_worker(shared: Any, read_end: Connection) -> None:
    """Store what all items share; exit when the parent closes its end of the pipe or is killed."""
    global _shared
    _shared = shared
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers after Ctrl-C

    def exit_with_parent() -> None:
        read_end.poll(None)
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def write_part(part: Part, encoder: TextEncoder) -> None:
    """Tokenise the part's unit into the files of the part."""
    counts = Counter[str]()
    write_documents(part, encoder, read_unit(part.unit, counts), counts)


def write_documents(
    part: Part, encoder: TextEncoder, documents: Iterable[Document], counts: Counter[str]
) -> None:
    """Tokenise documents, which add to `counts` when they are read, into the files of a part."""
    started = time.perf_counter()
    written = Counter[str]()
    document_start = 0  # in tokens
    with ExitStack() as stack:
        files = [HashedFile(stack.enter_context(replacing(part.path(name)))) for name in PART_FILES]
        for sentences, sentence_counts, signatures in _batches(documents):
            written["characters"] += sum(len(text) - text.count(" ") for text in sentences)
            ids, lengths, encoded = encoder.encode_counted(sentences)
            ends = np.append(0, lengths).cumsum() + written["tokens"]  # [sentences + 1] in tokens
            sentence_ends = ends[1:][lengths > 0]
            document_ends = ends[sentence_counts]
            has_token = np.diff(document_ends, prepend=document_start) > 0
            document_start = document_ends.max(initial=document_start)
            signatures = list(compress(signatures, has_token))
            arrays = (
                ids.astype(part.dtype),
                sentence_ends.astype("<i8"),
                document_ends[has_token].astype("<i8"),
                np.array([signature.key for signature in signatures], "<i8"),
                np.frombuffer(b"".join(signature.minhashes for signature in signatures), np.uint8),
            )
            for file, array in zip(files, arrays, strict=True):
                file.write(array.tobytes())
            written.update(
                encoded,
                documents=len(signatures),
                documents_without_a_token=len(has_token) - len(signatures),
                sentences=len(sentence_ends),
                sentences_without_a_token=len(lengths) - len(sentence_ends),
                tokens=len(ids),
                unknown_tokens=int((ids == encoder.unknown_id).sum()),
            )
    write_manifest(
        part.path("json"),
        dict(zip(PART_FILES, (file.finish() for file in files), strict=True)),
        key=part.key,
        read=counts,
        written=written,
        seconds=time.perf_counter() - started,
    )


def _batches(
    documents: Iterable[Document],
) -> Iterator[tuple[list[str], list[int], list[Signature]]]:
    """Sentences; how many there are at the end of each document; and the documents' signatures."""
    sentences: list[str] = []
    sentence_counts: list[int] = []
    signatures: list[Signature] = []
    characters = 0
    for document in documents:
        sentences += document.sentences
        characters += sum(map(len, document.sentences))
        if not document.continues:
            sentence_counts.append(len(sentences))
            signatures.append(document.signature)
        if characters >= _BATCH_CHARACTERS:
            yield sentences, sentence_counts, signatures
            sentences = []
            sentence_counts = []
            signatures = []
            characters = 0
    yield sentences, sentence_counts, signatures
