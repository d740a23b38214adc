"""Near-duplicate documents, found by MinHash signatures of word n-grams.

Locality-sensitive hashing finds the pairs to compare.
"""

from typing import NamedTuple

import numpy as np
import regex

_HEAD_SENTENCES = 400  # of each document, from which its signature is computed
_HEAD_CHARACTERS = 12_000  # about two thousand words
SIGNATURE_BYTES = 128  # MinHashes of one byte each
_SHINGLE_WORDS = 5
_PAIR_WORDS = 2
_MIN_EQUAL = 90  # MinHashes: as if one word in eleven was replaced (Jaccard index of bigrams .70)
_BAND = "<u4"  # four MinHashes; only documents that agree in a whole band are compared
_PAIRS_AT_ONCE = 1 << 13  # candidate pairs compared at once
# Characters of scripts without spaces, each of which counts as a word.
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_INT63 = (1 << 63) - 1
_BYTE_FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_WORD_FACTOR = 0xD6E8FEB86659FD93


class Signature(NamedTuple):
    """MinHashes of one document, which keep near-duplicates in the same split."""

    key: int  # 63-bit MinHash of the 5-grams; documents with equal keys always stay together
    minhashes: bytes  # SIGNATURE_BYTES of the bigrams; near-duplicates agree in most


def signatures_of(documents: list[list[str]]) -> list[Signature]:
    """The signature of each document by its first sentences, which hold no line feeds.

    None is of white space only. Three documents have these n-grams:
        "an old red hat was"   bigrams "an old", "old red", "red hat", "hat was"; one 5-gram
        "an old hat"           bigrams "an old", "old hat"; 5-gram "an old hat"
        "hat"                  bigram "hat", 5-gram "hat"
    """
    heads = [" ".join(sentences[:_HEAD_SENTENCES])[:_HEAD_CHARACTERS] for sentences in documents]
    if not heads:
        return []
    spaced = (_UNSPACED.sub(r" \g<0> ", head.lower()) for head in heads)
    text = " \n ".join(spaced).encode()  # \n becomes a separate word
    hashes, is_border = _hash_words(np.frombuffer(text, np.uint8))
    document = is_border.cumsum()[~is_border]  # of each word
    hashes = hashes[~is_border]
    first = np.searchsorted(document, np.arange(len(heads)))  # word of each document
    mixed = np.zeros_like(hashes)
    for offset in range(_SHINGLE_WORDS):
        length = max(0, hashes.size - offset)
        in_document = document[offset:] == document[:length]
        mixed *= _WORD_FACTOR
        mixed[:length] += hashes[offset:] * in_document
        is_whole = np.zeros(hashes.size, bool)  # where an n-gram starts inside one document
        is_whole[:length] = in_document
        is_whole[first] = True  # a shorter document is one n-gram
        if offset == _PAIR_WORDS - 1:
            pair_hashes = _mix(mixed)[is_whole]
            earlier_pairs = is_whole.cumsum() - is_whole  # of each word
            minhashes = _minhashes(pair_hashes, earlier_pairs[first])
    shingle_hashes = np.where(is_whole, _mix(mixed) & _INT63, _INT63)
    keys = np.minimum.reduceat(shingle_hashes, first).tolist()
    return list(map(Signature, keys, map(bytes, minhashes)))


def _minhashes(hashes: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The last byte of the hash nearest (by XOR) to each of SIGNATURE_BYTES spaced numbers.

    Returns uint8 [documents, SIGNATURE_BYTES].
    """
    short_hashes = (hashes >> 32).astype(np.uint32)
    nearest = []
    for number in range(0, 1 << 32, (1 << 32) // SIGNATURE_BYTES):
        distances = short_hashes ^ number
        nearest.append(np.minimum.reduceat(distances, first))
    return np.stack(nearest, axis=1).astype(np.uint8)


def join_near_duplicates(cluster: np.ndarray, minhashes: np.ndarray) -> np.ndarray:
    """Merge the clusters of near-duplicates.

    cluster is integer [D], minhashes uint8 [D, SIGNATURE_BYTES].
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    for band in minhashes.view(_BAND).T:
        order = band.argsort(kind="stable")
        first = order[:-1]
        second = order[1:]  # each document is compared with the next one
        is_candidate = band[first] == band[second]
        is_candidate &= cluster[first] != cluster[second]
        pairs = np.stack([first, second])[:, is_candidate]  # [2, candidates]
        block_count = 1 + pairs.shape[1] // _PAIRS_AT_ONCE
        blocks = np.array_split(pairs, block_count, axis=1)
        is_near = [_are_near(minhashes[first], minhashes[second]) for first, second in blocks]
        edges = cluster[pairs[:, np.concatenate(is_near)]]
        if edges.size:
            weights = np.ones(edges.shape[1])
            size = int(cluster.max()) + 1
            graph = coo_array((weights, tuple(edges)), (size, size))
            component = connected_components(graph, directed=False)[1]
            cluster = component[cluster]
    return cluster


def find_near_duplicates(
    keys: np.ndarray, minhashes: np.ndarray, held_keys: np.ndarray, held_minhashes: np.ndarray
) -> np.ndarray:
    """Which documents, bool [D], are near-duplicates of a held-out one, by keys and minhashes."""
    is_near = np.isin(keys, held_keys)
    bands = zip(minhashes.view(_BAND).T, held_minhashes.view(_BAND).T, strict=True)
    for band, held_band in bands:
        order = held_band.argsort(kind="stable")
        position = np.searchsorted(held_band[order], band).clip(max=len(order) - 1)
        similar = order[position]  # [D] held-out document with this band, if there is one
        has_same_band = held_band[similar] == band
        candidates = np.flatnonzero(has_same_band & ~is_near)
        similar = similar[candidates]
        is_near[candidates] = _are_near(minhashes[candidates], held_minhashes[similar])
    return is_near


def _are_near(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    equal_count = (first == second).sum(axis=1)
    return np.asarray(equal_count >= _MIN_EQUAL)


def _hash_words(letters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the words between spaces, uint64 [words], and which are the line feed."""
    is_letter = np.pad(letters != ord(" "), 1)
    edges = np.flatnonzero(np.diff(is_letter))
    starts = edges[::2]
    ends = edges[1::2]
    # A polynomial rolling hash: a difference of prefix sums, divided by the power at the start.
    powers = _powers(_BYTE_FACTOR, letters.size)
    sums = np.append(np.uint64(0), np.cumsum(letters * powers))
    inverses = _powers(pow(_BYTE_FACTOR, -1, 1 << 64), letters.size)
    hashes = (sums[ends] - sums[starts]) * inverses[starts]
    return _mix(hashes), letters[starts] == ord("\n")


def _powers(base: int, count: int) -> np.ndarray:
    """base ** 0 … base ** (count - 1) modulo 2**64."""
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def _mix(values: np.ndarray) -> np.ndarray:
    """The SplitMix64 finaliser, applied to each uint64."""
    values = values ^ (values >> 30)
    values *= 0xBF58476D1CE4E5B9
    values ^= values >> 27
    values *= 0x94D049BB133111EB
    values ^= values >> 31
    return values
