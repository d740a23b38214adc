"""Text classification, multiple choice and tagging: their features, counts, and decoded outputs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_albert.contracts import IGNORED_LABEL, DataError
from electra_albert.tasks.encoding import EncodedExamples, Encoding
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.sequence import fill
from electra_albert.tasks.task import ChoiceExample, Report, SequenceExample, TokenExample
from tests.tasks.small_tokenizers import PLAN, encoder, kinds, steady, texts, thorough, tokenizer, words

LABELS = {"sequence": ("no", "yes"), "choice": (), "token": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")}
ROOM = PLAN.max_seq_length - 3
SHORT = PLAN._replace(max_seq_length=16)
tagged = st.lists(st.tuples(words, st.sampled_from(LABELS["token"])), max_size=30)


def encode(
    kind: str, examples: list[Any], plan: Any = PLAN, report: Report | None = None, text: str = "albert", **options: Any
) -> EncodedExamples:
    encoding = Encoding(encoder(text), LABELS[kind], plan, report or Report(), "dev", **options)
    return KINDS[kind].encode(examples, encoding)


def decode(kind: str, outputs: list[Any], features: EncodedExamples, examples: list[Any], plan: Any = PLAN) -> Any:
    floats = [np.asarray(output, dtype=np.float32) for output in outputs]
    return KINDS[kind].decode(floats, features, examples, LABELS[kind], plan)


def sequence_of(features: EncodedExamples, number: int) -> list[int]:
    return features.input_ids[features.starts[number] : features.starts[number + 1]].tolist()


def ids_of(text: str) -> list[int]:
    return encoder("albert").encode([text])[0].tolist()


def sequences(*labels: Any) -> list[SequenceExample]:
    return [SequenceExample("a", None, label, f"file.tsv:{n}") for n, label in enumerate(labels)]


def choice(options: tuple[str, ...] = ("a", "b"), label: int | None = 1, group: str = "") -> ChoiceExample:
    return ChoiceExample("the house", "who _?", options, label, "7.txt", group)


def sentence(pairs: list[tuple[str, str]]) -> TokenExample:
    return TokenExample(tuple(word for word, _ in pairs), tuple(tag for _, tag in pairs), "1")


# Sequences.


@steady
@given(st.lists(st.tuples(texts, st.none() | texts), max_size=4))
def test_features_hold_the_start_of_both_texts_and_fit(pairs: list[tuple[str, str | None]]) -> None:
    report = Report()
    examples = [SequenceExample(a, b, "yes", str(n)) for n, (a, b) in enumerate(pairs)]
    features = encode("sequence", examples, PLAN, report)
    cls, sep = tokenizer("albert").cls_token_id, tokenizer("albert").sep_token_id
    cut: list[str] = []
    for number, (first, second) in enumerate(pairs):
        found, border = sequence_of(features, number), int(features.first_lengths[number])
        a, b = found[1 : border - 1], found[border:-1]
        assert (found[0], found[border - 1], found[-1]) == (cls, sep, sep)
        assert a == ids_of(first)[: len(a)]
        assert b == ([] if second is None else ids_of(second)[: len(b)])
        assert len(found) <= PLAN.max_seq_length
        shorter = len(a) < len(ids_of(first)) or len(b) < len(ids_of(second or ""))
        assert not shorter or len(found) == PLAN.max_seq_length
        assert second is not None or border == len(found)
        cut += [str(number)] * shorter
    assert report.counts["examples of dev truncated to 32 tokens (--max_seq_length)"] == len(cut)
    assert report.first_truncated == (cut[0] if cut else None)


def test_double_unordered_adds_swapped_training_pairs() -> None:
    examples = [SequenceExample("old", "house", "yes", "1"), SequenceExample("x", None, "no", "2")]
    report, twice = Report(), PLAN._replace(double_unordered=True)
    features = encode("sequence", examples, twice, report, is_training=True)
    assert (features.example_index.tolist(), features.labels.tolist()) == ([0, 1, 0], [1, 0, 1])
    assert sequence_of(features, 2) == sequence_of(encode("sequence", [SequenceExample("house", "old", None, "1")]), 0)
    assert report.counts["pairs of dev added with their two texts swapped"] == 1
    assert encode("sequence", examples, twice).feature_count == 2
    assert encode("sequence", examples, is_training=True).feature_count == 2
    encode("sequence", [SequenceExample("the house " * 30, "x", "yes", "1")], twice, report, is_training=True)
    assert report.counts["examples of dev truncated to 32 tokens (--max_seq_length)"] == 1  # an example counts once


def test_logits_are_decoded_to_classes_probabilities_numbers_and_values() -> None:
    examples = sequences("yes", "no", "yes")
    found = decode("sequence", [[0, 2], [0, 1], [3, 0]], encode("sequence", examples), examples)
    assert (found.predictions, found.values.tolist()) == (["yes", "yes", "no"], [[1, 1], [1, 0], [0, 1]])
    assert found.probabilities[0][1] == pytest.approx(1 / (1 + np.exp(-2)), rel=1e-12)
    examples, plan = sequences(3.2, 0.0), PLAN._replace(is_regression=True)
    features = encode("sequence", examples, plan)
    found = decode("sequence", [[5.5], [-1]], features, examples, plan)
    assert features.labels.dtype == np.float32
    assert (found.predictions, found.values.tolist()) == ([5.5, -1.0], [[5.5, 3.2], [-1.0, 0.0]])  # the exact gold
    features = encode("sequence", sequences(None))
    found = decode("sequence", [[1, 0]], features, sequences(None))
    assert (features.labels, found.values, found.predictions) == (None, None, ["no"])
    assert decode("sequence", [], encode("sequence", []), []).predictions == []


# Multiple choice: one sequence per option.


@steady
@given(texts, st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
def test_the_passage_is_truncated_before_question_and_option(context: str, questions: list[tuple[str, str]]) -> None:
    report = Report()
    examples = [ChoiceExample(context, q, (option, "x"), 0, "1", "") for q, option in questions]
    features = encode("choice", examples, PLAN, report)
    cut = 0
    for number, one in enumerate(examples):
        found = [sequence_of(features, at) for at in (2 * number, 2 * number + 1)]
        borders = features.first_lengths[2 * number : 2 * number + 2].tolist()
        assert borders[0] == borders[1]  # all options get the same part of the passage
        for option, ids, border in zip(one.options, found, borders, strict=True):
            assert ids[border:-1] == ids_of(fill(one.question, option))[-(ROOM // 2) :]
            assert ids[1 : border - 1] == ids_of(context)[: border - 2]
            assert len(ids) <= PLAN.max_seq_length
        is_cut = borders[0] - 2 < len(ids_of(context))
        assert not is_cut or max(map(len, found)) == PLAN.max_seq_length
        cut += is_cut
    assert report.counts["passages of dev with question and option truncated to 32 tokens (--max_seq_length)"] == cut
    assert (report.first_truncated is None) == (not any(" truncated to " in what for what in report.counts))


def test_the_option_fills_the_gap_or_follows_the_question() -> None:
    wanted = {"He _ .": r"He a\1 .", "He ____ it": r"He a\1 it", "Who?": r"Who? a\1", "of_?": r"ofa\1?"}
    wanted |= {"snake_case?": r"snake_case? a\1", "__a_b_ is _": r"__a_b_ is a\1", "_ed": r"a\1ed", "w___x": r"wa\1x"}
    wanted |= {"他_好": r"他a\1好", "그는 _를": r"그는 a\1를", "ก_ข": r"กa\1ข", "_yes_ or _": r"_yes_ or a\1"}
    names = ("What does __init__ do?", "Open café_bar", "Это_имя", "@user_name_", "c_d_e_", "e\u0301_x")
    wanted |= {question: rf"{question} a\1" for question in names}
    assert {question: fill(question, r"a\1") for question in wanted} == wanted


def test_a_question_is_one_feature_with_its_choice_gold_and_group() -> None:
    examples = [choice(group="middle"), choice(("c", "d"), 0, "high"), choice(group="other")]
    features = encode("choice", examples)
    batch = features.collate([1, 0])
    assert batch.input_ids.shape[0] == 4
    assert (batch.labels.tolist(), batch.example_id.tolist()) == ([0, 1], [1, 1, 0, 0])
    found = decode("choice", [[0, 1], [0, 1], [1, 0]], features, examples)
    assert (found.predictions, found.values.tolist()) == ([1, 1, 0], [[1, 1, 0], [1, 0, 1], [0, 1, -1]])


# Tagged words.


def outputs_on(features: EncodedExamples, tags: np.ndarray) -> list[np.ndarray]:
    """Outputs with all weight on some tags; positions that must not be read get noise."""
    tag_count = len(LABELS["token"])
    noise = np.random.default_rng(0).normal(size=(len(features.input_ids), tag_count)).astype(np.float32)
    return np.split(np.where(tags[:, None] == np.arange(tag_count), 50, noise), features.starts[1:-1])


@thorough
@given(kinds, st.lists(tagged, min_size=1, max_size=3))
def test_outputs_on_the_gold_tags_are_decoded_to_them(text: str, sentences: list[list[tuple[str, str]]]) -> None:
    examples = [sentence(pairs) for pairs in sentences]
    features = encode("token", examples, SHORT, text=text)
    decoded = decode("token", outputs_on(features, features.labels), features, examples)
    assert decoded.predictions == [list(one.tags or ()) for one in examples]
    assert (decoded.values[:, :1] == decoded.values[:, 1:3]).all()
    assert decoded.values[:, 3].tolist() == decoded.values[:, 4].tolist() == [len(one.words) for one in examples]


@thorough
@given(kinds, tagged)
def test_words_keep_their_order_and_none_is_lost_or_repeated(text: str, pairs: list[tuple[str, str]]) -> None:
    features = encode("token", [sentence(pairs)], SHORT, text=text)
    numbers = features.token_info["word_ids"]
    assert numbers[numbers >= 0].tolist() == list(range(len(pairs)))
    assert features.feature_lengths.max() <= 16
    assert ((features.labels != IGNORED_LABEL) == (numbers >= 0)).all()
    kept = [token for inside in np.split(features.input_ids, features.starts[1:-1]) for token in inside[1:-1].tolist()]
    filler = encoder(text).filler_id
    whole = [encoder(text).encode([" " + word])[0].tolist()[:14] or [filler] for word, _ in pairs]
    assert kept == [token for word in whole for token in word]


def test_a_long_sentence_is_split_before_a_word_that_does_not_fit() -> None:
    report = Report()
    assert len(ids_of(" dog-bark")) > 1  # else every word fits
    text = ["house", "dog-bark"] * 20
    features = encode("token", [sentence([(word, "O") for word in text])], SHORT, report)
    for length, start in zip(features.feature_lengths, features.starts[1:-1], strict=False):
        assert length + len(ids_of(" " + text[features.token_info["word_ids"][start + 1]])) > 16
    assert set(features.example_index.tolist()) == {0}
    for start in features.starts[:-1]:  # [CLS], and then the first token of a word
        assert features.token_info["word_ids"][start] == -1 < features.token_info["word_ids"][start + 1]
    assert report.counts == {"sentences of dev split into windows of 16 tokens": 1}


def test_words_too_long_or_without_a_token_keep_their_position_and_are_counted() -> None:
    report = Report()
    pairs = [("ab" * 45, "B-PER"), ("\u200b", "O"), ("\u0301", "O"), ("the", "B-LOC")]
    features = encode("token", [sentence(pairs)], SHORT, report, "bert")
    assert report.counts["words of dev without a token replaced by the unknown token"] == 2
    assert (report.counts["words of dev truncated to 14 tokens"], report.first_truncated) == (1, "1")
    assert (features.input_ids == tokenizer("bert").unk_token_id).sum() == 2


def test_values_count_entities_and_tags() -> None:
    examples = [TokenExample(("a", "b", "c", "d"), ("B-PER", "I-PER", "O", "B-LOC"), "1")]
    features = encode("token", examples)
    given_tags = np.zeros(len(features.input_ids), dtype=np.int64)
    given_tags[features.token_info["word_ids"] >= 0] = [1, 0, 3, 3]  # B-PER O B-LOC B-LOC
    assert decode("token", outputs_on(features, given_tags), features, examples).values.tolist() == [[1, 3, 2, 2, 4]]
    examples = [TokenExample(("a", "b"), None, "1")]
    features = encode("token", examples)
    decoded = decode("token", [np.ones((len(features.input_ids), 5))], features, examples)
    assert (features.labels, decoded.predictions, decoded.values) == (None, [["O", "O"]], None)
    assert features.collate([0]).labels is None


# Refused.


@pytest.mark.parametrize(
    ("kind", "examples", "message"),
    [
        ("choice", [choice(), choice(("a", "b", "c"))], r"dev, 7\.txt: .*3 options"),
    ],
)
def test_labels_that_do_not_fit_are_refused_with_the_example(kind: str, examples: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode(kind, examples)
