"""electra-albert prepare: make the tokenizer and the token store of a corpus, by one job or many.

electra-albert prepare --corpus my.txt
electra-albert prepare --corpus my.txt --num_shards 16 --shard_index 3     one of many jobs
electra-albert prepare --corpus my.txt --num_shards 16 --merge             once they are done

Both are kept for the next run. A folder's name carries the beginning of its key: a hash of the content of all files,
how they are read, the tokenizer and the seed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from electra_albert.apps.command_line import make_parser, parse
from electra_albert.apps.run_folder import require_same_text
from electra_albert.config import BUILT_IN_CORPUS, CorpusConfig, TrainingConfig
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus import tokenizer as tokenizers
from electra_albert.corpus.parts import PartPlan, write_parts
from electra_albert.corpus.sources import ReadOptions, Unit, plan_units, read_unit, require_columns
from electra_albert.corpus.text_encoder import TextEncoder
from electra_albert.corpus.tokenizer_training import extend_tokenizer, train_tokenizer
from electra_albert.data_files.finding import find_files, identity, same_content
from electra_albert.files import SAMPLE_TEXT, read_json, write_json

if TYPE_CHECKING:  # they load torch, which --help does without
    from electra_albert.corpus.examples import ExampleTable
    from electra_albert.corpus.mixture import ExampleOrder, Source
    from electra_albert.corpus.store import Store
    from electra_albert.corpus.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)

PREPARED_VERSION = 5  # raise it when the same text would be read, split, tokenised or held out in another way
_TRAINING_VERSION = 2  # raise it when another tokenizer would be trained on the same text
_KEY_LETTERS = 12  # of the key, in the folder's name
UNIT_BYTES = 8 << 20  # of text that one part is made from
SAMPLE_CHARACTERS = 20_000_000  # that a tokenizer is trained on, or extended with
_SAMPLED_UNITS = 256
_SMALLEST_SAMPLE_BYTES = 1 << 20
_TOKENIZER_MAX_LENGTH = 512  # of the copy kept with the store; a run's own copy carries the run's
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert prepare`; returns the exit code."""
    parser = make_parser("electra-albert prepare", "Make the tokenizer and the token store of a corpus.")
    parser.add_class_arguments(CorpusConfig)
    share = "Do this share of the work, from 0, and leave the rest."
    parser.add_argument("--num_shards", type=int | None, default=None, help="Jobs that prepare the corpus together.")
    parser.add_argument("--shard_index", type=int | None, default=None, help=share)
    parser.add_argument("--merge", action="store_true", help="Put the work of all jobs together.")
    parser.add_argument("--seed", type=int, default=TrainingConfig.seed, help="Keys every draw, as in Pretraining.py.")
    options = parse(parser, argv).as_dict()
    seed, count, index, merge = map(options.pop, ("seed", "num_shards", "shard_index", "merge"))
    if (index is None) != (merge or count is None) or (merge and count is None) or count == 0:
        raise UsageError("num_shards takes a number of jobs and either shard_index or merge, which both need it")
    if count is not None and not 0 <= (index or 0) < count:
        raise UsageError(f"shard_index={index} must lie between 0 and {count - 1}")
    try:
        config = CorpusConfig(**options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if index is not None:
        print(f"job {index} of {count} is done in {prepare_shard(config, seed, count, index)}")
    else:
        print(f"ready in {prepare(config, seed, merged_jobs=count).folder}")
    return 0


class Prepared(NamedTuple):
    """The data that a run trains on. The folder belongs to one corpus content, tokenizer and seed."""

    tokenizer: Tokenizer
    tokenizer_dir: Path
    store: Store
    train_table: ExampleTable
    validation_table: ExampleTable
    order: ExampleOrder  # of the train table's rows
    folder: Path
    held_out_sources: dict[str, int]  # of a mixture: its sources' names, and where in the validation table each begins


def prepare(
    config: CorpusConfig, seed: int, *, merged_jobs: int | None = None, recorded: Mapping[str, Any] | None = None
) -> Prepared:
    """Build what is missing, reuse what is there. In a distributed run one process goes first, the others find it.

    merged_jobs: how many jobs must have written all parts. recorded: the settings of a run to resume.
    """
    with _plain_errors(config):
        corpus = open_corpus(config, seed)
        if recorded is not None:
            require_same_text(recorded, config, corpus.key)
        tokenizer = _ready_tokenizer(corpus)
        with locked(corpus.folder / ".lock"):
            return _cut_rows(corpus, tokenizer, _build(corpus, tokenizer, merged_jobs))


def prepare_shard(config: CorpusConfig, seed: int, num_shards: int, shard_index: int) -> Path:
    """Write the parts of one job, numbered from 0, of those that see the same folder; returns the corpus's folder."""
    with _plain_errors(config):
        corpus = open_corpus(config, seed)
        plan = _plan_parts(corpus, _ready_tokenizer(corpus))  # for the rest, no job waits for another
        if ready_store(plan.folder.parent, plan.fingerprint) is None:
            mine = range(shard_index, len(plan.units), num_shards)
            LOG.info(f"job {shard_index} of {num_shards}: {len(mine)} of {len(plan.units)} parts")
            _write_parts(corpus, plan, mine)
    return corpus.folder


@contextmanager
def _plain_errors(config: CorpusConfig) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        way_out = "look at --corpus and --prepared_dir"
        if problem.errno in _NO_ROOM:
            way_out = "make room there or name another --prepared_dir, then start again; what is finished is kept"
        where = problem.filename or config.prepared_dir
        raise UsageError(f"{where}: {problem.strerror or problem}; {way_out}") from problem


class CorpusFolder(NamedTuple):
    """The files of a corpus, and the folder that belongs to it."""

    folder: Path
    key: str
    config: CorpusConfig
    seed: int
    sources: list[Source]
    files: list[list[Path]]  # of each source
    readings: list[ReadOptions]  # of each source
    identity: dict[str, Any]  # of all files
    found: Counter[str]  # counts of what was left out when the files were listed
    given: Tokenizer | None  # the tokenizer to use, if one was named

    def units(self, unit_bytes: int) -> list[tuple[int, Unit]]:
        """All units, each with the number of its source."""
        pairs = enumerate(zip(self.files, self.readings, strict=True))
        return [(number, unit) for number, (some, how) in pairs for unit in plan_units(some, how, unit_bytes)]


def open_corpus(config: CorpusConfig, seed: int) -> CorpusFolder:
    """List the files of the corpus, compute its key, and make its folder; extend its tokenizer if that is asked."""
    from electra_albert.corpus.mixture import read_sources, without_repeats

    given, root = None, Path(config.prepared_dir)
    if config.tokenizer:
        if config.keep_accents == "albert":
            raise UsageError("--keep_accents albert is for a tokenizer that is trained; for a given one choose false")
        options = tokenizers.TextOptions(config.do_lower_case, config.keep_accents, config.split_digit_comma)
        given = tokenizers.load_tokenizer(Path(config.tokenizer), options)
    elif config.split_digit_comma is False:
        raise UsageError("--split_digit_comma false needs a --tokenizer: a trained one always splits; leave it out")
    root.mkdir(parents=True, exist_ok=True)
    sources = read_sources(config.corpus, config.text_column)
    paths = [str(SAMPLE_TEXT) if source.corpus == BUILT_IN_CORPUS else source.corpus for source in sources]
    name = short_name(config.corpus)
    found: Counter[str] = Counter()
    with locked(root / f".{name}.lock"):  # many jobs at once, as on a cluster, read every file only once
        files = without_repeats(sources, [find_files(path, found, config.encoding) for path in paths], found)
        readings = [ReadOptions(source.text_column, config.bad_utf8, config.encoding) for source in sources]
        for some, how in zip(files, readings, strict=True):  # first of all, since it takes no time
            require_columns(some, how)
        noted = map(read_json, sorted(root.glob(f"{name}-*/corpus.json")))  # an untouched file is not hashed again
        hashes = identity([*chain(*files)], *noted)
        hash_of = {entry["path"]: entry["blake2b"] for entry in hashes["files"]}
        hashed = [[[hash_of[str(path)], path.suffixes[-2:]] for path in some] for some in files]
        content = [[how.text_column, some] for how, some in zip(readings, hashed, strict=True)]
        trained = [_TRAINING_VERSION, config.vocab_size, config.do_lower_case is not False, config.keep_accents]
        tokenizer = tokenizers.fingerprint(given) if given else trained
        parts = [PREPARED_VERSION, content, [config.bad_utf8, config.encoding], tokenizer, seed]
        key = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
        folder = root / f"{name}-{key[:_KEY_LETTERS]}"
        folder.mkdir(exist_ok=True)
        write_json(folder / "corpus.json", hashes)
    corpus = CorpusFolder(folder, key, config, seed, sources, files, readings, hashes, found, given)
    if config.extend_vocab_to is None:
        return corpus
    with locked(folder / ".tokenizer.lock"):
        extended = _extended_tokenizer(corpus, config.extend_vocab_to)
    return open_corpus(with_tokenizer(config, extended), seed)


def short_name(corpus: str) -> str:
    """The name from which folders made of a corpus get theirs."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(os.path.realpath(corpus)).stem).strip("-.")[:40] or "corpus"


def with_tokenizer(config: CorpusConfig, folder: Path) -> CorpusConfig:
    """The same, with a tokenizer of ours, which holds what was chosen for case, accents, digits and vocabulary."""
    unset: dict[str, Any] = dict.fromkeys(("extend_vocab_to", "do_lower_case", "keep_accents", "split_digit_comma"))
    return replace(config, tokenizer=str(folder), **unset)


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold the lock file; it goes with the process, however that ends."""
    file = FileLock(lock)
    try:
        held = file.acquire(timeout=0)
    except Timeout:
        LOG.info(f"another process prepares {lock.parent}; waiting for it")
        held = file.acquire()
    with held:
        yield


# The token store.


def ready_store(folder: Path, wanted: str) -> Store | None:
    """The store in `folder` if it is whole and has the fingerprint wanted."""
    from electra_albert.corpus.store import open_store

    try:
        store = open_store(folder)
        if store.fingerprint != wanted:
            raise CheckpointError(f"the token store in {folder} was made with another tokenizer")
    except UsageError:  # there is none
        return None
    except CheckpointError as problem:
        LOG.info(f"{problem}; building the token store again")
        return None
    LOG.info(f"using the token store in {folder}: {len(store.train.tokens):,} tokens to train on")
    return store


def find_store(prepared_dir: Path, fingerprint: str) -> Store | None:
    """The store of this fingerprint below `prepared_dir`, if it is still there and whole."""
    folders = prepared_dir.glob(f"*-{fingerprint[:_KEY_LETTERS]}/store")
    return next((store for folder in folders if (store := ready_store(folder, fingerprint))), None)


def _plan_parts(corpus: CorpusFolder, tokenizer: Tokenizer) -> PartPlan:
    found = corpus.units(UNIT_BYTES)
    units, sources = [unit for _, unit in found], [source for source, _ in found]
    folder, wanted = corpus.folder / "store" / "parts", f"{corpus.key}-{tokenizers.fingerprint(tokenizer)}"
    return PartPlan(units, sources, TextEncoder(tokenizer), len(tokenizer), folder, wanted)


def _build(corpus: CorpusFolder, tokenizer: Tokenizer, merged_jobs: int | None) -> Store:
    """The store that is there, or one made from the parts, after the missing ones are written."""
    from electra_albert.corpus.store import build_store

    plan = _plan_parts(corpus, tokenizer)
    if store := ready_store(plan.folder.parent, plan.fingerprint):
        return store
    if merged_jobs is not None and (missing := plan.missing()):
        jobs = ", ".join(map(str, sorted({number % merged_jobs for number in missing})))
        raise DataError(f"{len(missing)} of {len(plan.units)} parts are missing, of --shard_index {jobs}; run them")
    _write_parts(corpus, plan, () if merged_jobs else range(len(plan.units)))
    return build_store(plan, seed=corpus.seed, found=corpus.found)


def _write_parts(corpus: CorpusFolder, plan: PartPlan, numbers: Sequence[int]) -> None:
    """Write those of the parts that are missing. Raises DataError where the corpus has changed meanwhile."""
    if numbers:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        workers = corpus.config.preprocessing_num_workers or cores or 1
        LOG.info(f"building the token store in {plan.folder.parent} with {workers} processes")
        write_parts(plan, numbers, workers)
    if not same_content([*chain(*corpus.files)], corpus.identity):
        raise DataError(f"{corpus.config.corpus} changed while it was read; leave it alone and start again")


def _cut_rows(corpus: CorpusFolder, tokenizer: Tokenizer, store: Store) -> Prepared:
    """Cut the store into rows, order them by the sources' weights, and log the corpus statistics."""
    from electra_albert.corpus.examples import build_table, padding_share
    from electra_albert.corpus.mixture import order_examples, source_names
    from electra_albert.corpus.store import format_statistics

    length, seed = corpus.config.max_seq_length, corpus.seed
    train = build_table(store.train, length, seed, store.folder / "train")
    validation = build_table(store.validation, length, seed, store.folder / "validation")
    weights = [source.weight for source in corpus.sources if source.weight is not None]
    first = np.searchsorted(train.edges, store.source_starts).tolist()
    order = order_examples(first, train.count, weights or None, seed)
    LOG.info(format_statistics(store.statistics, padding_share(store.train, train, length)))
    ends = store.statistics["sides"]["validation"]["source_ends"]  # not of the last sources if read before
    middles = (validation.edges[:-1] + validation.edges[1:]) // 2
    firsts = np.searchsorted(middles, [0, *ends[:-1]]).tolist()
    held_out_sources = dict(zip(source_names(corpus.sources), firsts, strict=False)) if len(firsts) > 1 else {}
    held_out = [*np.diff(ends, prepend=0).tolist(), *[0] * len(corpus.sources)]
    for number, source in enumerate(corpus.sources if len(corpus.sources) > 1 else ()):
        text = f"{held_out[number]:,} tokens held out"
        if len(order.taken) > 1:
            share, repeats = order.taken[number] / order.examples_per_epoch, order.taken[number] / order.count[number]
            text = f"{share:.1%} of the rows trained on, each {repeats:.2f} times a pass; {text}"
        LOG.info(f"  {source.corpus}: {text}")
    folder = corpus.folder
    return Prepared(tokenizer, folder / "tokenizer", store, train, validation, order, folder, held_out_sources)


def _ready_tokenizer(corpus: CorpusFolder) -> Tokenizer:
    """The tokenizer that was given, trained before, or is trained now; a copy is kept in the corpus's folder."""
    folder, size = corpus.folder / "tokenizer", corpus.config.vocab_size
    with locked(corpus.folder / ".tokenizer.lock"):
        if corpus.given is None and (folder / "tokenizer.json").is_file():
            return tokenizers.load_tokenizer(folder)
        if (tokenizer := corpus.given) is None:
            LOG.info(f"training a tokenizer of {size:,} subwords")
            is_lower, sentences = corpus.config.do_lower_case is not False, _sample_sentences(corpus)
            tokenizer = train_tokenizer(sentences, size, is_lower, corpus.config.keep_accents)
            if len(tokenizer) < size:
                LOG.info(f"the text gives only {len(tokenizer):,} subwords of the --vocab_size {size:,}")
        tokenizers.save_tokenizer(tokenizer, folder, _TOKENIZER_MAX_LENGTH)
    return tokenizer


def _extended_tokenizer(corpus: CorpusFolder, size: int) -> Path:
    """The folder of the given tokenizer with words of the corpus added, `size` tokens in all or what there is."""
    folder, tokenizer = corpus.folder / f"tokenizer-{size}", corpus.given
    assert tokenizer is not None
    before = len(tokenizer)
    if size < before:
        raise UsageError(f"--extend_vocab_to {size}: the tokenizer has {before} tokens already; name a larger number")
    if (folder / "tokenizer.json").is_file():
        return folder
    # WordPiece can split with a new token what it could not before, and so find more words; repeated until there are
    # none, so that a run that continues with the tokenizer it extended adds nothing to it.
    while len(tokenizer) < size:
        tokenizer, added = extend_tokenizer(tokenizer, _sample_sentences(corpus), size - len(tokenizer))
        if not added:
            break
    LOG.info(f"the tokenizer has {len(tokenizer):,} tokens: {before:,} of its own, {len(tokenizer) - before:,} added")
    tokenizers.save_tokenizer(tokenizer, folder, _TOKENIZER_MAX_LENGTH)
    return folder


def _sample_sentences(corpus: CorpusFolder) -> Iterator[str]:
    """Sentences from the beginnings of units all over the corpus, in a keyed order; all of a small one."""
    import torch

    from electra_albert.keyed_random import Stream, bits

    size = sum(path.stat().st_size for path in chain(*corpus.files))
    units = [unit for _, unit in corpus.units(max(_SMALLEST_SAMPLE_BYTES, size // _SAMPLED_UNITS))]
    number = torch.arange(len(units))
    order = bits(corpus.seed, Stream.TOKENIZER_SAMPLE, number, torch.zeros_like(number)).argsort(stable=True)
    left = SAMPLE_CHARACTERS
    for done, chosen in enumerate(order.tolist()):
        share = max(1, left // (len(units) - done))  # what a unit does not need is left to those after it
        for sentence in (s for document in read_unit(units[chosen], Counter()) for s in document.sentences):
            if share <= 0:
                break
            yield sentence
            share -= len(sentence)
            left -= len(sentence)
