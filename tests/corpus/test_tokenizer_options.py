"""Case, accents and commas as the user chooses them over a tokenizer's files; Google's rule for digits and commas."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from electra_albert.corpus.tokenizer import TextOptions, fingerprint, load_tokenizer, save_tokenizer
from electra_albert.corpus.tokenizer_files import split_digit_commas
from tests.corpus.tokenizer_kinds import (
    DIGIT_COMMA_PIECES,
    KINDS,
    NASTY,
    RELEASED,
    SHARED_DATA,
    edit,
    needs_released,
    save_digit_commas,
    train_model,
)

TEXTS = ["The Café of ZOË", "zoe's cafe", *NASTY]
APART, TOGETHER = TextOptions(split_digit_comma=True), TextOptions(split_digit_comma=False)
WIKI = SHARED_DATA / "corpus" / "wiki-00.txt.xz"
ORDINARY = [
    "in 1912, the river rose, and in 1913, 1914, and 2009, it rose again",
    "on may 5, 1821, and june 18, 1815, at 10, 11, or 12, as in 1990,1991,1992,",
    "1,000 2,500 9,999.50 10,000 12,345 99,999 100,000 250,000 1,000,000 7,654,321",
    "in 92000, 1066, 476, 64, 7, 0, and 31, but not 3.14, 2.0, 50%, or $1,500,",
    "(1945,) 1945), 24, 25, 26, 3rd, 4th, 802.11, b12, c-130, f-16, a1, 2pm, 0,0 1,1 9,9",
]


@pytest.mark.parametrize(
    "kind", ["albert cased with accents", "script-safe uncased", "bert with added words", "vocab.txt cased"]
)
def test_options_override_the_files_change_the_fingerprint_and_are_saved(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    plain = load_tokenizer(tmp_path)
    prints = set()
    for case in (True, False):
        for accents in (True, False):
            chosen = load_tokenizer(tmp_path, TextOptions(case, accents))
            normalize = chosen.backend_tokenizer.normalizer.normalize_str
            assert ("Z" in normalize("Zoë")) == (not case)
            assert (normalize("ë") == "ë") == accents
            assert chosen.get_vocab() == plain.get_vocab()
            prints.add(fingerprint(chosen))
            save_tokenizer(chosen, tmp_path / "saved", max_length=77)
            again = load_tokenizer(tmp_path / "saved")
            assert fingerprint(again) == fingerprint(chosen)
            assert again(TEXTS)["input_ids"] == chosen(TEXTS)["input_ids"]
    assert len(prints) == 4


def test_accents_that_a_bert_configuration_names_are_overridden(tmp_path: Path) -> None:
    KINDS["bert uncased"](tmp_path)
    edit(tmp_path / "tokenizer_config.json", lambda config: config.update(strip_accents=True))
    chosen = load_tokenizer(tmp_path, TextOptions(keep_accents=True))
    assert chosen.backend_tokenizer.normalizer.normalize_str("Zoë") == "zoë"


@pytest.mark.parametrize("unknown_id", [0, 1])
def test_a_sentencepiece_model_of_any_layout_takes_all_options(unknown_id: int, tmp_path: Path) -> None:
    from transformers.convert_slow_tokenizer import import_protobuf

    layout = {"unk_id": unknown_id, "pad_id": 1 - unknown_id}
    path = train_model(tmp_path / "spiece.model", ["the café served 1, 2, 11, 12, and crème brûlée"] * 30, **layout)
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(path.read_bytes())
    for name, piece in zip(["▁1,", "2,"], reversed(proto.pieces), strict=False):
        piece.piece, piece.score = name, -0.5
    path.write_bytes(proto.SerializeToString())
    plain = load_tokenizer(tmp_path)
    chosen = load_tokenizer(tmp_path, TextOptions(do_lower_case=False, keep_accents=True, split_digit_comma=True))
    text = "The Café served 1, 2, 11, 12,"
    assert chosen.backend_tokenizer.normalizer.normalize_str(text) == text
    assert {"▁1,", "2,"} <= set(plain.tokenize(text))
    assert not any(len(token) > 1 and token.endswith(",") for token in chosen.tokenize(text))


# Google's rule for digits and commas, by scores alone.


def googles_tokens(processor: Any, word: str) -> list[str]:
    """A word's tokens by the rule of Google's own code: the comma is cut off after the word is encoded."""
    found: list[str] = []
    for token in processor.encode(word, out_type=str):
        if not (len(token) > 1 and token[-1] == "," and token[-2].isdigit()):
            found.append(token)
            continue
        digits = processor.encode(token[:-1].replace("▁", ""), out_type=str)
        if not token.startswith("▁"):
            digits[0] = digits[0].removeprefix("▁")
        found += [part for part in digits if part] + [","]
    return found


@needs_released
@pytest.mark.slow
def test_numbers_get_the_ids_of_googles_own_rule() -> None:
    """60 of 377,659 numbers of Wikipedia did not, of such words as 1,050, where scores alone make "1,0" win."""
    sentencepiece = pytest.importorskip("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(RELEASED))
    tokenizer = load_tokenizer(RELEASED, APART)
    changed = 0
    for word in " ".join(ORDINARY).split():
        assert tokenizer.tokenize(word) == googles_tokens(processor, word), word
        changed += tokenizer.tokenize(word) != processor.encode(word, out_type=str)
    assert changed > 20
    if not WIKI.is_file():
        pytest.skip("needs a pack of Wikipedia")
    normalizer = tokenizer.backend_tokenizer.normalizer
    numbers: Counter[str] = Counter()
    with lzma.open(WIKI, "rt", encoding="utf-8") as file:
        for line in file:
            words = (word for word in line.split() if "," in word and any(map(str.isdigit, word)))
            numbers.update(part for word in words for part in normalizer.normalize_str(word).split())
            if numbers.total() > 30_000:
                break
    differing = [word for word in numbers if tokenizer.tokenize(word) != googles_tokens(processor, word)]
    assert numbers.total() > 30_000
    assert sum(numbers[word] for word in differing) / numbers.total() < 0.0005


def test_commas_are_kept_apart_by_scores_that_can_be_applied_twice_and_taken_back(tmp_path: Path) -> None:
    save_digit_commas(tmp_path)
    plain, apart = load_tokenizer(tmp_path), load_tokenizer(tmp_path, APART)
    text = "in 1912, 1, 999, and 12, or 9,12,1, people"
    assert set(plain.tokenize(text)) & set(DIGIT_COMMA_PIECES)
    assert not set(apart.tokenize(text)) & set(DIGIT_COMMA_PIECES)
    assert plain.tokenize("the house, people") == apart.tokenize("the house, people")
    before, after = (
        dict(map(tuple, json.loads(one.backend_tokenizer.to_str())["model"]["vocab"])) for one in (plain, apart)
    )
    assert {token for token in before if before[token] != after[token]} == set(DIGIT_COMMA_PIECES)
    save_tokenizer(apart, tmp_path / "apart", max_length=77)
    assert fingerprint(load_tokenizer(tmp_path / "apart", APART)) == fingerprint(apart) != fingerprint(plain)
    assert fingerprint(load_tokenizer(tmp_path / "apart")) == fingerprint(apart)  # from its files
    assert load_tokenizer(tmp_path / "apart", TOGETHER).tokenize(text) == plain.tokenize(text)
    assert fingerprint(load_tokenizer(tmp_path, TOGETHER)) == fingerprint(plain)
    meant = {"▁1,": True, "9,": True, "٣,": True, ",": False, "a,": False, "1,0": False}
    scores = dict(split_digit_commas([*((token, -2.0) for token in meant), ("x", -5.0)], True))
    assert {token: scores[token] < -50 for token in meant} == meant
