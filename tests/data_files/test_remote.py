"""Files at URLs: fetched once, fetched again when they change, read like any other; refused in one line."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import datasets
import fsspec
import pytest

from electra_albert.contracts import UsageError
from electra_albert.corpus.mixture import read_sources
from electra_albert.data_files.finding import find_files
from tests.corpus.reading import sentences
from tests.tasks.task_files import read


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HTTPServer]:
    """A server of the folder `site`, which stops with the test."""
    (tmp_path / "site").mkdir()
    made = HTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "site")))
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_file_of_a_web_server_is_read_again_when_it_changes_and_kept_when_it_is_gone(
    tmp_path: Path, cache: Path, server: HTTPServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="electra_albert")
    page = tmp_path / "site" / "page.txt"
    page.write_text("One line.\n")
    url = f"http://127.0.0.1:{server.server_port}/page.txt"
    first = find_files(url, Counter())
    assert sentences(*first) == [["One line."]]
    assert (first[0].name, first[0].is_relative_to(cache)) == ("page.txt", True)
    assert find_files(f"{url}?download=1", Counter())[0].name == "page.txt"
    assert find_files(url, Counter()) == first
    assert caplog.text.count("fetching") == 2
    page.write_text("Another line here.\n")
    os.utime(page, (1, 1))
    assert sentences(*find_files(url, Counter())) == [["Another line here."]]
    server.shutdown()
    server.server_close()
    assert sentences(*find_files(url, Counter())) == [["Another line here."]]
    assert "copy fetched before" in caplog.text


def test_what_is_not_there_is_refused_in_one_line(cache: Path, server: HTTPServer) -> None:
    for url in (f"http://127.0.0.1:{server.server_port}/none.txt", "memory://none/x.txt", "nosuch://a/b.txt"):
        with pytest.raises(UsageError, match=r"--corpus .*cannot be fetched") as refusal:
            find_files(url, Counter())
        assert "\n" not in str(refusal.value)
    with pytest.raises(UsageError, match="no file matches"):
        find_files("memory://none/*.txt", Counter())


def test_folders_globs_and_saved_datasets_are_read_from_any_file_system(tmp_path: Path, cache: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/texts/b.txt": b"Two.\n", "/texts/sub/a.txt": b"One.\n", "/texts/p.png": b"no text"})
    datasets.Dataset.from_dict({"text": ["Three."]}).save_to_disk(tmp_path / "saved")
    memory.put(str(tmp_path / "saved"), "/saved", recursive=True)
    counts: Counter[str] = Counter()
    assert sentences(*find_files("memory://texts", counts)) == [["Two."], ["One."]]
    assert counts["other_files_skipped"] == 1
    assert sentences(*find_files("memory://texts/**/*.txt", Counter())) == [["Two."], ["One."]]
    assert sentences(*find_files("memory://saved", Counter())) == [["Three."]]
    (tmp_path / "s.yaml").write_text("- {corpus: memory://texts/b.txt}\n")
    assert [source.corpus for source in read_sources(str(tmp_path / "s.yaml"), "text")] == ["memory://texts/b.txt"]


def test_a_key_that_leads_out_of_the_cache_is_refused(cache: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/evil/in.txt", b"One.\n")
    memory.store["/evil/../../out.txt"] = memory.store["/evil/in.txt"]
    with pytest.raises(UsageError, match="not the name of a file"):
        find_files("memory://evil", Counter())


def test_the_data_of_a_task_may_be_elsewhere(cache: Path) -> None:
    rows = b"sentence\tlabel\ngood film\t1\nbad film\t0\n"
    fsspec.filesystem("memory").pipe({"/GLUE/SST-2/train.tsv": rows, "/GLUE/SST-2/dev.tsv": rows, "/one.tsv": rows})
    assert len(read("sst2", data_dir="memory://GLUE").train) == 2
    data = read("sst2", train_file="memory://one.tsv", validation_file="memory://GLUE/SST-2/dev.tsv")
    assert [example.label for example in data.train] == ["1", "0"]
