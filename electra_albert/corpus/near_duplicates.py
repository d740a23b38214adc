"""Documents that nearly repeat each other, found by hashing all runs of a few words."""

from typing import NamedTuple

import numpy as np

HEAD_CHARACTERS = 12_000  # about two thousand words: what of a document is looked at
SKETCH_BYTES = 128  # of 128 MinHashes a byte each
_SHINGLE_WORDS = 5
_PAIR_WORDS = 2
_ALIKE = 90  # MinHashes: a Jaccard index of the word pairs of .70, as where one word of eleven was replaced
_BAND = "<u4"  # of four MinHashes, all of which must agree before two sketches are compared
_COMPARED = 1 << 13  # sketches at once
_INT63 = np.uint64((1 << 63) - 1)
_BYTE_FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_WORD_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Signature(NamedTuple):
    """Keeps near-duplicates on one side of the held-out split."""

    key: int  # 63 bits; documents of one key are always kept together
    sketch: bytes  # SKETCH_BYTES, of which near-duplicates share most


def signatures_of(heads: list[str]) -> list[Signature]:
    """The key and the sketch of each document.

    heads are the first characters of each, without line feeds and not of white space only. A key is the MinHash of the
    runs of five words, a sketch holds 128 of the pairs of words.
    """
    text = b" \n ".join(head.lower().encode() for head in heads)  # the line feed is a word of its own
    hashes, is_border = _hash_words(np.frombuffer(text, dtype=np.uint8))
    document = np.cumsum(is_border)[~is_border]  # which document each word is of
    hashes = hashes[~is_border]
    first = np.searchsorted(document, np.arange(len(heads)))  # its first word
    mixed = np.zeros_like(hashes)
    for offset in range(_SHINGLE_WORDS):
        length = max(0, hashes.size - offset)
        in_document = document[offset:] == document[:length]
        mixed *= _WORD_FACTOR
        mixed[:length] += np.where(in_document, hashes[offset:], np.uint64(0))
        if offset == _PAIR_WORDS - 1:
            is_pair = _is_whole(document, first, _PAIR_WORDS)
            sketches = _sketches(_mix(mixed)[is_pair], (is_pair.cumsum() - is_pair)[first])
    keys = np.where(_is_whole(document, first, _SHINGLE_WORDS), _mix(mixed) & _INT63, _INT63)
    return list(map(Signature, np.minimum.reduceat(keys, first).tolist(), map(bytes, sketches)))


def _is_whole(document: np.ndarray, first: np.ndarray, words: int) -> np.ndarray:
    """Where a run of so many words of one document begins, bool [words]; a document of fewer is one run."""
    count = max(0, document.size - words + 1)
    is_whole = np.zeros(document.size, dtype=bool)
    is_whole[:count] = document[words - 1 :] == document[:count]
    is_whole[first] = True
    return is_whole


def _sketches(hashes: np.ndarray, first: np.ndarray) -> np.ndarray:
    """uint8 [documents, SKETCH_BYTES]: the last bytes of the hashes nearest to as many numbers spread evenly."""
    short = (hashes >> np.uint64(32)).astype(np.uint32)
    step = (1 << 32) // SKETCH_BYTES
    nearest = [np.minimum.reduceat(short ^ np.uint32(number * step), first) for number in range(SKETCH_BYTES)]
    return np.stack(nearest, axis=1).astype(np.uint8)


def join_alike(group: np.ndarray, sketches: np.ndarray) -> np.ndarray:
    """The numbers `group` [documents] with near-duplicates' groups joined; sketches uint8 [documents, bytes]."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    for band in sketches.view(_BAND).T:  # of documents that agree on a band, each is compared with the one before
        order = band.argsort(kind="stable")
        second = np.flatnonzero(band[order[1:]] == band[order[:-1]]) + 1
        second = second[group[order[second]] != group[order[second - 1]]]
        blocks = np.array_split(second, 1 + len(second) // _COMPARED)
        is_alike = [(sketches[order[some]] == sketches[order[some - 1]]).sum(axis=1) >= _ALIKE for some in blocks]
        second = second[np.concatenate(is_alike)]
        if len(second):
            edges = np.ones(len(second)), (group[order[second]], group[order[second - 1]])
            graph = coo_array(edges, shape=2 * (int(group.max()) + 1,))
            group = connected_components(graph, directed=False)[1][group]
    return group


def _hash_words(letters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the words between spaces, uint64 [words], and which of them are the border between two documents."""
    is_letter = np.concatenate(([False], letters != ord(" "), [False]))
    edges = np.flatnonzero(is_letter[1:] != is_letter[:-1])
    starts, ends = edges[::2], edges[1::2]
    # A polynomial in the place of the letter, by differences of its prefix sums; the start's power is divided out.
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
    """Spread the bits of each uint64, as SplitMix64 ends."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
