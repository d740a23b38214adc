"""Every metric equals the library's or the official script's; all tables have scores."""

import warnings
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from electra_albert.contracts import DivergedError
from electra_albert.tasks.metrics import MEASURES, Values, constant_baseline, is_collapsed
from tests.refusals import rows

LAW = settings(max_examples=50, deadline=None, derandomize=True)
ROUNDING = 1e-9  # float64, relative to scores up to 1
COLUMNS = "classification 2, regression 2, choice 3, span 6, span_with_null 6, token 5"
SIZES = st.integers(1, 30)


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def classes(class_count: int) -> st.SearchStrategy[Values]:
    numbers = st.integers(0, class_count - 1).map(float)
    return SIZES.flatmap(lambda size: arrays(np.float64, (size, 2), elements=numbers))


@st.composite
def span_values(draw: st.DrawFn) -> Values:
    """Rows as from decoding: the span is predicted, or no answer if the difference is over 0."""
    values = []
    for _ in range(draw(st.integers(1, 12))):
        has_answer = draw(st.booleans())
        overlap = draw(st.sampled_from([0.0, 0.5, 1.0])) if has_answer else 0.0
        of_span = (overlap == 1.0, overlap)
        difference = draw(st.integers(-2, 2) | st.floats(-5, 5, width=32))
        predicted = [not has_answer] * 2 if difference > 0 else of_span
        values.append((*predicted, has_answer, difference, *of_span))
    return np.array(values, dtype=np.float64)


# Agreement with references


@LAW
@given(st.integers(1, 4).flatmap(classes))
def test_classification_equals_scikit_learn(values: Values) -> None:
    predicted, gold = values.T.astype(int)
    binary = {"labels": [1]} if values.max() <= 1 else None
    wanted = {"accuracy": accuracy_score(gold, predicted)}
    for name, options in (("macro_f1", {}), ("f1", binary)):
        if options is not None:
            wanted[name] = f1_score(gold, predicted, average="macro", zero_division=0.0, **options)
    if len(np.unique(values)) > 1:  # scikit-learn warns about a single label
        wanted["matthews_correlation"] = matthews_corrcoef(gold, predicted)
    assert MEASURES["classification"](values) == pytest.approx(
        {"matthews_correlation": 0, **wanted}, abs=ROUNDING
    )


SETS = st.tuples(st.integers(1, 9), st.integers(1, 4)).flatmap(
    lambda size: arrays(np.bool_, (size[0], 2 * size[1]))
)


@LAW
@given(SETS)
def test_multi_label_equals_scikit_learn(is_set: Values) -> None:
    predicted, gold = np.split(is_set.astype(int), 2, axis=1)
    wanted = {"accuracy": accuracy_score(gold, predicted)}
    for average in ("micro", "macro"):
        options = {"average": average, "zero_division": 0.0}
        if is_set.shape[1] == 2:  # scikit-learn takes one column for classes
            options = {"labels": [1], **options}
        wanted[f"{average}_f1"] = f1_score(gold, predicted, **options)
    scores = MEASURES["multi_label"](is_set.astype(np.float64))
    assert scores == pytest.approx(wanted, abs=ROUNDING)


@LAW
@given(SETS)
def test_the_constant_baseline_is_the_best_score_of_one_prediction(is_set: Values) -> None:
    values = is_set.astype(np.float64)
    _, gold = np.split(values, 2, axis=1)
    for measure, metric, of_gold in (
        ("multi_label", "micro_f1", gold),
        ("classification", "accuracy", gold[:, :1]),
    ):
        scores = []
        for constant in product([0.0, 1.0], repeat=of_gold.shape[1]):
            predicted = np.tile(constant, (len(gold), 1))
            scores.append(MEASURES[measure](np.hstack([predicted, of_gold]))[metric])
        table = np.hstack([np.zeros_like(of_gold), of_gold])  # its predictions do not matter
        assert constant_baseline(measure, table) == pytest.approx({metric: max(scores)})


def test_matthews_correlation_does_not_overflow_on_a_large_set() -> None:
    gold = np.arange(390_965) % 3 % 2
    predicted = np.where(np.arange(390_965) % 5 == 0, 1 - gold, gold)
    scores = MEASURES["classification"](np.stack([predicted, gold], axis=1, dtype=np.float64))
    wanted = pytest.approx(matthews_corrcoef(gold, predicted), abs=ROUNDING)
    assert scores["matthews_correlation"] == wanted


QUARTERS = st.integers(-8, 8).map(lambda n: n / 4)


@LAW
@given(
    arrays(np.float64, st.tuples(st.integers(2, 20), st.just(2)), elements=QUARTERS),
    st.sampled_from([0.0, 1.0, 5e4]),
    st.sampled_from([1.0, 1e-6, 1e-15, 1e-160, 1e-300]),
)
def test_correlations_equal_scipy_even_if_nearly_constant(
    values: Values, centre: float, spread: float
) -> None:
    values[:, 0] = centre + spread * values[:, 0]
    predicted, gold = values.T
    wanted = {"mean_squared_error": np.square(predicted - gold).mean()}
    with warnings.catch_warnings(action="ignore"):  # for a constant side scipy gives nan, we give 0
        for name, correlation in (("pearson", pearsonr), ("spearman", spearmanr)):
            wanted[name] = np.nan_to_num(correlation(predicted, gold).statistic)
    assert MEASURES["regression"](values) == pytest.approx(wanted, abs=ROUNDING)


