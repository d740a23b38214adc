"""Files found by name or URL, files skipped or refused, and detection of changed files."""

import gzip
import hashlib
import lzma
import os
import re
import socket
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pytest

from electra_albert.corpus.mixture import Source, read_sources
from electra_albert.corpus.sources import ReadOptions, require_columns
from electra_albert.data_files import hub_name
from electra_albert.data_files.finding import find_files, identity, same_content
from tests.corpus.reading import sentences, write
from tests.refusals import assert_refused
from tests.tasks.task_files import read

TEXT = "Words of text.\n"
_DEPTH = 400  # of nested folders
REFUSED = {
    "blank.txt": (b"\n \n\n", "no text"),
    "mark.txt": (gzip.compress(b"\xef\xbb\xbf\n"), "no text"),
    "utf16.txt": (gzip.compress(("Plain words.\n" * 20).encode("utf-16-be")), "UTF-16"),
    "cyrillic.txt": (("Обычные слова.\n" * 20).encode("cp1251"), "its encoding"),
    "cp1252.txt": (("It was “his” café.\n" * 20).encode("cp1252"), "cp1252.*café"),
    "picture.txt": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR and so on", "binary"),
    "cut.xz": (lzma.compress(b"Words. " * 99)[:60], "xz"),
    "archive.txt": (b"PK\x03\x04 and so on", "zip"),
    "pointer.txt": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "page.xz": (b"<html>not found</html>", "not compressed"),
    "list.json": (b'[{"text": "One."}]', "jsonl"),
    "wiki_00": (b'{"text": "One."}\n{"text": "Two."}\n', "jsonl"),
}


def find(corpus: object) -> list[Path]:
    return find_files(str(corpus), Counter())


def test_a_file_that_is_not_utf8_text_is_refused_with_advice(tmp_path: Path) -> None:
    for name, (content, word) in REFUSED.items():
        path = write(tmp_path, content, name)
        message = assert_refused("DataError", name, find, path)
        assert re.search(word, message), name
    with tarfile.open(tmp_path / "a.txt.gz", "w:gz") as archive:
        archive.add(write(tmp_path, TEXT * 9999), "a.txt")
    assert_refused("DataError", "a.txt.gz", find, tmp_path / "a.txt.gz")
    path = write(tmp_path, "Ein schöner Tag.\n")
    assert_refused("DataError", "not cp1252", find_files, str(path), Counter(), "cp1252")


def test_a_folder_gives_its_text_files_in_order_and_counts_the_rest(tmp_path: Path) -> None:
    sub = tmp_path / "sub"
    for folder in (sub, tmp_path / ".git"):
        folder.mkdir()
    names = "b.txt a.md .hidden photo.png table.csv plain wiki.tar.gz Z.TXT sub/c.txt .git/c.txt"
    for name in names.split():
        write(tmp_path, TEXT, name)
    write(tmp_path, gzip.compress(TEXT.encode(), mtime=0), "c.txt.gz")
    write(tmp_path, "", "empty.txt")
    (sub / "up").symlink_to(tmp_path)
    (sub / "again.txt").symlink_to(tmp_path / "b.txt")
    (sub / "gone.txt").symlink_to(tmp_path / "gone")
    os.mkfifo(sub / "pipe")
    counts = Counter()
    actual = [str(path.relative_to(tmp_path)) for path in find_files(str(tmp_path), counts)]
    assert " ".join(actual) == "Z.TXT a.md b.txt c.txt.gz plain sub/c.txt table.csv"
    assert counts == {
        "hidden_entries_skipped": 2,
        "other_files_skipped": 2,
        "special_files_skipped": 2,
        "repeated_files_skipped": 1,
        "blank_files_skipped": 1,
    }


def test_any_name_and_globs_are_read_and_pipes_do_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    files = [
        write(tmp_path, TEXT, name)
        for name in (" ", "*.txt", "--flag.txt", "e\u0301[1].txt", "new\nline.txt")
    ]
    assert [find(file) for file in files] == [[file] for file in files]
    (tmp_path / "two.txt").symlink_to(files[2])
    assert find(tmp_path / "[a-z-]*.txt") == find("~/[a-z-]*.txt") == files[2:]
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for name in ("missing.txt", "pipe", "/dev/zero", "*.none", "empty"):
        error = "DataError" if name == "empty" else "UsageError"
        assert_refused(error, name, find, tmp_path / name)


def test_links_to_their_own_folder_and_deep_folders_are_searched_once(tmp_path: Path) -> None:
    """Regression: forty stars over such links were endless, deep folders a RecursionError."""
    files = [write(tmp_path, TEXT)]
    folder = tmp_path
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(tmp_path)
    for _ in range(_DEPTH):
        folder /= "d"
        folder.mkdir()
    files.append(write(folder, TEXT))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEPTH)
    try:
        for pattern in ("**/*.txt", "**", ""):
            assert [path.resolve() for path in find(tmp_path / pattern)] == files
        (path,) = find(tmp_path / ("*/" * 40 + "*.txt"))
    finally:
        sys.setrecursionlimit(limit)
    assert path.resolve() == files[0]
    counts = Counter[str]()
    find_files(str(tmp_path / "d" / "**"), counts)
    assert not counts["repeated_files_skipped"]


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="there is no /proc")
def test_a_file_without_a_size_is_not_read() -> None:
    """Regression: hashing /proc/kmsg, which has no end, never finished."""
    assert_refused("DataError", "/proc/version", find, "/proc/version")


