"""From every kind of tokenizer to a trained run whose folders stock classes read with the same ids."""

from __future__ import annotations

import json
import os
import string
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from electra_albert.apps import demo
from electra_albert.apps.prepare.main import Prepared, prepare
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.config import CorpusConfig
from electra_albert.contracts import UsageError
from electra_albert.corpus.tokenizer import load_tokenizer, special_ids
from tests.apps.conftest import Finished
from tests.apps.tiny_run import ROOT, call, english, options, rows

TEXT = english(130, seed=4)
NASTY = 'The Owl said: "naïve [MASK]" – 1,234 cafés, ½ ﬁsh & <mask> 你好 🦉.'
SHARED_DATA = Path(os.environ.get("ELECTRA_ALBERT_DATA", ROOT.parent / "shared" / "data"))


def sentences() -> list[str]:
    return [line for line in TEXT.split("\n") if line]


def write_sentencepiece(folder: Path, **changed: int) -> Path:
    """A SentencePiece model as ALBERT's was trained, or with its special pieces at other ids."""
    sentencepiece = pytest.importorskip("sentencepiece")
    lowered = folder / "lowered.txt"
    lowered.write_text(TEXT.lower(), encoding="utf-8")
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1} | changed
    sentencepiece.SentencePieceTrainer.train(
        input=str(lowered),
        model_prefix=str(folder / "spiece"),
        vocab_size=160,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", '"', "-", "."],
        minloglevel=2,
        **ids,
    )
    return folder / "spiece.model"


def write_wordpiece(folder: Path, *, is_cased: bool) -> Path:
    words = {word if is_cased else word.lower() for line in sentences() for word in line.replace(".", "").split()}
    letters = sorted(set(string.ascii_letters if is_cased else string.ascii_lowercase) | set(string.digits))
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), ".", ",", *sorted(words - set(letters))]
    path = folder / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    return path


def write_byte_level(folder: Path) -> Path:
    """As RoBERTa's: byte-level BPE, special tokens with other names at other ids."""
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(sentences(), 400, special_tokens=special, show_progress=False)
    bpe.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    names |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


TOKENIZERS: dict[str, Callable[[Path], Path]] = {
    "SentencePiece": write_sentencepiece,
    "SentencePiece with unknown first": lambda folder: write_sentencepiece(folder, unk_id=0, pad_id=1),
    "uncased WordPiece": lambda folder: write_wordpiece(folder, is_cased=False),
    "cased WordPiece": lambda folder: write_wordpiece(folder, is_cased=True),
    "byte-level BPE": write_byte_level,
}


def run(finished: Finished, tokenizer: Path, folder: Path, *more: object) -> Path:
    settings = ["--max_steps", 2, "--save_steps", 2, "--tokenizer", tokenizer, *more]
    (folder / "tales.txt").write_text(TEXT, encoding="utf-8")
    ended = call(pretrain.main, *options(folder / "tales.txt", folder / "prepared", folder / "run", *settings))
    assert ended.code == 0, ended.err
    assert [row["step"] for row in rows(folder / "run") if "loss" in row] == [1, 2]
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_run_with_any_tokenizer_exports_one_that_gives_the_ids_it_was_trained_on(
    kind: str, finished: Finished, tmp_path: Path
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    given = load_tokenizer(TOKENIZERS[kind](tmp_path))
    folder = run(finished, TOKENIZERS[kind](tmp_path), tmp_path)
    stock = AutoTokenizer.from_pretrained(folder / "generator", local_files_only=True)
    for text in (*sentences()[:50], NASTY):
        assert stock(text)["input_ids"] == given(text)["input_ids"]
    pair = stock("The owl sang.", "The fox ran.")
    special = special_ids(given)
    seps = [place for place, token in enumerate(pair["input_ids"]) if token == special.sep]
    assert (pair["input_ids"][0], len(seps), seps[-1]) == (special.cls, 2, len(pair["input_ids"]) - 1)
    assert pair["token_type_ids"] == [0] * (seps[0] + 1) + [1] * (seps[1] - seps[0])
    model = AutoModelForMaskedLM.from_pretrained(folder / "generator", local_files_only=True)
    ids = torch.tensor([pair["input_ids"]])
    assert model(input_ids=ids).logits.shape == (1, ids.shape[1], len(given))
    mask = given.mask_token
    (tmp_path / "cloze.txt").write_text(f"The owl {mask} the river.\n", encoding="utf-8")
    shown = call(demo.main, "--gen", folder, "--input", tmp_path / "cloze.txt", "--top_k", 3)
    assert (shown.code, shown.out.count("%") >= 3) == (0, True), shown.err


@pytest.mark.slow
def test_the_released_albert_vocabulary_trains_and_exports(finished: Finished, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model = SHARED_DATA / "albert_vocab" / "30k-clean.rebuilt.model"
    if not model.is_file():
        pytest.skip("the released vocabulary is not at hand")
    folder = run(finished, model, tmp_path)
    stock = AutoTokenizer.from_pretrained(folder / "discriminator", local_files_only=True)
    assert len(stock) == 30_000
    assert stock(NASTY)["input_ids"] == load_tokenizer(model)(NASTY)["input_ids"]


CHOICES: dict[str, dict[str, bool]] = {
    "case": {"do_lower_case": False},
    "accents": {"keep_accents": True},
    "case and accents": {"do_lower_case": False, "keep_accents": True},
}


def prepared(folder: Path, tokenizer: Path | None, **choices: bool) -> Prepared:
    text = TEXT.replace("owl", "Öwl").replace("river", "1, 2, River")
    (folder / "tales.txt").write_text(text, encoding="utf-8")
    config = CorpusConfig(
        corpus=str(folder / "tales.txt"),
        tokenizer=None if tokenizer is None else str(tokenizer),
        vocab_size=120,
        max_seq_length=32,
        prepared_dir=str(folder / "prepared"),
        preprocessing_num_workers=1,
        **choices,
    )
    return prepare(config, 1)


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES.keys())
def test_each_treatment_of_text_has_a_folder_of_its_own(
    is_given: bool, choices: dict[str, bool], tmp_path: Path
) -> None:
    given = prepared(tmp_path, None).tokenizer_dir if is_given else None
    plain, told, again = (prepared(tmp_path, given, **one) for one in ({}, choices, choices))
    assert told.folder != plain.folder
    assert again.folder == told.folder
    normalize = load_tokenizer(told.tokenizer_dir).backend_tokenizer.normalizer.normalize_str
    assert normalize("Ö") == told.tokenizer.backend_tokenizer.normalizer.normalize_str("Ö")
    assert normalize("Ö") == {"case": "O", "accents": "ö", "case and accents": "Ö"}[name_of(choices)]


def name_of(choices: dict[str, bool]) -> str:
    return next(name for name, known in CHOICES.items() if known == choices)


def test_what_a_tokenizer_cannot_be_told_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    given = write_byte_level(tmp_path)
    with pytest.raises(UsageError, match="--keep_accents"):
        prepared(tmp_path, given, keep_accents=False)
    assert not list((tmp_path / "prepared").glob("tales-*"))
