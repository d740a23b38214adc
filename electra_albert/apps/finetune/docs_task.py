"""The default task, for a machine without data: which package does this piece of documentation come from?

A text is one to three neighbouring sentences of a document of the built-in corpus, its label the package. A text that
names any of the packages to choose from is left out: its own name would be the answer, another's would strike one off.
Whole files are held out for scoring, since neighbouring documents are often worded alike. All labels are as frequent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.prepare.folder import locked
from electra_albert.config import BUILT_IN_CORPUS
from electra_albert.contracts import DataError, UsageError

LOG = logging.getLogger(__name__)

FORMAT_VERSION = 2  # raised whenever the same corpus would give other texts
RECEIPT_NAME = "receipt.json"
LABELS = 4  # packages to choose from: those with the most sentences
TRAIN_TEXTS = 400  # of each package, at most
DEV_TEXTS = 150
_FEWEST_TEXTS = 5  # of each set, to be a package to choose from at all
_DEV_SHARE = 0.1  # of the files
_MIN_WORDS, _MAX_WORDS, _MAX_SENTENCES = 20, 60, 3
_SEED = 0  # the task is the same for everybody
# What packages are called besides the name they are imported by.
_OTHER_NAMES = {"sklearn": ("scikit",), "PIL": ("pillow",), "google": ("protobuf", "protocol buffer")}


class Text(NamedTuple):
    """Some neighbouring sentences of one file."""

    sentences: tuple[str, ...]
    label: str
    draw: int  # keyed: the texts with the smallest are taken, in its order

    def line(self) -> str:
        return json.dumps({"text": " ".join(self.sentences), "label": self.label}, ensure_ascii=False) + "\n"


def write_docs_task(prepared_dir: Path) -> tuple[Path, Path]:
    """Write train.jsonl and dev.jsonl (text, label) below prepared_dir unless they are there; returns their paths.

    Raises UsageError where the folder cannot be written, DataError where too little documentation is installed.
    """
    from electra_albert.corpus.installed_docs import write_installed_docs

    folder = prepared_dir / "docs-task"
    files = folder / "train.jsonl", folder / "dev.jsonl"
    with _writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(prepared_dir / f".{BUILT_IN_CORPUS}.lock"):  # as in prepare: read only once by many processes
            LOG.info("reading the documentation installed with Python and its packages")
            corpus = write_installed_docs(prepared_dir / BUILT_IN_CORPUS)
            fingerprint = _fingerprint(corpus)
            if not _is_current(files, folder / RECEIPT_NAME, fingerprint):
                LOG.info(f"making the default task in {folder}: which package does a text come from?")
                train, dev = make_texts(_documents(corpus))
                _write(folder, dict(zip(files, (train, dev), strict=True)), fingerprint)
    return files


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Trouble with files as a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot write the default task ({error.strerror}); choose another --prepared_dir"
        ) from error


def make_texts(documents: Iterable[tuple[str, list[str]]]) -> tuple[list[Text], list[Text]]:
    """Training and held-out texts of documents given as (source, sentences), in the order they are to be written."""
    by_label, sizes = defaultdict(list), Counter[str]()
    for source, sentences in documents:
        if not source.endswith("METADATA"):  # lies in a folder that is called by the version
            by_label[source.partition("/")[0]].append((source, sentences))
            sizes[source.partition("/")[0]] += len(sentences)
    largest = sorted(sizes, key=lambda label: (-sizes[label], label))[:LABELS]
    is_named = _naming(largest).search
    train: list[Text] = []
    dev: list[Text] = []
    for label in largest:
        for source, sentences in by_label[label]:
            texts = dev if _draw(source) < _DEV_SHARE * 2**63 else train
            kept = (text for text in _cut(sentences) if not is_named(" ".join(text)))
            texts += [Text(text, label, _draw(source, *text)) for text in kept]
    labels = [label for label in largest if min(_count(train, label), _count(dev, label)) >= _FEWEST_TEXTS]
    dev = _balanced(_different(dev, set()), labels, DEV_TEXTS)
    held_out = {_folded(sentence) for text in dev for sentence in text.sentences}
    train = _balanced(_different(train, held_out), labels, TRAIN_TEXTS)
    if len(labels) < 2 or not train:
        raise DataError("the documentation installed is not enough for a task on it; name a --task and its data")
    return train, dev


def _cut(sentences: list[str]) -> Iterator[tuple[str, ...]]:
    """Texts of one document, one after the other: sentences until there are enough words; too long ones are passed."""
    text: list[str] = []
    words = 0
    for sentence in sentences:
        text.append(sentence)
        words += len(sentence.split())
        if words >= _MIN_WORDS or len(text) == _MAX_SENTENCES:
            if _MIN_WORDS <= words <= _MAX_WORDS:
                yield tuple(text)
            text, words = [], 0


def _naming(labels: list[str]) -> re.Pattern[str]:
    """Finds the name of any of the packages, also within such as PyTorch, torchvision and pythonic."""
    names = [name for label in labels for name in (label, *_OTHER_NAMES.get(label, ()))]
    return re.compile(r"(?<![a-z])(?:py)?(?:" + "|".join(map(re.escape, names)) + ")", re.IGNORECASE)


def _different(texts: Iterable[Text], taken: set[str]) -> list[Text]:
    """The texts none of whose sentences is taken already, by an earlier text or to begin with."""
    kept, taken = [], set(taken)
    for text in sorted(texts, key=lambda text: text.draw):
        sentences = set(map(_folded, text.sentences))
        if taken.isdisjoint(sentences):
            taken |= sentences
            kept.append(text)
    return kept


def _count(texts: list[Text], label: str) -> int:
    return sum(text.label == label for text in texts)


def _balanced(texts: list[Text], labels: list[str], most: int) -> list[Text]:
    """As many texts of each label: the first ones, up to `most`, or as many as the rarest label has."""
    left = dict.fromkeys(labels, min([most, *(_count(texts, label) for label in labels)]))
    kept = []
    for text in texts:
        if left.get(text.label):
            left[text.label] -= 1
            kept.append(text)
    return kept


def _draw(*words: str) -> int:
    """A number in [0, 2**63) that depends on the words alone."""
    from electra_albert.keyed_random import Stream, derived_seed

    digest = hashlib.blake2b("\n".join(words).encode(), digest_size=8).digest()
    return derived_seed(_SEED, Stream.TASK_EXAMPLES, int.from_bytes(digest))


def _folded(sentence: str) -> str:
    return " ".join(sentence.casefold().split())


# Files.


def _documents(corpus: Path) -> Iterator[tuple[str, list[str]]]:
    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            yield document["source"], document["sentences"]


def _fingerprint(corpus: Path) -> str:
    """Changes with the corpus and this module's rules."""
    from electra_albert.corpus.installed_docs import RECEIPT_NAME as CORPUS_RECEIPT

    receipt: dict[str, Any] = json.loads(corpus.with_name(CORPUS_RECEIPT).read_text(encoding="utf-8"))
    return f"{receipt['fingerprint']}-{FORMAT_VERSION}"


