"""Encoders: stock's ids for every kind of tokenizer, whatever the memo, and never a special id from text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.corpus.tokenizer import SPECIAL_PIECES, load_tokenizer, special_ids, train_tokenizer
from electra_albert.corpus.word_encoder import Encoder, SentenceEncoder, WordEncoder, encoder_settings, make_encoder
from tests.corpus.tokenizer_kinds import FAIRSEQ_SPECIALS, KINDS, NASTY, PROSE, STOCK_SPECIALS, edit, save_roberta

SPECIAL_TEXTS = sorted({*SPECIAL_PIECES, *STOCK_SPECIALS, *FAIRSEQ_SPECIALS})
TEXT = st.text(
    st.sampled_from("aeoh .,'`\"-(9İıß\u0301\u0308▁Ġ#中👩\u200d\u00a0\t\n\u202e\u3300\ufdfaΣ£€\x00[]<>/s"), max_size=30
)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kind")
    KINDS[request.param](folder)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def albert() -> Any:
    return train_tokenizer(PROSE, 300, do_lower_case=True)


def sentence_ids(encoder: Encoder, sentences: list[str]) -> list[list[int]]:
    ids, lengths = encoder.encode(sentences)
    assert (ids.dtype, lengths.dtype) == (np.int32, np.int64)
    assert lengths.sum() == len(ids)
    return [piece.tolist() for piece in np.split(ids, lengths.cumsum()[:-1])]


def stock_ids(tokenizer: Any, sentences: list[str]) -> list[list[int]]:
    return tokenizer(sentences, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def whole_ids(encoder: WordEncoder, sentences: list[str]) -> list[list[int]]:
    """Each sentence at once, by the backend itself: what a memo of words must not differ from."""
    return [encoder.backend.encode(sentence, add_special_tokens=False).ids for sentence in sentences]


def test_ids_equal_those_of_stock_on_text_without_special_tokens(tokenizer: Any) -> None:
    encoder = make_encoder(encoder_settings(tokenizer))
    assert sentence_ids(encoder, NASTY + PROSE[:6]) == stock_ids(tokenizer, NASTY + PROSE[:6])
    assert encoder.special_texts == 0


@settings(max_examples=150, deadline=None, derandomize=True)
@given(sentences=st.lists(TEXT, min_size=1, max_size=4))
def test_ids_equal_those_of_stock_on_any_text(tokenizer: Any, sentences: list[str]) -> None:
    encoder = make_encoder(encoder_settings(tokenizer))
    if not any(special in sentence for special in SPECIAL_TEXTS for sentence in sentences):
        assert sentence_ids(encoder, sentences) == stock_ids(tokenizer, sentences)


def test_text_never_becomes_a_special_id_and_is_counted(tokenizer: Any) -> None:
    special = special_ids(tokenizer)
    encoder = make_encoder(encoder_settings(tokenizer))
    for text in tokenizer.convert_ids_to_tokens([number for number in special if number is not None]):
        before = encoder.special_texts
        ids, lengths = encoder.encode([f"the {text} and x{text}y house", "the house", text])
        assert not set(ids.tolist()) & ({*special} - {special.unk})
        assert lengths.sum() == len(ids)
        assert encoder.special_texts == before + 3, text


def test_unknown_id_is_what_text_without_a_piece_becomes(tokenizer: Any) -> None:
    encoder = make_encoder(encoder_settings(tokenizer))
    ids, _ = encoder.encode(["the ☃ house"])
    assert encoder.unknown_id in (-1, special_ids(tokenizer).unk)
    assert (encoder.unknown_id == -1) == (tokenizer.unk_token_id not in ids)


@pytest.mark.parametrize("has_unknown", [True, False])
def test_special_id_a_model_finds_in_text_is_replaced_or_left_out(tmp_path: Path, has_unknown: bool) -> None:
    """A model that looks whole words up before anything else finds "<mask>" with no help of added tokens."""
    save_roberta(tmp_path)
    edit(tmp_path / "tokenizer.json", lambda content: content["model"].update(ignore_merges=True))
    unknown = "<unk>" if has_unknown else None
    edit(tmp_path / "tokenizer.json", lambda content: content["model"].update(unk_token=unknown))
    edit(tmp_path / "tokenizer.json", lambda content: content["pre_tokenizer"].update(use_regex=False))
    tokenizer = load_tokenizer(tmp_path)
    assert stock_ids(tokenizer, ["<mask>"]) == [[tokenizer.mask_token_id]]  # the fault guarded against
    encoder = make_encoder(encoder_settings(tokenizer))
    assert sentence_ids(encoder, ["the house", "<mask>"])[1] == ([tokenizer.unk_token_id] if has_unknown else [])
    assert encoder.special_texts == 1


def test_characters_that_become_unknown_are_counted(tokenizer: Any) -> None:
    encoder = make_encoder(encoder_settings(tokenizer))
    ids, _ = encoder.encode(["the 漢字漢字漢字 house", "the house", "漢字漢字漢字"])
    holds_unknown = encoder.unknown_id in ids.tolist()
    assert encoder.unknown_characters == (12 if holds_unknown else 0)
    encoder.encode(["漢字漢字漢字", "house"])  # words already met
    assert encoder.unknown_characters == (18 if holds_unknown else 0)


@pytest.mark.parametrize("kind", ["albert uncased", "bert uncased"])
@pytest.mark.parametrize(("text", "characters"), [("the house", 0), ("☃☃", 2), ("\ufdfa", 1), ("☃ the ☃ house☃", 3)])
def test_a_character_that_becomes_several_unknown_tokens_counts_once(
    tmp_path: Path, kind: str, text: str, characters: int
) -> None:
    KINDS[kind](tmp_path)
    settings = encoder_settings(load_tokenizer(tmp_path))
    encoders: list[Encoder] = [WordEncoder(settings), SentenceEncoder(settings)]
    for encoder in encoders:
        encoder.encode([text])
        assert encoder.unknown_characters <= len(text.replace(" ", ""))
    assert encoders[0].unknown_characters == encoders[1].unknown_characters
    if kind == "albert uncased":  # WordPiece takes a whole word for unknown
        assert encoders[0].unknown_characters == characters


@pytest.mark.parametrize("memo_words", [0, 3, 1000])
def test_memo_of_words_does_not_change_ids(albert: Any, memo_words: int) -> None:
    encoder = WordEncoder(albert, memo_words)
    for sentences in (NASTY, PROSE[:6], NASTY[::-1]):
        assert sentence_ids(encoder, sentences) == whole_ids(encoder, sentences)


def test_pipeline_that_looks_across_spaces_gets_no_memo(albert: Any) -> None:
    content = json.loads(encoder_settings(albert))
    joined = {"type": "Replace", "pattern": {"String": "the house"}, "content": "thehouse"}
    content["normalizer"]["normalizers"].append(joined)
    faulty = WordEncoder(json.dumps(content))  # planted fault: a word's ids depend on its neighbour
    assert sentence_ids(faulty, PROSE[:2]) != whole_ids(faulty, PROSE[:2])
    assert isinstance(make_encoder(json.dumps(content)), SentenceEncoder)
    assert isinstance(make_encoder(encoder_settings(albert)), WordEncoder)


def test_added_words_get_no_memo(albert: Any) -> None:
    content = json.loads(encoder_settings(albert))
    content["added_tokens"].append(content["added_tokens"][-1] | {"id": 9, "content": "old bridge", "special": False})
    assert isinstance(make_encoder(json.dumps(content)), SentenceEncoder)


def test_backend_told_to_encode_special_tokens_still_finds_them(albert: Any) -> None:
    # The fault the encoder guards against: Unigram knows no control pieces.
    assert 0 in stock_ids(albert, ["the <pad> house"])[0]


def test_no_sentences_give_no_ids(tokenizer: Any) -> None:
    ids, lengths = make_encoder(encoder_settings(tokenizer)).encode([])
    assert (len(ids), len(lengths)) == (0, 0)
