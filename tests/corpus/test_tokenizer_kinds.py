"""Tokenizers of every kind: stock's ids, saved for stock, special ids read, words told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from electra_albert.corpus.tokenizer import (
    Piece,
    describe_pieces,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
    special_ids,
)
from tests.corpus.tokenizer_kinds import KINDS, NASTY, PROSE, edit, save_bert, save_fast_unigram, save_roberta

TEXTS = [*NASTY, *PROSE[:6], "a [MASK] and a <mask> here", "</s> [SEP]"]


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kind")
    KINDS[request.param](folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return load_tokenizer(folder)


def test_ids_equal_those_of_stock_from_the_same_folder(folder: Path, tokenizer: Any) -> None:
    from transformers import AutoTokenizer, BertTokenizer

    if (folder / "tokenizer.json").is_file():
        stock = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    else:
        stock = BertTokenizer.from_pretrained(str(folder), do_lower_case=tokenizer.do_lower_case)
    assert (
        tokenizer(TEXTS, add_special_tokens=False)["input_ids"] == stock(TEXTS, add_special_tokens=False)["input_ids"]
    )
    assert set(special_ids(tokenizer)) <= set(stock.all_special_ids)


@pytest.mark.parametrize("model_type", ["albert", None])
def test_saved_folder_gives_stock_the_same_rows(tokenizer: Any, tmp_path: Path, model_type: str | None) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tokenizer, tmp_path, max_length=77)
    if model_type:  # as in an export, whose config.json names a model with a tokenizer class of its own
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    for text in TEXTS:
        assert dict(stock(text, PROSE[0])) == dict(tokenizer(text, PROSE[0]))
    assert stock.model_max_length == 77
    assert json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))["tokenizer_class"] in (
        "AlbertTokenizer",
        "BertTokenizer",
        "PreTrainedTokenizerFast",  # names that versions 4 and 5 both know
    )


def test_round_trip_keeps_fingerprint_and_ids(tokenizer: Any, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path / "first", max_length=77)
    again = load_tokenizer(tmp_path / "first")
    save_tokenizer(again, tmp_path / "second", max_length=77)
    assert fingerprint(again) == fingerprint(tokenizer)
    assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_a_pair_is_laid_out_as_it_is_pretrained(tokenizer: Any) -> None:
    special = special_ids(tokenizer)
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROSE[:2])
    found = tokenizer(PROSE[0], PROSE[1])
    assert found["input_ids"] == [special.cls, *first, special.sep, *second, special.sep]
    assert found["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_special_ids_are_those_of_the_special_tokens(tokenizer: Any) -> None:
    special = special_ids(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(special))
    assert names in (
        ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        ["<pad>", "<unk>", "<s>", "</s>", "<mask>"],
    )
    assert tokenizer(f"a {names[4]} here")["input_ids"].count(special.mask) == 1


def test_pieces_of_words_join_to_the_words(tokenizer: Any) -> None:
    mask = tokenizer.mask_token
    described = describe_pieces(tokenizer, tokenizer(f"the river sings , {mask} old bridge")["input_ids"])
    words: list[str] = []
    for piece in described:
        words += [""] if piece.starts_word else []
        words[-1] += piece.text.strip("▁Ġ")
    words = " ".join(words).split()  # an added token may be two words
    assert words == [tokenizer.cls_token, "the", "river", "sings", ",", mask, "old", "bridge", tokenizer.sep_token]
    assert described[0] == Piece(tokenizer.cls_token, True)


def test_byte_level_pieces_are_shown_as_text(tmp_path: Path) -> None:
    save_roberta(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert describe_pieces(tokenizer, tokenizer(" é", add_special_tokens=False)["input_ids"])[0].starts_word
    ids = tokenizer.convert_tokens_to_ids(["Ġthe", "x"])
    assert describe_pieces(tokenizer, ids) == [Piece("the", True), Piece("x", False)]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_case_is_read_from_the_configuration_else_from_the_file(tmp_path: Path, do_lower_case: bool) -> None:
    save_bert(tmp_path, do_lower_case)
    assert load_tokenizer(tmp_path).do_lower_case is do_lower_case
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).do_lower_case is do_lower_case
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not do_lower_case}), encoding="utf-8")
    assert load_tokenizer(tmp_path).do_lower_case is not do_lower_case


def test_files_are_loaded_by_their_own_names_too(tmp_path: Path) -> None:
    KINDS["vocab.txt cased"](tmp_path)
    save_roberta(tmp_path / "roberta")
    for folder, name in ((tmp_path, "vocab.txt"), (tmp_path / "roberta", "tokenizer.json")):
        assert fingerprint(load_tokenizer(folder / name)) == fingerprint(load_tokenizer(folder))


def test_files_of_2020_without_a_model_type_are_read(tmp_path: Path) -> None:
    for save in (save_roberta, save_fast_unigram, lambda folder: save_bert(folder, True)):
        save(tmp_path)
        wanted = fingerprint(load_tokenizer(tmp_path))
        edit(tmp_path / "tokenizer.json", lambda content: content["model"].pop("type"))
        assert fingerprint(load_tokenizer(tmp_path)) == wanted


def test_a_pipeline_of_its_own_is_kept_where_the_configuration_names_no_albert(tmp_path: Path) -> None:
    save_fast_unigram(tmp_path)  # ALBERT's layout, but cased, with accents
    tokenizer = load_tokenizer(tmp_path)
    assert "T" in "".join(tokenizer.tokenize("The"))
    edit(tmp_path / "tokenizer_config.json", lambda config: config.update(tokenizer_class="AlbertTokenizer"))
    assert "T" not in "".join(load_tokenizer(tmp_path).tokenize("The"))


def test_fingerprint_tells_special_tokens_and_the_model_apart(tmp_path: Path) -> None:
    save_roberta(tmp_path)
    found = {fingerprint(load_tokenizer(tmp_path))}
    edit(tmp_path / "tokenizer.json", lambda content: content["model"]["merges"].pop())
    found.add(fingerprint(load_tokenizer(tmp_path)))
    edit(tmp_path / "tokenizer_config.json", lambda config: config.update(mask_token="<pad>", pad_token="<mask>"))
    found.add(fingerprint(load_tokenizer(tmp_path)))
    edit(tmp_path / "tokenizer.json", lambda content: content["pre_tokenizer"].update(add_prefix_space=True))
    found.add(fingerprint(load_tokenizer(tmp_path)))
    assert len(found) == 4


def test_nothing_baked_into_a_file_changes_the_ids(tmp_path: Path) -> None:
    save_roberta(tmp_path)
    plain = load_tokenizer(tmp_path)(TEXTS)["input_ids"]

    def bake(content: Any) -> None:
        content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        content["padding"] = {
            "strategy": {"Fixed": 50},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "<pad>",
        }
        content["model"]["dropout"] = 0.5
        content["post_processor"] = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}

    edit(tmp_path / "tokenizer.json", bake)
    assert load_tokenizer(tmp_path)(TEXTS)["input_ids"] == plain