def official_best(values: Values, of_span: int) -> tuple[float, float]:
    """The loop of the SQuAD 2.0 script over examples, sorted by null score difference."""
    best = current = float((values[:, 2] == 0).sum())
    threshold = 0.0
    for row in sorted(values, key=lambda row: row[3]):
        current += row[of_span] if row[2] else -1
        if current > best:
            best, threshold = current, row[3]
    return best / len(values), threshold


@LAW
@given(span_values())
def test_best_scores_are_reached_with_the_reported_thresholds(values: Values) -> None:
    scores = MEASURES["span_with_null"](values)
    assert np.isfinite([*scores.values()]).all()
    has_ties = len(np.unique(values[:, 3])) < len(values)
    for metric, threshold, of_span in (("exact_match", "exact", 4), ("f1", "f1", 5)):

        def at(level: float, column: int = of_span) -> float:
            is_null = values[:, 3] > level
            return float(np.where(is_null, values[:, 2] == 0, values[:, column]).mean())

        best = pytest.approx(max(at(level) for level in (-np.inf, *values[:, 3])), abs=ROUNDING)
        level = scores[f"best_{threshold}_threshold"]
        assert scores[f"best_{metric}"] == at(level) == best
        if not has_ties:  # between which the official script may cut
            official, its_level = official_best(values, of_span)
            assert official == best
            assert level == its_level or best == (values[:, 2] == 0).mean()


def test_a_span_normalized_to_nothing_is_a_wrong_answer_to_an_unanswerable_question() -> None:
    # As in the official script; the article "the" is normalized to "", an exact "no answer".
    values = table("1 1 0 -1 1 1, 1 1 1 0 1 1")
    scores = MEASURES["span_with_null"](values)
    assert scores["exact_match"] == 1.0
    assert scores["best_exact_match"] == official_best(values, 4)[0] == 0.5


HAND_MADE = """
classification | 1 0, 1 1                       | matthews_correlation 0
classification | 0 0, 0 0                       | matthews_correlation 0 f1 0 macro_f1 1
classification | 0 0, 2 2                       | macro_f1 1
regression     | 2 2                            | pearson 0 spearman 0
regression     | 2 1, 2 3                       | pearson 0 spearman 0
token          | 0 0 0 3 4                      | precision 0 recall 0 f1 0 accuracy .75
token          | 0 0 0 0 0                      | precision 0 recall 0 f1 0 accuracy 0
token          | 3 3 3 5 5                      | precision 1 recall 1 f1 1
token          | 1 2 1 4 5, 1 2 7 0 5           | precision .5 recall .25 f1 .3333333333 accuracy .4
choice         | 0 0 0, 1 0 0, 2 2 1, 3 0 -1    | accuracy .5 accuracy_middle .5 accuracy_high 1
choice         | 0 0 -1                         | accuracy 1
"""


def table(text: str) -> Values:
    return np.array([row.split() for row in text.split(",")], dtype=np.float64)


@pytest.mark.parametrize(("measure", "content", "wanted"), rows(HAND_MADE))
def test_hand_made_tables_have_the_expected_scores(measure: str, content: str, wanted: str) -> None:
    scores = MEASURES[measure](table(content))
    names = wanted.split()[::2]
    numbers = map(float, wanted.split()[1::2])
    assert [scores[name] for name in names] == pytest.approx([*numbers], abs=ROUNDING)
    assert measure != "choice" or [*scores] == names


# Refused


@pytest.mark.parametrize("columns", COLUMNS.split(", "))
def test_predictions_that_are_not_finite_are_refused(columns: str) -> None:
    kind, count = columns.split()
    values = np.zeros((3, int(count)))
    MEASURES[kind](values)
    for wrong in (np.nan, np.inf):
        values[1] = wrong
        with pytest.raises(DivergedError, match="not finite"):
            MEASURES[kind](values)


# Collapse

COLLAPSED = """
classification | 1 0, 1 1                        | yes
classification | 1 1, 1 1                        | no, there is one gold class
classification | 1 0, 0 1                        | no, all are wrong, but not constant
choice         | 2 0 0, 2 1 1                    | yes
choice         | 2 0 0, 1 1 1                    | no
regression     | 2.5 0, 2.5001 5                 | yes
regression     | 2.4 0, 2.6 5                    | no
regression     | 2.5 3, 2.5 3                    | no
span_with_null | 0 0 1 2 0 0, 1 1 0 1 0 0        | yes, never an answer
span_with_null | 0 0 1 -2 0 0, 0 0 0 -1 0 0      | yes, always an answer
span_with_null | 0 0 1 -1 0 0, 1 1 0 1 0 0       | no
span_with_null | 0 0 1 -2 0 0                    | no
span           | 0 0 1 -1 0 0, 0 .5 1 -1 0 0     | no
multi_label    | 1 0 0 1, 1 0 1 1                | yes
multi_label    | 1 0 0 1, 1 0 0 1                | no, nor is gold
multi_label    | 1 0 0 1, 0 0 1 1                | no
token          | 0 0 1 3 4, 0 0 0 3 4            | yes
token          | 0 1 1 3 4, 0 0 0 3 4            | no
token          | 0 0 0 3 4                       | no
"""


@pytest.mark.parametrize(("kind", "content", "answer"), rows(COLLAPSED))
def test_collapse_is_one_prediction_for_different_examples(
    kind: str, content: str, answer: str
) -> None:
    assert is_collapsed(kind, table(content)) is answer.startswith("yes")
