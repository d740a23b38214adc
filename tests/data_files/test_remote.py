"""Copies of remote files: whole and of one version, or refused and not kept."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from electra_albert.contracts import UsageError
from electra_albert.data_files.finding import find_files
from tests.data_files.test_finding import cache as cache
from tests.tasks.task_files import read

TEXT = b"Here is one sentence of a long text.\n" * 600
HEAD = {"Content-Length": str(len(TEXT)), "ETag": "1"}
ROWS = b"sentence\tlabel\n" + b"good film\t1\nbad film\t0\n" * 300


@dataclass
class Answers:
    """Answers without lengths: the end of the connection ends the text, as in HTTP/1.0."""

    head: dict[str, str] = field(default_factory=lambda: dict(HEAD))
    body: bytes = TEXT
    after: Callable[[], None] = lambda: None  # called after the text was sent


@pytest.fixture
def server() -> Iterator[tuple[str, Answers]]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.send_response(200)
            for name, value in answers.head.items():
                self.send_header(name, value)
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers.body)
            answers.after()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever).start()
        yield f"http://127.0.0.1:{http.server_port}", answers
        http.shutdown()


def find(corpus: str) -> list[Path]:
    return find_files(corpus, Counter())


def test_a_text_cut_short_or_changed_on_its_way_is_refused_and_not_kept(
    server: tuple[str, Answers], cache: Path
) -> None:
    url, answers = server
    changes: list[tuple[str, dict[str, Any]]] = [
        ("11,100 bytes were received, but 22,200 announced", {"body": TEXT[: len(TEXT) // 2]}),
        ("it changed", {"after": lambda: answers.head.update({"ETag": "2"})}),
        ("it changed", {"after": lambda: answers.head.update({"Last-Modified": "1 Jan 1970"})}),
        ("it changed", {"after": lambda: answers.head.update({"Content-Length": "9"})}),
    ]
    for reason, change in changes:
        vars(answers).update(vars(Answers()) | change)
        with pytest.raises(UsageError, match=reason):
            find(f"{url}/a.txt")
        assert not [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    vars(answers).update(vars(Answers()))
    assert find(f"{url}/a.txt")[0].read_bytes() == TEXT


@pytest.mark.parametrize("head", [{}, {"Content-Length": "0"}])
def test_a_text_whose_size_is_not_announced_is_accepted(
    server: tuple[str, Answers], cache: Path, head: dict[str, str]
) -> None:
    server[1].head = head
    assert find(f"{server[0]}/a.txt")[0].read_bytes() == TEXT


def test_a_task_file_cut_short_is_refused(server: tuple[str, Answers], cache: Path) -> None:
    url, answers = server
    vars(answers).update(head={"Content-Length": str(len(ROWS))}, body=ROWS)
    names = {"train_file": f"{url}/train.tsv", "validation_file": f"{url}/dev.tsv"}
    assert len(read("sst2", **names).train) == 600
    answers.body, answers.head["ETag"] = ROWS[: ROWS.index(b"\n", 999) + 1], "2"
    with pytest.raises(UsageError, match=r"--train_file .* bytes were received"):
        read("sst2", **names)


def test_sizes_are_compared_in_every_file_system(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = MemoryFileSystem.get_file

    def get_half(system: MemoryFileSystem, rpath: str, lpath: str, **_: object) -> None:
        whole(system, rpath, lpath)
        if Path(lpath).is_file():
            os.truncate(lpath, Path(lpath).stat().st_size // 2)

    fsspec.filesystem("memory").pipe({"/cut/a.txt": TEXT, "/cut/sub/b.txt": TEXT[:-37]})
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "get_file", get_half)
        for corpus in ("memory://cut", "memory://cut/a.txt", "memory://cut/*.txt"):
            with pytest.raises(UsageError, match="bytes were received"):
                find(corpus)
    assert [path.stat().st_size for path in find("memory://cut")] == [len(TEXT), len(TEXT) - 37]
