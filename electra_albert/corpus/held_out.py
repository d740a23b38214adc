"""The held-out validation split: 1 % of the tokens, from every source, near-duplicates together.

It is chosen from all documents, or from MAX_DOCUMENTS drawn by their content, so that memory does
not grow with the corpus. Near-duplicates of held-out text among the other documents are then left
out of both splits.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save

from electra_albert.corpus.near_duplicates import (
    SIGNATURE_BYTES,
    find_near_duplicates,
    join_near_duplicates,
)
from electra_albert.corpus.parts import Part
from electra_albert.files import record_digests, recorded_damage, replacing
from electra_albert.keyed_random import Stream, bits

HELD_OUT_SHARE = 0.01  # of the clusters; of the sentences if no cluster can be drawn
MIN_SHARE = 0.005  # of the tokens
USUAL_MAX_SHARE = 0.02
MAX_SHARE = 0.05  # the limit if no clusters fit USUAL_MAX_SHARE, and for a cluster in each source
MAX_TOKENS = 10_000_000  # held out at most, from more than half a billion
MAX_DOCUMENTS = 1 << 18  # from which held-out ones are chosen, 250 bytes of memory each
MIN_DOCUMENTS = 100  # with fewer, one document is too large a share
SPLITS = ("train", "validation")
_DRAWS = 1 << 63  # draws are uniform from 0 up to it


class HeldOut(NamedTuple):
    """The held-out text of a corpus; positions are in tokens from the corpus's start."""

    edges: np.ndarray  # [parts + 1] int64, where the parts start and end
    spans: np.ndarray  # [n, 2] int64, ascending
    # Signatures of the held-out documents if others can have near-duplicates of them, else empty.
    keys: np.ndarray  # [H] int64
    minhashes: np.ndarray  # [H, SIGNATURE_BYTES] uint8
    notice: np.ndarray  # description of the split, in UTF-8

    def save(self, file: Path) -> None:
        """Write it for `load`, which any process of a preparation may call."""
        with replacing(file) as opened:
            opened.write(save(self._asdict()))
        record_digests(file.parent, file.name)

    @staticmethod
    def load(file: Path) -> "HeldOut | None":
        """The held-out text that `save` wrote; None if it is missing or damaged."""
        if not file.is_file() or recorded_damage(file.parent, file.name):
            return None
        return HeldOut(**load_file(file))

    def split(self, part: Part) -> dict[str, np.ndarray]:
        """Spans [n, 2] of a part, in tokens from its start, of each of SPLITS.

        "near_duplicates" are left out of both. Of a part of 90 tokens from the corpus's token 200:
            self.spans         [[150, 210], [250, 260], [300, 320]]
            "validation"       [[0, 10], [50, 60]]
            "near_duplicates"  [[70, 75]]
            "train"            [[10, 50], [60, 70], [75, 90]]
        """
        start, end = self.edges[part.number : part.number + 2].tolist()
        held = _without_empty(self.spans.clip(start, end) - start)
        left_out = held[:0]
        if len(self.keys):
            spans = _document_spans(part)
            is_near = find_near_duplicates(
                _groups(part), _sketches(part), self.keys, self.minhashes
            )
            left_out = spans[is_near & ~_is_held(spans, held)]
        outside = np.sort(np.concatenate([held, left_out]), axis=0)
        edges = np.concatenate([[0], outside.ravel(), [end - start]])
        train = _without_empty(edges.reshape(-1, 2))
        return {"train": train, "validation": held, "near_duplicates": left_out}


def _without_empty(spans: np.ndarray) -> np.ndarray:
    starts, ends = spans.T
    return spans.compress(ends > starts, axis=0)


class _PlacedPart(NamedTuple):
    """A part and its position in the corpus, in tokens."""

    part: Part
    source: int
    start: int
    end: int


class _Documents(NamedTuple):
    """Documents of a corpus [D] and their clusters of near-duplicates [G]."""

    spans: np.ndarray  # [D, 2] int64, in tokens from the corpus's start
    tokens: np.ndarray  # [D]
    source: np.ndarray  # [D]
    keys: np.ndarray  # [D] int64
    minhashes: np.ndarray  # [D, SIGNATURE_BYTES]
    cluster: np.ndarray  # [D] int64, from 0
    draw: np.ndarray  # [G] int64, keyed and uniform in [0, 2**63)


