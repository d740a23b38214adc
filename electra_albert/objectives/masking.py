"""Selection and masking of the tokens to predict, also of whole words, and sampling from the generator.

Shapes do not depend on values: each sequence has K targets; unused ones have weight 0.
Dimensions: B batch, L length, K = max_targets, M any number of predicted tokens, V vocab.
"""

import math
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from electra_albert.config import MlmConfig, RtdConfig
from electra_albert.contracts import Batch, SpecialIds
from electra_albert.keyed_random import Stream, bits, gumbel, uniform
from electra_albert.model_config import MAX_WIDTH

_MAX_INT64 = torch.iinfo(torch.int64).max
# Relative probabilities of runs of 1, 2, … words. ALBERT section 4.1; SpanBERT section 3.1, whose mean length of 3.8
# is that of the geometric distribution restricted to 10 words.
# Differs from SpanBERT, which replaces a span as a whole: [MASK] or not is drawn for each of its tokens.
RUN_LENGTHS = {"word": [1.0], "ngram": [1 / n for n in range(1, 4)], "span": [0.8**n for n in range(10)]}


class Targets(NamedTuple):
    """The tokens to predict, in the order of their keyed noise."""

    positions: Tensor  # [B, K] int64
    weight: Tensor  # [B, K] float32, 1, or 0 for unused targets
    labels: Tensor  # [B, K] int64, the original tokens


def maskable(input_ids: Tensor, attention_mask: Tensor, special: SpecialIds) -> Tensor:
    """Bool [B, L]: neither padding nor special tokens. input_ids int64 [B, L], attention_mask bool [B, L]."""
    is_maskable = attention_mask
    for token in special.never_masked:  # one by one: a tensor of them would be copied to the device at each step
        is_maskable = is_maskable & (input_ids != token)
    return is_maskable


def mask(
    batch: Batch, vocab_size: int, options: MlmConfig | RtdConfig, special: SpecialIds, seed: int
) -> tuple[Tensor, Targets, Tensor]:
    """Select and mask tokens. Draws are keyed by batch.example_id.

    Returns ids int64 [B, L], targets, and which targets are [MASK], bool [B, K].
    """
    ids = batch.input_ids
    keys = (seed, batch.example_id)
    is_maskable = maskable(ids, batch.attention_mask, special)
    units = find_units(options.mask_unit, special.starts_word, ids, is_maskable, *keys)
    targets = choose_targets(ids, is_maskable, options.mask_rate, *keys, units)
    random = None
    if isinstance(options, MlmConfig) and options.random_token_share:
        random = (random_tokens(targets, special, vocab_size, *keys), options.random_token_share)
    masked_ids, is_masked = mask_tokens(ids, targets, special.mask, options.mask_token_share, *keys, random)
    return masked_ids, targets, is_masked


def max_targets(length: int, mask_rate: float) -> int:
    """K, BERT's max_predictions_per_seq: targets of a sequence that is full except for [CLS] and one [SEP]."""
    return max(1, round(mask_rate * (length - 2)))


def target_count(is_maskable: Tensor, mask_rate: float) -> Tensor:
    """round(mask_rate x maskable tokens), at least 1 if any token is maskable. Bool [B, L] to int64 [B]."""
    count = is_maskable.sum(-1)  # [B]
    # In float64, as in `max_targets`: float32 rounds some halves the other way. MPS has no float64.
    exact = count.cpu() if count.device.type == "mps" else count
    wanted = (exact.double() * mask_rate).round().long().clamp(1, max_targets(is_maskable.shape[-1], mask_rate))
    return torch.minimum(wanted.to(count.device), count)


def share_of(count: Tensor, share: float) -> Tensor:
    """round(share x count), the same on every device; count int64 or float32 [B] to int64 [B]."""
    return (count.float() * share).round().long()


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


