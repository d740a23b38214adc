"""The memo of words changes no id, and is only used where a word's ids do not depend on its neighbours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.corpus.tokenizer import SPECIAL_PIECES, load_tokenizer, train_tokenizer
from electra_albert.corpus.word_encoder import TextEncoder, encoder_settings
from tests.corpus.tokenizer_kinds import FAIRSEQ_SPECIALS, KINDS, NASTY, PROSE, STOCK_SPECIALS, edit, save_roberta

SPECIAL_TEXTS = sorted({*SPECIAL_PIECES, *STOCK_SPECIALS, *FAIRSEQ_SPECIALS})
TEXT = st.text(
    st.sampled_from("aeoh .,'`\"-(9İıß\u0301\u0308▁Ġ#中👩\u200d\u00a0\t\n\u202e\u3300\ufdfaΣ£€\x00[]<>/s"), max_size=30
)


@pytest.fixture(scope="module")
def albert() -> Any:
    return train_tokenizer(PROSE, 300, do_lower_case=True)


def sentence_ids(encoder: TextEncoder, sentences: list[str]) -> list[list[int]]:
    ids, lengths = encoder.encode(sentences)
    return [piece.tolist() for piece in np.split(ids, lengths.cumsum()[:-1])]


def stock_ids(tokenizer: Any, sentences: list[str]) -> list[list[int]]:
    return tokenizer(sentences, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize("kind", ["albert uncased", "script-safe uncased", "bert uncased", "roberta"])
def test_ids_equal_those_of_stock_on_any_text(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("kind")
    KINDS[kind](folder)
    tokenizer = load_tokenizer(folder)
    encoder = TextEncoder(encoder_settings(tokenizer), memo_words=50)
    assert encoder.by_word == (kind != "roberta")

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(sentences=st.lists(TEXT, min_size=1, max_size=4))
    def check(sentences: list[str]) -> None:
        if not any(special in sentence for special in SPECIAL_TEXTS for sentence in sentences):
            assert sentence_ids(encoder, sentences) == stock_ids(tokenizer, sentences)

    check()
    ids, lengths = encoder.encode([])
    assert (len(ids), len(lengths)) == (0, 0)


@pytest.mark.parametrize("memo_words", [0, 3, 1000])
def test_memo_of_words_does_not_change_ids(albert: Any, memo_words: int) -> None:
    encoder = TextEncoder(encoder_settings(albert), memo_words=memo_words)
    for sentences in (NASTY, PROSE[:6], NASTY[::-1]):
        whole = [encoder.backend.encode(sentence, add_special_tokens=False).ids for sentence in sentences]
        assert sentence_ids(encoder, sentences) == whole


def test_a_pipeline_that_looks_across_spaces_gets_no_memo(albert: Any) -> None:
    content = json.loads(encoder_settings(albert))
    joined = {"type": "Replace", "pattern": {"String": "the house"}, "content": "thehouse"}
    content["normalizer"]["normalizers"].append(joined)
    faulty = TextEncoder(json.dumps(content), by_word=True)  # planted fault: a word's ids depend on its neighbour
    whole = TextEncoder(json.dumps(content))
    assert sentence_ids(faulty, PROSE[:2]) != sentence_ids(whole, PROSE[:2])
    assert not whole.by_word
    content = json.loads(encoder_settings(albert))
    assert TextEncoder(json.dumps(content)).by_word
    content["added_tokens"].append(content["added_tokens"][-1] | {"id": 9, "content": "old bridge", "special": False})
    assert not TextEncoder(json.dumps(content)).by_word


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
    encoder = TextEncoder(encoder_settings(tokenizer))
    assert sentence_ids(encoder, ["the house", "<mask>"])[1] == ([tokenizer.unk_token_id] if has_unknown else [])
    assert encoder.special_texts == 1


def test_stock_told_to_split_special_tokens_still_finds_them(albert: Any) -> None:
    # The fault the encoder guards against: Unigram knows no control tokens.
    assert 0 in stock_ids(albert, ["the <pad> house"])[0]


@pytest.mark.parametrize("kind", ["albert uncased", "bert uncased"])
def test_a_character_that_becomes_several_unknown_tokens_counts_once(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path)
    settings = encoder_settings(load_tokenizer(tmp_path))
    for text, characters in {"the house": 0, "☃☃": 2, "\ufdfa": 1, "☃ the ☃ house☃": 3}.items():
        encoders = [TextEncoder(settings, by_word=by_word) for by_word in (True, False)]
        for encoder in encoders:
            encoder.encode([text])
            assert encoder.unknown_characters <= len(text.replace(" ", ""))
        assert encoders[0].unknown_characters == encoders[1].unknown_characters
        if kind == "albert uncased":  # WordPiece takes a whole word for unknown
            assert encoders[0].unknown_characters == characters
