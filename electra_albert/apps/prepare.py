"""Raw text to a tokenizer and a token store, made once and kept for the next run on the same corpus and settings."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import make_parser, parse, run_app
from electra_albert.config import CorpusConfig, TrainingConfig
from electra_albert.contracts import CheckpointError, DataError, UsageError

if TYPE_CHECKING:
    from transformers import AlbertTokenizer

    from electra_albert.corpus.examples import ExampleTable
    from electra_albert.corpus.sources import Unit
    from electra_albert.corpus.store import Store

BUILT_IN_CORPUS = "docs"
PREPARED_VERSION = 2  # raise it when the same text would be read, split or tokenised in another way
SAMPLE_CHARACTERS = 20_000_000  # that a tokenizer is trained on, taken all over the corpus
_SAMPLED_PLACES = 256
_SMALLEST_UNIT_BYTES = 1 << 20
_TOKENIZER_MAX_LENGTH = 512  # of the copy kept with the store; a run's own copy carries the run's

Say = Callable[[str], None]


class Prepared(NamedTuple):
    """What a run trains on. The folder belongs to one corpus content, tokenizer and seed."""

    tokenizer: AlbertTokenizer
    tokenizer_dir: Path
    store: Store
    train_table: ExampleTable
    validation_table: ExampleTable
    folder: Path


def prepare(config: CorpusConfig, seed: int, say: Say) -> Prepared:
    """Build what is missing, reuse what is there. In a distributed run one process goes first, the others find it.

    Raises UsageError, DataError or CheckpointError where the corpus, the tokenizer or the folder cannot be used.
    """
    from electra_albert.corpus.sources import find_files
    from electra_albert.corpus.tokenizer import fingerprint, load_tokenizer

    root = Path(config.prepared_dir)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if config.corpus == BUILT_IN_CORPUS:
            from electra_albert.corpus.installed_docs import write_installed_docs

            say("reading the documentation installed with Python and its packages")
            files = [write_installed_docs(root / BUILT_IN_CORPUS)]
        else:
            files = find_files(config.corpus)
        given = load_tokenizer(Path(config.tokenizer)) if config.tokenizer else None
        name = short_name(config.corpus)
        identity = _identity(files, root, name)
        pieces = fingerprint(given) if given else [config.vocab_size, config.do_lower_case]
        content = [[entry["blake2b"], Path(entry["path"]).suffix] for entry in identity["files"]]
        key = _digest([PREPARED_VERSION, content, pieces, seed])
        folder = root / f"{name}-{key[:12]}"
        folder.mkdir(exist_ok=True)
        with _locked(folder, say):
            _write_identity(folder, identity)
            return _prepare_in(folder, key, files, identity, given, config, seed, say)
    except OSError as problem:
        where = problem.filename or root
        reason = problem.strerror or problem
        raise UsageError(f"{where}: {reason}; look at --corpus and --prepared_dir") from problem


def _prepare_in(
    folder: Path,
    key: str,
    files: list[Path],
    identity: dict[str, Any],
    given: AlbertTokenizer | None,
    config: CorpusConfig,
    seed: int,
    say: Say,
) -> Prepared:
    from electra_albert.corpus.examples import build_table, padding_share
    from electra_albert.corpus.receipt import format_receipt
    from electra_albert.corpus.sources import plan_units, same_content
    from electra_albert.corpus.store import build_store
    from electra_albert.corpus.tokenizer import fingerprint

    tokenizer = _ready_tokenizer(folder / "tokenizer", files, given, config, seed, say)
    wanted = f"{key}-{fingerprint(tokenizer)}"
    store = _ready_store(folder / "store", wanted, say)
    if store is None:
        workers = config.preprocessing_num_workers or len(os.sched_getaffinity(0))
        say(f"building the token store in {folder / 'store'} with {workers} processes")
        units = plan_units(files)
        store = build_store(
            units, tokenizer, folder / "store", fingerprint=wanted, seed=seed, num_workers=workers, say=say
        )
        if not same_content(files, identity):
            (store.folder / "manifest.json").unlink()
            raise DataError(f"{config.corpus} changed while it was read; leave it alone and start again")
    length = config.max_seq_length
    train_table = build_table(store.train, length, seed, store.folder / "train")
    validation_table = build_table(store.validation, length, seed, store.folder / "validation")
    say(format_receipt(store.receipt, padding_share(store.train, train_table, length)))
    return Prepared(tokenizer, folder / "tokenizer", store, train_table, validation_table, folder)


# What is kept, and for which corpus.


def short_name(corpus: str) -> str:
    """What folders made from a corpus are named after."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(os.path.realpath(corpus)).stem)
    return name.strip("-.")[:40] or "corpus"