def choose_targets(
    input_ids: Tensor, is_maskable: Tensor, mask_rate: float, seed: int, example_id: Tensor, units: Tensor | None = None
) -> Targets:
    """Draw `target_count` positions without replacement. input_ids int64 [B, L], is_maskable bool [B, L].

    units, int64 [B, L]: each token's unit; whole units are drawn, and the last one is cut to the exact count.
    """
    length = input_ids.shape[1]
    count = target_count(is_maskable, mask_rate)  # [B]
    position = torch.arange(length, device=input_ids.device)
    noise = bits(seed, Stream.MASK, example_id[:, None], position)  # [B, L]
    if units is not None:  # the noise of the unit, and in its lowest bits the position
        noise = noise.gather(1, units) & -MAX_WIDTH | position
    most = max_targets(length, mask_rate)
    positions = noise.masked_fill(~is_maskable, _MAX_INT64).topk(most, largest=False).indices  # [B, K]
    is_used = torch.arange(most, device=input_ids.device) < count[:, None]  # [B, K]
    return Targets(positions, is_used.float(), input_ids.gather(1, positions))


def mask_tokens(
    input_ids: Tensor,
    targets: Targets,
    mask_id: int,
    mask_share: float,
    seed: int,
    example_id: Tensor,
    random: tuple[Tensor, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Replace a share of the targets by [MASK]; `random`: tokens [B, K] and the share of the targets they replace.

    Returns ids int64 [B, L] and which targets are [MASK], bool [B, K]. Papers: ELECTRA's code, BERT section 3.1.
    """
    noise = uniform(bits(seed, Stream.MASK_KIND, example_id[:, None], targets.positions))  # [B, K]
    is_used = targets.weight > 0
    is_masked = (noise < mask_share) & is_used
    tokens = torch.where(is_masked, mask_id, targets.labels)
    if random is not None:  # [MASK] takes the lower end of the noise, random tokens the upper end
        tokens = torch.where((noise >= 1 - random[1]) & is_used & ~is_masked, random[0], tokens)
    return input_ids.scatter(1, targets.positions, tokens), is_masked


def random_tokens(targets: Targets, special: SpecialIds, vocab_size: int, seed: int, example_id: Tensor) -> Tensor:
    """Draw for each target, uniformly, another token that is not special. Returns int64 [B, K]."""
    specials = sorted(special.never_masked)
    noise = bits(seed, Stream.RANDOM_TOKEN, example_id[:, None], targets.positions)  # [B, K]
    drawn = noise % (vocab_size - len(specials) - 1)
    rank = targets.labels
    for token in specials:  # id to rank among the ordinary tokens, without a table to copy to the device
        rank = rank - (targets.labels > token).long()
    drawn = drawn + (drawn >= rank).long()  # skip the target's own rank
    for token in specials:  # rank to id; specials are in ascending order
        drawn = drawn + (drawn >= token).long()
    return drawn


def sample(logits: Tensor, temperature: float, seed: int, example_id: Tensor, position: Tensor) -> Tensor:
    """Draw a token from softmax(logits / temperature): hard Gumbel-softmax, detached. Paper: ELECTRA section 2.

    logits any float [M, V]; example_id and position int64 [M] key the noise; returns int64 [M].
    """
    # First a block of tokens by its logsumexp, then a token in it: the same distribution with 2 sqrt(V) noises, not V.
    scores = logits.detach().float() if temperature == 1 else logits.detach().float() / temperature
    vocab = scores.shape[-1]
    size = 1 << max(1, math.isqrt(max(vocab - 1, 1))).bit_length()  # the power of two nearest above sqrt(V)
    whole = vocab // size * size
    block_scores = scores[:, :whole].view(scores.shape[0], whole // size, size).logsumexp(-1)  # [M, whole blocks]
    if whole < vocab:
        block_scores = torch.cat([block_scores, scores[:, whole:].logsumexp(-1, keepdim=True)], dim=1)  # [M, blocks]
    noise = _noise(seed, Stream.SAMPLE_BLOCK, example_id, position, block_scores.shape[-1])
    block = (block_scores + noise).argmax(-1, keepdim=True)  # [M, 1]
    token = block * size + torch.arange(size, device=block.device)  # [M, size]
    # The last block may be shorter.
    within = scores.gather(1, token.clamp(max=vocab - 1)).masked_fill(token >= vocab, -math.inf)
    best = (within + _noise(seed, Stream.SAMPLE_TOKEN, example_id, position, size)).argmax(-1, keepdim=True)
    return token.gather(1, best).squeeze(1)


def _noise(seed: int, stream: Stream, example_id: Tensor, position: Tensor, count: int) -> Tensor:
    """Gumbel noise float32 [M, count], keyed by example and position."""
    draws = position[:, None] * count + torch.arange(count, device=position.device)  # [M, count]
    return gumbel(bits(seed, stream, example_id[:, None], draws))
