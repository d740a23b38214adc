"""Raw text to a tokenizer and a token store, made once and kept for the next run on the same corpus and settings.

electra-albert prepare --corpus my.txt
electra-albert prepare --corpus my.txt --num_shards 16 --shard_index 3     one of many jobs
electra-albert prepare --corpus my.txt --num_shards 16 --merge             once they are done
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import make_parser, parse
from electra_albert.apps.prepare.extended_tokenizer import TOKENIZER_MAX_LENGTH, extended_tokenizer
from electra_albert.apps.prepare.folder import CorpusFolder, locked, open_corpus, ready_store
from electra_albert.apps.prepare.tokenizer_sample import sample_sentences
from electra_albert.apps.run_folder import require_same_text
from electra_albert.config import CorpusConfig, TrainingConfig
from electra_albert.contracts import DataError, UsageError

if TYPE_CHECKING:
    from electra_albert.corpus.examples import ExampleTable
    from electra_albert.corpus.mixture import RowOrder
    from electra_albert.corpus.parts import PartPlan
    from electra_albert.corpus.store import Store
    from electra_albert.corpus.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)

UNIT_BYTES = 8 << 20  # of text that one part is made from
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class ShardConfig:
    """Which part of the work one of several jobs does, on one machine or many that see the same folder."""

    num_shards: int | None = None
    shard_index: int | None = None  # from 0
    merge: bool = False

    def __post_init__(self) -> None:
        if self.num_shards is None:
            if self.shard_index is not None or self.merge:
                raise ValueError("shard_index and merge need num_shards, the number of jobs")
        elif self.num_shards < 1 or (self.shard_index is None) != self.merge:
            raise ValueError("num_shards takes a number of jobs and either shard_index or merge")
        elif self.shard_index is not None and not 0 <= self.shard_index < self.num_shards:
            raise ValueError(f"shard_index={self.shard_index} must lie between 0 and {self.num_shards - 1}")


_ALONE = ShardConfig()


class Prepared(NamedTuple):
    """What a run trains on. The folder belongs to one corpus content, tokenizer and seed."""

    tokenizer: Tokenizer
    tokenizer_dir: Path
    store: Store
    train_table: ExampleTable
    validation_table: ExampleTable
    order: RowOrder  # of the train table's rows
    folder: Path
    held_out_sources: dict[str, int]  # of a mixture: its sources' names, and where in the validation table each begins


def prepare(
    config: CorpusConfig,
    seed: int,
    shard: ShardConfig = _ALONE,
    recorded: Mapping[str, Any] | None = None,
) -> Prepared:
    """Build what is missing, reuse what is there. In a distributed run one process goes first, the others find it.

    With shard.merge the parts must be there. `recorded` are the settings of a run to be resumed. Raises UsageError,
    DataError or CheckpointError where the corpus, the tokenizer or the folder cannot be used, or are not that run's.
    """
    with _plain_errors(config):
        corpus = _open(config, seed)
        if recorded is not None:
            require_same_text(recorded, config, corpus.key)
        with locked(corpus.folder / ".lock"):
            tokenizer = _ready_tokenizer(corpus)
            return _cut_rows(corpus, tokenizer, _build(corpus, tokenizer, shard))


def prepare_shard(config: CorpusConfig, seed: int, shard: ShardConfig) -> Path:
    """Write the share of the parts that falls to one job; returns the corpus's folder. Raises as `prepare` does."""
    from electra_albert.corpus.parts import write_parts

    assert shard.num_shards is not None
    assert shard.shard_index is not None
    with _plain_errors(config):
        corpus = _open(config, seed)
        with locked(corpus.folder / ".lock", is_shared=True):
            with locked(corpus.folder / ".tokenizer.lock"):
                tokenizer = _ready_tokenizer(corpus)
            plan, _ = _plan_parts(corpus, tokenizer)
            if ready_store(corpus.folder / "store", plan.fingerprint) is None:
                mine = range(shard.shard_index, len(plan.units), shard.num_shards)
                LOG.info(f"job {shard.shard_index} of {shard.num_shards}: {len(mine)} of {len(plan.units)} parts")
                write_parts(plan, mine, _workers(config))
                _require_unchanged(corpus)
    return corpus.folder


