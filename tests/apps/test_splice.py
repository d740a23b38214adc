"""What drawn tokens are written as: characters cut into bytes, parts of words, marks of every kind of tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from electra_albert.corpus.tokenizer import describe_pieces, load_tokenizer, train_tokenizer
from electra_albert.inference.splice import NO_CHARACTER, Line, Replacement, Rewritten, compose, spans_of
from tests.corpus.tokenizer_kinds import KINDS, save_bert, save_roberta


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("byte_level")
    save_roberta(folder)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("wordpiece")
    save_bert(folder, do_lower_case=True)
    return load_tokenizer(folder)


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def rewrite_as(tokenizer: Any, text: str, after: list[int]) -> Rewritten:
    """The text with the tokens `after` for its own, those that differ being drawn."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = encoded["input_ids"]
    pieces = describe_pieces(tokenizer, ids)
    spans = spans_of(text, pieces, encoded["offset_mapping"])
    is_chosen = [was != token for was, token in zip(ids, after, strict=True)]
    return compose(tokenizer, Line(text, ids, pieces, spans, False, after, is_chosen, [0.5] * len(ids)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("The café was old.", "The cafè was old."),
        ("große Hütte", "gro¿e Hötte"),
        ("naïve", "naçve"),
        ("中 and 🦉", "丮 and 🦊"),
        ("é", "è"),
    ],
    ids=["last byte", "two words", "in a word", "three and four bytes", "alone"],
)
def test_bytes_of_a_character_are_written_together(byte_level: Any, before: str, after: str) -> None:
    """A regression: where some of a character's bytes were drawn, each was written as no character."""
    ids, wanted = encode(byte_level, before), encode(byte_level, after)
    assert 0 < sum(was != now for was, now in zip(ids, wanted, strict=True)) < len(ids)
    rewritten = rewrite_as(byte_level, before, wanted)
    assert [rewritten.sequence, rewritten.no_character_count] == [after, 0]
    assert all(replacement.is_changed for replacement in rewritten.replaced)


def test_bytes_that_are_no_character_are_counted(byte_level: Any) -> None:
    """Half of an é in the place of a full stop, and the user's own U+FFFD, which is none of ours."""
    text = f"The house was old {NO_CHARACTER}."
    ids, half = encode(byte_level, text), encode(byte_level, "é")[0]
    rewritten = rewrite_as(byte_level, text, [*ids[:-1], half])
    assert [rewritten.sequence, rewritten.no_character_count] == [f"{text[:-1]}{NO_CHARACTER}", 1]
    kept = Rewritten(text, [Replacement(18, 19, NO_CHARACTER, NO_CHARACTER, 0.5, False)], False, 0.0, 0)
    assert kept.no_character_count == 0


@pytest.mark.parametrize("piece", ["Ġhouse", "house", "."])
def test_a_drawn_word_is_written_as_it_is(byte_level: Any, piece: str) -> None:
    token = byte_level.convert_tokens_to_ids(piece)
    token = encode(byte_level, " house")[0] if token == byte_level.unk_token_id else token
    ids = encode(byte_level, "The old river.")
    place = ids.index(byte_level.convert_tokens_to_ids("Ġold"))
    after = [*ids[:place], token, *ids[place + 1 :]]
    assert rewrite_as(byte_level, "The old river.", after).sequence == f"The {piece.lstrip('Ġ')} river."


def test_parts_of_a_word_are_written_without_their_marks(wordpiece: Any) -> None:
    """WordPiece: no byte is decoded, no ## is written, an unknown token keeps the user's text."""
    text = "The Fire, 漢 bridge."
    ids = encode(wordpiece, text)
    tokens = wordpiece.convert_ids_to_tokens(ids)
    wanted = [wordpiece.convert_tokens_to_ids({"##r": "##o", "bridge": "house"}.get(token, token)) for token in tokens]
    assert tokens != wordpiece.convert_ids_to_tokens(wanted)
    rewritten = rewrite_as(wordpiece, text, wanted)
    assert [rewritten.sequence, rewritten.no_character_count] == [
        text.replace("re,", "oe,").replace("bridge", "house"),
        0,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_no_tokenizer_writes_a_mark_or_an_unknown_token(tmp_path: Path, kind: str) -> None:
    """Every piece in the place of a word: text only, whatever marks the tokenizer puts to it."""
    KINDS[kind](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    text = "the house on the hill was old"
    ids = encode(tokenizer, text)
    for token in sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)):
        written = rewrite_as(tokenizer, text, [*ids[:-1], token]).sequence
        assert not any(mark in written for mark in ("▁", "Ġ", "##", "<0x")), written


def test_marks_that_the_tokenizer_removes_go_with_their_letter() -> None:
    """A regression: vowels of combining class 0, as those of Hindi and Thai, stayed when their letter was replaced."""
    tokenizer = train_tokenizer(["हनद नई थाय", "the house"] * 20, 100, True, "albert")
    text = "हिन्दी the"
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = spans_of(text, describe_pieces(tokenizer, encoded["input_ids"]), encoded["offset_mapping"])
    assert "".join(text[start:end] for start, end in spans) == "हिन्दीthe"
