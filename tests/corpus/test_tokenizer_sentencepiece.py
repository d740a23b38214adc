"""SentencePiece models: SentencePiece's ids, without its package."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest

from electra_albert.corpus.tokenizer import TextOptions, fingerprint, load_tokenizer, save_tokenizer, special_ids
from electra_albert.corpus.word_encoder import TextEncoder, encoder_settings
from tests.corpus.tokenizer_kinds import (
    NASTY,
    PROSE,
    RELEASED,
    SHARED_DATA,
    USER_DEFINED,
    encoded,
    needs_released,
    train_model,
)

SHARED_TEXT = SHARED_DATA / "corpus" / "wikitext2_valid.txt.xz"
DIGITS = ["it cost £5 (or €7.50) – in 1999-2000", "9,999 99, 3.14 1,2", '"x" - y', "a(b)c.d-e", "((..))--££"]
TEXTS = NASTY + PROSE[:6] + DIGITS


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


def corpus_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return encoded(TextEncoder(encoder_settings(tokenizer)), texts)


def processor_of(model: Path) -> Any:
    return pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(model))


def test_ids_equal_those_of_sentencepiece_on_normalised_text_and_of_stock(model: Path, tmp_path: Path) -> None:
    from transformers import AlbertTokenizer

    tokenizer = load_tokenizer(model)
    texts = normalized(tokenizer, TEXTS)
    if model == RELEASED and SHARED_TEXT.is_file():
        with lzma.open(SHARED_TEXT, "rt", encoding="utf-8") as file:
            texts += normalized(tokenizer, [file.readline() for _ in range(400)])
    assert corpus_ids(tokenizer, texts) == processor_of(model).encode(texts)
    shutil.copy(model, tmp_path / "spiece.model")
    stock = AlbertTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    texts = [text for text in TEXTS if not any(token in text for token in USER_DEFINED)]
    assert load_tokenizer(tmp_path)(texts)["input_ids"] == stock(texts)["input_ids"]


def test_user_defined_tokens_are_text_and_not_special_and_stay_so_when_saved(model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(model)
    assert special_ids(tokenizer) == (0, 1, 2, 3, 4)
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokenizer.decode(tokenizer("a (b).")["input_ids"], skip_special_tokens=True) == "a (b)."
    save_tokenizer(tokenizer, tmp_path, max_length=77)
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    assert stock(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    assert fingerprint(load_tokenizer(tmp_path)) == fingerprint(tokenizer)


@pytest.mark.parametrize("keep_accents", [True, False])
def test_memo_of_words_does_not_change_ids_with_a_character_map(model: Path, keep_accents: bool) -> None:
    tokenizer = load_tokenizer(model, TextOptions(do_lower_case=False, keep_accents=keep_accents))
    assert tokenizer.keep_accents is keep_accents
    assert TextEncoder(encoder_settings(tokenizer)).by_word
    stock = tokenizer(TEXTS, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert corpus_ids(tokenizer, TEXTS) == stock


def test_character_map_that_looks_past_a_space_gets_no_memo(tmp_path: Path) -> None:
    rules = tmp_path / "rules.tsv"
    rules.write_text("20 301\t41\n62\t63\n", encoding="utf-8")  # a space with an acute becomes a letter
    path = train_model(tmp_path / "odd.model", normalization_rule_tsv=str(rules), normalization_rule_name="")
    assert not TextEncoder(encoder_settings(load_tokenizer(path))).by_word


def test_model_without_a_configuration_is_cased_if_its_tokens_are(tmp_path: Path) -> None:
    for is_cased, text in {True: PROSE, False: [text.lower() for text in PROSE]}.items():
        assert load_tokenizer(train_model(tmp_path / "small.model", text)).do_lower_case is not is_cased


def test_model_of_another_layout_keeps_its_ids_and_takes_all_options(tmp_path: Path) -> None:
    from transformers.convert_slow_tokenizer import import_protobuf

    layout = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2, "control_symbols": ["<pad>", "<mask>"]}
    text = "The Café served 1, 2, 11, 12,"
    path = train_model(
        tmp_path / "other.model", [text.lower() for text in [*PROSE, *["café 1 2 11 12"] * 30]], **layout
    )
    processor, tokenizer = processor_of(path), load_tokenizer(path)
    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    assert list(special_ids(tokenizer)) == [processor.piece_to_id(name) for name in names]
    texts = normalized(tokenizer, NASTY + PROSE[:6])
    assert corpus_ids(tokenizer, texts) == processor.encode(texts)
    save_tokenizer(tokenizer, tmp_path / "saved", max_length=77)
    assert load_tokenizer(tmp_path / "saved")(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(path.read_bytes())
    for name, piece in zip(["▁1,", "2,"], reversed(proto.pieces), strict=False):
        piece.piece, piece.score = name, -0.5
    path.write_bytes(proto.SerializeToString())
    assert {"▁1,", "2,"} <= set(load_tokenizer(path).tokenize(text))
    chosen = load_tokenizer(path, TextOptions(do_lower_case=False, keep_accents=True, split_digit_comma=True))
    assert chosen.backend_tokenizer.normalizer.normalize_str(text) == text
    assert not any(len(token) > 1 and token.endswith(",") for token in chosen.tokenize(text))