def test_unchanged_and_changed_content_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = write(tmp_path, "One.\n", "a.txt")
    b = write(tmp_path, "Two.\n", "b.txt")
    recorded = identity([a, b])
    os.utime(a, ns=(1, 1))
    assert same_content([a, b], recorded), "a touched file has the same content"
    present = identity([a, b], recorded)
    assert present == identity([a, b]) != recorded
    wrong = [entry | {"blake2b": "of no file"} for entry in present["files"]]
    damaged = ({"files": [{}]}, {"files": 1}, {})
    assert identity([b, a], recorded, *damaged, {"files": wrong})["files"] == wrong[::-1]
    assert not same_content([b, a], recorded)
    assert not same_content([a], recorded)
    status = b.stat()
    write(tmp_path, "Too.\n", "b.txt")
    os.utime(b, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not same_content([a, b], recorded), "same size and time, but other content"
    assert identity([b], recorded) == identity([b])
    digest = hashlib.blake2b()

    def changed_meanwhile(*_: object) -> Any:
        write(tmp_path, TEXT, "a.txt")
        return digest

    monkeypatch.setattr(hashlib, "file_digest", changed_meanwhile)
    assert_refused("DataError", "a.txt", identity, [a])


def dataset(*texts: str) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts)})


def test_a_saved_dataset_is_read_in_row_order_and_only_its_train_split(tmp_path: Path) -> None:
    texts = [f"Document {i} is here." for i in range(12)]
    splits = {"train": dataset(*texts), "validation": dataset("Two."), "test": dataset("Three.")}
    saved = tmp_path / "saved"
    shards = {"train": 11, "validation": 1, "test": 1}
    datasets.DatasetDict(splits).save_to_disk(saved, num_shards=shards)
    (saved / "train" / "cache-123.arrow").write_bytes(b"not of the dataset")
    counts = Counter()
    assert sentences(*find_files(str(saved), counts)) == [[text] for text in texts]
    assert counts["splits_skipped"] == 2
    assert sentences(*find(saved / "test")) == [["Three."]]
    datasets.DatasetDict({"test": dataset("One.")}).save_to_disk(tmp_path / "other")
    assert_refused("UsageError", "'train'", find, tmp_path / "other")


def test_json_lines_of_published_corpora_are_records(tmp_path: Path) -> None:
    """Regression: their names and braces were trained on as text."""
    content = gzip.compress(b'{"text": "One.", "url": "u"}\n{"text": "Two.", "url": "v"}\n')
    assert sentences(write(tmp_path, content, "c4-train.json.gz")) == [["One."], ["Two."]]
    named = write(tmp_path, TEXT, "wiki.so")  # Somali, or a library
    require_columns([named], ReadOptions())
    assert sentences(named) == [["Words of text."]]


def test_a_clone_of_a_hub_dataset_is_refused(tmp_path: Path) -> None:
    """Regression: its card and its test split were trained on."""
    clone = tmp_path / "corpora" / "clone"
    (clone / "data").mkdir(parents=True)
    write(
        clone, "---\nlicense: mit\nconfigs:\n- config_name: default\n---\n# A card\n", "README.md"
    )
    write(clone / "data", TEXT, "train-00000.txt")
    assert_refused("DataError", "split train", find, tmp_path / "corpora")
    assert find(clone / "data")


def test_a_dataset_of_links_is_read_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    dataset("One.").save_to_disk(saved)
    (arrow,) = saved.glob("*.arrow")
    arrow.symlink_to(arrow.rename(tmp_path / "elsewhere.arrow"))  # as data version control does
    assert sentences(*find(saved)) == [["One."]]
    state = saved / "state.json"
    for content in ("{", "{}", state.read_text().replace(arrow.name, "../elsewhere.arrow")):
        state.write_text(content)
        assert_refused("DataError", str(saved), find, saved)
    state.unlink()  # load_dataset does not write it
    assert sentences(*find(saved)) == [["One."]]


def test_a_hub_name_is_distinguished_from_a_path() -> None:
    assert hub_name("owner/na-me.1:config-2") == ("owner/na-me.1", "config-2")
    paths = "name /owner/name ./owner/name a/b/c owner/* owner/name: owner/"
    for path in paths.split():
        assert hub_name(path) is None


def test_a_silent_hub_fails_within_seconds(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Regression: the library retried for half a minute and printed twelve lines."""
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", url)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        assert_refused("UsageError", "no response", find, "nobody/nothing")
    assert time.monotonic() - start < 20
    assert not capfd.readouterr().err


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_folders_globs_and_saved_datasets_are_read_from_any_file_system(
    tmp_path: Path, cache: Path
) -> None:
    memory = fsspec.filesystem("memory")
    files = {"/texts/b.txt": b"Two.\n", "/texts/sub/a.txt": b"One.\n", "/texts/p.png": b"no text"}
    memory.pipe(files)
    dataset("Three.").save_to_disk(tmp_path / "saved")
    memory.put(str(tmp_path / "saved"), "/saved", recursive=True)
    assert sentences(*find("memory://texts")) == [["Two."], ["One."]]
    assert sentences(*find("memory://texts/**/*.txt")) == [["Two."], ["One."]]
    assert sentences(*find("memory://saved")) == [["Three."]]
    listed = write(tmp_path, "- {corpus: memory://texts/b.txt}\n", "s.yaml")
    assert read_sources(str(listed), "text") == [Source("memory://texts/b.txt", "text")]
    for url in ("memory://none/x.txt", "memory://none/*.txt", "nosuch://a/b.txt"):
        assert_refused("UsageError", url, find, url)
    rows = b"sentence\tlabel\ngood film\t1\nbad film\t0\n"
    memory.pipe({"/GLUE/SST-2/train.tsv": rows, "/GLUE/SST-2/dev.tsv": rows})
    assert len(read("sst2", data_dir="memory://GLUE").train) == 2
    memory.store["/texts/../../out.txt"] = memory.store["/texts/b.txt"]  # a path outside the cache
    assert_refused("UsageError", "not a file name", find, "memory://texts")
