"""What --dry_run says of the planned steps: operations as PyTorch counts them, and parts that add up."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from electra_albert.apps import obstacles
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.estimate import evaluation_count, step_flops
from electra_albert.apps.pretrain.step_time import StepTime, timed
from electra_albert.config import CorpusConfig, MlmConfig, PretrainConfig, RtdConfig, RunConfig
from electra_albert.contracts import Metrics
from electra_albert.presets import PRESETS
from tests.apps.conftest import Finished
from tests.apps.tiny_run import STEPS, call
from tests.objectives import toy
from tests.training.toy import CONFIG, run_toy

LENGTH, ROWS, MASK_RATE = 23, 5, 0.3
MODELS = {
    "one group": toy.MODEL,
    "several groups": replace(toy.MODEL, num_hidden_layers=6, num_hidden_groups=3),
    "inner groups": replace(toy.MODEL, num_hidden_layers=6, num_hidden_groups=2, inner_group_num=3),
}


def seen_operations(objective: toy.PretrainingObjective) -> int:
    """Operations that PyTorch's counter sees in one training step."""
    batch = toy.ordered(toy.make_batch(length=LENGTH))
    assert batch.input_ids.shape == (ROWS, LENGTH)
    with FlopCounterMode(display=False) as counter:
        # In bfloat16 attention on the CPU is written as matrix products; the counter does not know its fused kernel.
        with torch.autocast("cpu", torch.bfloat16):
            terms = objective(batch, toy.STEP)
        torch.stack([terms[name].sum for name in objective.weights]).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", toy.OBJECTIVES)
def test_a_step_makes_the_operations_counted_from_its_settings(name: str, model: str) -> None:
    config = PretrainConfig(
        run=RunConfig(objective=name),  # type: ignore[arg-type]
        corpus=CorpusConfig(max_seq_length=LENGTH),
        model=MODELS[model],
        rtd=RtdConfig(mask_rate=MASK_RATE),
        mlm=MlmConfig(mask_rate=MASK_RATE),
    )
    assert step_flops(config, ROWS) == seen_operations(toy.build(name, MODELS[model], MASK_RATE))


def test_small_takes_about_70_million_operations_a_token() -> None:
    rows = 128
    assert step_flops(PRESETS["small"], rows) / (rows * 128) == pytest.approx(70e6, rel=0.01)


def test_a_step_takes_as_many_micro_batches_as_it_accumulates_and_one_update() -> None:
    times = StepTime(micro_batches=[3.0, 2.0, 50.0], update=0.5, evaluation_batch=7.0, peak_memory=None)
    assert [times.step(count) for count in (1, 4)] == [3.5, 12.5]


def test_an_action_is_timed_over_all_the_times_it_is_done() -> None:
    done: list[int] = []
    seconds = timed(lambda: done.append(1), torch.device("cpu"), 7)
    assert len(done) == 7
    assert 0 < seconds < 1


@pytest.mark.parametrize("done_steps", [0, 4, 5, 12])
@pytest.mark.parametrize("eval_steps", [1, 5, 100])
def test_evaluations_are_those_that_the_loop_makes(eval_steps: int, done_steps: int, tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=12, eval_steps=eval_steps, save_steps=1)
    made: list[int] = []

    def evaluate(step: int) -> Metrics:
        made.append(step)
        return {"loss": 0.0}

    resume_from = tmp_path / "first" / "checkpoints" / f"step-{done_steps:07d}" if done_steps else None
    if resume_from is not None:
        run_toy(tmp_path / "first", config)
    (tmp_path / "second").mkdir()
    run_toy(tmp_path / "second", config, resume_from=resume_from, evaluate=evaluate)
    assert evaluation_count(config, done_steps, scores_start=False) == len(made)
    assert evaluation_count(config, 0, scores_start=True) == evaluation_count(config, 0, scores_start=False) + 1


def test_what_the_memory_cannot_hold_is_not_tried(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstacles, "memory_of", lambda device: 1000)
    ended = call(pretrain.main, *finished.options(tmp_path / "run", "--dry_run"))
    assert ended.code == 0, ended.err
    assert (
        "not timed: cpu has 0.0 MB of memory in all; to train here, lower --per_device_train_batch_size 8" in ended.err
    )
    assert "measured micro-batches" not in ended.err


def to_bytes(number: str, unit: str) -> float:
    return float(number) * {"MB": 1e6, "GB": 1e9}[unit]


@pytest.mark.parametrize("objective", toy.OBJECTIVES)
def test_a_dry_run_says_what_the_steps_will_take(objective: str, finished: Finished, tmp_path: Path) -> None:
    argv = finished.options(tmp_path / "run", "--dry_run", "--objective", objective)
    ended = call(pretrain.main, *argv, "--gradient_accumulation_steps", 2)
    assert ended.code == 0, ended.err
    assert re.search(r"[\d.]+ million FLOPs a token, [\d.]+ (m|b)illion a step", ended.err)
    line = next(line for line in ended.err.splitlines() if line.startswith("memory of a step"))
    peak, *parts = (to_bytes(*found) for found in re.findall(r"([\d.]+) (MB|GB)", line))
    assert len(parts) == 4
    assert sum(parts) == pytest.approx(peak, abs=0.3e6)  # printed in tenths of a megabyte
    assert f"{STEPS} steps in " in ended.err
    assert "; 2 evaluations of " in ended.err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_of_a_finished_run_has_no_steps_left(finished: Finished) -> None:
    before = sorted(path.name for path in finished.folder.iterdir())
    ended = call(pretrain.main, *finished.options(finished.folder, "--dry_run"))
    assert ended.code == 0, ended.err
    assert "measured micro-batches" in ended.err
    assert ", 0 steps in " in ended.err
    assert sorted(path.name for path in finished.folder.iterdir()) == before
