"""Build or reuse the tokenizer, the token store and the examples of a corpus.

Later runs reuse them. The folder's name has the first letters of its key: a hash of the contents of all files, the
options for reading them, the tokenizer and the seed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from electra_albert.apps.settings import require_same_text
from electra_albert.config import BUILT_IN_CORPUS, CorpusConfig
from electra_albert.contracts import LOG, DataError, UsageError, redacted
from electra_albert.corpus.datatrove import DOCUMENTS_FILE, parts_of_documents, read_record
from electra_albert.corpus.parts import PartPlan, write_parts
from electra_albert.corpus.sources import ReadOptions, Unit, plan_units, read_unit, require_columns
from electra_albert.corpus.tokenizer_training import extend_tokenizer, train_tokenizer
from electra_albert.data_files.finding import find_files, identity, same_content
from electra_albert.files import (
    SAMPLE_TEXT,
    content_hash,
    read_json,
    record_digests,
    recorded_damage,
    remove_leftovers,
    write_json,
)
from electra_albert.tokenization import tokenizer as tokenizers
from electra_albert.tokenization.text_encoder import TextEncoder

if TYPE_CHECKING:  # these import torch, which --help must not load
    from electra_albert.corpus.mixture import ExampleOrder, Source
    from electra_albert.corpus.rows import ExampleTable
    from electra_albert.corpus.store import Store
    from electra_albert.tokenization.tokenizer import Tokenizer


PREPARED_VERSION = 8  # increase it when the same text would be read, split, tokenized or held out differently
_TRAINING_VERSION = 3  # increase it when tokenizer training would give another result on the same text
_KEY_LETTERS = 12  # of the key, in the folder's name
UNIT_BYTES, _MAX_PARTS = 8 << 20, 2048  # of text per part, more in a corpus above 16 GB
SAMPLE_CHARACTERS = 20_000_000  # for training or extending a tokenizer
_SAMPLE_SECONDS = 15  # to read so many and count their words, on one core
_SAMPLED_UNITS, _SMALLEST_SAMPLE_BYTES = 256, 1 << 20
_TOKENIZER_FILES = "tokenizer*.json"
_TOKENIZER_MAX_LENGTH = 512  # of the copy kept with the store; a run's copy has the run's own
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
    held_out_sources: dict[str, int]  # of a mixture: each source's name and its first example in the validation table


def prepare(
    config: CorpusConfig, seed: int, *, recorded: Mapping[str, Any] | None = None, verify: bool = False
) -> Prepared:
    """Build or reuse the tokenizer, the store and the examples. In a distributed run, one process must call it first.

    recorded: settings of the run to resume. verify: hash all files of the store again; otherwise only those whose size
    or time differs from the last check.
    """
    with plain_errors(config):
        corpus = open_corpus(config, seed)
        if recorded is not None:
            require_same_text(recorded, config, corpus.key)
        for checked in corpus.folder.rglob("*checked.json") if verify else ():
            checked.unlink(missing_ok=True)
        tokenizer = ready_tokenizer(corpus)
        with locked(corpus.folder / ".lock"):
            for path in ("tokenizer", "store"):
                remove_leftovers(corpus.folder / path)
            return _make_examples(corpus, tokenizer, _build(corpus, tokenizer), seed)


@contextmanager
def plain_errors(config: CorpusConfig) -> Iterator[None]:
    """Turn errors of the file system into UsageError."""
    try:
        yield
    except OSError as problem:
        advice = "check --corpus and --prepared_dir"
        if problem.errno in _NO_ROOM:
            advice = "free disk space or name another --prepared_dir, then start again; finished parts are kept"
        where = problem.filename or config.prepared_dir
        raise UsageError(f"{where}: {problem.strerror or problem}; {advice}") from problem


class CorpusFolder(NamedTuple):
    """The files of a corpus, and the folder that belongs to it."""

    folder: Path
    key: str
    config: CorpusConfig
    seed: int
    sources: list[Source]
    files: list[list[Path]]  # per source; empty if a datatrove pipeline has written the parts
    readings: list[ReadOptions]  # per source
    identity: dict[str, Any]  # of all files
    found: Counter[str]  # numbers of files that were skipped
    given: Tokenizer | None  # the tokenizer named by --tokenizer

    def units(self, unit_bytes: int) -> list[tuple[int, Unit]]:
        """All units, each with the index of its source."""
        pairs = enumerate(zip(self.files, self.readings, strict=True))
        return [(number, unit) for number, (some, how) in pairs for unit in plan_units(some, how, unit_bytes)]


def open_corpus(config: CorpusConfig, seed: int) -> CorpusFolder:
    """List the files of the corpus, compute its key and create its folder; extends the tokenizer if requested."""
    from electra_albert.corpus.mixture import read_sources, without_repeats

    given, root = None, Path(config.prepared_dir)
    if (Path(config.corpus) / DOCUMENTS_FILE).is_file():
        return _open_documents(config)
    if config.tokenizer:
        if config.keep_accents == "albert":
            raise UsageError("--keep_accents albert applies only to a trained tokenizer; use false with --tokenizer")
        options = tokenizers.TextOptions(config.do_lower_case, config.keep_accents, config.split_digit_comma)
        given = tokenizers.load_tokenizer(Path(config.tokenizer), options)
    elif config.split_digit_comma is False:
        raise UsageError("--split_digit_comma false needs a --tokenizer: a trained one always splits; remove it")
    root.mkdir(parents=True, exist_ok=True)
    sources = read_sources(config.corpus, config.text_column)
    paths = [str(SAMPLE_TEXT) if source.corpus == BUILT_IN_CORPUS else source.corpus for source in sources]
    name, found = short_name(config.corpus), Counter[str]()
    files = without_repeats(sources, [find_files(path, found, config.encoding) for path in paths], found)
    readings = [
        ReadOptions(source.text_column, config.bad_utf8, config.encoding, config.documents) for source in sources
    ]
    for some, how in zip(files, readings, strict=True):  # before the slow steps
        require_columns(some, how)
    with locked(root / f".{name}.lock"):  # parallel jobs, as on a cluster, hash every file only once
        recorded = map(read_json, sorted(root.glob(f"{name}-*/corpus.json")))  # unchanged files are not hashed again
        hashes = identity([*chain(*files)], *recorded)
        hash_of = {entry["path"]: entry["blake2b"] for entry in hashes["files"]}
        hashed = [[[hash_of[str(path)], path.suffixes[-2:]] for path in some] for some in files]
        content = [[how.text_column, some] for how, some in zip(readings, hashed, strict=True)]
        trained = [_TRAINING_VERSION, config.vocab_size, config.do_lower_case is not False, config.keep_accents]
        tokenizer = tokenizers.fingerprint(given) if given else trained
        parts = [PREPARED_VERSION, content, [config.bad_utf8, config.encoding, config.documents], tokenizer, seed]
        key = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
        folder = root / f"{name}-{key[:_KEY_LETTERS]}"
        folder.mkdir(exist_ok=True)
        remove_leftovers(folder)
        if read_json(folder / "corpus.json") != hashes:
            write_json(folder / "corpus.json", hashes)
    corpus = CorpusFolder(folder, key, config, seed, sources, files, readings, hashes, found, given)
    if config.extend_vocab_to is None:
        return corpus
    with locked(folder / ".tokenizer.lock"):
        extended = _extended_tokenizer(corpus, config.extend_vocab_to)
    return open_corpus(with_tokenizer(config, extended), seed)


def _open_documents(config: CorpusConfig) -> CorpusFolder:
    """A corpus that corpus.datatrove.WriteTokens has written. Its tokenizer and held-out text are fixed."""
    from electra_albert.corpus.mixture import Source

    folder = Path(config.corpus)
    read_before = ("text_column", "documents", "encoding", "bad_utf8", "tokenizer", "extend_vocab_to", "do_lower_case")
    for name in (*read_before, "keep_accents", "split_digit_comma"):
        if getattr(config, name) != getattr(CorpusConfig, name):
            raise UsageError(f"--{name}: the text in {folder} is tokenized already; remove the option")
    found, tokenizer = read_record(folder), tokenizers.load_tokenizer(folder / "tokenizer")
    if not found.get("key"):
        parts = parts_of_documents(folder, tokenizer).parts()
        if missing := [str(part.number) for part in parts if not part.statistics]:
            raise DataError(f"{folder}: tasks {', '.join(missing[:20])} have not ended; run the pipeline again")
        found["key"] = content_hash([part.statistics["files"] for part in parts])
        write_json(folder / DOCUMENTS_FILE, found)
    sources = [Source(config.corpus, config.text_column)]
    return CorpusFolder(folder, found["key"], config, found["seed"], sources, [], [], {}, Counter(), tokenizer)


def short_name(corpus: str) -> str:
    """Short name of a corpus, for folder names."""
    stem = Path(os.path.realpath(redacted(corpus))).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")[:40] or "corpus"


def with_tokenizer(config: CorpusConfig, folder: Path) -> CorpusConfig:
    """The config with our tokenizer in `folder`, whose files record case, accents, digit splitting and vocabulary."""
    unset: dict[str, Any] = dict.fromkeys(("extend_vocab_to", "do_lower_case", "keep_accents", "split_digit_comma"))
    return replace(config, tokenizer=str(folder), **unset)


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold the file lock; the operating system releases it when the process ends. A read-only folder needs none."""
    file = FileLock(lock)
    try:
        held: AbstractContextManager[object] = file.acquire(timeout=0)
    except Timeout:
        LOG.info(f"waiting for another process that prepares {lock.parent}")
        held = file.acquire()
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        held = nullcontext()
    with held:
        yield


