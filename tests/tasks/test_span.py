"""Extractive question answering: windows, labels and best span against simple references."""

from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from electra_albert.tasks.encoding import EncodedExamples, EncodePlan, Encoding
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.span import slide
from electra_albert.tasks.task import Answer, Report, SpanExample
from tests.tasks.small_tokenizers import PLAN, encoder, kinds, steady, texts, thorough

SPAN = KINDS["span"]
WORDS = [
    "the",
    "House",
    "``old''",
    "river,",
    "e\u0301te\u0301",
    "hill-top.",
    "[SEP]",
    "1912",
    "中文",
    "a\u00adb",
]
plans = st.builds(EncodePlan, st.integers(8, 60), st.integers(1, 60), st.integers(1, 12))


def encode(
    examples: list[Any],
    plan: Any = PLAN,
    report: Any = None,
    is_training: bool = False,
    kind: str = "albert",
) -> EncodedExamples:
    return SPAN.encode(
        examples, Encoding(encoder(kind), (), plan, report or Report(), "dev", is_training)
    )


def ask(context: str, answer: str | None, question: str = "who?") -> SpanExample:
    """A question answered by the first occurrence of `answer`, or unanswerable."""
    answers = () if answer is None else (Answer(answer, context.index(answer)),)
    return SpanExample(context, question, answers, "q7")


def peaked(features: EncodedExamples) -> list[np.ndarray]:
    """Outputs with all weight on the labels, low for windows without the answer."""
    outputs = [np.zeros((length, 2), dtype=np.float32) for length in np.diff(features.starts)]
    for output, (start, end) in zip(outputs, features.labels.tolist(), strict=True):
        output[start, 0] = output[end, 1] = 50 if start else 1
    return outputs


