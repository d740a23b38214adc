"""Several sources in one corpus: the .yaml file that lists them, and the order of their examples by weight.

Dimensions: S sources, N examples per epoch.
"""

import glob
import math
import os
import re
import reprlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.config import BUILT_IN_CORPUS
from electra_albert.contracts import DataError, redacted
from electra_albert.data_files import NOT_YAML, hub_name
from electra_albert.data_files.finding import format_of
from electra_albert.data_files.remote import URL
from electra_albert.data_files.streams import open_regular
from electra_albert.keyed_random import Stream, derived_seed, permute

_SUFFIXES = (".yaml", ".yml")
_MAX_LIST_BYTES = 1 << 20
_MAX_WEIGHT = 1e9
_MAX_REPEATS = 1e6  # of the examples of a source in one epoch
_KEYS = {"corpus", "weight", "text_column"}


class Source(NamedTuple):
    """One source of text."""

    corpus: str  # a value of --corpus
    text_column: str
    weight: float | None = None  # share of the training examples, relative to the others; None: by size


def strict_loader() -> type:
    """YAML's safe loader that raises YAMLError for a duplicate key, which PyYAML silently overwrites."""
    import yaml

    def construct_mapping(loader: Any, node: Any, deep: bool = False) -> Any:
        names = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"the key {twice[:40]!r} occurs twice in one entry")
        return yaml.SafeLoader.construct_mapping(loader, node, deep)

    return type("StrictLoader", (yaml.SafeLoader,), {"construct_mapping": construct_mapping})


def read_sources(corpus: str, text_column: str) -> list[Source]:
    """The source `corpus`, or the sources that it lists if it is a .yaml file, with paths relative to that file."""
    import yaml

    file = Path(corpus)
    if file.suffix.lower() not in _SUFFIXES or file.is_dir():
        return [Source(corpus, text_column)]
    with open_regular(file) as opened:
        text = opened.read(_MAX_LIST_BYTES + 1)
    if len(text) > _MAX_LIST_BYTES:
        raise DataError(f"{file} is larger than {_MAX_LIST_BYTES:,} bytes; write globs instead of single files")
    try:
        entries = yaml.load(text, strict_loader())
    except (yaml.YAMLError, *NOT_YAML) as error:  # ValueError also for bytes that are not UTF-8
        raise DataError(f"{file} is not YAML ({' '.join(str(error).split())[:80]}); correct it") from None
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
        raise DataError(f"{file}: {unweighted[0]} has no weight but others do; give a weight to all sources or to none")
    return sources


def without_repeats(sources: list[Source], files: list[list[Path]], found: Counter[str]) -> list[list[Path]]:
    """Keep each text only in the first source that holds it. Raises DataError if its source has a weight."""
    seen: set[tuple[str, str]] = set()
    kept: list[list[Path]] = []
    for source, some in zip(sources, files, strict=True):
        columns = {path: "" if format_of(path) == "text" else source.text_column for path in some}  # no columns
        own = {(os.path.realpath(path), columns[path]): path for path in some}
        repeated = own.keys() & seen
        if repeated and source.weight is not None:
            raise DataError(f"{min(repeated)[0]} is in two sources with weights; remove it from one of them")
        found["repeated_files_skipped"] += len(repeated)
        kept.append([path for text, path in own.items() if text not in seen])
        seen |= own.keys()
    return kept


def source_names(sources: Sequence[Source]) -> list[str]:
    """A short unique name per source, from the last part of its path without wildcards: letters, digits, ._-."""
    names: list[str] = []
    for number, source in enumerate(sources, start=1):
        parts = [part for part in Path(redacted(source.corpus)).parts if not glob.has_magic(part)]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[-1] if parts else "").strip("-.") or "source"
        while name in names:
            name = f"{name}-{number}"
        names.append(name)
    return names


