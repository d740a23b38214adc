"""Bootstrap intervals have their coverage, comparisons are symmetric, and one seed has no std."""

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import DataError
from electra_albert.tasks.metrics import MEASURES, Comparison, Values, bootstrap_intervals, compare, summarize

LAW = settings(max_examples=100, deadline=None, derandomize=True)


def model(rates: list[float], size: int, seed: int) -> list[Values]:
    """One table per rate: a binary classifier with this accuracy; the gold classes are always the same."""
    gold = np.arange(size) % 2
    generator = np.random.default_rng(seed)
    is_right = [generator.random(size) < rate for rate in rates]
    return [np.stack([np.where(right, gold, 1 - gold), gold], axis=1).astype(np.float64) for right in is_right]


def interval_of(tables: list[Values], seed: int = 0, resamples: int = 1000) -> tuple[float, float]:
    return bootstrap_intervals(tables, MEASURES["classification"], seed, resamples)["accuracy"]


def compared(first: list[Values], second: list[Values], seed: int = 0, resamples: int = 300) -> Comparison:
    return compare(first, second, "classification", "accuracy", seed, resamples)


# Summaries


@LAW
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=9))
def test_a_summary_equals_the_standard_library(scores: list[float]) -> None:
    summary = summarize(scores)
    assert summary["values"] == scores
    assert summary["median"] == pytest.approx(statistics.median(scores), abs=1e-12)
    assert summary["mean"] == pytest.approx(statistics.fmean(scores), abs=1e-12)
    assert summary["std"] == pytest.approx(statistics.stdev(scores), abs=1e-9)
    assert summary["best"] == max(scores)
    assert summarize(scores, is_lower_better=True)["best"] == min(scores)
    assert summarize(scores[:1])["std"] is None


# Intervals


def test_an_interval_is_as_wide_as_that_of_the_normal_approximation() -> None:
    tables = model([0.8], size=2000, seed=3)
    low, high = interval_of(tables)
    share = MEASURES["classification"](tables[0])["accuracy"]
    half = 1.96 * math.sqrt(share * (1 - share) / 2000)
    # A quantile of 1,000 draws has a standard error of about 5 % of the half-width; four of these are allowed.
    assert (low, high) == pytest.approx((share - half, share + half), abs=0.2 * half)


def test_an_interval_covers_the_true_score_about_as_often_as_promised() -> None:
    found = [interval_of(model([0.7], size=150, seed=trial), seed=trial, resamples=200) for trial in range(120)]
    # Of 120 draws at 0.95 four standard deviations are 9.6 misses above the 6 expected; one more for the few resamples.
    assert 0 < sum(not low <= 0.7 <= high for low, high in found) <= 17


def test_equal_seeds_have_the_interval_of_one_seed() -> None:
    # True only if all seeds share the draws: with separate draws the mean would vary less.
    (table,) = model([0.8], size=50, seed=1)
    one, three = (interval_of([table] * count, resamples=100) for count in (1, 3))
    assert three == pytest.approx(one, abs=1e-12)  # float64


GROUPS, OF_CLASSES = "accuracy accuracy_middle accuracy_high", "accuracy macro_f1 matthews_correlation"


# Draws of the last table without its one example of class 2 have two classes and so an F1.
@pytest.mark.parametrize(
    ("measure", "tables", "wanted", "names"),
    [
        ("choice", [[(0, 0, 0), (1, 0, 1), (1, 1, 1)]], {"accuracy_middle": (1.0, 1.0)}, GROUPS),
        ("classification", [[(0, 0)] * 4, [(2, 0)] * 4], {"accuracy": (0.5, 0.5)}, OF_CLASSES),
        ("classification", [[(0, 0), (1, 1), (0, 2)]], {}, OF_CLASSES),
    ],
    ids=["lacking in some draws", "lacking in a seed", "only in some draws"],
)
def test_an_interval_is_over_draws_with_the_metric(measure: str, tables: list[Any], wanted: Any, names: str) -> None:
    per_seed = [np.array(table, dtype=np.float64) for table in tables]
    intervals = bootstrap_intervals(per_seed, MEASURES[measure], seed=0, resamples=60)
    assert intervals | wanted == intervals
    assert set(intervals) == set(names.split())


