"""Several sources in one corpus: the .yaml file that lists them, and the order in which their rows are drawn by weight.

Dimensions: S sources, N rows of one pass.
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
from electra_albert.contracts import NOT_YAML, DataError
from electra_albert.data_files import hub_name
from electra_albert.data_files.finding import format_of
from electra_albert.data_files.remote import is_url
from electra_albert.data_files.streams import open_regular
from electra_albert.keyed_random import Stream, derived_seed, permute

_SUFFIXES = (".yaml", ".yml")
_LARGEST_LIST = 1 << 20  # bytes
_LARGEST_WEIGHT = 1e9
_MOST_REPEATS = 1e6  # of the rows of a source in one pass
_KEYS = {"corpus", "weight", "text_column"}


class Source(NamedTuple):
    """One entry of a corpus."""

    corpus: str  # as --corpus takes it
    text_column: str
    weight: float | None = None  # how often its rows are drawn, relative to the others'; None: as many as it has


def strict_loader() -> type:
    """YAML's safe loader, made to refuse two equal keys (YAMLError) where it would take the last one in silence."""
    import yaml

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise yaml.YAMLError(f"the key {twice[:40]!r} is there twice in one entry")
            return super().construct_mapping(node, deep)

    return Strict


def read_sources(corpus: str, text_column: str) -> list[Source]:
    """`corpus` itself, or the sources that it lists if it is a .yaml file, with paths relative to it."""
    import yaml

    file = Path(corpus)
    if file.suffix.lower() not in _SUFFIXES or file.is_dir():
        return [Source(corpus, text_column)]
    with open_regular(file) as opened:
        text = opened.read(_LARGEST_LIST)
    try:
        entries = yaml.load(text, strict_loader())
    except (yaml.YAMLError, *NOT_YAML) as error:  # a ValueError also where it is not UTF-8
        raise DataError(f"{file} is not YAML ({' '.join(str(error).split())[:80]})") from None
    way_out = "write a list of entries as `- {corpus: wiki/*.txt, weight: 3}`"
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{file}: lists no sources; {way_out}")
    sources = []
    for number, entry in enumerate(entries, start=1):
        try:
            sources.append(_read_source(file, entry, text_column))
        except DataError as error:
            raise DataError(f"{file}: entry {number} {error}; {way_out}") from None
    unweighted = [source.corpus for source in sources if source.weight is None]
    if 0 < len(unweighted) < len(sources):
        raise DataError(f"{file}: {unweighted[0]} has no weight and others have: give all of them one, or none")
    return sources


def without_repeats(sources: list[Source], files: list[list[Path]], found: Counter[str]) -> list[list[Path]]:
    """Each text once, in the first source that holds it; DataError if that would falsify the sources' weights."""
    seen: set[tuple[str, str]] = set()
    kept: list[list[Path]] = []
    for source, some in zip(sources, files, strict=True):
        columns = {path: "" if format_of(path) == "text" else source.text_column for path in some}  # text has none
        own = {(os.path.realpath(path), columns[path]): path for path in some}
        repeated = own.keys() & seen
        if repeated and source.weight is not None:
            raise DataError(f"{min(repeated)[0]} belongs to two sources with weights; give it to one of them")
        found["repeated_files_skipped"] += len(repeated)
        kept.append([path for text, path in own.items() if text not in seen])
        seen |= own.keys()
    return kept


def source_names(sources: Sequence[Source]) -> list[str]:
    """A short name for each source, of letters, digits, dots and dashes: the last part of its path without a star."""
    names: list[str] = []
    for number, source in enumerate(sources, start=1):
        parts = [part for part in Path(source.corpus).parts if not glob.has_magic(part)]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[-1] if parts else "").strip("-.") or "source"
        while name in names:
            name = f"{name}-{number}"
        names.append(name)
    return names