def _read_source(file: Path, entry: Any, text_column: str) -> Source:
    if not isinstance(entry, dict) or not isinstance(entry.get("corpus"), str) or not entry["corpus"]:
        raise DataError("names no corpus")
    if unknown := sorted(str(key)[:40] for key in entry.keys() - _KEYS):
        raise DataError(f"has the unknown key {unknown[0]!r}, not one of {', '.join(sorted(_KEYS))}")
    column = entry.get("text_column", text_column)
    if not isinstance(column, str):
        raise DataError(f"has text_column {reprlib.repr(column)}, which is not text")
    if Path(entry["corpus"]).suffix.lower() in _SUFFIXES:
        raise DataError("is a .yaml file; list its sources here instead")
    weight = entry.get("weight")
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if weight is not None and not (is_number and 0 < weight <= _MAX_WEIGHT):
        raise DataError(f"has weight {reprlib.repr(weight)}, not a number above 0, at most {_MAX_WEIGHT:g}")
    corpus, path = entry["corpus"], Path(os.path.expanduser(entry["corpus"]))  # unknown users are left unexpanded
    if path.is_absolute():
        corpus = str(path)
    elif corpus != BUILT_IN_CORPUS and URL not in corpus:
        is_glob, folder = glob.has_magic(corpus), os.path.abspath(file.parent)
        relative = os.path.join(glob.escape(folder) if is_glob else folder, corpus)
        is_here = is_glob or os.path.lexists(relative)
        if not is_here and hub_name(corpus) is None:
            raise DataError(f"names {corpus}, but {relative} does not exist; paths are relative to the list")
        corpus = relative if is_here else corpus
    return Source(corpus, column, None if weight is None else float(weight))


@dataclass(frozen=True)
class ExampleOrder:
    """Maps each position of an endless run to an example of the table.

    An epoch takes `taken[s]` examples of source s. The source that is repeated least gives each example once per epoch;
    so do all sources without weights. The others wrap around, so each of their examples is drawn equally often.
    """

    first: tuple[int, ...]  # [S] index of the first example of each source
    count: tuple[int, ...]  # [S] examples of each source
    taken: tuple[int, ...]  # [S] examples drawn from each source per epoch
    seed: int

    @property
    def examples_per_epoch(self) -> int:
        """N: examples per epoch, over all sources."""
        return sum(self.taken)

    def indices(self, position: Tensor) -> Tensor:
        """Indices of the examples at `position`, int64 of any shape from 0; the result has the same shape."""
        epoch = position // self.examples_per_epoch
        slot = permute(position % self.examples_per_epoch, self.examples_per_epoch, self.seed, epoch)
        if len(self.count) == 1:
            return slot + self.first[0]
        index = torch.empty_like(slot)
        begin = 0
        for source, (first, count, taken) in enumerate(zip(self.first, self.count, self.taken, strict=True)):
            in_source = (slot >= begin) & (slot < begin + taken)
            turn = epoch[in_source] * taken + slot[in_source] - begin  # number of earlier draws from the source
            seed = derived_seed(self.seed, Stream.SOURCE, source)
            index[in_source] = first + permute(turn % count, count, seed, turn // count)
            begin += taken
        return index


def order_examples(first: Sequence[int], total: int, weights: Sequence[float] | None, seed: int) -> ExampleOrder:
    """The order of a table whose sources start at the indices `first`; weights: relative shares, None: by size."""
    if weights is None or len(first) == 1:
        return ExampleOrder((0,), (total,), (total,), seed)
    count = [end - start for start, end in zip(first, [*first[1:], total], strict=True)]
    if min(count) < 1:
        raise DataError(f"source {count.index(min(count)) + 1} gives no training example; add text or remove it")
    demand = [weight / size for weight, size in zip(weights, count, strict=True)]
    repeats = [share / min(demand) if min(demand) > 0 else math.inf for share in demand]
    if max(repeats) > _MAX_REPEATS:
        most = repeats.index(max(repeats)) + 1
        raise DataError(f"source {most} would be repeated {max(repeats):.0e} times per epoch; choose closer weights")
    taken = [round(size * times) for size, times in zip(count, repeats, strict=True)]
    return ExampleOrder(tuple(first), tuple(count), tuple(taken), seed)