# Comparisons


@pytest.mark.parametrize(("first_seeds", "second_seeds"), [(1, 1), (3, 3), (2, 4)])
def test_swapping_the_models_changes_only_the_sign(first_seeds: int, second_seeds: int) -> None:
    first, second = model([0.8] * first_seeds, 60, seed=1), model([0.7] * second_seeds, 60, seed=2)
    there, back = compared(first, second), compared(second, first)
    assert back.difference == -there.difference
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low), abs=1e-12)  # float64
    assert back.p_value == there.p_value
    assert back.difference_in_stds == (None if there.difference_in_stds is None else -there.difference_in_stds)


def test_a_difference_due_to_one_seed_is_not_significant() -> None:
    # Only one seed differs: resampling examples alone would make the difference significant.
    steady = model([1.0] * 3, 400, seed=1)
    result = compared(steady, [*steady[:2], *model([0.4], 400, seed=2)])
    assert result.low <= 0
    assert result.p_value > 0.1


def test_resampled_seeds_have_the_unbiased_variance_of_the_seeds() -> None:
    # Seeds at 1 and 0: the mean of a draw is 0, 0.5 or 1, with half the variance of the true mean of two.
    right, wrong = np.ones((7, 2)), np.stack([np.zeros(7), np.ones(7)], axis=1)
    result = compared([right, wrong], [right])
    assert (result.low, result.high) == pytest.approx((-0.5 - math.sqrt(0.5), -0.5 + math.sqrt(0.5)))


def test_examples_are_paired() -> None:
    # The second model fails like the first and on a few more examples: unpaired, the interval would be wide.
    (first,) = model([0.5], 400, seed=1)
    second = first.copy()
    second[:40, 0] = 1 - second[:40, 1]
    result = compared([first], [second])
    lost = result.difference
    assert lost > 0
    half = 1.96 * math.sqrt(lost * (1 - lost) / 400)  # from the differing examples only
    # A quantile of 600 draws, each counted twice, has a standard error of a tenth of the half-width; three are allowed.
    assert (result.low, result.high) == pytest.approx((lost - half, lost + half), abs=0.3 * half)


def test_chance_alone_is_called_significant_about_as_rarely_as_promised() -> None:
    rates = [np.random.default_rng(trial).normal(0.75, 0.02, size=6).tolist() for trial in range(60)]
    tables = [model(some, size=120, seed=trial) for trial, some in enumerate(rates)]
    found = [compared(some[:3], some[3:], trial, resamples=100).p_value < 0.05 for trial, some in enumerate(tables)]
    # Of 60 at 0.05 four standard deviations are 7 above the 3 expected.
    assert sum(found) <= 10


def test_the_difference_is_given_in_pooled_standard_deviations() -> None:
    tables = [np.stack([np.arange(10) < right, np.ones(10)], axis=1).astype(np.float64) for right in (9, 7, 5, 5, 4)]
    result = compared(tables[:2], tables[2:])
    scores = [np.array([0.9, 0.7]), np.array([0.5, 0.5, 0.4])]
    pooled = math.sqrt((scores[0].var(ddof=1) * 1 + scores[1].var(ddof=1) * 2) / 3)
    assert result.difference == pytest.approx(0.8 - 1.4 / 3)
    assert result.difference_in_stds == pytest.approx((0.8 - 1.4 / 3) / pooled)
    assert compared(tables[:1], tables[2:3]).difference_in_stds is None
    assert compared([tables[0]] * 2, [tables[2]] * 2).difference_in_stds is None  # no variance


@pytest.mark.parametrize("rows", [slice(0, 5), slice(None, None, -1)], ids=["fewer", "in another order"])
def test_models_scored_on_different_examples_are_refused(rows: slice) -> None:
    (table,) = model([0.8], 10, seed=1)
    with pytest.raises(DataError, match="evaluated on different examples"):
        compared([table], [table[rows]])