def _digest(content: object) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def _identity(files: list[Path], root: Path, name: str) -> dict[str, Any]:
    """What the files hold: as noted at an earlier run where they are untouched since, else by reading them."""
    from electra_albert.corpus.sources import identity, same_content

    for noted in sorted(root.glob(f"{name}-*/corpus.json")):
        try:
            recorded = json.loads(noted.read_text(encoding="utf-8"))
            if same_content(files, recorded):
                return recorded
        except (ValueError, KeyError, TypeError):
            continue  # a damaged note costs reading the files once more
    return identity(files)


def _write_identity(folder: Path, identity: dict[str, Any]) -> None:
    from electra_albert.corpus.parts import write_json

    write_json(folder / "corpus.json", identity)


@contextmanager
def _locked(folder: Path, say: Say) -> Iterator[None]:
    """One process at a time; the lock goes with the process that holds it, however it ends."""
    import fcntl

    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process prepares {folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ready_store(folder: Path, wanted: str, say: Say) -> Store | None:
    """The store in `folder` where it is whole and the one wanted."""
    from electra_albert.corpus.store import open_store

    if not (folder / "manifest.json").is_file():
        return None
    try:
        store = open_store(folder)
    except CheckpointError as problem:
        say(f"{problem}; building it anew")
        return None
    if store.fingerprint != wanted:
        say(f"the token store in {folder} was made with another tokenizer; building it anew")
        return None
    say(f"using the token store in {folder}: {len(store.train.tokens):,} tokens to train on")
    return store


# The tokenizer.


def _ready_tokenizer(
    folder: Path, files: list[Path], given: AlbertTokenizer | None, config: CorpusConfig, seed: int, say: Say
) -> AlbertTokenizer:
    from electra_albert.corpus.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

    if given is not None:
        save_tokenizer(given, folder, _TOKENIZER_MAX_LENGTH)
        return given
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder)
    say(f"training a tokenizer of {config.vocab_size:,} pieces")
    trained = train_tokenizer(_sample(files, seed), config.vocab_size, config.do_lower_case)
    if len(trained) < config.vocab_size:
        say(f"the text gives only {len(trained):,} pieces of the {config.vocab_size:,} asked for by --vocab_size")
    save_tokenizer(trained, folder, _TOKENIZER_MAX_LENGTH)
    return trained


def _sample(files: list[Path], seed: int) -> Iterator[str]:
    """Sentences from the beginnings of pieces all over the corpus in a keyed order; all sentences of a small one."""
    from electra_albert.corpus.sources import plan_units, read_unit

    size = sum(path.stat().st_size for path in files)
    units = plan_units(files, max(_SMALLEST_UNIT_BYTES, size // _SAMPLED_PLACES))
    left = SAMPLE_CHARACTERS
    for place, unit in enumerate(_keyed_order(units, seed)):
        share = left if size <= SAMPLE_CHARACTERS else max(1, left // (len(units) - place))
        for sentence in (s for document in read_unit(unit, Counter()) for s in document.sentences):
            if share <= 0:
                break
            yield sentence
            share -= len(sentence)
            left -= len(sentence)


def _keyed_order(units: list[Unit], seed: int) -> list[Unit]:
    import torch

    from electra_albert.keyed_random import Stream, bits

    number = torch.arange(len(units))
    order = bits(seed, Stream.TOKENIZER_SAMPLE, number, torch.zeros_like(number)).argsort(stable=True)
    return [units[place] for place in order.tolist()]


def main(argv: Sequence[str]) -> int:
    """Entry point of `python -m electra_albert.apps.prepare`; returns the exit code."""
    parser = make_parser("python -m electra_albert.apps.prepare", "Make the tokenizer and the token store of a corpus.")
    parser.add_class_arguments(CorpusConfig)
    parser.add_argument("--seed", type=int, default=TrainingConfig.seed, help="Keys every draw, as in Pretraining.py.")
    options = parse(parser, argv).as_dict()
    seed = options.pop("seed")
    try:
        config = CorpusConfig(**options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    prepared = prepare(config, seed, print)
    print(f"ready in {prepared.folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_app(main))
