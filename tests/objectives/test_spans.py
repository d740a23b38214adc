"""Units of whole words are masked whole and have the lengths of the papers; mask rates change as
scheduled.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from electra_albert.keyed_random import Stream, bits
from electra_albert.objectives.masking import choose_targets, find_units, maskable
from tests.objectives.test_masking import ACCEPTED, assert_well_chosen
from tests.objectives.test_objectives import assert_corruption_does_not_depend_on_the_batch
from tests.objectives.toy import PAD, SEED, SEP, SPECIAL, STARTS_WORD, build, make_batch

WORDS = {"word": 1, "ngram": 3, "span": 10}  # the most words of a unit
RATE = 0.3
GEOMETRIC = 0.2 * 0.8 ** np.arange(10)  # SpanBERT section 3.1
LENGTHS = {"ngram": np.array([6, 3, 2]) / 11, "span": GEOMETRIC / GEOMETRIC.sum()}


def sequences(count: int = 40, length: int = 67) -> tuple[Tensor, Tensor, Tensor]:
    """Ids with special tokens and padding at keyed positions, which tokens are maskable, and
    example ids.
    """
    example = torch.arange(count) + 50
    position = torch.arange(length)
    drawn = bits(3, Stream.EXAMPLE, example[:, None], position)
    ids = torch.where(drawn % 17 == 0, SEP, 5 + drawn % 90)
    mask = position < length - example[:, None] % 9
    ids = torch.where(mask, ids, PAD)
    return ids, maskable(ids, mask, SPECIAL), example


def assert_runs_of_words(ids: Tensor, is_maskable: Tensor, units: Tensor, most: int) -> None:
    """Assert that the units of a sequence are numbered in order, and that each is a run of 1 to
    `most` whole words without a special token.
    """
    number = -1
    words = 0
    is_first = True
    for position in range(len(ids)):
        if not is_maskable[position]:
            is_first = True
            continue
        is_start = is_first or bool(STARTS_WORD[ids[position]])
        if is_first or int(units[position]) != number:
            number = number + 1
            words = 0
            assert is_start
        words += is_start
        assert int(units[position]) == number
        assert words <= most
        is_first = False


@pytest.mark.parametrize("kind", WORDS)
def test_whole_units_are_chosen_and_only_the_last_is_cut_to_the_exact_number(kind: str) -> None:
    ids, is_maskable, example = sequences()
    units = find_units(kind, STARTS_WORD, ids, is_maskable, SEED, example)
    targets = choose_targets(ids, is_maskable, RATE, SEED, example, units)
    assert_well_chosen(targets, ids, is_maskable, RATE)
    for i in range(len(ids)):
        assert_runs_of_words(ids[i], is_maskable[i], units[i], WORDS[kind])
        chosen = targets.positions[i][targets.weight[i] > 0].tolist()
        while chosen:
            is_here = (units[i] == units[i, chosen[0]]) & is_maskable[i]
            unit = is_here.nonzero().flatten().tolist()
            assert unit[: len(chosen)] == chosen[: len(unit)], "not whole units"
            chosen = chosen[len(unit) :]


@pytest.mark.parametrize("kind", LENGTHS)
def test_numbers_of_words_follow_the_distribution_of_the_paper(kind: str) -> None:
    # The first eight units of each sequence, which never reach its end: a unit cut at the end would
    # be too short.
    count = 2000
    first = 8
    ids = torch.full((count, first * WORDS[kind] + 1), 6)  # each token is a word
    is_maskable = torch.ones_like(ids).bool()
    keys = SEED, torch.arange(count)
    units = find_units(kind, STARTS_WORD, ids, is_maskable, *keys)
    words = torch.zeros_like(units).scatter_add(1, units, torch.ones_like(units))  # of each unit
    observed = torch.bincount(words[:, :first].flatten(), minlength=WORDS[kind] + 1)[1:].numpy()
    assert stats.chisquare(observed, count * first * LENGTHS[kind]).pvalue > ACCEPTED
    # The first chosen unit is as long as any of its sequence: the choice has other noise.
    targets = choose_targets(ids, is_maskable, RATE, *keys, units)
    chosen = words.gather(1, units.gather(1, targets.positions[:, :1])).flatten()
    of_size = [(words == size).sum(1).double() for size in range(1, WORDS[kind] + 1)]
    shares = torch.stack(of_size) / sum(of_size)
    selected = torch.bincount(chosen, minlength=WORDS[kind] + 1)[1:].numpy()
    assert stats.chisquare(selected, shares.sum(1).numpy()).pvalue > ACCEPTED


@pytest.mark.parametrize("kind", WORDS)
def test_units_depend_neither_on_padding_nor_on_other_sequences(kind: str) -> None:
    ids, is_maskable, example = sequences()
    units = find_units(kind, STARTS_WORD, ids, is_maskable, SEED, example)
    wide = [torch.nn.functional.pad(each, (0, 11)).flip(0) for each in (ids, is_maskable)]
    padded = find_units(kind, STARTS_WORD, *wide, SEED, example.flip(0))
    assert torch.equal(padded[:, : ids.shape[1]], units.flip(0))
    objectives = [build("rtd", mask_unit=unit).double() for unit in (kind, "token")]
    assert_corruption_does_not_depend_on_the_batch(objectives[0], make_batch())
    first, second = (each.corrupt(make_batch()).targets.positions for each in objectives)
    assert not torch.equal(first, second)
