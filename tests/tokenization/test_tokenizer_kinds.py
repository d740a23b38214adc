"""Tokenizers of every kind: the ids of transformers, special ids and options."""

import json
import pickle
import shutil
from itertools import product, starmap
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor

from electra_albert.tokenization import token_texts
from electra_albert.tokenization import tokenizer as tokenizers
from electra_albert.tokenization.text_encoder import TextEncoder
from electra_albert.tokenization.tokenizer import (
    TextOptions,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
    special_ids,
)
from tests.tokenization import tokenizer_kinds as kinds
from tests.tokenization.tokenizer_kinds import (
    KINDS,
    PROSE,
    RELEASED,
    edit,
    encoded,
    nasty_corpus,
    needs_released,
    train_model,
)

DIGITS = """it cost £5 (or €7.50) – in 1999-2000
9,999 99, 3.14 1,2
"x" - y
a(b)c.d-e
((..))--££""".splitlines()
TEXTS = [*kinds.NASTY, *DIGITS, *PROSE[:6]]
TEXTS += ["a [MASK] and a <mask> here", "</s> [SEP]", "The Café of ZOË"]
PLAIN = [*kinds.NASTY, *PROSE[:6], *nasty_corpus(300, 3, with_specials=False)]
CONFIG = "tokenizer_config.json"
JSON = "tokenizer.json"


