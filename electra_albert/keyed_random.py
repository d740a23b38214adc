"""Randomness as a pure function of (seed, stream, example, position).

There is no generator state to save: batches, masks and samples are the same on every device, for
every batch split and world size, and after a resume.
"""

from enum import IntEnum

import torch
from torch import Tensor

_INT63 = (1 << 63) - 1
_WORD = (1 << 64) - 1
# Odd constants of the SplitMix64 finaliser (Steele, Lea and Flood 2014).
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_FEISTEL_ROUNDS = 6


class Stream(IntEnum):
    """The purpose of a draw. Numbers are unique and never change."""

    ORDER = 1
    SHORT_EXAMPLE = 2
    ONE_SEGMENT = 3
    SEGMENT_CUT = 4
    SWAP = 5
    MASK = 6
    MASK_KIND = 7
    INITIAL_WEIGHTS = 8
    SAMPLE_BLOCK = 9
    SAMPLE_TOKEN = 10
    HELD_OUT = 11
    TOKENIZER_SAMPLE = 12
    DROPOUT = 13
    EXAMPLE = 14
    RANDOM_TOKEN = 15
    SOURCE = 16
    BUCKET = 17
    TASK_ORDER = 18
    TASK_EXAMPLES = 19
    RESAMPLE = 20
    VALIDATION = 21
    RUN_LENGTH = 22


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Logical (not sign-extending) right shift of int64."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _absorb(state: Tensor, word: Tensor) -> Tensor:
    """Mix a word into the state; int64 multiplication wraps in PyTorch on every backend."""
    x = (state ^ word) * _signed(_GOLDEN) + _signed(_GOLDEN)
    x = (x ^ _shift_right(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift_right(x, 27)) * _signed(_MIX_2)
    return x ^ _shift_right(x, 31)


def _key(seed: int, stream: Stream, *words: int) -> int:
    """`_absorb` on Python integers, unsigned 64-bit."""
    state = 0
    # One word at a time: otherwise two pairs of seed and stream could have the same key.
    for word in (seed, int(stream), *words):
        x = ((state ^ (word & _WORD)) * _GOLDEN + _GOLDEN) & _WORD
        x = ((x ^ (x >> 30)) * _MIX_1) & _WORD
        x = ((x ^ (x >> 27)) * _MIX_2) & _WORD
        state = x ^ (x >> 31)
    return state


def bits(seed: int, stream: Stream, example_id: Tensor, position: Tensor) -> Tensor:
    """Uniform int64 in [0, 2**63), the same on every device.

    For each (example_id, position), int64 of shapes that broadcast.
    """
    key = _signed(_key(seed, stream))
    example_key = _absorb(example_id ^ key, torch.zeros_like(example_id))
    return _absorb(example_key, position) & _INT63


def uniform(random_bits: Tensor) -> Tensor:
    """Float32 in the open interval (0, 1) from `bits`, with full relative precision near 0."""
    value = (random_bits.to(torch.float32) + 0.5) * 2.0**-63
    return value.clamp(max=1 - 2.0**-24)


def gumbel(random_bits: Tensor) -> Tensor:
    """Standard Gumbel noise, float32 and finite, from `bits`. Paper: ELECTRA section 2."""
    # -log(1 - u) rather than -log(u): exact in the upper tail, which decides an argmax.
    return -torch.log(-torch.log1p(-uniform(random_bits)))


def derived_seed(seed: int, stream: Stream, *words: int) -> int:
    """An integer in [0, 2**63) for code that takes a seed, such as torch.manual_seed."""
    return _key(seed, stream, *words) & _INT63


def permute(index: Tensor, size: int, seed: int, epoch: Tensor) -> Tensor:
    """Keyed permutation of range(size), evaluated at each index: a shuffle without a stored table.

    index and epoch are int64 of broadcastable shapes with 0 <= index < size.
    """
    # Balanced Feistel network on the next power of four, with cycle walking: repeat until the value
    # is below size.
    half = (max(size - 1, 1).bit_length() + 1) // 2
    epoch = epoch + 0 * index  # of the shape to which both broadcast
    value = _feistel(index, epoch, seed, half)
    outside = value >= size
    while bool(outside.any()):
        value[outside] = _feistel(value[outside], epoch[outside], seed, half)
        outside = value >= size
    return value


def _feistel(value: Tensor, epoch: Tensor, seed: int, half: int) -> Tensor:
    low = (1 << half) - 1
    left = value >> half
    right = value & low
    for turn in range(_FEISTEL_ROUNDS):
        noise = bits(seed, Stream.ORDER, epoch * _FEISTEL_ROUNDS + turn, right)
        mixed = left ^ (noise & low)
        left = right
        right = mixed
    return (left << half) | right
