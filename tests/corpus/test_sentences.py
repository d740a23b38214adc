"""Splitting a paragraph into sentences."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.corpus.sentences import split_sentences


def solid(text: str) -> str:
    return "".join(text.split())


@given(st.text(st.one_of(st.sampled_from(" .!?…\"'()。！AaZz1\n\u2028"), st.characters(exclude_categories=["Cs"]))))
@settings(max_examples=300, deadline=None)
def test_no_character_but_white_space_is_lost(paragraph: str) -> None:
    # Catches a splitter that drops the text behind the last stop, or the stop itself.
    assert solid("".join(split_sentences(paragraph))) == solid(paragraph)


@given(st.text(" .!?\"'()。AaZz1\n"))
@settings(max_examples=300, deadline=None)
def test_sentences_are_stripped_and_never_empty(paragraph: str) -> None:
    assert all(sentence and sentence == sentence.strip() for sentence in split_sentences(paragraph))


WHOLE = [
    "Mr. Smith and Dr. Jones met Prof. Lee.",
    "It is used, e.g. In a test, i.e. Never at home.",
    "The U.S. Army and the U.K. Parliament agreed.",
    "Lan et al. Proposed it, cf. Fig. 3 and No. 5 of Vol. 2.",
    "J. K. Rowling wrote it with J.R.R. Tolkien in mind.",
    "It costs 3.5 dollars or 1,000.25 yen.",
    "Well... Perhaps not.",
    "1. Install the package.",
    "It ended at 5 p.m. Monday.",
    '"Stop!" he said.',
    "Acme Inc. Chairman Bob and John Jr. Smith left.",
    "She was b. 1920 and d. 1980 in St. Petersburg.",
    "Upgrade to v2.0.1 from https://example.com/a.html?x=1. for it.",
    "He paid $4.50 at 10 a.m. EST on Jan. 5, 2000.",
    "Lt. Col. Smith, Sen. Kerry and Rep. Lee met at Washington, D.C. again.",
    "I saw Dr. No yesterday.",
    "John F. Kennedy Jr. and C. S. Lewis like C. elegans.",
    "She lives near St. Mary's on 5th Ave. near Mt. Holy.",
    "He stopped. . . and went on.",
    "“Go!” he said, “or...” and left.",
    "It rose (see Fig. 2a and pp. 3–5) by approx. 3.5 percent.",
    "The file a.txt ends here.Next there",
    '"Really?" Mary asked.',
    "“Go!” Mr. John Smith cried, and went.",
    "Yahoo! Inc. bought it.",
    "See Fig. A and Eqs. B and C.",
    "He met her in Calif. Monday.",
]


def test_an_abbreviation_number_or_ellipsis_does_not_end_a_sentence() -> None:
    # Catches the plain rule "a stop, a space and a capital".
    assert [sentence for sentence in WHOLE if split_sentences(sentence) != [sentence]] == []


SPLIT = [
    ["One came.", "Two went!", "Was it three?", "Yes."],
    ['He said "no."', "She left."],
    ["(It was late.)", "We slept."],
    ["It began in 1999.", "2000 was next."],
    ["They said yes.", '"No" came later.'],
    ["It belongs to the U.S.", "The law says so."],
    ["He took vitamin C.", "It helped."],
    ["Bring apples, pears, etc.", "They keep."],
    ["It stopped…", "Then it went on."],
    ["words with spaces .", "Then more ."],
    ["Он пришёл.", "Она ушла."],
    ["It cost $4.50.", "$2 was left.", "€3 more."],
    ["What?!", "No way."],
    ["¿Qué pasa?", "¡Nada!"],
    ["“Yes.”", "“No!”", "He left."],
    ["He left.[1]", "She stayed.[12][13]", "They slept."],
    ["He saw Dr. No.", "It was fun."],
    ["We met at 5 p.m.", "He left."],
    ["Upgrade to v2.0.1.", "Restart it."],
    ["See https://example.com/.", "Then go."],
    ["He works at Apple Inc.", "It is big."],
    ["They did.", "🎉 Then more."],
    ["He left.", "#1 came.", "@Bob came."],
    ["End of it .", "Then ."],
    ['"Really?"', "She said nothing."],
    ['"Really?"', "Mary left and said nothing."],
    ['"Really?"', '"Mary asked."'],
    ['"Who is he?"', 'Mary replied: "One of us."'],
    ["It is big!", "Mary asked why."],
    ["He ate a fig.", "Another fell."],
    ["She came from Calif.", "The sun shone."],
]


def test_a_stop_and_a_beginning_split() -> None:
    assert [sentences for sentences in SPLIT if split_sentences(" ".join(sentences)) != sentences] == []


def test_scripts_without_spaces_split_at_their_full_stops() -> None:
    assert split_sentences("你好。再见！「好吗？」是") == ["你好。", "再见！", "「好吗？」", "是"]


def test_splitting_again_changes_nothing() -> None:
    paragraph = 'Dr. No came. "Why?" he asked. See Fig. 2. It was 3 p.m. The U.S. Army left... Then J. K. slept.'
    sentences = split_sentences(paragraph)
    assert [split_sentences(sentence) for sentence in sentences] == [[sentence] for sentence in sentences]


def test_a_hostile_line_takes_linear_time() -> None:
    # Regression: a run of stops without a space made the pattern give back one stop after another.
    pieces = {
        ".": 200_000,
        "a": 200_000,
        '."': 100_000,
        ". (": 60_000,
        ".[1]": 60_000,
        ". 🎉": 60_000,
        '!" Aa ': 60_000,
    }
    started = time.process_time()
    for piece, count in pieces.items():
        split_sentences(piece * count)
    assert time.process_time() - started < 10, "seconds where time is linear, hours where it is not"
