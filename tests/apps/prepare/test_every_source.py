"""From every kind of corpus to a token store and a run: the same texts give the same tokens, however packed."""

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
from datasets import Dataset, DatasetDict

from electra_albert.apps.prepare import command as prepare
from electra_albert.apps.pretrain import main as pretrain
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call, english, options, rows

TEXTS = english(120, seed=4).strip().split("\n\n")
PLAIN = ("\n\n".join(TEXTS) + "\n").encode()
LINES = "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(TEXTS)).encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def write_csv(path: Path, column: str = "text") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", column], *([str(number), text] for number, text in enumerate(TEXTS))])
    return path


def write_parquet(path: Path) -> Path:
    table = pyarrow.table({"id": list(range(len(TEXTS))), "text": TEXTS})
    pyarrow.parquet.write_table(table, path, row_group_size=50)
    return path


def write_dataset(path: Path) -> Path:
    splits = {"train": Dataset.from_dict({"text": TEXTS}), "test": Dataset.from_dict({"text": ["Another text."]})}
    DatasetDict(splits).save_to_disk(str(path))
    return path


def write_folder(path: Path) -> Path:
    """Half of the documents as text, half as packed records."""
    path.mkdir()
    write(path / "a.txt", ("\n\n".join(TEXTS[:60]) + "\n").encode())
    write(path / "b.jsonl.gz", gzip.compress(b"\n".join(LINES.split(b"\n")[60:]), mtime=0))
    write(path / "picture.png", b"\x89PNG\r\n")
    return path


SOURCES: dict[str, Callable[[Path], Path]] = {
    "txt.xz": lambda folder: write(folder / "t.txt.xz", lzma.compress(PLAIN)),
    "jsonl": lambda folder: write(folder / "t.jsonl", LINES),
    "csv": lambda folder: write_csv(folder / "t.csv"),
    "parquet": lambda folder: write_parquet(folder / "t.parquet"),
    "saved dataset": lambda folder: write_dataset(folder / "t"),
    "glob": lambda folder: write_folder(folder / "t") / "*.*[tz]",
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
    for kind, make in {"txt": lambda folder: write(folder / "t.txt", PLAIN), **SOURCES}.items():
        (tmp_path / kind).mkdir()
        ended = prepared(finished, make(tmp_path / kind), tmp_path / kind)
        assert ended.code == 0, ended.err
        found[kind] = tokens(tmp_path / kind)
    assert [kind for kind in found if found[kind] != found["txt"]] == []


@pytest.mark.slow
def test_a_mixture_trains_on_its_sources_by_weight(finished: Finished, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", LINES)
    write(tmp_path / "b.txt", english(60, seed=8).encode())
    listed = write(tmp_path / "mix.yaml", b"- {corpus: a.jsonl, weight: 1}\n- {corpus: b.txt, weight: 3}\n")

    def run(steps: int) -> Ended:
        settings = ["--max_steps", steps, "--save_steps", 2, "--tokenizer", finished.folder / "tokenizer"]
        return call(pretrain.main, *options(listed, tmp_path / "prepared", tmp_path / "run", *settings))

    assert run(2).code == 0
    (receipt,) = (tmp_path / "prepared").glob("mix-*/store/manifest.json")
    sides = json.loads(receipt.read_text())["receipt"]["sides"]
    assert len(sides["train"]["source_ends"]) == 2
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


@pytest.mark.parametrize("bad_utf8", ["replace", "skip", "error"])
def test_bytes_that_are_not_utf8_become_what_was_asked_for(finished: Finished, tmp_path: Path, bad_utf8: str) -> None:
    corpus = write(tmp_path / "t.txt", PLAIN + b"Two b\xffd lines.\nAnother \xc3\x28.\n")
    ended = prepared(finished, corpus, tmp_path, "--bad_utf8", bad_utf8)
    if bad_utf8 == "error":
        assert_refused(ended, 3, f"line {len(PLAIN.splitlines()) + 1}", "0xff")
    else:
        counted = "2 skipped lines" if bad_utf8 == "skip" else "2 invalid bytes"
        assert (ended.code, counted in ended.err) == (0, True), ended.err


def test_two_columns_of_one_table_are_two_texts(finished: Finished, tmp_path: Path) -> None:
    half = len(TEXTS) // 2
    pyarrow.parquet.write_table(pyarrow.table({"a": TEXTS[:half], "b": TEXTS[half:]}), tmp_path / "t.parquet")
    entries = [f"- {{corpus: t.parquet, text_column: {name}, weight: {weight}}}\n" for name, weight in ("a1", "b2")]
    ended = prepared(finished, write(tmp_path / "s.yaml", "".join(entries).encode()), tmp_path)
    assert (ended.code, f"documents       {len(TEXTS)}\n" in ended.err) == (0, True), ended.err


def test_a_file_in_two_sources_is_read_once_and_counted_or_refused(finished: Finished, tmp_path: Path) -> None:
    write(tmp_path / "t.txt", PLAIN)
    twice = write(tmp_path / "s.yaml", b"- {corpus: t.txt}\n- {corpus: ./t.txt}\n")
    ended = prepared(finished, twice, tmp_path)
    assert (ended.code, "1 repeated files skipped" in ended.err) == (0, True), ended.err
    weighted = write(tmp_path / "w.yaml", b"- {corpus: t.txt, weight: 1}\n- {corpus: ./t.txt, weight: 2}\n")
    assert_refused(prepared(finished, weighted, tmp_path), 3, "two sources")
