"""Drawn tokens follow softmax(logits / temperature), in every dtype, and nothing flows back through them (law 4)."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from electra_albert.keyed_random import Stream, bits, gumbel
from electra_albert.objectives.masking import sample
from tests.objectives.toy import SEED, sample_plainly

DRAWS = 12_000
LEAST_EXPECTED = 8.0  # rarer tokens are counted together, as the chi-squared test wants
ACCEPTED, REJECTED = 1e-3, 1e-12  # draws are keyed, so a law holds here on every run or on none
Sampler = Callable[[Tensor, float, int, Tensor, Tensor], Tensor]


def make_logits(vocab: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Scores [V] of very different sizes, the rarest tokens spread over the vocabulary."""
    return (scale * gumbel(bits(5, Stream.EXAMPLE, torch.tensor(vocab), torch.arange(vocab)))).to(dtype)


def draw(sampler: Sampler, logits: Tensor, temperature: float, by_position: bool = False) -> Tensor:
    """DRAWS tokens from one row of scores, keyed by the example or by the position."""
    number, fixed = torch.arange(DRAWS), torch.full((DRAWS,), 3)
    example, position = (fixed, number) if by_position else (number, fixed)
    return sampler(logits.expand(DRAWS, -1), temperature, SEED, example, position)


def chi_squared(drawn: Tensor, logits: Tensor, temperature: float) -> float:
    """The p-value of the tokens under softmax(logits / temperature)."""
    expected = DRAWS * torch.softmax(logits.double() / temperature, -1).numpy()
    observed = torch.bincount(drawn, minlength=len(logits)).double().numpy()
    is_rare = expected < LEAST_EXPECTED
    pooled = [np.append(counts[~is_rare], counts[is_rare].sum()) for counts in (observed, expected)]
    if pooled[1][-1] < 1e-9:
        pooled = [counts[:-1] for counts in pooled]
    return float(stats.chisquare(*pooled).pvalue)


@pytest.mark.parametrize(("vocab", "temperature"), [(7, 0.5), (101, 2.0)])
def test_draws_follow_the_softmax_at_each_temperature(vocab: int, temperature: float) -> None:
    logits = make_logits(vocab)
    for sampler, by_position in ((sample, False), (sample, True), (sample_plainly, False)):
        drawn = draw(sampler, logits, temperature, by_position)
        assert chi_squared(drawn, logits, temperature) > ACCEPTED


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_draws_follow_the_softmax_in_any_dtype(dtype: torch.dtype) -> None:
    logits = make_logits(101, dtype)
    assert chi_squared(draw(sample, logits, 1.0), logits, 1.0) > ACCEPTED


def test_check_rejects_a_temperature_that_is_divided_after_the_noise() -> None:
    # Planted: the argmax of (logits + noise) / T, which is a draw at T = 1 whatever T is.
    def after_noise(logits: Tensor, temperature: float, seed: int, example: Tensor, position: Tensor) -> Tensor:
        noise = gumbel(bits(seed, Stream.SAMPLE_TOKEN, example[:, None], torch.arange(logits.shape[-1])))
        return ((logits + noise) / temperature).argmax(-1)

    logits = make_logits(101)
    assert chi_squared(draw(after_noise, logits, 1.0), logits, 1.0) > ACCEPTED
    assert chi_squared(draw(after_noise, logits, 2.0), logits, 2.0) < REJECTED


def test_check_rejects_blocks_chosen_by_their_best_token() -> None:
    # Planted: a block's maximum in the place of its logsumexp, which favours blocks with one likely token.
    def by_maximum(logits: Tensor, temperature: float, seed: int, example: Tensor, position: Tensor) -> Tensor:
        blocks = (logits / temperature).view(len(logits), 8, -1)
        noise = gumbel(bits(seed, Stream.SAMPLE_BLOCK, example[:, None], torch.arange(8)))
        block = (blocks.amax(-1) + noise).argmax(-1)
        within = blocks[torch.arange(len(block)), block]
        noise = gumbel(bits(seed, Stream.SAMPLE_TOKEN, example[:, None], torch.arange(within.shape[-1])))
        return block * within.shape[-1] + (within + noise).argmax(-1)

    logits = make_logits(64)
    assert chi_squared(draw(by_maximum, logits, 1.0), logits, 1.0) < REJECTED


@pytest.mark.parametrize(("token", "others"), [(6e4, 0.0), (0.0, -6e4)])
def test_token_far_above_all_others_is_always_drawn(token: float, others: float) -> None:
    # Near float16's largest number: neither an exponential that overflows nor one that vanishes may decide.
    logits = torch.full((101,), others, dtype=torch.float16)
    logits[37] = token
    assert (draw(sample, logits, 0.5) == 37).all()


def test_forbidden_tokens_are_never_drawn_even_where_they_fill_a_block() -> None:
    logits = torch.full((101,), -torch.inf)
    allowed = torch.tensor([3, 55, 100])
    logits[allowed] = torch.tensor([0.0, 1.0, 2.0])
    drawn = draw(sample, logits, 1.0)
    assert torch.isin(drawn, allowed).all()
    assert chi_squared(drawn, logits, 1.0) > ACCEPTED


def test_a_draw_is_an_integer_without_a_gradient_that_does_not_depend_on_its_batch() -> None:
    number, position = torch.arange(40), torch.arange(40) % 7
    logits = torch.stack([make_logits(vocab=101, scale=1 + i / 10) for i in range(40)]).requires_grad_()
    whole = sample(logits, 1.0, SEED, number, position)
    assert whole.dtype == torch.int64
    assert not whole.requires_grad
    for rows in (torch.arange(39, -1, -1), torch.tensor([7]), torch.arange(5, 18)):
        assert torch.equal(sample(logits[rows], 1.0, SEED, number[rows], position[rows]), whole[rows])
