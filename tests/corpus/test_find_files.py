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
from electra_albert.corpus.hub import hub_files
from electra_albert.corpus.sources import find_files, identity, plan_units, read_unit, refreshed, same_content
from electra_albert.data_files import hub_name
from tests.corpus.reading import PROSE, sentences, write


def found(corpus: Path, counts: Counter[str] | None = None) -> list[str]:
    """Names of the files, below the folder where one was named."""
    files = find_files(str(corpus), Counter() if counts is None else counts)
    return [str(path.relative_to(corpus)) if corpus.is_dir() else path.name for path in files]


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "no text"),
        (b"\n \n\n", "no text"),
        (b"\xef\xbb\xbf", "no text"),
        (gzip.compress(b"\n \n", mtime=0), "no text"),
        (("Plain words.\n" * 20).encode("utf-16"), "iconv"),
        (("Plain words.\n" * 20).encode("utf-16-le"), "iconv"),
        (("Plain words.\n" * 20).encode("utf-16-be"), "iconv"),
        (("Plain words.\n" * 20).encode("utf-32"), "iconv"),
        (("Обычные слова.\n" * 20).encode("cp1251"), "iconv -f <its encoding>"),
        (("Ein schöner Tag für Köln.\n" * 20).encode("latin-1"), "looks like cp1252.*'Ein schöner.*--encoding cp1252"),
        (gzip.compress(("It was “his” café.\n" * 20).encode("cp1252"), mtime=0), "looks like cp1252"),
        (gzip.compress(("Plain words.\n" * 20).encode("utf-16"), mtime=0), "iconv"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR and so on", "binary"),
        (bytes(range(256)) * 40, "binary"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "damaged or incomplete gzip"),
        (lzma.compress(b"Words. " * 99)[:60], "damaged or incomplete xz"),
        (bz2.compress(b"Words. " * 99)[:-1], "damaged or incomplete bzip2"),
        (b"PK\x03\x04 and so on", "zip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_not_utf8_text_is_refused_with_a_way_out(tmp_path: Path, content: bytes, hint: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=hint) as refusal:
        find_files(str(path), Counter())
    assert "\n" not in str(refusal.value)


def test_utf8_under_the_name_of_another_encoding_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "Ein schöner Tag für Köln.\n")
    with pytest.raises(DataError, match="it is UTF-8, not cp1252"):
        find_files(str(path), Counter(), "cp1252")


def test_archives_and_false_names_are_refused(tmp_path: Path) -> None:
    text = write(tmp_path, "Words of text.\n" * 99)
    with tarfile.open(tmp_path / "a.txt.gz", "w:gz") as archive:
        archive.add(text, "a.txt")
    with pytest.raises(DataError, match="tar archive"):
        find_files(str(tmp_path / "a.txt.gz"), Counter())
    with pytest.raises(DataError, match=r"named \.xz, but not compressed"):
        find_files(str(write(tmp_path, "<html>not found</html>", "b.xz")), Counter())
    with pytest.raises(DataError, match=r"named \.jsonl"):
        find_files(str(write(tmp_path, '[{"text": "One."}]', "c.json")), Counter())


def test_a_folder_gives_its_text_files_in_order_and_counts_the_rest(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", ".hidden", "photo.png", "table.csv", "plain", "wiki.tar.gz", "Z.TXT"):
        write(tmp_path, "Words of text.\n", name)
    write(tmp_path, gzip.compress(b"Words of text.\n", mtime=0), "c.txt.gz")
    write(tmp_path, "", "empty.txt")
    for folder in ("sub", ".git"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "Words of text.\n", "c.txt")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    (tmp_path / "sub" / "again.txt").symlink_to(tmp_path / "b.txt")
    (tmp_path / "sub" / "gone.txt").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "sub" / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "sub" / "socket"))
    counts: Counter[str] = Counter()
    assert found(tmp_path, counts) == ["Z.TXT", "a.md", "b.txt", "c.txt.gz", "plain", "sub/c.txt", "table.csv"]
    assert counts == {
        "hidden_entries_skipped": 2,
        "other_files_skipped": 2,
        "special_files_skipped": 3,
        "repeated_files_skipped": 1,
        "blank_files_skipped": 1,
    }


