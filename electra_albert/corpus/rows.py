"""Token streams, and where their training examples begin and end.

A corpus has a stream for each of its parts; no example crosses from one to another, so that parts
are packed and read independently. Packing is fixed. Differs from ELECTRA: its example builder drops
tokens beyond the maximum length; here they start the next example.
"""

from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from electra_albert.contracts import LOG, CheckpointError
from electra_albert.corpus.parts import run_all
from electra_albert.files import (
    FileDigest,
    HashedFile,
    find_damage,
    read_manifest,
    replacing,
    write_manifest,
)
from electra_albert.keyed_random import Stream, bits, uniform

TABLE_VERSION = 2
SHORT_EXAMPLE_RATE = 0.05  # Paper: ELECTRA's example builder
MIN_LENGTH = 8  # tokens of an example, special tokens included
_BLOCK = 1 << 16
CHECKED = "checked.json"  # in a store: when its files were last compared


class TokenStream(NamedTuple):
    """Arrays of one part; the ends are int64 and both end in T."""

    tokens: np.ndarray  # [T] uint16 or uint32
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
    """Example i of part p holds the tokens edges[p][i] to edges[p][i + 1] of its stream."""

    edges: list[np.ndarray]  # int64
    firsts: np.ndarray  # [parts + 1] the first example of each part, and their number

    @property
    def count(self) -> int:  # type: ignore[override]
        """Examples of all parts."""
        return int(self.firsts[-1])

    def first_of_sources(self, split: Split, source_count: int) -> list[int]:
        """The first example of each source; a source without any has that of the next one."""
        first_part = np.searchsorted(split.sources, np.arange(source_count))
        return list(map(int, self.firsts[first_part]))


def mapped(file: Path, dtype: np.dtype) -> np.ndarray:
    """A file as a memory-mapped array; unlike np.memmap it keeps no file open."""
    kind = torch.from_numpy(np.zeros(0, dtype)).dtype
    size = file.stat().st_size // dtype.itemsize
    return torch.from_file(str(file), size=size, dtype=kind).numpy()


def rows_name(max_seq_length: int, seed: int) -> str:
    """The name of the files that hold the edges of a split's examples."""
    return f"rows-{TABLE_VERSION}-{max_seq_length}-{seed}"


def build_table(split: Split, max_seq_length: int, seed: int, num_workers: int = 1) -> ExampleTable:
    """Pack a split into examples, or read them from its folder."""
    name = rows_name(max_seq_length, seed)
    damage = _table_damage(split, name)
    if damage:
        file = split.folder / f"{name}.json"
        if file.exists():
            LOG.warning("%s; packing the examples again", damage)
        jobs = [
            (split.folder, number, stream.document_ends, max_seq_length)
            for number, stream in zip(split.numbers, split.parts, strict=True)
        ]
        digests = run_all("packing examples", write_rows, jobs, num_workers, seed, is_quick=True)
        write_manifest(file, dict(sorted(digests)))
        damage = _table_damage(split, name)
        if damage:
            raise CheckpointError(f"{damage}, right after writing; check the disk")
    files = (split.folder / f"{number:06d}.{name}.bin" for number in split.numbers)
    edges = [mapped(file, np.dtype("<i8")) for file in files]
    example_counts = [len(ends) - 1 for ends in edges]
    return ExampleTable(edges, np.cumsum([0, *example_counts]))


def _table_damage(split: Split, name: str) -> str | None:
    """The damage to the files since they were written, in one line; None if there is none."""
    record = read_manifest(split.folder / f"{name}.json").get("files", {})
    if record.keys() != {f"{number:06d}.{name}.bin" for number in split.numbers}:
        return f"{split.folder / name}.json has no size and hash of each part"
    store = split.folder.parent
    files = {f"{split.folder.name}/{file}": digest for file, digest in record.items()}
    return find_damage(store, files, store / CHECKED)


def write_rows(job: tuple[Path, int, np.ndarray, int], seed: int) -> tuple[str, FileDigest]:
    """Write the edges of a part's examples.

    job: folder, number of the part, its document ends and max_seq_length.
    """
    folder, number, document_ends, max_seq_length = job
    name = f"{number:06d}.{rows_name(max_seq_length, seed)}.bin"
    with replacing(folder / name) as opened:
        file = HashedFile(opened)
        blocks = _pack(document_ends, max_seq_length, seed, number)
        for edges in chain([[0]], blocks):
            file.write(np.array(edges, "<i8").tobytes())
        return name, file.finish()


def _pack(
    document_ends: np.ndarray, max_seq_length: int, seed: int, part: int
) -> Iterator[list[int]]:
    """The end of each example, in blocks. An example takes as many tokens as fit.

    Documents of 4 and 9 tokens, and examples of at most 10 positions:
        [CLS] a a a a [SEP] b b b [SEP]  ends at 7
        [CLS] b b b b [SEP] b b [SEP]    ends at 13; without a document's end inside, there is room
                                         for a [SEP] at the end of a sentence
    """
    token_count = int(document_ends[-1])
    blocks = np.split(document_ends, range(_BLOCK, len(document_ends), _BLOCK))
    borders = chain.from_iterable(block.tolist() for block in blocks)
    border = next(borders)  # first document end after the example's start
    start = 0
    for first_example in count(0, _BLOCK):
        ends: list[int] = []
        for length in _example_lengths(first_example, max_seq_length, seed, part):
            end = min(start + length - 3, token_count)  # room for [CLS] A [SEP] B [SEP]
            borders_inside = 0
            while border < end:
                borders_inside += 1
                if borders_inside > 1:  # the first replaces the segment cut, others need a [SEP]
                    room = length - 2 - borders_inside
                    end = min(end, max(border, start + room))
                if border < end:
                    border = next(borders)
            ends.append(end)
            start = end
            if start == token_count:
                yield ends
                return
            if border == start:
                border = next(borders)
        yield ends


def _example_lengths(first_example: int, max_seq_length: int, seed: int, part: int) -> list[int]:
    """The maximum lengths of the next examples: mostly `max_seq_length`, some shorter."""
    index = torch.arange(first_example, first_example + _BLOCK)
    draw = torch.full_like(index, 2 * part)
    is_short = uniform(bits(seed, Stream.SHORT_EXAMPLE, index, draw)) < SHORT_EXAMPLE_RATE
    choices = max_seq_length - MIN_LENGTH + 1
    extra = bits(seed, Stream.SHORT_EXAMPLE, index, draw + 1) % choices
    lengths = torch.where(is_short, MIN_LENGTH + extra, max_seq_length)
    return lengths.tolist()


def padding_share(split: Split, table: ExampleTable, max_seq_length: int) -> float:
    """The share of padding in all positions, in the first examples of about a hundred parts."""
    padding = 0
    example_count = 0
    step = 1 + len(split.parts) // 100
    for stream, edges in zip(split.parts[::step], table.edges[::step], strict=True):
        edges = edges[: _BLOCK + 1]
        start = edges[:-1]
        end = edges[1:]
        _, sentences = inside(stream.sentence_ends, start, end)
        _, borders = inside(stream.document_ends, start, end)
        separators = np.maximum(borders, sentences > 0)  # inside the example
        unused = max_seq_length - 2 - (end - start) - separators
        padding += int(unused.sum())
        example_count += len(start)
    return padding / (example_count * max_seq_length)


def inside(ends: np.ndarray, start: ArrayLike, end: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Index of the first of `ends` strictly between start and end, and their number, both [B]."""
    first = np.searchsorted(ends, start, side="right")
    last = np.searchsorted(ends, end, side="left")
    return first, np.maximum(last - first, 0)
