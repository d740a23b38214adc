"""How sure a score is: spread over seeds, bootstrap intervals over examples, and the comparison of two models.

Everything is computed from the rows of numbers that the metrics are computed from, one row an example, one table a
seed. Dimensions: N examples, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.contracts import DataError, Metrics
from electra_albert.keyed_random import Stream, derived_seed

Values = NDArray[np.float64]  # [N, columns]
Measure = Callable[[Values], float]
RESAMPLES = 1000
LEVEL = 0.95


class Interval(NamedTuple):
    """Where a score lies with the level asked for."""

    low: float
    high: float


class Comparison(NamedTuple):
    """How much better the first of two models is, and whether that may be chance."""

    difference: float  # of the means over seeds, first minus second
    low: float  # 95 % interval of the difference, over examples and seeds
    high: float
    p_value: float  # two-sided: how often resampling alone would turn the difference round
    difference_in_stds: float | None  # the difference in standard deviations over seeds; None where they have none


def summarize(values: Sequence[float], *, is_lower_better: bool = False) -> Metrics:
    """Every seed's score with median, mean, sample standard deviation (None for one seed) and best."""
    scores = np.asarray(values, dtype=np.float64)
    if len(scores) == 0 or not np.isfinite(scores).all():
        raise ValueError(f"scores {list(values)} cannot be summed up: at least one is wanted, and all finite")
    return {
        "values": scores.tolist(),
        "median": float(np.median(scores)),
        "mean": float(scores.mean()),
        "std": float(scores.std(ddof=1)) if len(scores) > 1 else None,
        "best": float(scores.min() if is_lower_better else scores.max()),
    }


def bootstrap_intervals(
    per_seed: Sequence[Values],
    measure: Callable[[Values], dict[str, float]],
    seed: int,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> dict[str, Interval]:
    """The interval of each metric's mean over seeds when other examples of the kind had been drawn (percentiles).

    All seeds see the same draw. Only metrics that every seed has on all examples have an interval; one that some draw
    does not have, such as that of a group nobody was drawn from, is taken over the draws that have it.
    """
    tables = _stacked(per_seed)
    whole = [measure(table) for table in tables]
    drawn: dict[str, list[float]] = {name: [] for name in whole[0] if all(name in scores for scores in whole)}
    for rows in _draws(tables.shape[1], seed, resamples):
        scores = [measure(table[rows]) for table in tables]
        for name, means in drawn.items():
            if all(name in score for score in scores):
                means.append(sum(score[name] for score in scores) / len(scores))
    return {name: _interval(np.array(means), level) for name, means in drawn.items() if means}


def bootstrap_interval(
    per_seed: Sequence[Values], measure: Measure, seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """The same for a single metric; for a single example its value twice."""
    return bootstrap_intervals(per_seed, lambda values: {"": measure(values)}, seed, resamples, level)[""]


def compare(
    first: Sequence[Values],
    second: Sequence[Values],
    measure: Measure,
    seed: int,
    gold_columns: Sequence[int],
    resamples: int = RESAMPLES,
) -> Comparison:
    """How two models differ that were scored on the same examples, each over its own seeds.

    gold_columns are those that only the examples decide: metrics.GOLD_COLUMNS of the kind. Each resample draws
    examples, the same for both models, and then seeds of each model on its own (the pigeonhole bootstrap, Owen 2007).
    That errs on the safe side where seeds differ little; of two seeds a side that differ much it is too sure. Raises
    DataError where the examples differ.
    """
    tables, others = _stacked(first), _stacked(second)
    gold = list(gold_columns)
    if any(
        table.shape != tables[0].shape or (table[:, gold] != tables[0][:, gold]).any() for table in [*tables, *others]
    ):
        raise DataError(
            "the two models were scored on different examples and cannot be compared; score both on the same data"
        )
    means = [np.array([measure(table) for table in side]) for side in (tables, others)]
    difference = float(means[0].mean() - means[1].mean())
    drawn = _drawn_differences(tables, others, measure, seed, resamples)
    low, high = _interval(drawn, LEVEL)
    turned = min((drawn <= 0).sum(), (drawn >= 0).sum())
    p_value = min(1.0, 2 * (int(turned) + 1) / (len(drawn) + 1))
    return Comparison(difference, low, high, p_value, distance_in_stds(means[0], means[1]))


def distance_in_stds(first: Sequence[float] | Values, second: Sequence[float] | Values) -> float | None:
    """The difference of the means over the standard deviation pooled over both sides' seeds; None without a spread."""
    sides = [np.asarray(scores, dtype=np.float64) for scores in (first, second)]
    freedom = sum(map(len, sides)) - len(sides)
    if freedom == 0:
        return None
    squares = sum(float(np.square(scores - scores.mean()).sum()) for scores in sides)
    pooled = math.sqrt(squares / freedom)
    return (float(sides[0].mean()) - float(sides[1].mean())) / pooled if pooled > 0 else None


def _drawn_differences(tables: Values, others: Values, measure: Measure, seed: int, resamples: int) -> Values:
    """Resampled differences [2 R]."""
    generator = np.random.default_rng(derived_seed(seed, Stream.RESAMPLE, 1))
    differences = []
    for rows in _draws(tables.shape[1], seed, resamples):
        scores = [np.array([measure(table[rows]) for table in side]) for side in (tables, others)]
        one, other = generator.random((2, max(len(tables), len(others))))
        # Each draw of seeds serves both ways round, so that exchanging the models only changes the sign.
        differences.append(_seed_mean(scores[0], one) - _seed_mean(scores[1], other))
        differences.append(_seed_mean(scores[0], other) - _seed_mean(scores[1], one))
    return np.array(differences)


def _seed_mean(scores: Values, uniform: Values) -> float:
    """Mean score of seeds drawn with replacement. scores [seeds], uniform [at least as many] in [0, 1)."""
    count = len(scores)
    mean = float(scores.mean())
    if count == 1:
        return mean
    drawn = float(scores[(uniform[:count] * count).astype(np.int64)].mean())
    # Drawing n seeds from themselves shows only (n - 1) / n of their variance, half of it for two seeds.
    return mean + (drawn - mean) * math.sqrt(count / (count - 1))


def _stacked(per_seed: Sequence[Values]) -> Values:
    """Tables of several seeds as one [seeds, N, columns]."""
    if len(per_seed) == 0 or len(per_seed[0]) == 0:
        raise ValueError("nothing was scored: no seed or no example")
    if any(values.shape != per_seed[0].shape for values in per_seed):
        raise DataError("the seeds were scored on different examples; score all of them on the same data")
    return np.stack([np.asarray(values, dtype=np.float64) for values in per_seed])


def _draws(size: int, seed: int, resamples: int) -> Iterator[NDArray[np.int64]]:
    """Which examples each resample holds: as many as there are, with replacement, a function of the seed alone."""
    generator = np.random.default_rng(derived_seed(seed, Stream.RESAMPLE))
    for _ in range(resamples):
        yield generator.integers(size, size=size)


def _interval(drawn: Values, level: float) -> Interval:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
