"""fp16 trains what fp32 trains: its scale saves small gradients, answers overflows, and survives a resume."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from electra_albert.contracts import Arithmetic, CheckpointError, DivergedError
from electra_albert.training.checkpoint import STATE, load_checkpoint, read_state
from electra_albert.training.guards import MAX_SKIPPED_IN_A_ROW, StopSignal
from electra_albert.training.monitor import Monitor
from electra_albert.training.optimizer import build_optimizer
from electra_albert.training.run import Run
from electra_albert.training.scaling import LossScale
from electra_albert.training.step import backward, count_step, term_scales
from tests.training.test_distributed import run_ranks
from tests.training.test_loop import Breaking, check_resume_is_exact
from tests.training.toy import ALONE, CONFIG, ToyBatches, ToyObjective, fingerprint, rows, run_toy

CPU = ALONE.device
FIRST_SCALE = 2.0**16  # of PyTorch's GradScaler
EACH = replace(CONFIG, logging_steps=1, save_steps=1)


def weighted(weight: float) -> Callable[[], ToyObjective]:
    """A toy whose losses, and so its gradients, are `weight` times as large."""

    def build() -> ToyObjective:
        model = ToyObjective()
        model.weights = {name: weight * value for name, value in model.weights.items()}
        return model

    return build


def gradient(model: ToyObjective, folder: Path, arithmetic: Arithmetic, *, is_scaled: bool = True) -> torch.Tensor:
    """The gradient of one update as the loop makes it, unscaled; the scale is brought down to where it fits."""
    run = Run(folder, CONFIG, ALONE, Monitor(folder, 8), StopSignal(), arithmetic)
    batches = next(ToyBatches(CONFIG).steps(1))
    scales = term_scales(model.weights, count_step(model, batches, run).terms, 1)
    optimizer = build_optimizer(model, CONFIG)
    scale = LossScale(CPU, arithmetic)
    while True:
        backward(model, batches, scales, 1, run, scale.current() if is_scaled else None)
        if not is_scaled:
            break
        scale.unscale(optimizer)
        if not scale.follow():
            break
        optimizer.zero_grad()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_small_gradients_are_those_of_fp32_and_are_lost_without_the_scale(tmp_path: Path) -> None:
    # Fp16 keeps eleven bits and nothing below 6e-8; these gradients are around 1e-7.
    wanted = gradient(weighted(1e-7)(), tmp_path, "fp32")
    scaled = gradient(weighted(1e-7)(), tmp_path, "fp16")
    plain = gradient(weighted(1e-7)(), tmp_path, "fp16", is_scaled=False)
    assert (scaled - wanted).norm() < 0.01 * wanted.norm()
    assert (plain - wanted).norm() > 0.1 * wanted.norm()


def overflowing(scale: LossScale, weight: nn.Linear, optimizer: torch.optim.Optimizer, value: float) -> bool:
    weight.weight.grad = torch.full_like(weight.weight, value) * scale.current()
    scale.unscale(optimizer)
    return bool(scale.follow())


def test_the_scale_halves_at_an_overflow_and_doubles_after_a_while_without(tmp_path: Path) -> None:
    module = nn.Linear(2, 2, bias=False)
    optimizer = build_optimizer(module, CONFIG)
    scale = LossScale(CPU, "fp16")
    scale.restore({**scale.state(), "growth_interval": 2}, tmp_path)
    found = []
    for value in (torch.inf, torch.nan, 1.0, 1.0, 1.0, torch.inf, 1.0, 1.0):
        has_overflowed = overflowing(scale, module, optimizer, value)
        found.append((float(scale.current()) / FIRST_SCALE, has_overflowed))
        resumed = LossScale(CPU, "fp16")  # after every update, as if it had been saved there
        resumed.restore(json.loads(json.dumps(scale.state())), tmp_path)
        scale = resumed
    halves = [(0.5, True), (0.25, True), (0.25, False), (0.5, False), (0.5, False), (0.25, True)]
    assert found == [*halves, (0.25, False), (0.5, False)]
    assert scale.row() == {"loss_scale": 0.5 * FIRST_SCALE, "overflowed_steps": 3}


def test_from_a_scale_of_one_down_a_gradient_that_is_not_finite_is_no_overflow(tmp_path: Path) -> None:
    module = nn.Linear(2, 2, bias=False)
    optimizer = build_optimizer(module, CONFIG)
    scale = LossScale(CPU, "fp16")
    scale.restore({**scale.state(), "scale": 2.0}, tmp_path)
    assert [overflowing(scale, module, optimizer, torch.inf) for _ in range(3)] == [True, False, False]


def test_in_other_arithmetic_there_is_no_scale(tmp_path: Path) -> None:
    module = nn.Linear(2, 2, bias=False)
    scale = LossScale(CPU, "bf16")
    assert not overflowing(scale, module, build_optimizer(module, CONFIG), torch.inf)
    assert (float(scale.current()), scale.row(), scale.state()) == (1.0, {}, {})


# --- through the loop -----------------------------------------------------------------------------------------------


def test_fp16_learns_what_fp32_learns(tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=400, eval_steps=400, save_steps=400)
    losses: dict[str, float] = {}
    for arithmetic in ("fp32", "fp16"):
        outcome, model, _ = run_toy(tmp_path / arithmetic, config, arithmetic=arithmetic)
        losses[arithmetic] = outcome.metrics["token_loss"]
        assert model.table.weight.dtype == torch.float32
    assert losses["fp32"] < 2.0  # it starts at 5, and a guess costs ln 11, about 2.4
    assert losses["fp16"] == pytest.approx(losses["fp32"], abs=0.1)
    assert losses["fp16"] != losses["fp32"]


@pytest.mark.parametrize("step", range(1, 8))
def test_a_resumed_fp16_run_is_the_uninterrupted_one_to_the_bit(tmp_path: Path, step: int) -> None:
    # The scale moves at six of the eight updates.
    check_resume_is_exact(tmp_path, CONFIG, weighted(32.0), step, "fp16")
    assert [row for row in rows(tmp_path / "resumed") if row.get("overflowed_steps") == 6]


def test_a_resume_that_forgets_the_scale_is_caught(tmp_path: Path) -> None:
    # Planted fault: a checkpoint that says the scale is still the first one.
    run_toy(tmp_path / "through", EACH, objective=weighted(32.0)(), arithmetic="fp16")
    start = tmp_path / "through" / "checkpoints" / "step-0000004"
    state = read_state(start)
    state["loss_scale"]["scale"] = FIRST_SCALE
    (start / STATE).write_text(json.dumps(state))
    forgetful = weighted(32.0)()
    run_toy(tmp_path / "resumed", EACH, objective=forgetful, resume_from=start, arithmetic="fp16")
    assert rows(tmp_path / "resumed")[-1] != rows(tmp_path / "through")[-1]


def test_overflows_skip_the_update_are_counted_apart_and_never_end_the_run(tmp_path: Path) -> None:
    config = replace(EACH, max_steps=12)
    outcome, _, _ = run_toy(tmp_path, config, objective=weighted(1000.0)(), arithmetic="fp16")
    training = [row for row in rows(tmp_path) if "loss" in row]
    skipped = [row for row in training if row["loss"] is None]
    assert outcome.step == config.max_steps
    assert [row["step"] for row in skipped[: MAX_SKIPPED_IN_A_ROW + 1]] == list(range(1, MAX_SKIPPED_IN_A_ROW + 2))
    assert training[-1]["overflowed_steps"] == len(skipped) < config.max_steps
    assert training[-1]["loss_scale"] == FIRST_SCALE / 2 ** len(skipped)
    assert not any("skipped_steps" in row for row in training)


def test_an_overflow_changes_no_weight_moment_or_counter(tmp_path: Path) -> None:
    run_toy(tmp_path, EACH, objective=weighted(1000.0)(), arithmetic="fp16")
    model = ToyObjective()
    optimizer = build_optimizer(model, CONFIG)
    start = fingerprint(model)
    load_checkpoint(tmp_path / "checkpoints" / "step-0000005", model, optimizer)
    assert fingerprint(model) == start
    assert not any(value.any() for state in optimizer.state.values() for value in state.values())


def test_what_no_scale_mends_ends_the_run_once_the_scale_is_down(tmp_path: Path) -> None:
    config = replace(EACH, max_steps=60)
    with pytest.raises(DivergedError, match=f"by step 21 {MAX_SKIPPED_IN_A_ROW} updates in a row"):
        run_toy(tmp_path, config, objective=Breaking(tuple(range(1, 61))), arithmetic="fp16")
    last = rows(tmp_path)[-1]
    assert (last["overflowed_steps"], last["skipped_steps"]) == (16, MAX_SKIPPED_IN_A_ROW)  # 2**16 is halved 16 times


@pytest.mark.parametrize(("then", "now"), [("fp32", "fp16"), ("bf16", "fp16"), ("fp16", "fp32")])
def test_a_run_goes_on_with_the_scale_it_had_or_not_at_all(tmp_path: Path, then: Arithmetic, now: Arithmetic) -> None:
    run_toy(tmp_path, arithmetic=then)
    start = tmp_path / "checkpoints" / "step-0000004"
    with pytest.raises(CheckpointError, match="--precision"):
        run_toy(tmp_path, resume_from=start, arithmetic=now)


@pytest.mark.slow
def test_an_overflow_on_one_rank_moves_the_scale_of_all(tmp_path: Path) -> None:
    states = json.loads(run_ranks(2, tmp_path, "overflow"))
    assert states[0] == states[1]
    assert states[0]["overflowed"] > 0
    assert states[0]["scale"] == FIRST_SCALE / 2 ** states[0]["overflowed"]
