"""Splitting a paragraph into sentences."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.corpus.documents import split_sentences
from tests.corpus.reading import solid


@given(
    st.text(
        st.one_of(
            st.sampled_from(" .!?…\"'()。！AaZz1\n\u2028"), st.characters(exclude_categories=["Cs"])
        )
    )
)
@settings(max_examples=300, deadline=None)
def test_no_character_but_white_space_is_lost_and_sentences_are_stripped(paragraph: str) -> None:
    # Catches a splitter that drops the text after the last stop, or the stop itself.
    sentences = split_sentences(paragraph)
    assert solid("".join(sentences)) == solid(paragraph)
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


WHOLE = """
Mr. Smith and Dr. Jones met Prof. Lee.
It is used, e.g. In a test, i.e. Never at home.
The U.S. Army and the U.K. Parliament agreed.
Lan et al. Proposed it, cf. Fig. 3 and No. 5 of Vol. 2.
J. K. Rowling wrote it with J.R.R. Tolkien in mind.
1. Install the package.
Acme Inc. Chairman Bob and John Jr. Smith left.
She was b. 1920 and d. 1980 in St. Petersburg.
Upgrade to v2.0.1 from https://example.com/a.html?x=1. for it.
He paid $4.50 at 10 a.m. EST on Jan. 5, 2000.
Lt. Col. Smith, Sen. Kerry and Rep. Lee met at Washington, D.C. again.
I saw Dr. No yesterday.
It is shown in Fig. A and by Eq. B there.
He stopped. . . and went on... Perhaps not.
“Go!” he said, “or...” and left.
It rose (see Fig. 2a and pp. 3–5) by approx. 3.5 percent.
"Really?" Mary asked.
Yahoo! Inc. bought it.
"""
SPLIT = """
One came. | Two went! | Was it three? | Yes.
He said "no." | She left.
(It was late.) | We slept.
It began in 1999. | 2000 was next.
It belongs to the U.S. | The law says so.
He took vitamin C. | It helped.
It stopped… | Then it went on.
words with spaces . | Then more .
Он пришёл. | Она ушла.
It cost $4.50. | $2 was left. | €3 more.
¿Qué pasa? | ¡Nada!
“Yes.” | “No!” | He left.
He left.[1] | She stayed.[12][13] | They slept.
He saw Dr. No. | It was fun.
We met at 5 p.m. | He left.
See https://example.com/. | Then go.
They did. | 🎉 Then more.
"Really?" | Mary left and said nothing.
"Who is he?" | Mary replied: "One of us."
She came from Calif. | The sun shone.
"""


def test_sentences_are_split_at_stops_but_not_at_abbreviations_numbers_or_ellipses() -> None:
    # Catches the naive rule "stop, space, capital letter".
    expected = [line.split(" | ") for line in (WHOLE + SPLIT).splitlines() if line]
    assert [
        sentences for sentences in expected if split_sentences(" ".join(sentences)) != sentences
    ] == []
    assert all(
        split_sentences(sentence) == [sentence] for sentences in expected for sentence in sentences
    )
    assert split_sentences("你好。再见！「好吗？」是") == ["你好。", "再见！", "「好吗？」", "是"]


def test_a_hostile_line_takes_linear_time() -> None:
    # Regression: a run of stops without a space made the pattern backtrack at each stop.
    started = time.process_time()
    for part in (".", '."', ". (", ".[1]", ". 🎉", '!" Aa '):
        split_sentences(part * 60_000)
    assert time.process_time() - started < 10, "seconds if the time is linear, hours if not"
