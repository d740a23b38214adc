"""Google's rule for pieces that end in a digit and a comma, told by scores alone."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from electra_albert.corpus.tokenizer import TextOptions, fingerprint, load_tokenizer, save_tokenizer, train_tokenizer
from electra_albert.corpus.tokenizer_options import apply_digit_comma, ends_in_digit_comma
from tests.corpus.tokenizer_kinds import DIGIT_COMMA_PIECES, SHARED_DATA, save_digit_commas

RELEASED = SHARED_DATA / "albert_vocab" / "30k-clean.rebuilt.model"
WIKI = SHARED_DATA / "corpus" / "wiki-00.txt.xz"
APART, TOGETHER = TextOptions(split_digit_comma=True), TextOptions(split_digit_comma=False)
needs_released = pytest.mark.skipif(not RELEASED.is_file(), reason="needs ALBERT's released vocabulary")

ORDINARY = [
    "in 1912, the river rose, and in 1913, 1914, and 2009, it rose again",
    "on may 5, 1821, and june 18, 1815, at 10, 11, or 12, as in 1990,1991,1992,",
    "1,000 2,500 9,999.50 10,000 12,345 99,999 100,000 250,000 1,000,000 7,654,321",
    "in 92000, 1066, 476, 64, 7, 0, and 31, but not 3.14, 2.0, 50%, or $1,500,",
    "(1945,) 1945), 24, 25, 26, 3rd, 4th, 802.11, b12, c-130, f-16, a1, 2pm, 0,0 1,1 9,9",
]


def googles_pieces(processor: Any, word: str) -> list[str]:
    """A word's pieces by the rule of Google's own code, written anew: the comma is cut off once the word is encoded."""
    found: list[str] = []
    for piece in processor.encode(word, out_type=str):
        if not (len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()):
            found.append(piece)
            continue
        digits = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
        if not piece.startswith("▁"):
            digits[0] = digits[0].removeprefix("▁")
        found += [part for part in digits if part] + [","]
    return found


@pytest.fixture(scope="module")
def processor() -> Any:
    sentencepiece = pytest.importorskip("sentencepiece")
    return sentencepiece.SentencePieceProcessor(model_file=str(RELEASED))


@needs_released
def test_ordinary_numbers_get_the_ids_of_googles_own_rule(processor: Any) -> None:
    tokenizer = load_tokenizer(RELEASED, APART)
    changed = 0
    for word in " ".join(ORDINARY).split():
        assert tokenizer.tokenize(word) == googles_pieces(processor, word), word
        changed += tokenizer.tokenize(word) != processor.encode(word, out_type=str)
    assert changed > 20


@needs_released
@pytest.mark.slow
@pytest.mark.skipif(not WIKI.is_file(), reason="needs a pack of Wikipedia")
def test_numbers_of_real_text_hardly_ever_differ_from_googles_own_rule(processor: Any) -> None:
    """60 of 377,659 numbers of three packs did, of such words as 1,050, where scores alone make the piece "1,0" win."""
    tokenizer = load_tokenizer(RELEASED, APART)
    normalizer = tokenizer.backend_tokenizer.normalizer
    numbers: Counter[str] = Counter()
    with lzma.open(WIKI, "rt", encoding="utf-8") as file:
        for line in file:
            words = (word for word in line.split() if "," in word and any(map(str.isdigit, word)))
            numbers.update(part for word in words for part in normalizer.normalize_str(word).split())
            if numbers.total() > 30_000:
                break
    differing = [word for word in numbers if tokenizer.tokenize(word) != googles_pieces(processor, word)]
    assert numbers.total() > 30_000
    assert sum(numbers[word] for word in differing) / numbers.total() < 0.0005


def test_no_piece_joins_a_comma_to_a_digit_and_other_pieces_keep_their_scores(tmp_path: Path) -> None:
    save_digit_commas(tmp_path)
    plain, apart = load_tokenizer(tmp_path), load_tokenizer(tmp_path, APART)
    text = "in 1912, 1, 999, and 12, or 9,12,1, people"
    assert set(plain.tokenize(text)) & set(DIGIT_COMMA_PIECES)
    assert not set(apart.tokenize(text)) & set(DIGIT_COMMA_PIECES)
    assert plain.tokenize("the house, people") == apart.tokenize("the house, people")
    before, after = (dict(map(tuple, piece_scores(one))) for one in (plain, apart))
    assert {piece for piece in before if before[piece] != after[piece]} == set(DIGIT_COMMA_PIECES)
    assert plain.get_vocab() == apart.get_vocab()


def piece_scores(tokenizer: Any) -> Any:
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"]


def test_told_twice_is_told_once_and_can_be_taken_back(tmp_path: Path) -> None:
    save_digit_commas(tmp_path)
    plain, apart = load_tokenizer(tmp_path), load_tokenizer(tmp_path, APART)
    save_tokenizer(apart, tmp_path / "apart", max_length=77)
    text = "in 1912, 1, 999, and 12, or 9,12,1, people"
    assert fingerprint(load_tokenizer(tmp_path / "apart", APART)) == fingerprint(apart) != fingerprint(plain)
    assert fingerprint(load_tokenizer(tmp_path / "apart")) == fingerprint(apart)  # what its files say
    assert load_tokenizer(tmp_path / "apart", TOGETHER).tokenize(text) == plain.tokenize(text)
    assert fingerprint(load_tokenizer(tmp_path, TOGETHER)) == fingerprint(plain)


def test_trained_pieces_never_join_a_comma_to_a_digit() -> None:
    trained = train_tokenizer(["in 1912, and 1,000 people, 9,"] * 50, 200, do_lower_case=True)
    assert "▁1912" in trained.get_vocab()
    assert not any(map(ends_in_digit_comma, trained.get_vocab()))


@pytest.mark.parametrize(
    ("piece", "is_meant"), [("▁1,", True), ("9,", True), ("٣,", True), (",", False), ("a,", False), ("1,0", False)]
)
def test_pieces_that_are_meant_end_in_a_digit_and_a_comma(piece: str, is_meant: bool) -> None:
    scores = dict(apply_digit_comma([(piece, -2.0), ("x", -5.0)], True))
    assert (scores[piece] < -50) == is_meant
