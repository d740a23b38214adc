"""Trial of one-sentence examples: any command of electra-albert with a share of text in them.

    python -m experiments.one_sentence SHARE pretrain ...

SHARE of the tokens, in blocks of 32 packed examples, is in examples of one sentence each: with .018
8 % of the examples are, with .14 44 %. A sentence longer than an example stays in its pieces.
"""

import sys
from functools import partial

import numpy as np

from electra_albert.cli import run
from electra_albert.corpus import prepare, rows
from electra_albert.corpus.rows import ExampleTable, Split

_BLOCK = 32
_SEED = 17
_build_packed = rows.build_table


def build_table(
    share: float, split: Split, max_seq_length: int, seed: int, num_workers: int = 1
) -> ExampleTable:
    """The packed examples of a split, those of some blocks of `train` as single sentences."""
    table = _build_packed(split, max_seq_length, seed, num_workers)
    if split.folder.name != "train":
        return table
    generator = np.random.default_rng(_SEED)
    edges_of_parts = []
    for stream, packed in zip(split.parts, table.edges, strict=True):
        block = np.arange(len(packed)) // _BLOCK
        is_chosen = generator.random(len(packed) // _BLOCK + 1) < share  # of each block
        is_kept = ~is_chosen[block]
        is_kept[::_BLOCK] = True  # the borders of blocks
        is_kept[-1] = True
        ends = stream.sentence_ends
        example = np.searchsorted(packed, ends, side="left") - 1  # in which each sentence ends
        edges = np.union1d(packed[is_kept], ends[is_chosen[example.clip(0) // _BLOCK]])
        pieces = [edges]
        for first in np.flatnonzero(np.diff(edges) > max_seq_length - 3):
            is_inside = (packed > edges[first]) & (packed < edges[first + 1])
            pieces.append(packed[is_inside])
        edges_of_parts.append(np.unique(np.concatenate(pieces)))
    counts = [len(edges) - 1 for edges in edges_of_parts]
    return ExampleTable(edges_of_parts, np.cumsum([0, *counts]))


if __name__ == "__main__":
    vars(prepare)["build_table"] = partial(build_table, float(sys.argv[1]))
    raise SystemExit(run(sys.argv[2:]))