@st.composite
def asked(draw: st.DrawFn, least: int = 1, most: int = 40) -> SpanExample:
    """A question on a passage of words, answered by one to three of them."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=least, max_size=most))
    first = draw(st.integers(0, len(words) - 1))
    last = draw(st.integers(first, min(len(words), first + 2) - 1))
    answer = Answer(
        " ".join(words[first : last + 1]), len("".join(word + " " for word in words[:first]))
    )
    return SpanExample(" ".join(words), "who?", (answer,), "1")


@steady
@given(st.integers(0, 90), st.integers(1, 40), plans)
def test_every_token_is_in_a_window_and_has_maximum_context_in_one(
    count: int, room: int, plan: EncodePlan
) -> None:
    windows = slide(count, room, plan)
    starts = [window.start for window, _ in windows]
    assert starts == sorted(set(starts))
    assert all(len(window) <= room for window, _ in windows)
    owners = np.zeros(count, dtype=int)
    for window, is_best in windows:
        owners[window.start : window.stop] += is_best
    assert (owners == 1).all()
    for token in range(count):
        context = [
            min(token - window.start, window[-1] - token) if token in window else -1
            for window, _ in windows
        ]
        window, is_best = windows[context.index(max(context))]
        assert is_best[token - window.start]


@steady
@given(st.integers(1, 90), st.integers(1, 6), st.integers(0, 30), st.integers(1, 60))
def test_an_answer_is_whole_in_the_window_with_most_context(
    count: int, longest: int, spare: int, stride: int
) -> None:
    plan = PLAN._replace(max_answer_length=longest, doc_stride=stride)
    for window, is_best in slide(count, 4 * longest + spare, plan):
        for at in np.flatnonzero(is_best).tolist():
            assert min(window[at] + longest, count) <= window.stop


@thorough
@given(kinds, asked())
def test_outputs_on_the_labels_are_decoded_to_the_exact_answers(
    kind: str, example: SpanExample
) -> None:
    report, plan = Report(), PLAN._replace(max_seq_length=160, max_answer_length=39)
    features = encode([example], plan, report, kind=kind)
    decoded = SPAN.decode(peaked(features), features, [example], (), plan)
    assert decoded.predictions == [(example.answers or ())[0].text]
    assert decoded.values.tolist() == [[1, 1, 1, 0, 1, 1]]
    assert report.counts == {}


@thorough
@given(kinds, texts, st.data())
def test_any_answer_is_found_widened_or_counted_as_lost(
    kind: str, context: str, data: st.DataObject
) -> None:
    assume(context)
    begin = data.draw(st.integers(0, len(context) - 1))
    answer = context[begin : data.draw(st.integers(begin + 1, len(context)))]
    report = Report()
    examples = [SpanExample(context, "who?", (Answer(answer, begin),), "1")]
    plan = PLAN._replace(max_seq_length=2000, max_answer_length=900)
    features = encode(examples, plan, report, kind=kind)
    (text,) = SPAN.decode(peaked(features), features, examples, (), plan).predictions
    counts = report.counts
    is_lost = "answers of dev not found in their passage" in counts
    assert is_lost == (features.labels[0].tolist() == [0, 0])
    answer = answer.strip()
    if not is_lost and text != answer:
        assert counts["answers of dev widened to whole tokens"] == (answer in text)
        assert counts["answers of dev only partly covered by tokens"] == (answer not in text)


@steady
@given(asked(20, 60))
def test_labels_mark_the_answer_in_exactly_the_windows_that_hold_it(example: SpanExample) -> None:
    features, (answer,) = encode([example], kind="bert"), example.answers or ()
    fields = (
        np.split(features.token_info[name], features.starts[1:-1])
        for name in ("char_starts", "char_ends")
    )
    for (start, end), begins, ends in zip(features.labels.tolist(), *fields, strict=True):
        whole = (answer.start, answer.start + len(answer.text))
        is_here = begins[begins >= 0].min() <= whole[0] and ends.max() >= whole[1]
        assert (start > 0) == is_here
        assert not is_here or (begins[start], ends[end]) == whole


@steady
@given(st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_decoding_is_the_best_of_all_pairs_in_all_windows(word_count: int, seed: int) -> None:
    context = " ".join((WORDS * 6)[:word_count])
    examples = [SpanExample("x", "x", None, "0"), SpanExample(context, "who is it?", None, "1")]
    plan = PLAN._replace(has_null_answer=True)
    features = encode(examples, plan)
    generator = np.random.default_rng(seed)
    outputs = [generator.normal(size=(length, 2)) for length in np.diff(features.starts)]
    spans = {-np.inf: ""}
    null_score = np.inf
    for feature in np.flatnonzero(features.example_index == 1):
        at = features.slices()[feature]
        begins, ends, is_best = (field[at].tolist() for field in features.token_info.values())
        scores = outputs[feature]
        null_score = min(null_score, scores[0].sum())
        for first, last in combinations_with_replacement(range(len(scores)), 2):
            is_context = is_best[first] and begins[first] >= 0 and begins[last] >= 0
            if is_context and last - first < plan.max_answer_length:
                total = scores[first, 0] + scores[last, 1]
                spans[total] = context[begins[first] : ends[last]]
    decoded = SPAN.decode(outputs, features, examples, (), plan)
    has_null = null_score > max(spans)
    assert decoded.predictions[1] == ("" if has_null else spans[max(spans)])
    assert (decoded.probabilities[1] > 0.5) == has_null


def test_windows_without_the_answer_are_dropped_in_training() -> None:
    context = " ".join(["the house on the hill"] * 12 + ["dog"])
    report = Report()
    count = encode([ask(context, "dog")]).feature_count
    features = encode([ask(context, "dog")], report=report, is_training=True)
    assert 0 < features.feature_count < count
    assert (features.labels[:, 0] > 0).all()
    dropped = count - features.feature_count
    assert report.counts["windows of dev without the answer dropped"] == dropped
    assert encode([ask(context, None)], is_training=True).feature_count == 0
    with_null = PLAN._replace(has_null_answer=True)  # a question may be unanswerable
    for answer in ("dog", None):
        assert encode([ask(context, answer)], with_null, is_training=True).feature_count == count


def test_an_answer_longer_than_any_window_is_counted_and_its_question_kept() -> None:
    context = " ".join(["the house on the hill"] * 12)
    examples = [ask(context, context), ask("the old house", "old")]
    report = Report()
    features = encode(examples, report=report)
    decoded = SPAN.decode(peaked(features), features, examples, (), PLAN)
    assert report.counts["answers of dev not whole in any window"] == 1
    assert report.counts["answers of dev longer than 6 tokens (--max_answer_length)"] == 1
    assert decoded.values[:, 0].tolist() == [0, 1]


def test_no_answer_is_predicted_if_its_score_is_above_every_span() -> None:
    plan = PLAN._replace(has_null_answer=True)
    examples = [
        ask("this old house", None),
        ask("the old house", "old"),
        ask("the old house", "old"),
    ]
    features = encode(examples, plan)
    outputs = peaked(features)
    outputs[2][0] = 60
    decoded = SPAN.decode(outputs, features, examples, (), plan)
    assert decoded.predictions == ["", "old", ""]
    assert decoded.values[:, [0, 1, 2, 4, 5]].tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1],
        [0, 0, 1, 1, 1],
    ]
    assert decoded.values[:, 3].tolist() == [2, -100, 20]


def test_a_passage_has_no_answer_only_if_none_of_its_windows_has_one() -> None:
    plan = PLAN._replace(has_null_answer=True)
    examples = [ask(" ".join(["the house on the hill"] * 12 + ["dog"]), "dog")]
    features = encode(examples, plan)
    assert features.feature_count > 3
    for lowest in (None, *range(features.feature_count)):
        outputs = peaked(features)  # the answer has a score of 100
        for number, output in enumerate(outputs):
            output[0] = 0 if number == lowest else 60
        decoded = SPAN.decode(outputs, features, examples, (), plan)
        assert decoded.predictions == ["" if lowest is None else "dog"]
        assert decoded.values[0, 3] == (20 if lowest is None else -100)


def test_an_empty_passage_has_no_answer_and_finite_values() -> None:
    examples = [
        SpanExample("", "who?", (), "1"),
        SpanExample(" ", "who?", (Answer("dog", 0),), "2"),
    ]
    for plan in (PLAN, PLAN._replace(has_null_answer=True)):
        features = encode(examples, plan)
        decoded = SPAN.decode(peaked(features), features, examples, (), plan)
        assert decoded.predictions == ["", ""]
        assert np.isfinite(decoded.values).all()
        assert decoded.values[:, 0].tolist() == [1, 0]
