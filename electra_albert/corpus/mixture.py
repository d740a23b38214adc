"""Several sources in one corpus: the .yaml file that lists them, and the order of their examples.

Dimensions: S sources, N examples per epoch.
"""

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.config.pretraining import BUILT_IN_CORPUS
from electra_albert.contracts import DataError, one_line, redacted
from electra_albert.data_files import NOT_YAML, hub_name
from electra_albert.data_files.finding import expanded, format_of
from electra_albert.data_files.remote import URL
from electra_albert.data_files.streams import open_regular
from electra_albert.files import is_of_kind, strict_loader
from electra_albert.keyed_random import Stream, derived_seed, permute

_SUFFIXES = (".yaml", ".yml")
_MAX_WEIGHT = 1e9
_MAX_LIST_BYTES = 1 << 20
_MAX_REPEATS = 1_000_000  # of the examples of a source in one epoch
_KINDS = {"corpus": str, "text_column": str, "weight": float | None}


class Source(NamedTuple):
    """One source of text."""

    corpus: str  # a value of --corpus
    text_column: str
    weight: float | None = None  # relative share of the training examples; None: by size


def read_sources(corpus: str, text_column: str) -> list[Source]:
    """The source `corpus` or, if it is a .yaml file, the sources that it lists."""
    import yaml

    file = Path(expanded(corpus))
    if file.suffix.lower() not in _SUFFIXES or file.is_dir():
        return [Source(corpus, text_column)]
    with open_regular(file) as opened:
        text = opened.read(_MAX_LIST_BYTES + 1)
    if len(text) > _MAX_LIST_BYTES:
        raise DataError(f"{file} is larger than {_MAX_LIST_BYTES:,} bytes; write globs instead")
    try:
        entries = yaml.load(text, strict_loader())
    except (yaml.YAMLError, *NOT_YAML) as error:  # ValueError also for bytes that are not UTF-8
        raise DataError(f"{file} is not YAML ({one_line(error)}); correct it") from None
    advice = "write a list of entries such as `- {corpus: wiki/*.txt, weight: 3}`"
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{file}: lists no sources; {advice}")
    sources = []
    for number, entry in enumerate(entries, start=1):
        try:
            sources.append(_read_source(file, entry, text_column))
        except DataError as error:
            raise DataError(f"{file}: entry {number} {error}; {advice}") from None
    unweighted = [source.corpus for source in sources if source.weight is None]
    if 0 < len(unweighted) < len(sources):
        raise DataError(f"{file}: {unweighted[0]} has no weight; give all sources one or none")
    return sources


def without_repeats(
    sources: list[Source], files: list[list[Path]], skipped: Counter[str]
) -> list[list[Path]]:
    """Keep each text only in the first source that holds it.

    Raises DataError if a source with a weight repeats another.
    """
    seen: set[tuple[str, str]] = set()
    unique: list[list[Path]] = []
    for source, paths in zip(sources, files, strict=True):
        texts: dict[tuple[str, str], Path] = {}  # by file and column
        for path in paths:
            column = source.text_column
            if format_of(path) == "text":
                column = ""
            texts[os.path.realpath(path), column] = path
        repeated = texts.keys() & seen
        if repeated and source.weight is not None:
            raise DataError(f"{min(repeated)[0]} is in two sources with weights; remove one")
        skipped["repeated_files_skipped"] += len(repeated)
        unique.append([path for text, path in texts.items() if text not in seen])
        seen |= texts.keys()
    return unique


def source_names(sources: Sequence[Source]) -> list[str]:
    """A short unique name per source of letters, digits and ._-, from the end of its path."""
    names: list[str] = []
    for number, source in enumerate(sources, start=1):
        last_part = ""
        for part in Path(redacted(source.corpus)).parts:
            if not glob.has_magic(part):
                last_part = part
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", last_part).strip("-.") or "source"
        while name in names:
            name = f"{name}-{number}"
        names.append(name)
    return names


