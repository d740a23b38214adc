"""A run with compiled blocks is the same run to rounding, and goes on as well as any other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.job import choose_compilation
from tests.apps.conftest import Finished
from tests.apps.tiny_run import STEPS, assert_refused, call, rows

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
# Of a loss after so many float32 updates that began with another order of additions.
TOLERANCE = 1e-3
LOSSES = ("eval_loss", "eval_generator_loss", "eval_discriminator_loss")


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("nothing_compiled_yet")
def test_compiled_blocks_train_to_the_losses_of_plain_ones_also_when_gone_on_with(
    finished: Finished, tmp_path: Path
) -> None:
    folder, compiled = tmp_path / "run", ("--torch_compile", "blocks")
    assert call(pretrain.main, *finished.options(folder, *compiled)).code == 0
    shutil.rmtree(folder / "checkpoints" / f"step-{STEPS:07d}")
    ended = call(pretrain.main, *finished.options(folder, *compiled))
    assert ended.code == 0
    assert f"going on from {folder / 'checkpoints'}" in ended.err
    expected, found = rows(finished.folder)[-1], rows(folder)[-1]
    for name in LOSSES:
        assert found[name] == pytest.approx(expected[name], rel=TOLERANCE)
    # The generator's block and the discriminator's, for both runs.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_nothing_is_compiled_on_a_cpu_unless_it_is_asked_for() -> None:
    cpu = torch.device("cpu")
    assert choose_compilation("auto", cpu) == "none"
    assert choose_compilation("step", cpu) == "step"


def test_a_compilation_that_does_not_exist_is_refused(finished: Finished, tmp_path: Path) -> None:
    ended = call(pretrain.main, *finished.options(tmp_path / "run", "--torch_compile", "all"))
    assert_refused(ended, 2, "torch_compile", "blocks")
