"""Which files a name stands for, what is skipped, what is refused, and whether files are still the same."""

import bz2
import gzip
import lzma
import os
import socket
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import datasets
import pytest

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files import hub_name
from electra_albert.data_files.finding import find_files, hub_files, identity, refreshed, same_content
from tests.corpus.reading import PROSE, sentences, write

ROOT = Path(__file__).parents[2]
TEXT = "Words of text.\n"


def found(corpus: Path, counts: Counter[str] | None = None) -> list[str]:
    """Names of the files, below the folder where one was named."""
    files = find_files(str(corpus), Counter() if counts is None else counts)
    return [str(path.relative_to(corpus)) if corpus.is_dir() else path.name for path in files]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"\n \n\n", "no text"),
        (gzip.compress(b"\xef\xbb\xbf\n", mtime=0), "no text"),
        (("Plain words.\n" * 20).encode("utf-16-be"), "UTF-16"),
        (gzip.compress(("Plain words.\n" * 20).encode("utf-32"), mtime=0), "UTF-16"),
        (("Обычные слова.\n" * 20).encode("cp1251"), "its encoding"),
        (("It was “his” café.\n" * 20).encode("cp1252"), "cp1252.*café"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR and so on", "binary"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
        (lzma.compress(b"Words. " * 99)[:60], "xz"),
        (bz2.compress(b"Words. " * 99)[:-1], "bzip2"),
        (b"PK\x03\x04 and so on", "zip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_not_utf8_text_is_refused_with_a_way_out(tmp_path: Path, content: bytes, word: str) -> None:
    with pytest.raises(DataError, match=word) as refusal:
        find_files(str(write(tmp_path, content)), Counter())
    assert "\n" not in str(refusal.value)


def test_false_names_and_encodings_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.txt.gz", "w:gz") as archive:
        archive.add(write(tmp_path, TEXT * 99), "a.txt")
    write(tmp_path, "<html>not found</html>", "b.xz")
    write(tmp_path, '[{"text": "One."}]', "c.json")
    for name, word in (("a.txt.gz", "binary"), ("b.xz", "not compressed"), ("c.json", "jsonl")):
        with pytest.raises(DataError, match=word):
            find_files(str(tmp_path / name), Counter())
    with pytest.raises(DataError, match="UTF-8, not cp1252"):
        find_files(str(write(tmp_path, "Ein schöner Tag.\n")), Counter(), "cp1252")


def test_a_folder_gives_its_text_files_in_order_and_counts_the_rest(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", ".hidden", "photo.png", "table.csv", "plain", "wiki.tar.gz", "Z.TXT"):
        write(tmp_path, TEXT, name)
    write(tmp_path, gzip.compress(TEXT.encode(), mtime=0), "c.txt.gz")
    write(tmp_path, "", "empty.txt")
    for folder in ("sub", ".git"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, TEXT, "c.txt")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    (tmp_path / "sub" / "again.txt").symlink_to(tmp_path / "b.txt")
    (tmp_path / "sub" / "gone.txt").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "sub" / "pipe")
    counts: Counter[str] = Counter()
    assert found(tmp_path, counts) == ["Z.TXT", "a.md", "b.txt", "c.txt.gz", "plain", "sub/c.txt", "table.csv"]
    assert counts == {
        "hidden_entries_skipped": 2,
        "other_files_skipped": 2,
        "special_files_skipped": 2,
        "repeated_files_skipped": 1,
        "blank_files_skipped": 1,
    }


@pytest.mark.parametrize("name", ["--flag.txt", "new\nline.txt", "e\u0301[1].txt", "*.txt", " "])
def test_a_file_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    assert sentences(*find_files(str(write(tmp_path, TEXT, name)), Counter())) == [["Words of text."]]


def test_globs_and_the_home_folder_are_expanded_and_give_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    files = [write(tmp_path, TEXT, name) for name in ("e\u0301[1].txt", "one.txt")]
    (tmp_path / "two.txt").symlink_to(tmp_path / "one.txt")
    assert find_files(str(tmp_path / "*.txt"), Counter()) == find_files("~/*.txt", Counter()) == files
    assert find_files("~/one.txt", Counter()) == files[1:]


@pytest.mark.parametrize("name", ["missing.txt", "pipe", "/dev/zero", "*.none", "empty"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError if name == "empty" else UsageError):
        find_files(str(tmp_path / name), Counter())


def test_an_unreadable_file_is_refused(open_folder: Path) -> None:
    path = write(open_folder, TEXT)
    path.chmod(0)
    # In a process that is nobody's where we are root, who may read everything.
    program = (
        "import os, sys\n"
        "from collections import Counter\n"
        "from electra_albert.contracts import UsageError\n"
        "from electra_albert.data_files.finding import find_files\n"
        "os.geteuid() or os.setuid(65534)\n"
        "try:\n    find_files(sys.argv[1], Counter())\nexcept UsageError as error:\n    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert "cannot be read" in ended.stdout, ended.stderr


# Datasets.


def dataset(*texts: str) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts)})


def test_a_saved_dataset_is_read_in_the_order_of_its_rows(tmp_path: Path) -> None:
    texts = [f"Document {i} is here." for i in range(12)]
    dataset(*texts).save_to_disk(tmp_path / "saved", num_shards=11)
    (tmp_path / "saved" / "cache-123.arrow").write_bytes(b"not of the dataset")
    assert sentences(*find_files(str(tmp_path), Counter())) == [[text] for text in texts]


def test_of_a_saved_dataset_of_splits_train_is_read(tmp_path: Path) -> None:
    splits = {"train": dataset("One."), "validation": dataset("Two."), "test": dataset("Three.")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    counts: Counter[str] = Counter()
    assert sentences(*find_files(str(tmp_path / "saved"), counts)) == [["One."]]
    assert counts["splits_skipped"] == 2
    assert sentences(*find_files(str(tmp_path / "saved" / "test"), Counter())) == [["Three."]]
    datasets.DatasetDict({"test": dataset("One.")}).save_to_disk(tmp_path / "other")
    with pytest.raises(UsageError, match=r"'train'.*test"):
        find_files(str(tmp_path / "other"), Counter())


@pytest.mark.parametrize("state", ["{", "{}", "../secret.arrow"])
def test_a_dataset_folder_that_is_damaged_or_leads_out_of_itself_is_refused(tmp_path: Path, state: str) -> None:
    dataset("One.").save_to_disk(tmp_path / "saved")
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    (tmp_path / "secret.arrow").write_bytes(arrow.read_bytes())
    file = tmp_path / "saved" / "state.json"
    file.write_text(file.read_text().replace(arrow.name, state) if "secret" in state else state)
    with pytest.raises(DataError, match="damaged"):
        find_files(str(tmp_path / "saved"), Counter())


def test_what_the_library_loads_is_read_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The hub itself is out of reach of a test; a local folder takes the same way.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")  # its setting, not the user's cache
    for name in ("data", "old"):
        (tmp_path / name).mkdir()
    write(tmp_path / "data", "".join(f'{{"text": "{line}"}}\n' for line in PROSE), "train.jsonl")
    files = hub_files(str(tmp_path / "data"))
    assert all(file.is_relative_to(tmp_path / "cache") for file in files)
    assert sentences(*files) == [[line] for line in PROSE]
    write(tmp_path / "old", "raise SystemExit('run')", "old.py")
    for name, config, word in (("data", "no-such-config", "split 'train'"), ("old", None, "scripts")):
        with pytest.raises(UsageError, match=word) as refusal:
            hub_files(str(tmp_path / name), config)
        assert "\n" not in str(refusal.value)


def test_a_hub_name_is_told_from_a_path(tmp_path: Path) -> None:
    assert hub_name("owner/name") == ("owner/name", None)
    assert hub_name("owner/na-me.1:config-2") == ("owner/na-me.1", "config-2")
    for path in ("name", "/owner/name", "./owner/name", "a/b/c", "owner/*", "owner/name:", "owner/"):
        assert hub_name(path) is None
    with pytest.raises(UsageError, match="OWNER/NAME"):
        find_files("wikitext-not-here", Counter())


def test_a_hub_that_does_not_answer_is_given_up_in_seconds_and_one_line() -> None:
    # Regression: the library tried again for half a minute, in twelve lines.
    program = (
        "import time\nfrom collections import Counter\nfrom electra_albert.data_files.finding import find_files\n"
        "import datasets\nstarted = time.monotonic()\n"
        "try:\n    find_files('nobody/nothing', Counter())\nexcept Exception as error:\n"
        "    print(error, '\\n', time.monotonic() - started)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        here = {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "HF_HUB_OFFLINE": "0"}
        env = {**os.environ, **here, "HF_DATASETS_OFFLINE": "0"}
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    error, seconds = ended.stdout.splitlines()
    assert (ended.stderr, float(seconds) < 20) == ("", True)
    assert "nobody/nothing" in error
    assert "no answer from" in error


# Identity.


def test_the_same_content_is_known_and_any_other_is_not(tmp_path: Path) -> None:
    a, b = write(tmp_path, "One.\n", "a.txt"), write(tmp_path, "Two.\n", "b.txt")
    recorded = identity([a, b])
    assert same_content([a, b], recorded)
    os.utime(a, ns=(1, 1))
    assert same_content([a, b], recorded), "a touched file still holds the same"
    present = refreshed([a, b], recorded)
    assert present == identity([a, b]) != recorded
    wrong = {"files": [entry | {"blake2b": "of no file"} for entry in present["files"]]}
    assert refreshed([a, b], wrong) == wrong, "nothing is read whose state is as recorded"
    assert not same_content([b, a], recorded)
    assert not same_content([a], recorded)
    status = b.stat()
    write(tmp_path, "Too.\n", "b.txt")
    os.utime(b, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not same_content([a, b], recorded), "the same size and time, but another content"
    write(tmp_path, "Longer.\n", "b.txt")
    assert refreshed([a, b], recorded) is None
