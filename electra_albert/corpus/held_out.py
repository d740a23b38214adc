"""The held-out validation split: 1 % of the tokens, from every source, with near-duplicates kept together."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from electra_albert.corpus.near_duplicates import SIGNATURE_BYTES, join_near_duplicates
from electra_albert.corpus.parts import Part
from electra_albert.keyed_random import Stream, bits

HELD_OUT_SHARE = 0.01  # of the clusters; of the sentences if no cluster can be drawn
MIN_SHARE, USUAL_MAX_SHARE = 0.005, 0.02  # of the tokens
MAX_SHARE = 0.05  # the limit if no clusters fit USUAL_MAX_SHARE, and for a cluster in each source
MIN_DOCUMENTS = 100  # with fewer, one document is too large a share
SPLITS = ("train", "validation")


class SplitSpan(NamedTuple):
    """Tokens start to end of a part, all in one split."""

    part: Part
    split: str
    start: int
    end: int


class _PlacedPart(NamedTuple):
    """A part and its position in the corpus, in tokens."""

    part: Part
    source: int
    start: int
    end: int


class _Documents(NamedTuple):
    """All documents of a corpus [D], about 250 bytes each, and their clusters of near-duplicates [G]."""

    ends: np.ndarray  # [D] int64, in tokens from the corpus's start
    tokens: np.ndarray  # [D]
    source: np.ndarray  # [D]
    cluster: np.ndarray  # [D] int64, from 0
    draw: np.ndarray  # [G] int64, keyed and uniform in [0, 2**63)


def plan_splits(parts: list[Part], sources: list[int], seed: int) -> tuple[Callable[[], Iterator[SplitSpan]], str]:
    """A function that yields the spans of both splits in corpus order, and a description of the split.

    sources: the source of each part, ascending. The corpus holds at least two sentences.
    """
    edges = [*accumulate((part.statistics["written"]["tokens"] for part in parts), initial=0)]
    placed = [_PlacedPart(*one) for one in zip(parts, sources, edges[:-1], edges[1:], strict=True)]
    documents, total = _read_documents(placed, seed), edges[-1]
    held, notice = None, "whole documents, near-duplicates kept together"
    reason = f"the corpus has only {len(documents.ends)} documents"
    if len(documents.ends) >= MIN_DOCUMENTS:
        held = _draw(documents, _is_small_in_every_source(documents), total, MAX_SHARE * total)
        reason = "its documents are too long, or too many are near-duplicates, to hold out whole documents"
    if held is None:
        held, notice = _last_sentences(placed)
        notice += f", because {reason}"
    drawn_again = 0
    for source in sorted(set(sources)):
        own = [one for one in placed if one.source == source]
        if not _held_tokens(held, own) and sum(one.part.statistics["written"]["sentences"] for one in own) > 1:
            room = MAX_SHARE * total - _held_tokens(held, placed)
            elsewhere = np.bincount(documents.cluster[documents.source != source], minlength=len(documents.draw))
            more = _draw(documents, elsewhere == 0, own[-1].end - own[0].start, room)
            held = np.concatenate([held, _last_sentences(own)[0] if more is None else more])
            held = held[held[:, 0].argsort()]
            drawn_again += 1
    if drawn_again:
        notice += f"; drawn again for {drawn_again} of {sources[-1] + 1} sources, from which nothing was held out"
    share = _held_tokens(held, placed) / total
    if share > MAX_SHARE:
        notice += f"; {share:.1%} of the tokens: the corpus is small, or has very long sentences or many sources"
    return lambda: _spans(placed, held), notice


def _read_documents(placed: list[_PlacedPart], seed: int) -> _Documents:
    ends = [np.fromfile(one.part.path("document_ends"), "<i8") + one.start for one in placed]
    firsts = [0, *accumulate(map(len, ends))]
    source = np.repeat([one.source for one in placed], np.diff(firsts))
    minhashes = np.empty((firsts[-1], SIGNATURE_BYTES), np.uint8)
    for one, first, end in zip(placed, firsts[:-1], firsts[1:], strict=True):
        minhashes[first:end] = np.fromfile(one.part.path("sketches"), np.uint8).reshape(-1, SIGNATURE_BYTES)
    groups = np.concatenate([np.fromfile(one.part.path("groups"), "<i8") for one in placed])
    joined = join_near_duplicates(np.unique(groups, return_inverse=True)[1], minhashes)
    key = torch.full((int(joined.max()) + 1,), np.iinfo(np.int64).max)
    key.scatter_reduce_(0, torch.from_numpy(joined).long(), torch.from_numpy(groups), "amin")
    draw = bits(seed, Stream.HELD_OUT, key, torch.zeros_like(key)).numpy()
    all_ends = np.concatenate(ends)
    return _Documents(all_ends, np.diff(all_ends, prepend=0), source, joined, draw)


def _draw(documents: _Documents, allowed: np.ndarray, total: int, room: float) -> np.ndarray | None:
    """Spans of tokens [n, 2] of the held-out documents, from `allowed` clusters [G]; None if none is small enough."""
    size = np.bincount(documents.cluster, documents.tokens, len(documents.draw))
    is_drawn = documents.draw <= int(HELD_OUT_SHARE * (1 << 63))
    order = documents.draw.argsort()
    order = order[allowed[order]]
    for max_tokens in (USUAL_MAX_SHARE * total, MAX_SHARE * total):
        is_held = np.zeros(len(documents.draw), bool)
        taken = 0.0
        for cluster in order.tolist():
            if taken >= MIN_SHARE * total and not is_drawn[cluster]:
                break
            if taken + size[cluster] <= min(max_tokens, room):
                is_held[cluster] = True
                taken += size[cluster]
        if taken >= MIN_SHARE * total:
            spans: np.ndarray = np.stack([documents.ends - documents.tokens, documents.ends], axis=1)
            return spans.compress(is_held[documents.cluster], axis=0)
    return None


def _is_small_in_every_source(documents: _Documents) -> np.ndarray:
    """Whether each cluster holds at most MAX_SHARE of every source, bool [G]; a source may be one document."""
    count = int(documents.source.max()) + 1
    pairs, pair = np.unique(documents.cluster * count + documents.source, return_inverse=True)
    source_tokens = np.bincount(documents.source, documents.tokens)[pairs % count]
    is_small = np.ones(len(documents.draw), bool)
    is_small[pairs[np.bincount(pair, documents.tokens) > MAX_SHARE * source_tokens] // count] = False
    return is_small


def _held_tokens(held: np.ndarray, placed: list[_PlacedPart]) -> int:
    """The number of held-out tokens in consecutive parts."""
    return int(np.diff(held.clip(placed[0].start, placed[-1].end)).sum())


def _last_sentences(placed: list[_PlacedPart]) -> tuple[np.ndarray, str]:
    """The span [1, 2] of the last 1 % of the sentences, or of the tokens if that differs much; and its description."""
    first, end = placed[0].start, placed[-1].end
    counts = [one.part.statistics["written"]["sentences"] for one in placed]
    held = max(1, round(sum(counts) * HELD_OUT_SHARE))
    after = list(accumulate(reversed(counts), initial=0))[::-1]  # [parts + 1] sentences from each part to the end
    at = next(number for number in reversed(range(len(placed))) if after[number] > held)
    cut = placed[at].start + int(_sentence_ends(placed[at])[after[at] - held - 1])
    if not MIN_SHARE <= (end - cut) / (end - first) <= USUAL_MAX_SHARE:
        wanted = end - HELD_OUT_SHARE * (end - first)
        at = next(number for number, one in enumerate(placed) if one.end >= wanted)
        ends = _sentence_ends(placed[at]) + placed[at].start
        nearest = int(np.searchsorted(ends, wanted))
        near = [*ends[max(0, nearest - 1) : nearest + 1].tolist(), placed[at].start]
        cut = min((one for one in near if first < one < end), key=lambda found: abs(found - wanted))
        held = after[at] - int(np.searchsorted(ends, cut, side="right"))
    return np.array([[cut, end]]), f"the last {held:,} sentences"


def _sentence_ends(one: _PlacedPart) -> np.ndarray:
    return np.memmap(one.part.path("sentence_ends"), "<i8", "r")


def _spans(placed: list[_PlacedPart], held: np.ndarray) -> Iterator[SplitSpan]:
    """Cut the parts at the ends of the held-out spans `held` [n, 2], ascending."""
    edges = held.ravel()
    for one in placed:
        inside = edges[(edges > one.start) & (edges < one.end)]
        borders = np.unique([one.start, *inside.tolist(), one.end])
        splits = np.searchsorted(edges, borders[:-1], side="right") % 2
        for split, start, end in zip(splits.tolist(), borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            yield SplitSpan(one.part, SPLITS[split], start - one.start, end - one.start)
