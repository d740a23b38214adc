"""Token streams, and where their training examples begin and end.

A corpus has a stream for each of its parts; no example crosses from one to another, so that parts are packed and read
independently. Packing is fixed. Differs from ELECTRA: its example builder drops tokens beyond the maximum length; here
they start the next example.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from electra_albert.contracts import LOG, CheckpointError
from electra_albert.corpus.parts import run_all
from electra_albert.files import (
    DIGESTS,
    FileDigest,
    HashedFile,
    find_damage,
    read_json,
    replacing,
    write_json,
)
from electra_albert.keyed_random import Stream, bits, uniform

TABLE_VERSION = 2
SHORT_EXAMPLE_RATE = 0.05  # Paper: ELECTRA's example builder
MIN_LENGTH = 8  # tokens of an example, special tokens included
_BLOCK = 1 << 16
CHECKED = "checked.json"  # in a store: when its files were last compared
PARTS_PER_WORKER = 16  # another process starts in the time of so many


class TokenStream(NamedTuple):
    """Arrays of one part: tokens [T] uint16 or uint32; sentence_ends and document_ends int64, both ending in T."""

    tokens: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray


class Split(NamedTuple):
    """The text of one split: a token stream for each part of the corpus that has some."""

    folder: Path  # of the files
    vocab_size: int
    numbers: list[int]  # of the parts, ascending
    parts: list[TokenStream]
    sources: list[int]  # of each part, ascending

    @property
    def token_count(self) -> int:
        """Tokens of all parts."""
        return sum(len(part.tokens) for part in self.parts)


class ExampleTable(NamedTuple):
    """Example i of part p holds the tokens edges[p][i] to edges[p][i + 1] of its stream; edges are int64."""

    edges: list[np.ndarray]
    firsts: np.ndarray  # [parts + 1] the first example of each part, and their number

    @property
    def count(self) -> int:  # type: ignore[override]
        """Examples of all parts."""
        return int(self.firsts[-1])

    def first_of_sources(self, split: Split, source_count: int) -> list[int]:
        """The first example of each source, [source_count]; a source without examples has that of the next one."""
        first_part = np.searchsorted(split.sources, np.arange(source_count))
        return [int(first) for first in self.firsts[first_part]]


def mapped(file: Path, dtype: np.dtype) -> np.ndarray:
    """A file as an array, memory-mapped; unlike np.memmap it needs no open file, of which there may be few."""
    kind = torch.from_numpy(np.zeros(0, dtype)).dtype
    array: np.ndarray = torch.from_file(str(file), size=file.stat().st_size // dtype.itemsize, dtype=kind).numpy()
    return array


def rows_name(max_seq_length: int, seed: int) -> str:
    """The name of the files that hold the edges of a split's examples."""
    return f"rows-{TABLE_VERSION}-{max_seq_length}-{seed}"


def build_table(split: Split, max_seq_length: int, seed: int, num_workers: int = 1) -> ExampleTable:
    """Pack a split into examples, or read them from its folder."""
    name = rows_name(max_seq_length, seed)
    if damage := _table_damage(split, name):
        if (split.folder / f"{name}.json").exists():
            LOG.warning("%s; packing the examples again", damage)
        ends = (part.document_ends for part in split.parts)
        jobs = [(split.folder, number, some, max_seq_length) for number, some in zip(split.numbers, ends, strict=True)]
        written = run_all("packing examples", write_rows, jobs, min(num_workers, len(jobs) // PARTS_PER_WORKER), seed)
        write_json(split.folder / f"{name}.json", dict(written))
        if damage := _table_damage(split, name):
            raise CheckpointError(f"{damage}, right after writing; check the disk, then start again")
    edges = [mapped(split.folder / f"{n:06d}.{name}.bin", np.dtype("<i8")) for n in split.numbers]
    return ExampleTable(edges, np.cumsum([0, *(len(some) - 1 for some in edges)]))


def _table_damage(split: Split, name: str) -> str | None:
    """The damage to the files since they were written, in one line; None if there is none."""
    found = read_json(split.folder / f"{name}.json", DIGESTS)
    if found.keys() != {f"{number:06d}.{name}.bin" for number in split.numbers}:
        return f"{split.folder / name}.json has no size and hash of each part"
    files = {f"{split.folder.name}/{file}": FileDigest(*entry) for file, entry in found.items()}
    return find_damage(split.folder.parent, files, split.folder.parent / CHECKED)


def write_rows(job: tuple[Path, int, np.ndarray, int], seed: int) -> tuple[str, FileDigest]:
    """Write the edges of a part's examples. job: folder, number of the part, its document ends and max_seq_length."""
    folder, number, document_ends, max_seq_length = job
    name = f"{number:06d}.{rows_name(max_seq_length, seed)}.bin"
    with replacing(folder / name) as opened:
        file = HashedFile(opened)
        file.write(np.zeros(1, "<i8").tobytes())
        for ends in _pack(document_ends, max_seq_length, seed, number):
            file.write(np.array(ends, "<i8").tobytes())
        return name, file.finish()


def _pack(ends_in: np.ndarray, max_seq_length: int, seed: int, part: int) -> Iterator[list[int]]:
    """The end of each example, in blocks. An example takes as many tokens as fit next to [CLS] and [SEP]."""
    token_count = int(ends_in[-1])
    borders = (end for first in range(0, len(ends_in), _BLOCK) for end in ends_in[first : first + _BLOCK].tolist())
    border = next(borders)  # first document end after the example's start
    start = 0
    for first_example in count(0, _BLOCK):
        ends: list[int] = []
        for example_length in _example_lengths(first_example, max_seq_length, seed, part):
            end = min(start + example_length - 3, token_count)  # room for [CLS] A [SEP] B [SEP]
            inside = 0
            while border < end:
                inside += 1
                if inside > 1:  # the first border replaces the segment cut, each further one needs a [SEP]
                    end = min(end, max(border, start + example_length - 2 - inside))
                border = next(borders) if border < end else border
            ends.append(end)
            start = end
            if start == token_count:
                yield ends
                return
            border = next(borders) if border == start else border
        yield ends


def _example_lengths(first_example: int, max_seq_length: int, seed: int, part: int) -> list[int]:
    """The maximum lengths of the next examples: mostly `max_seq_length`, some shorter."""
    index = torch.arange(first_example, first_example + _BLOCK)
    draw = torch.full_like(index, 2 * part)
    is_short = uniform(bits(seed, Stream.SHORT_EXAMPLE, index, draw)) < SHORT_EXAMPLE_RATE
    short = bits(seed, Stream.SHORT_EXAMPLE, index, draw + 1) % (max_seq_length - MIN_LENGTH + 1)
    return torch.where(is_short, MIN_LENGTH + short, max_seq_length).tolist()


def padding_share(split: Split, table: ExampleTable, max_seq_length: int) -> float:
    """The share of padding in all positions of all examples; of many, in the first ones of about a hundred parts."""
    padding, count, every = 0, 0, 1 + len(split.parts) // 100
    for stream, edges in zip(split.parts[::every], table.edges[::every], strict=True):
        some = np.asarray(edges[: _BLOCK + 1])
        count += len(some) - 1
        sentences, borders = (inside(ends, some[:-1], some[1:])[1] for ends in stream[1:])
        padding += int((max_seq_length - 2 - np.diff(some) - np.maximum(borders, sentences > 0)).sum())
    return padding / (count * max_seq_length)


def inside(ends: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the first of `ends` strictly between start and end, and how many there are, both [B]."""
    first = np.searchsorted(ends, start, side="right")
    return first, np.maximum(np.searchsorted(ends, end, side="left") - first, 0)
