"""Rewriting line by line: what comes out for each line, whatever its length, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from electra_albert.contracts import DataError
from electra_albert.corpus.tokenizer import train_tokenizer
from electra_albert.inference.rewrite import BLOCK_LINES, LONGEST_PART, Rewriter, rewrite, rewrite_stream
from electra_albert.inference.splice import Rewritten, splice
from tests.apps.tiny_rewriter import LONGEST, TALE, make_objective, make_rewriter
from tests.apps.tiny_run import english


@pytest.fixture(scope="module")
def rewriter() -> Rewriter:
    tokenizer = train_tokenizer(english(60).split("\n"), 300, do_lower_case=True)
    return make_rewriter(make_objective(tokenizer), tokenizer)


def outcome(result: Rewritten) -> list[object]:
    """What must be equal bit for bit: everything but the probabilities."""
    return [result.sequence, [replacement._replace(probability=None) for replacement in result.replaced]]


def test_a_stream_gives_a_line_for_a_line_with_its_ending(rewriter: Rewriter) -> None:
    lines = ["\n", "  \r\n", "The owl left.\r\n", "漢 \n", *["Owl.\n"] * BLOCK_LINES, "\n", " The last  lamp"]
    done = list(rewrite_stream(rewriter, lines))
    assert [result is None for _, result, _ in done] == [not line.strip() for line in lines]
    for line, (written, result, is_last) in zip(lines, done, strict=True):
        assert is_last
        ending = line[len(line.rstrip()) :]
        assert written.endswith(ending)
        assert written == line if result is None else written == result.sequence + line[len(line.rstrip("\r\n")) :]
    numbered = [(number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1) if line.strip()]
    assert [outcome(result) for _, result, _ in done if result] == [
        outcome(result) for result in rewrite(rewriter, numbered)
    ]


class Listening:
    """A tokenizer that remembers how long a text it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.longest = tokenizer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, text: str, **options: Any) -> Any:
        self.longest = max(self.longest, len(text))
        return self.tokenizer(text, **options)


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("The owl left." + " " * LONGEST_PART + "The lamp left.\r\n", [LONGEST_PART, LONGEST_PART + 27]),
        ("漢" * (2 * LONGEST_PART + 1), [LONGEST_PART, 2 * LONGEST_PART, 2 * LONGEST_PART + 1]),
        ("漢" * 9 + " " + "漢" * LONGEST_PART, [9, LONGEST_PART + 9, LONGEST_PART + 10]),
        ("漢" * LONGEST_PART + "\n", [LONGEST_PART]),
        (" " * (LONGEST_PART + 1) + "\n", [LONGEST_PART + 1]),
    ],
    ids=["spaces", "no space", "an early space", "just short enough", "blank"],
)
def test_a_giant_line_is_rewritten_part_by_part(rewriter: Rewriter, line: str, ends: list[int]) -> None:
    """At once it took gigabytes. Nothing is lost where it is cut, and the last part alone ends the line."""
    listening = Listening(rewriter.tokenizer)
    _, *parts, _ = rewrite_stream(rewriter._replace(tokenizer=listening), ["Owl.\n", line, "Owl.\n"])
    starts = [0, *ends[:-1]]
    texts = [line[start:end] for start, end in zip(starts, ends, strict=True)]
    assert [is_last for _, _, is_last in parts] == [False] * (len(ends) - 1) + [True]
    assert [result.original if result else texts[0] for _, result, _ in parts] == texts
    kept = [
        splice(result.original, result.replaced, lambda one: one.before) if result else "" for _, result, _ in parts
    ]
    assert [text or texts[0] for text in kept] == texts
    ending = line[ends[-1] :]
    written = "".join(text for text, _, _ in parts)
    assert written == "".join(result.sequence if result else texts[0] for _, result, _ in parts) + ending
    assert listening.longest <= LONGEST_PART


def test_the_parts_of_a_giant_line_are_drawn_apart(rewriter: Rewriter) -> None:
    part = f" {TALE}".ljust(LONGEST_PART)
    results = [result for _, result, _ in rewrite_stream(rewriter, [part * 3]) if result]
    assert [result.original for result in results] == [part] * 3
    assert len({result.sequence for result in results}) == 3


def test_no_lines_give_none(rewriter: Rewriter) -> None:
    assert list(rewrite_stream(rewriter, [])) == []
    assert rewrite(rewriter, []) == []


@pytest.mark.parametrize("words", [60, LONGEST_PART])
def test_a_line_with_masks_that_is_too_long_is_refused_by_its_number(rewriter: Rewriter, words: int) -> None:
    with pytest.raises(DataError, match=f"^line 2: .*the model reads {LONGEST}"):
        list(rewrite_stream(rewriter, ["The owl left.\n", "The [MASK] " + "owl " * words]))