@contextmanager
def _plain_errors(config: CorpusConfig) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        where = problem.filename or config.prepared_dir
        reason = problem.strerror or problem
        way_out = "look at --corpus and --prepared_dir"
        if problem.errno in _NO_ROOM:
            way_out = "make room there or name another --prepared_dir, then start again; what is finished is kept"
        raise UsageError(f"{where}: {reason}; {way_out}") from problem


def _workers(config: CorpusConfig) -> int:
    return config.preprocessing_num_workers or len(os.sched_getaffinity(0))


# The token store.


def _plan_parts(corpus: CorpusFolder, tokenizer: Tokenizer) -> tuple[PartPlan, list[int]]:
    """The parts of the store, and the source that each of them belongs to."""
    from electra_albert.corpus.parts import PartPlan, token_dtype
    from electra_albert.corpus.tokenizer import fingerprint
    from electra_albert.corpus.word_encoder import encoder_settings

    by_source = corpus.units(UNIT_BYTES)
    units = [unit for units in by_source for unit in units]
    sources = [source for source, units in enumerate(by_source) for _ in units]
    wanted = f"{corpus.key}-{fingerprint(tokenizer)}"
    folder = corpus.folder / "store" / "parts"
    return PartPlan(units, encoder_settings(tokenizer), folder, wanted, token_dtype(len(tokenizer))), sources


def _build(corpus: CorpusFolder, tokenizer: Tokenizer, shard: ShardConfig) -> Store:
    """The store: the one that is there, or one made from the parts, of which the missing ones are written first."""
    from electra_albert.corpus.parts import missing_parts, write_parts
    from electra_albert.corpus.store import build_store

    folder = corpus.folder / "store"
    plan, sources = _plan_parts(corpus, tokenizer)
    store = ready_store(folder, plan.fingerprint)
    if store is not None:
        return store
    if shard.merge:
        assert shard.num_shards is not None
        if missing := missing_parts(plan):
            jobs = ", ".join(map(str, sorted({number % shard.num_shards for number in missing})))
            raise DataError(f"{len(missing)} of {len(plan.units)} parts are missing, of --shard_index {jobs}; run them")
    else:
        workers = _workers(corpus.config)
        LOG.info(f"building the token store in {folder} with {workers} processes")
        write_parts(plan, range(len(plan.units)), workers)
    _require_unchanged(corpus)
    return build_store(plan, folder, sources=sources, vocab_size=len(tokenizer), seed=corpus.seed, found=corpus.found)


def _require_unchanged(corpus: CorpusFolder) -> None:
    from electra_albert.corpus.sources import same_content

    if not same_content(corpus.all_files(), corpus.identity):
        raise DataError(f"{corpus.config.corpus} changed while it was read; leave it alone and start again")


def _cut_rows(corpus: CorpusFolder, tokenizer: Tokenizer, store: Store) -> Prepared:
    """Cut the store into rows, order them by the sources' weights, and show the receipt."""
    import numpy as np

    from electra_albert.corpus.examples import build_table, padding_share
    from electra_albert.corpus.mixture import order_rows, source_names
    from electra_albert.corpus.receipt import format_receipt

    length, seed = corpus.config.max_seq_length, corpus.seed
    train_table = build_table(store.train, length, seed, store.folder / "train")
    validation_table = build_table(store.validation, length, seed, store.folder / "validation")
    weights = [source.weight for source in corpus.sources if source.weight is not None]
    first = np.searchsorted(train_table.edges, store.source_starts).tolist()
    order = order_rows(first, train_table.count, weights or None, seed)
    LOG.info(format_receipt(store.receipt, padding_share(store.train, train_table, length)))
    names = source_names(corpus.sources)
    ends = store.receipt["sides"]["validation"]["source_ends"]
    held_out = dict(zip(names, np.diff(ends, prepend=0).tolist(), strict=False))  # the last files may be read already
    for number, source in enumerate(corpus.sources if len(names) > 1 else ()):
        told = f"{held_out.get(names[number], 0):,} tokens held out"
        if len(order.taken) > 1:
            count, taken = order.count[number], order.taken[number]
            share = taken / order.pass_length
            told = f"{share:.1%} of the rows trained on, each {taken / count:.2f} times a pass; {told}"
        LOG.info(f"  {source.corpus}: {told}")
    middles = (validation_table.edges[:-1] + validation_table.edges[1:]) // 2
    firsts = dict(zip(names, np.searchsorted(middles, [0, *ends[:-1]]).tolist(), strict=False))
    return Prepared(
        tokenizer,
        corpus.folder / "tokenizer",
        store,
        train_table,
        validation_table,
        order,
        corpus.folder,
        firsts if len(firsts) > 1 else {},
    )


