"""ALBERT's tokenizer: the stock pipeline's ids, repeatable training, nothing foreign run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.tokenizer import (
    SPECIAL_PIECES,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from tests.corpus.tokenizer_kinds import NASTY, PROSE, edit


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(PROSE, 300, do_lower_case=True, keep_accents="albert")


@pytest.fixture
def folder(tokenizer: Any, tmp_path: Path) -> Path:
    save_tokenizer(tokenizer, tmp_path / "tokenizer", max_length=77)
    return tmp_path / "tokenizer"


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_ids_equal_those_of_stock_transformers_from_the_saved_folder(do_lower_case: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    trained = train_tokenizer(PROSE, 300, do_lower_case)
    save_tokenizer(trained, tmp_path, max_length=77)
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    plain = [text for text in NASTY + PROSE[:6] if not any(special in text for special in SPECIAL_PIECES)]
    expected = stock(plain)["input_ids"]
    assert trained(plain)["input_ids"] == expected
    assert load_tokenizer(tmp_path)(plain)["input_ids"] == expected
    assert stock.model_max_length == 77
    assert stock("the house", "the river")["token_type_ids"][-1] == 1  # stock's own default leaves them out


def test_special_pieces_have_ids_0_to_4_and_sizes_are_bounded(tokenizer: Any) -> None:
    assert tuple(tokenizer.convert_ids_to_tokens(list(range(5)))) == SPECIAL_PIECES
    assert len(tokenizer) <= 300
    assert len(train_tokenizer(PROSE, 30_000, do_lower_case=True)) < 30_000  # the text gives no more
    many_letters = ["".join(map(chr, range(0x4E00 + k, 0x4E00 + k + 8))) for k in range(500)]
    assert len(train_tokenizer(many_letters, 64, do_lower_case=True)) <= 64


def test_no_piece_joins_letters_to_punctuation(tokenizer: Any) -> None:
    pieces = [piece.removeprefix("▁") for piece in tokenizer.get_vocab() if piece not in SPECIAL_PIECES]
    assert not [p for p in pieces if not p.isalpha() and not p.isdigit() and len(p) > 1]


def test_training_without_text_is_refused() -> None:
    with pytest.raises(DataError, match="no text"):
        train_tokenizer(["", "\u0301"], 100, do_lower_case=True, keep_accents=False)


def test_an_endless_word_does_not_shut_out_the_others() -> None:
    # Regression: the first run of letters over the bound ended the gathering, here before any other.
    text = ["a" * 600_000, *PROSE[:6]]
    assert len(train_tokenizer(text, 300, do_lower_case=True)) > 30
    with pytest.raises(DataError, match="only words of more than 500,000 characters"):
        train_tokenizer(text[:1], 300, do_lower_case=True)


_TRAIN = """
import sys
from electra_albert.corpus.tokenizer import fingerprint, train_tokenizer
lines = [f"{a}{b} {b}{c}ing {c}{a}." for a in "the cat sat".split() for b in "on a rug".split() for c in "qwxyz中文字"]
print(fingerprint(train_tokenizer(lines * 3, 120, True)))
"""


@pytest.mark.slow
def test_training_repeats_bit_for_bit() -> None:
    """Catches the trainer's own disorder: unrounded, or with its scores of added characters, no two runs agree."""
    root = Path(__file__).parents[2]
    found = [
        subprocess.run(
            [sys.executable, "-c", _TRAIN],
            cwd=root,
            env=os.environ | {"RAYON_NUM_THREADS": threads},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for threads in ("1", "2", "2")
    ]
    assert found[0] == found[1] == found[2] != ""


def test_fingerprint_tells_pieces_scores_and_options_apart(tokenizer: Any, folder: Path) -> None:
    assert fingerprint(load_tokenizer(folder)) == fingerprint(tokenizer)
    edit(folder / "tokenizer.json", lambda content: content["model"]["vocab"][9].__setitem__(1, -3.5))
    rescored = fingerprint(load_tokenizer(folder))
    edit(folder / "tokenizer_config.json", lambda content: content.update(do_lower_case=False))
    assert len({fingerprint(tokenizer), rescored, fingerprint(load_tokenizer(folder))}) == 3


def replace_piece(place: int, piece: Any, score: Any = -1.0) -> Callable[[Any], None]:
    return lambda content: content["model"]["vocab"].__setitem__(place, [piece, score])


BROKEN: dict[str, Callable[[Any], Any]] = {
    "another type": lambda content: content["model"].update(type="BPE"),
    "no model": lambda content: content.pop("model"),
    "empty piece": replace_piece(7, ""),
    "piece twice": lambda content: content["model"]["vocab"].append(content["model"]["vocab"][9]),
    "piece is no text": replace_piece(7, 3),
    "piece is half a character": replace_piece(7, "\ud800"),
    "piece is a megabyte": replace_piece(7, "x" * 10**6),
    "score is beyond all numbers": replace_piece(7, "x" * 40, 10**400),
    "score is true": replace_piece(7, "x" * 40, True),
    "infinite score": replace_piece(7, "x" * 40, float("inf")),
    "score is no number": replace_piece(7, "x" * 40, None),
    "special ids permuted": lambda content: content["model"]["vocab"].insert(0, content["model"]["vocab"].pop(4)),
    "no vocabulary": lambda content: content["model"].update(vocab=[]),
    "unknown id elsewhere": lambda content: content["model"].update(unk_id=None),
    "added token beyond the pieces": lambda content: content["added_tokens"].append({"id": 4 * 10**9, "content": "x"}),
    "character map cut off": lambda content: content["normalizer"]["normalizers"].append(
        {"type": "Precompiled", "precompiled_charsmap": "AAQAAA=="}
    ),
    "character map not base64": lambda content: content["normalizer"]["normalizers"].append(
        {"type": "Precompiled", "precompiled_charsmap": "%%%"}
    ),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_damaged_or_foreign_tokenizer_is_refused_in_one_line(folder: Path, change: Callable[[Any], Any]) -> None:
    edit(folder / "tokenizer.json", change)
    with pytest.raises(CheckpointError) as raised:
        load_tokenizer(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 100_000, "\udcff"], ids=["empty", "half", "list", "deep", "bytes"]
)
def test_file_that_is_not_a_json_object_is_refused(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError):
        load_tokenizer(folder)


def test_missing_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_nothing_of_a_foreign_pipeline_survives_loading(tokenizer: Any, folder: Path) -> None:
    def plant(content: Any) -> None:
        content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        bomb = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "aaaaaaaa"}
        content["normalizer"] = {"type": "Sequence", "normalizers": [bomb] * 9}

    edit(folder / "tokenizer.json", plant)
    loaded = load_tokenizer(folder)
    assert loaded(PROSE[0])["input_ids"] == tokenizer(PROSE[0])["input_ids"]


def test_a_frequent_word_that_is_part_of_no_other_is_a_piece() -> None:
    # Regression: the trainer's first pieces must occur in two different words; "this" was cut into "thi" and "s".
    sentences = ["this thing was thick and those things were thin while they waited"] * 40
    vocab = train_tokenizer(sentences, 200, True).get_vocab()
    assert "▁this" in vocab
    assert "▁while" in vocab
    assert not [piece for piece in vocab if any(ord(character) >= 0xF0000 for character in piece)]
