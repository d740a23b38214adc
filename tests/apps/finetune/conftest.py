"""A small sweep that the tests of folders and of seeds look at: made once for all of pytest's workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, call
from tests.apps.tiny_tasks import Tiny, cola

# Dropout, so that torch's own stream matters, and so few updates that nothing is learnt yet: seeds differ.
QUICK: tuple[object, ...] = ("--num_train_epochs", 2, "--logging_steps", 1, "--hidden_dropout_prob", 0.1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return cola(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def sweep(finished: Finished, shared_folder: Path, make_once: Callable[..., Ended], tiny: Tiny) -> Path:
    """A finished sweep over two seeds. Tests read it and leave it as it is."""
    folder = shared_folder / "sweep"
    argv = tiny.options(finished.folder, folder, *QUICK, "--seeds", 2)
    ended = make_once("sweep", lambda: call(finetune.main, *argv))
    assert ended.code == 0, ended.err
    return folder


@pytest.fixture
def copy(sweep: Path, tmp_path: Path) -> Path:
    """The same sweep, to change."""
    return shutil.copytree(sweep, tmp_path / "copy")
