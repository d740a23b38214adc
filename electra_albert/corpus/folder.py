"""The folder of a corpus: its files, its key and its tokenizer.

The key is a hash of the contents of all files, the options for reading them, the tokenizer and the
seed; the folder's name has its first letters. Later runs on the same corpus reuse the folder.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout

from electra_albert.config.pretraining import BUILT_IN_CORPUS, CorpusConfig
from electra_albert.contracts import LOG, DataError, UsageError, redacted
from electra_albert.corpus.datatrove import DOCUMENTS_FILE, parts_of_documents, read_record
from electra_albert.corpus.mixture import Source, read_sources, without_repeats
from electra_albert.corpus.parts import PartPlan
from electra_albert.corpus.sources import ReadOptions, Unit, plan_units, read_unit, require_columns
from electra_albert.corpus.tokenizer_training import extend_tokenizer, train_tokenizer
from electra_albert.data_files.finding import expanded, find_files, identity, same_content
from electra_albert.files import (
    SAMPLE_TEXT,
    content_hash,
    read_json,
    record_digests,
    recorded_damage,
    remove_leftovers,
    write_json,
)
from electra_albert.keyed_random import Stream, bits
from electra_albert.tokenization.text_encoder import TextEncoder
from electra_albert.tokenization.tokenizer import (
    TextOptions,
    Tokenizer,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
)

# Increase it when the same text would be read, split, tokenized or held out differently.
_PREPARED_VERSION = 9
# Increase it when tokenizer training would give another result on the same text.
_TRAINING_VERSION = 3
KEY_LETTERS = 12  # of the key, in the folder's name
UNIT_BYTES = 8 << 20  # of text per part
_MAX_PARTS = 2048  # the parts of a corpus above 16 GB are larger
SAMPLE_CHARACTERS = 20_000_000  # for training or extending a tokenizer
_SAMPLE_SECONDS = 15  # to read so many and count their words, on one core
_SAMPLED_UNITS = 256
_SMALLEST_SAMPLE_BYTES = 1 << 20
_TOKENIZER_FILES = "tokenizer*.json"
_TOKENIZER_MAX_LENGTH = 512  # of the copy kept with the store; a run's copy has the run's own
_TEXT_OPTIONS = ("extend_vocab_to", "do_lower_case", "keep_accents", "split_digit_comma")
_READ_OPTIONS = ("text_column", "documents", "encoding", "bad_utf8", *_TEXT_OPTIONS)


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
    skipped: Counter[str]  # numbers of files
    tokenizer: Tokenizer | None  # named by --tokenizer

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in chain(*self.files))

    def units(self, unit_bytes: int) -> Iterator[tuple[int, Unit]]:
        """All units, each with the index of its source."""
        readings = zip(self.files, self.readings, strict=True)
        for source, (files, options) in enumerate(readings):
            for unit in plan_units(files, options, unit_bytes):
                yield source, unit

    def require_unchanged(self) -> None:
        """Raise DataError if a file has changed since the corpus was opened."""
        if not same_content([*chain(*self.files)], self.identity):
            advice = "start again and do not modify it"
            raise DataError(f"{self.config.corpus} changed while it was read; {advice}")


def open_corpus(config: CorpusConfig, seed: int) -> CorpusFolder:
    """List the files of the corpus, compute its key, create its folder, extend its tokenizer."""
    config = replace(config, corpus=expanded(config.corpus))
    if (Path(config.corpus) / DOCUMENTS_FILE).is_file():
        return _open_documents(config)
    tokenizer = _named_tokenizer(config)
    root = Path(config.prepared_dir)
    root.mkdir(parents=True, exist_ok=True)
    sources = read_sources(config.corpus, config.text_column)
    skipped = Counter[str]()
    listed: list[list[Path]] = []
    for source in sources:
        path = str(SAMPLE_TEXT) if source.corpus == BUILT_IN_CORPUS else source.corpus
        listed.append(find_files(path, skipped, config.encoding))
    files = without_repeats(sources, listed, skipped)
    how = (config.bad_utf8, config.encoding, config.documents)
    readings = [ReadOptions(source.text_column, *how) for source in sources]
    for paths, options in zip(files, readings, strict=True):  # before the slow steps
        require_columns(paths, options)
    name = short_name(config.corpus)
    with locked(root / f".{name}.lock"):  # parallel jobs hash every file only once
        recorded = map(read_json, sorted(root.glob(f"{name}-*/corpus.json")))
        hashes = identity([*chain(*files)], *recorded)
        hash_of = {entry["path"]: entry["blake2b"] for entry in hashes["files"]}
        content = []
        for source, paths in zip(sources, files, strict=True):
            hashed = [[hash_of[str(path)], path.suffixes[-2:]] for path in paths]
            content.append([source.text_column, hashed])
        vocabulary = _vocabulary_key(config, tokenizer)
        key = content_hash([_PREPARED_VERSION, content, how, vocabulary, seed])
        folder = root / f"{name}-{key[:KEY_LETTERS]}"
        folder.mkdir(exist_ok=True)
        remove_leftovers(folder)
        if os.access(folder, os.W_OK) and read_json(folder / "corpus.json") != hashes:
            write_json(folder / "corpus.json", hashes)
    corpus = CorpusFolder(
        folder, key, config, seed, sources, files, readings, hashes, skipped, tokenizer
    )
    if config.extend_vocab_to is None:
        return corpus
    with locked(folder / ".tokenizer.lock"):
        extended = _extended_tokenizer(corpus, config.extend_vocab_to)
    return open_corpus(with_tokenizer(config, extended), seed)


def _open_documents(config: CorpusConfig) -> CorpusFolder:
    """A corpus that corpus.datatrove.WriteTokens has written, with its tokenizer and seed."""
    folder = Path(config.corpus)
    for name in _READ_OPTIONS:
        if getattr(config, name) != getattr(CorpusConfig, name):
            problem = f"the text in {folder} is tokenized already"
            raise UsageError(f"--{name}: {problem}; remove the option")
    record = read_record(folder)
    tokenizer = load_tokenizer(folder / "tokenizer")
    named = config.tokenizer
    if named and fingerprint(load_tokenizer(Path(named))) != record["tokenizer"]:
        raise UsageError(
            f"--tokenizer {named}: the text in {folder} is tokenized with another one; "
            "name that one"
        )
    if not record.get("key"):
        parts = parts_of_documents(folder, tokenizer).parts()
        missing = [str(part.number) for part in parts if not part.statistics]
        if missing:
            tasks = ", ".join(missing[:20])
            raise DataError(f"{folder}: tasks {tasks} have not ended; run the pipeline again")
        record["key"] = content_hash([part.statistics["files"] for part in parts])
        write_json(folder / DOCUMENTS_FILE, record)
    return CorpusFolder(
        folder,
        record["key"],
        config,
        record["seed"],
        sources=[Source(config.corpus, config.text_column)],
        files=[],
        readings=[],
        identity={"files": []},
        skipped=Counter(),
        tokenizer=tokenizer,
    )


def _named_tokenizer(config: CorpusConfig) -> Tokenizer | None:
    """The tokenizer named by --tokenizer. Raises UsageError for options that do not fit to it."""
    if config.tokenizer:
        if config.keep_accents == "albert":
            problem = "--keep_accents albert applies only to a trained tokenizer"
            raise UsageError(f"{problem}; use false with --tokenizer")
        options = TextOptions(config.do_lower_case, config.keep_accents, config.split_digit_comma)
        return load_tokenizer(Path(config.tokenizer), options)
    if config.split_digit_comma is False:
        problem = "--split_digit_comma false needs a --tokenizer: a trained one always splits"
        raise UsageError(f"{problem}; remove it")
    return None


def _vocabulary_key(config: CorpusConfig, tokenizer: Tokenizer | None) -> str | list[Any]:
    """All that decides the tokenizer besides the text."""
    if tokenizer:
        return fingerprint(tokenizer)
    is_lower_case = config.do_lower_case is not False
    return [_TRAINING_VERSION, config.vocab_size, is_lower_case, config.keep_accents]


def short_name(corpus: str) -> str:
    """Short name of a corpus, for folder names."""
    stem = Path(os.path.realpath(redacted(corpus))).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")[:40] or "corpus"


def with_tokenizer(config: CorpusConfig, folder: Path) -> CorpusConfig:
    """The config with a tokenizer of ours, whose files record case, accents and vocabulary."""
    unset: dict[str, Any] = dict.fromkeys(_TEXT_OPTIONS)
    return replace(config, tokenizer=str(folder), **unset)


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold the file lock, which ends with the process. A read-only folder needs none."""
    file = FileLock(lock)
    try:
        file.acquire(timeout=0)
    except Timeout:
        LOG.info(f"waiting for another process that prepares {lock.parent}")
        file.acquire()
    except OSError:
        if os.access(lock.parent, os.W_OK):
            raise
    try:
        yield
    finally:
        file.release()


