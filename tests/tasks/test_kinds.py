"""Text classification, multiple choice and tagging: their features, counts, and decoded outputs."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_albert.contracts import IGNORED_LABEL
from electra_albert.tasks.encoding import EncodedExamples, Encoding
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.sequence import fill
from electra_albert.tasks.task import ChoiceExample, Report, SequenceExample, TokenExample
from tests.refusals import assert_refused, rows
from tests.tasks import small_tokenizers as small
from tests.tasks.small_tokenizers import PLAN, encoder, kinds, texts, tokenizer

(TAGS,) = rows("O | B-PER | I-PER | B-LOC | I-LOC")
LABELS = {"sequence": ["no", "yes"], "token": TAGS}
ROOM = PLAN.max_seq_length - 3
SHORT = PLAN._replace(max_seq_length=16)
tagged = st.lists(st.tuples(small.words, st.sampled_from(TAGS)), max_size=30)


def encode(
    kind: str,
    examples: list[Any],
    plan: Any = PLAN,
    report: Any = None,
    text: str = "albert",
    **options: Any,
) -> EncodedExamples:
    labels = tuple(LABELS.get(kind, ()))
    encoding = Encoding(encoder(text), labels, plan, report or Report(), "dev", **options)
    return KINDS[kind].encode(examples, encoding)


def decode(
    kind: str, outputs: list[Any], features: EncodedExamples, examples: list[Any], plan: Any = PLAN
) -> Any:
    floats = [np.asarray(output, dtype=np.float32) for output in outputs]
    return KINDS[kind].decode(floats, features, examples, tuple(LABELS.get(kind, ())), plan)


def sequence_of(features: EncodedExamples, number: int) -> list[int]:
    return features.input_ids[features.slices()[number]].tolist()


def ids_of(text: str) -> list[int]:
    return encoder("albert").encode([text])[0].tolist()


def sequences(*labels: Any) -> list[SequenceExample]:
    return [SequenceExample("a", None, label, f"file.tsv:{n}") for n, label in enumerate(labels)]


def choice(group: str = "", options: str = "ab", label: int = 1) -> ChoiceExample:
    return ChoiceExample("the house", "who _?", (*options,), label, "7.txt", group)


def sentence(pairs: list[tuple[str, str]]) -> TokenExample:
    return TokenExample(*zip(*pairs, strict=True), "1") if pairs else TokenExample((), (), "1")


# Sequences.


@small.steady
@given(st.lists(st.tuples(texts, st.none() | texts), max_size=4))
def test_features_hold_the_start_of_both_texts_and_fit(pairs: list[tuple[str, str | None]]) -> None:
    report = Report()
    examples = [SequenceExample(*pair, "yes", str(number)) for number, pair in enumerate(pairs)]
    features = encode("sequence", examples, PLAN, report)
    cls, sep = tokenizer("albert").cls_token_id, tokenizer("albert").sep_token_id
    truncated: list[str] = []
    for number, (first, second) in enumerate(pairs):
        ids = sequence_of(features, number)
        border = features.first_lengths[number]
        assert (ids[0], ids[border - 1], ids[-1]) == (cls, sep, sep)
        whole = [cls, *ids_of(first), sep]
        assert ids[: border - 1] == whole[: border - 1]
        if second is None:
            assert border == len(ids)
        else:
            whole += [*ids_of(second), sep]
            assert ids[border:-1] == ids_of(second)[: len(ids) - border - 1]
        if ids != whole:
            truncated.append(str(number))
        assert len(ids) == min(len(whole), PLAN.max_seq_length)
    what = "examples of dev truncated to 32 tokens (--max_seq_length)"
    assert report.counts[what] == len(truncated)
    assert report.first_truncated == next(iter(truncated), None)


def test_double_unordered_adds_swapped_training_pairs() -> None:
    report = Report()
    twice = PLAN._replace(double_unordered=True)
    pairs = [("old", "house"), ("x", None), ("the house " * 30, "x"), ("house", "old")]
    examples = [SequenceExample(*pair, "yes", "1") for pair in pairs]
    features = encode("sequence", examples, twice, report, is_training=True)
    assert features.example_index.tolist() == [0, 1, 2, 3, 0, 2, 3]
    assert sequence_of(features, 4) == sequence_of(features, 3)
    assert report.counts["pairs of dev added with their two texts swapped"] == 3
    assert report.counts["examples of dev truncated to 32 tokens (--max_seq_length)"] == 1
    assert encode("sequence", examples, twice).feature_count == 4
    assert encode("sequence", examples, is_training=True).feature_count == 4


def test_logits_are_decoded_to_classes_and_probabilities() -> None:
    examples = sequences("yes", "no", "yes")
    decoded = decode("sequence", [[0, 2], [0, 1], [3, 0]], encode("sequence", examples), examples)
    assert decoded.predictions == ["yes", "yes", "no"]
    assert decoded.values.tolist() == [[1, 1], [1, 0], [0, 1]]
    assert decoded.probabilities[0][1] == pytest.approx(1 / (1 + np.exp(-2)), rel=1e-12)
    assert decode("sequence", [], encode("sequence", []), []).predictions == []
    assert encode("sequence", sequences(None)).labels is None


def test_numbers_are_scored_with_the_exact_gold() -> None:
    examples = sequences(3.2, 0.0)
    plan = PLAN._replace(is_regression=True)
    features = encode("sequence", examples, plan)
    decoded = decode("sequence", [[5.5], [-1]], features, examples, plan)
    assert features.labels.dtype == np.float32
    assert decoded.predictions == [5.5, -1.0]
    assert decoded.values.tolist() == [[5.5, 3.2], [-1.0, 0.0]]


# Multiple choice: one sequence per option.


@small.steady
@given(texts, texts, texts)
def test_the_passage_is_truncated_before_question_and_option(
    context: str, question: str, option: str
) -> None:
    report = Report()
    example = ChoiceExample(context, question, (option, "x"), 0, "1", "")
    features = encode("choice", [example], PLAN, report)
    passage = ids_of(context)
    border, same = features.first_lengths.tolist()
    assert border == same  # the same part for all options
    for number, choice in enumerate(example.options):
        ids = sequence_of(features, number)
        assert ids[border:-1] == ids_of(fill(question, choice))[-(ROOM // 2) :]
        assert ids[1 : border - 1] == passage[: border - 2]
    is_cut = border - 2 < len(passage)
    longest = max(features.feature_lengths)
    assert longest == PLAN.max_seq_length or (longest < PLAN.max_seq_length and not is_cut)
    what = "passages of dev with question and option truncated to 32 tokens (--max_seq_length)"
    assert report.counts[what] == is_cut
    assert (report.first_truncated is None) == (not report.counts.total())


def test_the_option_fills_the_gap_or_follows_the_question() -> None:
    option = r"a\1"
    filled = r"He @ .|He @ it|of@?|__a_b_ is @|@ed|w@x|他@好|그는 @를|ก@ข|_yes_ or @"
    gaps = "He _ .|He ____ it|of_?|__a_b_ is _|_ed|w___x|他_好|그는 _를|ก_ข|_yes_ or _"
    for gap, expected in zip(gaps.split("|"), filled.split("|"), strict=True):
        assert fill(gap, option) == expected.replace("@", option)
    names = "What does __init__ do?|Open café_bar|Это_имя|@user_name_|c_d_e_|e\u0301_x|snake_case?"
    for name in names.split("|"):
        assert fill(name, option) == f"{name} {option}"


def test_a_question_is_one_feature_with_its_choice_gold_and_group() -> None:
    examples = [choice("middle"), choice("high", label=0), choice("other")]
    features = encode("choice", examples)
    batch = features.collate([1, 0])
    assert len(batch.input_ids) == 4
    assert (batch.labels.tolist(), batch.example_id.tolist()) == ([0, 1], [1, 1, 0, 0])
    decoded = decode("choice", [[0, 1], [0, 1], [1, 0]], features, examples)
    assert decoded.predictions == [1, 1, 0]
    assert decoded.values.tolist() == [[1, 1, 0], [1, 0, 1], [0, 1, -1]]


# Tagged words.


def outputs_on(features: EncodedExamples, tags: np.ndarray) -> list[np.ndarray]:
    """Outputs with all weight on some tags; positions that must not be read get noise."""
    numbers = np.arange(len(TAGS))
    noise = np.random.default_rng(0).normal(size=(len(tags), len(numbers)))
    return np.split(np.where(tags[:, None] == numbers, 50, noise), features.starts[1:-1])


@small.thorough
@given(kinds, st.lists(tagged, min_size=1, max_size=3))
def test_words_keep_their_order_and_outputs_on_the_gold_tags_are_decoded_to_them(
    text: str, sentences: list[list[tuple[str, str]]]
) -> None:
    examples = [sentence(pairs) for pairs in sentences]
    features = encode("token", examples, SHORT, text=text)
    decoded = decode("token", outputs_on(features, features.labels), features, examples)
    assert decoded.predictions == [[*example.tags] for example in examples]
    for example, row in zip(examples, decoded.values.tolist(), strict=True):
        assert row == [row[0]] * 3 + [len(example.words)] * 2
    assert features.feature_lengths.max() <= 16
    is_first = features.token_info["word_ids"] >= 0
    assert ((features.labels != IGNORED_LABEL) == is_first).all()
    ids: list[int] = []
    for number in range(features.feature_count):
        ids += sequence_of(features, number)[1:-1]
    whole: list[int] = []
    for word in chain(*(example.words for example in examples)):
        whole += encoder(text).encode([" " + word])[0].tolist()[:14] or [encoder(text).filler_id]
    assert ids == whole


def test_a_long_sentence_is_split_before_a_word_that_does_not_fit() -> None:
    report = Report()
    assert len(ids_of(" dog-bark")) > 1  # else every word fits
    words = ["house", "dog-bark"] * 20
    features = encode("token", [sentence([(word, "O") for word in words])], SHORT, report)
    word_ids = features.token_info["word_ids"]
    for length, start in zip(features.feature_lengths, features.starts[1:-1], strict=False):
        assert length + len(ids_of(" " + words[word_ids[start + 1]])) > 16
    # [CLS], and then the first token of a word
    assert (word_ids[features.starts[:-1]] == -1).all()
    assert (word_ids[features.starts[:-1] + 1] >= 0).all()
    assert report.counts == {"sentences of dev split into windows of 16 tokens": 1}


def test_words_too_long_or_without_a_token_keep_their_position_and_are_counted() -> None:
    report = Report()
    pairs = [("ab" * 45, "B-PER"), ("\u200b", "O"), ("\u0301", "O"), ("the", "B-LOC")]
    features = encode("token", [sentence(pairs)], SHORT, report, "bert")
    assert report.counts["words of dev without a token replaced by the unknown token"] == 2
    assert report.counts["words of dev truncated to 14 tokens"] == 1
    assert report.first_truncated == "1"
    assert (features.input_ids == tokenizer("bert").unk_token_id).sum() == 2


def test_values_count_entities_and_tags() -> None:
    examples = [TokenExample(tuple("abcd"), ("B-PER", "I-PER", "O", "B-LOC"), "1")]
    features = encode("token", examples)
    predicted = np.array([0, 1, 0, 3, 3])  # B-PER O B-LOC B-LOC after a word without one
    outputs = outputs_on(features, predicted[features.token_info["word_ids"] + 1])
    decoded = decode("token", outputs, features, examples)
    assert decoded.values.tolist() == [[1, 3, 2, 2, 4]]


# Refused.


def test_questions_with_other_numbers_of_options_are_refused() -> None:
    examples = [choice(), choice(options="abc")]
    assert "7.txt" in assert_refused("DataError", "3 options", encode, "choice", examples)
