"""Drawn tokens follow softmax(logits / temperature), in every dtype, and nothing flows back through them (law 4)."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from electra_albert.keyed_random import Stream, bits, gumbel
from electra_albert.objectives.masking import block_size, sample, sample_plainly
from tests.objectives.toy import SEED

DRAWS = 12_000
LEAST_EXPECTED = 8.0  # rarer tokens are counted together, as the chi-squared test wants
ACCEPTED, REJECTED = 1e-3, 1e-12  # draws are keyed, so a law holds here on every run or on none
Sampler = Callable[[Tensor, float, int, Tensor, Tensor], Tensor]
SAMPLERS: dict[str, Sampler] = {"two levels": sample, "plain": sample_plainly}
VOCABS = (7, 64, 101)


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


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_follow_the_softmax_at_each_temperature(sampler: str, vocab: int, temperature: float) -> None:
    logits = make_logits(vocab)
    assert chi_squared(draw(SAMPLERS[sampler], logits, temperature), logits, temperature) > ACCEPTED


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_at_different_positions_of_one_row_follow_it_too(sampler: str) -> None:
    logits = make_logits(101)
    assert chi_squared(draw(SAMPLERS[sampler], logits, 1.0, by_position=True), logits, 1.0) > ACCEPTED


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_draws_follow_the_softmax_in_any_dtype(dtype: torch.dtype) -> None:
    logits = make_logits(101, dtype)
    assert chi_squared(draw(sample, logits, 1.0), logits, 1.0) > ACCEPTED


def test_autocast_changes_no_draw() -> None:
    logits = make_logits(101)
    expected = draw(sample, logits, 0.7)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(draw(sample, logits, 0.7), expected)


def test_neighbouring_draws_are_independent() -> None:
    logits = torch.zeros(6)
    for by_position in (True, False):
        drawn = draw(sample, logits, 1.0, by_position)
        pairs = torch.bincount(6 * drawn[0::2] + drawn[1::2], minlength=36)
        assert stats.chisquare(pairs.numpy()).pvalue > ACCEPTED


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_check_rejects_a_temperature_that_is_divided_after_the_noise(temperature: float) -> None:
    # Planted: the argmax of (logits + noise) / T, which is a draw at T = 1 whatever T is.
    def after_noise(logits: Tensor, temperature: float, seed: int, example: Tensor, position: Tensor) -> Tensor:
        noise = gumbel(bits(seed, Stream.SAMPLE_TOKEN, example[:, None], torch.arange(logits.shape[-1])))
        return ((logits + noise) / temperature).argmax(-1)

    logits = make_logits(101)
    assert chi_squared(draw(after_noise, logits, 1.0), logits, 1.0) > ACCEPTED
    assert chi_squared(draw(after_noise, logits, temperature), logits, temperature) < REJECTED


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


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("token", "others"), [(6e4, 0.0), (0.0, -6e4), (6e4, -6e4)])
def test_token_far_above_all_others_is_always_drawn(
    sampler: str, dtype: torch.dtype, token: float, others: float
) -> None:
    # Near float16's largest number: neither an exponential that overflows nor one that vanishes may decide.
    logits = torch.full((101,), others, dtype=dtype)
    logits[37] = token
    assert (draw(SAMPLERS[sampler], logits, 0.5) == 37).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_forbidden_tokens_are_never_drawn_even_where_they_fill_a_block(sampler: str) -> None:
    logits = torch.full((101,), -torch.inf)
    allowed = torch.tensor([3, 55, 100])
    logits[allowed] = torch.tensor([0.0, 1.0, 2.0])
    drawn = draw(SAMPLERS[sampler], logits, 1.0)
    assert torch.isin(drawn, allowed).all()
    assert chi_squared(drawn, logits, 1.0) > ACCEPTED


@pytest.mark.parametrize("vocab", [1, 2, 3, 5, 6, 7, 31, 33, 100, 1023, 1025])
def test_drawn_ids_stay_inside_any_vocabulary(vocab: int) -> None:
    drawn = draw(sample, torch.zeros(vocab), 1.0)
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < vocab


def test_two_levels_need_far_fewer_noises_than_tokens() -> None:
    vocab = 30_000
    size = block_size(vocab)
    assert size + -(-vocab // size) < vocab / 50


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_of_a_token_do_not_depend_on_its_batch(sampler: str) -> None:
    number, position = torch.arange(40), torch.arange(40) % 7
    logits = torch.stack([make_logits(vocab=101, scale=1 + i / 10) for i in range(40)])
    whole = SAMPLERS[sampler](logits, 1.0, SEED, number, position)
    for rows in (torch.arange(39, -1, -1), torch.tensor([7]), torch.arange(5, 18)):
        assert torch.equal(SAMPLERS[sampler](logits[rows], 1.0, SEED, number[rows], position[rows]), whole[rows])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draw_is_an_integer_without_a_gradient(sampler: str) -> None:
    logits = make_logits(101).requires_grad_().expand(5, -1)
    drawn = SAMPLERS[sampler](logits, 1.0, SEED, torch.arange(5), torch.arange(5))
    assert drawn.dtype == torch.int64
    assert not drawn.requires_grad