@pytest.fixture(
    scope="module", params=[*KINDS, "spiece.model", pytest.param("released", marks=needs_released)]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kind")
    if request.param == "released":
        shutil.copy(RELEASED, folder / "spiece.model")
    elif request.param == "spiece.model":
        train_model(folder / "spiece.model", [text.lower() for text in PROSE + DIGITS])
    else:
        KINDS[request.param](folder)
    return folder


def test_transformers_gives_the_same_ids_and_a_round_trip_changes_nothing(
    folder: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(folder)
    save_tokenizer(tokenizer, tmp_path, max_length=77)
    again = load_tokenizer(tmp_path)
    second = tmp_path / "run" / "tokenizer"
    save_tokenizer(again, second, max_length=77)
    assert fingerprint(load_tokenizer(second.parent)) == fingerprint(tokenizer)
    for name in ("tokenizer.json", CONFIG):
        assert (tmp_path / name).read_bytes() == (second / name).read_bytes()
    # As in an export, whose config.json names a model type with its own tokenizer class.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert"}), encoding="utf-8")
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    first = [*TEXTS, *nasty_corpus(150, 1, with_specials=True)]
    second = nasty_corpus(150, 2, with_specials=True)
    for texts in ([first], [first[: len(second)], second]):
        ours = tokenizer(*texts)
        theirs = stock(*texts)
        for name in ("input_ids", "token_type_ids"):
            assert theirs[name] == ours[name]
    assert stock.model_max_length == 77
    saved = json.loads((tmp_path / CONFIG).read_text(encoding="utf-8"))
    # Transformers 4 and 5 know these.
    assert saved["tokenizer_class"] in ("AlbertTokenizer", "PreTrainedTokenizerFast")


def test_special_ids_pairs_and_words(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    special = special_ids(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(special[:5]))
    fairseq = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    assert names in ([*fairseq[:2], *kinds.STOCK_SPECIALS[2:]], kinds.STOCK_SPECIALS, fairseq)
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROSE[:2])
    actual = tokenizer(PROSE[0], PROSE[1])
    assert actual["input_ids"] == [special.cls, *first, special.sep, *second, special.sep]
    assert actual["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    ids = tokenizer(f"the river sings , {names[4]} old bridge")["input_ids"]
    assert ids.count(special.mask) == 1
    described = token_texts.token_texts(tokenizer, ids)
    words = "".join(" " * token.starts_word + token.text.strip("▁Ġ") for token in described)
    assert words.split() == f"{names[2]} the river sings , {names[4]} old bridge {names[3]}".split()
    assert described[0] == token_texts.TokenText(names[2], True)
    parts = tokenizer("bridges", add_special_tokens=False)["input_ids"]
    assert "".join(token.text for token in token_texts.token_texts(tokenizer, parts)) == "bridges"
    starts_word = token_texts.word_starts(tokenizer)
    assert len(starts_word) == len(tokenizer)
    for number, token in zip(ids[2:], described[2:], strict=True):
        assert starts_word[number] == token.starts_word


def test_a_corpus_gets_the_ids_of_transformers_and_no_special_id_and_unknown_text_is_counted(
    folder: Path,
) -> None:
    tokenizer = load_tokenizer(folder)
    expected = tokenizer(PLAIN, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    encoder = TextEncoder(tokenizer)
    assert encoded(encoder, PLAIN) == [ids.tolist() for ids in encoder.encode(PLAIN)] == expected
    special = special_ids(tokenizer)
    for number in {*special[:5]} - {None}:
        text = tokenizer.convert_ids_to_tokens(number)
        texts = [f"the {text} and x{text}y house", "the house", text]
        ids, lengths, counts = encoder.encode_counted(texts)
        assert not set(ids.tolist()) & ({*special[:5]} - {special.unk})
        assert lengths.sum() == len(ids)
        assert counts["special_texts"] == 3, text
    ids, _, counts = encoder.encode_counted(["the 漢字漢字漢字 house", "the house", "漢字漢字漢字"])
    assert encoder.unknown_id in (-1, special.unk)
    assert counts["unknown_characters"] == (12 if encoder.unknown_id in ids.tolist() else 0)
    assert encoder.encode([]) == encoded(encoder, [])[1:] == []
    again = pickle.loads(pickle.dumps(encoder))  # as when sent to another process
    assert encoded(again, TEXTS) == encoded(encoder, TEXTS)


def test_case_is_read_from_the_configuration_else_from_the_file(tmp_path: Path) -> None:
    def is_lowered(folder: Path = tmp_path) -> bool:
        tokenizer = load_tokenizer(folder)
        return tokenizer.tokenize("THE") == tokenizer.tokenize("the")

    for do_lower_case in (True, False):
        kinds.save_bert(tmp_path, do_lower_case)
        assert is_lowered() is do_lower_case
        (tmp_path / CONFIG).unlink()
        assert is_lowered() is do_lower_case
        (tmp_path / CONFIG).write_text(json.dumps({"do_lower_case": not do_lower_case}))
        assert is_lowered() is not do_lower_case
        kinds.save_vocab_txt(tmp_path / str(do_lower_case), do_lower_case)
        assert is_lowered(tmp_path / str(do_lower_case)) is do_lower_case
    # Cased and with accents unless the configuration names ALBERT.
    kinds.save_fast_unigram(tmp_path)
    assert not is_lowered()
    edit(tmp_path / CONFIG, lambda config: config.update(tokenizer_class="AlbertTokenizer"))
    assert is_lowered()


def test_fingerprints_differ_by_model_special_tokens_scores_and_options(tmp_path: Path) -> None:
    kinds.save_roberta(tmp_path / "bpe")
    KINDS["albert uncased"](tmp_path / "albert")
    swapped = {"mask_token": "<pad>", "pad_token": "<mask>"}
    changes = [
        ("bpe", CONFIG, lambda config: None),
        ("bpe", JSON, lambda content: content["model"]["merges"].pop()),
        ("bpe", CONFIG, lambda config: config.update(swapped)),
        ("bpe", CONFIG, lambda config: config.update(add_prefix_space=True)),
        ("albert", CONFIG, lambda config: None),
        ("albert", JSON, lambda content: content["model"]["vocab"][9].__setitem__(1, -3.5)),
        ("albert", CONFIG, lambda config: config.update(do_lower_case=False)),
    ]
    prints = set()
    for name, file, change in changes:
        edit(tmp_path / name / file, change)
        prints.add(fingerprint(load_tokenizer(tmp_path / name)))
    assert len(prints) == len(changes)


def test_truncation_padding_dropout_and_template_of_a_file_do_not_change_the_ids(
    tmp_path: Path,
) -> None:
    baked = """{
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst",
            "stride": 0},
        "padding": {"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>"},
        "post_processor": {"type": "TemplateProcessing", "single": [], "pair": [],
            "special_tokens": {}}
    }"""

    def bake(content: Any) -> None:
        content |= json.loads(baked)
        if content["model"]["type"] == "BPE":
            content["model"]["dropout"] = 0.5
        else:  # the published ALBERT normalizer is rebuilt
            bomb = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "aaaaaaaa"}
            content["normalizer"] = {"type": "Sequence", "normalizers": [bomb] * 9}

    for kind in ("roberta", "albert uncased"):
        KINDS[kind](tmp_path / kind)
        plain = load_tokenizer(tmp_path / kind)(TEXTS)["input_ids"]
        edit(tmp_path / kind / "tokenizer.json", bake)
        assert load_tokenizer(tmp_path / kind)(TEXTS)["input_ids"] == plain


# Options that override the files.


@pytest.mark.parametrize(
    "kind", ["albert cased with accents", "bert with added words", "script-safe uncased"]
)
def test_options_override_the_files_change_the_fingerprint_and_are_saved(
    kind: str, tmp_path: Path
) -> None:
    KINDS[kind](tmp_path)
    if kind.startswith("bert"):
        edit(tmp_path / CONFIG, lambda config: config.update(strip_accents=True))
    plain = load_tokenizer(tmp_path)
    prints = set()
    for options in starmap(TextOptions, product((True, False), repeat=2)):
        chosen = load_tokenizer(tmp_path, options)
        normalize = chosen.backend_tokenizer.normalizer.normalize_str
        assert ("Z" in normalize("Zoë")) != options.do_lower_case
        assert (normalize("ë") == "ë") == options.keep_accents
        assert chosen.get_vocab() == plain.get_vocab()
        prints.add(fingerprint(chosen))
        save_tokenizer(chosen, tmp_path / "saved", max_length=77)
        again = load_tokenizer(tmp_path / "saved")
        assert fingerprint(again) == fingerprint(chosen)
        assert again(TEXTS)["input_ids"] == chosen(TEXTS)["input_ids"]
    assert len(prints) == 4


ORDINARY = """in 1912, the river rose, and in 1913, 1914, and 2009, on may 5, 1821, and june 18, at
10, 11, 1990,1991,1992, 1,000 2,500 9,999.50 10,000 12,345 99,999 100,000 250,000 1,000,000
7,654,321 92000, 1066, 476, 64, 7, 0, and 31, 3.14, 2.0, 50%, or $1,500, (1945,) 1945), 24, 25, 26,
4th, 802.11, b12, c-130, f-16, a1, 2pm, 0,0 1,1 9,9"""


@needs_released
def test_numbers_get_the_ids_of_the_google_implementation() -> None:
    """60 of 377,659 numbers in Wikipedia differ, as 1,050, where the scores prefer "1,0"."""
    processor = SentencePieceProcessor(model_file=str(RELEASED))

    def googles_tokens(word: str) -> list[str]:
        tokens = []
        for token in processor.encode(word, out_type=str):
            if token.endswith(",") and token[-2:-1].isdigit():
                first, *others = processor.encode(token[:-1].replace("▁", ""), out_type=str)
                if token[0] != "▁":
                    first = first.removeprefix("▁")
                tokens += filter(None, [first, *others, ","])
            else:
                tokens.append(token)
        return tokens

    tokenizer = load_tokenizer(RELEASED, TextOptions(split_digit_comma=True))
    words = ORDINARY.split()
    assert list(map(tokenizer.tokenize, words)) == list(map(googles_tokens, words))


def test_digit_comma_scores_are_idempotent_and_reversible(tmp_path: Path) -> None:
    split = TextOptions(split_digit_comma=True)
    together = TextOptions(split_digit_comma=False)
    kinds.save_digit_commas(tmp_path)
    plain = load_tokenizer(tmp_path)
    apart = load_tokenizer(tmp_path, split)
    text = "in 1912, 1, 999, and 12, or 9,12,1, people"
    assert set(plain.tokenize(text)) & set(kinds.DIGIT_COMMA_TOKENS)
    assert not set(apart.tokenize(text)) & set(kinds.DIGIT_COMMA_TOKENS)
    assert plain.tokenize("the house, people") == apart.tokenize("the house, people")
    save_tokenizer(apart, tmp_path / "apart", max_length=77)
    for options in (split, TextOptions()):
        again = fingerprint(load_tokenizer(tmp_path / "apart", options))
        assert again == fingerprint(apart) != fingerprint(plain)
    assert load_tokenizer(tmp_path / "apart", together).tokenize(text) == plain.tokenize(text)
    assert fingerprint(load_tokenizer(tmp_path, together)) == fingerprint(plain)
    meant = {"▁1,": True, "9,": True, "٣,": True, ",": False, "a,": False, "1,0": False}
    vocab = [*((token, -2.0) for token in meant), ("x", -5.0)]
    scores = tokenizers.split_digit_commas(vocab, True)
    assert {token: score < -50 for token, score in scores[:-1]} == meant


# SentencePiece models.


def test_a_plain_model_in_the_layout_of_albert_is_read_as_by_albert(tmp_path: Path) -> None:
    from transformers import AlbertTokenizer

    path = train_model(tmp_path / "spiece.model", [text.lower() for text in PROSE + DIGITS])
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer, AlbertTokenizer)
    assert tokenizer.tokenize("Thé HOUSE") == tokenizer.tokenize("the house")
    normalize = tokenizer.backend_tokenizer.normalizer.normalize_str
    # SentencePiece treats ▁ as a space, does not split at U+0085, and drops NUL.
    texts = [normalize(text) for text in TEXTS if not set(text) & set("▁\x85\x00")]
    wanted = SentencePieceProcessor(model_file=str(path)).encode(texts)
    assert encoded(TextEncoder(tokenizer), texts) == wanted
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4], "user-defined tokens are text"


@pytest.mark.parametrize("has_unknown", [True, False])
def test_a_special_id_found_in_text_is_replaced_or_dropped(
    tmp_path: Path, has_unknown: bool
) -> None:
    """A model that first looks up whole words finds "<mask>" even without added tokens."""

    def change(content: Any) -> None:
        content["model"].update(ignore_merges=True, unk_token="<unk>" if has_unknown else None)
        content["pre_tokenizer"].update(use_regex=False)

    kinds.save_roberta(tmp_path)
    edit(tmp_path / "tokenizer.json", change)
    tokenizer = load_tokenizer(tmp_path)
    stock = tokenizer("<mask>", add_special_tokens=False, split_special_tokens=True)
    assert stock["input_ids"] == [tokenizer.mask_token_id]  # the fault to prevent
    encoder = TextEncoder(tokenizer)
    texts = ["the house", "<mask>"]
    ids = encoded(encoder, texts)
    assert ids[1] == ([tokenizer.unk_token_id] if has_unknown else [])
    assert encoder.encode_counted(texts)[2]["special_texts"] == 1
    assert [subwords.ids.tolist() for subwords in encoder.encode_with_offsets(texts)] == ids


def test_a_character_that_becomes_several_unknown_tokens_counts_once(tmp_path: Path) -> None:
    for kind in ("albert uncased", "bert uncased"):
        KINDS[kind](tmp_path / kind)
        encoder = TextEncoder(load_tokenizer(tmp_path / kind))
        for text, characters in {"the house": 0, "☃☃": 2, "\ufdfa": 1, "☃ the ☃ house☃": 3}.items():
            count = encoder.encode_counted([text])[2]["unknown_characters"]
            assert count <= len(text.replace(" ", ""))
            # WordPiece makes whole words unknown.
            assert kind == "bert uncased" or count == characters
