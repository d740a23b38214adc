"""Bootstrap intervals have their coverage, comparisons are symmetric, and one seed has no std."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.tasks.metrics import (
    MEASURES,
    Comparison,
    Values,
    bootstrap_intervals,
    compare,
    summarize,
)
from electra_albert.tasks.sequence import GROUPS
from tests.refusals import rows

LAW = settings(max_examples=100, deadline=None, derandomize=True)


def model(rates: list[float], size: int, seed: int) -> list[Values]:
    """A table per rate: a binary classifier with this accuracy, always on the same classes."""
    gold = np.arange(size) % 2
    generator = np.random.default_rng(seed)
    wrong = [generator.random(size) >= rate for rate in rates]
    return [np.stack([gold ^ is_wrong, gold], axis=1, dtype=np.float64) for is_wrong in wrong]


def interval_of(tables: list[Values], seed: int = 0, resamples: int = 1000) -> tuple[float, float]:
    return bootstrap_intervals(tables, MEASURES["classification"], seed, resamples)["accuracy"]


def compared(
    first: list[Values], second: list[Values], seed: int = 0, resamples: int = 300
) -> Comparison:
    return compare(first, second, "classification", "accuracy", seed, resamples)


# Summaries


@LAW
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=9))
def test_a_summary_equals_the_standard_library(scores: list[float]) -> None:
    summary = summarize(scores)
    assert summary.pop("values") == scores
    expected = {f: getattr(statistics, f)(scores) for f in ("median", "mean")}
    expected |= {"std": statistics.stdev(scores), "best": max(scores)}
    assert summary == pytest.approx(expected, abs=1e-9)
    assert summarize(scores, is_lower_better=True)["best"] == min(scores)
    assert summarize(scores[:1])["std"] is None


# Intervals


def test_an_interval_is_as_wide_as_that_of_the_normal_approximation() -> None:
    tables = model([0.8], size=2000, seed=3)
    low, high = interval_of(tables)
    share = MEASURES["classification"](tables[0])["accuracy"]
    half = 1.96 * math.sqrt(share * (1 - share) / 2000)
    # A quantile of 1,000 draws has a standard error of about 5 % of the half-width; four of these
    # are allowed.
    assert (low, high) == pytest.approx((share - half, share + half), abs=0.2 * half)


def test_equal_seeds_have_the_interval_of_one_seed() -> None:
    # True only if all seeds share the draws: with separate draws the mean would vary less.
    table = model([0.8], size=50, seed=1)
    single, three = (interval_of(table * count, resamples=100) for count in (1, 3))
    assert three == pytest.approx(single, abs=1e-12)  # float64


# A measure, the tables of the seeds, and the metrics with an interval, some with their only value:
# one that some draws lack, one that a seed lacks, and one that only draws without class 2 have.
INTERVALS = """
choice         | 000 101 111             | accuracy accuracy_middle=1 accuracy_high
classification | 00 00 00 00,20 20 20 20 | accuracy=.5 macro_f1 matthews_correlation
classification | 00 11 02                | accuracy macro_f1 matthews_correlation
"""


@pytest.mark.parametrize(("measure", "tables", "names"), rows(INTERVALS))
def test_an_interval_is_over_draws_with_the_metric(measure: str, tables: str, names: str) -> None:
    cells = [[[*map(float, row)] for row in table.split()] for table in tables.split(",")]
    intervals = bootstrap_intervals(np.array(cells), MEASURES[measure], seed=0, resamples=60)
    expected = dict(name.partition("=")[::2] for name in names.split())
    assert intervals.keys() == expected.keys()
    for name, level in expected.items():
        assert not level or intervals[name] == (float(level),) * 2


# Comparisons


def test_swapping_the_models_changes_only_the_sign() -> None:
    first, second = model([0.8] * 2, 60, seed=1), model([0.7] * 4, 60, seed=2)
    there, back = compared(first, second), compared(second, first)
    assert back.difference == -there.difference
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low), abs=1e-12)  # float64
    assert back.p_value == there.p_value
    assert back.difference_in_stds == -there.difference_in_stds


def test_resampled_seeds_have_the_unbiased_variance_of_the_seeds() -> None:
    # Seeds at 1 and 0: the mean of a draw is 0, 0.5 or 1, with half the variance of the true mean
    # of two.
    right, wrong = np.ones((7, 2)), np.stack([np.zeros(7), np.ones(7)], axis=1)
    result = compared([right, wrong], [right])
    half = math.sqrt(0.5)
    assert (result.low, result.high) == pytest.approx((-0.5 - half, -0.5 + half))


def test_examples_are_paired() -> None:
    # The second model fails like the first and on a few more examples: unpaired, the interval
    # would be wide.
    (first,) = model([0.5], 400, seed=1)
    second = first.copy()
    second[:40, 0] = 1 - second[:40, 1]
    result = compared([first], [second])
    lost = result.difference
    assert lost > 0
    half = 1.96 * math.sqrt(lost * (1 - lost) / 400)  # from the differing examples only
    # A quantile of 600 draws, each counted twice, has a standard error of a tenth of the half-
    # width; three are allowed.
    assert (result.low, result.high) == pytest.approx((lost - half, lost + half), abs=0.3 * half)


def test_chance_alone_is_called_significant_about_as_rarely_as_promised() -> None:
    count = 0
    for trial in range(30):
        rates = np.random.default_rng(trial).normal(0.75, 0.02, size=6).tolist()
        tables = model(rates, size=120, seed=trial)
        count += compared(tables[:3], tables[3:], trial, resamples=60).p_value < 0.05
    assert count <= 6  # of 30 at 0.05, four standard deviations are 4.8 above the 1.5 expected


def test_the_difference_is_given_in_pooled_standard_deviations() -> None:
    tables = [np.ones((10, 2)) for _ in range(5)]
    for table, right in zip(tables, (9, 7, 5, 5, 4), strict=True):
        table[right:, 0] = 0
    result = compared(tables[:2], tables[2:], resamples=2)
    pooled = math.sqrt((np.var([0.9, 0.7]) * 2 + np.var([0.5, 0.5, 0.4]) * 3) / 3)
    assert result.difference == pytest.approx(0.8 - 1.4 / 3)
    assert result.difference_in_stds == pytest.approx((0.8 - 1.4 / 3) / pooled)
    for count in (1, 2):  # no variance
        same = compared([tables[0]] * count, [tables[2]] * count, resamples=2)
        assert same.difference_in_stds is None


def test_examples_of_a_rare_group_may_be_missing_in_a_resample() -> None:
    """Regression: a KeyError with few questions of one level of RACE."""
    group = np.array([1.0, *[2.0] * 9])
    first, second = (
        np.stack([np.full(10, right), np.ones(10), group], axis=1) for right in (1.0, 0.0)
    )
    (name,) = (name for name, number in GROUPS.items() if number == 1)
    assert compare([first], [second], "choice", f"accuracy_{name}", 0, 50).low == 1


def test_models_of_several_labels_are_compared() -> None:
    gold = np.array([[1.0, 0], [0, 1], [1, 1]])
    first, second = (np.hstack([predicted, gold]) for predicted in (gold, 1 - gold))
    result = compare([first], [second], "multi_label", "micro_f1", seed=0, resamples=20)
    assert result.difference == 1
