"""The token store: complete, however it was built or interrupted, and refused if damaged."""

import json
import os
import shutil
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from electra_albert import files
from electra_albert.contracts import SpecialIds
from electra_albert.corpus import held_out
from electra_albert.corpus.examples import PackedExamples
from electra_albert.corpus.parts import token_dtype, write_parts
from electra_albert.corpus.rows import TokenStream, build_table
from electra_albert.corpus.sources import plan_units, read_unit
from electra_albert.corpus.store import (
    Store,
    format_statistics,
    merge_parts,
    open_store,
    split_parts,
)
from electra_albert.data_files.finding import find_files
from electra_albert.data_files.streams import MAX_LINE_BYTES
from electra_albert.files import sha256
from electra_albert.tokenization.text_encoder import TextEncoder
from tests.corpus.reading import build, document, joined, plan_parts, write, write_corpus
from tests.refusals import assert_refused


def cut_at(stream: TokenStream, ends: np.ndarray) -> list[list[int]]:
    return [tokens.tolist() for tokens in np.split(stream.tokens, ends[:-1])]


def sentences_in(store: Store) -> list[list[int]]:
    train, validation = map(joined, (store.train, store.validation))
    sentences = cut_at(train, train.sentence_ends)
    return sentences + cut_at(validation, validation.sentence_ends)


def build_corpus(
    folder: Path, tokenizer: Any, documents: int | list[list[str]], files: int = 1, **how: Any
) -> Store:
    """A store in `folder` of these documents, or of as many different ones."""
    return build(write_corpus(folder / "corpus", documents, files), tokenizer, folder, **how)


def test_no_text_is_lost(tokenizer: Any, tmp_path: Path) -> None:
    documents = [document(number, 1 + number % 5) for number in range(150)]
    store = build_corpus(tmp_path, tokenizer, documents, 3)
    encoder = TextEncoder(tokenizer)
    encoded = [encoder.encode(sentences) for sentences in documents]
    texts = [np.concatenate(sentences).tolist() for sentences in encoded]
    written = []
    for stream in map(joined, (store.train, store.validation)):
        numbers = list(map(texts.index, cut_at(stream, stream.document_ends)))
        assert numbers == sorted(numbers), "documents are not in the order of the corpus"
        written += numbers
    assert sorted(written) == [*range(150)]
    sentences = [ids.tolist() for texts in encoded for ids in texts]
    assert sorted(sentences_in(store)) == sorted(sentences)
    statistics = store.statistics
    assert statistics["kept"] == 1
    assert statistics["read"]["sentences"] == len(sentences)
    for name, count in {"documents": 150, "sentences": len(sentences)}.items():
        assert statistics["written"][name] == count
        assert sum(split[name] for split in statistics["sides"].values()) == count
    counts = np.bincount(joined(store.train).tokens, minlength=len(tokenizer))
    assert np.array_equal(store.token_counts, counts)


def test_a_document_that_the_split_cuts_ends_in_both_splits(tokenizer: Any, tmp_path: Path) -> None:
    store = build_corpus(tmp_path, tokenizer, [document(0, 100), document(1, 100)])
    assert [split["documents"] for split in store.statistics["sides"].values()] == [2, 1]
    for split in (store.train, store.validation):
        (part,) = split.parts
        assert part.document_ends[-1] == part.sentence_ends[-1] == len(part.tokens)


def test_text_without_tokens_is_counted_and_changes_nothing_else(
    tokenizer: Any, tmp_path: Path
) -> None:
    documents = [document(number) for number in range(120)]
    clean = build_corpus(tmp_path / "clean", tokenizer, documents)
    documents[5:5] = [["\u0301", "\u0302"]]  # accents alone, which the normalizer strips
    documents[9] = [*documents[9][:1], "\u0301", *documents[9][1:]]
    store = build_corpus(tmp_path / "accents", tokenizer, documents)
    assert sentences_in(store) == sentences_in(clean)
    assert sum(side["documents"] for side in store.statistics["sides"].values()) == 120
    lines = format_statistics(store.statistics, 0.0)
    assert "3 sentences without a token" in lines
    assert "1 documents without a token" in lines


