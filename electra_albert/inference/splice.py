"""A text and the tokens replaced in it, as characters: what is new is spliced in at the tokenizer's offsets."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from electra_albert.corpus.tokenizer import Piece, describe_pieces
from electra_albert.inference.fill_mask import WORD_MARKS

NO_CHARACTER = "\ufffd"
_BYTES = re.compile(f"{NO_CHARACTER}|<0x[0-9A-F]{{2}}>")  # a piece of bytes that are no character by themselves


class Replacement(NamedTuple):
    """A masked token: where it stood, what was written in its place and what the discriminator makes of that."""

    start: int  # first character in the original text
    end: int  # one past its last
    before: str
    after: str
    probability: float | None  # of having been replaced; None without a discriminator
    is_changed: bool  # False where the generator drew the token that stood there


class Rewritten(NamedTuple):
    """A text and its replacements in order, with the sum of the probabilities at tokens that are as they were."""

    original: str
    replaced: list[Replacement]
    is_filled: bool  # the user's own masks were filled by the best guess; none was drawn
    unchanged_probability_sum: float
    unchanged_count: int

    @property
    def no_character_count(self) -> int:
        """How many of what was written are no character, but a part of one: drawn without the bytes it belongs to."""
        counts = ((text.after.count(NO_CHARACTER), text.before.count(NO_CHARACTER)) for text in self.replaced)
        return sum(max(0, after - before) for after, before in counts)

    @property
    def sequence(self) -> str:
        """The text as it is now."""
        return splice(self.original, self.replaced, lambda replacement: replacement.after)


@dataclass
class Line:
    """One line as tokens, before and after."""

    text: str
    ids: list[int]
    pieces: list[Piece]
    spans: list[tuple[int, int]]  # characters of each token
    is_filled: bool
    after: list[int]
    is_chosen: list[bool]
    probabilities: list[float]  # NaN without a discriminator


def splice(text: str, replaced: Iterable[Replacement], show: Callable[[Replacement], str]) -> str:
    """The text with `show` of each replacement in its place; replacements lie apart and in order."""
    parts, reached = [], 0
    for replacement in replaced:
        parts += [text[reached : replacement.start], show(replacement)]
        reached = replacement.end
    return "".join([*parts, text[reached:]])


def spans_of(text: str, pieces: list[Piece], offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The characters that go when a token goes: without the space before it, with the accents after it.

    A piece that only marks a word's beginning is given the word's first character by the tokenizer; it holds none.
    """
    spans = []
    following = [*(start for start, _ in offsets), len(text)][1:]
    for piece, (start, end), limit in zip(pieces, offsets, following, strict=True):
        while start < end and text[start].isspace():
            start += 1
        if piece.text in WORD_MARKS:
            end = start
        else:
            while end < limit and unicodedata.category(text[end]).startswith("M"):
                end += 1
        spans.append((start, end))
    return spans


def compose(tokenizer: Any, line: Line) -> Rewritten:
    """Replacements in the line's own characters. Tokens that share a character are shown as one."""
    old, new = line.pieces, describe_pieces(tokenizer, line.after)
    special = set(tokenizer.all_special_ids)
    replaced: list[Replacement] = []
    for group in _groups(line.spans):
        chosen = [place for place in group if line.is_chosen[place]]
        if not chosen:
            continue
        start, end = line.spans[group[0]][0], max(line.spans[place][1] for place in group)
        before = after = line.text[start:end]
        is_changed = any(line.after[place] != line.ids[place] for place in chosen)
        if is_changed:
            touches = replaced and replaced[-1].end == start
            preceding = replaced[-1].after[-1:] if touches else line.text[max(0, start - 1) : start]
            runs_together = _is_word(new[group[0]]) and not _is_word(old[group[0]]) and preceding.isalnum()
            after = " " * runs_together + _write(tokenizer, line, group, new, special)
        probability = max(line.probabilities[place] for place in chosen)
        judged = None if math.isnan(probability) else probability
        replaced.append(Replacement(start, end, before, after, judged, is_changed))
    unchanged = [
        probability
        for probability, was, token in zip(line.probabilities, line.ids, line.after, strict=True)
        if was == token and token not in special
    ]
    return Rewritten(line.text, replaced, line.is_filled, sum(unchanged), len(unchanged))


def _groups(spans: list[tuple[int, int]]) -> Iterator[list[int]]:
    """Places of tokens, those together that share a character, as the two halves of a ligature do."""
    group: list[int] = []
    reached = 0
    for place, (start, end) in enumerate(spans):
        if group and start >= reached:
            yield group
            group = []
        group.append(place)
        reached = max(reached, end)
    if group:
        yield group


def _write(tokenizer: Any, line: Line, group: list[int], new: list[Piece], special: set[int]) -> str:
    """What the tokens of a group are written as. An unknown one has no text but that of the user.

    Bytes of a character are no text one by one: they are decoded together.
    """
    ids = [line.after[place] for place in group]
    if special.isdisjoint(ids) and any(_BYTES.search(new[place].text) for place in group):
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return " ".join(decoded.removeprefix(" ").splitlines())
    return "".join(
        line.text[slice(*line.spans[place])] if line.after[place] in special else _text(new[place]) for place in group
    )


def _text(piece: Piece) -> str:
    return "" if piece.text in WORD_MARKS else " ".join(piece.text.splitlines())


def _is_word(piece: Piece) -> bool:
    return piece.starts_word and piece.text[:1].isalnum()
