"""Selection and masking of the tokens to predict, and sampling from the generator.

Shapes do not depend on values: each sequence has K targets; unused ones have weight 0.
Dimensions: B batch, L length, K = max_targets, M any number of predicted tokens, V vocab.
"""

import math
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from electra_albert.config.checks import MAX_WIDTH
from electra_albert.config.objectives import MlmConfig, RtdConfig
from electra_albert.contracts import Batch, SpecialIds
from electra_albert.keyed_random import Stream, bits, gumbel, uniform

_MAX_INT64 = torch.iinfo(torch.int64).max
# Relative probabilities of runs of 1, 2, … words. ALBERT section 4.1; SpanBERT section 3.1, whose
# mean length of 3.8 is that of the geometric distribution restricted to 10 words.
# Differs from SpanBERT, which replaces a span as a whole: [MASK] or not is drawn for each token.
RUN_LENGTHS = {
    "word": [1.0],
    "ngram": [1 / n for n in range(1, 4)],
    "span": [0.8**n for n in range(10)],
}


class Targets(NamedTuple):
    """The tokens to predict, in the order of their keyed noise."""

    positions: Tensor  # [B, K] int64
    weight: Tensor  # [B, K] float32, 1, or 0 for unused targets
    labels: Tensor  # [B, K] int64, the original tokens


def maskable(input_ids: Tensor, attention_mask: Tensor, special: SpecialIds) -> Tensor:
    """Which tokens are neither padding nor special, bool [B, L].

    input_ids int64 [B, L], attention_mask bool [B, L].
    """
    is_maskable = attention_mask
    # In a loop: a tensor of the tokens would be copied to the device at each step.
    for token in special.never_masked:
        is_maskable = is_maskable & (input_ids != token)
    return is_maskable


