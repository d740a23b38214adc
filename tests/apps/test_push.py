"""Runs, fine-tuned models and exports arrive whole at a stand-in for the hub, which checks login
and names first.
"""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from electra_albert.apps import export
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from tests.apps import tiny_tasks
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, succeed

TOKEN, NAME = "hf_" + "a" * 34, "owner/name"


class Hub(ThreadingHTTPServer):
    """The requests of an upload without LFS: create, ask how to send each file, commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.messages: list[str] = []
        self.branches: list[str] = []


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.reply(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            if name in self.server.repositories:
                return self.reply(409, {"error": "exists", "url": f"https://huggingface.co/{name}"})
            self.server.repositories[name] = {}
            self.server.private |= (
                {name} if asked.get("private") or asked.get("visibility") == "private" else set()
            )
            return self.reply(200, {"url": f"https://huggingface.co/{name}"})
        if "/branch/" in self.path:
            self.server.branches.append(self.path.split("/branch/")[1])
            return self.reply(200, {})
        if "/preupload/" in self.path:
            files = [
                {"path": one["path"], "uploadMode": "regular"} for one in json.loads(body)["files"]
            ]
            return self.reply(200, {"files": [{**one, "shouldIgnore": False} for one in files]})
        if "/commit/" in self.path:
            name, revision = self.path.removeprefix("/api/models/").split("/commit/")
            name += "" if revision.startswith("main") else f"@{revision.split('?')[0]}"
            for row in map(json.loads, body.splitlines()):
                if row["key"] == "header":
                    self.server.messages.append(row["value"]["summary"])
                else:
                    content = base64.b64decode(row["value"]["content"])
                    self.server.repositories.setdefault(name, {})[row["value"]["path"]] = content
            return self.reply(
                200, {"commitUrl": f"https://huggingface.co/{name}/commit/1", "commitOid": "1"}
            )
        return self.reply(200, {"errors": [], "warnings": []})  # validation of the card

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/").split("?")[0]
        if (
            name not in self.server.repositories
            or self.headers.get("Authorization") != f"Bearer {TOKEN}"
        ):
            return self.reply(404, {"error": "Repository not found"})
        self.reply(
            200, {"id": name, "private": name in self.server.private, "siblings": [], "sha": "0"}
        )

    def reply(self, code: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(
        "huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
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
    data = ModelCard((folder / "README.md").read_text(encoding="utf-8")).data
    last = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    found = {result.metric_name: result.metric_value for result in data.eval_results or []}
    assert found["generator accuracy"] == last["eval_generator_accuracy"]
    assert found["discriminator auc"] == last["eval_discriminator_auc"]


def test_fine_tuned_and_exported_models_are_uploaded(
    hub: Hub, finished: Finished, tmp_path: Path
) -> None:
    out = tmp_path / "exported"
    succeed(
        export.main,
        "--model",
        finished.folder,
        "--output_dir",
        out,
        "--push_to_hub",
        "owner/export",
    )
    tiny_tasks.rte(tmp_path)
    data = (
        "--task",
        "rte",
        "--data_dir",
        tmp_path,
        "--model",
        finished.folder,
        "--output_dir",
        tmp_path / "tuned",
    )
    few = (
        "--max_steps",
        2,
        "--max_train_examples",
        24,
        "--max_eval_examples",
        24,
        "--device",
        "cpu",
    )
    succeed(finetune.main, *data, *few)
    # A finished sweep is uploaded too.
    succeed(finetune.main, *data, *few, "--push_to_hub", "owner/tuned")
    assert hub.repositories == {
        "owner/export": contents(out),
        "owner/tuned": contents(tmp_path / "tuned" / "model"),
    }


def test_a_checkpoint_is_uploaded_into_a_branch(
    hub: Hub, finished: Finished, tmp_path: Path
) -> None:
    checkpoint = max((finished.folder / "checkpoints").glob("step-*"))
    asked = (
        "--model",
        checkpoint,
        "--output_dir",
        out := tmp_path / "out",
        "--hub_revision",
        "chck_1M",
    )
    assert_refused(call(export.main, *asked), 2, "--hub_revision")
    assert call(export.main, *asked, "--push_to_hub", NAME).code == 0
    assert hub.repositories == {NAME: {}, f"{NAME}@chck_1M": contents(out)}
    assert hub.branches == ["chck_1M"]


def test_a_missing_login_or_a_wrong_name_is_refused_before_the_training(
    hub: Hub, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = finished.options(folder := tmp_path / "run", "--max_steps", 2, "--push_to_hub")
    for name in ("no/such/name", "name", "true", "owner/"):
        assert_refused(call(pretrain.main, *asked, name), 2, f"push_to_hub={name}", "OWNER/NAME")
    hub.repositories["owner/public"] = {}
    private = (*asked, "owner/public", "--hub_private_repo", "true")
    assert_refused(call(pretrain.main, *private), 2, "owner/public exists and is public")
    glue = ("--task", "glue", "--data_dir", tmp_path, "--push_to_hub", NAME)
    assert_refused(call(finetune.main, *glue), 2, "name one task")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert_refused(call(pretrain.main, *asked, NAME), 2, f"--push_to_hub {NAME}", "login")
    hub.server_close()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert_refused(call(pretrain.main, *asked, NAME), 2, f"--push_to_hub {NAME}", "network")
    assert not (folder / "checkpoints").exists()
    assert not (folder / "generator").exists()
