"""User, password and query of an address stay out of all that a run writes and prints."""

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.run_folder import format_command
from electra_albert.contracts import UsageError, redacted
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, succeed
from tests.apps.tiny_tasks import options

SECRETS = ("alice", "s3cret", "s1gned")
ROWS = "review,stars\n"
ROWS += "The old cat crossed the river.,one\nThe quiet dog left the garden.,two\n" * 20


class Silent(SimpleHTTPRequestHandler):
    """Answers without lines on stderr."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address, with user and password, of a server of the tiny run's corpus and of a table."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web").mkdir()
    shutil.copy(finished.corpus, tmp_path / "web" / "tales.txt")
    for name in ("train", "dev"):
        (tmp_path / "web" / f"{name}.csv").write_text(ROWS, encoding="utf-8")
    answer = partial(Silent, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), answer) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://alice:s3cret@127.0.0.1:{server.server_port}"
        server.shutdown()


def leaks(folder: Path) -> list[str]:
    """The files below a folder whose names or contents hold a secret."""
    leaking = []
    for path in filter(Path.is_file, folder.rglob("*")):
        content = str(path.relative_to(folder)).encode() + path.read_bytes()
        if any(secret.encode() in content for secret in SECRETS):
            leaking.append(str(path))
    return leaking


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("https://u:p@h:80/a.txt?sig=1#part", "https://h:80/a.txt"),
        ("--corpus=a,https://u:p@h/x?sig=1,https://v:q@i/y?sig=2", "--corpus=a,https://h/x"),
        ("0.5:s3://key:se/cr@et@bucket/x", "0.5:s3://bucket/x"),
        ("https://token@h and FTP://u:p w#d@h/x", "https://h and FTP://h/x"),
        ("zip://a.txt::https://u:p@h/b.zip?sig=1", "zip://a.txt::https://h/b.zip"),
        ('{"corpus": "https://u:p@h/x?sig=1", "seed": 1}', '{"corpus": "https://h/x", "seed": 1}'),
        ("url='https://h/x?sig=1'); mail a@b?", "url='https://h/x'); mail a@b?"),
        ("hf://a/b@main/x https://h:80/p@1/x", "hf://a/b@main/x https://h:80/p@1/x"),
    ],
)
def test_of_each_address_in_a_text_only_host_and_path_are_left(text: str, public: str) -> None:
    assert redacted({"list": [text, 1]}) == {"list": [public, 1]}
    assert str(UsageError(text)) == public


def test_the_command_in_a_card_has_names_instead_of_absolute_paths() -> None:
    paths = ("/home/jane doe/a.txt", "--output_dir=/data/", '{"tokenizer": "/a/b"}')
    words = ("--corpus", *paths, "runs/x", "hf://a/b")
    public = """python --corpus a.txt --output_dir=data/ '{"tokenizer": "b"}' runs/x hf://a/b"""
    assert format_command(words, is_public=True) == public


def test_a_run_on_a_signed_address_publishes_nothing_of_it_and_resumes(
    finished: Finished, url: str, tmp_path: Path
) -> None:
    plan, prepared = tmp_path / "sources.yaml", ("--prepared_dir", "prepared", "--warmup_steps", 1)
    plan.write_text(f"- corpus: {url}/tales.txt?sig=s1gned.c\n", encoding="utf-8")
    signed = f"{url}/tales.txt?sig=s1gned"
    runs = [("list", plan, 2), ("one", f"{signed}.a", 2), ("one", f"{signed}.b", 3)]  # renewed
    for name, corpus, steps in runs:
        changes = ("--corpus", corpus, "--max_steps", steps, *prepared)
        ended = succeed(pretrain.main, *finished.options(tmp_path / "runs" / name, *changes))
        assert not [secret for secret in SECRETS if secret in ended.out + ended.err]
    assert "after step 2" in ended.err
    refused = call(pretrain.main, "--corpus", f"{url}/none.txt?sig=s1gned")
    assert_refused(refused, 2, "/none.txt", "404")
    card = (tmp_path / "runs" / "one" / "README.md").read_text(encoding="utf-8")
    assert "/tales.txt`" in card
    assert str(tmp_path) not in card
    assert leaks(tmp_path / "runs") + leaks(tmp_path / "prepared") == []


def test_fine_tuning_on_signed_addresses_publishes_nothing_of_them(
    finished: Finished, url: str, tmp_path: Path
) -> None:
    columns = ("--text_column", "review", "--label_column", "stars", "--max_steps", 2)
    for signature in ("s1gned.a", "s1gned.b"):
        table = f"{url}/train.csv?{signature}"
        words = ("--train_file", table, "--validation_file", table, *columns)
        ended = call(finetune.main, *options("custom", None, finished.folder, None, *words))
        assert ended.code == 0, ended.err
        assert not [secret for secret in SECRETS if secret in ended.out + ended.err]
    card = next((tmp_path / "runs").glob("*/README.md")).read_text(encoding="utf-8")
    assert str(finished.folder.parent) not in card
    assert leaks(tmp_path / "runs") == []
