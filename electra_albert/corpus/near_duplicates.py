"""Near-duplicate documents, found by MinHash signatures of word n-grams and locality-sensitive hashing."""

from typing import NamedTuple

import numpy as np

HEAD_CHARACTERS = 12_000  # about two thousand words of each document
SIGNATURE_BYTES = 128  # MinHashes of one byte each
_SHINGLE_WORDS = 5
_PAIR_WORDS = 2
_MIN_EQUAL = 90  # MinHashes: a Jaccard index of .70 of the word bigrams, as if one word in eleven was replaced
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
    """The signature of each document, from its first characters, without line feeds and not of white space only."""
    text = b" \n ".join(head.lower().encode() for head in heads)  # the line feed becomes a separate word
    hashes, is_border = _hash_words(np.frombuffer(text, dtype=np.uint8))
    document = np.cumsum(is_border)[~is_border]  # of each word
    hashes = hashes[~is_border]
    first = np.searchsorted(document, np.arange(len(heads)))  # word of each document
    mixed = np.zeros_like(hashes)
    for offset in range(_SHINGLE_WORDS):
        length = max(0, hashes.size - offset)
        in_document = document[offset:] == document[:length]
        mixed *= _WORD_FACTOR
        mixed[:length] += np.where(in_document, hashes[offset:], np.uint64(0))
        if offset == _PAIR_WORDS - 1:
            is_pair = _is_whole(document, first, _PAIR_WORDS)
            minhashes = _minhashes(_mix(mixed)[is_pair], (is_pair.cumsum() - is_pair)[first])
    keys = np.where(_is_whole(document, first, _SHINGLE_WORDS), _mix(mixed) & _INT63, _INT63)
    return list(map(Signature, np.minimum.reduceat(keys, first).tolist(), map(bytes, minhashes)))


def _is_whole(document: np.ndarray, first: np.ndarray, words: int) -> np.ndarray:
    """Where an n-gram of n = `words` starts inside one document, bool [words]; a shorter document is one n-gram."""
    count = max(0, document.size - words + 1)
    is_whole = np.zeros(document.size, dtype=bool)
    is_whole[:count] = document[words - 1 :] == document[:count]
    is_whole[first] = True
    return is_whole


def _minhashes(hashes: np.ndarray, first: np.ndarray) -> np.ndarray:
    """uint8 [documents, SIGNATURE_BYTES]: the last bytes of the hashes nearest (by XOR) to evenly spaced numbers."""
    short = (hashes >> np.uint64(32)).astype(np.uint32)
    step = (1 << 32) // SIGNATURE_BYTES
    nearest = [np.minimum.reduceat(short ^ np.uint32(number * step), first) for number in range(SIGNATURE_BYTES)]
    return np.stack(nearest, axis=1).astype(np.uint8)


def join_near_duplicates(cluster: np.ndarray, minhashes: np.ndarray) -> np.ndarray:
    """Merge the clusters of near-duplicates. cluster is integer [D], minhashes uint8 [D, SIGNATURE_BYTES]."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    for band in minhashes.view(_BAND).T:  # documents that agree in a band: each is compared with the previous one
        order = band.argsort(kind="stable")
        second = np.flatnonzero(band[order[1:]] == band[order[:-1]]) + 1
        second = second[cluster[order[second]] != cluster[order[second - 1]]]
        blocks = np.array_split(second, 1 + len(second) // _PAIRS_AT_ONCE)
        is_near = [(minhashes[order[some]] == minhashes[order[some - 1]]).sum(axis=1) >= _MIN_EQUAL for some in blocks]
        second = second[np.concatenate(is_near)]
        if len(second):
            edges = np.ones(len(second)), (cluster[order[second]], cluster[order[second - 1]])
            graph = coo_array(edges, shape=2 * (int(cluster.max()) + 1,))
            cluster = connected_components(graph, directed=False)[1][cluster]
    return cluster


def find_near_duplicates(
    keys: np.ndarray, minhashes: np.ndarray, held_keys: np.ndarray, held_minhashes: np.ndarray
) -> np.ndarray:
    """Which documents, bool [D], are near-duplicates of a held-out one, by keys [D] and minhashes [D, S] of both."""
    is_near: np.ndarray = np.isin(keys, held_keys)
    for band, held in zip(minhashes.view(_BAND).T, held_minhashes.view(_BAND).T, strict=True):
        order = held.argsort(kind="stable")
        at = order[np.searchsorted(held[order], band).clip(max=len(held) - 1)]
        found = np.flatnonzero((held[at] == band) & ~is_near)
        is_near[found] = (minhashes[found] == held_minhashes[at[found]]).sum(axis=1) >= _MIN_EQUAL
    return is_near


def _hash_words(letters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the words between spaces, uint64 [words], and which words are the line feed between two documents."""
    is_letter = np.concatenate(([False], letters != ord(" "), [False]))
    edges = np.flatnonzero(is_letter[1:] != is_letter[:-1])
    starts, ends = edges[::2], edges[1::2]
    # Polynomial rolling hash as a difference of prefix sums, divided by the power at the word's start.
    sums = np.zeros(letters.size + 1, dtype=np.uint64)
    np.cumsum(letters * _powers(_BYTE_FACTOR, letters.size), out=sums[1:])
    inverses = _powers(pow(_BYTE_FACTOR, -1, 1 << 64), letters.size)
    return _mix((sums[ends] - sums[starts]) * inverses[starts]), letters[starts] == ord("\n")


def _powers(base: int, count: int) -> np.ndarray:
    """base ** 0 … base ** (count - 1) modulo 2**64."""
    powers = np.full(count, base, dtype=np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def _mix(values: np.ndarray) -> np.ndarray:
    """The SplitMix64 finaliser, applied to each uint64."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return np.asarray(values ^ (values >> np.uint64(31)))
