"""Units of whole words are masked whole and have the lengths of the papers; mask rates change as
scheduled.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from electra_albert.keyed_random import Stream, bits
from electra_albert.objectives.masking import (
    Targets,
    choose_targets,
    find_units,
    maskable,
    max_targets,
)
from tests.objectives.test_masking import ACCEPTED, REJECTED, assert_well_chosen
from tests.objectives.test_objectives import assert_corruption_does_not_depend_on_the_batch
from tests.objectives.toy import PAD, SEED, SEP, SPECIAL, STARTS_WORD, build, make_batch

WORDS = {"word": 1, "ngram": 3, "span": 10}  # the most words of a unit
RATE, STEPS = 0.3, 7
GEOMETRIC = 0.2 * 0.8 ** np.arange(10)  # SpanBERT section 3.1
LENGTHS: Mapping[str, Any] = {
    "ngram": np.array([6, 3, 2]) / 11,
    "span": GEOMETRIC / GEOMETRIC.sum(),
}


def sequences(count: int = 40, length: int = 67) -> tuple[Tensor, Tensor, Tensor]:
    """Ids with special tokens and padding at keyed positions, which tokens are maskable, and
    example ids.
    """
    example, position = torch.arange(count) + 50, torch.arange(length)
    drawn = bits(3, Stream.EXAMPLE, example[:, None], position)
    ids = torch.where(drawn % 17 == 0, SEP, 5 + drawn % 90)
    mask = position < length - example[:, None] % 9
    ids = torch.where(mask, ids, PAD)
    return ids, maskable(ids, mask, SPECIAL), example


def parts_of(ids: list[int], is_maskable: list[bool]) -> list[list[list[int]]]:
    """Positions of each word of each part between special tokens, by the definition."""
    parts: list[list[list[int]]] = [[]]
    for position, token in enumerate(ids):
        if not is_maskable[position]:
            parts.append([])
        elif not parts[-1] or STARTS_WORD[token]:
            parts[-1].append([position])
        else:
            parts[-1][-1].append(position)
    return [part for part in parts if part]


def units_of(ids: Tensor, is_maskable: Tensor, units: Tensor, most: int) -> list[list[int]]:
    """Positions of each unit of a sequence; asserts that each is a run of 1 to `most` whole words
    without a gap.
    """
    found = []
    for part in parts_of(ids.tolist(), is_maskable.tolist()):
        runs: dict[int, list[list[int]]] = {}
        for word in part:
            (unit,) = {int(units[position]) for position in word}  # the whole word is in one unit
            runs.setdefault(unit, []).append(word)
        found += [[position for word in run for position in word] for run in runs.values()]
        assert list(runs) == list(range(min(runs), max(runs) + 1)), (
            "units are not numbered in order"
        )
        assert max(map(len, runs.values())) <= most, "too many words"
    assert [int(units[unit[0]]) for unit in found] == list(range(len(found))), (
        "a unit crosses a special token"
    )
    return found


def assert_whole(
    kind: str, ids: Tensor, is_maskable: Tensor, units: Tensor, targets: Targets
) -> None:
    """Assert the exact number of targets, and that they are whole units in the order of drawing,
    the last one cut.
    """
    assert_well_chosen(targets, ids, is_maskable, RATE)
    for i in range(len(ids)):
        by_position = {
            unit[0]: unit for unit in units_of(ids[i], is_maskable[i], units[i], WORDS[kind])
        }
        chosen = targets.positions[i][targets.weight[i] > 0].tolist()
        while chosen:
            unit = by_position.pop(chosen[0], [])
            assert unit[: len(chosen)] == chosen[: len(unit)] != [], "not whole units"
            chosen = chosen[len(unit) :]


@pytest.mark.parametrize("kind", WORDS)
def test_whole_units_are_chosen_and_only_the_last_is_cut_to_the_exact_number(kind: str) -> None:
    ids, is_maskable, example = sequences()
    units = find_units(kind, STARTS_WORD, ids, is_maskable, SEED, example)
    assert_whole(
        kind, ids, is_maskable, units, choose_targets(ids, is_maskable, RATE, SEED, example, units)
    )
    # Planted: single tokens, and units that continue after a special token.
    with pytest.raises(AssertionError, match="not whole units"):
        assert_whole(
            kind, ids, is_maskable, units, choose_targets(ids, is_maskable, RATE, SEED, example)
        )
    crossing = find_units(kind, STARTS_WORD, ids, torch.ones_like(is_maskable), SEED, example)
    with pytest.raises(AssertionError, match="crosses a special token"):
        assert_whole(
            kind,
            ids,
            is_maskable,
            crossing,
            choose_targets(ids, is_maskable, RATE, SEED, example, crossing),
        )


@pytest.mark.parametrize("kind", LENGTHS)
def test_numbers_of_words_follow_the_distribution_of_the_paper(kind: str) -> None:
    # The first eight units of each sequence, which never reach its end: a unit cut at the end would
    # be too short.
    count, first = 2000, 8
    ids = torch.full((count, first * WORDS[kind] + 1), 6)  # each token is a word
    units = find_units(
        kind, STARTS_WORD, ids, torch.ones_like(ids).bool(), SEED, torch.arange(count)
    )
    words = torch.zeros_like(units).scatter_add(1, units, torch.ones_like(units))  # of each unit
    sizes = words[:, :first]
    observed = torch.bincount(sizes.flatten(), minlength=WORDS[kind] + 1)[1:].numpy()
    assert stats.chisquare(observed, count * first * LENGTHS[kind]).pvalue > ACCEPTED
    # Planted: longer n-grams more often; the tail of the geometric distribution added to 10 words,
    # with mean 4.5.
    clipped = np.append(GEOMETRIC[:-1], 1 - GEOMETRIC[:-1].sum())
    other = LENGTHS[kind][::-1] if kind == "ngram" else clipped
    assert stats.chisquare(observed, count * first * other).pvalue < REJECTED
    mean = {"ngram": 18 / 11, "span": 3.8}[kind]  # in the papers
    assert sizes.double().mean() == pytest.approx(
        mean, abs=4 * float(sizes.double().std()) / (count * first) ** 0.5
    )
    # The first chosen unit is as long as any of its sequence: the choice has other noise.
    is_maskable = torch.ones_like(ids).bool()
    targets = choose_targets(ids, is_maskable, RATE, SEED, torch.arange(count), units)
    chosen = words.gather(1, units.gather(1, targets.positions[:, :1])).flatten()
    of_size = [(words == size).sum(1).double() for size in range(1, WORDS[kind] + 1)]
    shares = torch.stack(of_size) / sum(of_size)
    selected = torch.bincount(chosen, minlength=WORDS[kind] + 1)[1:].numpy()
    assert stats.chisquare(selected, shares.sum(1).numpy()).pvalue > ACCEPTED


@pytest.mark.parametrize("kind", WORDS)
def test_units_depend_neither_on_padding_nor_on_other_sequences(kind: str) -> None:
    ids, is_maskable, example = sequences()
    units = find_units(kind, STARTS_WORD, ids, is_maskable, SEED, example)
    wide = [torch.nn.functional.pad(each, (0, 11)) for each in (ids, is_maskable)]
    index = torch.arange(31, 4, -2)
    padded = find_units(kind, STARTS_WORD, *(each[index] for each in wide), SEED, example[index])
    assert torch.equal(padded[:, : ids.shape[1]], units[index])
    objective = build("rtd", mask_unit=kind).double()
    assert_corruption_does_not_depend_on_the_batch(objective, make_batch())
    assert not torch.equal(
        objective.corrupt(make_batch()).targets.positions,
        build("rtd").corrupt(make_batch()).targets.positions,
    )


def test_single_tokens_are_chosen_in_the_order_of_their_noise() -> None:
    ids, is_maskable, example = sequences()
    assert find_units("token", None, ids, is_maskable, SEED, example) is None
    noise = bits(SEED, Stream.MASK, example[:, None], torch.arange(ids.shape[1]))
    order = noise.masked_fill(~is_maskable, torch.iinfo(torch.int64).max).argsort(1)
    targets = choose_targets(ids, is_maskable, RATE, SEED, example)
    assert torch.equal(targets.positions, order[:, : max_targets(ids.shape[1], RATE)])
