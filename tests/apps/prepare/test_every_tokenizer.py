"""From every kind of tokenizer to a trained run whose folders stock classes read with the same ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from electra_albert.apps import demo
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.corpus.tokenizer import load_tokenizer, special_ids
from tests.apps.tiny_run import call, english, options, rows
from tests.corpus.tokenizer_kinds import KINDS, RELEASED, train_model

TEXT = english(130, seed=4)
NASTY = 'The Owl said: "naïve [MASK]" – 1,234 cafés, ½ ﬁsh & <mask> 你好 🦉.'


def released() -> Path:
    if not RELEASED.is_file():
        pytest.skip("needs ALBERT's released vocabulary")
    return RELEASED


def saved(kind: str, folder: Path) -> Path:
    KINDS[kind](folder)
    return folder


TOKENIZERS: dict[str, Callable[[Path], Path]] = {
    "released": lambda folder: released(),
    "SentencePiece with unknown first": lambda folder: train_model(
        folder / "spiece.model", TEXT.lower().splitlines(), unk_id=0, pad_id=1
    ),
    "bert uncased": lambda folder: saved("bert uncased", folder),
    "vocab.txt cased": lambda folder: saved("vocab.txt cased", folder),
    "roberta": lambda folder: saved("roberta", folder),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_run_with_any_tokenizer_exports_one_that_gives_the_ids_it_was_trained_on(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    (tmp_path / "given").mkdir()
    path = TOKENIZERS[kind](tmp_path / "given")
    given, folder = load_tokenizer(path), tmp_path / "run"
    (tmp_path / "tales.txt").write_text(TEXT, encoding="utf-8")
    settings = ["--max_steps", 2, "--save_steps", 2, "--tokenizer", path]
    ended = call(pretrain.main, *options(tmp_path / "tales.txt", tmp_path / "prepared", folder, *settings))
    assert ended.code == 0, ended.err
    assert [row["step"] for row in rows(folder) if "loss" in row] == [1, 2]
    stock = AutoTokenizer.from_pretrained(folder / "generator", local_files_only=True)
    assert len(stock) == len(given)
    for text in (*TEXT.splitlines()[:50], NASTY):
        assert stock(text)["input_ids"] == given(text)["input_ids"]
    pair = stock("The owl sang.", "The fox ran.")
    special = special_ids(given)
    seps = [place for place, token in enumerate(pair["input_ids"]) if token == special.sep]
    assert (pair["input_ids"][0], len(seps), seps[-1]) == (special.cls, 2, len(pair["input_ids"]) - 1)
    assert pair["token_type_ids"] == [0] * (seps[0] + 1) + [1] * (seps[1] - seps[0])
    model = AutoModelForMaskedLM.from_pretrained(folder / "generator", local_files_only=True)
    ids = torch.tensor([pair["input_ids"]])
    assert model(input_ids=ids).logits.shape == (1, ids.shape[1], len(given))
    (tmp_path / "cloze.txt").write_text(f"The owl {given.mask_token} the river.\n", encoding="utf-8")
    shown = call(demo.main, "--gen", folder, "--input", tmp_path / "cloze.txt", "--top_k", 3)
    assert (shown.code, shown.out.count("%") >= 3) == (0, True), shown.err