def test_each_part_belongs_to_its_source(tokenizer: Any, tmp_path: Path) -> None:
    store = build_corpus(tmp_path, tokenizer, 200, 4, sources=[0, 0, 1, 2])
    assert store.train.sources == [0, 0, 1, 2]
    counts = [len(part.tokens) for part in store.train.parts]
    source_tokens = store.statistics["sides"]["train"]["source_tokens"]
    assert source_tokens == [sum(counts[:2]), *counts[2:]]


def test_text_and_split_do_not_depend_on_how_the_corpus_is_cut_into_parts(
    tokenizer: Any, tmp_path: Path
) -> None:
    # Over 1 MiB: several batches in one part.
    one, three = (build_corpus(tmp_path / str(n), tokenizer, 6_000, n) for n in (1, 3))
    assert len(one.train.parts) == 1
    assert len(three.train.parts) == 3
    for first, second in ((one.train, three.train), (one.validation, three.validation)):
        assert all(map(np.array_equal, joined(first), joined(second)))


def test_parts_without_text_change_nothing(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = write_corpus(tmp_path / "corpus", 300, 2)
    # Accents, which the normalizer strips.
    empty = plan_units([write(tmp_path, "\u0301\n\n\u0302\n", "empty.txt")])
    for most in (1 << 18, 100):  # all documents are compared, or a sample
        monkeypatch.setattr(held_out, "MAX_DOCUMENTS", most)
        folder = tmp_path / str(most)
        alone = build(units, tokenizer, folder / "a")
        store = build([units[0], *empty, units[1], *empty], tokenizer, folder / "b")
        assert store.train.numbers == [0, 2]
        assert sentences_in(store) == sentences_in(alone)
        counts = [each.statistics["read"] for each in (alone, store)]
        skipped = {each["near_duplicates_of_held_out_text_skipped"] for each in counts}
        assert (skipped == {0}) == (alone.statistics["kept"] == 1)
        assert len(skipped) == 1
    last = build([units[0], *empty], tokenizer, tmp_path / "last", sources=[0, 1])
    assert last.train.numbers == [0], "a source without text"


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_a_store_of_many_parts_keeps_no_file_open(tokenizer: Any, tmp_path: Path) -> None:
    # Regression: eight files per part, above 1,024 with one gigabyte of text.
    before = len(os.listdir("/proc/self/fd"))
    store = build_corpus(tmp_path, tokenizer, 200, 20)
    table = build_table(store.train, 32, 3)
    assert len(store.train.parts) == 20
    assert len(table.edges) == 20
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_the_merge_reads_no_text_unless_a_part_has_changed(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = write_corpus(tmp_path / "corpus", 30)
    plan = plan_parts(units, tokenizer, tmp_path / "whole")
    write_parts(plan, range(3), 1)
    split_parts(plan, range(3), 1)
    shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    hashed = []
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path.name) or sha256(path))
    write_parts(plan, range(3), 1)
    build_table(merge_parts(plan, Counter()).train, 32, 3)
    assert [name for name in hashed if not name.startswith("held_out")] == ["token_counts.bin"]
    changed = tmp_path / "damaged" / "train" / "000001.tokens.bin"
    changed.write_bytes(changed.read_bytes()[:-1] + b"\xff")
    damaged = plan_parts(units, tokenizer, tmp_path / "damaged")
    assert_refused("CheckpointError", changed.name, merge_parts, damaged, Counter())


