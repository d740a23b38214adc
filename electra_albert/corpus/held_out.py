"""The held-out split: a hundredth of the tokens, of every source, near-duplicates on one side. 250 bytes a document."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from electra_albert.corpus.near_duplicates import SKETCH_BYTES, join_alike
from electra_albert.corpus.parts import Part
from electra_albert.keyed_random import Stream, bits

HELD_OUT_SHARE = 0.01  # of the groups that are drawn, and of the sentences where none is
LEAST_SHARE, MOST_SHARE = 0.005, 0.02  # of the tokens
LARGEST_SHARE = 0.05  # where no group is small enough for less
FEWEST_DOCUMENTS = 100  # with fewer, documents are too coarse to hold out a hundredth
SIDES = ("train", "validation")


class HeldOutRun(NamedTuple):
    """Tokens start to end of a part, all for one side."""

    part: Part
    side: str
    start: int
    end: int


class _Placed(NamedTuple):
    """A part in the corpus."""

    part: Part
    source: int
    start: int  # tokens before it
    end: int


class _Documents(NamedTuple):
    """All documents of a corpus [D], and their groups [G]."""

    ends: np.ndarray  # [D] int64, in tokens from the corpus's start
    tokens: np.ndarray  # [D]
    source: np.ndarray  # [D]
    group: np.ndarray  # [D] numbers from 0
    draw: np.ndarray  # [G] int64, keyed and uniform in [0, 2**63)


def plan_sides(parts: list[Part], sources: list[int], seed: int) -> tuple[Callable[[], Iterator[HeldOutRun]], str]:
    """A function that yields the runs of tokens of either side in corpus order, and how the sides were chosen.

    sources: that of each part, ascending. There are at least two sentences.
    """
    edges = [*accumulate((part.statistics["written"]["tokens"] for part in parts), initial=0)]
    placed = [_Placed(*one) for one in zip(parts, sources, edges[:-1], edges[1:], strict=True)]
    documents, total = _read_documents(placed, seed), edges[-1]
    held, notice = None, "whole documents, with those most alike kept together"
    reason = f"the corpus has only {len(documents.ends)} documents"
    if len(documents.ends) >= FEWEST_DOCUMENTS:
        held = _draw(documents, _leaves_every_source(documents), total, LARGEST_SHARE * total)
        reason = "its documents are too long, or too many of them alike, to hold out whole ones"
    if held is None:
        held, notice = _last_sentences(placed)
        notice += f", since {reason}"
    drawn_again = 0
    for source in sorted(set(sources)):
        own = [one for one in placed if one.source == source]
        if not _held_tokens(held, own) and sum(one.part.statistics["written"]["sentences"] for one in own) > 1:
            room = LARGEST_SHARE * total - _held_tokens(held, placed)
            elsewhere = np.bincount(documents.group[documents.source != source], minlength=len(documents.draw))
            more = _draw(documents, elsewhere == 0, own[-1].end - own[0].start, room)
            held = np.concatenate([held, _last_sentences(own)[0] if more is None else more])
            held = held[held[:, 0].argsort()]
            drawn_again += 1
    if drawn_again:
        notice += f"; drawn again for {drawn_again} of {sources[-1] + 1} sources, of which nothing was held out"
    share = _held_tokens(held, placed) / total
    if share > LARGEST_SHARE:
        notice += f"; {share:.1%} of the tokens, as they are too few, in too long sentences or too many sources"
    return lambda: _runs(placed, held), notice


def _read_documents(placed: list[_Placed], seed: int) -> _Documents:
    ends = [np.fromfile(one.part.path("document_ends"), "<i8") + one.start for one in placed]
    firsts = [0, *accumulate(map(len, ends))]
    source = np.repeat([one.source for one in placed], np.diff(firsts))
    sketches = np.empty((firsts[-1], SKETCH_BYTES), np.uint8)
    for one, first, end in zip(placed, firsts[:-1], firsts[1:], strict=True):
        sketches[first:end] = np.fromfile(one.part.path("sketches"), np.uint8).reshape(-1, SKETCH_BYTES)
    groups = np.concatenate([np.fromfile(one.part.path("groups"), "<i8") for one in placed])
    joined = join_alike(np.unique(groups, return_inverse=True)[1], sketches)
    key = torch.full((int(joined.max()) + 1,), np.iinfo(np.int64).max)
    key.scatter_reduce_(0, torch.from_numpy(joined).long(), torch.from_numpy(groups), "amin")
    draw = bits(seed, Stream.HELD_OUT, key, torch.zeros_like(key)).numpy()
    all_ends = np.concatenate(ends)
    return _Documents(all_ends, np.diff(all_ends, prepend=0), source, joined, draw)


def _draw(documents: _Documents, allowed: np.ndarray, total: int, room: float) -> np.ndarray | None:
    """Spans of tokens [n, 2] of the documents held out, of groups `allowed` [G]; None if no group is small enough."""
    size = np.bincount(documents.group, documents.tokens, len(documents.draw))
    is_drawn = documents.draw <= int(HELD_OUT_SHARE * (1 << 63))
    order = documents.draw.argsort()
    order = order[allowed[order]]
    for most in (MOST_SHARE * total, LARGEST_SHARE * total):
        is_held = np.zeros(len(documents.draw), bool)
        taken = 0.0
        for group in order.tolist():
            if taken >= LEAST_SHARE * total and not is_drawn[group]:
                break
            if taken + size[group] <= min(most, room):
                is_held[group] = True
                taken += size[group]
        if taken >= LEAST_SHARE * total:
            is_held = is_held[documents.group]
            return np.stack([documents.ends - documents.tokens, documents.ends], axis=1)[is_held]
    return None


def _leaves_every_source(documents: _Documents) -> np.ndarray:
    """Which groups hold at most a small share of each source, bool [G]: a source may be a single document."""
    count = int(documents.source.max()) + 1
    pairs, pair = np.unique(documents.group * count + documents.source, return_inverse=True)
    of_source = np.bincount(documents.source, documents.tokens)[pairs % count]
    leaves = np.ones(len(documents.draw), bool)
    leaves[pairs[np.bincount(pair, documents.tokens) > LARGEST_SHARE * of_source] // count] = False
    return leaves


def _held_tokens(held: np.ndarray, placed: list[_Placed]) -> int:
    """How many tokens of some consecutive parts are held out."""
    return int(np.diff(held.clip(placed[0].start, placed[-1].end)).sum())


def _last_sentences(placed: list[_Placed]) -> tuple[np.ndarray, str]:
    """The span [1, 2] of the last hundredth of sentences, or of tokens if that is far from it; also in words."""
    first, end = placed[0].start, placed[-1].end
    counts = [one.part.statistics["written"]["sentences"] for one in placed]
    held = max(1, round(sum(counts) * HELD_OUT_SHARE))
    after = list(accumulate(reversed(counts), initial=0))[::-1]  # sentences from each part to the end
    at = next(number for number in reversed(range(len(placed))) if after[number] > held)
    cut = placed[at].start + int(_sentence_ends(placed[at])[after[at] - held - 1])
    if not LEAST_SHARE <= (end - cut) / (end - first) <= MOST_SHARE:
        wanted = end - HELD_OUT_SHARE * (end - first)
        at = next(number for number, one in enumerate(placed) if one.end >= wanted)
        ends = _sentence_ends(placed[at]) + placed[at].start
        place = int(np.searchsorted(ends, wanted))
        near = [*ends[max(0, place - 1) : place + 1].tolist(), placed[at].start]
        cut = min((one for one in near if first < one < end), key=lambda found: abs(found - wanted))
        held = after[at] - int(np.searchsorted(ends, cut, side="right"))
    return np.array([[cut, end]]), f"the last {held:,} sentences"


def _sentence_ends(one: _Placed) -> np.ndarray:
    return np.memmap(one.part.path("sentence_ends"), "<i8", "r")


def _runs(placed: list[_Placed], held: np.ndarray) -> Iterator[HeldOutRun]:
    """held: ascending spans of tokens [n, 2]."""
    edges = held.ravel()
    for one in placed:
        inside = edges[(edges > one.start) & (edges < one.end)]
        borders = np.unique([one.start, *inside.tolist(), one.end])
        sides = np.searchsorted(edges, borders[:-1], side="right") % 2
        for side, start, end in zip(sides.tolist(), borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            yield HeldOutRun(one.part, SIDES[side], start - one.start, end - one.start)
