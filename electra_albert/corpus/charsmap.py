"""The character map of a SentencePiece model: found in a tokenizer's JSON, and checked before native code walks it.

Layout: the trie's size in bytes as a little-endian uint32, the trie as a double array of uint32 units, then the
replacement texts, each ended by a NUL byte.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

_LEAF_BIT, _HAS_LEAF_BIT, _WIDE_BIT = 31, 8, 9


def read_charsmap(normalizer: Any) -> bytes | None:
    """The map in a tokenizer.json's normaliser, None where there is none; b"" where it cannot be decoded."""
    if not isinstance(normalizer, dict):
        return None
    steps = normalizer.get("normalizers") if normalizer.get("type") == "Sequence" else [normalizer]
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and step.get("type") == "Precompiled":
            try:
                return base64.b64decode(step.get("precompiled_charsmap") or "", validate=True)
            except (binascii.Error, TypeError, ValueError):
                return b""
    return None


def check_charsmap(charsmap: bytes) -> str:
    """What is wrong with the map, or nothing: every jump of the trie and every text it names must lie inside it."""
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size % 4 or not 4 <= size <= len(charsmap) - 4:
        return "its sizes do not fit"
    texts = charsmap[4 + size :]
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError:
        return "its texts are not UTF-8"
    if texts and texts[-1] != 0:
        return "its last text has no end"
    units = np.frombuffer(charsmap, "<u4", size // 4, offset=4).astype(np.int64)
    position = np.arange(len(units))
    is_leaf = (units >> _LEAF_BIT) & 1 == 1
    child = position ^ ((units >> 10) << ((units >> _WIDE_BIT & 1) * 8))
    if (~is_leaf & ((child | 255) >= len(units))).any():
        return "a jump leads out of it"
    parents = ~is_leaf & ((units >> _HAS_LEAF_BIT) & 1 == 1)
    starts = units[child[parents]] & ((1 << _LEAF_BIT) - 1)
    is_border = np.array([text & 0xC0 != 0x80 for text in texts], bool)
    if (starts >= len(texts)).any() or not is_border[starts].all():
        return "a text lies outside it"
    return ""


def has_key_after_space(charsmap: bytes) -> bool:
    """Whether a checked map holds a text that begins with a space and goes on, so that it looks past a word's end."""
    units = np.frombuffer(charsmap, "<u4", int.from_bytes(charsmap[:4], "little") // 4, offset=4).astype(np.int64)

    def children(place: int) -> int:
        return int(place ^ ((units[place] >> 10) << ((units[place] >> _WIDE_BIT & 1) * 8)))

    def is_child(place: int, byte: int) -> bool:
        return int(units[place]) & ((1 << _LEAF_BIT) | 0xFF) == byte

    space = children(0) ^ ord(" ")
    if not is_child(space, ord(" ")):
        return False
    below = children(space)
    return any(is_child(below ^ byte, byte) for byte in range(1, 256))
