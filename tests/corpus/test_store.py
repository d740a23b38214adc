"""The token store: whole, the same however it was built, held out by document, never read when damaged."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.parts import PartPlan, missing_parts, token_dtype, write_parts
from electra_albert.corpus.sources import find_files, plan_units
from electra_albert.corpus.statistics import format_statistics
from electra_albert.corpus.store import SIDES, TokenStream, build_store, open_store
from electra_albert.corpus.tokenizer import train_tokenizer
from electra_albert.corpus.word_encoder import TextEncoder, encoder_settings
from tests.corpus.building import build, document, stored_bytes, write_corpus


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(
        [sentence for number in range(50) for sentence in document(number)], 200, True, keep_accents=False
    )


def documents_in(stream: TokenStream) -> list[list[int]]:
    return [piece.tolist() for piece in np.split(stream.tokens, stream.document_ends[:-1])]


def sentences_in(stream: TokenStream) -> list[list[int]]:
    return [piece.tolist() for piece in np.split(stream.tokens, stream.sentence_ends[:-1])]


def is_whole(expected: list[list[int]], train: list[list[int]], validation: list[list[int]]) -> bool:
    """Law 7: every document stands on one side, unchanged, and either side is in the corpus's order."""
    position = {tuple(found): place for place, found in enumerate(expected)}
    places = [[position.get(tuple(found), -1) for found in side] for side in (train, validation)]
    return sorted(places[0] + places[1]) == list(range(len(expected))) and all(side == sorted(side) for side in places)


def test_no_text_is_lost(tokenizer: Any, tmp_path: Path) -> None:
    documents = [document(number, 1 + number % 5) for number in range(150)]
    store = build(write_corpus(tmp_path / "corpus", documents), tokenizer, tmp_path / "store")
    encoder = TextEncoder(encoder_settings(tokenizer))
    expected = [encoder.encode(sentences)[0].tolist() for sentences in documents]
    train, validation = documents_in(store.train), documents_in(store.validation)
    assert is_whole(expected, train, validation)
    assert not is_whole(expected, train[:-1], validation)  # planted faults: a document dropped, one cut short
    assert not is_whole(expected, [*train[:-1], train[-1][:-1]], validation)
    stored = sentences_in(store.train) + sentences_in(store.validation)
    one_by_one = [encoder.encode([sentence])[0].tolist() for sentences in documents for sentence in sentences]
    assert sorted(stored) == sorted(one_by_one)
    assert store.statistics["kept"] == 1
    assert store.statistics["read"]["sentences"] == store.statistics["written"]["sentences"] == len(one_by_one)
    assert store.statistics["written"]["documents"] == 150


def test_text_without_tokens_is_counted_and_leaves_no_trace(tokenizer: Any, tmp_path: Path) -> None:
    documents = [document(number) for number in range(120)]
    clean = build(write_corpus(tmp_path / "clean", documents, 1), tokenizer, tmp_path / "a")
    bare = ["\u0301", "\u0302"]  # accents alone, which the normaliser strips
    documents[5:5] = [bare]
    documents[9] = [*documents[9][:1], "\u0301", *documents[9][1:]]
    store = build(write_corpus(tmp_path / "accents", documents, 1), tokenizer, tmp_path / "b")
    assert sentences_in(store.train) + sentences_in(store.validation) == sentences_in(clean.train) + sentences_in(
        clean.validation
    )
    assert len(store.train.document_ends) + len(store.validation.document_ends) == 120
    assert store.statistics["written"]["sentences_without_a_token"] == 3
    assert store.statistics["written"]["documents_without_a_token"] == 1
    assert "sentences without a token" in format_statistics(store.statistics, 0.0)