def _read_source(file: Path, entry: Any, text_column: str) -> Source:
    """An entry of a list; paths in it are relative to the list."""
    if not isinstance(entry, dict) or not entry.get("corpus"):
        raise DataError("names no corpus")
    unknown = entry.keys() - _KINDS
    if unknown:
        names = ", ".join(_KINDS)
        raise DataError(f"has the unknown key {min(map(str, unknown))[:40]!r}, not one of {names}")
    entry = {"text_column": text_column, "weight": None} | entry
    for key, kind in _KINDS.items():
        if not is_of_kind(entry[key], kind):
            raise DataError(f"has the {key} {str(entry[key])[:40]!r}, of the wrong type")
    weight = entry["weight"]
    if weight is not None:
        weight = float(weight)
        if not 0 < weight <= _MAX_WEIGHT:
            limits = f"not a number above 0, at most {_MAX_WEIGHT:g}"
            raise DataError(f"has weight {weight:g}, {limits}")
    corpus = os.path.expanduser(entry["corpus"])  # unknown users are left unexpanded
    if Path(corpus).suffix.lower() in _SUFFIXES:
        raise DataError("is a .yaml file; list its sources here instead")
    if os.path.isabs(corpus):
        corpus = str(Path(corpus))
    elif corpus != BUILT_IN_CORPUS and URL not in corpus:
        is_glob = glob.has_magic(corpus)
        folder = os.path.abspath(file.parent)
        if is_glob:
            folder = glob.escape(folder)
        path = os.path.join(folder, corpus)
        if is_glob or os.path.lexists(path):
            corpus = path
        elif hub_name(corpus) is None:
            raise DataError(f"names {corpus}, but {path} does not exist")
    return Source(corpus, entry["text_column"], weight)


@dataclass(frozen=True)
class ExampleOrder:
    """Maps each position of an endless run to an example of the table.

    An epoch takes `taken[s]` examples of source s. The source that is repeated least gives each
    example once per epoch; so do all sources without weights. The others wrap around, so each of
    their examples is drawn equally often.
    """

    count: tuple[int, ...]  # [S] examples of each source, which follow those of the one before
    taken: tuple[int, ...]  # [S] examples drawn from each source per epoch
    seed: int

    @property
    def examples_per_epoch(self) -> int:
        """N: examples per epoch, over all sources."""
        return sum(self.taken)

    def indices(self, position: Tensor) -> Tensor:
        """Indices of the examples at `position`, int64 of any shape, from 0; of the same shape."""
        epoch = position // self.examples_per_epoch
        slot = permute(
            position % self.examples_per_epoch, self.examples_per_epoch, self.seed, epoch
        )
        if len(self.count) == 1:
            return slot
        index = torch.empty_like(slot)
        first = 0
        begin = 0
        sources = zip(self.count, self.taken, strict=True)
        for source, (count, taken) in enumerate(sources):
            end = begin + taken
            in_source = (slot >= begin) & (slot < end)
            turn = epoch[in_source] * taken + slot[in_source] - begin  # earlier draws
            seed = derived_seed(self.seed, Stream.SOURCE, source)
            number = permute(turn % count, count, seed, turn // count)
            index[in_source] = first + number
            first += count
            begin = end
        return index


def order_examples(
    first: Sequence[int], total: int, weights: Sequence[float] | None, seed: int
) -> ExampleOrder:
    """The order of a table whose sources start at the indices `first`.

    weights: relative shares of the sources, None or empty: by size.
    """
    if not weights or len(first) == 1:
        return ExampleOrder((total,), (total,), seed)
    sizes = [end - start for start, end in pairwise([*first, total])]
    if min(sizes) < 1:
        number = sizes.index(min(sizes)) + 1
        raise DataError(f"source {number} gives no training example; add text or remove it")
    demand = [weight / size for weight, size in zip(weights, sizes, strict=True)]
    lowest = min(demand)
    if max(demand) >= _MAX_REPEATS * lowest:
        number = demand.index(max(demand)) + 1
        raise DataError(
            f"source {number} would be repeated over {_MAX_REPEATS:,} times per epoch; "
            "choose closer weights"
        )
    taken = []
    for size, share in zip(sizes, demand, strict=True):
        repeats = share / lowest
        taken.append(round(size * repeats))
    return ExampleOrder(tuple(sizes), tuple(taken), seed)
