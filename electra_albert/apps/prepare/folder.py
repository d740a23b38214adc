"""Where what was prepared of a corpus lies, how it is known again, and who may write there.

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

from electra_albert.config import BUILT_IN_CORPUS, CorpusConfig
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.shipped import SAMPLE_TEXT

if TYPE_CHECKING:
    from electra_albert.corpus.mixture import Source
    from electra_albert.corpus.sources import Reading, Unit
    from electra_albert.corpus.store import Store
    from electra_albert.corpus.tokenizer import Tokenizer

LOG = logging.getLogger(__name__)

PREPARED_VERSION = 5  # raise it when the same text would be read, split, tokenised or held out in another way
_TRAINING_VERSION = 2  # raise it when another tokenizer would be trained on the same text
_KEY_LETTERS = 12  # of the key, in the folder's name


class CorpusFolder(NamedTuple):
    """A corpus that was looked at, and the folder that belongs to it."""

    folder: Path
    key: str
    config: CorpusConfig
    seed: int
    sources: list[Source]
    files: list[list[Path]]  # of each source
    identity: dict[str, Any]  # of all files
    found: Counter[str]  # what was noted while they were looked for
    given: Tokenizer | None  # the tokenizer to use, if one was named

    def units(self, unit_bytes: int) -> list[list[Unit]]:
        """The units of each source."""
        from electra_albert.corpus.sources import plan_units

        return [
            plan_units(files, _reading(source, self.config), unit_bytes)
            for source, files in zip(self.sources, self.files, strict=True)
        ]

    def all_files(self) -> list[Path]:
        return [path for files in self.files for path in files]


def open_corpus(config: CorpusConfig, seed: int) -> CorpusFolder:
    """Look for the corpus, tell it from any other, and make its folder.

    Raises UsageError, DataError or CheckpointError where the corpus or the tokenizer cannot be used.
    """
    from electra_albert.corpus.mixture import read_sources
    from electra_albert.corpus.sources import require_columns
    from electra_albert.corpus.tokenizer import TextOptions, fingerprint, load_tokenizer

    root = Path(config.prepared_dir)
    root.mkdir(parents=True, exist_ok=True)
    given = None
    if config.tokenizer:
        if config.keep_accents == "albert":
            raise UsageError("--keep_accents albert is for a tokenizer that is trained; for a given one say false")
        told = TextOptions(config.do_lower_case, config.keep_accents, config.split_digit_comma)
        given = load_tokenizer(Path(config.tokenizer), told)
    sources = read_sources(config.corpus, config.text_column)
    name = short_name(config.corpus)
    found: Counter[str] = Counter()
    with locked(root / f".{name}.lock"):  # many jobs at once, as on a cluster, read every file only once
        files = _without_repeats(sources, [_find(source.corpus, config.encoding, found) for source in sources], found)
        for source, some in zip(sources, files, strict=True):  # first of all, since it takes no time
            require_columns(some, _reading(source, config))
        identity = _identify([path for some in files for path in some], root, name)
        pieces = fingerprint(given) if given else _training_key(config)
        how = [config.bad_utf8, config.encoding]
        key = _digest([PREPARED_VERSION, _content(sources, files, identity), how, pieces, seed])
        folder = root / f"{name}-{key[:_KEY_LETTERS]}"
        folder.mkdir(exist_ok=True)
        _write_identity(folder, identity)
    return CorpusFolder(folder, key, config, seed, sources, files, identity, found, given)


def _reading(source: Source, config: CorpusConfig) -> Reading:
    from electra_albert.corpus.sources import Reading

    return Reading(source.text_column, config.bad_utf8, config.encoding)


def _training_key(config: CorpusConfig) -> list[Any]:
    """What the pieces of a tokenizer that is trained depend on, the text apart."""
    return [_TRAINING_VERSION, config.vocab_size, config.do_lower_case is not False, config.keep_accents]


def _find(corpus: str, encoding: str, found: Counter[str]) -> list[Path]:
    from electra_albert.corpus.sources import find_files

    return find_files(str(SAMPLE_TEXT) if corpus == BUILT_IN_CORPUS else corpus, found, encoding)


def _without_repeats(sources: list[Source], files: list[list[Path]], found: Counter[str]) -> list[list[Path]]:
    """Each text once, in the first source that holds it; DataError where that would falsify the sources' weights."""
    seen: set[tuple[str, str]] = set()
    kept: list[list[Path]] = []
    for source, some in zip(sources, files, strict=True):
        own = {(os.path.realpath(path), _column(path, source)): path for path in some}
        repeated = own.keys() & seen
        if repeated and source.weight is not None:
            raise DataError(f"{min(repeated)[0]} belongs to two sources with weights; give it to one of them")
        found["repeated_files_skipped"] += len(repeated)
        kept.append([path for text, path in own.items() if text not in seen])
        seen |= own.keys()
    return kept


def _column(path: Path, source: Source) -> str:
    """The column of a table that is read; plain text has none."""
    from electra_albert.corpus.formats import format_of

    return "" if format_of(path) == "text" else source.text_column


def _content(sources: list[Source], files: list[list[Path]], identity: dict[str, Any]) -> list[Any]:
    """What is read, by source: hash and suffixes of each file, and the column that holds the text."""
    entries = iter(identity["files"])
    return [
        [source.text_column, [[next(entries)["blake2b"], path.suffixes[-2:]] for path in some]]
        for source, some in zip(sources, files, strict=True)
    ]


def short_name(corpus: str) -> str:
    """What folders made from a corpus are named after."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(os.path.realpath(corpus)).stem)
    return name.strip("-.")[:40] or "corpus"


def _digest(content: object) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def _identify(files: list[Path], root: Path, name: str) -> dict[str, Any]:
    """What the files hold: as noted at an earlier run where they are untouched since, else by reading them."""
    from electra_albert.corpus.sources import identity, refreshed

    for noted in sorted(root.glob(f"{name}-*/corpus.json")):
        try:
            recorded = json.loads(noted.read_text(encoding="utf-8"))
            present = refreshed(files, recorded)
            if present is not None:
                return present
        except (ValueError, KeyError, TypeError):
            continue  # a damaged note costs reading the files once more
    return identity(files)


def _write_identity(folder: Path, identity: dict[str, Any]) -> None:
    from electra_albert.corpus.writing import write_json

    write_json(folder / "corpus.json", identity)


@contextmanager
def locked(lock: Path, *, is_shared: bool = False) -> Iterator[None]:
    """Hold the lock file alone, or along with others that share it; it goes with the process, however that ends."""
    import fcntl

    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    with lock.open("w") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            LOG.info(f"another process prepares {lock.parent}; waiting for it")
            fcntl.flock(file, kind)
        yield


def ready_store(folder: Path, wanted: str) -> Store | None:
    """The store in `folder` where it is whole and the one wanted."""
    from electra_albert.corpus.store import open_store

    if not (folder / "manifest.json").is_file():
        return None
    try:
        store = open_store(folder)
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
    from electra_albert.corpus.store import open_store

    for folder in prepared_dir.glob(f"*-{fingerprint[:_KEY_LETTERS]}/store"):
        try:
            store = open_store(folder)
        except (CheckpointError, UsageError):
            continue
        if store.fingerprint == fingerprint:
            return store
    return None