def choose_held_out(parts: Sequence[Part], sources: Sequence[int], seed: int) -> HeldOut:
    """Choose the held-out text of a corpus of two or more sentences.

    sources: the source of each part, ascending.
    """
    edges = [0, *accumulate(part.statistics["written"]["tokens"] for part in parts)]
    placed = list(map(_PlacedPart, parts, sources, edges, edges[1:]))
    documents = _read_documents(placed, seed)
    count = sum(part.statistics["written"]["documents"] for part in parts)
    total = edges[-1]
    limit = MAX_SHARE * total
    held = None
    notice = "whole documents, near-duplicates kept together"
    reason = f"the corpus has only {count} documents"
    if count >= MIN_DOCUMENTS:
        held = _draw(documents, _is_small_in_every_source(documents), total, limit)
        reason = (
            "its documents are too long, or too many are near-duplicates, "
            "to hold out whole documents"
        )
    if held is None:
        held, notice = _last_sentences(placed)
        notice += f", because {reason}"
    missing = 0
    for source in sorted(set(sources)):
        in_source = [part for part in placed if part.source == source]
        sentence_count = sum(map(_sentence_count, in_source))
        if sentence_count > 1 and not _held_tokens(held, in_source):
            room = limit - _held_tokens(held, placed)
            held = np.sort(np.append(held, _draw_from(documents, in_source, room), axis=0), axis=0)
            missing += 1
    if missing:
        notice += f"; drawn again for {missing} of {sources[-1] + 1} sources"
        notice += ", from which nothing was held out"
    share = _held_tokens(held, placed) / total
    if share > MAX_SHARE:
        notice += f"; {share:.1%} of the tokens: "
        notice += "the corpus is small, or has very long sentences or many sources"
    is_held = np.zeros(count, bool)
    if count > len(documents.keys):  # not all near-duplicates are known
        is_held = _is_held(documents.spans, held)
    description = np.frombuffer(notice.encode(), np.uint8)
    return HeldOut(
        np.array(edges), held, documents.keys[is_held], documents.minhashes[is_held], description
    )


def _draw_from(documents: _Documents, placed: list[_PlacedPart], room: float) -> np.ndarray:
    """Spans of documents of one source, without duplicates in others, or of its last sentences."""
    is_allowed = np.ones(len(documents.draw), bool)
    is_elsewhere = documents.source != placed[0].source
    is_allowed[documents.cluster[is_elsewhere]] = False
    total = placed[-1].end - placed[0].start
    spans = _draw(documents, is_allowed, total, room)
    if spans is None:
        spans, _ = _last_sentences(placed)
    return spans


def _read_documents(placed: list[_PlacedPart], seed: int) -> _Documents:
    """All documents, or as many of each source as MAX_DOCUMENTS allows, equal texts together."""
    counts = np.bincount(
        [part.source for part in placed],
        [part.part.statistics["written"]["documents"] for part in placed],
    )
    limit = MAX_DOCUMENTS
    if counts.sum() > MAX_DOCUMENTS:
        limit //= int(np.count_nonzero(counts))
    columns = []
    for part, source, start, _ in placed:
        keys = _groups(part)
        is_chosen = np.ones(len(keys), bool)
        if counts[source] > limit:
            share = limit / counts[source]
            is_chosen = _draws(seed, keys) < share * _DRAWS
        spans = _document_spans(part) + start
        arrays = (spans, np.full_like(keys, source), keys, _sketches(part))
        columns.append([array[is_chosen] for array in arrays])
    spans, sources, keys, minhashes = map(np.concatenate, zip(*columns, strict=True))
    _, text_numbers = np.unique(keys, return_inverse=True)  # the same for equal texts
    cluster = join_near_duplicates(text_numbers, minhashes)
    cluster_count = int(cluster.max(initial=-1)) + 1
    cluster_keys = np.full(cluster_count, _DRAWS - 1)
    np.minimum.at(cluster_keys, cluster, keys)
    draws = _draws(seed, cluster_keys)
    return _Documents(spans, np.diff(spans).ravel(), sources, keys, minhashes, cluster, draws)


def _draws(seed: int, keys: np.ndarray) -> np.ndarray:
    """Uniform in [0, 2**63), int64, for keys of documents."""
    key = torch.from_numpy(keys)
    return bits(seed, Stream.HELD_OUT, key, torch.zeros_like(key)).numpy()


def _groups(part: Part) -> np.ndarray:
    return np.fromfile(part.path("groups"), "<i8")


def _sketches(part: Part) -> np.ndarray:
    file = part.path("sketches")
    if not file.stat().st_size:
        return np.zeros((0, SIGNATURE_BYTES), np.uint8)
    return np.memmap(file, np.uint8, "r").reshape(-1, SIGNATURE_BYTES)


