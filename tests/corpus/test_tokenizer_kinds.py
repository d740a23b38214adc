"""Tokenizers of every kind: stock's ids, also for a corpus, saved for stock, special ids read, words marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_albert.corpus.tokenizer import (
    Piece,
    describe_pieces,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
    special_ids,
)
from electra_albert.corpus.word_encoder import TextEncoder, encoder_settings
from tests.corpus.nasty_text import nasty_corpus
from tests.corpus.tokenizer_kinds import (
    FAIRSEQ_SPECIALS,
    KINDS,
    NASTY,
    PROSE,
    RELEASED,
    STOCK_SPECIALS,
    edit,
    save_bert,
    save_fast_unigram,
    save_roberta,
)

TEXTS = [*NASTY, *PROSE[:6], "a [MASK] and a <mask> here", "</s> [SEP]"]
PLAIN = [*NASTY, *PROSE[:6], *nasty_corpus(600, 3, with_specials=False)]


@pytest.fixture(scope="module", params=[*KINDS, "released"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kind")
    if request.param in KINDS:
        KINDS[request.param](folder)
    elif RELEASED.is_file():
        save_tokenizer(load_tokenizer(RELEASED), folder, 512)
    else:
        pytest.skip("needs ALBERT's released vocabulary")
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return load_tokenizer(folder)


def corpus_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    ids, lengths = TextEncoder(encoder_settings(tokenizer)).encode(texts)
    assert (ids.dtype, lengths.dtype, lengths.sum()) == (np.int32, np.int64, len(ids))
    return [piece.tolist() for piece in np.split(ids, lengths.cumsum()[:-1])]


def test_stock_gives_the_same_ids_from_the_folder_and_from_a_saved_one(
    folder: Path, tokenizer: Any, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    if (folder / "tokenizer.json").is_file():
        stock = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        assert (
            tokenizer(TEXTS, add_special_tokens=False)["input_ids"] == stock(TEXTS, add_special_tokens=False).input_ids
        )
    save_tokenizer(tokenizer, tmp_path, max_length=77)
    # As in an export, whose config.json names a model with a tokenizer class of its own.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert"}), encoding="utf-8")
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    first, second = [*TEXTS, *nasty_corpus(300, 1, with_specials=True)], nasty_corpus(300, 2, with_specials=True)
    for texts in ([first], [first[: len(second)], second]):
        ours, theirs = tokenizer(*texts), stock(*texts)
        assert theirs["input_ids"] == ours["input_ids"]
        assert theirs["token_type_ids"] == ours["token_type_ids"]
    assert stock.model_max_length == 77
    assert json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))["tokenizer_class"] in (
        "AlbertTokenizer",
        "PreTrainedTokenizerFast",  # names that versions 4 and 5 both know
    )


def test_round_trip_keeps_fingerprint_ids_and_bytes(tokenizer: Any, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path / "first", max_length=77)
    again = load_tokenizer(tmp_path / "first")
    save_tokenizer(again, tmp_path / "second", max_length=77)
    assert fingerprint(again) == fingerprint(tokenizer)
    assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_special_ids_pairs_and_words(tokenizer: Any) -> None:
    special = special_ids(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(special))
    assert names in (
        ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        ["<pad>", "<unk>", "<s>", "</s>", "<mask>"],
    )
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROSE[:2])
    found = tokenizer(PROSE[0], PROSE[1])
    assert found["input_ids"] == [special.cls, *first, special.sep, *second, special.sep]
    assert found["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    ids = tokenizer(f"the river sings , {names[4]} old bridge")["input_ids"]
    assert ids.count(special.mask) == 1
    described = describe_pieces(tokenizer, ids)
    words: list[str] = []
    for piece in described:
        words += [""] if piece.starts_word else []
        words[-1] += piece.text.strip("▁Ġ")
    words = " ".join(words).split()  # an added token may be two words
    assert words == [names[2], "the", "river", "sings", ",", names[4], "old", "bridge", names[3]]
    assert described[0] == Piece(names[2], True)


def test_a_corpus_gets_the_ids_of_stock_that_takes_special_tokens_for_text(tokenizer: Any) -> None:
    assert not any(special in text for special in (*FAIRSEQ_SPECIALS, *STOCK_SPECIALS) for text in PLAIN)
    expected = tokenizer(PLAIN, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert corpus_ids(tokenizer, PLAIN) == expected


def test_a_corpus_gets_no_special_id_and_unknown_text_is_counted(tokenizer: Any) -> None:
    special = special_ids(tokenizer)
    encoder = TextEncoder(encoder_settings(tokenizer))
    for text in tokenizer.convert_ids_to_tokens([number for number in special if number is not None]):
        before = encoder.special_texts
        ids, lengths = encoder.encode([f"the {text} and x{text}y house", "the house", text])
        assert not set(ids.tolist()) & ({*special} - {special.unk})
        assert lengths.sum() == len(ids)
        assert encoder.special_texts == before + 3, text
    for times in (1, 2):  # words met for the first time, and again
        before = encoder.unknown_characters
        ids, _ = encoder.encode(["the 漢字漢字漢字 house", "the house", "漢字漢字漢字"])
        assert encoder.unknown_id in (-1, special.unk)
        assert encoder.unknown_characters - before == (12 if encoder.unknown_id in ids.tolist() else 0), times


def test_byte_level_tokens_are_shown_as_text(tmp_path: Path) -> None:
    save_roberta(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert describe_pieces(tokenizer, tokenizer(" é", add_special_tokens=False)["input_ids"])[0].starts_word
    ids = tokenizer.convert_tokens_to_ids(["Ġthe", "x"])
    assert describe_pieces(tokenizer, ids) == [Piece("the", True), Piece("x", False)]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_case_is_read_from_the_configuration_else_from_the_file(tmp_path: Path, do_lower_case: bool) -> None:
    def is_lowered() -> bool:
        return load_tokenizer(tmp_path).backend_tokenizer.normalizer.normalize_str("A") == "a"

    save_bert(tmp_path, do_lower_case)
    assert is_lowered() is do_lower_case
    (tmp_path / "tokenizer_config.json").unlink()
    assert is_lowered() is do_lower_case
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not do_lower_case}), encoding="utf-8")
    assert is_lowered() is not do_lower_case


def test_files_are_loaded_by_name_and_without_a_model_type_as_in_2020(tmp_path: Path) -> None:
    KINDS["vocab.txt cased"](tmp_path)
    assert fingerprint(load_tokenizer(tmp_path / "vocab.txt")) == fingerprint(load_tokenizer(tmp_path))
    for save in (save_roberta, save_fast_unigram, lambda folder: save_bert(folder, True)):
        save(tmp_path)
        wanted = fingerprint(load_tokenizer(tmp_path))
        assert fingerprint(load_tokenizer(tmp_path / "tokenizer.json")) == wanted
        edit(tmp_path / "tokenizer.json", lambda content: content["model"].pop("type"))
        assert fingerprint(load_tokenizer(tmp_path)) == wanted


def test_a_pipeline_of_its_own_is_kept_if_the_configuration_names_no_albert(tmp_path: Path) -> None:
    save_fast_unigram(tmp_path)  # ALBERT's layout, but cased, with accents
    assert "T" in "".join(load_tokenizer(tmp_path).tokenize("The"))
    edit(tmp_path / "tokenizer_config.json", lambda config: config.update(tokenizer_class="AlbertTokenizer"))
    assert "T" not in "".join(load_tokenizer(tmp_path).tokenize("The"))


def test_fingerprints_differ_by_model_special_tokens_scores_and_options(tmp_path: Path) -> None:
    def printed(name: str, change: Any = None, file: str = "tokenizer.json") -> str:
        if change:
            edit(tmp_path / name / file, change)
        return fingerprint(load_tokenizer(tmp_path / name))

    save_roberta(tmp_path / "bpe")
    KINDS["albert uncased"](tmp_path / "albert")
    config = "tokenizer_config.json"
    found = [
        printed("bpe"),
        printed("bpe", lambda content: content["model"]["merges"].pop()),
        printed("bpe", lambda config: config.update(mask_token="<pad>", pad_token="<mask>"), config),
        printed("bpe", lambda content: content["pre_tokenizer"].update(add_prefix_space=True)),
        printed("albert"),
        printed("albert", lambda content: content["model"]["vocab"][9].__setitem__(1, -3.5)),
        printed("albert", lambda config: config.update(do_lower_case=False), config),
    ]
    assert len(set(found)) == len(found)


def test_nothing_baked_into_a_file_changes_the_ids(tmp_path: Path) -> None:
    def bake(content: Any) -> None:
        content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        padding = {"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None}
        content["padding"] = padding | {"pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>"}
        content["post_processor"] = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
        if content["model"]["type"] == "BPE":
            content["model"]["dropout"] = 0.5
        else:  # the published normalizer is rebuilt
            bomb = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "aaaaaaaa"}
            content["normalizer"] = {"type": "Sequence", "normalizers": [bomb] * 9}

    for kind in ("roberta", "albert uncased"):
        KINDS[kind](tmp_path / kind)
        plain = load_tokenizer(tmp_path / kind)(TEXTS)["input_ids"]
        edit(tmp_path / kind / "tokenizer.json", bake)
        assert load_tokenizer(tmp_path / kind)(TEXTS)["input_ids"] == plain
