"""User, password and query of an address stay out of all that a run writes and prints."""

import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.run_folder import format_command
from electra_albert.contracts import LOG, UsageError, redacted
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, succeed
from tests.apps.tiny_tasks import options
from tests.refusals import rows

ROWS = "review,stars\n"
ROWS += "The old cat crossed the river.,one\nThe quiet dog left the garden.,two\n" * 20


@pytest.fixture
def url(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address, with user and password, of a server of the tiny run's corpus and of a table."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    shutil.copy(finished.corpus, tmp_path)
    (tmp_path / "table.csv").write_text(ROWS, encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://alice:s3cret@127.0.0.1:{server.server_port}"
        server.shutdown()


TEXTS = """
https://u:p@h:80/a.txt?sig=1#part | https://h:80/a.txt
--corpus=a,https://u:p@h/x?sig=1,https://v:q@i/y?sig=2 | --corpus=a,https://h/x
0.5:s3://key:se/cr@et@bucket/x | 0.5:s3://bucket/x
https://token@h and FTP://u:p w#d@h/x | https://h and FTP://h/x
zip://a.txt::https://u:p@h/b.zip?sig=1 | zip://a.txt::https://h/b.zip
{"corpus": "https://u:p@h/x?sig=1", "seed": 1} | {"corpus": "https://h/x", "seed": 1}
url='https://h/x?sig=1'); mail a@b? | url='https://h/x'); mail a@b?
hf://a/b@main/x https://h:80/p@1/x | hf://a/b@main/x https://h:80/p@1/x
error: --text http:/u:p@h/x?sig=1: no such file | error: --text http:/h/x: no such file
--corpus https://h/my file.txt?sig=1 | --corpus https://h/my file.txt
C:/a@b? | C:/a@b?
's3://bucket:x/' and "mail a@b" | 's3://bucket:x/' and "mail a@b"
"""


@pytest.mark.parametrize(("text", "public"), rows(TEXTS))
def test_of_each_address_in_a_text_only_host_and_path_are_left(
    text: str, public: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = redacted({"list": [text, 1], "pair": (text, 2)})
    assert values == {"list": [public, 1], "pair": [public, 2]}
    assert str(UsageError(text)) == public
    LOG.warning("%s", text)  # Regression: the caller's handlers got the address as it was.
    assert caplog.messages == [public]


def test_the_command_in_a_card_has_names_instead_of_absolute_paths() -> None:
    paths = ("/home/jane doe/a.txt", "--output_dir=/data/", '{"tokenizer": "/a/b"}')
    words = ("electra-albert", "--corpus", *paths, "runs/x", "hf://a/b")
    public = (
        """electra-albert --corpus a.txt --output_dir=data/ '{"tokenizer": "b"}' runs/x hf://a/b"""
    )
    assert format_command(words, is_public=True) == public


def test_nothing_of_a_signed_address_is_published_and_a_renewed_one_resumes(
    finished: Finished, url: str, tmp_path: Path
) -> None:
    plan = tmp_path / "sources.yaml"
    plan.write_text(f"- corpus: {url}/tales.txt?sig=s1gned.c\n", encoding="utf-8")
    text, table = f"{url}/tales.txt?sig=s1gned", f"{url}/table.csv?sig=s1gned"
    short = ("--prepared_dir", tmp_path / "runs" / "prepared", "--warmup_steps", 1, "--max_steps")
    columns = ("--text_column", "review", "--label_column", "stars", "--max_steps", 2)
    shown = ""
    for name, corpus, steps in (("list", plan, 2), ("a", f"{text}.a", 2), ("a", f"{text}.b", 3)):
        words = finished.options(tmp_path / "runs" / name, "--corpus", corpus, *short, steps)
        shown += succeed(pretrain.main, *words).err
    for letter in "ab":
        files = ("--train_file", f"{table}.{letter}", "--validation_file", f"{table}.{letter}")
        words = options("custom", None, finished.folder, None, *files, *columns)
        shown += "".join(map(str, succeed(finetune.main, *words)))
    assert "after step 2" in shown
    refused = call(pretrain.main, "--corpus", f"{url}/none.txt?sig=s1gned")
    assert_refused(refused, 2, "/none.txt", "404")
    records = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    cards = b"".join(path.read_bytes() for path in records if path.name == "README.md")
    assert b"/tales.txt`" in cards
    assert str(finished.folder.parent).encode() not in cards
    content = b"".join(str(path).encode() + path.read_bytes() for path in records)
    content += (shown + refused.err).encode()
    assert [secret for secret in (b"alice", b"s3cret", b"s1gned") if secret in content] == []
