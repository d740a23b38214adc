"""Masking of whole words and runs of words. Dimensions: B batch, L length, V vocab."""

from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from electra_albert.keyed_random import Stream, bits

# Relative probabilities of runs of 1, 2, … words. ALBERT section 4.1; SpanBERT section 3.1, whose mean length of 3.8
# is that of the geometric distribution restricted to 10 words.
# Differs from SpanBERT, which replaces a span as a whole: [MASK] or not is drawn for each of its tokens.
RUN_LENGTHS = {"word": [1.0], "ngram": [1 / n for n in range(1, 4)], "span": [0.8**n for n in range(10)]}


def find_units(
    kind: str, starts_word: Tensor | None, input_ids: Tensor, is_maskable: Tensor, seed: int, example_id: Tensor
) -> Tensor | None:
    """Number of each maskable token's unit, int64 [B, L]: a word or a run of words without special tokens.

    starts_word bool [V], input_ids int64 [B, L], is_maskable bool [B, L]; None for the unit token.
    """
    if kind == "token":
        return None
    assert starts_word is not None, f"the unit {kind} needs special.starts_word"
    length = input_ids.shape[1]
    is_first = is_maskable & ~pad(is_maskable, (1, -1))  # [B, L], after a special token
    is_start = is_first | (is_maskable & starts_word[input_ids])  # [B, L], of a word
    word = (is_start.cumsum(1) - 1).clamp(min=0)  # [B, L]
    *borders, total = accumulate(RUN_LENGTHS[kind])
    noise = bits(seed, Stream.RUN_LENGTH, example_id[:, None], torch.arange(length, device=input_ids.device))
    # Number of words of each run, and whether each word is the first of a run, [B, L] and [B, L + 1].
    words = torch.ones_like(noise) + sum((noise >= int(border / total * 2.0**63)).long() for border in borders)
    run_start = is_start.new_zeros(len(word), length + 1).scatter(1, (words.cumsum(1) - words).clamp(max=length), True)
    return ((is_first | (is_start & run_start.gather(1, word))).cumsum(1) - 1).clamp(min=0)
