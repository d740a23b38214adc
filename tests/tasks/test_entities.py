"""Tags are read as the CoNLL shared tasks' script reads them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.tasks.token import Entity, entities, is_entity_tagging

LAW = settings(max_examples=100, deadline=None, derandomize=True)
KINDS = ("PER", "LOC", "A-B")


@st.composite
def marked_sentences(draw: st.DrawFn) -> tuple[list[tuple[int, str]], set[Entity]]:
    """Stretches (length, type, or "" outside) that fill a sentence, and the entities among them."""
    stretches = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", *KINDS])), max_size=6))
    start, gold = 0, set()
    for length, kind in stretches:
        if kind:
            gold.add((start, start + length, kind))
        start += length
    return stretches, gold


def spelled(stretches: list[tuple[int, str]], begin: str, inside: str, end: str, single: str) -> list[str]:
    """The stretches as tags of one scheme."""
    tags = []
    for length, kind in stretches:
        marks = [single] if length == 1 else [begin, *inside * (length - 2), end]
        tags += [f"{mark}-{kind}" for mark in marks] if kind else ["O"] * length
    return tags


@pytest.mark.parametrize("scheme", ["BIIB", "BIES", "BILU"], ids=["IOB2", "IOBES", "BILOU"])
@LAW
@given(marked_sentences())
def test_entities_written_in_a_scheme_are_read_back(
    scheme: str, marked: tuple[list[tuple[int, str]], set[Entity]]
) -> None:
    stretches, gold = marked
    assert entities(spelled(stretches, *scheme)) == gold


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("I-PER I-PER O I-PER", {(0, 2, "PER"), (3, 4, "PER")}),  # IOB1
        ("I-PER B-PER", {(0, 1, "PER"), (1, 2, "PER")}),  # IOB1: B only between neighbours
        ("B-PER I-LOC", {(0, 1, "PER"), (1, 2, "LOC")}),
        ("B-PER I-PER", {(0, 2, "PER")}),
        ("O O", set()),
        ("B I O B", {(0, 2, "_"), (3, 4, "_")}),  # seqeval's name for no type
        ("B-A-B I-A-B", {(0, 2, "A-B")}),  # the type is all behind the first dash
        ("E-PER I-PER", {(0, 1, "PER"), (1, 2, "PER")}),
        ("S-PER I-PER", {(0, 1, "PER"), (1, 2, "PER")}),
        ("", set()),
    ],
)
def test_hand_made_rows(tags: str, found: set[Entity]) -> None:
    assert entities(tags.split()) == found


@pytest.mark.parametrize(
    ("labels", "is_tagging"),
    [
        (["O", "B-PER", "I-PER"], True),
        (["B-NP", "I-NP"], True),  # chunks may leave nothing outside
        (["O", "S-PER", "E-PER", "B-PER", "I-PER"], True),
        (["B", "I", "O"], True),
        (["B", "I"], False),  # without O they may be anything
        (["O"], False),
        ([], False),
        (["NN", "VB", "O"], False),
        (["O", "B-PER", "NN"], False),
        (["B1", "I1", "O"], False),
    ],
)
def test_only_tags_with_the_prefixes_of_a_scheme_are_entities(labels: list[str], is_tagging: bool) -> None:
    assert is_entity_tagging(labels) is is_tagging