def _is_current(files: Iterable[Path], receipt: Path, fingerprint: str) -> bool:
    try:
        told = json.loads(receipt.read_text(encoding="utf-8"))
        return bool(told["fingerprint"] == fingerprint) and told["bytes"] == {
            file.name: file.stat().st_size for file in files
        }
    except (OSError, ValueError, KeyError, TypeError):
        return False  # missing, cut short or not ours: it is made again


def _write(folder: Path, texts: dict[Path, list[Text]], fingerprint: str) -> None:
    """Each file complete or not at all, the receipt last."""
    contents = {file: "".join(text.line() for text in some) for file, some in texts.items()}
    sizes = {file.name: len(content.encode()) for file, content in contents.items()}
    counts = {file.name: dict(Counter(text.label for text in some)) for file, some in texts.items()}
    receipt = {"fingerprint": fingerprint, "bytes": sizes, "counts": counts}
    (folder / RECEIPT_NAME).unlink(missing_ok=True)
    for file, content in contents.items():
        _write_atomically(file, content)
    _write_atomically(folder / RECEIPT_NAME, json.dumps(receipt, indent=2, sort_keys=True) + "\n")


def _write_atomically(path: Path, text: str) -> None:
    from electra_albert.files import name_beside

    beside = name_beside(path.with_name(f".{path.name}"))
    with beside.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
