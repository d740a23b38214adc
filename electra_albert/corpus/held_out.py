"""Which documents are held out: a hundredth of them, chosen by key, with those most alike kept together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from electra_albert.corpus.parts import Part

HELD_OUT_SHARE = 0.01
FEWEST_DOCUMENTS = 100  # with fewer, documents are too coarse to hold out a hundredth
SIDES = ("train", "validation")


class Run(NamedTuple):
    """Tokens start to end of a part, all for one side."""

    part: Part
    side: str
    start: int
    end: int


def plan_sides(parts: list[Part], written: Counter[str], seed: int) -> tuple[Callable[[], Iterator[Run]], str]:
    """What gives the runs of tokens of either side in corpus order, and how the sides were chosen, in words.

    written: documents and sentences of all parts. Documents of one group are kept on one side.
    """
    if written["documents"] >= FEWEST_DOCUMENTS:
        by_group = partial(_runs_by_group, parts, seed, _group_threshold(parts, seed))
        if {run.side for run in by_group()} == set(SIDES):
            return by_group, "whole documents, with those most alike kept together"
        reason = "all its documents are alike"
    else:
        reason = f"the corpus has only {written['documents']} documents"
    held = max(1, round(written["sentences"] * HELD_OUT_SHARE))
    by_sentence = partial(_last_sentences, parts, written["sentences"] - held)
    return by_sentence, f"the last {held} sentences, since {reason}"


def _group_bits(part: Part, seed: int) -> np.ndarray:
    """Keyed integers in [0, 2**63), one a document, equal for documents of one group."""
    import torch

    from electra_albert.keyed_random import Stream, bits

    groups = torch.from_numpy(np.fromfile(part.path("groups"), "<i8"))
    return bits(seed, Stream.HELD_OUT, groups, torch.zeros_like(groups)).numpy()


def _group_threshold(parts: list[Part], seed: int) -> int:
    """Groups with bits up to it are held out: a hundredth of all, at least the one with the lowest bits."""
    lowest = min(int(found.min()) for part in parts if len(found := _group_bits(part, seed)))
    return max(lowest, int(HELD_OUT_SHARE * (1 << 63)))


def _runs_by_group(parts: list[Part], seed: int, threshold: int) -> Iterator[Run]:
    for part in parts:
        held = _group_bits(part, seed) <= threshold
        ends = np.fromfile(part.path("document_ends"), "<i8")
        last = np.flatnonzero(np.append(held[1:] != held[:-1], len(held) > 0))  # the last document of each run
        start = 0
        for document in last[: len(held)].tolist():
            yield Run(part, SIDES[int(held[document])], start, int(ends[document]))
            start = int(ends[document])


def _last_sentences(parts: list[Part], train_sentences: int) -> Iterator[Run]:
    left = train_sentences
    for part in parts:
        sentences, tokens = part.receipt["written"]["sentences"], part.receipt["written"]["tokens"]
        here = min(left, sentences)
        left -= here
        cut = int(np.fromfile(part.path("sentence_ends"), "<i8", 1, offset=8 * (here - 1))[0]) if here else 0
        if cut:
            yield Run(part, "train", 0, cut)
        if cut < tokens:
            yield Run(part, "validation", cut, tokens)