def test_ids_fit_the_stored_integer_type() -> None:
    assert [token_dtype(size) for size in (100, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tokenizer: Any, tmp_path: Path) -> None:
    def peak(repeats: int) -> int:
        folder = tmp_path / str(repeats)
        write_corpus(folder / "corpus", [document(number) for number in range(2_000)] * repeats, 1)
        units = plan_units(find_files(str(folder / "corpus"), Counter()), unit_bytes=1 << 18)
        tracemalloc.start()
        build(units, tokenizer, folder / "store")
        actual = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return actual

    _, few, many = map(peak, (1, 2, 10))  # the first one imports scipy
    assert many < 1.2 * few


def test_damaged_store_is_refused_in_one_line(tokenizer: Any, tmp_path: Path) -> None:
    assert_refused("UsageError", str(tmp_path), open_store, tmp_path)
    build_corpus(tmp_path, tokenizer, 1)
    manifest = (tmp_path / "manifest.json").read_text()
    for text in ('"unknown_tokens": ', '"format_version": ', "{"):
        write(tmp_path, manifest.replace(text, f"{text}9"), "manifest.json")
        assert_refused("CheckpointError", "", open_store, tmp_path)
    write(tmp_path, manifest, "manifest.json")
    (tmp_path / "token_counts.bin").unlink()
    assert_refused("CheckpointError", "", open_store, tmp_path)


@pytest.mark.parametrize("name", ["tokens", "sentence_ends", "document_ends"])
def test_damage_that_size_and_times_do_not_show_is_noticed_in_reading(
    tokenizer: Any, tmp_path: Path, name: str
) -> None:
    build_corpus(tmp_path, tokenizer, 40)
    file = tmp_path / "train" / f"000000.{name}.bin"
    content = file.read_bytes()
    file.write_bytes(b"\xff" * len(content) if name == "tokens" else content[8:16] + content[8:])
    stat = file.stat()
    note = tmp_path / "checked.json"
    checked = json.loads(note.read_text())
    checked[f"train/{file.name}"][1:] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    note.write_text(json.dumps(checked))
    split = open_store(tmp_path).train
    special = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, never_masked=())
    examples = PackedExamples(split, build_table(split, 32, 3), 32, 3, special)
    index = torch.arange(examples.table.count)
    assert_refused("CheckpointError", "--verify", examples.gather, index, index)


def test_the_kept_share_is_rounded_down_and_every_count_is_printed(tmp_path: Path) -> None:
    # Catches a count of skipped or changed text that is not printed.
    good = b"A good line of text, once more.\n" * 200
    bad = b"\xff\xef\xbb\xbfbad.\nNUL\0byte.\n" + b"x" * (MAX_LINE_BYTES + 9)
    write(tmp_path, good + bad, "a.txt")
    write(tmp_path, '{"text": "One. Two."}\n{"text": null}\n', "b.jsonl")
    for name in ("f.txt", "g.gif", ".hidden"):
        write(tmp_path, "", name)
    (tmp_path / "h.txt").symlink_to(tmp_path / "a.txt")
    counts = Counter(odd_things=7, other_things=0)
    for unit in plan_units(find_files(str(tmp_path), counts)):
        assert list(read_unit(unit, counts))
    side = {"documents": 1, "sentences": 2, "tokens": 50}
    written = {"documents": 2, "tokens": 100, "unknown_tokens": 3}
    written |= {"characters": 400, "unknown_characters": 200}
    statistics = {"read": counts, "written": written, "sides": {"train": side}}
    statistics |= {"held_out": "by document", "process_seconds": 2.0}
    for remaining, percent in ((1, "100%"), (0.99999, "99.99%")):
        text = format_statistics(statistics | {"kept": remaining}, padding_share=0.1)
        assert f"({percent} of the text kept)" in text
    # Regression: "100% of the text kept" with 8% unknown tokens that replaced half of the text.
    assert all(part in text for part in ("50.000% of the characters", "7 odd things"))
    assert "other things" not in text
    skipped = sum(count > 0 for name, count in counts.items() if "skip" in name)
    assert text.count("\n  skipped") == text.count("skipped") >= skipped > 3  # once a line
