"""New words for a vocabulary: old ids stay, each new token is used, stock reads the same from the file."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import UsageError
from electra_albert.corpus.tokenizer import (
    FEWEST_OCCURRENCES,
    LONGEST_WORD,
    SPECIAL_PIECES,
    count_words,
    extend_tokenizer,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from electra_albert.corpus.tokenizer_training import WORD_START, build_albert
from tests.corpus.tokenizer_kinds import KINDS, PROSE, nasty_corpus

NEW_WORDS = ["thrombosis", "septicaemia", "platelets", "hemoglobin"]
_DRAW = random.Random(1)
TEXT = [  # the first of the new words stand more often than the last, among words that are known
    f"{' '.join(_DRAW.choices(PROSE[0].split(), k=4))} {', '.join(_DRAW.choices(NEW_WORDS, [6, 5, 4, 3], k=2))}."
    for _ in range(120)
] + ["a rareword", f"{'long' * 20} " * 9, "the hgbжtdgbжfvkh " * 9]


@pytest.fixture(scope="module", params=["albert uncased", "script-safe cased with accents", "bert uncased"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kind")
    KINDS[request.param](folder)
    return load_tokenizer(folder)


def new_pieces(old: Any, extended: Any) -> list[str]:
    return [str(piece) for piece in extended.convert_ids_to_tokens(list(range(len(old), len(extended))))]


def test_old_ids_stay_each_new_token_is_used_for_its_word_and_stock_reads_the_same(
    tokenizer: Any, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    extended, pieces = extend_tokenizer(tokenizer, TEXT, 50)
    everything = list(range(len(tokenizer)))
    assert extended.convert_ids_to_tokens(everything) == tokenizer.convert_ids_to_tokens(everything)
    texts = PROSE[:6] + nasty_corpus(300, 5, with_specials=True)
    assert extended(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    found = new_pieces(tokenizer, extended)
    assert {piece.removeprefix("▁") for piece in found} == set(NEW_WORDS)
    assert len(found) == len(pieces) == len(NEW_WORDS)
    for number, (piece, old) in enumerate(zip(found, pieces, strict=True), len(tokenizer)):
        word = piece.removeprefix("▁")
        assert extended(f"{word}, old", add_special_tokens=False)["input_ids"][0] == number
        assert len(old) > 1
        assert tokenizer(word, add_special_tokens=False)["input_ids"] == old
    save_tokenizer(extended, tmp_path, max_length=77)
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    ours, theirs = extended([*TEXT, *texts], [*texts, *TEXT]), stock([*TEXT, *texts], [*texts, *TEXT])
    assert (theirs["input_ids"], theirs["token_type_ids"]) == (ours["input_ids"], ours["token_type_ids"])
    assert fingerprint(load_tokenizer(tmp_path)) == fingerprint(extended) != fingerprint(tokenizer)


def test_the_words_that_save_most_come_first_up_to_the_number_and_worth(tokenizer: Any) -> None:
    counts = Counter(word for word in NEW_WORDS for sentence in TEXT for _ in range(sentence.count(word)))
    cost = {word: len(tokenizer(word, add_special_tokens=False)["input_ids"]) for word in NEW_WORDS}
    wanted = sorted(NEW_WORDS, key=lambda word: (-counts[word] * (cost[word] - 1), word))[:2]
    extended, again = (extend_tokenizer(tokenizer, TEXT, 2).tokenizer for _ in range(2))
    assert [piece.removeprefix("▁") for piece in new_pieces(tokenizer, extended)] == wanted
    assert fingerprint(extended) == fingerprint(again)
    rare = [*PROSE[:2], *["the splenectomy"] * (FEWEST_OCCURRENCES - 1), "a" * (LONGEST_WORD + 1) + " old"]
    assert extend_tokenizer(tokenizer, rare, 50) == (tokenizer, [])


def test_a_word_whose_pieces_are_likelier_is_passed_over_for_the_next() -> None:
    def added(pieces: dict[str, float], text: list[str], number: int) -> list[str]:
        """To an ALBERT tokenizer of these pieces and of letters that are all very unlikely."""
        letters = dict.fromkeys(f"{WORD_START}abcdefghijklmnopqrstuvwxyz-", -20.0)
        tokenizer = build_albert([(piece, 0.0) for piece in SPECIAL_PIECES] + [*(letters | pieces).items()], {})
        return new_pieces(tokenizer, extend_tokenizer(tokenizer, text, number).tokenizer)

    old = [*["the theold"] * 9, *["the"] * 3000, *["the zyx"] * 5]
    assert added({"▁the": -2.0, "old": -2.0}, old, 1) == ["▁zyx"]
    new = [*["zyx-wvu"] * 1000, *["zyxwvu"] * 90, *["onm"] * 80]
    assert added({"▁the": -2.0}, new, 3) == ["▁zyx", "wvu", "▁onm"]


def test_a_pipeline_of_its_own_is_extended_and_kept(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    KINDS["fast unigram"](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    extended, pieces = extend_tokenizer(tokenizer, [text.capitalize() for text in TEXT], 50)
    assert "▁platelets" in new_pieces(tokenizer, extended)
    assert len(extended) == len(tokenizer) + len(pieces)
    assert extended.backend_tokenizer.normalizer.normalize_str("The") == "The"
    save_tokenizer(extended, tmp_path / "saved", max_length=77)
    stock = AutoTokenizer.from_pretrained(str(tmp_path / "saved"), local_files_only=True)
    assert stock(TEXT)["input_ids"] == extended(TEXT)["input_ids"]


def test_other_models_are_refused_in_one_line(tmp_path: Path) -> None:
    refused = {"roberta": "BPE", "word level": "WordLevel", "bert with added words": "behind"}
    for kind, word in refused.items():
        KINDS[kind](tmp_path / kind)
        with pytest.raises(UsageError, match=word) as raised:
            extend_tokenizer(load_tokenizer(tmp_path / kind), TEXT, 5)
        assert "\n" not in str(raised.value)


def test_counting_holds_a_bounded_number_of_words_and_keeps_the_frequent_ones() -> None:
    words = [word for number in range(5000) for word in ("often", f"once{number}", f"twice{number // 2}")]
    counts = count_words(words, most_words=100)
    assert len(counts) <= 100
    assert counts["often"] == 5000
    assert count_words(words) == Counter(words)


def test_a_new_word_holds_its_marks() -> None:
    # Regression: a combining mark ended the word, so no word of Hindi or Thai was added whole.
    letters = train_tokenizer([" ".join("हिन्दी")] * 20, 100, do_lower_case=True)
    assert "▁हिन्दी" in extend_tokenizer(letters, ["हिन्दी"] * 10, 5).tokenizer.get_vocab()
