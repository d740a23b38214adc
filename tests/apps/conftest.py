"""Fixtures: the tiny run that most of these tests read, trained once by the script for all pytest
workers.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

from electra_albert.apps import default_model, export
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.config.pretraining import PretrainConfig
from tests.apps.tiny_run import Ended, english, finish, options, start, succeed

DOCUMENTS = 130
Once = Callable[[str, Callable[[], Ended]], Ended]


class Finished(NamedTuple):
    """A finished run of Pretraining.py."""

    folder: Path
    corpus: Path
    prepared: Path
    ended: Ended

    def options(self, output: Path | None, *more: object) -> list[str]:
        """Options of the same run with another output folder and the same prepared data."""
        return options(self.corpus, self.prepared, output, *more)

    def config(self) -> PretrainConfig:
        """The configuration of the run, with the size of its vocabulary."""
        _, config = parse_pretraining(self.options(None))
        record = json.loads((self.folder / "environment.json").read_text(encoding="utf-8"))
        vocab_size = record["settings"]["model"]["vocab_size"]
        return replace(config, model=replace(config.model, vocab_size=vocab_size))


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder shared by all pytest-xdist workers, the parent of their temporary folders."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "apps"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def make_once(shared_folder: Path) -> Once:
    """Run something in one worker for all of them; the others wait for it."""

    def once(name: str, make: Callable[[], Ended]) -> Ended:
        done = shared_folder / f"{name}.json"
        with FileLock(shared_folder / f"{name}.lock"):
            if not done.exists():
                done.write_text(json.dumps(make()), encoding="utf-8")
        return Ended(*json.loads(done.read_text(encoding="utf-8")))

    return once


@pytest.fixture(scope="session")
def finished(shared_folder: Path, make_once: Once) -> Finished:
    """The tiny run, read-only for tests."""
    corpus, prepared, folder = map(shared_folder.joinpath, ("tales.txt", "prepared", "run"))

    def make() -> Ended:
        corpus.write_text(english(DOCUMENTS), encoding="utf-8")
        return finish(start(["Pretraining.py", *options(corpus, prepared, folder)], shared_folder))

    ended = make_once("run", make)
    assert ended.code == 0, ended.err
    return Finished(folder, corpus, prepared, ended)


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(finished.folder, tmp_path / "run")


@pytest.fixture(scope="session")
def shipped(finished: Finished, shared_folder: Path, make_once: Once) -> Path:
    """Generator and discriminator of the tiny run in half precision, read-only for tests."""
    folder = shared_folder / "shipped"

    def make() -> Ended:
        for kind in ("generator", "discriminator"):
            argv = ("--model", finished.folder, "--kind", kind, "--output_dir", folder / kind)
            ended = succeed(export.main, *argv, "--dtype", "float16")
        return ended

    make_once("shipped", make)
    return folder


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder that also replaces the folder of shipped models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(default_model, "SHIPPED", tmp_path / "data" / "models")
    return tmp_path
