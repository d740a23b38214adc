"""From every kind of corpus and tokenizer to a token store and a run: the same texts give the same tokens."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from datasets import Dataset, DatasetDict

from electra_albert.apps import demo
from electra_albert.apps.prepare import command as prepare
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.corpus.tokenizer import load_tokenizer, special_ids
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call, english, options, rows
from tests.corpus.reading import write
from tests.corpus.tokenizer_kinds import KINDS, RELEASED, needs_released, train_model

TEXTS = english(120, seed=4).strip().split("\n\n")
PLAIN = ("\n\n".join(TEXTS) + "\n").encode()
LINES = "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(TEXTS)).encode()


def write_csv(path: Path, column: str = "text") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", column], *([str(number), text] for number, text in enumerate(TEXTS))])
    return path


def write_dataset(path: Path) -> Path:
    splits = {"train": Dataset.from_dict({"text": TEXTS}), "test": Dataset.from_dict({"text": ["Another text."]})}
    DatasetDict(splits).save_to_disk(str(path))
    return path


def write_folder(path: Path) -> Path:
    """Half of the documents as text, half as packed records; returns a glob."""
    path.mkdir()
    write(path, ("\n\n".join(TEXTS[:60]) + "\n").encode(), "a.txt")
    write(path, gzip.compress(b"\n".join(LINES.split(b"\n")[60:]), mtime=0), "b.jsonl.gz")
    write(path, b"\x89PNG\r\n", "picture.png")
    return path / "*.*[tz]"


SOURCES: dict[str, Callable[[Path], Path]] = {
    "txt": lambda folder: write(folder, PLAIN),
    "txt.xz": lambda folder: write(folder, lzma.compress(PLAIN), "t.txt.xz"),
    "csv": lambda folder: write_csv(folder / "t.csv"),
    "saved dataset": lambda folder: write_dataset(folder / "t"),
    "glob": lambda folder: write_folder(folder / "t"),
}


def prepared(finished: Finished, corpus: object, folder: Path, *more: object) -> Ended:
    tokenizer = finished.folder / "tokenizer"
    return call(prepare.main, "--corpus", corpus, "--prepared_dir", folder / "p", "--tokenizer", tokenizer, *more)


def tokens(folder: Path) -> bytes:
    """All tokens to train on and held out."""
    (store,) = (folder / "p").glob("*/store")
    return b"".join((store / side / "tokens.bin").read_bytes() for side in ("train", "validation"))


def test_any_kind_of_source_gives_the_same_tokens(finished: Finished, tmp_path: Path) -> None:
    found = {}
    for kind, make in SOURCES.items():
        (tmp_path / kind).mkdir()
        ended = prepared(finished, make(tmp_path / kind), tmp_path / kind)
        assert ended.code == 0, ended.err
        found[kind] = tokens(tmp_path / kind)
    assert [kind for kind in found if found[kind] != found["txt"]] == []


@pytest.mark.slow
def test_a_mixture_trains_on_its_sources_by_weight(finished: Finished, tmp_path: Path) -> None:
    write(tmp_path, LINES, "a.jsonl")
    write(tmp_path, english(60, seed=8), "b.txt")
    listed = write(tmp_path, "- {corpus: a.jsonl, weight: 1}\n- {corpus: b.txt, weight: 3}\n", "mix.yaml")

    def run(steps: int) -> Ended:
        settings = ["--max_steps", steps, "--save_steps", 2, "--tokenizer", finished.folder / "tokenizer"]
        return call(pretrain.main, *options(listed, tmp_path / "prepared", tmp_path / "run", *settings))

    assert run(2).code == 0
    evaluated = [row for row in rows(tmp_path / "run") if "eval_loss" in row][-1]
    counts = [evaluated[f"eval_masked_tokens/{name}"] for name in ("a.jsonl", "b.txt")]
    losses = [evaluated[f"eval_generator_loss/{name}"] for name in ("a.jsonl", "b.txt")]
    assert min(counts) > 0
    assert sum(counts) == evaluated["eval_masked_tokens"]
    total = sum(loss * count for loss, count in zip(losses, counts, strict=True))
    assert total / sum(counts) == pytest.approx(evaluated["eval_generator_loss"], rel=1e-6)
    assert run(2).code == 0
    listed.write_text("- {corpus: a.jsonl, weight: 1}\n- {corpus: b.txt, weight: 2}\n")
    assert_refused(run(3), 4, "mix.yaml", "weights")


def test_a_corpus_that_cannot_be_read_is_refused_with_its_exit_code(finished: Finished, tmp_path: Path) -> None:
    assert_refused(prepared(finished, write_csv(tmp_path / "t.csv", "body"), tmp_path), 3, "'body'", "--text_column")
    assert_refused(prepared(finished, "nobody/nothing", tmp_path), 2, "nobody/nothing")
    assert_refused(prepared(finished, "memory://nothing/there.txt", tmp_path), 2, "memory://nothing")


def test_one_file_in_two_sources_is_two_columns_or_read_once_or_refused(finished: Finished, tmp_path: Path) -> None:
    half = len(TEXTS) // 2
    pyarrow.parquet.write_table(pyarrow.table({"a": TEXTS[:half], "b": TEXTS[half:]}), tmp_path / "t.parquet")
    write(tmp_path, PLAIN, "t.txt")
    lists = {
        "t.parquet, text_column: a, weight: 1|t.parquet, text_column: b, weight: 2": f"documents       {len(TEXTS)}\n",
        "t.txt|./t.txt": "1 files named twice",
        "t.txt, weight: 1|./t.txt, weight: 2": "two sources",
    }
    for listed, line in lists.items():
        entries = "".join(f"- {{corpus: {entry}}}\n" for entry in listed.split("|"))
        ended = prepared(finished, write(tmp_path, entries, "s.yaml"), tmp_path)
        assert (ended.code, line in ended.err) == (3 if "sources" in line else 0, True), ended.err


def saved(kind: str, folder: Path) -> Path:
    KINDS[kind](folder)
    return folder


TOKENIZERS: dict[str, Callable[[Path], Path]] = {
    "released": lambda folder: RELEASED,
    "SentencePiece with unknown first": lambda folder: train_model(
        folder / "spiece.model", [text.lower() for text in TEXTS], unk_id=0, pad_id=1
    ),
    "bert uncased": lambda folder: saved("bert uncased", folder),
    "roberta": lambda folder: saved("roberta", folder),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("released", marks=needs_released), *list(TOKENIZERS)[1:]])
def test_a_run_with_any_tokenizer_exports_one_that_gives_the_ids_it_was_trained_on(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    (tmp_path / "given").mkdir()
    path = TOKENIZERS[kind](tmp_path / "given")
    given, folder = load_tokenizer(path), tmp_path / "run"
    settings = ["--max_steps", 2, "--save_steps", 2, "--tokenizer", path]
    ended = call(pretrain.main, *options(write(tmp_path, PLAIN), tmp_path / "prepared", folder, *settings))
    assert ended.code == 0, ended.err
    stock = AutoTokenizer.from_pretrained(folder / "generator", local_files_only=True)
    assert len(stock) == len(given)
    for text in (*TEXTS[:20], 'The Owl said: "naïve [MASK]" – 1,234 cafés, ½ ﬁsh & <mask> 你好 🦉.'):
        assert stock(text)["input_ids"] == given(text)["input_ids"]
    pair = stock("The owl sang.", "The fox ran.")
    special = special_ids(given)
    seps = [place for place, token in enumerate(pair["input_ids"]) if token == special.sep]
    assert (pair["input_ids"][0], len(seps), seps[-1]) == (special.cls, 2, len(pair["input_ids"]) - 1)
    assert pair["token_type_ids"] == [0] * (seps[0] + 1) + [1] * (seps[1] - seps[0])
    model = AutoModelForMaskedLM.from_pretrained(folder / "generator", local_files_only=True)
    assert model(input_ids=torch.tensor([pair["input_ids"]])).logits.shape[1:] == (seps[-1] + 1, len(given))
    cloze = write(tmp_path, f"The owl {given.mask_token} the river.\n", "cloze.txt")
    shown = call(demo.main, "--gen", folder, "--input", cloze, "--top_k", 3)
    assert (shown.code, shown.out.count("%") >= 3) == (0, True), shown.err
