"""Copies of remote files: whole and of one version, or refused and not kept."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.data_files.test_finding import cache as cache
from tests.data_files.test_finding import find
from tests.refusals import assert_refused
from tests.tasks.task_files import read

TEXT = b"good film\t1\nbad film\t0\n" * 600
WHOLE = {"Content-Length": str(len(TEXT)), "ETag": "1"}


class Server(BaseHTTPRequestHandler):
    """Sends texts without lengths: the end of the connection ends them, as in HTTP/1.0."""

    head: dict[str, str] = WHOLE
    sent = len(TEXT)
    status = 200
    after: Callable[[], None] = staticmethod(lambda: None)  # called after a text was sent

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        for name in self.head:
            self.send_header(name, self.head[name])
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(TEXT[: self.sent])
        self.after()


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as http:
        threading.Thread(target=http.serve_forever, args=(0.02,)).start()
        yield http
        http.shutdown()


@pytest.fixture
def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/a.tsv"


def test_a_web_file_is_downloaded_again_if_changed_and_reused_if_the_server_is_down(
    server: ThreadingHTTPServer,
    url: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="electra_albert")
    (first,) = find(url)
    assert first.is_relative_to(cache)
    assert find(url) == [first]
    assert caplog.text.count("downloading") == 1
    monkeypatch.setattr(Server, "head", WHOLE | {"ETag": "2"})
    (second,) = find(url)
    assert second != first
    monkeypatch.setattr(Server, "status", 404)
    assert_refused("UsageError", "none.tsv", find, url.replace("a.tsv", "none.tsv"))
    server.shutdown()
    server.server_close()
    killed = second.parents[1] / ".writing-0-copy" / second.name
    killed.parent.mkdir()
    killed.write_bytes(TEXT[:9])
    assert find(url) == [second]
    assert "copy downloaded before" in caplog.text


@pytest.mark.parametrize(
    ("reason", "sent", "later"),
    [("6,900 bytes were received", len(TEXT) // 2, {}), ("it changed", len(TEXT), {"ETag": "2"})],
)
def test_a_text_cut_short_or_changed_on_its_way_is_refused_and_not_kept(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch, reason: str, sent: int, later: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Server, "sent", sent)
        patch.setattr(Server, "after", lambda _: patch.setattr(Server, "head", WHOLE | later))
        assert "--corpus" in assert_refused("UsageError", reason, find, url)
        patch.setattr(Server, "head", WHOLE)
        task = {"train_file": url, "validation_file": url}
        assert "--train_file" in assert_refused("UsageError", reason, read, "sst2", **task)
    assert not [path for path in cache.rglob("*.tsv") if path.is_file()]
    assert find(url)[0].read_bytes() == TEXT


@pytest.mark.parametrize("head", [{}, {"Content-Length": "0"}])
def test_a_text_whose_size_is_not_announced_is_accepted(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch, head: dict[str, str]
) -> None:
    monkeypatch.setattr(Server, "head", head)
    assert find(url)[0].read_bytes() == TEXT