def find_store(prepared_dir: Path, fingerprint: str) -> Store | None:
    """The store with this fingerprint below `prepared_dir`, if it still exists and is complete."""
    from electra_albert.corpus.store import ready_store

    folders = prepared_dir.glob(f"*-{fingerprint[:_KEY_LETTERS]}/store")
    return next((store for folder in folders if (store := ready_store(folder, fingerprint))), None)


def plan_parts(corpus: CorpusFolder, tokenizer: Tokenizer) -> PartPlan:
    """The parts of the corpus and everything that decides what is in them."""
    length, wanted = corpus.config.max_seq_length, f"{corpus.key}-{tokenizers.fingerprint(tokenizer)}"
    if not corpus.files:
        plan = parts_of_documents(corpus.folder, tokenizer)
        return plan._replace(fingerprint=wanted, seed=corpus.seed, max_seq_length=length)
    size = sum(path.stat().st_size for path in chain(*corpus.files))
    found = corpus.units(max(UNIT_BYTES, size // _MAX_PARTS))
    units, sources = [unit for _, unit in found], [source for source, _ in found]
    folder, encoder = corpus.folder / "store" / "parts", TextEncoder(tokenizer)
    return PartPlan(units, sources, encoder, len(tokenizer), folder, wanted, wanted, corpus.seed, length)


def _build(corpus: CorpusFolder, tokenizer: Tokenizer) -> Store:
    """Open the store, or write and split its missing parts, and merge them."""
    from electra_albert.corpus.store import merge_parts, ready_store, split_parts

    folder, wanted = corpus.folder / "store", f"{corpus.key}-{tokenizers.fingerprint(tokenizer)}"
    if store := ready_store(folder, wanted):
        shutil.rmtree(folder / "parts", ignore_errors=True)  # a kill may have interrupted it
        for split in (store.train, store.validation):  # before, tasks may be writing there
            remove_leftovers(split.folder)
        return store
    plan = plan_parts(corpus, tokenizer)
    numbers, workers = range(len(plan.units)), worker_count(corpus.config)
    LOG.info(f"building the token store in {folder} with {workers} processes")
    times = [time.monotonic()]
    if corpus.files:
        write_parts(plan, numbers, workers)
        require_unchanged(corpus)
    times.append(time.monotonic())
    split_parts(plan, numbers, workers)
    times.append(time.monotonic())
    store = merge_parts(plan, corpus.found)
    spent = [end - start for start, end in pairwise([*times, time.monotonic()])]
    LOG.info("the parts were written in {:.1f} s, split in {:.1f} s and merged in {:.1f} s".format(*spent))
    return store


def worker_count(config: CorpusConfig) -> int:
    """Processes that prepare at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return config.preprocessing_num_workers or cores or 1


def require_unchanged(corpus: CorpusFolder) -> None:
    """Raise DataError if the corpus has changed since it was opened."""
    if not same_content([*chain(*corpus.files)], corpus.identity):
        raise DataError(f"{corpus.config.corpus} changed while it was read; start again and do not modify it")


def _make_examples(corpus: CorpusFolder, tokenizer: Tokenizer, store: Store, seed: int) -> Prepared:
    """Split the store into examples, order them by the sources' weights, and log the corpus statistics."""
    from electra_albert.corpus.mixture import order_examples, source_names
    from electra_albert.corpus.rows import build_table, padding_share
    from electra_albert.corpus.store import format_statistics

    length, workers = corpus.config.max_seq_length, worker_count(corpus.config)
    weights = [source.weight for source in corpus.sources if source.weight is not None]
    train, validation = (build_table(split, length, corpus.seed, workers) for split in (store.train, store.validation))
    first = train.first_of_sources(store.train, len(corpus.sources))
    order = order_examples(first, train.count, weights or None, seed)
    LOG.info(format_statistics(store.statistics, padding_share(store.train, train, length)))
    names, firsts = source_names(corpus.sources), validation.first_of_sources(store.validation, len(corpus.sources))
    held_out_sources = dict(zip(names, firsts, strict=True)) if len(firsts) > 1 else {}
    held_out = [*store.statistics["sides"]["validation"]["source_tokens"], *[0] * len(corpus.sources)]
    for number, source in enumerate(corpus.sources if len(corpus.sources) > 1 else ()):
        text = f"{held_out[number]:,} tokens held out"
        if len(order.taken) > 1:
            share, repeats = order.taken[number] / order.examples_per_epoch, order.taken[number] / order.count[number]
            text = f"{share:.1%} of the training examples, each {repeats:.2f} times per epoch; {text}"
        LOG.info(f"  {source.corpus}: {text}")
    folder, tables = corpus.folder, (train, validation, order)
    return Prepared(tokenizer, folder / "tokenizer", store, *tables, folder, held_out_sources)


def ready_tokenizer(corpus: CorpusFolder) -> Tokenizer:
    """The given tokenizer, or the trained one, trained now if needed; a copy is kept in the corpus's folder."""
    folder, size = corpus.folder / "tokenizer", corpus.config.vocab_size
    with locked(corpus.folder / ".tokenizer.lock"):
        if _has_tokenizer(folder):  # of the same content: the folder's key covers it
            return corpus.given or tokenizers.load_tokenizer(folder)
        if (tokenizer := corpus.given) is None:
            LOG.info(f"training a tokenizer of {size:,} subwords")
            if corpus.config.do_lower_case is None:
                LOG.info("the text is lower-cased (--do_lower_case false keeps it)")
            is_lower, sentences = corpus.config.do_lower_case is not False, _sample_sentences(corpus)
            tokenizer = train_tokenizer(sentences, size, is_lower, corpus.config.keep_accents)
            if len(tokenizer) < size:
                LOG.info(f"the text yields only {len(tokenizer):,} subwords, fewer than --vocab_size {size:,}")
        _save_tokenizer(tokenizer, folder)
    return tokenizer


def _has_tokenizer(folder: Path) -> bool:
    """Whether the folder has a complete and undamaged tokenizer."""
    if not (folder / "tokenizer.json").is_file():
        return False
    if damage := recorded_damage(folder, _TOKENIZER_FILES):
        LOG.warning(f"{damage}; making the tokenizer again")
    return damage is None


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizers.save_tokenizer(tokenizer, folder, _TOKENIZER_MAX_LENGTH)
    record_digests(folder, _TOKENIZER_FILES)


def _extended_tokenizer(corpus: CorpusFolder, size: int) -> Path:
    """Folder of the given tokenizer, extended by words of the corpus to at most `size` tokens."""
    folder, tokenizer = corpus.folder / f"tokenizer-{size}", corpus.given
    assert tokenizer is not None
    before = len(tokenizer)
    if size < before:
        raise UsageError(f"--extend_vocab_to {size}: the tokenizer already has {before} tokens; give a larger number")
    if _has_tokenizer(folder):
        return folder
    # With a new token, WordPiece can split words that it could not split before, and so finds more words to add. Repeat
    # until there are none: a run that continues with the extended tokenizer then adds nothing.
    while len(tokenizer) < size:
        tokenizer, added = extend_tokenizer(tokenizer, _sample_sentences(corpus), size - len(tokenizer))
        if not added:
            break
    LOG.info(f"the tokenizer has {len(tokenizer):,} tokens: {before:,} original, {len(tokenizer) - before:,} added")
    _save_tokenizer(tokenizer, folder)
    return folder


def _sample_sentences(corpus: CorpusFolder) -> Iterator[str]:
    """Sentences from the beginnings of units across the corpus, in a keyed order; all sentences of a small corpus."""
    import torch

    from electra_albert.keyed_random import Stream, bits

    size = sum(path.stat().st_size for path in chain(*corpus.files))
    if size > _SMALLEST_SAMPLE_BYTES:
        seconds = f"up to {_SAMPLE_SECONDS} seconds on one core"
        LOG.info(f"reading up to {SAMPLE_CHARACTERS:,} characters for the tokenizer, {seconds}")
    units = [unit for _, unit in corpus.units(max(_SMALLEST_SAMPLE_BYTES, size // _SAMPLED_UNITS))]
    number = torch.arange(len(units))
    order = bits(corpus.seed, Stream.TOKENIZER_SAMPLE, number, torch.zeros_like(number)).argsort(stable=True)
    left = SAMPLE_CHARACTERS
    for done, chosen in enumerate(order.tolist()):
        share = max(1, left // (len(units) - done))  # unused quota passes to later units
        for sentence in (s for document in read_unit(units[chosen], Counter()) for s in document.sentences):
            if share <= 0:
                break
            yield sentence
            share -= len(sentence)
            left -= len(sentence)
