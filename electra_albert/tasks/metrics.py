"""The metrics of every kind of task, from one row of numbers an example; degenerate predictions have defined scores.

What each kind's columns hold stands at its function. A score is a fraction from 0 to 1, a correlation one from -1 to 1.
Dimensions: N examples, C classes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from electra_albert.tasks.choice import GROUPS

Values = NDArray[np.float64]  # [N, columns]
Scores = dict[str, float]

LOWER_IS_BETTER = frozenset({"mean_squared_error"})
# Columns that hold what is right: equal for any two models scored on the same examples.
GOLD_COLUMNS: dict[str, tuple[int, ...]] = {
    "classification": (1,),
    "regression": (1,),
    "choice": (1, 2),
    "span": (2,),
    "span_with_null": (2,),
    "token": (2, 4),
}
_LEAST_SPREAD = 1e-3  # predicted numbers that spread less than this share of the right ones' spread are constant


def confusion_matrix(predicted: Values, gold: Values) -> NDArray[np.int64]:
    """int64 [C, C], gold classes down and predicted ones across, from class numbers [N]."""
    pairs = np.stack([gold, predicted]).astype(np.int64)  # [2, N]
    if (pairs < 0).any() or (pairs != [gold, predicted]).any():
        raise ValueError("class numbers must be integers from 0 on")
    class_count = int(pairs.max()) + 1
    counts = np.bincount(pairs[0] * class_count + pairs[1], minlength=class_count**2)
    return counts.reshape(class_count, class_count)  # [C, C]


def classification(values: Values) -> Scores:
    """Columns: predicted class, gold class.

    Counted here, with scikit-learn's results: each of its functions takes some 30 times as long, and the bootstrap
    calls this a thousand times a seed.

    `f1` is that of class 1 and stands only where no class above it occurs; `macro_f1` is the mean over the classes that
    occur. A class never predicted has F1 0, and predictions that are all alike have a correlation of 0.
    """
    predicted, gold = _columns(values, 2)
    counts = confusion_matrix(predicted, gold)
    right, has_gold, has_predicted = np.diagonal(counts), counts.sum(axis=1), counts.sum(axis=0)  # [C]
    total = has_gold + has_predicted
    class_f1 = 2 * right / np.maximum(total, 1)  # [C]
    scores = {
        "accuracy": float(right.sum() / len(values)),
        "macro_f1": float(class_f1[total > 0].mean()),
        "matthews_correlation": _matthews(right, has_gold, has_predicted),
    }
    if len(counts) <= 2:
        scores["f1"] = float(class_f1[1]) if len(counts) == 2 else 0.0
    return scores


def _matthews(right: NDArray[np.int64], gold: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Correlation of predicted and gold classes from counts by class [C]; Python integers, for products overflow."""
    size = int(gold.sum())
    covariance = int(right.sum()) * size - sum(int(g) * int(p) for g, p in zip(gold, predicted, strict=True))
    gold_spread = size**2 - sum(int(g) ** 2 for g in gold)
    predicted_spread = size**2 - sum(int(p) ** 2 for p in predicted)
    if gold_spread == 0 or predicted_spread == 0:
        return 0.0
    return covariance / math.sqrt(gold_spread * predicted_spread)


def regression(values: Values) -> Scores:
    """Columns: predicted number, gold number. The correlation with a constant, which scipy does not define, is 0."""
    from scipy.stats import pearsonr, spearmanr

    predicted, gold = _columns(values, 2)
    scores = {"pearson": 0.0, "spearman": 0.0, "mean_squared_error": float(np.square(predicted - gold).mean())}
    if np.ptp(predicted) > 0 and np.ptp(gold) > 0:
        with warnings.catch_warnings(action="ignore"):  # of nearly constant numbers, which is_collapsed reports
            scores["pearson"] = float(pearsonr(predicted, gold).statistic)
            scores["spearman"] = float(spearmanr(predicted, gold).statistic)
    return scores


def choice(values: Values) -> Scores:
    """Columns: predicted option, gold option, group (see choice.GROUPS). A group that does not occur has no score."""
    predicted, gold, group = _columns(values, 3)
    is_right = predicted == gold
    scores = {"accuracy": float(is_right.mean())}
    for name, number in GROUPS.items():
        if (group == number).any():
            scores[f"accuracy_{name}"] = float(is_right[group == number].mean())
    return scores


