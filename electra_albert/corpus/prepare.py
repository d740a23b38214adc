"""Build or reuse the tokenizer, the token store and the examples of a corpus."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from electra_albert.config.pretraining import CorpusConfig
from electra_albert.contracts import LOG, UsageError
from electra_albert.corpus.folder import (
    KEY_LETTERS,
    CorpusFolder,
    locked,
    open_corpus,
    plan_parts,
    ready_tokenizer,
    store_key,
)
from electra_albert.corpus.mixture import ExampleOrder, order_examples, source_names
from electra_albert.corpus.parts import write_parts
from electra_albert.corpus.rows import ExampleTable, build_table, padding_share
from electra_albert.corpus.store import (
    Store,
    format_statistics,
    merge_parts,
    ready_store,
    split_parts,
)
from electra_albert.files import remove_leftovers
from electra_albert.tokenization.tokenizer import Tokenizer

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Prepared(NamedTuple):
    """The data of a run. The folder belongs to one corpus content, tokenizer and seed."""

    tokenizer: Tokenizer
    tokenizer_dir: Path
    store: Store
    train_table: ExampleTable
    validation_table: ExampleTable
    order: ExampleOrder  # of the training examples
    folder: Path
    held_out_sources: dict[str, int]  # of a mixture: the first held-out example of each source


def prepare(
    config: CorpusConfig,
    seed: int,
    *,
    check_key: Callable[[str], None] | None = None,
    verify: bool = False,
) -> Prepared:
    """Build or reuse the tokenizer, the store and the examples.

    In a distributed run, one process must call it first. check_key is called with the key of the
    text before anything is built. verify: hash all files of the store again; otherwise only those
    whose size or time differs from the last check. Raises UsageError, DataError or CheckpointError.
    """
    with plain_errors(config):
        corpus = open_corpus(config, seed)
        if check_key:
            check_key(corpus.key)
        if verify:
            for record in corpus.folder.rglob("*checked.json"):
                record.unlink(missing_ok=True)
        tokenizer = ready_tokenizer(corpus)
        with locked(corpus.folder / ".lock"):
            for name in ("tokenizer", "store"):
                remove_leftovers(corpus.folder / name)
            return _make_examples(corpus, tokenizer, _build(corpus, tokenizer), seed)


@contextmanager
def plain_errors(config: CorpusConfig) -> Iterator[None]:
    """Turn errors of the file system into UsageError."""
    try:
        yield
    except OSError as problem:
        advice = "check --corpus and --prepared_dir"
        if problem.errno in _NO_ROOM:
            room = "free disk space or name another --prepared_dir"
            advice = f"{room}, then start again; finished parts are kept"
        path = problem.filename or config.prepared_dir
        raise UsageError(f"{path}: {problem.strerror or problem}; {advice}") from problem


def worker_count(config: CorpusConfig) -> int:
    """Processes that prepare at once."""
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return config.preprocessing_num_workers or cores or 1


def find_store(prepared_dir: Path, fingerprint: str) -> Store | None:
    """The store with this fingerprint in `prepared_dir`, if it still exists and is complete."""
    for folder in prepared_dir.glob(f"*-{fingerprint[:KEY_LETTERS]}/store"):
        store = ready_store(folder, fingerprint)
        if store:
            return store
    return None


def _build(corpus: CorpusFolder, tokenizer: Tokenizer) -> Store:
    """Open the store, or write and split its missing parts, and merge them."""
    folder = corpus.folder / "store"
    store = ready_store(folder, store_key(corpus, tokenizer))
    if store:
        shutil.rmtree(folder / "parts", ignore_errors=True)  # a kill may have interrupted it
        for split in (store.train, store.validation):  # until then, tasks may be writing there
            remove_leftovers(split.folder)
        return store
    plan = plan_parts(corpus, tokenizer)
    numbers = range(len(plan.units))
    workers = worker_count(corpus.config)
    LOG.info(f"building the token store in {folder} with {workers} processes")
    times = [time.monotonic()]
    write_parts(plan, numbers, workers)
    corpus.require_unchanged()
    times.append(time.monotonic())
    split_parts(plan, numbers, workers)
    times.append(time.monotonic())
    store = merge_parts(plan, corpus.skipped)
    times.append(time.monotonic())
    text = "the parts were written in {:.1f} s, split in {:.1f} s and merged in {:.1f} s"
    LOG.info(text.format(*(end - start for start, end in pairwise(times))))
    return store


def _make_examples(corpus: CorpusFolder, tokenizer: Tokenizer, store: Store, seed: int) -> Prepared:
    """Split the store into examples and order them by the sources' weights."""
    length = corpus.config.max_seq_length
    workers = worker_count(corpus.config)
    weights = [source.weight for source in corpus.sources if source.weight is not None]
    train, validation = (
        build_table(split, length, corpus.seed, workers)
        for split in (store.train, store.validation)
    )
    count = len(corpus.sources)
    firsts = train.first_of_sources(store.train, count)
    order = order_examples(firsts, train.count, weights, seed)
    LOG.info(format_statistics(store.statistics, padding_share(store.train, train, length)))
    held_out_sources: dict[str, int] = {}
    if count > 1:
        firsts = validation.first_of_sources(store.validation, count)
        names = source_names(corpus.sources)
        held_out_sources = dict(zip(names, firsts, strict=True))
        _log_sources(corpus, store, order)
    return Prepared(
        tokenizer,
        corpus.folder / "tokenizer",
        store,
        train,
        validation,
        order,
        corpus.folder,
        held_out_sources,
    )


def _log_sources(corpus: CorpusFolder, store: Store, order: ExampleOrder) -> None:
    """Log the share of each source in the training examples and in the held-out text."""
    held_out = store.statistics["sides"]["validation"]["source_tokens"]
    for number, source in enumerate(corpus.sources):
        # A store has no counts of the last sources if they hold no text.
        text = f"{held_out[number] if number < len(held_out) else 0:,} tokens held out"
        if len(order.taken) > 1:
            share = order.taken[number] / order.examples_per_epoch
            repeats = order.taken[number] / order.count[number]
            examples = f"{share:.1%} of the training examples, each {repeats:.2f} times per epoch"
            text = f"{examples}; {text}"
        LOG.info(f"  {source.corpus}: {text}")
