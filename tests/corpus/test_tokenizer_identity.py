"""Ids and segments on a drawn corpus of nasty text: ours, those of the saved folder read by stock, and a corpus's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_albert.corpus.tokenizer import TextOptions, load_tokenizer, save_tokenizer
from electra_albert.corpus.word_encoder import encoder_settings, make_encoder
from tests.corpus.nasty_text import nasty_corpus
from tests.corpus.tokenizer_kinds import FAIRSEQ_SPECIALS, KINDS, SHARED_DATA, STOCK_SPECIALS

RELEASED = SHARED_DATA / "albert_vocab" / "30k-clean.rebuilt.model"
RELEASED_KINDS = {
    "released": TextOptions(),
    "released with commas apart": TextOptions(split_digit_comma=True),
    "released cased with accents": TextOptions(do_lower_case=False, keep_accents=True),
}
SPECIAL_TEXTS = {*FAIRSEQ_SPECIALS, *STOCK_SPECIALS}


@pytest.fixture(scope="module", params=[*KINDS, *RELEASED_KINDS])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param in RELEASED_KINDS:
        if not RELEASED.is_file():
            pytest.skip("needs ALBERT's released vocabulary")
        return load_tokenizer(RELEASED, RELEASED_KINDS[request.param])
    folder = tmp_path_factory.mktemp("kind")
    KINDS[request.param](folder)
    return load_tokenizer(folder)


def test_stock_reads_the_saved_folder_with_the_same_ids_and_segments(tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tokenizer, tmp_path, max_length=512)
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    first, second = (nasty_corpus(400, seed, with_specials=True) for seed in (1, 2))
    for texts in ([first], [first, second]):
        ours, theirs = tokenizer(*texts), stock(*texts)
        assert theirs["input_ids"] == ours["input_ids"]
        assert theirs["token_type_ids"] == ours["token_type_ids"]


def test_corpus_gets_the_ids_of_stock_that_takes_special_tokens_for_text(tokenizer: Any) -> None:
    texts = nasty_corpus(600, 3, with_specials=False)
    assert not any(special in text for special in SPECIAL_TEXTS for text in texts)
    ids, lengths = make_encoder(encoder_settings(tokenizer)).encode(texts)
    stock = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert [piece.tolist() for piece in np.split(ids, lengths.cumsum()[:-1])] == stock
