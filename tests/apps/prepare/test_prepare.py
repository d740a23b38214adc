"""Preparing a corpus, in one job or several: results are reused only while nothing has changed."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from electra_albert.config.pretraining import CorpusConfig
from electra_albert.contracts import UsageError
from electra_albert.corpus.prepare import Prepared, find_store, prepare
from electra_albert.corpus.tokenizer_training import extend_tokenizer
from electra_albert.tokenization.tokenizer import load_tokenizer
from tests.apps.tiny_run import finish, start
from tests.corpus.reading import WORDS, document, write
from tests.refusals import assert_refused
from tests.tokenization.tokenizer_kinds import KINDS


@pytest.fixture
def config(tmp_path: Path) -> CorpusConfig:
    write(tmp_path, "\n\n".join("\n".join(document(number)) for number in range(40)) + "\n")
    sizes: dict[str, Any] = {"vocab_size": 60, "max_seq_length": 32, "preprocessing_num_workers": 1}
    return CorpusConfig(
        str(tmp_path / "corpus.txt"), prepared_dir=str(tmp_path / "prepared"), **sizes
    )


Run = Callable[..., tuple[Prepared, str]]


@pytest.fixture
def run(caplog: pytest.LogCaptureFixture) -> Run:
    def run(config: CorpusConfig, seed: int = 1) -> tuple[Prepared, str]:
        caplog.set_level("INFO", logger="electra_albert")
        caplog.clear()
        return prepare(config, seed), "\n".join(caplog.messages)

    return run


def rewrite(path: Path, content: bytes) -> None:
    before = path.stat()  # its time stays
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_next_run_reuses_everything_despite_new_file_time_or_sequence_length(
    config: CorpusConfig, run: Run
) -> None:
    first, log = run(config)
    assert all(
        shown in log for shown in ("100% of the text kept", "padding", "the text is lower-cased")
    )
    os.utime(config.corpus, ns=(0, 0))
    again, log = run(config)
    assert ("using the token store" in log, "training a tokenizer" in log) == (True, False)
    assert again.folder == first.folder
    assert content(again) == content(first)
    root, key = Path(config.prepared_dir), first.store.fingerprint
    assert [bool(find_store(root, wanted)) for wanted in (key, key[:-1])] == [True, False]
    assert again.train_table.count == first.train_table.count > 0 < first.validation_table.count
    other, log = run(replace(config, max_seq_length=16))
    assert (other.folder, "using the token store" in log) == (first.folder, True)
    assert other.train_table.count > first.train_table.count


def test_a_finished_store_can_be_used_on_a_read_only_drive(
    config: CorpusConfig, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = run(config)
    given = replace(config, tokenizer=str(first.tokenizer_dir))
    copied, _ = run(given)
    # Regression: each copy of the corpus was recorded in the folder.
    elsewhere = tmp_path / "elsewhere" / Path(config.corpus).name
    elsewhere.parent.mkdir()
    shutil.copyfile(config.corpus, elsewhere)
    moved = replace(config, corpus=str(elsewhere))
    os_open, path_open = os.open, Path.open

    def refuse() -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def open_number(path: str, flags: int, *arguments: Any, **options: Any) -> int:
        return (
            refuse()
            if flags & (os.O_RDWR | os.O_WRONLY)
            else os_open(path, flags, *arguments, **options)
        )

    def open_path(path: Path, mode: str = "r", **options: Any) -> Any:
        return refuse() if set(mode) & set("wax+") else path_open(path, mode, **options)

    monkeypatch.setattr(os, "open", open_number)
    monkeypatch.setattr(Path, "open", open_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    for one, before in ((config, first), (given, copied), (moved, first)):
        assert content(run(one)[0]) == content(before)


CHANGES = {
    "vocab_size": 50,
    "do_lower_case": False,
    "keep_accents": True,
    "bad_utf8": "skip",
    "text_column": "body",
}


def test_a_changed_option_or_text_is_never_served_from_the_old_store(
    config: CorpusConfig, run: Run
) -> None:
    changed: list[CorpusConfig] = [
        replace(config, **{name: value}) for name, value in CHANGES.items()
    ]
    folders = [*(run(one)[0].folder for one in (config, *changed)), run(config, seed=2)[0].folder]
    path = Path(config.corpus)
    rewrite(path, path.read_bytes().replace(b"river", b"lover"))  # same size and time
    assert len({*folders, run(config)[0].folder}) == len(CHANGES) + 3, folders


def test_given_tokenizer_is_used_and_a_changed_one_gets_its_own_store(
    config: CorpusConfig, run: Run
) -> None:
    first, _ = run(config)
    given = replace(config, tokenizer=str(first.tokenizer_dir), vocab_size=9_999)
    second, log = run(given)
    assert "training a tokenizer" not in log
    assert len(second.tokenizer) == len(first.tokenizer)
    assert content(second) == content(first)
    cased, _ = run(replace(given, do_lower_case=False))
    assert cased.folder != second.folder
    normalize = load_tokenizer(cased.tokenizer_dir).backend_tokenizer.normalizer.normalize_str
    assert normalize("A") == cased.tokenizer.backend_tokenizer.normalizer.normalize_str("A") == "A"


def content(prepared: Prepared) -> list[bytes]:
    """Everything that determines training and evaluation data."""
    store = prepared.store
    streams = [
        array for split in (store.train, store.validation) for part in split.parts for array in part
    ]
    streams += [*prepared.train_table.edges, *prepared.validation_table.edges, store.token_counts]
    statistics = {
        name: value for name, value in store.statistics.items() if name != "process_seconds"
    }
    return [*(np.asarray(array).tobytes() for array in streams), json.dumps(statistics).encode()]


def test_a_flipped_bit_in_any_file_of_a_store_changes_no_result(
    config: CorpusConfig, run: Run
) -> None:
    # Regression: it changed weights and held-out scores, because the hashes were never checked.
    first, _ = run(config)
    expected = content(first)
    files = [
        file.relative_to(first.folder) for file in sorted((first.folder / "store").rglob("*.*"))
    ]
    assert len(files) >= 10
    for number, name in enumerate(files):
        flipped = bytearray((first.folder / name).read_bytes())
        flipped[len(flipped) // 2 if number % 2 else -1] ^= 1
        rewrite(file := first.folder / name, flipped)
        again, log = run(config)
        assert content(again) == expected, name
        assert "building" in log or "rows-" in file.name or file.name == "checked.json", name


@pytest.mark.parametrize(
    "damage", [lambda file: rewrite(file, file.read_bytes()[:-3] + b" }\n"), Path.unlink]
)
def test_a_damaged_tokenizer_is_made_again_and_the_store_kept(
    config: CorpusConfig, run: Run, damage: Any
) -> None:
    # Regression: without tokenizer_config.json, the store was built again with other tokens,
    # without a word.
    first, _ = run(config)
    expected, file = content(first), first.tokenizer_dir / "tokenizer_config.json"
    written = file.read_bytes()
    damage(file)
    for given in (config, replace(config, tokenizer=str(first.tokenizer_dir))):
        again, log = run(given)
        assert content(again) == expected
        assert ("making the tokenizer again" in log) == (given is config)
        assert "building" not in log or given is not config
        assert file.read_bytes() == written
    # Of an earlier version, or damaged itself.
    (digests := first.tokenizer_dir / "digests.json").unlink()
    run(config)
    assert digests.exists()


def test_verify_finds_damage_that_left_size_and_times_unchanged(
    config: CorpusConfig, run: Run
) -> None:
    first, _ = run(config)
    expected, file = content(first), first.store.folder / "train" / "000000.tokens.bin"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    stat, cache = file.stat(), first.store.folder / "checked.json"
    checked = json.loads(cache.read_text())
    checked["train/000000.tokens.bin"][1:] = [
        stat.st_size,
        stat.st_mtime_ns,
        stat.st_ctime_ns,
    ]  # of a disk's fault
    cache.write_text(json.dumps(checked))
    assert content(run(config)[0]) != expected
    assert content(prepare(config, 1, verify=True)) == expected


_WITHIN_LIMITS = """
import resource, sys
from electra_albert.corpus.prepare import prepare
from electra_albert.config.pretraining import CorpusConfig
from electra_albert.contracts import UsageError

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def made(name, limit):
    folder = f"{sys.argv[3]}/{name}"
    config = CorpusConfig(
        sys.argv[1], tokenizer=sys.argv[2], prepared_dir=folder, preprocessing_num_workers=1
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    folder = prepare(config, 1).folder
    assert all(path.name.endswith(".lock") for path in folder.rglob(".*"))
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.bin")}

whole = made("whole", hard)
largest = max(map(len, whole.values()))
for limit in range(largest // 4, largest, largest // 8):
    try:
        made(limit, limit)
        print("nothing failed")
    except UsageError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert made(limit, hard) == whole, limit
"""


def test_a_failed_write_is_reported_and_leaves_no_file_that_counts_as_complete(
    config: CorpusConfig, run: Run, tmp_path: Path
) -> None:
    # Regression: bytes lost in a flush shifted all later boundaries, and the store counted as
    # complete.
    given = run(config)[0].tokenizer_dir
    text = Path(config.corpus).read_text()
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(
            "\n\n".join(text.replace("fell", f"fell {name}{n}") for n in range(8))
        )
    (tmp_path / "list.yaml").write_text("- {corpus: a.txt}\n- {corpus: b.txt}\n- {corpus: c.txt}\n")
    ended = finish(
        start(["-c", _WITHIN_LIMITS, tmp_path / "list.yaml", given, tmp_path / "limited"], tmp_path)
    )
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert len(lines) >= 6
    assert all("File too large" in line and "free disk space" in line for line in lines), lines


def test_a_trained_tokenizer_never_joins_digit_and_comma_and_its_size_is_logged(
    config: CorpusConfig, run: Run
) -> None:
    text = Path(config.corpus).read_text().replace("river", "1,200").replace("great", "7,")
    Path(config.corpus).write_text(text)
    prepared, log = run(replace(config, split_digit_comma=True, vocab_size=20_000))
    vocab = prepared.tokenizer.get_vocab()
    assert [token for token in vocab if "," in token and any(map(str.isdigit, token))] == []
    assert ("," in vocab, f"only {len(vocab):,} subwords" in log) == (True, True)
    together = replace(config, split_digit_comma=False)
    given = replace(together, tokenizer=str(prepared.tokenizer_dir))
    assert run(given)[0].store.train.token_count > 0
    with pytest.raises(UsageError, match="--split_digit_comma false"):
        prepare(together, 1)


def test_a_vocabulary_is_extended_until_nothing_is_added(
    config: CorpusConfig, run: Run, tmp_path: Path
) -> None:
    # `abcd` can be split only once `ab` is a token: from the left it is a ##bc ##d.
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "##b", "##bc", "##cd", *WORDS]
    given = write(tmp_path, "\n".join(tokens) + "\n", "vocab.txt")
    text = Path(config.corpus).read_text().replace(" river", " ab").replace(" moon", " abcd")
    own = load_tokenizer(given)
    assert len(extend_tokenizer(own, text.splitlines(), 10)[1]) == 1
    Path(config.corpus).write_text(text)
    asked = replace(config, tokenizer=str(given), vocab_size=9_999, extend_vocab_to=len(own) + 10)
    extended, log = run(asked)
    assert extended.tokenizer.convert_ids_to_tokens(range(len(own), len(extended.tokenizer))) == [
        "ab",
        "abcd",
    ]
    assert "2 added" in log
    again, log = run(replace(asked, tokenizer=str(extended.tokenizer_dir)))
    assert "0 added" in log
    assert again.tokenizer.get_vocab() == extended.tokenizer.get_vocab()


def test_bad_input_is_refused_in_one_line_before_the_store_is_built(
    config: CorpusConfig, tmp_path: Path
) -> None:
    KINDS["roberta"](tmp_path / "roberta")
    own = {"tokenizer": str(tmp_path / "roberta")}
    bad: list[tuple[dict[str, Any], str, str]] = [
        ({"corpus": str(write(tmp_path, "\n \n\n", "blank.txt"))}, "DataError", "no text"),
        ({"corpus": str(write(tmp_path, "It sang.\n", "a.txt"))}, "DataError", "single sentence"),
        ({"corpus": "gone.txt"}, "UsageError", "gone"),
        ({"corpus": "nobody/nothing"}, "UsageError", "nobody/nothing"),
        ({"corpus": "memory://nothing/there.txt"}, "UsageError", "memory://nothing"),
        ({"keep_accents": "albert", **own}, "UsageError", "--keep_accents albert"),
        ({"extend_vocab_to": 5, **own}, "UsageError", "--extend_vocab_to"),
        ({"prepared_dir": config.corpus + "/prepared"}, "UsageError", "prepared"),
    ]
    for change, error, name in bad:
        assert_refused(error, name, prepare, replace(config, **change), 1)
        assert not list(Path(config.prepared_dir).glob("*/store/manifest.json"))
    # Regression: the missing column was reported after a tokenizer training had begun.
    table = str(write(tmp_path, "id,body\n1,One.\n", "table.csv"))
    alone = replace(config, corpus=table, prepared_dir=str(tmp_path / "alone"))
    assert_refused("DataError", "'text'", prepare, alone, 1)
    assert not list(tmp_path.glob("alone/*/corpus.json"))


LISTS = """
t.parquet, text_column: a, weight: 1 + t.parquet, text_column: b, weight: 2
t.txt + ./t.txt
"""


def test_a_file_in_two_sources_gives_two_columns_or_is_read_once_or_refused(
    config: CorpusConfig, run: Run, tmp_path: Path
) -> None:
    texts = ["\n".join(document(number)) for number in range(40)]
    parquet.write_table(pyarrow.table({"a": texts[:20], "b": texts[20:]}), tmp_path / "t.parquet")
    write(tmp_path, "\n\n".join(texts) + "\n", "t.txt")

    def listed(entries: str) -> CorpusConfig:
        text = "".join(f"- {{corpus: {entry}}}\n" for entry in entries.split(" + "))
        return replace(config, corpus=str(write(tmp_path, text, "s.yaml")))

    for entries in LISTS.strip().splitlines():
        assert "documents       40\n" in run(listed(entries))[1]
    twice = listed("t.txt, weight: 1 + ./t.txt, weight: 2")
    assert_refused("DataError", "two sources", prepare, twice, 1)
