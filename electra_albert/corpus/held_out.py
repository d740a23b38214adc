"""The held-out validation split: 1 % of the tokens, from every source, with near-duplicates kept together.

It is chosen from all documents, or from MAX_DOCUMENTS drawn by their content, so that memory does not grow with the
corpus. Near-duplicates of held-out text among the other documents are then left out of both splits.
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save

from electra_albert.corpus.near_duplicates import SIGNATURE_BYTES, find_near_duplicates, join_near_duplicates
from electra_albert.corpus.parts import Part
from electra_albert.files import record_digests, recorded_damage, replacing
from electra_albert.keyed_random import Stream, bits

HELD_OUT_SHARE = 0.01  # of the clusters; of the sentences if no cluster can be drawn
MIN_SHARE, USUAL_MAX_SHARE = 0.005, 0.02  # of the tokens
MAX_TOKENS = 10_000_000  # held out at most, from more than half a billion
MAX_DOCUMENTS = 1 << 18  # from which held-out ones are chosen, 250 bytes of memory each
MAX_SHARE = 0.05  # the limit if no clusters fit USUAL_MAX_SHARE, and for a cluster in each source
MIN_DOCUMENTS = 100  # with fewer, one document is too large a share
SPLITS = ("train", "validation")


class HeldOut(NamedTuple):
    """The held-out text of a corpus; positions are in tokens from the corpus's start."""

    edges: np.ndarray  # [parts + 1] int64, where the parts start and end
    spans: np.ndarray  # [n, 2] int64, ascending
    keys: np.ndarray  # [H] int64 and minhashes [H, SIGNATURE_BYTES] uint8: signatures of the held-out documents,
    minhashes: np.ndarray  # if others can have near-duplicates of them; otherwise empty
    notice: np.ndarray  # description of the split, in UTF-8

    def save(self, file: Path) -> None:
        """Write it for `load`, which any process of a preparation may call."""
        with replacing(file) as opened:
            opened.write(save(self._asdict()))
        record_digests(file.parent, file.name)

    @staticmethod
    def load(file: Path) -> "HeldOut | None":
        """The held-out text that `save` wrote; None if it is missing or damaged."""
        return None if not file.is_file() or recorded_damage(file.parent, file.name) else HeldOut(**load_file(file))

    def split(self, part: Part) -> dict[str, np.ndarray]:
        """Spans [n, 2] of a part, in tokens from its start: of each of SPLITS, and "near_duplicates", left out."""
        start, end = self.edges[part.number : part.number + 2].tolist()
        if end == start:
            return dict.fromkeys((*SPLITS, "near_duplicates"), np.zeros((0, 2), "<i8"))
        held = (self.spans.clip(start, end) - start)[(self.spans[:, 1] > start) & (self.spans[:, 0] < end)]
        left_out = np.zeros((0, 2), "<i8")
        if len(self.keys):
            ends = np.fromfile(part.path("document_ends"), "<i8")
            spans = np.stack([np.append(0, ends[:-1]), ends], axis=1)
            is_near = find_near_duplicates(_groups(part), _sketches(part), self.keys, self.minhashes)
            is_held = np.searchsorted(held.ravel(), spans[:, 1], side="left") % 2 == 1
            left_out = spans[is_near & ~is_held]
        out = np.concatenate([held, left_out])
        borders = np.concatenate([[0], out[out[:, 0].argsort()].ravel(), [end - start]]).reshape(-1, 2)
        kept = borders[borders[:, 1] > borders[:, 0]]
        return {"train": kept, "validation": held, "near_duplicates": left_out}


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
    """Choose the held-out text. sources: the source of each part, ascending. There are at least two sentences."""
    edges = [*accumulate((part.statistics["written"]["tokens"] for part in parts), initial=0)]
    placed = [_PlacedPart(*one) for one in zip(parts, sources, edges[:-1], edges[1:], strict=True)]
    documents, total = _read_documents(placed, seed), edges[-1]
    held, notice = None, "whole documents, near-duplicates kept together"
    count = sum(part.statistics["written"]["documents"] for part in parts)
    reason = f"the corpus has only {count} documents"
    if count >= MIN_DOCUMENTS:
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
    if count == len(documents.keys):  # all near-duplicates are known
        is_held = np.zeros(count, bool)
    else:
        is_held = np.searchsorted(held.ravel(), documents.spans[:, 1], side="left") % 2 == 1
    description = np.frombuffer(notice.encode(), np.uint8)
    return HeldOut(np.array(edges), held, documents.keys[is_held], documents.minhashes[is_held], description)


