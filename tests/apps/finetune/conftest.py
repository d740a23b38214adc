"""A small sweep shared by the tests of folders and seeds, made once for all of pytest's workers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.conftest import Finished, Once
from tests.apps.tiny_run import Ended
from tests.apps.tiny_tasks import Tiny, cola, tune

# Dropout uses torch's random stream, and after few updates the seeds still differ.
QUICK = ["--num_train_epochs", "2", "--logging_steps", "1", "--hidden_dropout_prob", "0.1"]
Tuned = Callable[..., tuple[Path, Ended]]
Again = Callable[..., list[str]]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return cola(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def tuned(finished: Finished, shared_folder: Path, make_once: Once) -> Tuned:
    """Fine-tunes the tiny run on a task into a folder of this name, once.

    Tests must not change it.
    """

    def train(name: str, task: Tiny, *more: object) -> tuple[Path, Ended]:
        folder = shared_folder / name
        return folder, make_once(name, lambda: tune(*task.options(finished.folder, folder, *more)))

    return train


@pytest.fixture(scope="session")
def sweep(tuned: Tuned, tiny: Tiny) -> Path:
    """A finished sweep over two seeds. Tests must not change it."""
    return tuned("sweep", tiny, *QUICK, "--seeds", 2)[0]


@pytest.fixture(scope="session")
def again(finished: Finished, tiny: Tiny) -> Again:
    """The options of the sweep for a folder; further ones override them."""
    return lambda folder, *more: tiny.options(finished.folder, folder, *QUICK, "--seeds", 2, *more)


@pytest.fixture
def copy(sweep: Path, tmp_path: Path) -> Path:
    """A copy of the sweep that tests may change."""
    return shutil.copytree(sweep, tmp_path / "copy")
