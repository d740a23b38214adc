"""A run that was begun before is taken up with what it was begun with, or refused in words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.run_folder import compare_settings
from electra_albert.config import PretrainConfig, as_settings
from electra_albert.contracts import CheckpointError, UsageError
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call
from tests.apps.tiny_stock import Desk, adapt

ELECTRA = "ElectraForPreTraining"
ALONE = ("--rtd.generator_warmup_steps", "6", "--max_steps", "8", "--save_steps", "3")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture
def in_warmup(desk: Desk, tmp_path: Path) -> Path:
    """A run whose generator was being warmed up when it was killed."""
    run = tmp_path / "run"
    adapt(desk, desk.stock(ELECTRA), run, *ALONE)
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "generator_warmup" / "checkpoints" / "step-0000006")
    return run


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--objective", "mlm"), "objective rtd then, mlm now"),
        (("--max_steps", "5"), "max_steps 8 then, 5 now"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_warmup_of_other_settings_is_refused(
    desk: Desk, in_warmup: Path, change: tuple[str, str], words: str
) -> None:
    # Regression: another objective was begun in the same folder, and a shorter run took the generator half trained.
    options = [value for pair in zip(ALONE[::2], ALONE[1::2], strict=True) for value in pair if pair[0] != change[0]]
    if change[0] == "--objective":
        options = options[2:]  # a setting of rtd alone
    ended = call(pretrain.main, *desk.options(desk.stock(ELECTRA), in_warmup, *options, *change))
    assert_refused(ended, 4, words)


def test_an_old_text_cannot_be_added_to_a_run_that_has_begun(desk: Desk, tmp_path: Path, finished: Finished) -> None:
    run = tmp_path / "run"
    options = ["--rtd.generator_warmup_steps", "0", "--max_steps", "4"]
    adapt(desk, desk.stock(ELECTRA), run, *options)
    again = desk.options(desk.stock(ELECTRA), run, *options, "--old_corpus", finished.corpus)
    assert_refused(call(pretrain.main, *again), 4, "old_corpus None then")


def test_an_origin_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    argv = ["--init_from", str(tmp_path / "albert-base-v2"), "--output_dir", str(tmp_path / "run")]
    with pytest.raises((UsageError, CheckpointError), match="does not exist"):
        parse_pretraining(argv, "Pretraining.py")


def test_an_option_that_came_after_a_run_was_begun_had_its_default() -> None:
    now = as_settings(PretrainConfig())
    before = {**now, "model": {name: value for name, value in now["model"].items() if "attention_" not in name}}
    del before["model"]["attention"]
    assert compare_settings(before, now, Path("run")) == []
    other = {**now, "model": {**now["model"], "attention": "window"}}
    with pytest.raises(CheckpointError, match=r"model\.attention softmax then, window now"):
        compare_settings(before, other, Path("run"))
