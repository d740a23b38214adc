"""Choice of the tokens to predict, their masking, and sampling from the generator.

Every shape depends only on the batch's shape and the number of slots; unused slots have weight 0.
Dimensions: B batch, L length, K slots a row, M any number of predicted tokens, V vocab.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from electra_albert.contracts import SpecialIds
from electra_albert.keyed_random import Stream, bits, gumbel, uniform

_MAX_INT64 = torch.iinfo(torch.int64).max


class Targets(NamedTuple):
    """The tokens to predict: slots of a row, ordered by their keyed noise."""

    positions: Tensor  # [B, K] int64
    weight: Tensor  # [B, K] float32, 0 for unused slots
    labels: Tensor  # [B, K] int64, the original tokens


def maskable(input_ids: Tensor, attention_mask: Tensor, special: SpecialIds) -> Tensor:
    """Bool [B, L]: real tokens that are not special. input_ids int64 [B, L], attention_mask bool [B, L]."""
    is_real = attention_mask
    for token in special.never_masked:  # one by one: a tensor of them would have to be sent to the device at each step
        is_real = is_real & (input_ids != token)
    return is_real


def slots(length: int, rate: float) -> int:
    """K: predicted tokens of the fullest possible row, [CLS] and one [SEP] taken off."""
    return max(1, round(rate * (length - 2)))


def quota(is_maskable: Tensor, rate: float) -> Tensor:
    """round(rate x maskable) of each row, at least 1 where anything is maskable. [B, L] bool to [B] int64."""
    count = is_maskable.sum(-1)  # [B]
    # In float64, as in `slots`: float32 rounds some products that end in a half the other way, and MPS has no other.
    exact = count.cpu() if count.device.type == "mps" else count
    wanted = (exact.double() * rate).round().to(torch.int64).clamp(min=1, max=slots(is_maskable.shape[-1], rate))
    return torch.minimum(wanted.to(count.device), count)


def choose_targets(input_ids: Tensor, is_maskable: Tensor, rate: float, seed: int, example_id: Tensor) -> Targets:
    """Pick `quota` positions a row without replacement. input_ids int64 [B, L], is_maskable bool [B, L]."""
    length = input_ids.shape[1]
    noise = bits(seed, Stream.MASK, example_id[:, None], torch.arange(length, device=input_ids.device))  # [B, L]
    count = slots(length, rate)
    positions = noise.masked_fill(~is_maskable, _MAX_INT64).topk(count, largest=False).indices  # [B, K]
    is_used = torch.arange(count, device=input_ids.device) < quota(is_maskable, rate)[:, None]  # [B, K]
    return Targets(positions, is_used.float(), input_ids.gather(1, positions))


def show_masked(
    input_ids: Tensor,
    targets: Targets,
    mask_id: int,
    mask_share: float,
    seed: int,
    example_id: Tensor,
    others: tuple[Tensor, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Replace a share of the targets by [MASK] and, of the rest, a share by `others` [B, K] where they are given.

    Returns ids int64 [B, L] and which targets are [MASK], bool [B, K]. Papers: ELECTRA's code, BERT section 3.1.
    """
    noise = uniform(bits(seed, Stream.MASK_KIND, example_id[:, None], targets.positions))  # [B, K]
    is_used = targets.weight > 0
    is_shown_masked = (noise < mask_share) & is_used
    shown = torch.where(is_shown_masked, mask_id, targets.labels)
    if others is not None:  # from the upper end of the noise, as [MASK] has the lower one
        shown = torch.where((noise >= 1 - others[1]) & is_used & ~is_shown_masked, others[0], shown)
    return input_ids.scatter(1, targets.positions, shown), is_shown_masked


def other_tokens(targets: Targets, special: SpecialIds, vocab_size: int, seed: int, example_id: Tensor) -> Tensor:
    """Draw for each target a token that is neither itself nor special, all others alike. Returns int64 [B, K]."""
    specials = sorted(special.never_masked)
    noise = bits(seed, Stream.RANDOM_TOKEN, example_id[:, None], targets.positions)  # [B, K]
    drawn = noise % (vocab_size - len(specials) - 1)
    own = targets.labels
    for token in specials:  # a rank among the tokens that are not special; without a table to send to the device
        own = own - (targets.labels > token).long()
    drawn = drawn + (drawn >= own).long()  # the rank of the token itself is skipped
    for token in specials:  # from the rank back to the id, in rising order
        drawn = drawn + (drawn >= token).long()
    return drawn


def sample(logits: Tensor, temperature: float, seed: int, example_id: Tensor, position: Tensor) -> Tensor:
    """Draw a token from softmax(logits / temperature): hard Gumbel-softmax, detached. Paper: ELECTRA section 2.

    logits any float [M, V]; example_id and position int64 [M] key the noise; returns int64 [M].
    """
    # A block by its perturbed logsumexp, then a token in it: the same distribution with about 2 sqrt(V) noises, not V.
    scores = logits.detach().float() if temperature == 1 else logits.detach().float() / temperature
    vocab = scores.shape[-1]
    size = 1 << max(1, math.isqrt(max(vocab - 1, 1))).bit_length()  # the power of two nearest above sqrt(V)
    whole = vocab // size * size
    block_scores = scores[:, :whole].unflatten(-1, (-1, size)).logsumexp(-1)  # [M, whole blocks]
    if whole < vocab:
        block_scores = torch.cat([block_scores, scores[:, whole:].logsumexp(-1, keepdim=True)], dim=1)  # [M, blocks]
    noise = _noise(seed, Stream.SAMPLE_BLOCK, example_id, position, block_scores.shape[-1])
    block = (block_scores + noise).argmax(-1, keepdim=True)  # [M, 1]
    token = block * size + torch.arange(size, device=block.device)  # [M, size]
    # The last block may end before the others do.
    within = scores.gather(1, token.clamp(max=vocab - 1)).masked_fill(token >= vocab, -math.inf)
    best = (within + _noise(seed, Stream.SAMPLE_TOKEN, example_id, position, size)).argmax(-1, keepdim=True)
    return token.gather(1, best).squeeze(1)


def _noise(seed: int, stream: Stream, example_id: Tensor, position: Tensor, count: int) -> Tensor:
    """Gumbel noise float32 [M, count], keyed by example and position."""
    draws = position[:, None] * count + torch.arange(count, device=position.device)  # [M, count]
    return gumbel(bits(seed, stream, example_id[:, None], draws))