def _read_documents(placed: list[_PlacedPart], seed: int) -> _Documents:
    """All documents, or as many of each source as MAX_DOCUMENTS allows, with equal texts kept together."""
    documents = [one.part.statistics["written"]["documents"] for one in placed]
    counts = np.bincount([one.source for one in placed], documents)
    limit = MAX_DOCUMENTS if counts.sum() <= MAX_DOCUMENTS else MAX_DOCUMENTS // int(np.count_nonzero(counts))
    found = []
    for one in placed:
        keys = _groups(one.part)
        rate = limit / max(1, counts[one.source])
        chosen = np.arange(len(keys)) if rate >= 1 else np.flatnonzero(_draws(seed, keys) < rate * (1 << 63))
        ends = np.fromfile(one.part.path("document_ends"), "<i8") + one.start
        spans = np.stack([np.append(one.start, ends[:-1])[: len(ends)], ends], axis=1)[chosen]
        found.append((spans, np.full(len(chosen), one.source), keys[chosen], _sketches(one.part)[chosen]))
    spans, source, keys, minhashes = map(np.concatenate, zip(*found, strict=True))
    joined = join_near_duplicates(np.unique(keys, return_inverse=True)[1], minhashes)
    key = torch.full((int(joined.max(initial=-1)) + 1,), np.iinfo(np.int64).max)
    key.scatter_reduce_(0, torch.from_numpy(joined).long(), torch.from_numpy(keys), "amin")
    draws = _draws(seed, key.numpy())
    return _Documents(spans, spans[:, 1] - spans[:, 0], source, keys, minhashes, joined, draws)


def _draws(seed: int, keys: np.ndarray) -> np.ndarray:
    """Uniform in [0, 2**63), int64, for keys of documents."""
    key = torch.from_numpy(keys)
    draws: np.ndarray = bits(seed, Stream.HELD_OUT, key, torch.zeros_like(key)).numpy()
    return draws


def _groups(part: Part) -> np.ndarray:
    return np.fromfile(part.path("groups"), "<i8")


def _sketches(part: Part) -> np.ndarray:
    file = part.path("sketches")
    sketches = np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)
    return sketches.reshape(-1, SIGNATURE_BYTES)


def _draw(documents: _Documents, allowed: np.ndarray, total: int, room: float) -> np.ndarray | None:
    """Spans of tokens [n, 2] of the held-out documents, from `allowed` clusters [G]; None if none is small enough."""
    size = np.bincount(documents.cluster, documents.tokens, len(documents.draw))
    is_drawn = documents.draw <= int(HELD_OUT_SHARE * (1 << 63))
    order = documents.draw.argsort()
    order = order[allowed[order]]
    enough = min(MIN_SHARE * total, MAX_TOKENS / 2)
    for max_tokens in (min(USUAL_MAX_SHARE * total, MAX_TOKENS), MAX_SHARE * total):
        is_held = np.zeros(len(documents.draw), bool)
        taken = 0.0
        for cluster in order.tolist():
            if taken >= enough and not is_drawn[cluster]:
                break
            if taken + size[cluster] <= min(max_tokens, room):
                is_held[cluster] = True
                taken += size[cluster]
        if taken >= enough:
            return documents.spans.compress(is_held[documents.cluster], axis=0)
    return None


def _is_small_in_every_source(documents: _Documents) -> np.ndarray:
    """Whether each cluster holds at most MAX_SHARE of every source, bool [G]; a source may be one document."""
    count = int(documents.source.max(initial=-1)) + 1
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
    if not MIN_SHARE <= (end - cut) / (end - first) <= USUAL_MAX_SHARE or end - cut > MAX_TOKENS:
        wanted = end - min(HELD_OUT_SHARE * (end - first), MAX_TOKENS)
        at = next(number for number, one in enumerate(placed) if one.end >= wanted)
        ends = _sentence_ends(placed[at]) + placed[at].start
        nearest = int(np.searchsorted(ends, wanted))
        near = [*ends[max(0, nearest - 1) : nearest + 1].tolist(), placed[at].start]
        cut = min((one for one in near if first < one < end), key=lambda found: abs(found - wanted))
        held = after[at] - int(np.searchsorted(ends, cut, side="right"))
    return np.array([[cut, end]]), f"the last {held:,} sentences"


def _sentence_ends(one: _PlacedPart) -> np.ndarray:
    return np.memmap(one.part.path("sentence_ends"), "<i8", "r")
