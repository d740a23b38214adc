"""Case, accents and commas as the user tells them, over what a tokenizer's files say; refused where they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import UsageError
from electra_albert.corpus.tokenizer import TextOptions, fingerprint, load_tokenizer, save_tokenizer
from tests.corpus.test_tokenizer_sentencepiece import train_model
from tests.corpus.tokenizer_kinds import KINDS, NASTY, edit

TEXTS = ["The Café of ZOË", "zoe's cafe", *NASTY]
OWN_PIPELINES = ["bert with added words", "roberta", "word level", "fast unigram"]


@pytest.mark.parametrize(
    "kind", ["albert cased with accents", "script-safe uncased", "bert cased", "vocab.txt uncased"]
)
@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("keep_accents", [True, False])
def test_what_is_told_goes_over_what_the_files_say(
    kind: str, do_lower_case: bool, keep_accents: bool, tmp_path: Path
) -> None:
    KINDS[kind](tmp_path)
    told = load_tokenizer(tmp_path, TextOptions(do_lower_case, keep_accents))
    normalize = told.backend_tokenizer.normalizer.normalize_str
    assert ("Z" in normalize("Zoë")) == (not do_lower_case)
    assert (normalize("ë") == "ë") == keep_accents
    assert told.get_vocab() == load_tokenizer(tmp_path).get_vocab()


@pytest.mark.parametrize("kind", ["albert uncased", "bert uncased", "vocab.txt cased", "roberta"])
def test_nothing_told_leaves_all_to_the_files(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    assert fingerprint(load_tokenizer(tmp_path, TextOptions())) == fingerprint(load_tokenizer(tmp_path))


@pytest.mark.parametrize("kind", ["albert cased", "script-safe uncased", "bert uncased"])
def test_each_option_changes_the_fingerprint_and_is_kept_on_file(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    choices = [TextOptions(case, accents) for case in (True, False) for accents in (True, False)]
    found = [load_tokenizer(tmp_path, told) for told in choices]
    assert len(set(map(fingerprint, found))) == len(choices)
    for number, tokenizer in enumerate(found):
        save_tokenizer(tokenizer, tmp_path / str(number), max_length=77)
        again = load_tokenizer(tmp_path / str(number))
        assert fingerprint(again) == fingerprint(tokenizer)
        assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]


@pytest.mark.parametrize("unknown_id", [0, 1])
def test_a_sentencepiece_model_of_any_layout_takes_all_of_them(unknown_id: int, tmp_path: Path) -> None:
    layout = {"unk_id": unknown_id, "pad_id": 1 - unknown_id, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    path = train_model(tmp_path / "spiece.model", ["the café served 1, 2, 11, 12, and crème brûlée"] * 30, **layout)
    rename_pieces(path, ["▁1,", "2,"])
    plain = load_tokenizer(tmp_path)
    told = load_tokenizer(tmp_path, TextOptions(do_lower_case=False, keep_accents=True, split_digit_comma=True))
    text = "The Café served 1, 2, 11, 12,"
    assert told.backend_tokenizer.normalizer.normalize_str(text) == text
    assert {"▁1,", "2,"} <= set(plain.tokenize(text))
    assert not any(len(piece) > 1 and piece.endswith(",") for piece in told.tokenize(text))


def rename_pieces(path: Path, names: list[str]) -> None:
    """Make the last pieces of a SentencePiece model likely ones of these texts."""
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(path.read_bytes())
    for name, piece in zip(names, reversed(proto.pieces), strict=False):
        piece.piece, piece.score = name, -0.5
    path.write_bytes(proto.SerializeToString())


@pytest.mark.parametrize("kind", OWN_PIPELINES)
@pytest.mark.parametrize("name", TextOptions._fields)
@pytest.mark.parametrize("value", [True, False])
def test_a_pipeline_of_its_own_is_told_nothing(kind: str, name: str, value: bool, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    told: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=f"--{name} .*own pipeline") as raised:
        load_tokenizer(tmp_path, TextOptions(**told))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["bert uncased", "vocab.txt cased"])
def test_commas_of_bert_cannot_be_told_otherwise(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    with pytest.raises(UsageError, match=r"--split_digit_comma .*BERT's") as raised:
        load_tokenizer(tmp_path, TextOptions(split_digit_comma=True))
    assert "\n" not in str(raised.value)


def test_accents_of_a_bert_folder_that_names_them_are_told_over(tmp_path: Path) -> None:
    KINDS["bert uncased"](tmp_path)
    edit(tmp_path / "tokenizer_config.json", lambda config: config.update(strip_accents=True))
    told = load_tokenizer(tmp_path, TextOptions(keep_accents=True))
    assert told.backend_tokenizer.normalizer.normalize_str("Zoë") == "zoë"
