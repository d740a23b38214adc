"""Preparing a corpus: made once, reused while nothing changed, never reused when something did."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from electra_albert.apps.prepare.main import Prepared, ShardConfig, prepare, prepare_shard
from electra_albert.config import CorpusConfig
from electra_albert.contracts import CheckpointError, DataError, UsageError, UserError
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.corpus.tokenizer_extension import extend_tokenizer
from tests.apps.tiny_run import finish, start

TEXT = "river bridge house people night water road hill moon dog stone wind old new great small sang fell"
WORDS = TEXT.split()


@pytest.fixture
def config(tmp_path: Path) -> CorpusConfig:
    draw = np.random.default_rng(1).integers(len(WORDS), size=(40, 3, 9))
    text = "\n\n".join("\n".join(" ".join(WORDS[w] for w in row) + "." for row in d) for d in draw)
    (tmp_path / "corpus.txt").write_text(text + "\n", encoding="utf-8")
    return CorpusConfig(
        corpus=str(tmp_path / "corpus.txt"),
        vocab_size=60,
        max_seq_length=32,
        prepared_dir=str(tmp_path / "prepared"),
        preprocessing_num_workers=1,
    )


def run(config: CorpusConfig, seed: int = 1) -> tuple[Prepared, str]:
    said: list[str] = []
    return prepare(config, seed), "\n".join(said)


def rewrite(config: CorpusConfig, change: Callable[[str], str]) -> CorpusConfig:
    """Change the corpus but keep its size and time: only its content tells."""
    path = Path(config.corpus)
    before = path.stat()
    path.write_text(change(path.read_text()), encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return config


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "id,body\n1,One.\n"), ("a.jsonl", '{"body": "One."}\n'), ("a.tsv", "id\tbody\n1\tOne.\n")],
)
def test_a_column_that_is_not_there_is_refused_before_anything_is_read_at_length(
    config: CorpusConfig, tmp_path: Path, name: str, content: str
) -> None:
    # Regression: the files were hashed and the training of a tokenizer begun first.
    (tmp_path / name).write_text(content)
    said: list[str] = []
    with pytest.raises(DataError, match="column 'text' is not there"):
        prepare(replace(config, corpus=str(tmp_path / name)), 1)
    assert said == []
    assert not list(Path(config.prepared_dir).glob("*/corpus.json"))


def test_first_run_prints_the_receipt_and_the_next_one_reuses_everything(config: CorpusConfig) -> None:
    first, said = run(config)
    assert "100% of the text kept" in said
    assert "padding" in said
    again, said = run(config)
    assert "using the token store" in said
    assert "training a tokenizer" not in said
    assert again.folder == first.folder
    assert np.array_equal(again.store.train.tokens, first.store.train.tokens)
    assert again.train_table.count == first.train_table.count > 0 < first.validation_table.count


CHANGES: dict[str, Callable[[CorpusConfig], tuple[CorpusConfig, int]]] = {
    "corpus": lambda config: (rewrite(config, lambda text: text.replace("river", "lover")), 1),
    "vocabulary": lambda config: (replace(config, vocab_size=50), 1),
    "case": lambda config: (replace(config, do_lower_case=False), 1),
    "seed": lambda config: (config, 2),
    "invalid bytes": lambda config: (replace(config, bad_utf8="skip"), 1),
    "column": lambda config: (replace(config, text_column="body"), 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_changed_is_never_served_from_the_old_store(
    config: CorpusConfig, change: Callable[[CorpusConfig], tuple[CorpusConfig, int]]
) -> None:
    first, _ = run(config)
    other, said = run(*change(config))
    assert "using the token store" not in said
    assert other.folder != first.folder


def test_given_tokenizer_is_used_and_a_changed_one_is_not_mistaken_for_it(config: CorpusConfig, tmp_path: Path) -> None:
    first, _ = run(config)
    given = replace(config, tokenizer=str(first.tokenizer_dir), vocab_size=9_999)
    second, said = run(given)
    assert "training a tokenizer" not in said
    assert len(second.tokenizer) == len(first.tokenizer)
    assert np.array_equal(second.store.train.tokens, first.store.train.tokens)
    cased, _ = run(replace(config, do_lower_case=False))
    third, said = run(replace(given, tokenizer=str(cased.tokenizer_dir)))
    assert third.folder != second.folder
    assert "using the token store" not in said


def test_same_corpus_moved_in_time_is_recognised_by_its_content(config: CorpusConfig) -> None:
    first, _ = run(config)
    os.utime(config.corpus, ns=(0, 0))
    again, said = run(config)
    assert again.folder == first.folder
    assert "using the token store" in said


def test_another_row_length_shares_tokenizer_and_store(config: CorpusConfig) -> None:
    first, _ = run(config)
    other, said = run(replace(config, max_seq_length=16))
    assert other.folder == first.folder
    assert "using the token store" in said
    assert other.train_table.count > first.train_table.count


def content(prepared: Prepared) -> list[bytes]:
    """All that decides what is trained on and scored."""
    streams = [
        np.asarray(array).tobytes() for stream in (prepared.store.train, prepared.store.validation) for array in stream
    ]
    edges = [np.asarray(table.edges).tobytes() for table in (prepared.train_table, prepared.validation_table)]
    receipt = {name: value for name, value in prepared.store.receipt.items() if name != "process_seconds"}
    return [*streams, *edges, prepared.store.token_counts.tobytes(), json.dumps(receipt).encode()]


@pytest.mark.parametrize("keeps_time", [False, True])
def test_a_flipped_bit_in_any_file_of_a_store_changes_no_result(config: CorpusConfig, keeps_time: bool) -> None:
    # Regression: other weights and other held-out scores came of it, since the hashes were never read.
    first, _ = run(config)
    expected = content(first)
    files = [file.relative_to(first.folder) for file in sorted((first.folder / "store").rglob("*.*"))]
    assert len(files) >= 10
    for number, name in enumerate(files):
        file = first.folder / name
        flipped, before = bytearray(file.read_bytes()), file.stat()
        flipped[len(flipped) // 2 if number % 2 else -1] ^= 1
        file.write_bytes(flipped)
        if keeps_time:
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        again, said = run(config)
        assert content(again) == expected, name
        assert "building" in said or "rows-" in file.name or file.name == "checked.json", name


_WITHIN_LIMITS = """
import hashlib, resource, sys
from pathlib import Path
from electra_albert.apps.prepare.main import prepare
from electra_albert.config import CorpusConfig
from electra_albert.contracts import UsageError

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def made(name, limit):
    config = CorpusConfig(
        corpus=sys.argv[1], tokenizer=sys.argv[2], max_seq_length=32, prepared_dir=f"{sys.argv[3]}/{name}",
        preprocessing_num_workers=1,
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    folder = prepare(config, 1, lambda line: None).folder
    assert [path for path in folder.rglob("*") if path.suffix not in (".bin", ".json", ".lock", "")] == []
    stored = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.bin")}
    return hashlib.sha256(b"".join(stored[name] for name in sorted(stored))).hexdigest(), stored

whole, stored = made("whole", hard)
largest = max(map(len, stored.values()))
for limit in range(largest // 4, largest, largest // 8):
    try:
        made(limit, limit)
        print("nothing failed")
    except UsageError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert made(limit, hard)[0] == whole, limit
"""


def test_a_write_that_fails_is_named_and_leaves_nothing_that_is_taken_as_whole(
    config: CorpusConfig, tmp_path: Path
) -> None:
    # Regression: bytes lost when a file was flushed shifted every border behind them, and the rest counted as whole.
    given = run(config)[0].tokenizer_dir
    text = Path(config.corpus).read_text()
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("\n\n".join(text.replace("fell", f"fell {name}{n}") for n in range(8)))
    (tmp_path / "list.yaml").write_text("- {corpus: a.txt}\n- {corpus: b.txt}\n- {corpus: c.txt}\n")
    ended = finish(start(["-c", _WITHIN_LIMITS, tmp_path / "list.yaml", given, tmp_path / "limited"], tmp_path))
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert len(lines) >= 6
    assert all("File too large" in line and "make room" in line for line in lines), lines


def test_fewer_pieces_than_asked_are_said(config: CorpusConfig) -> None:
    prepared, said = run(replace(config, vocab_size=20_000))
    assert f"only {len(prepared.tokenizer):,} pieces of the 20,000" in said


@pytest.mark.parametrize("is_split", [None, True])
def test_a_trained_tokenizer_keeps_digits_and_commas_apart(config: CorpusConfig, is_split: bool | None) -> None:
    text = Path(config.corpus).read_text().replace("river", "1,200").replace("great", "7,")
    numbers = make_file(config, text.encode())
    pieces = run(replace(numbers, split_digit_comma=is_split))[0].tokenizer.get_vocab()
    assert [piece for piece in pieces if "," in piece and any(map(str.isdigit, piece))] == []
    assert "," in pieces


@pytest.mark.parametrize("shard", [ShardConfig(), ShardConfig(num_shards=2, shard_index=0)], ids=["whole", "a share"])
def test_a_tokenizer_cannot_be_trained_to_join_digits_and_commas(config: CorpusConfig, shard: ShardConfig) -> None:
    together = replace(config, split_digit_comma=False)
    make: Callable[..., object] = prepare if shard.num_shards is None else prepare_shard
    with pytest.raises(UsageError, match=r"^--split_digit_comma false .*keeps digits and commas apart; leave it out"):
        make(together, 1, print, shard)
    assert not Path(config.prepared_dir).exists()
    given = run(config)[0].tokenizer_dir
    assert run(replace(together, tokenizer=str(given)))[0].store.train.tokens.size > 0


def save_short_wordpiece(folder: Path, *words: str) -> Path:
    """BERT's files for the words, `ab`, and `abcd` only once `ab` is a piece: from the left it is cut a ##bc ##d."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "##b", "##bc", "##cd", *words]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return folder


def test_a_vocabulary_is_extended_until_nothing_is_added(config: CorpusConfig, tmp_path: Path) -> None:
    """One round finds fewer words than there are, since a new piece makes another word one that can be cut."""
    given = save_short_wordpiece(tmp_path / "given", *WORDS)
    text = Path(config.corpus).read_text().replace(" river", " ab").replace(" moon", " abcd")
    own = load_tokenizer(given)
    assert len(extend_tokenizer(own, text.splitlines(), 10).pieces) == 1
    asked = replace(
        make_file(config, text.encode()), tokenizer=str(given), vocab_size=9_999, extend_vocab_to=len(own) + 10
    )
    extended, said = run(asked)
    assert extended.tokenizer.convert_ids_to_tokens(range(len(own), len(extended.tokenizer))) == ["ab", "abcd"]
    assert "2 words more" in said
    again, said = run(replace(asked, tokenizer=str(extended.tokenizer_dir)))
    assert "0 words more" in said
    assert again.tokenizer.get_vocab() == extended.tokenizer.get_vocab()


def make_file(config: CorpusConfig, content: bytes) -> CorpusConfig:
    Path(config.corpus).write_bytes(content)
    return config


BAD: dict[str, tuple[Callable[[CorpusConfig], CorpusConfig], type[UserError]]] = {
    "empty corpus": (lambda c: make_file(c, b""), DataError),
    "blank lines only": (lambda c: make_file(c, b"\n \n\n"), DataError),
    "accents only": (lambda c: replace(make_file(c, "\u0301\n\u0302\n".encode()), keep_accents=False), DataError),
    "one sentence": (lambda c: make_file(c, b"The river sang.\n"), DataError),
    "binary": (lambda c: make_file(c, bytes(range(256)) * 9), DataError),
    "UTF-16": (lambda c: make_file(c, "The river sang.\n".encode("utf-16")), DataError),
    "missing corpus": (lambda c: replace(c, corpus=c.corpus + ".gone"), UsageError),
    "missing tokenizer": (lambda c: replace(c, tokenizer=c.corpus + ".gone"), UsageError),
    "folder under a file": (lambda c: replace(c, prepared_dir=c.corpus + "/prepared"), UsageError),
}


@pytest.mark.parametrize(("change", "error"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_in_one_line(
    config: CorpusConfig, change: Callable[[CorpusConfig], CorpusConfig], error: type[UserError]
) -> None:
    with pytest.raises(error) as raised:
        run(change(config))
    assert "\n" not in str(raised.value)


def test_foreign_tokenizer_is_refused_before_anything_is_built(config: CorpusConfig, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    with pytest.raises(CheckpointError, match="its pieces are not"):
        run(replace(config, tokenizer=str(tmp_path / "foreign")))
    assert list(Path(config.prepared_dir).iterdir()) == []