@pytest.mark.slow
def test_interrupted_build_continues_with_the_missing_parts(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    units = write_corpus(tmp_path / "corpus", [document(number) for number in range(150)])
    build(units, tokenizer, tmp_path / "one_shot", num_workers=2)  # the number of processes changes no byte
    last = Path(units[-1].spans[0].path)
    last.rename(last.with_suffix(".away"))
    with pytest.raises(UsageError):
        build(units, tokenizer, tmp_path / "store")
    parts = tmp_path / "store" / "parts"
    assert not (tmp_path / "store" / "manifest.json").exists()
    kept = (parts / "000000.json").read_bytes()
    (parts / "000001.tokens").write_bytes(b"x")  # a part cut short by a full disk, say, does not count
    last.with_suffix(".away").rename(last)
    caplog.set_level("INFO", logger="electra_albert")
    store = build(units, tokenizer, tmp_path / "store")
    assert caplog.messages[0].startswith("1 of 3 parts")
    assert stored_bytes(tmp_path / "store") == stored_bytes(tmp_path / "one_shot")
    assert json.loads(kept)["written"]["tokens"] < store.statistics["written"]["tokens"]
    assert not parts.exists()


def test_parts_of_another_tokenizer_or_corpus_are_not_used(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    units = write_corpus(tmp_path / "corpus", [document(number) for number in range(150)])
    last = Path(units[-1].spans[0].path)
    text = last.read_bytes()
    last.unlink()
    with pytest.raises(UsageError):
        build(units, tokenizer, tmp_path / "store", fingerprint="another")
    last.write_bytes(text)
    caplog.set_level("INFO", logger="electra_albert")
    build(units, tokenizer, tmp_path / "store")
    assert caplog.messages == []


def test_each_source_ends_where_its_last_token_stands(tokenizer: Any, tmp_path: Path) -> None:
    units = write_corpus(tmp_path / "corpus", [document(number) for number in range(400)], 4)
    store = build(units, tokenizer, tmp_path / "store", sources=[0, 0, 1, 2])
    one = build(units[:2], tokenizer, tmp_path / "one")
    assert np.array_equal(store.token_counts, np.bincount(store.train.tokens, minlength=len(tokenizer)))
    ends = store.statistics["sides"]["train"]["source_ends"]
    assert (len(ends), ends[-1]) == (3, len(store.train.tokens))
    assert store.train.tokens[: ends[0]].tolist() == one.train.tokens.tolist()
    assert store.source_starts == [0, *ends[:-1]]
    assert sorted(ends) == ends


def test_a_share_of_the_parts_leaves_the_others_missing(tokenizer: Any, tmp_path: Path) -> None:
    units = write_corpus(tmp_path / "corpus", [document(number) for number in range(150)], 5)
    plan = PartPlan(units, encoder_settings(tokenizer), tmp_path / "parts", "f", token_dtype(len(tokenizer)))
    write_parts(plan, [1, 4], 1)
    assert missing_parts(plan) == [0, 2, 3]
    with pytest.raises(UsageError, match="part 0"):
        build_store(plan, tmp_path, sources=[0] * 5, vocab_size=len(tokenizer), seed=3, found=Counter())


@pytest.mark.parametrize(("documents", "sentences", "held"), [(1, 2, 1), (1, 500, 5), (99, 3, 3)])
def test_few_documents_hold_out_the_last_sentences(
    tokenizer: Any, tmp_path: Path, documents: int, sentences: int, held: int
) -> None:
    texts = [document(number, sentences) for number in range(documents)]
    store = build(write_corpus(tmp_path / "corpus", texts, 1), tokenizer, tmp_path / "store")
    every = [sentence for text in texts for sentence in text]
    expected = [TextEncoder(encoder_settings(tokenizer)).encode([sentence])[0].tolist() for sentence in every]
    assert sentences_in(store.train) + sentences_in(store.validation) == expected
    assert len(store.validation.sentence_ends) == held
    assert "last" in store.statistics["held_out"]
    for stream in (store.train, store.validation):
        assert stream.document_ends[-1] == stream.sentence_ends[-1] == len(stream.tokens)


def test_one_sentence_is_too_little(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="single sentence"):
        build(write_corpus(tmp_path / "corpus", [document(1, 1)], 1), tokenizer, tmp_path / "store")


def test_ids_fit_the_width_of_the_stored_integers() -> None:
    for vocab_size, name in {100: "uint16", 65_536: "uint16", 65_537: "uint32"}.items():
        assert token_dtype(vocab_size) == np.dtype(name)
        assert np.iinfo(token_dtype(vocab_size)).max >= vocab_size - 1


def cut_bytes(file: Path, count: int = 1) -> None:
    file.write_bytes(file.read_bytes()[:-count])


def flip_bit(file: Path) -> None:
    """Change a bit, and neither the size nor the time that a file system lets users set."""
    content, before = bytearray(file.read_bytes()), file.stat()
    content[len(content) // 2] ^= 128
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_in(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "one bit of the tokens": lambda folder: flip_bit(folder / "train" / "tokens.bin"),
    "one bit of the ends": lambda folder: flip_bit(folder / "train" / "sentence_ends.bin"),
    "statistics of other numbers": lambda folder: replace_in(
        folder / "manifest.json", '"unknown_tokens": ', '"unknown_tokens": 1'
    ),
    "tokens cut short": lambda folder: cut_bytes(folder / "train" / "tokens.bin"),
    "file missing": lambda folder: (folder / "token_counts.bin").unlink(),
    "manifest cut short": lambda folder: cut_bytes(folder / "manifest.json", 2),
    "manifest of a later format": lambda folder: replace_in(
        folder / "manifest.json", '"format_version": 3', '"format_version": 4'
    ),
    "manifest is a list": lambda folder: (folder / "manifest.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_store_is_refused_in_one_line(tokenizer: Any, tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    build(write_corpus(tmp_path / "corpus", [document(1)], 1), tokenizer, tmp_path / "store")
    damage(tmp_path / "store")
    with pytest.raises(CheckpointError) as raised:
        open_store(tmp_path / "store")
    assert "\n" not in str(raised.value)


def test_missing_store_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no token store"):
        open_store(tmp_path)


def test_the_seed_chooses_what_is_held_out_and_rebuilding_leaves_nothing_of_before(
    tokenizer: Any, tmp_path: Path
) -> None:
    units = write_corpus(tmp_path / "corpus", [document(number) for number in range(200)])
    first = np.array(build(units, tokenizer, tmp_path / "store", seed=1).validation.tokens)
    stale = tmp_path / "store" / SIDES[0] / "rows-of-older-store.bin"
    stale.write_bytes(b"x")
    second = build(units, tokenizer, tmp_path / "store", seed=2).validation.tokens
    assert not np.array_equal(first, second)
    assert not stale.exists()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tokenizer: Any, tmp_path: Path) -> None:
    """Catches a merge or a worker that gathers a whole corpus before it writes."""

    def peak(repeats: int) -> int:
        folder = tmp_path / str(repeats)
        documents = [document(number) for number in range(2_000)] * repeats
        write_corpus(folder / "corpus", documents, 1)
        units = plan_units(find_files(str(folder / "corpus"), Counter()), unit_bytes=1 << 18)
        del documents
        tracemalloc.start()
        build(units, tokenizer, folder / "store")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(10) < 1.2 * peak(2)
