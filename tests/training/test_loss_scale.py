"""Skipped non-finite steps, and the fp16 loss scale."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from electra_albert.contracts import Arithmetic, CheckpointError, DivergedError
from electra_albert.training import loss_scale
from electra_albert.training.checkpoint import list_checkpoints
from electra_albert.training.loss_scale import LossScale, UpdateGuard
from electra_albert.training.optimizer import build_optimizer
from electra_albert.training.step import TrainingStep, count_step
from tests.apps.tiny_run import untimed_rows
from tests.training import toy
from tests.training.test_distributed import run_ranks
from tests.training.test_loop import check_resume, run_of
from tests.training.toy import ALONE, CONFIG, Breaking, ToyBatches, ToyObjective, run_toy

IN_A_ROW = loss_scale.MAX_SKIPPED_IN_A_ROW
CPU = ALONE.device
FIRST_SCALE = 2.0**16  # of PyTorch's GradScaler
EACH = replace(CONFIG, logging_steps=1, save_steps=1)


def test_a_non_finite_step_is_skipped_and_excluded_from_the_metrics(tmp_path: Path) -> None:
    run_toy(tmp_path, EACH, objective=Breaking((3, 5)))
    two, three, four = ((tmp_path / "checkpoints" / f"step-000000{step}") for step in (2, 3, 4))
    for name in ("model.safetensors", "optimizer.safetensors"):
        before, skipped, after = ((path / name).read_bytes() for path in (two, three, four))
        assert before == skipped != after
    training = toy.training_metrics(tmp_path)
    assert [row.get("skipped_steps") for row in training] == [None, None, 1, 1, 2, 2, 2, 2]
    assert [row["step"] for row in training if row["loss"] is None] == [3, 5]


def test_the_fifth_skipped_step_in_a_row_ends_a_run(tmp_path: Path) -> None:
    # Regression: without a save it was noticed at the next log only, up to 100 steps later.
    config = replace(CONFIG, save_steps=100, logging_steps=100)
    with pytest.raises(DivergedError, match="5 steps in a row up to step 7"):
        run_toy(tmp_path, config, objective=Breaking((3, 4, 5, 6, 7, 8)))
    assert list_checkpoints(tmp_path / "checkpoints") == []


def test_non_finite_weights_are_never_saved(tmp_path: Path) -> None:
    model = ToyObjective()
    poison = toy.at_steps({4: lambda: model.table.weight.data[1, 1].fill_(torch.nan)})
    with pytest.raises(DivergedError, match=r"table\.weight"):
        run_toy(tmp_path, objective=model, before=poison)
    assert [step for step, _ in list_checkpoints(tmp_path / "checkpoints")] == [2]


def test_skipped_steps_are_counted_across_resumes() -> None:
    guard = UpdateGuard(CPU)
    for _ in range(loss_scale.MAX_SKIPPED):
        guard.check(1)
        counts = guard.state()
        guard = UpdateGuard(CPU)
        guard.restore(counts)
        for norm in (1.0, torch.nan):
            guard.observe(torch.tensor(norm), torch.tensor(False))
    with pytest.raises(DivergedError, match=f"{loss_scale.MAX_SKIPPED} steps"):
        guard.check(1)


def weighted(weight: float) -> Callable[[], ToyObjective]:
    """A toy with losses, and gradients, `weight` times as large."""

    def build() -> ToyObjective:
        model = ToyObjective()
        model.weights = {name: weight * value for name, value in model.weights.items()}
        return model

    return build


def gradient(folder: Path, arithmetic: Arithmetic, *, is_scaled: bool = True) -> torch.Tensor:
    """The unscaled gradient (around 1e-7) of one step as in the loop; the scale is lowered until
    nothing overflows.
    """
    model = weighted(1e-7)()
    run, batches = replace(run_of(folder), arithmetic=arithmetic), next(ToyBatches(CONFIG).steps(1))
    training_step = TrainingStep(model, run)
    counts = count_step(model, batches, run).terms
    scale = training_step.loss_scale = LossScale(CPU, arithmetic if is_scaled else "fp32")
    has_overflowed = True
    while has_overflowed:
        training_step.optimizer.zero_grad()
        training_step.accumulate(batches, counts, 1)
        scale.unscale_(training_step.optimizer)
        has_overflowed = bool(scale.update_scale())
    return toy.gradient_of(model)


def test_fp16_keeps_small_gradients_only_with_the_loss_scale(tmp_path: Path) -> None:
    # Fp16 keeps eleven bits and nothing below 6e-8.
    wanted, scaled = (gradient(tmp_path, arithmetic) for arithmetic in ("fp32", "fp16"))
    plain = gradient(tmp_path, "fp16", is_scaled=False)
    assert (scaled - wanted).norm() < 0.01 * wanted.norm()
    assert (plain - wanted).norm() > 0.1 * wanted.norm()


def test_the_scale_is_halved_on_overflow_down_to_one_and_doubled_later(tmp_path: Path) -> None:
    module = nn.Linear(2, 2, bias=False)
    optimizer = build_optimizer(module, CONFIG)

    def follow(scale: LossScale, value: float) -> bool:
        module.weight.grad = torch.full_like(module.weight, value) * scale.current()
        scale.unscale_(optimizer)
        return bool(scale.update_scale())

    scale, scales = LossScale(CPU, "fp16"), []
    assert scale.metrics() == {"loss_scale": FIRST_SCALE}
    scale.restore({**scale.state(), "growth_interval": 2}, tmp_path)
    for value in (torch.inf, torch.nan, 1.0, 1.0, 1.0, torch.inf, 1.0, 1.0):
        assert follow(scale, value) == (value != 1)
        scales.append(float(scale.current()) / FIRST_SCALE)
        state = json.dumps(scale.state())
        scale = LossScale(CPU, "fp16")  # as after a resume at each step
        scale.restore(json.loads(state), tmp_path)
    assert scales == [0.5, 0.25, 0.25, 0.5, 0.5, 0.25, 0.25, 0.5]
    assert scale.metrics() == {"loss_scale": 0.5 * FIRST_SCALE, "overflowed_steps": 3}
    scale.restore({**scale.state(), "scale": 2.0}, tmp_path)
    assert [follow(scale, torch.inf) for _ in range(3)] == [True, False, False]


def test_a_resumed_fp16_run_equals_the_uninterrupted_one_bitwise(tmp_path: Path) -> None:
    # The scale changes in six of the eight steps.
    check_resume(tmp_path, CONFIG, weighted(24.0), 3, arithmetic="fp16")
    assert [row for row in untimed_rows(tmp_path / "resumed") if row.get("overflowed_steps") == 6]


def test_a_step_that_is_started_again_has_the_first_scale(tmp_path: Path) -> None:
    run = replace(run_of(tmp_path), arithmetic="fp16")
    training_step = TrainingStep(ToyObjective(), run)
    first = training_step.loss_scale.state()
    training_step.loss_scale.restore({**first, "scale": 2.0, "overflowed": 3}, tmp_path)
    training_step.restart(ToyObjective().state_dict(), run)
    assert training_step.loss_scale.state() == first


def test_overflows_are_skipped_and_counted_separately(tmp_path: Path) -> None:
    config = replace(EACH, max_steps=12)
    outcome, _ = run_toy(tmp_path, config, objective=weighted(1000.0)(), arithmetic="fp16")
    training = toy.training_metrics(tmp_path)
    skipped = [row for row in training if row["loss"] is None]
    assert outcome.step == config.max_steps
    assert [row["step"] for row in skipped[: IN_A_ROW + 1]] == list(range(1, IN_A_ROW + 2))
    assert training[-1]["overflowed_steps"] == len(skipped) < config.max_steps
    assert training[-1]["loss_scale"] == FIRST_SCALE / 2 ** len(skipped)
    assert not any("skipped_steps" in row for row in training)


def test_non_finite_gradients_at_scale_one_are_divergence(tmp_path: Path) -> None:
    config = replace(EACH, max_steps=60)
    with pytest.raises(DivergedError, match=f"{IN_A_ROW} steps in a row up to step 21"):
        run_toy(tmp_path, config, objective=Breaking(tuple(range(1, 61))), arithmetic="fp16")
    last = untimed_rows(tmp_path)[-1]
    # 2**16 is halved 16 times.
    assert [last["overflowed_steps"], last["skipped_steps"]] == [16, IN_A_ROW]


def test_a_resume_cannot_switch_to_or_from_fp16(tmp_path: Path) -> None:
    for then, now in (("bf16", "fp16"), ("fp16", "fp32")):
        run_toy(tmp_path / then, arithmetic=then)
        last = tmp_path / then / "checkpoints" / "step-0000004"
        with pytest.raises(CheckpointError, match="--precision"):
            run_toy(tmp_path / then, resume_from=last, arithmetic=now)


@pytest.mark.slow
def test_an_overflow_on_one_rank_changes_the_scale_of_all(tmp_path: Path) -> None:
    states = json.loads(run_ranks(2, tmp_path, "overflow"))
    assert states[0] == states[1]
    assert states[0]["overflowed"] > 0
    assert states[0]["scale"] == FIRST_SCALE / 2 ** states[0]["overflowed"]