def _document_spans(part: Part) -> np.ndarray:
    """The start and end of each document, [documents, 2] int64."""
    ends = np.fromfile(part.path("document_ends"), "<i8")
    starts = np.append(0, ends)[:-1]
    return np.stack([starts, ends], axis=1)


def _is_held(spans: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Whether the end of each span is in one of the ascending spans `held`."""
    edges_before = np.searchsorted(held.ravel(), spans[:, 1])
    return np.asarray(edges_before % 2 == 1)


def _draw(
    documents: _Documents, is_allowed: np.ndarray, total: int, room: float
) -> np.ndarray | None:
    """Spans [n, 2] of the held-out documents, from allowed clusters [G]; None if too few fit.

    Clusters are taken by ascending draw, until enough tokens are held out (here 40):
        draw     .001  .004  .012  .02  .03
        tokens     30   900     5   20    7
        held      yes    no   yes  yes   no      900 do not fit; at .03 there are enough
    All with a draw up to HELD_OUT_SHARE are taken if they fit.
    """
    size = np.bincount(documents.cluster, documents.tokens, len(documents.draw))
    is_drawn = documents.draw <= int(HELD_OUT_SHARE * _DRAWS)
    order = documents.draw.argsort()
    order = order[is_allowed[order]]
    enough = min(MIN_SHARE * total, MAX_TOKENS / 2)
    usual_limit = min(USUAL_MAX_SHARE * total, MAX_TOKENS)
    for limit in (usual_limit, MAX_SHARE * total):
        max_tokens = min(limit, room)
        is_held = np.zeros(len(documents.draw), bool)
        tokens = 0
        for cluster in order.tolist():
            if tokens >= enough and not is_drawn[cluster]:
                break
            if tokens + size[cluster] <= max_tokens:
                is_held[cluster] = True
                tokens += size[cluster]
        if tokens >= enough:
            return documents.spans.compress(is_held[documents.cluster], axis=0)
    return None


def _is_small_in_every_source(documents: _Documents) -> np.ndarray:
    """Whether each cluster holds at most MAX_SHARE of every source, bool [G]."""
    from scipy.sparse import coo_array

    source_tokens = np.bincount(documents.source, documents.tokens)
    tokens = coo_array((documents.tokens, (documents.cluster, documents.source)))  # [G, sources]
    tokens.sum_duplicates()
    cluster, source = tokens.coords
    is_large = tokens.data > MAX_SHARE * source_tokens[source]
    is_small = np.ones(len(documents.draw), bool)
    is_small[cluster[is_large]] = False
    return is_small


def _held_tokens(held: np.ndarray, placed: list[_PlacedPart]) -> int:
    """The number of held-out tokens in consecutive parts."""
    spans = held.clip(placed[0].start, placed[-1].end)
    return int(np.diff(spans).sum())


def _last_sentences(placed: list[_PlacedPart]) -> tuple[np.ndarray, str]:
    """The span [1, 2] of the last 1 % of the sentences, and its description.

    Or of the tokens if that differs much.
    """
    start = placed[0].start
    end = placed[-1].end
    before = [0, *accumulate(map(_sentence_count, placed))]  # [parts + 1] sentences before a part
    sentence_count = before[-1]
    train = sentence_count - max(1, round(sentence_count * HELD_OUT_SHARE))  # sentences
    position = bisect_left(before, train) - 1
    ends = _sentence_ends(placed[position])
    cut = placed[position].start + int(ends[train - before[position] - 1])
    share = (end - cut) / (end - start)
    is_usual = MIN_SHARE <= share <= USUAL_MAX_SHARE
    if not is_usual or end - cut > MAX_TOKENS:
        target = end - min(HELD_OUT_SHARE * (end - start), MAX_TOKENS)
        position = bisect_left([part.end for part in placed], target)
        ends = _sentence_ends(placed[position]) + placed[position].start
        following = int(np.searchsorted(ends, target))
        near = ends[max(0, following - 1) : following + 1].tolist()
        near.append(placed[position].start)
        inside = [edge for edge in near if start < edge < end]
        cut = min(inside, key=lambda edge: abs(edge - target))
        train = before[position] + int(np.searchsorted(ends, cut, side="right"))
    return np.array([[cut, end]]), f"the last {sentence_count - train:,} sentences"


def _sentence_count(placed: _PlacedPart) -> int:
    return int(placed.part.statistics["written"]["sentences"])


def _sentence_ends(placed: _PlacedPart) -> np.ndarray:
    return np.memmap(placed.part.path("sentence_ends"), "<i8", "r")
