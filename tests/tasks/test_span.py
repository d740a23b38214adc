"""Extractive question answering: windows, labels and best span against simple references."""

from functools import partial
from itertools import combinations_with_replacement

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from electra_albert.tasks.encoding import EncodedExamples, EncodePlan
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.span import slide
from electra_albert.tasks.task import Answer, Report, SpanExample
from tests.tasks import test_kinds
from tests.tasks.small_tokenizers import PLAN, kinds, steady, texts, thorough

SPAN = KINDS["span"]
NULL = PLAN._replace(has_null_answer=True)
TEXT = "the House ``old'' river, e\u0301te\u0301 hill-top. [SEP] 1912 中文 a\u00adb"
WORDS = TEXT.split()
LONG = "the house on the hill " * 12
encode = partial(test_kinds.encode, "span")
plans = st.builds(EncodePlan, st.integers(8, 60), st.integers(1, 60), st.integers(1, 12))


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
    text = " ".join(words[first : first + draw(st.integers(1, 3))])
    answer = Answer(text, len(" ".join([*words[:first], ""])))
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
    for token in range(count):
        context = [
            min(token - window.start, window[-1] - token) if token in window else -1
            for window, _ in windows
        ]
        owners = [token in window and is_best[token - window.start] for window, is_best in windows]
        assert sum(owners) == 1
        assert owners[context.index(max(context))]


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
    features = encode([example], plan, report, text=kind)
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
    features = encode(examples, plan, report, text=kind)
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
    features, (answer,) = encode([example], text="bert"), example.answers or ()
    whole = (answer.start, answer.start + len(answer.text))
    for (start, end), at in zip(features.labels.tolist(), features.slices(), strict=True):
        begins, ends = (features.token_info[name][at] for name in ("char_starts", "char_ends"))
        is_here = begins[begins >= 0].min() <= whole[0] and ends.max() >= whole[1]
        assert (start > 0) == is_here
        assert not is_here or (begins[start], ends[end]) == whole


@steady
@given(st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_decoding_is_the_best_of_all_pairs_in_all_windows(word_count: int, seed: int) -> None:
    context = " ".join((WORDS * 6)[:word_count])
    examples = [SpanExample("x", "x", None, "0"), SpanExample(context, "who is it?", None, "1")]
    features = encode(examples, NULL)
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
            if is_context and last - first < NULL.max_answer_length:
                total = scores[first, 0] + scores[last, 1]
                spans[total] = context[begins[first] : ends[last]]
    decoded = SPAN.decode(outputs, features, examples, (), NULL)
    has_null = null_score > max(spans)
    assert decoded.predictions[1] == ("" if has_null else spans[max(spans)])
    assert (decoded.probabilities[1] > 0.5) == has_null


def test_windows_without_the_answer_are_dropped_in_training() -> None:
    report = Report()
    answered, unanswered = [ask(LONG + "dog", "dog")], [ask(LONG + "dog", None)]
    count = encode(answered).feature_count
    features = encode(answered, report=report, is_training=True)
    assert 0 < features.feature_count < count
    assert (features.labels[:, 0] > 0).all()
    dropped = count - features.feature_count
    assert report.counts["windows of dev without the answer dropped"] == dropped
    assert encode(unanswered, is_training=True).feature_count == 0
    for examples in (answered, unanswered):  # a question may be unanswerable
        assert encode(examples, NULL, is_training=True).feature_count == count


def test_an_answer_longer_than_any_window_is_counted_and_its_question_kept() -> None:
    examples = [ask(LONG, LONG), ask("the old house", "old")]
    report = Report()
    features = encode(examples, report=report)
    decoded = SPAN.decode(peaked(features), features, examples, (), PLAN)
    assert report.counts["answers of dev not whole in any window"] == 1
    assert report.counts["answers of dev longer than 6 tokens (--max_answer_length)"] == 1
    assert decoded.values[:, 0].tolist() == [0, 1]


def test_no_answer_is_predicted_if_its_score_is_above_every_span() -> None:
    examples = [ask("this old house", None), *[ask("the old house", "old")] * 2]
    features = encode(examples, NULL)
    outputs = peaked(features)
    outputs[2][0] = 60
    decoded = SPAN.decode(outputs, features, examples, (), NULL)
    assert decoded.predictions == ["", "old", ""]
    expected = [[1, 1, 0, 2, 0, 0], [1, 1, 1, -100, 1, 1], [0, 0, 1, 20, 1, 1]]
    assert decoded.values.tolist() == expected


def test_an_empty_passage_has_no_answer_and_finite_values() -> None:
    empty = SpanExample("", "who?", (), "1")
    examples = [empty, empty._replace(context=" ", answers=(Answer("dog", 0),))]
    for plan in (PLAN, NULL):
        features = encode(examples, plan)
        decoded = SPAN.decode(peaked(features), features, examples, (), plan)
        assert decoded.predictions == ["", ""]
        assert np.isfinite(decoded.values).all()
        assert decoded.values[:, 0].tolist() == [1, 0]
