"""Answers are scored as in SQuAD's script, entities as in that of the CoNLL tasks."""

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.tasks.span import answer_scores, normalized_words
from electra_albert.tasks.token import Entity, entities, is_entity_tagging
from tests.refusals import rows

LAW = settings(max_examples=100, deadline=None, derandomize=True)
WORDS = st.sampled_from(
    [*rows("the | a | An | cat | Cats | 1,000 | U.S. | - | the-cat | é | …")[0], "  ", "\u3000x"]
)
TEXTS = st.one_of(st.lists(WORDS, max_size=5).map(" ".join), st.text(max_size=12))


def words_of(text: str) -> list[str]:
    """Reference normalization, one character and one word at a time."""
    actual, word = "", ""
    for character in text.lower() + " ":
        if character.isalnum() or character == "_":
            word += character
        elif character not in string.punctuation:
            actual += " " if word in ("a", "an", "the") else word
            actual += character
            word = ""
    return actual.split()


def plain_f1(prediction: str, gold: str) -> float:
    """Reference F1 that removes equal words one by one."""
    predicted, left = words_of(prediction), words_of(gold)
    size = len(predicted) + len(left)
    for word in predicted:
        if word in left:
            left.remove(word)
    shared = size - len(predicted) - len(left)
    return 2 * shared / size if size else 1.0


@LAW
@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_scores_equal_a_simple_reference(prediction: str, golds: list[str]) -> None:
    right = [gold for gold in golds if words_of(gold)] or [""]
    match = float(any(words_of(prediction) == words_of(gold) for gold in right))
    overlap = max(plain_f1(prediction, gold) for gold in right)
    assert answer_scores(prediction, golds) == pytest.approx((match, overlap), rel=1e-12)
    assert normalized_words(prediction) == words_of(prediction)


# A prediction, gold answers, their exact match and F1.
ANSWERS = """
Denver Broncos | the Denver Broncos; Broncos | 1 | 1
to be or to    | to to to be                 | 0 | .75
Denver         |                             | 0 | 0
the            |                             | 1 | 1
               | Denver; the                 | 0 | 0
"""


@pytest.mark.parametrize(("prediction", "golds", "match", "overlap"), rows(ANSWERS))
def test_hand_made_answers(prediction: str, golds: str, match: str, overlap: str) -> None:
    scores = answer_scores(prediction, golds.split("; ") if golds else [])
    assert scores == pytest.approx((float(match), float(overlap)))


@st.composite
def marked_sentences(draw: st.DrawFn) -> tuple[list[tuple[int, str]], set[Entity]]:
    """Segments (length, type, or "" outside) of a sentence, and the entities among them."""
    stretch = st.tuples(st.integers(1, 4), st.sampled_from(["", "PER", "LOC", "A-B"]))
    stretches = draw(st.lists(stretch, max_size=6))
    start, gold = 0, set()
    for length, kind in stretches:
        if kind:
            gold.add((start, start + length, kind))
        start += length
    return stretches, gold


@LAW
@given(st.sampled_from(["BIIB", "BIES", "BILU"]), marked_sentences())  # IOB2, IOBES, BILOU
def test_entities_written_in_a_scheme_are_read_back(scheme: str, marked: Any) -> None:
    begin, inside, end, single = scheme
    tags = []
    for length, kind in marked[0]:
        marks = [single] if length == 1 else [begin, *inside * (length - 2), end]
        tags += [f"{mark}-{kind}" for mark in marks] if kind else ["O"] * length
    assert entities(tags) == marked[1]


# Tags, and the first and one past the last word and the type of their entities.
TAGS = """
I-PER B-PER O I-PER | 0 1 PER, 1 2 PER, 3 4 PER
B-PER I-LOC         | 0 1 PER, 1 2 LOC
B I O B             | 0 2 _, 3 4 _
B-A-B I-A-B         | 0 2 A-B
E-PER I-PER         | 0 1 PER, 1 2 PER
"""


@pytest.mark.parametrize(("tags", "expected"), rows(TAGS))
def test_hand_made_tags(tags: str, expected: str) -> None:
    spans = sorted(entities(tags.split()))
    assert ", ".join(" ".join(map(str, span)) for span in spans) == expected


def test_only_tags_with_the_prefixes_of_a_scheme_are_entities() -> None:
    for labels in ("B-NP I-NP", "O S-PER E-PER B-PER I-PER", "B I O"):
        assert is_entity_tagging(labels.split()), labels
    for labels in ("B I", "O", "", "O B-PER NN"):  # without O a bare B may be a tag of its own
        assert not is_entity_tagging(labels.split()), labels
