"""The folder of a prepared corpus: its key, its locks, and the token store in it.

A folder's name carries the beginning of its key: a hash of the content of all files, how they are read, the tokenizer
and the seed. So another corpus never meets an old store, and the same one finds it wherever its files have gone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from electra_albert.config import BUILT_IN_CORPUS, CorpusConfig
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.mixture import Source, read_sources
from electra_albert.corpus.sources import Reading, Unit, plan_units, require_columns
from electra_albert.corpus.store import Store, open_store
from electra_albert.corpus.tokenizer import TextOptions, fingerprint, load_tokenizer
from electra_albert.data_files.finding import find_files, format_of, identity, refreshed
from electra_albert.files import SAMPLE_TEXT, read_json, write_json

if TYPE_CHECKING:
    from electra_albert.corpus.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)

PREPARED_VERSION = 5  # raise it when the same text would be read, split, tokenised or held out in another way
_TRAINING_VERSION = 2  # raise it when another tokenizer would be trained on the same text
_KEY_LETTERS = 12  # of the key, in the folder's name


class CorpusFolder(NamedTuple):
    """The files of a corpus, and the folder that belongs to it."""

    folder: Path
    key: str
    config: CorpusConfig
    seed: int
    sources: list[Source]
    files: list[list[Path]]  # of each source
    identity: dict[str, Any]  # of all files
    found: Counter[str]  # counts of what was left out when the files were listed
    given: Tokenizer | None  # the tokenizer to use, if one was named

    def units(self, unit_bytes: int) -> list[list[Unit]]:
        """The units of each source."""
        pairs = zip(self.sources, self.files, strict=True)
        return [plan_units(files, _reading(source, self.config), unit_bytes) for source, files in pairs]

    def all_files(self) -> list[Path]:
        return [path for files in self.files for path in files]


def open_corpus(config: CorpusConfig, seed: int) -> CorpusFolder:
    """List the files of the corpus, compute its key, and make its folder.

    Raises UsageError, DataError or CheckpointError if the corpus or the tokenizer cannot be used.
    """
    root = Path(config.prepared_dir)
    root.mkdir(parents=True, exist_ok=True)
    given = None
    if config.tokenizer:
        if config.keep_accents == "albert":
            raise UsageError("--keep_accents albert is for a tokenizer that is trained; for a given one say false")
        options = TextOptions(config.do_lower_case, config.keep_accents, config.split_digit_comma)
        given = load_tokenizer(Path(config.tokenizer), options)
    sources = read_sources(config.corpus, config.text_column)
    paths = [str(SAMPLE_TEXT) if source.corpus == BUILT_IN_CORPUS else source.corpus for source in sources]
    name = short_name(config.corpus)
    found: Counter[str] = Counter()
    with locked(root / f".{name}.lock"):  # many jobs at once, as on a cluster, read every file only once
        files = _without_repeats(sources, [find_files(path, found, config.encoding) for path in paths], found)
        for source, some in zip(sources, files, strict=True):  # first of all, since it takes no time
            require_columns(some, _reading(source, config))
        hashes = _identify([path for some in files for path in some], root, name)
        entries = iter(hashes["files"])
        content = [
            [source.text_column, [[next(entries)["blake2b"], path.suffixes[-2:]] for path in some]]
            for source, some in zip(sources, files, strict=True)
        ]
        trained = [_TRAINING_VERSION, config.vocab_size, config.do_lower_case is not False, config.keep_accents]
        tokenizer = fingerprint(given) if given else trained
        parts = [PREPARED_VERSION, content, [config.bad_utf8, config.encoding], tokenizer, seed]
        key = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
        folder = root / f"{name}-{key[:_KEY_LETTERS]}"
        folder.mkdir(exist_ok=True)
        write_json(folder / "corpus.json", hashes)
    return CorpusFolder(folder, key, config, seed, sources, files, hashes, found, given)


def _reading(source: Source, config: CorpusConfig) -> Reading:
    return Reading(source.text_column, config.bad_utf8, config.encoding)


def _without_repeats(sources: list[Source], files: list[list[Path]], found: Counter[str]) -> list[list[Path]]:
    """Each text once, in the first source that holds it; DataError if that would falsify the sources' weights."""
    seen: set[tuple[str, str]] = set()
    kept: list[list[Path]] = []
    for source, some in zip(sources, files, strict=True):
        columns = ["" if format_of(path) == "text" else source.text_column for path in some]  # plain text has none
        own = {(os.path.realpath(path), column): path for path, column in zip(some, columns, strict=True)}
        repeated = own.keys() & seen
        if repeated and source.weight is not None:
            raise DataError(f"{min(repeated)[0]} belongs to two sources with weights; give it to one of them")
        found["repeated_files_skipped"] += len(repeated)
        kept.append([path for text, path in own.items() if text not in seen])
        seen |= own.keys()
    return kept


def short_name(corpus: str) -> str:
    """The name from which folders made of a corpus get theirs."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(os.path.realpath(corpus)).stem)
    return name.strip("-.")[:40] or "corpus"


def _identify(files: list[Path], root: Path, name: str) -> dict[str, Any]:
    """The hashes of the files: as noted at an earlier run if they are untouched since, else by reading them."""
    for noted in sorted(root.glob(f"{name}-*/corpus.json")):
        try:
            present = refreshed(files, read_json(noted))
        except (KeyError, TypeError):
            continue  # a damaged note costs reading the files once more
        if present is not None:
            return present
    return identity(files)


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold the lock file; it goes with the process, however that ends."""
    file = FileLock(lock)
    try:
        file.acquire(timeout=0)
    except Timeout:
        LOG.info(f"another process prepares {lock.parent}; waiting for it")
        file.acquire()
    try:
        yield
    finally:
        file.release()


def ready_store(folder: Path, wanted: str) -> Store | None:
    """The store in `folder` if it is whole and has the fingerprint wanted."""
    try:
        store = open_store(folder)
    except UsageError:  # there is none
        return None
    except CheckpointError as problem:
        LOG.info(f"{problem}; building the token store again")
        return None
    if store.fingerprint != wanted:
        LOG.info(f"the token store in {folder} was made with another tokenizer; building it again")
        return None
    LOG.info(f"using the token store in {folder}: {len(store.train.tokens):,} tokens to train on")
    return store


def find_store(prepared_dir: Path, fingerprint: str) -> Store | None:
    """The store of this fingerprint below `prepared_dir`, if it is still there and whole."""
    folders = prepared_dir.glob(f"*-{fingerprint[:_KEY_LETTERS]}/store")
    return next((store for folder in folders if (store := ready_store(folder, fingerprint))), None)
