"""Metrics of every kind of task, their confidence intervals, and the comparison of two models.

Inputs are tables with one row per example, one table per seed.
Dimensions: N examples, C classes, R resamples.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.contracts import DataError, DivergedError, Metrics
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.tasks.sequence import GROUPS

Values = NDArray[np.float64]  # [N, columns]
Runs = Sequence[Values]  # the table of each seed
Scores = dict[str, float]
Measure = Callable[[Values], Scores]
Interval = tuple[float, float]
RESAMPLES = 1000
LEVEL = 0.95
# Standard deviation of predictions, relative to the gold's, below which they count as constant.
_MIN_SPREAD = 1e-3


def classification(values: Values) -> Scores:
    """Columns: predicted class, gold class. `f1`, of class 1, only if no higher class occurs."""
    # scikit-learn takes thirty times as long, and the bootstrap calls this a thousand times a seed.
    classes = _columns(values).astype(np.int64)  # [2, N]
    size = len(values)
    count = max(2, int(classes.max()) + 1)
    cells = np.bincount(classes[1] * count + classes[0], minlength=count**2)
    confusion = cells.reshape(count, count)  # [gold, predicted]
    correct = np.diagonal(confusion)  # [C]
    gold = confusion.sum(axis=1)  # [C]
    predicted = confusion.sum(axis=0)  # [C]
    class_f1 = 2 * correct / np.maximum(gold + predicted, 1)  # [C]
    # Python integers: the product of the variances overflows int64.
    covariance = int(correct.sum()) * size - int(gold @ predicted)
    gold_variance = size**2 - int(gold @ gold)
    predicted_variance = size**2 - int(predicted @ predicted)
    correlation = 0.0
    if gold_variance and predicted_variance:
        correlation = covariance / math.sqrt(gold_variance * predicted_variance)
    occurs = gold + predicted > 0
    scores = {
        "accuracy": float(correct.sum() / size),
        "macro_f1": float(class_f1[occurs].mean()),
        "matthews_correlation": correlation,
    }
    if count == 2:
        scores["f1"] = float(class_f1[1])
    return scores


def regression(values: Values) -> Scores:
    """Columns: predicted number, gold number. The correlation with a constant is 0."""
    from scipy.stats import pearsonr, spearmanr

    predicted, gold = _columns(values)
    squares = np.square(predicted - gold)
    scores = {"pearson": 0.0, "spearman": 0.0, "mean_squared_error": float(squares.mean())}
    if np.ptp(predicted) > 0 and np.ptp(gold) > 0:  # else undefined in scipy
        # Warnings are about nearly constant numbers, which is_collapsed reports.
        with warnings.catch_warnings(action="ignore"):
            scores["pearson"] = float(pearsonr(predicted, gold).statistic)
            scores["spearman"] = float(spearmanr(predicted, gold).statistic)
    return scores


def multi_label(values: Values) -> Scores:
    """Columns: for each label whether it is predicted, then whether it is gold. 0 / 0 counts as 0.

    `accuracy` is the share of examples with exactly the gold labels.
    """
    predicted, gold = np.split(_columns(values), 2)  # each [C, N]
    correct = (predicted * gold).sum(axis=1)  # [C]
    either = predicted.sum(axis=1) + gold.sum(axis=1)  # [C]
    return {
        "micro_f1": float(2 * correct.sum() / max(either.sum(), 1)),
        "macro_f1": float((2 * correct / np.maximum(either, 1)).mean()),
        "accuracy": float((predicted == gold).all(axis=0).mean()),
    }


def choice(values: Values) -> Scores:
    """Columns: predicted option, gold option, group (see GROUPS). Empty groups have no score."""
    predicted, gold, group = _columns(values)
    is_correct = predicted == gold
    scores = {"accuracy": float(is_correct.mean())}
    for name, number in GROUPS.items():
        in_group = is_correct[group == number]
        if len(in_group):
            scores[f"accuracy_{name}"] = float(in_group.mean())
    return scores


def span(values: Values) -> Scores:
    """Columns: exact match and F1 of the prediction; the others are for unanswerable questions."""
    matches, overlaps = _columns(values)[:2]
    return {"exact_match": float(matches.mean()), "f1": float(overlaps.mean())}


def span_with_null(values: Values) -> Scores:
    """Scores with a threshold on the score difference, above which no answer is predicted.

    Columns: exact match and F1 of the prediction, has_answer, null minus span score, exact match
    and F1 of the span. `best_…` are for the best threshold.
    """
    answered, difference, matches, overlaps = _columns(values)[2:]
    has_answer = answered > 0
    scores = span(values)
    parts = {"has_answer": has_answer, "no_answer": ~has_answer}
    for name, chosen in parts.items():
        if chosen.any():
            for metric, score in span(values[chosen]).items():
                scores[f"{name}_{metric}"] = score
    order = np.argsort(difference)
    no_answer_score = float((~has_answer).sum())
    for name, metric, of_span in (("exact", "exact_match", matches), ("f1", "f1", overlaps)):
        # As in the official script, any span is wrong if there is no answer, even one that is
        # normalized to nothing.
        gain = np.where(has_answer, of_span, -1.0)
        best, threshold = _best_threshold(difference[order], gain[order], no_answer_score)
        scores[f"best_{name}_threshold"] = threshold
        scores[f"best_{metric}"] = best / len(values)
    return scores


def _best_threshold(difference: Values, gain: Values, no_answer_score: float) -> Interval:
    """The highest sum of scores and its threshold, with the gain of each predicted span.

    difference [N] ascending, gain [N]. For no_answer_score 1:

        difference     -2   -1   -1    3
        gain            1   -1    1    1
        sum of scores   2    -    2    3   -> best 3, threshold 3
    """
    # Differs from the official script, which can cut between equal differences, where no threshold
    # gives its score.
    is_last = np.append(difference[1:] != difference[:-1], True)
    sums = no_answer_score + np.cumsum(gain)
    sums[~is_last] = -np.inf
    best = int(sums.argmax())
    if sums[best] > no_answer_score:
        return float(sums[best]), float(difference[best])
    # Predicting no answer everywhere is best; the script's threshold 0.0 does so only if every
    # difference is above it.
    lowest = difference[0]
    if lowest > 0:
        return no_answer_score, 0.0
    return no_answer_score, float(np.nextafter(lowest, -np.inf))


def token(values: Values) -> Scores:
    """Columns: correct, predicted and gold entities, correct tags, tags. 0 / 0 counts as 0."""
    sums = [float(column.sum()) for column in _columns(values)]
    correct, predicted, gold, correct_tags, tags = sums
    return {
        "precision": correct / max(predicted, 1),
        "recall": correct / max(gold, 1),
        "f1": 2 * correct / max(predicted + gold, 1),
        "accuracy": correct_tags / max(tags, 1),
    }


MEASURES: dict[str, Measure] = {
    measure.__name__: measure
    for measure in (classification, regression, multi_label, choice, span, span_with_null, token)
}


def is_collapsed(measure: str, values: Values) -> bool:
    """Whether all predictions are equal although the gold labels differ: training failed."""
    if measure == "span":
        return False
    columns = values.T
    if measure == "token":
        return bool(columns[2].any() and not columns[1].any())
    if measure == "regression":
        predicted, gold = columns
        return bool(np.ptp(gold) > 0 and predicted.std() < _MIN_SPREAD * gold.std())
    if measure == "span_with_null":
        columns = np.heaviside(columns[[3, 2]], 0)  # no answer predicted, has_answer
    count = len(columns) // 2  # of predicted ones: several for a multi-label task
    differs = np.ptp(columns, axis=1) > 0
    return bool(differs[count : 2 * count].any() and not differs[:count].any())


def constant_baseline(measure: str, values: Values) -> Scores:
    """The best accuracy or micro-F1 of one prediction for every example, by its name, if any."""
    if measure in ("classification", "choice"):
        _, counts = np.unique(values[:, 1], return_counts=True)
        return {"accuracy": float(counts.max() / len(values))}
    if measure != "multi_label":
        return {}
    _, gold = np.split(values, 2, axis=1)  # [N, C]
    counts = np.sort(gold.sum(axis=0))[::-1]  # of each label
    correct = counts.cumsum()  # if the first 1 to C labels are predicted for every example
    predicted = len(gold) * np.arange(1, len(counts) + 1)
    f1 = 2 * correct / (predicted + counts.sum())
    return {"micro_f1": float(f1.max())}


def _columns(values: Values) -> Values:
    """The columns of a table, [columns, N]; DivergedError if it is not finite."""
    if not np.isfinite(values).all():
        raise DivergedError("a prediction is not finite; lower the --learning_rate of its training")
    return values.T


def summarize(values: Sequence[float], *, is_lower_better: bool = False) -> Metrics:
    """All scores with median, mean, sample standard deviation (None for one seed) and best."""
    scores = np.asarray(values, dtype=np.float64)
    deviation = None
    if len(scores) > 1:
        deviation = float(scores.std(ddof=1))
    best = scores.max()
    if is_lower_better:
        best = scores.min()
    return {
        "values": scores.tolist(),
        "median": float(np.median(scores)),
        "mean": float(scores.mean()),
        "std": deviation,
        "best": float(best),
    }


def bootstrap_intervals(
    per_seed: Runs, measure: Measure, seed: int, resamples: int = RESAMPLES
) -> dict[str, Interval]:
    """95 % bootstrap intervals of the mean over seeds, which share the resamples.

    Only for metrics that all seeds have.
    """
    tables = _stacked(per_seed)
    drawn: dict[str, list[float]] = {name: [] for name in _mean_scores(tables, measure)}
    for chosen in _draws(tables.shape[1], seed, resamples):
        for name, mean in _mean_scores(tables[:, chosen], measure).items():
            if name in drawn:
                drawn[name].append(mean)
    return {name: _interval(scores) for name, scores in drawn.items() if scores}


def _mean_scores(tables: Values, measure: Measure) -> Scores:
    """Means over seeds of the metrics that all have. tables [seeds, N, columns]."""
    scores = [measure(table) for table in tables]
    means = {}
    for name in scores[0]:
        by_seed = [of_seed[name] for of_seed in scores if name in of_seed]
        if len(by_seed) == len(scores):
            means[name] = sum(by_seed) / len(by_seed)
    return means


class Comparison(NamedTuple):
    """The difference of two models in a metric and its significance."""

    difference: float  # of the means over seeds, first minus second
    low: float  # 95 % interval of the difference, over examples and seeds
    high: float
    p_value: float  # two-sided: twice the share of resamples that reverse the difference
    # In pooled standard deviations over seeds; None if those are 0 or unknown.
    difference_in_stds: float | None


def compare(
    first: Runs, second: Runs, measure: str, metric: str, seed: int, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two models in a metric of one of MEASURES, on the same examples.

    Each resample draws examples, the same for both models, and then seeds of each (pigeonhole
    bootstrap, Owen 2007). The interval is too wide if seeds differ little, and too narrow for two
    seeds per model that differ much.
    """

    def scored(tables: Values) -> Values:
        """The score of each seed, NaN if the examples have none."""
        return np.array([MEASURES[measure](table).get(metric, math.nan) for table in tables])

    sides = [_stacked(first), _stacked(second)]
    generator = np.random.default_rng(derived_seed(seed, Stream.RESAMPLE, 1))
    differences = []  # [2 R]
    for chosen in _draws(sides[0].shape[1], seed, resamples):
        first_scores, second_scores = (scored(side[:, chosen]) for side in sides)
        uniform = generator.random((2, max(map(len, sides))))
        # Each draw of seeds is used in both directions, so that swapping the models only changes
        # the sign.
        for of_first, of_second in (uniform, uniform[::-1]):
            difference = _seed_mean(first_scores, of_first) - _seed_mean(second_scores, of_second)
            if not math.isnan(difference):
                differences.append(difference)
    not_above = sum(drawn <= 0 for drawn in differences)
    not_below = sum(drawn >= 0 for drawn in differences)
    share = (min(not_above, not_below) + 1) / (len(differences) + 1)
    p_value = min(1.0, 2 * share)
    first_scores, second_scores = map(scored, sides)
    difference = float(first_scores.mean() - second_scores.mean())
    freedom = len(first_scores) + len(second_scores) - 2
    squares = _squared_deviations(first_scores) + _squared_deviations(second_scores)
    in_stds = None
    if squares and freedom:
        in_stds = difference / math.sqrt(squares / freedom)
    return Comparison(difference, *_interval(differences), p_value, in_stds)


