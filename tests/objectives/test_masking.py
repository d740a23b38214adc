"""Exactly the right number of tokens is predicted in each row, none of them special, 85 in 100 shown as [MASK]."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from electra_albert.keyed_random import Stream, bits
from electra_albert.objectives.masking import Targets, choose_targets, maskable, show_masked, slots
from tests.objectives.toy import CLS, MASK, PAD, SEED, SEP, SPECIAL, UNKNOWN

RATES = (0.15, 0.25, 0.3, 0.5)
ACCEPTED = 1e-3  # least p-value; draws are keyed, so a test holds on every run or on none


def assert_well_chosen(targets: Targets, input_ids: Tensor, is_maskable: Tensor, rate: float) -> None:
    """AssertionError unless each row uses round(rate x maskable) different maskable tokens, at least one."""
    for row in range(len(input_ids)):
        is_used = targets.weight[row] > 0
        positions = targets.positions[row][is_used].tolist()
        count = int(is_maskable[row].sum())
        expected = min(max(1, round(rate * count)), slots(input_ids.shape[1], rate), count)
        assert len(positions) == expected, f"{len(positions)} of {count} tokens, not {expected}"
        assert len(set(positions)) == len(positions), "a token was chosen twice"
        assert all(is_maskable[row, position] for position in positions), "a special token or padding was chosen"
        assert targets.labels[row].tolist() == input_ids[row][targets.positions[row]].tolist()


def choose(rows: int, length: int, rate: float, share: float) -> tuple[Tensor, Tensor, Targets]:
    """Targets of rows in which about `share` of the tokens may be masked."""
    example, place = torch.arange(rows), torch.arange(length)
    ids = 5 + bits(1, Stream.EXAMPLE, example[:, None], place) % 100
    is_maskable = bits(2, Stream.EXAMPLE, example[:, None], place) % 1000 < round(1000 * share)
    return ids, is_maskable, choose_targets(ids, is_maskable, rate, SEED, example)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 70), st.sampled_from(RATES), st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
def test_chosen_tokens_are_the_right_number_of_different_maskable_ones(length: int, rate: float, share: float) -> None:
    ids, is_maskable, targets = choose(6, length, rate, share)
    assert targets.positions.shape == targets.weight.shape == (6, slots(length, rate))
    assert_well_chosen(targets, ids, is_maskable, rate)


@pytest.mark.parametrize("fault", ["one too many", "twice", "special"])
def test_check_of_the_choice_rejects(fault: str) -> None:
    # Planted: a quota rounded up, positions drawn with replacement, and padding among the candidates.
    ids, is_maskable, right = choose(6, 41, 0.25, 0.5)
    used = int(right.weight[0].sum())
    weight, positions = right.weight.clone(), right.positions.clone()
    if fault == "one too many":
        weight[0, used] = 1
    elif fault == "twice":
        positions[0, 1] = positions[0, 0]
    else:
        positions[0, 0] = int((~is_maskable[0]).nonzero()[0])
    wrong = Targets(positions, weight, ids.gather(1, positions))
    with pytest.raises(AssertionError):
        assert_well_chosen(wrong, ids, is_maskable, 0.25)


def test_only_real_tokens_that_are_not_special_are_maskable_and_one_is_chosen_where_there_is_any() -> None:
    ids = torch.tensor([[CLS, 7, UNKNOWN, SEP, MASK, 9, SEP, 11], [CLS, UNKNOWN, SEP, MASK, SEP, PAD, PAD, PAD]])
    mask = torch.tensor([[True] * 7 + [False], [True] * 5 + [False] * 3])
    is_maskable = maskable(ids, mask, SPECIAL)
    assert is_maskable.nonzero().tolist() == [[0, 1], [0, 5]]
    targets = choose_targets(ids, is_maskable, 0.15, SEED, torch.tensor([3, 4]))
    assert targets.weight.tolist() == [[1.0], [0.0]]
    shown, is_shown_masked = show_masked(ids, targets, MASK, 1.0, SEED, torch.tensor([3, 4]))
    assert torch.equal(shown[1], ids[1])
    assert is_shown_masked.tolist() == [[True], [False]]


def test_every_maskable_position_is_chosen_equally_often() -> None:
    rows, length, rate = 4000, 29, 0.25
    _, _, targets = choose(rows, length, rate, share=1.0)
    counts = torch.bincount(targets.positions[targets.weight > 0], minlength=length)
    assert stats.chisquare(counts.numpy()).pvalue > ACCEPTED
