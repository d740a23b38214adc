"""Runs, fine-tuned models and exports arrive whole at a stand-in for the hub, which checks login
and names first.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects

from electra_albert.apps import export
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.hub import save
from tests.apps import tiny_tasks
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, rows, succeed

NAME = "owner/name"


class Hub:
    """Stands in for huggingface_hub.HfApi; branches are repositories NAME@BRANCH."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.messages: list[str] = []

    def create_repo(self, name: str, *, private: bool | None, exist_ok: bool) -> None:
        assert exist_ok
        if private and name not in self.repositories:
            self.private.add(name)
        self.repositories.setdefault(name, {})

    def repo_info(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(private=name in self.private)

    def create_branch(self, name: str, *, branch: str, exist_ok: bool) -> None:
        assert exist_ok
        self.repositories[f"{name}@{branch}"] = {}

    def upload_folder(
        self,
        repo_id: str,
        folder_path: Path,
        commit_message: str,
        allow_patterns: list[str] | None,
        revision: str | None,
    ) -> SimpleNamespace:
        name = f"{repo_id}@{revision}" if revision else repo_id
        files = contents(folder_path)
        chosen = filter_repo_objects(files, allow_patterns=allow_patterns)
        self.repositories[name].update({file: files[file] for file in chosen})
        self.messages.append(commit_message)
        return SimpleNamespace(repo_url=name)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr(save, "HfApi", lambda: hub)
    return hub


class NoLogin(BaseHTTPRequestHandler):
    """Refuses every request."""

    def do_POST(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    """A real hub's server that refuses the login."""
    server = HTTPServer(("127.0.0.1", 0), NoLogin)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    yield server
    server.shutdown()
    server.server_close()


def contents(folder: Path, *parts: str) -> dict[str, bytes]:
    files = [file for part in parts or ("**/*",) for file in folder.glob(part) if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def test_a_finished_run_is_uploaded_with_its_card(
    hub: Hub, finished: Finished, tmp_path: Path
) -> None:
    few = ("--max_steps", 2, "--push_to_hub", NAME, "--hub_private_repo", "true")
    succeed(pretrain.main, *finished.options(folder := tmp_path / "run", *few))
    models = ("generator/*", "discriminator/*", "tokenizer/*")
    assert hub.repositories == {NAME: contents(folder, "README.md", "metrics.jsonl", *models)}
    assert (hub.private, hub.messages) == ({NAME}, ["Step 2"])
    card = ModelCard.load(folder / "README.md")
    found = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert found["discriminator auc"] == rows(folder)[-1]["eval_discriminator_auc"]


def test_fine_tuned_and_exported_models_are_uploaded(
    hub: Hub, finished: Finished, tmp_path: Path
) -> None:
    out, tuned = tmp_path / "exported", tmp_path / "tuned"
    words = ("--model", finished.folder, "--output_dir", out, "--push_to_hub", "owner/export")
    succeed(export.main, *words)
    argv = tiny_tasks.cola(tmp_path).options(finished.folder, tuned, "--max_steps", 2)
    tiny_tasks.tune(*argv)
    # A finished sweep is uploaded too.
    tiny_tasks.tune(*argv, "--push_to_hub", "owner/tuned")
    assert hub.repositories == {
        "owner/export": contents(out),
        "owner/tuned": contents(tuned / "model"),
    }


def test_a_checkpoint_is_uploaded_into_a_branch(
    hub: Hub, finished: Finished, tmp_path: Path
) -> None:
    checkpoint = max((finished.folder / "checkpoints").glob("step-*"))
    out = tmp_path / "out"
    asked = ("--model", checkpoint, "--output_dir", out, "--hub_revision", "chck_1M")
    assert_refused(call(export.main, *asked), 2, "--hub_revision")
    private = (*asked[:4], "--hub_private_repo")
    assert_refused(call(export.main, *private), 2, "--hub_private_repo")
    assert call(export.main, *asked, "--push_to_hub", NAME).code == 0
    assert hub.repositories == {NAME: {}, f"{NAME}@chck_1M": contents(out)}


def test_a_wrong_name_is_refused_before_the_training(
    hub: Hub, finished: Finished, tmp_path: Path
) -> None:
    asked = finished.options(folder := tmp_path / "run", "--max_steps", 2, "--push_to_hub")
    for name in ("no/such/name", "name", "owner/"):
        assert_refused(call(pretrain.main, *asked, name), 2, f"push_to_hub={name}", "OWNER/NAME")
    hub.repositories["owner/public"] = {}
    private = (*asked, "owner/public", "--hub_private_repo", "true")
    assert_refused(call(pretrain.main, *private), 2, "owner/public exists and is public")
    glue = ("--task", "glue", "--data_dir", tmp_path, "--push_to_hub", NAME)
    assert_refused(call(finetune.main, *glue), 2, "name one task")
    assert not (folder / "generator").exists()


def test_a_missing_login_is_refused_before_the_training(
    refusing: HTTPServer, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = finished.options(tmp_path / "run", "--max_steps", 2, "--push_to_hub", NAME)
    assert_refused(call(pretrain.main, *asked), 2, f"--push_to_hub {NAME}", "login")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert_refused(call(pretrain.main, *asked), 2, f"--push_to_hub {NAME}", "network")
    assert not (tmp_path / "run" / "checkpoints").exists()