def span(values: Values) -> Scores:
    """Columns: exact match and F1 of the answer given; the others matter only where a question may have no answer."""
    matches, overlaps = _columns(values, 6)[:2]
    return {"exact_match": float(matches.mean()), "f1": float(overlaps.mean())}


def span_with_null(values: Values) -> Scores:
    """Columns: exact match and F1 of the answer given, whether there is an answer, null score minus best span's score,
    exact match and F1 of the best span.

    The best scores are those of the threshold on the difference above which no answer is given that suits these
    examples best. Questions with and without an answer have scores of their own where there are any.
    """
    matches, overlaps, answered, difference, span_matches, span_overlaps = _columns(values, 6)
    scores = span(values)
    for name, chosen in (("has_answer", answered > 0), ("no_answer", answered == 0)):
        if chosen.any():
            scores[f"{name}_exact_match"] = float(matches[chosen].mean())
            scores[f"{name}_f1"] = float(overlaps[chosen].mean())
    order = np.argsort(difference)
    score_of_none = float((answered == 0).sum())
    for best, threshold, of_span in (
        ("best_exact_match", "best_exact_threshold", span_matches),
        ("best_f1", "best_f1_threshold", span_overlaps),
    ):
        # As in the official script, any span at all is wrong where there is no answer, even if nothing is left of it
        # once it is normalised.
        gain = np.where(answered > 0, of_span, -1.0)
        total, scores[threshold] = _best_threshold(difference[order], gain[order], score_of_none)
        scores[best] = total / len(values)
    return scores


def _best_threshold(difference: Values, gain: Values, score_of_none: float) -> tuple[float, float]:
    """The highest sum and its threshold. difference [N] ascending; gain [N]: what answering adds to the score."""
    # Differs from the official script: examples of equal difference are answered together or not at all, for no
    # threshold parts them; the script can stop between two and report a score that cannot be had.
    is_last = np.append(difference[1:] != difference[:-1], True)
    reached = score_of_none + np.cumsum(gain)
    candidates = np.where(is_last, reached, -np.inf)
    best = int(candidates.argmax())
    if candidates[best] > score_of_none:
        return float(candidates[best]), float(difference[best])
    # Best without any answer: the script's 0.0 stands only where it does that.
    return score_of_none, 0.0 if difference[0] > 0 else float(np.nextafter(difference[0], -np.inf))


def token(values: Values) -> Scores:
    """Columns: right, predicted and gold entities, right tags, tags. A share of nothing is 0."""
    right, predicted, gold, right_tags, tags = (float(column.sum()) for column in _columns(values, 5))
    return {
        "precision": right / predicted if predicted else 0.0,
        "recall": right / gold if gold else 0.0,
        "f1": 2 * right / (predicted + gold) if predicted + gold else 0.0,
        "accuracy": right_tags / tags if tags else 0.0,
    }


MEASURES: dict[str, Callable[[Values], Scores]] = {
    "classification": classification,
    "regression": regression,
    "choice": choice,
    "span": span,
    "span_with_null": span_with_null,
    "token": token,
}


def is_collapsed(kind: str, values: Values) -> bool:
    """Whether a model says the same of every example though the examples differ: training failed, whatever it scores.

    For regression: the numbers hardly spread. For answers that may be missing: always one, or never. For tags: no
    entity at all. For answers that are always there nothing can be seen.
    """
    if kind == "token":
        _, predicted, gold = (column.sum() for column in _columns(values, 5)[:3])
        return bool(predicted == 0 and gold > 0)
    if kind == "regression":
        predicted, gold = _columns(values, 2)
        return bool(np.ptp(gold) > 0 and predicted.std() < _LEAST_SPREAD * gold.std())
    if kind == "span_with_null":
        columns = _columns(values, 6)
        predicted, gold = columns[3] > 0, columns[2] > 0
    elif kind == "span":
        return False
    else:
        predicted, gold = _columns(values, 3 if kind == "choice" else 2)[:2]
    return bool(np.ptp(predicted.astype(np.float64)) == 0 and np.ptp(gold.astype(np.float64)) > 0)


def _columns(values: Values, count: int) -> list[Values]:
    """The columns [N] of a table that is neither empty nor holds a number that is not finite."""
    if values.ndim != 2 or values.shape[1] != count:
        raise ValueError(f"a table of shape {list(values.shape)} does not have {count} columns")
    if len(values) == 0:
        raise ValueError("there are no examples to score")
    if not np.isfinite(values).all():
        raise ValueError("a prediction is not finite")
    return [np.ascontiguousarray(column) for column in values.T]
