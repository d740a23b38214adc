"""The memo of words changes no id, and is only used where a word's ids do not depend on its neighbours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.corpus.tokenizer import SPECIAL_PIECES, load_tokenizer, train_tokenizer
from electra_albert.corpus.word_encoder import TextEncoder, encoder_settings
from tests.corpus.tokenizer_kinds import (
    FAIRSEQ_SPECIALS,
    KINDS,
    NASTY,
    PROSE,
    STOCK_SPECIALS,
    edit,
    encoded,
    save_roberta,
)

SPECIAL_TEXTS = sorted({*SPECIAL_PIECES, *STOCK_SPECIALS, *FAIRSEQ_SPECIALS})
TEXT = st.text(
    st.sampled_from("aeoh .,'`\"-(9İıß\u0301\u0308▁Ġ#中👩\u200d\u00a0\t\n\u202e\u3300\ufdfaΣ£€\x00[]<>/s"), max_size=30
)


@pytest.fixture(scope="module")
def albert() -> Any:
    return train_tokenizer(PROSE, 300, do_lower_case=True)


def stock_ids(tokenizer: Any, sentences: list[str]) -> list[list[int]]:
    return tokenizer(sentences, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize("kind", ["albert uncased", "bert uncased", "roberta"])
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
            assert encoded(encoder, sentences) == stock_ids(tokenizer, sentences)

    check()
    assert list(map(len, encoder.encode([]))) == [0, 0]


def test_memo_of_words_does_not_change_ids(albert: Any) -> None:
    for memo_words in (0, 3, 1000):
        encoder = TextEncoder(encoder_settings(albert), memo_words=memo_words)
        for sentences in (NASTY, PROSE[:6], NASTY[::-1]):
            whole = [encoder.backend.encode(sentence, add_special_tokens=False).ids for sentence in sentences]
            assert encoded(encoder, sentences) == whole


def test_a_pipeline_that_looks_across_spaces_gets_no_memo(albert: Any) -> None:
    content = json.loads(encoder_settings(albert))
    joined = {"type": "Replace", "pattern": {"String": "the house"}, "content": "thehouse"}
    content["normalizer"]["normalizers"].append(joined)
    faulty = TextEncoder(json.dumps(content), by_word=True)  # planted fault: a word's ids depend on its neighbour
    whole = TextEncoder(json.dumps(content))
    assert encoded(faulty, PROSE[:2]) != encoded(whole, PROSE[:2])
    assert not whole.by_word
    content = json.loads(encoder_settings(albert))
    assert TextEncoder(json.dumps(content)).by_word
    content["added_tokens"].append(content["added_tokens"][-1] | {"id": 9, "content": "old bridge", "special": False})
    assert not TextEncoder(json.dumps(content)).by_word


@pytest.mark.parametrize("has_unknown", [True, False])
def test_special_id_a_model_finds_in_text_is_replaced_or_left_out(tmp_path: Path, has_unknown: bool) -> None:
    """A model that looks whole words up before anything else finds "<mask>" with no help of added tokens."""

    def change(content: Any) -> None:
        content["model"].update(ignore_merges=True, unk_token="<unk>" if has_unknown else None)
        content["pre_tokenizer"].update(use_regex=False)

    save_roberta(tmp_path)
    edit(tmp_path / "tokenizer.json", change)
    tokenizer = load_tokenizer(tmp_path)
    assert stock_ids(tokenizer, ["<mask>"]) == [[tokenizer.mask_token_id]]  # the fault guarded against
    encoder = TextEncoder(encoder_settings(tokenizer))
    assert encoded(encoder, ["the house", "<mask>"])[1] == ([tokenizer.unk_token_id] if has_unknown else [])
    assert encoder.special_texts == 1


def test_a_character_that_becomes_several_unknown_tokens_counts_once(tmp_path: Path) -> None:
    for kind in ("albert uncased", "bert uncased"):
        KINDS[kind](tmp_path / kind)
        given = encoder_settings(load_tokenizer(tmp_path / kind))
        for text, characters in {"the house": 0, "☃☃": 2, "\ufdfa": 1, "☃ the ☃ house☃": 3}.items():
            encoders = [TextEncoder(given, by_word=by_word) for by_word in (True, False)]
            for encoder in encoders:
                encoder.encode([text])
            counts = {encoder.unknown_characters for encoder in encoders}
            assert len(counts) == 1
            assert max(counts) <= len(text.replace(" ", ""))
            assert kind == "bert uncased" or counts == {characters}  # WordPiece takes a whole word for unknown
