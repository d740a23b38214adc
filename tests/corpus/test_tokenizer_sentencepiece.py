"""SentencePiece models: SentencePiece's ids, without its package."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_albert.corpus.tokenizer import TextOptions, fingerprint, load_tokenizer, save_tokenizer, special_ids
from electra_albert.corpus.word_encoder import TextEncoder, encoder_settings
from tests.corpus.tokenizer_kinds import NASTY, PROSE, RELEASED, SHARED_DATA, USER_DEFINED, needs_released, train_model

SHARED_TEXT = SHARED_DATA / "corpus" / "wikitext2_valid.txt.xz"
DIGITS = ["it cost £5 (or €7.50) – in 1999-2000", "9,999 99, 3.14 1,2", '"x" - y', "a(b)c.d-e", "((..))--££"]


@pytest.fixture(scope="module", params=["trained", pytest.param("released", marks=needs_released)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "released":
        return RELEASED
    return train_model(tmp_path_factory.mktemp("model") / "small.model", [text.lower() for text in PROSE + DIGITS])


def normalized(tokenizer: Any, texts: list[str]) -> list[str]:
    """Texts as the tokenizer's normalizer leaves them, but those that SentencePiece and stock are known to cut apart.

    SentencePiece takes the word-start mark for a space, does not cut at U+0085, and drops NUL.
    """
    normalizer = tokenizer.backend_tokenizer.normalizer
    return [normalizer.normalize_str(text) for text in texts if not set(text) & set("▁\x85\x00")]


def make_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    ids, lengths = TextEncoder(encoder_settings(tokenizer)).encode(texts)
    return [piece.tolist() for piece in np.split(ids, lengths.cumsum()[:-1])]


def processor_of(model: Path) -> Any:
    return pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(model))


def test_ids_equal_those_of_sentencepiece_on_normalised_text(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    texts = normalized(tokenizer, NASTY + PROSE[:6] + DIGITS)
    if model == RELEASED and SHARED_TEXT.is_file():
        with lzma.open(SHARED_TEXT, "rt", encoding="utf-8") as file:
            texts += normalized(tokenizer, [file.readline() for _ in range(400)])
    assert make_ids(tokenizer, texts) == processor_of(model).encode(texts)


def test_ids_equal_those_of_stock_where_there_is_no_user_defined_token(model: Path, tmp_path: Path) -> None:
    from transformers import AlbertTokenizer

    shutil.copy(model, tmp_path / "spiece.model")
    stock = AlbertTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    texts = [text for text in NASTY + PROSE[:6] + DIGITS if not any(token in text for token in USER_DEFINED)]
    assert load_tokenizer(tmp_path)(texts)["input_ids"] == stock(texts)["input_ids"]


def test_user_defined_tokens_are_text_and_not_special_and_stay_so_when_saved(model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(model)
    assert special_ids(tokenizer) == (0, 1, 2, 3, 4)
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokenizer.decode(tokenizer("a (b).")["input_ids"], skip_special_tokens=True) == "a (b)."
    save_tokenizer(tokenizer, tmp_path, max_length=77)
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    texts = NASTY + PROSE[:6] + DIGITS
    assert stock(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    assert fingerprint(load_tokenizer(tmp_path)) == fingerprint(tokenizer)


@pytest.mark.parametrize("keep_accents", [True, False])
def test_memo_of_words_does_not_change_ids_with_a_character_map(model: Path, keep_accents: bool) -> None:
    tokenizer = load_tokenizer(model, TextOptions(do_lower_case=False, keep_accents=keep_accents))
    assert tokenizer.keep_accents is keep_accents
    assert TextEncoder(encoder_settings(tokenizer)).by_word
    texts = NASTY + PROSE[:6] + DIGITS
    stock = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert make_ids(tokenizer, texts) == stock


def test_character_map_that_looks_past_a_space_gets_no_memo(tmp_path: Path) -> None:
    rules = tmp_path / "rules.tsv"
    rules.write_text("20 301\t41\n62\t63\n", encoding="utf-8")  # a space with an acute becomes a letter
    path = train_model(tmp_path / "odd.model", normalization_rule_tsv=str(rules), normalization_rule_name="")
    assert not TextEncoder(encoder_settings(load_tokenizer(path))).by_word


@pytest.mark.parametrize("is_cased", [True, False])
def test_model_without_a_configuration_is_cased_if_its_tokens_are(tmp_path: Path, is_cased: bool) -> None:
    path = train_model(tmp_path / "small.model", PROSE if is_cased else [text.lower() for text in PROSE])
    assert load_tokenizer(path).do_lower_case is not is_cased


def test_model_of_another_layout_keeps_its_ids(tmp_path: Path) -> None:
    options = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2, "control_symbols": ["<pad>", "<mask>"]}
    path = train_model(tmp_path / "other.model", [text.lower() for text in PROSE], **options)
    processor, tokenizer = processor_of(path), load_tokenizer(path)
    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    assert list(special_ids(tokenizer)) == [processor.piece_to_id(name) for name in names]
    texts = normalized(tokenizer, NASTY + PROSE[:6])
    assert make_ids(tokenizer, texts) == processor.encode(texts)
    save_tokenizer(tokenizer, tmp_path / "saved", max_length=77)
    assert load_tokenizer(tmp_path / "saved")(texts)["input_ids"] == tokenizer(texts)["input_ids"]


_LOAD = """
import sys
sys.modules["sentencepiece"] = None
from pathlib import Path
from electra_albert.corpus.tokenizer import fingerprint, load_tokenizer
print(fingerprint(load_tokenizer(Path(sys.argv[1]))))
"""


@pytest.mark.slow
def test_package_of_sentencepiece_is_not_needed(tmp_path: Path) -> None:
    path = train_model(tmp_path / "small.model")
    command, root = [sys.executable, "-c", _LOAD, str(path)], Path(__file__).parents[2]
    found = subprocess.run(command, cwd=root, env=os.environ, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == fingerprint(load_tokenizer(path))