@pytest.mark.parametrize("name", ["--flag.txt", "new\nline.txt", "e\u0301[1].txt", "é" * 125 + ".text", "*.txt", " "])
def test_a_file_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, "Words of text.\n", name)
    assert sentences(*find_files(str(path), Counter())) == [["Words of text."]]


def test_a_glob_finds_each_file_once(tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt", "e\u0301[1].txt"):
        write(tmp_path, "Words of text.\n", name)
    (tmp_path / "again.txt").symlink_to(tmp_path / "one.txt")
    assert len(find_files(str(tmp_path / "*.txt"), Counter())) == 3


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "missing.txt", tmp_path / "pipe", Path("/dev/zero"), tmp_path / "*.none"):
        with pytest.raises(UsageError):
            find_files(str(name), Counter())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no text file"):
        find_files(str(tmp_path / "empty"), Counter())


def test_a_file_replaced_by_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    for name, content in (("a.txt", b"Words of text.\n"), ("b.gz", gzip.compress(b"Words of text.\n", mtime=0))):
        path = write(tmp_path, content, name)
        units = plan_units([path])
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(UsageError, match="not a regular file"):
            list(read_unit(units[0], Counter()))


def test_an_unreadable_file_is_refused(open_folder: Path) -> None:
    path = write(open_folder, "Words of text.\n")
    path.chmod(0)
    # In a process that is nobody's where we are root, who may read everything.
    program = (
        "import os, sys\n"
        "from collections import Counter\n"
        "from electra_albert.contracts import UsageError\n"
        "from electra_albert.corpus.sources import find_files\n"
        "os.geteuid() or os.setuid(65534)\n"
        "try:\n    find_files(sys.argv[1], Counter())\nexcept UsageError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "cannot be read" in ended.stdout


def test_a_file_that_shrinks_or_goes_while_it_is_read_is_an_error_and_one_that_grows_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, "Words of text.\n" * 100)
    units = plan_units([path])
    write(tmp_path, "Words of text.\n" * 101)
    assert sum(len(document.sentences) for document in read_unit(units[0], Counter())) == 100
    write(tmp_path, "Words of text.\n")
    with pytest.raises(DataError, match="shorter"):
        list(read_unit(units[0], Counter()))
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_unit(units[0], Counter()))


# Datasets.


def dataset(*texts: str) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts)})


def test_a_saved_dataset_is_read_in_the_order_of_its_rows(tmp_path: Path) -> None:
    texts = [f"Document {i} is here." for i in range(12)]
    dataset(*texts).save_to_disk(tmp_path / "saved", num_shards=11)
    (tmp_path / "saved" / "cache-123.arrow").write_bytes(b"not of the dataset")
    files = find_files(str(tmp_path / "saved"), Counter())
    assert sentences(*files) == [[text] for text in texts]
    assert sentences(*find_files(str(tmp_path), Counter())) == [[text] for text in texts]


def test_of_a_saved_dataset_of_splits_train_is_read(tmp_path: Path) -> None:
    splits = {"train": dataset("One."), "validation": dataset("Two."), "test": dataset("Three.")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    counts: Counter[str] = Counter()
    assert sentences(*find_files(str(tmp_path / "saved"), counts)) == [["One."]]
    assert counts["splits_skipped"] == 2
    assert sentences(*find_files(str(tmp_path / "saved" / "test"), Counter())) == [["Three."]]
    datasets.DatasetDict({"test": dataset("One.")}).save_to_disk(tmp_path / "other")
    with pytest.raises(UsageError, match=r"without a split 'train'.*test"):
        find_files(str(tmp_path / "other"), Counter())


@pytest.mark.parametrize(
    "state", ["{", "[]", "{}", '{"_data_files": [{"filename": "../../secret.arrow"}]}', '{"_data_files": [7]}']
)
def test_a_dataset_folder_that_is_damaged_is_refused(tmp_path: Path, state: str) -> None:
    dataset("One.").save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text(state)
    with pytest.raises(DataError, match=r"state\.json"):
        find_files(str(tmp_path / "saved"), Counter())


def test_what_the_library_loads_is_read_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The hub itself is out of reach of a test; a local folder takes the same way.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")  # its setting, not the user's cache
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "".join(f'{{"text": "{line}"}}\n' for line in PROSE), "train.jsonl")
    files = hub_files(str(tmp_path / "data"))
    assert all(file.is_relative_to(tmp_path / "cache") for file in files)
    assert {file.suffix for file in files} == {".arrow"}
    assert sentences(*files) == [[line] for line in PROSE]
    with pytest.raises(UsageError, match="split 'train'"):
        hub_files(str(tmp_path / "data"), "no-such-config")