def mask(
    batch: Batch,
    vocab_size: int,
    options: MlmConfig | RtdConfig,
    special: SpecialIds,
    seed: int,
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
        tokens = random_tokens(targets, special, vocab_size, *keys)
        random = (tokens, options.random_token_share)
    masked_ids, is_masked = mask_tokens(
        ids, targets, special.mask, options.mask_token_share, *keys, random
    )
    return masked_ids, targets, is_masked


def max_targets(length: int, mask_rate: float) -> int:
    """K, BERT's max_predictions_per_seq: targets of `length` tokens, two of them special."""
    return max(1, round(mask_rate * (length - 2)))


def target_count(is_maskable: Tensor, mask_rate: float) -> Tensor:
    """round(mask_rate x maskable tokens), at least 1 if any is maskable.

    Bool [B, L] to int64 [B].
    """
    count = is_maskable.sum(-1)  # [B]
    # In float64, as in `max_targets`: float32 rounds some halves the other way.
    exact = count.cpu() if count.device.type == "mps" else count  # MPS has no float64
    quota = (exact.double() * mask_rate).round().long()
    quota = quota.clamp(1, max_targets(is_maskable.shape[-1], mask_rate))
    return torch.minimum(quota.to(count.device), count)


def share_of(count: Tensor, share: float) -> Tensor:
    """round(share x count), the same on every device; int64 or float32 [B] to int64 [B]."""
    return (count.float() * share).round().long()


def find_units(
    kind: str,
    starts_word: Tensor | None,
    input_ids: Tensor,
    is_maskable: Tensor,
    seed: int,
    example_id: Tensor,
) -> Tensor | None:
    """Number of each maskable token's unit, int64 [B, L]: a run of words without special tokens.

    starts_word bool [V], input_ids int64 [B, L], is_maskable bool [B, L]; None for the unit token.
    With runs of 2, 1 and 2 words:

        token   [CLS]  the  un  ##seen  fox  [SEP]  ran
        word      0     0    1     1     2     2     3
        unit      0     0    0     0     1     1     2
    """
    if kind == "token":
        return None
    assert starts_word is not None, f"the unit {kind} needs special.starts_word"
    length = input_ids.shape[1]
    position = torch.arange(length, device=input_ids.device)
    is_first = is_maskable & ~pad(is_maskable, (1, -1))  # [B, L], after a special token
    is_start = is_first | (is_maskable & starts_word[input_ids])  # [B, L], of a word
    word = (is_start.cumsum(1) - 1).clamp(min=0)  # [B, L]
    noise = bits(seed, Stream.RUN_LENGTH, example_id[:, None], position)
    *borders, total = accumulate(RUN_LENGTHS[kind])
    words = torch.ones_like(noise)  # [B, L], number of words of each run
    for border in borders:
        threshold = int(border / total * 2.0**63)
        words = words + (noise >= threshold).long()
    first_word = (words.cumsum(1) - words).clamp(max=length)  # [B, L], of each run
    starts_run = is_start.new_zeros(len(word), length + 1)
    starts_run = starts_run.scatter(1, first_word, True)
    is_unit_start = is_first | (is_start & starts_run.gather(1, word))
    return (is_unit_start.cumsum(1) - 1).clamp(min=0)


def choose_targets(
    input_ids: Tensor,
    is_maskable: Tensor,
    mask_rate: float,
    seed: int,
    example_id: Tensor,
    units: Tensor | None = None,
) -> Targets:
    """Draw `target_count` positions without replacement.

    input_ids int64 [B, L], is_maskable bool [B, L]. units, int64 [B, L]: each token's unit; whole
    units are drawn, and the last one is cut to the exact count.
    """
    length = input_ids.shape[1]
    count = target_count(is_maskable, mask_rate)  # [B]
    position = torch.arange(length, device=input_ids.device)
    noise = bits(seed, Stream.MASK, example_id[:, None], position)  # [B, L]
    if units is not None:  # the noise of the unit, and in its lowest bits the position
        noise = noise.gather(1, units) & -MAX_WIDTH | position
    most = max_targets(length, mask_rate)
    order = noise.masked_fill(~is_maskable, _MAX_INT64)
    positions = order.topk(most, largest=False).indices  # [B, K]
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
    """Replace a share of the targets by [MASK].

    random: tokens [B, K] and the share of the targets that they replace. Returns ids int64 [B, L]
    and which targets are [MASK], bool [B, K]. Papers: ELECTRA's code, BERT section 3.1.
    """
    draws = bits(
        seed,
        Stream.MASK_KIND,
        example_id[:, None],
        targets.positions,
    )  # [B, K]
    noise = uniform(draws)
    is_used = targets.weight > 0
    is_masked = (noise < mask_share) & is_used
    tokens = torch.where(is_masked, mask_id, targets.labels)
    if random is not None:  # [MASK] takes the lower end of the noise, random tokens the upper end
        random_ids, share = random
        is_random = (noise >= 1 - share) & is_used & ~is_masked
        tokens = torch.where(is_random, random_ids, tokens)
    return input_ids.scatter(1, targets.positions, tokens), is_masked


def random_tokens(
    targets: Targets,
    special: SpecialIds,
    vocab_size: int,
    seed: int,
    example_id: Tensor,
) -> Tensor:
    """Draw for each target, uniformly, another token that is not special. Returns int64 [B, K]."""
    specials = sorted(special.never_masked)
    noise = bits(
        seed,
        Stream.RANDOM_TOKEN,
        example_id[:, None],
        targets.positions,
    )  # [B, K]
    token = noise % (vocab_size - len(specials) - 1)
    rank = targets.labels
    for special_id in specials:  # id to rank among the ordinary tokens, without a table to copy
        rank = rank - (targets.labels > special_id).long()
    token = token + (token >= rank).long()  # skip the target's own rank
    for special_id in specials:  # rank to id; specials are in ascending order
        token = token + (token >= special_id).long()
    return token


def sample(
    logits: Tensor,
    temperature: float,
    seed: int,
    example_id: Tensor,
    position: Tensor,
) -> Tensor:
    """Draw a token from softmax(logits / temperature): hard Gumbel-softmax, detached.

    logits any float [M, V]; example_id and position int64 [M] key the noise; returns int64 [M].
    First a block of tokens by its logsumexp is drawn, then a token in it: the same distribution
    with 2 sqrt(V) noises, not V. Ten tokens in blocks of four:

        block scores   logsumexp(0 1 2 3)   logsumexp(4 5 6 7)   logsumexp(8 9)
        block 1        scores of 4 5 6 7

    Paper: ELECTRA section 2.
    """
    scores = logits.detach().float()
    if temperature != 1:
        scores = scores / temperature
    vocab = scores.shape[-1]
    size = 1 << math.isqrt(max(vocab - 1, 1)).bit_length()  # the next power of two
    whole = vocab // size * size
    blocks = scores[:, :whole].view(len(scores), vocab // size, size)
    block_scores = blocks.logsumexp(-1)  # [M, whole blocks]
    if whole < vocab:
        last = scores[:, whole:].logsumexp(-1, keepdim=True)
        block_scores = torch.cat([block_scores, last], dim=1)  # [M, blocks]
    count = block_scores.shape[-1]
    noise = _noise(seed, Stream.SAMPLE_BLOCK, example_id, position, count)
    block = (block_scores + noise).argmax(-1, keepdim=True)  # [M, 1]
    token = block * size + torch.arange(size, device=block.device)  # [M, size]
    within = scores.gather(1, token.clamp(max=vocab - 1))
    within = within.masked_fill(token >= vocab, -math.inf)  # the last block may be shorter
    noise = _noise(seed, Stream.SAMPLE_TOKEN, example_id, position, size)
    best = (within + noise).argmax(-1, keepdim=True)
    return token.gather(1, best).squeeze(1)


def _noise(seed: int, stream: Stream, example_id: Tensor, position: Tensor, count: int) -> Tensor:
    """Gumbel noise float32 [M, count], keyed by example and position."""
    index = torch.arange(count, device=position.device)
    draws = position[:, None] * count + index  # [M, count]
    return gumbel(bits(seed, stream, example_id[:, None], draws))
