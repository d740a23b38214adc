"""Answers are compared as SQuAD's official scripts compare them."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.tasks.span import exact_match, f1, normalize_answer

LAW = settings(max_examples=100, deadline=None, derandomize=True)
WORDS = st.sampled_from(["the", "a", "An", "cat", "Cats", "1,000", "U.S.", "-", "the-cat", "é", "  ", "\u3000x", "…"])
TEXTS = st.one_of(st.lists(WORDS, max_size=5).map(" ".join), st.text(max_size=12))


def words_of(text: str) -> list[str]:
    """The normalisation said again, one character and one word at a time."""
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    found, word = [], ""
    for character in kept + " ":
        if character.isalnum() or character == "_":
            word += character
        else:
            found += [word if word not in ("a", "an", "the") else " ", character]
            word = ""
    return "".join(found).split()


def plain_f1(prediction: str, gold: str) -> float:
    """Precision and recall by crossing off equal words one by one."""
    predicted, left = words_of(prediction), words_of(gold)
    if not predicted or not left:
        return 1.0 if predicted == left else 0.0
    size, shared = len(left), 0
    for word in predicted:
        if word in left:
            left.remove(word)
            shared += 1
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / size
    return 2 * precision * recall / (precision + recall)


@LAW
@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_scores_agree_with_a_plain_restatement_of_the_rules(prediction: str, golds: list[str]) -> None:
    right = [gold for gold in golds if words_of(gold)] or [""]
    assert exact_match(prediction, golds) == float(any(words_of(prediction) == words_of(gold) for gold in right))
    # float64: the two write the harmonic mean differently.
    assert f1(prediction, golds) == pytest.approx(max(plain_f1(prediction, gold) for gold in right), rel=1e-12)


@LAW
@given(TEXTS)
def test_normalisation_agrees_with_a_plain_restatement(text: str) -> None:
    assert normalize_answer(text) == " ".join(words_of(text))


@pytest.mark.parametrize(
    ("prediction", "golds", "match", "overlap"),
    [
        ("Denver Broncos", ["the Denver Broncos", "Broncos"], 1.0, 1.0),
        ("Broncos of Denver", ["Denver Broncos", "Carolina"], 0.0, 0.8),
        ("to be or to", ["to to to be"], 0.0, 0.75),  # a word counts as often as both have it
        ("", [], 1.0, 1.0),
        ("", [""], 1.0, 1.0),
        ("", ["Denver"], 0.0, 0.0),
        ("Denver", [], 0.0, 0.0),
        ("Denver", [""], 0.0, 0.0),
        ("the", [], 1.0, 1.0),  # nothing is left of it
        ("", ["Denver", "the"], 0.0, 0.0),  # a gold of which nothing is left does not count beside another
    ],
)
def test_hand_made_cases(prediction: str, golds: list[str], match: float, overlap: float) -> None:
    assert exact_match(prediction, golds) == match
    assert f1(prediction, golds) == pytest.approx(overlap)