def test_a_dataset_that_needs_a_script_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    write(tmp_path / "old", "raise SystemExit('run')", "old.py")
    with pytest.raises(UsageError, match="scripts are no longer supported") as refusal:
        hub_files(str(tmp_path / "old"))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["wikitext-not-here", "https://huggingface.co/datasets/owner/name"])
def test_what_may_mean_a_dataset_is_told_how_one_is_named(name: str) -> None:
    with pytest.raises(UsageError, match="OWNER/NAME"):
        find_files(name, Counter())


def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path, "Words of text.\n")
    assert find_files(f"~/{path.name}", Counter()) == find_files("~/*.txt", Counter()) == [path]


def test_a_hub_name_is_told_from_a_path(tmp_path: Path) -> None:
    assert hub_name("owner/name") == ("owner/name", None)
    assert hub_name("owner/na-me.1:config-2") == ("owner/na-me.1", "config-2")
    for path in ("name", "/owner/name", "./owner/name", "a/b/c", "owner/*", "owner/name:", "owner/"):
        assert hub_name(path) is None
    with pytest.raises(UsageError, match="no such file"):
        find_files(os.path.relpath(tmp_path / "missing.txt"), Counter())


def test_a_hub_that_does_not_answer_is_given_up_in_seconds_and_one_line() -> None:
    # Regression: the library tried again for half a minute, in twelve lines.
    program = (
        "import time\nfrom collections import Counter\nfrom electra_albert.corpus.sources import find_files\n"
        "import datasets\nstarted = time.monotonic()\n"
        "try:\n    find_files('nobody/nothing', Counter())\nexcept Exception as error:\n"
        "    print(error, '\\n', time.monotonic() - started)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        here = {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "HF_HUB_OFFLINE": "0"}
        env = {**os.environ, **here, "HF_DATASETS_OFFLINE": "0"}
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True)
    error, seconds = ended.stdout.splitlines()
    assert (ended.stderr, float(seconds) < 5) == ("", True)
    assert "nobody/nothing" in error
    assert "no answer from" in error


# Identity.


def test_the_same_content_is_known_and_any_other_is_not(tmp_path: Path) -> None:
    a, b = write(tmp_path, "One.\n", "a.txt"), write(tmp_path, "Two.\n", "b.txt")
    recorded = identity([a, b])
    assert same_content([a, b], recorded)
    os.utime(a, ns=(1, 1))
    assert same_content([a, b], recorded), "a touched file still holds the same"
    assert not same_content([b, a], recorded)
    assert not same_content([a], recorded)
    status = b.stat()
    write(tmp_path, "Too.\n", "b.txt")
    os.utime(b, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not same_content([a, b], recorded), "the same size and time, but another content"


def test_a_touched_file_is_read_once_where_its_present_state_is_kept(tmp_path: Path) -> None:
    a, b = write(tmp_path, "One.\n", "a.txt"), write(tmp_path, "Two.\n", "b.txt")
    recorded = identity([a, b])
    os.utime(a, ns=(1, 1))
    present = refreshed([a, b], recorded)
    assert present == identity([a, b]) != recorded
    assert [entry["blake2b"] for entry in present["files"]] == [entry["blake2b"] for entry in recorded["files"]]
    wrong = {"files": [entry | {"blake2b": "of no file"} for entry in present["files"]]}
    assert refreshed([a, b], wrong) == wrong, "nothing is read whose state is as recorded"
    write(tmp_path, "Longer.\n", "b.txt")
    assert refreshed([a, b], recorded) is None