def _squared_deviations(scores: Values) -> float:
    return float(np.square(scores - scores.mean()).sum())


def _seed_mean(scores: Values, uniform: Values) -> float:
    """Mean score of seeds drawn with replacement. scores [seeds], uniform [seeds or more].

    With the scores 0.6, 0.7, 0.8 and the numbers 0.1, 0.5, 0.2, the scores 0.6, 0.7, 0.6 are drawn.
    """
    count = len(scores)
    mean = float(scores.mean())
    if count == 1:
        return mean
    positions = (uniform[:count] * count).astype(np.int64)
    drawn = float(scores[positions].mean())
    # The bootstrap of n seeds has only (n - 1) / n of their variance, half of it for two seeds.
    correction = math.sqrt(count / (count - 1))
    return mean + (drawn - mean) * correction


def _stacked(per_seed: Runs) -> Values:
    """Tables of several seeds as one [seeds, N, columns]."""
    if any(values.shape != per_seed[0].shape for values in per_seed):
        raise DataError(
            "the seeds were evaluated on different examples; evaluate all of them on the same data"
        )
    return np.stack(per_seed, dtype=np.float64)


def _draws(size: int, seed: int, resamples: int) -> Iterator[NDArray[np.int64]]:
    """Indices of each bootstrap resample, drawn with replacement; a function of size and seed."""
    generator = np.random.default_rng(derived_seed(seed, Stream.RESAMPLE))
    return (generator.integers(size, size=size) for _ in range(resamples))


def _interval(drawn: Sequence[float]) -> Interval:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