def _read_source(file: Path, entry: Any, text_column: str) -> Source:
    if not isinstance(entry, dict) or not isinstance(entry.get("corpus"), str) or not entry["corpus"]:
        raise DataError("names no corpus")
    if unknown := sorted(str(key)[:40] for key in entry.keys() - _KEYS):
        raise DataError(f"has the key {unknown[0]!r}, and there are {', '.join(sorted(_KEYS))}")
    column = entry.get("text_column", text_column)
    if not isinstance(column, str):
        raise DataError(f"has text_column {reprlib.repr(column)}")
    if Path(entry["corpus"]).suffix.lower() in _SUFFIXES:
        raise DataError("is a .yaml file, whose sources are to be listed here")
    weight = entry.get("weight")
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if weight is not None and not (is_number and 0 < weight <= _LARGEST_WEIGHT):
        raise DataError(f"has weight {reprlib.repr(weight)}, which is not a number above 0, to {_LARGEST_WEIGHT:g}")
    corpus, path = entry["corpus"], Path(os.path.expanduser(entry["corpus"]))  # which leaves what it cannot expand
    if path.is_absolute():
        corpus = str(path)
    elif corpus != BUILT_IN_CORPUS and not is_url(corpus):
        is_glob, folder = glob.has_magic(corpus), os.path.abspath(file.parent)
        relative = os.path.join(glob.escape(folder) if is_glob else folder, corpus)
        is_here = is_glob or os.path.lexists(relative)
        if not is_here and hub_name(corpus) is None:
            raise DataError(f"names {corpus}, but there is no {relative}: paths are relative to the list")
        corpus = relative if is_here else corpus
    return Source(corpus, column, None if weight is None else float(weight))


@dataclass(frozen=True)
class ExampleOrder:
    """The row of the table at each position of an endless run.

    One pass takes `taken[s]` rows of source s: each once of the one that lasts longest, or of all without weights. The
    others begin again wherever they end, so that, over the run, all rows of a source are drawn equally often.
    """

    first: tuple[int, ...]  # [S] the row at which each source begins
    count: tuple[int, ...]  # [S] rows it has
    taken: tuple[int, ...]  # [S] rows taken of it in one pass
    seed: int

    @property
    def pass_length(self) -> int:
        """N: rows of one pass."""
        return sum(self.taken)

    def rows(self, position: Tensor) -> Tensor:
        """position int64 of any shape, from 0; returns the rows of the table, int64 of the same shape."""
        epoch = position // self.pass_length
        slot = permute(position % self.pass_length, self.pass_length, self.seed, epoch)
        if len(self.count) == 1:
            return slot + self.first[0]
        row = torch.empty_like(slot)
        begin = 0
        for source, (first, count, taken) in enumerate(zip(self.first, self.count, self.taken, strict=True)):
            of_source = (slot >= begin) & (slot < begin + taken)
            turn = epoch[of_source] * taken + slot[of_source] - begin  # how many rows were taken of it before
            seed = derived_seed(self.seed, Stream.SOURCE, source)
            row[of_source] = first + permute(turn % count, count, seed, turn // count)
            begin += taken
        return row


def order_rows(first: Sequence[int], row_count: int, weights: Sequence[float] | None, seed: int) -> ExampleOrder:
    """The order of a table whose sources begin at the rows `first`; weights: how often to draw each, None: alike."""
    if weights is None or len(first) == 1:
        return ExampleOrder((0,), (row_count,), (row_count,), seed)
    count = [end - start for start, end in zip(first, [*first[1:], row_count], strict=True)]
    if min(count) < 1:
        raise DataError(f"source {count.index(min(count)) + 1} gives no row to train on; give it more text or drop it")
    demand = [weight / rows for weight, rows in zip(weights, count, strict=True)]
    repeats = [share / min(demand) if min(demand) > 0 else math.inf for share in demand]
    if max(repeats) > _MOST_REPEATS:
        most = repeats.index(max(repeats)) + 1
        raise DataError(f"source {most} would be repeated {max(repeats):.0e} times a pass; bring their weights nearer")
    taken = [round(rows * times) for rows, times in zip(count, repeats, strict=True)]
    return ExampleOrder(tuple(first), tuple(count), tuple(taken), seed)