# The tokenizer.


def _open(config: CorpusConfig, seed: int) -> CorpusFolder:
    """The corpus and its folder, by the extended tokenizer where one is asked for.

    Raises UsageError where a tokenizer is to be trained that would not do what is asked.
    """
    if config.split_digit_comma is False and not config.tokenizer:
        raise UsageError(
            "--split_digit_comma false needs a --tokenizer: one that is trained always keeps digits and commas apart; "
            "leave it out"
        )
    corpus = open_corpus(config, seed)
    if config.extend_vocab_to is None:
        return corpus
    with locked(corpus.folder / ".tokenizer.lock"):
        folder = extended_tokenizer(corpus, config.extend_vocab_to)
    # What is said of case, accents and digits has gone into the tokenizer that was saved.
    return open_corpus(with_tokenizer(config, folder), seed)


def with_tokenizer(config: CorpusConfig, folder: Path) -> CorpusConfig:
    """The same, by a tokenizer of ours that is taken as it is."""
    return replace(
        config,
        tokenizer=str(folder),
        extend_vocab_to=None,
        do_lower_case=None,
        keep_accents=None,
        split_digit_comma=None,
    )


def _ready_tokenizer(corpus: CorpusFolder) -> Tokenizer:
    from electra_albert.corpus.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

    folder, config = corpus.folder / "tokenizer", corpus.config
    if corpus.given is not None:
        save_tokenizer(corpus.given, folder, TOKENIZER_MAX_LENGTH)
        return corpus.given
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder)
    LOG.info(f"training a tokenizer of {config.vocab_size:,} pieces")
    is_lower = config.do_lower_case is not False
    trained = train_tokenizer(sample_sentences(corpus), config.vocab_size, is_lower, config.keep_accents)
    if len(trained) < config.vocab_size:
        LOG.info(f"the text gives only {len(trained):,} pieces of the {config.vocab_size:,} asked for by --vocab_size")
    save_tokenizer(trained, folder, TOKENIZER_MAX_LENGTH)
    return trained


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert prepare`; returns the exit code."""
    parser = make_parser("electra-albert prepare", "Make the tokenizer and the token store of a corpus.")
    parser.add_class_arguments(CorpusConfig)
    jobs, share = "Jobs that prepare the corpus together.", "Do this share of the work, from 0, and leave the rest."
    parser.add_argument("--num_shards", type=int | None, default=None, help=jobs)
    parser.add_argument("--shard_index", type=int | None, default=None, help=share)
    parser.add_argument("--merge", action="store_true", help="Put the work of all jobs together.")
    parser.add_argument("--seed", type=int, default=TrainingConfig.seed, help="Keys every draw, as in Pretraining.py.")
    options = parse(parser, argv).as_dict()
    seed = options.pop("seed")
    try:
        shard = ShardConfig(**{name: options.pop(name) for name in ("num_shards", "shard_index", "merge")})
        config = CorpusConfig(**options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if shard.shard_index is not None:
        print(f"job {shard.shard_index} of {shard.num_shards} is done in {prepare_shard(config, seed, shard)}")
    else:
        print(f"ready in {prepare(config, seed, shard).folder}")
    return 0
