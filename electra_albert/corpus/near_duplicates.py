"""Near-duplicate documents, found by MinHash signatures of word n-grams.

Locality-sensitive hashing finds the pairs to compare.
"""

from typing import NamedTuple

import numpy as np

HEAD_CHARACTERS = 12_000  # about two thousand words of each document
SIGNATURE_BYTES = 128  # MinHashes of one byte each
_SHINGLE_WORDS = 5
_PAIR_WORDS = 2
_MIN_EQUAL = 90  # MinHashes: as if one word in eleven was replaced (Jaccard index of bigrams .70)
_BAND = "<u4"  # four MinHashes; only documents that agree in a whole band are compared
_PAIRS_AT_ONCE = 1 << 13  # candidate pairs compared at once
_INT63 = np.uint64((1 << 63) - 1)
_BYTE_FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_WORD_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Signature(NamedTuple):
    """MinHashes of one document, which keep near-duplicates in the same split."""

    key: int  # 63-bit MinHash of the 5-grams; documents with equal keys always stay together
    minhashes: bytes  # SIGNATURE_BYTES of the bigrams; near-duplicates agree in most


def signatures_of(heads: list[str]) -> list[Signature]:
    """The signature of each document, from its first characters, without line feeds.

    None is of white space only.
    """
    text = b" \n ".join(head.lower().encode() for head in heads)  # \n becomes a separate word
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
        if offset == _PAIR_WORDS - 1:
            is_pair = _is_whole(document, first, _PAIR_WORDS)
            minhashes = _minhashes(_mix(mixed)[is_pair], (is_pair.cumsum() - is_pair)[first])
    keys = np.where(_is_whole(document, first, _SHINGLE_WORDS), _mix(mixed) & _INT63, _INT63)
    minimum = np.minimum.reduceat(keys, first)
    return list(map(Signature, minimum.tolist(), map(bytes, minhashes)))


def _is_whole(document: np.ndarray, first: np.ndarray, words: int) -> np.ndarray:
    """Where an n-gram of n = `words` starts inside one document, bool [words].

    A shorter document is one n-gram.
    """
    count = max(0, document.size - words + 1)
    is_whole = np.zeros(document.size, bool)
    is_whole[:count] = document[words - 1 :] == document[:count]
    is_whole[first] = True
    return is_whole


def _minhashes(hashes: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The last byte of the hash nearest (by XOR) to each of SIGNATURE_BYTES spaced numbers.

    Returns uint8 [documents, SIGNATURE_BYTES].
    """
    short = (hashes >> np.uint64(32)).astype(np.uint32)
    numbers = np.arange(0, 1 << 32, (1 << 32) // SIGNATURE_BYTES).astype(np.uint32)
    nearest = [np.minimum.reduceat(short ^ number, first) for number in numbers]
    return np.stack(nearest, axis=1).astype(np.uint8)


def join_near_duplicates(cluster: np.ndarray, minhashes: np.ndarray) -> np.ndarray:
    """Merge the clusters of near-duplicates.

    cluster is integer [D], minhashes uint8 [D, SIGNATURE_BYTES].
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    for band in minhashes.view(_BAND).T:
        order = band.argsort(kind="stable")  # each document is compared with the next one
        pairs = np.stack([order[:-1], order[1:]])  # [2, D - 1]
        is_candidate = band[pairs[0]] == band[pairs[1]]
        is_candidate &= cluster[pairs[0]] != cluster[pairs[1]]
        pairs = pairs[:, is_candidate]
        blocks = np.array_split(pairs, 1 + pairs.shape[1] // _PAIRS_AT_ONCE, axis=1)
        is_near = [_are_near(minhashes[first], minhashes[second]) for first, second in blocks]
        edges = cluster[pairs[:, np.concatenate(is_near)]]
        if edges.size:
            size = int(cluster.max()) + 1
            graph = coo_array((np.ones(edges.shape[1]), tuple(edges)), (size, size))
            cluster = connected_components(graph, directed=False)[1][cluster]
    return cluster


def find_near_duplicates(
    keys: np.ndarray, minhashes: np.ndarray, held_keys: np.ndarray, held_minhashes: np.ndarray
) -> np.ndarray:
    """Which documents, bool [D], are near-duplicates of a held-out one, by keys and minhashes."""
    is_near: np.ndarray = np.isin(keys, held_keys)
    bands = zip(minhashes.view(_BAND).T, held_minhashes.view(_BAND).T, strict=True)
    for band, held in bands:
        order = held.argsort(kind="stable")
        similar = order[np.searchsorted(held[order], band).clip(max=len(held) - 1)]  # [D]
        candidates = np.flatnonzero((held[similar] == band) & ~is_near)
        is_near[candidates] = _are_near(minhashes[candidates], held_minhashes[similar[candidates]])
    return is_near


def _are_near(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray((first == second).sum(axis=1) >= _MIN_EQUAL)


def _hash_words(letters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the words between spaces, uint64 [words], and which are the line feed."""
    is_letter = np.concatenate(([False], letters != ord(" "), [False]))
    starts, ends = np.flatnonzero(np.diff(is_letter)).reshape(-1, 2).T
    # A polynomial rolling hash: a difference of prefix sums, divided by the power at the start.
    sums = np.append(np.uint64(0), np.cumsum(letters * _powers(_BYTE_FACTOR, letters.size)))
    inverses = _powers(pow(_BYTE_FACTOR, -1, 1 << 64), letters.size)
    return _mix((sums[ends] - sums[starts]) * inverses[starts]), letters[starts] == ord("\n")


def _powers(base: int, count: int) -> np.ndarray:
    """base ** 0 … base ** (count - 1) modulo 2**64."""
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def _mix(values: np.ndarray) -> np.ndarray:
    """The SplitMix64 finaliser, applied to each uint64."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return np.asarray(values ^ (values >> np.uint64(31)))
