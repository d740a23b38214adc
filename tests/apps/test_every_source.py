"""From every kind of corpus to a trained run: the same sentences give the same tokens, however they are packed."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_albert.apps.prepare import command as prepare
from electra_albert.apps.pretrain import main as pretrain
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, english, options, rows

DOCUMENTS = [text.split("\n") for text in english(120, seed=4).strip().split("\n\n")]
TEXTS = ["\n".join(sentences) for sentences in DOCUMENTS]
NEWLINE = b"\n"
PLAIN = ("\n\n".join(TEXTS) + "\n").encode()


def write_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def as_jsonl(key: str = "text") -> bytes:
    return "".join(json.dumps({"id": number, key: text}) + "\n" for number, text in enumerate(TEXTS)).encode()


def write_table(path: Path, delimiter: str, column: str = "text") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([["id", column], *([str(number), text] for number, text in enumerate(TEXTS))])
    return path


def write_zst(path: Path, content: bytes) -> Path:
    import pyarrow

    with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
        file.write(content)
    return path


def write_parquet(path: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"id": list(range(len(TEXTS))), "text": TEXTS})
    pyarrow.parquet.write_table(table, path, row_group_size=50)
    return path


def write_dataset(path: Path, *, has_splits: bool) -> Path:
    from datasets import Dataset, DatasetDict

    made = Dataset.from_dict({"text": TEXTS})
    other = Dataset.from_dict({"text": ["Another text altogether."]})
    (DatasetDict({"train": made, "test": other}) if has_splits else made).save_to_disk(str(path))
    return path


def write_folder(path: Path) -> Path:
    """Half of the documents as text, half as packed records."""
    path.mkdir()
    (path / "a.txt").write_bytes(("\n\n".join(TEXTS[:60]) + "\n").encode())
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[60:])
    (path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    (path / "picture.png").write_bytes(b"\x89PNG\r\n")
    return path


SOURCES: dict[str, Callable[[Path], Path]] = {
    "txt": lambda folder: write_bytes(folder / "t.txt", PLAIN),
    "txt.gz": lambda folder: write_bytes(folder / "t.txt.gz", gzip.compress(PLAIN, mtime=0)),
    "txt.bz2": lambda folder: write_bytes(folder / "t.txt.bz2", bz2.compress(PLAIN)),
    "txt.xz": lambda folder: write_bytes(folder / "t.txt.xz", lzma.compress(PLAIN)),
    "txt.zst": lambda folder: write_zst(folder / "t.txt.zst", PLAIN),
    "jsonl": lambda folder: write_bytes(folder / "t.jsonl", as_jsonl()),
    "jsonl.xz": lambda folder: write_bytes(folder / "t.jsonl.xz", lzma.compress(as_jsonl())),
    "csv": lambda folder: write_table(folder / "t.csv", ","),
    "csv.gz": lambda folder: write_bytes(
        folder / "t.csv.gz", gzip.compress(write_table(folder / "t.csv", ",").read_bytes(), mtime=0)
    ),
    "tsv": lambda folder: write_table(folder / "t.tsv", "\t"),
    "ndjson": lambda folder: write_bytes(folder / "t.ndjson", as_jsonl()),
    "arrow": lambda folder: next(write_dataset(folder / "t", has_splits=False).glob("*.arrow")),
    "parquet": lambda folder: write_parquet(folder / "t.parquet"),
    "dataset folder": lambda folder: write_dataset(folder / "t", has_splits=False),
    "dataset folder with splits": lambda folder: write_dataset(folder / "t", has_splits=True),
    "folder": lambda folder: write_folder(folder / "t"),
    "glob": lambda folder: write_folder(folder / "t") / "*.*[tz]",
}


def run(finished: Finished, corpus: Path, folder: Path, *more: object) -> Path:
    """A short run on the corpus with the tokenizer of the shared one."""
    settings = ["--max_steps", 2, "--save_steps", 2, "--tokenizer", finished.folder / "tokenizer", *more]
    ended = call(pretrain.main, *options(corpus, folder / "prepared", folder / "run", *settings))
    assert ended.code == 0, ended.err
    assert [row["step"] for row in rows(folder / "run") if "loss" in row] == [1, 2]
    return folder / "prepared"


def tokens(prepared: Path) -> bytes:
    """What there is to train on and what is held out."""
    (store,) = prepared.glob("*/store")
    return b"".join((store / side / "tokens.bin").read_bytes() for side in ("train", "validation"))


@pytest.fixture(scope="module")
def expected(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("plain")
    corpus = write_bytes(folder / "t.txt", PLAIN)
    argv = options(corpus, folder / "prepared", None, "--tokenizer", finished.folder / "tokenizer", "--dry_run")
    assert call(pretrain.main, *argv).code == 0
    return tokens(folder / "prepared")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES)
def test_a_run_on_any_kind_of_source_trains_on_the_same_tokens(
    kind: str, finished: Finished, tmp_path: Path, expected: bytes
) -> None:
    assert tokens(run(finished, SOURCES[kind](tmp_path), tmp_path)) == expected


@pytest.mark.slow
def test_a_mixture_trains_on_its_sources_by_weight(finished: Finished, tmp_path: Path) -> None:
    write_bytes(tmp_path / "a.jsonl", as_jsonl())
    write_bytes(tmp_path / "b.txt", english(60, seed=8).encode())
    listed = write_bytes(tmp_path / "mix.yaml", b"- {corpus: a.jsonl, weight: 1}\n- {corpus: b.txt, weight: 3}\n")
    run(finished, listed, tmp_path)
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
    again = call(
        pretrain.main,
        *options(
            listed, tmp_path / "prepared", tmp_path / "run", "--max_steps", 2, "--save_steps", 2,
            "--tokenizer", finished.folder / "tokenizer",
        ),
    )  # fmt: skip
    assert again.code == 0, again.err
    listed.write_text("- {corpus: a.jsonl, weight: 1}\n- {corpus: b.txt, weight: 2}\n")
    other = options(
        listed, tmp_path / "prepared", tmp_path / "run", "--max_steps", 3, "--tokenizer", finished.folder / "tokenizer"
    )
    assert_refused(call(pretrain.main, *other), 4, "mix.yaml", "weights")


def test_a_column_that_is_not_there_is_refused_with_those_that_are(finished: Finished, tmp_path: Path) -> None:
    for corpus in (write_table(tmp_path / "t.csv", ",", "body"), write_bytes(tmp_path / "t.jsonl", as_jsonl("body"))):
        argv = ["--corpus", corpus, "--prepared_dir", tmp_path / "p", "--tokenizer", finished.folder / "tokenizer"]
        assert_refused(call(prepare.main, *argv), 3, "text", "body", "--text_column")


@pytest.mark.parametrize("bad_utf8", ["replace", "skip", "error"])
def test_bytes_that_are_not_utf8_become_what_was_asked_for(finished: Finished, tmp_path: Path, bad_utf8: str) -> None:
    corpus = write_bytes(tmp_path / "t.txt", PLAIN + b"Two b\xffd lines.\nAnother \xc3\x28.\n")
    argv = ["--corpus", corpus, "--prepared_dir", tmp_path / "p", "--tokenizer", finished.folder / "tokenizer"]
    ended = call(prepare.main, *argv, "--bad_utf8", bad_utf8)
    if bad_utf8 == "error":
        assert_refused(ended, 3, f"line {PLAIN.count(NEWLINE) + 1}", "0xff")
    elif bad_utf8 == "skip":
        assert (ended.code, "2 lines that are not UTF-8" in ended.out) == (0, True), ended.out
    else:
        assert (ended.code, "2 invalid UTF-8 bytes replaced" in ended.out) == (0, True), ended.out


@pytest.mark.parametrize("weights", [("", ""), (", weight: 1", ", weight: 2")])
def test_two_columns_of_one_table_are_two_texts(finished: Finished, tmp_path: Path, weights: tuple[str, str]) -> None:
    import pyarrow
    import pyarrow.parquet

    half = len(TEXTS) // 2
    pyarrow.parquet.write_table(pyarrow.table({"a": TEXTS[:half], "b": TEXTS[half:]}), tmp_path / "t.parquet")
    entries = [f"- {{corpus: t.parquet, text_column: {name}{weights[at]}}}\n" for at, name in enumerate("ab")]
    listed = write_bytes(tmp_path / "s.yaml", "".join(entries).encode())
    argv = ["--prepared_dir", tmp_path / "p", "--tokenizer", finished.folder / "tokenizer"]
    ended = call(prepare.main, "--corpus", listed, *argv)
    assert (ended.code, f"documents       {len(TEXTS)}\n" in ended.out) == (0, True), ended.out + ended.err


def test_a_file_in_two_sources_is_read_once_and_counted_or_refused(finished: Finished, tmp_path: Path) -> None:
    write_bytes(tmp_path / "t.txt", PLAIN)
    argv = ["--prepared_dir", tmp_path / "p", "--tokenizer", finished.folder / "tokenizer"]
    twice = write_bytes(tmp_path / "s.yaml", b"- {corpus: t.txt}\n- {corpus: ./t.txt}\n")
    ended = call(prepare.main, "--corpus", twice, *argv)
    assert (ended.code, "1 files named twice" in ended.out) == (0, True), ended.out
    weighted = write_bytes(tmp_path / "w.yaml", b"- {corpus: t.txt, weight: 1}\n- {corpus: ./t.txt, weight: 2}\n")
    assert_refused(call(prepare.main, "--corpus", weighted, *argv), 3, "two sources")


def test_a_hub_dataset_without_a_network_is_refused_in_one_line(finished: Finished, tmp_path: Path) -> None:
    argv = [
        "--corpus",
        "nobody/nothing",
        "--prepared_dir",
        tmp_path / "p",
        "--tokenizer",
        finished.folder / "tokenizer",
    ]
    assert_refused(call(prepare.main, *argv), 2, "nobody/nothing")
