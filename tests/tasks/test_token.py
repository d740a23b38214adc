"""Words with tags: each word predicted once, whatever the tokenizer and the length make of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_albert.contracts import IGNORED_LABEL, DataError
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.rows import Rows
from electra_albert.tasks.task import Report, TokenExample
from tests.tasks.small_tokenizers import KINDS as TOKENIZERS
from tests.tasks.small_tokenizers import PLAN, encoder, steady, tokenizer, words

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TOKEN = KINDS["token"]
tagged = st.lists(st.tuples(words, st.sampled_from(LABELS)), max_size=30)


def encode(examples: list[TokenExample], kind: str = "albert", report: Report | None = None, length: int = 16) -> Rows:
    report = Report() if report is None else report
    plan = PLAN._replace(max_seq_length=length)
    return TOKEN.encode(examples, encoder(kind), LABELS, plan, report, is_training=True, where="train")


def example(sentence: list[tuple[str, str]]) -> TokenExample:
    return TokenExample(tuple(word for word, _ in sentence), tuple(tag for _, tag in sentence), "1")


def outputs_on(rows: Rows, tags: np.ndarray) -> list[np.ndarray]:
    """Outputs of all weight on some tags; those that count for nothing get noise that must not be read."""
    noise = np.random.default_rng(0).normal(size=(len(rows.ids), len(LABELS))).astype(np.float32)
    logits = np.where(tags[:, None] == np.arange(len(LABELS)), 50, noise).astype(np.float32)
    return np.split(logits, rows.starts[1:-1])


@pytest.mark.parametrize("kind", TOKENIZERS)
@steady
@given(st.lists(tagged, min_size=1, max_size=3))
def test_outputs_on_the_gold_tags_give_them_back(kind: str, sentences: list[list[tuple[str, str]]]) -> None:
    examples = [example(sentence) for sentence in sentences]
    rows = encode(examples, kind)
    assert rows.labels is not None
    decoded = TOKEN.decode(outputs_on(rows, rows.labels), rows, examples, LABELS, PLAN)
    assert decoded.predictions == [list(one.tags or ()) for one in examples]
    assert decoded.values is not None
    assert (decoded.values[:, 0] == decoded.values[:, 1]).all()
    assert (decoded.values[:, 0] == decoded.values[:, 2]).all()
    assert decoded.values[:, 3].tolist() == decoded.values[:, 4].tolist() == [len(one.words) for one in examples]


@pytest.mark.parametrize("kind", TOKENIZERS)
@steady
@given(sentence=tagged)
def test_words_keep_their_order_and_none_is_lost_or_repeated(kind: str, sentence: list[tuple[str, str]]) -> None:
    rows = encode([example(sentence)], kind)
    numbers = rows.token_info["words"]
    assert numbers[numbers >= 0].tolist() == list(range(len(sentence)))
    assert rows.unit_lengths().max() <= 16
    assert rows.labels is not None
    assert ((rows.labels != IGNORED_LABEL) == (numbers >= 0)).all()
    inside = np.split(rows.ids, rows.starts[1:-1])
    kept = [piece for row in inside for piece in row[1:-1].tolist()]
    filler = encoder(kind).filler_id
    whole = [encoder(kind).encode([" " + word])[0].tolist()[:14] or [filler] for word, _ in sentence]
    assert kept == [piece for word in whole for piece in word]


def test_a_long_sentence_is_cut_before_a_word_that_does_not_fit() -> None:
    report = Report()
    assert len(encoder("albert").encode([" dog-bark"])[0]) > 1  # or all fit alike
    sentence = ["house", "dog-bark"] * 20
    rows = encode([example([(word, "O") for word in sentence])], report=report)
    lengths = rows.unit_lengths()
    for length, start in zip(lengths, rows.starts[1:-1], strict=False):
        following = sentence[rows.token_info["words"][start + 1]]
        assert length + len(encoder("albert").encode([" " + following])[0]) > 16
    assert set(rows.examples.tolist()) == {0}
    assert all(rows.token_info["words"][start + 1] >= 0 for start in rows.starts[:-1])
    assert report.counts == {"sentences of train read in windows of 16 tokens": 1}


def test_words_too_long_or_without_a_token_keep_their_place_and_are_counted() -> None:
    report = Report()
    sentence = [("ab" * 45, "B-PER"), ("\u200b", "O"), ("\u0301", "O"), ("the", "B-LOC")]
    rows = encode([example(sentence)], "bert", report)
    assert report.counts["words of train that give no token, read as unknown"] == 2
    assert report.counts["words of train cut to 14 tokens"] == 1
    assert (rows.ids == tokenizer("bert").unk_token_id).sum() == 2


def test_values_count_whole_entities_and_single_tags() -> None:
    examples = [TokenExample(("a", "b", "c", "d"), ("B-PER", "I-PER", "O", "B-LOC"), "1")]
    rows = encode(examples, length=64)
    given_tags = np.full(len(rows.ids), 0)
    numbers = rows.token_info["words"]
    given_tags[numbers >= 0] = [1, 0, 3, 3]  # B-PER O B-LOC B-LOC
    decoded = TOKEN.decode(outputs_on(rows, given_tags), rows, examples, LABELS, PLAN)
    assert decoded.values is not None
    assert decoded.values.tolist() == [[1, 3, 2, 2, 4]]


def test_sentences_without_tags_are_tagged_and_have_no_values() -> None:
    examples = [TokenExample(("a", "b"), None, "1")]
    rows = encode(examples)
    decoded = TOKEN.decode([np.ones((len(rows.ids), 5), np.float32)], rows, examples, LABELS, PLAN)
    assert (rows.labels, decoded.predictions, decoded.values) == (None, [["O", "O"]], None)
    assert rows.collate([0]).labels is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (TokenExample(("a",), ("B-ORG",), "7"), "B-ORG"),
        (TokenExample(("a", "b"), ("O",), "7"), "1 tags for 2 words"),
    ],
)
def test_tags_that_do_not_fit_are_refused(bad: TokenExample, message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode([bad])
