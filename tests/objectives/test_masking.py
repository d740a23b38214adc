"""Targets are the right number of ordinary tokens; sampled tokens follow the softmax (law 4)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from electra_albert.keyed_random import Stream, bits, gumbel
from electra_albert.objectives.masking import (
    Targets,
    choose_targets,
    mask_tokens,
    maskable,
    max_targets,
    sample,
)
from tests.objectives.toy import CLS, MASK, PAD, SEED, SEP, SPECIAL, UNKNOWN

RATES = (0.15, 0.25, 0.3, 0.5)
ACCEPTED = 1e-3  # least p-value; draws are keyed, so the result is the same in every run
DRAWS = 12_000
LEAST_EXPECTED = 8.0  # rarer tokens are pooled, as the chi-squared test requires


def assert_well_chosen(
    targets: Targets, input_ids: Tensor, is_maskable: Tensor, mask_rate: float
) -> None:
    """Assert that each sequence has round(mask_rate x maskable) distinct maskable targets, at least
    one.
    """
    for i in range(len(input_ids)):
        positions = targets.positions[i][targets.weight[i] > 0].tolist()
        count = int(is_maskable[i].sum())
        expected = min(
            max(1, round(mask_rate * count)), max_targets(input_ids.shape[1], mask_rate), count
        )
        assert len(positions) == expected, f"{len(positions)} of {count} tokens, not {expected}"
        assert len(set(positions)) == len(positions), "a token was chosen twice"
        assert all(is_maskable[i, position] for position in positions), (
            "a special token or padding was chosen"
        )
        assert targets.labels[i].tolist() == input_ids[i][targets.positions[i]].tolist()


def choose(
    count: int, length: int, mask_rate: float, share: float
) -> tuple[Tensor, Tensor, Targets]:
    """Targets of sequences in which about `share` of the tokens is maskable."""
    example = torch.arange(count)
    noise = bits(1, Stream.EXAMPLE, example[:, None], torch.arange(length))
    ids = 5 + noise % 100
    is_maskable = noise // 100 % 1000 < 1000 * share
    return ids, is_maskable, choose_targets(ids, is_maskable, mask_rate, SEED, example)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 70), st.sampled_from(RATES), st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
def test_targets_are_the_right_number_of_distinct_maskable_tokens(
    length: int, rate: float, share: float
) -> None:
    ids, is_maskable, targets = choose(6, length, rate, share)
    assert targets.positions.shape == targets.weight.shape == (6, max_targets(length, rate))
    assert_well_chosen(targets, ids, is_maskable, rate)


def test_special_tokens_and_padding_are_not_maskable_and_one_token_is_chosen_at_least() -> None:
    ids = torch.tensor(
        [[CLS, 7, UNKNOWN, SEP, MASK, 9, SEP, 11], [CLS, UNKNOWN, SEP, MASK, SEP, PAD, PAD, PAD]]
    )
    mask = torch.tensor([[True] * 7 + [False], [True] * 5 + [False] * 3])
    is_maskable = maskable(ids, mask, SPECIAL)
    keys = (SEED, torch.tensor([3, 4]))
    assert is_maskable.nonzero().tolist() == [[0, 1], [0, 5]]
    targets = choose_targets(ids, is_maskable, 0.15, *keys)
    assert targets.weight.tolist() == [[1.0], [0.0]]
    shown, is_masked = mask_tokens(ids, targets, MASK, 1.0, *keys)
    assert torch.equal(shown[1], ids[1])
    assert is_masked.tolist() == [[True], [False]]


def test_every_maskable_position_is_chosen_equally_often() -> None:
    _, _, targets = choose(4000, 29, 0.25, share=1.0)
    counts = torch.bincount(targets.positions[targets.weight > 0], minlength=29)
    assert stats.chisquare(counts.numpy()).pvalue > ACCEPTED


def make_logits(vocab: int) -> Tensor:
    """Logits [V] with probabilities of very different sizes."""
    return gumbel(bits(5, Stream.EXAMPLE, torch.tensor(vocab), torch.arange(vocab)))


def draw(logits: Tensor, temperature: float, by_position: bool = False) -> Tensor:
    """DRAWS tokens sampled from the same logits, keyed by the example or by the position."""
    keys = [torch.arange(DRAWS), torch.full((DRAWS,), 3)]
    if by_position:
        keys.reverse()
    return sample(logits.expand(DRAWS, -1), temperature, SEED, *keys)


def chi_squared(drawn: Tensor, logits: Tensor, temperature: float) -> float:
    """The chi-squared p-value of the tokens under softmax(logits / temperature)."""
    expected = DRAWS * torch.softmax(logits.double() / temperature, -1).numpy()
    observed = torch.bincount(drawn, minlength=len(logits)).double().numpy()
    group = np.where(expected < LEAST_EXPECTED, len(logits), np.arange(len(logits)))
    _, group = np.unique(group, return_inverse=True)
    pooled = [np.bincount(group, counts) for counts in (observed, expected)]
    return float(stats.chisquare(*pooled).pvalue)


@pytest.mark.parametrize(
    ("vocab", "temperature", "dtype"), [(7, 0.5, torch.float32), (101, 2.0, torch.bfloat16)]
)
def test_samples_follow_the_softmax_at_each_temperature(
    vocab: int, temperature: float, dtype: torch.dtype
) -> None:
    logits = make_logits(vocab).to(dtype)
    for by_position in (False, True):
        drawn = draw(logits, temperature, by_position)
        assert chi_squared(drawn, logits, temperature) > ACCEPTED


def test_extreme_logits_are_sampled_exactly() -> None:
    # Near the largest float16: exponentials must neither overflow nor underflow.
    for token, others in ((6e4, 0.0), (0.0, -6e4)):
        logits = torch.full((101,), others, dtype=torch.float16)
        logits[37] = token
        assert (draw(logits, 0.5) == 37).all()
    logits = torch.full((101,), -torch.inf)
    finite = torch.tensor([3, 55, 100])
    logits[finite] = torch.tensor([0.0, 1.0, 2.0])
    drawn = draw(logits, 1.0)
    assert torch.isin(drawn, finite).all()
    assert chi_squared(torch.searchsorted(finite, drawn), logits[finite], 1.0) > ACCEPTED