def plan_parts(corpus: CorpusFolder, tokenizer: Tokenizer) -> PartPlan:
    """The parts of the corpus and everything that decides what is in them."""
    key = store_key(corpus, tokenizer)
    length = corpus.config.max_seq_length
    if not corpus.files:
        plan = parts_of_documents(corpus.folder, tokenizer)
        return plan._replace(fingerprint=key, max_seq_length=length)
    units = [*corpus.units(max(UNIT_BYTES, corpus.size // _MAX_PARTS))]
    return PartPlan(
        units=[unit for _, unit in units],
        sources=[source for source, _ in units],
        encoder=TextEncoder(tokenizer),
        vocab_size=len(tokenizer),
        folder=corpus.folder / "store" / "parts",
        fingerprint=key,
        parts_key=key,
        seed=corpus.seed,
        max_seq_length=length,
    )


def store_key(corpus: CorpusFolder, tokenizer: Tokenizer) -> str:
    """The fingerprint of the corpus's token store."""
    return f"{corpus.key}-{fingerprint(tokenizer)}"


def ready_tokenizer(corpus: CorpusFolder) -> Tokenizer:
    """The named tokenizer, or the trained one, trained now if needed.

    A copy is kept in the corpus's folder.
    """
    folder = corpus.folder / "tokenizer"
    size = corpus.config.vocab_size
    with locked(corpus.folder / ".tokenizer.lock"):
        if _has_tokenizer(folder):  # of the same content: the folder's key covers it
            return corpus.tokenizer or load_tokenizer(folder)
        tokenizer = corpus.tokenizer
        if tokenizer is None:
            LOG.info(f"training a tokenizer of {size:,} subwords")
            do_lower_case = corpus.config.do_lower_case
            if do_lower_case is None:
                LOG.info("the text is lower-cased (--do_lower_case false keeps it)")
            sentences = _sample_sentences(corpus)
            tokenizer = train_tokenizer(
                sentences, size, do_lower_case is not False, corpus.config.keep_accents
            )
            if len(tokenizer) < size:
                subwords = f"only {len(tokenizer):,} subwords, fewer than --vocab_size {size:,}"
                LOG.info(f"the text yields {subwords}")
        _save_tokenizer(tokenizer, folder)
    return tokenizer


def _has_tokenizer(folder: Path) -> bool:
    """Whether the folder has a complete and undamaged tokenizer."""
    if not (folder / "tokenizer.json").is_file():
        return False
    damage = recorded_damage(folder, _TOKENIZER_FILES)
    if damage:
        LOG.warning(f"{damage}; making the tokenizer again")
    return damage is None


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    save_tokenizer(tokenizer, folder, _TOKENIZER_MAX_LENGTH)
    record_digests(folder, _TOKENIZER_FILES)


def _extended_tokenizer(corpus: CorpusFolder, size: int) -> Path:
    """Folder of the named tokenizer, extended by words of the corpus to at most `size` tokens."""
    folder = corpus.folder / f"tokenizer-{size}"
    tokenizer = corpus.tokenizer
    assert tokenizer is not None
    before = len(tokenizer)
    if size < before:
        problem = f"the tokenizer already has {before} tokens"
        raise UsageError(f"--extend_vocab_to {size}: {problem}; give a larger number")
    if _has_tokenizer(folder):
        return folder
    # With a new token, WordPiece can split words that it could not split before, and so finds more
    # words to add. Repeat until there are none: a run that continues with the extended tokenizer
    # then adds nothing.
    while len(tokenizer) < size:
        room = size - len(tokenizer)
        tokenizer, added = extend_tokenizer(tokenizer, _sample_sentences(corpus), room)
        if not added:
            break
    counts = f"{before:,} original, {len(tokenizer) - before:,} added"
    LOG.info(f"the tokenizer has {len(tokenizer):,} tokens: {counts}")
    _save_tokenizer(tokenizer, folder)
    return folder


def _sample_sentences(corpus: CorpusFolder) -> Iterator[str]:
    """Sentences from the beginnings of units across the corpus, in a keyed order.

    All sentences of a small corpus.
    """
    size = corpus.size
    if size > _SMALLEST_SAMPLE_BYTES:
        seconds = f"up to {_SAMPLE_SECONDS} seconds on one core"
        LOG.info(f"reading up to {SAMPLE_CHARACTERS:,} characters for the tokenizer, {seconds}")
    units = [unit for _, unit in corpus.units(max(_SMALLEST_SAMPLE_BYTES, size // _SAMPLED_UNITS))]
    number = torch.arange(len(units))
    draws = bits(corpus.seed, Stream.TOKENIZER_SAMPLE, number, torch.zeros_like(number))
    characters_left = SAMPLE_CHARACTERS
    for done, index in enumerate(draws.argsort(stable=True).tolist()):
        share = max(1, characters_left // (len(units) - done))  # later units get what is unused
        documents = read_unit(units[index], Counter())
        for sentence in chain.from_iterable(document.sentences for document in documents):
            if share <= 0:
                break
            yield sentence
            share -= len(sentence)
            characters_left -= len(sentence)
