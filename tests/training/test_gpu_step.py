"""On a GPU a step never synchronises, and compiled code trains to the same losses (law 11). Skipped without one."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.contracts import Arithmetic, Batch
from electra_albert.model.compilation import Compilation, compile_for_training, set_gradient_checkpointing
from electra_albert.training.distributed import World
from electra_albert.training.guards import StopSignal
from electra_albert.training.loop import train
from electra_albert.training.monitor import Monitor, read_metrics
from electra_albert.training.step import RunSettings
from tests.objectives.toy import MODEL, build, make_batch, ordered
from tests.training.toy import CONFIG

pytestmark = pytest.mark.gpu
WARM_STEPS, STEPS = 3, 8
LENGTHS = ((23, 17, 9, 4, 23), (5, 23, 23, 23, 8), (23, 23, 23, 23, 23))
TOLERANCE = 0.02  # of a loss after a few steps in bfloat16, whose rounding error is 2**-8


@pytest.fixture
def world() -> Iterator[World]:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    yield World(0, 1, 0, torch.device("cuda", 0))
    torch.cuda.set_sync_debug_mode("default")


class WatchedBatches:
    """Pinned batches; after the warmup, a synchronisation between two batches is an error."""

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        for step in count(first_step):
            batch = ordered(make_batch(LENGTHS[step % len(LENGTHS)], salt=step)).map(torch.Tensor.pin_memory)
            # The first and the last step log metrics, which synchronises.
            torch.cuda.set_sync_debug_mode("error" if WARM_STEPS < step < STEPS else "default")
            yield [batch]
            torch.cuda.set_sync_debug_mode("default")

    def epoch(self, step: int) -> float:
        return 0.0


def trained(
    world: World, folder: Path, arithmetic: Arithmetic, compilation: Any, name: str, is_checkpointed: bool = False
) -> float:
    """The last logged loss of a run of eight steps."""
    folder.mkdir()
    intervals = dict.fromkeys(("max_steps", "logging_steps", "save_steps", "eval_steps"), STEPS)
    config = replace(CONFIG, learning_rate=1e-3, **intervals)
    objective = build(name, replace(MODEL, hidden_size=64, intermediate_size=128)).to(world.device)
    if is_checkpointed:
        set_gradient_checkpointing(objective)
    compile_for_training(objective, compilation)
    with Monitor(folder, STEPS) as monitor, StopSignal() as stop:
        run = RunSettings(folder, config, world, monitor, stop, arithmetic)
        train(objective, WatchedBatches(), lambda step: {"loss": 0.0}, run)
    return float(read_metrics(folder / "metrics.jsonl")[-2]["loss"])  # the last row is the evaluation


@pytest.mark.parametrize("arithmetic", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["rtd_sop", "mlm_sop"])
def test_a_step_never_synchronises(world: World, tmp_path: Path, name: str, arithmetic: Arithmetic) -> None:
    assert trained(world, tmp_path / "run", arithmetic, "none", name) > 0


@pytest.mark.slow
@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("compilation", ["blocks", "step"])
def test_compiled_code_never_synchronises_and_has_the_eager_losses(
    world: World, tmp_path: Path, compilation: Compilation, is_checkpointed: bool
) -> None:
    plain = trained(world, tmp_path / "plain", "bf16", "none", "rtd_sop")
    compiled = trained(world, tmp_path / "compiled", "bf16", compilation, "rtd_sop", is_checkpointed)
    assert compiled == pytest.approx(plain, rel=TOLERANCE)
