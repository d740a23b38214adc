"""--log_gradient_norms: the gradients of the losses add up to that of the step, which they do not change."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from electra_albert.contracts import Batch
from electra_albert.model.compilation import compile_for_training
from electra_albert.training.guards import StopSignal
from electra_albert.training.monitor import Monitor
from electra_albert.training.step import RunSettings, TrainingStep, term_gradients
from tests.model.test_compilation_and_checkpointing import compiled
from tests.objectives.toy import build, make_batch
from tests.training import toy
from tests.training.test_distributed import run_ranks
from tests.training.toy import ALONE, CONFIG, ToyBatches, ToyObjective, fingerprint, run_toy

STEP = 2
NORMS = ["grad_norm/token_loss", "grad_norm/order_loss"]


def term_and_total(module: Any, batch: Batch, loss_scale: float = 1.0) -> tuple[dict[str, Tensor], Tensor]:
    """The gradient of each loss as a vector, and that of one step on the micro-batch."""
    run = RunSettings(Path(), CONFIG, ALONE, Monitor(Path(), 1, is_main=False), StopSignal())
    found = term_gradients(module, batch, STEP, run, torch.tensor(loss_scale))
    vectors = {name: torch.cat([each.flatten() for each in gradients]) for name, gradients in found}
    assert all(parameter.grad is None for parameter in module.parameters())
    training_step = TrainingStep(module, run)
    training_step.accumulate([batch], training_step.scales(module.counts(batch, STEP)), STEP)
    return vectors, toy.gradient_of(module)


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_the_gradients_of_the_losses_add_up_to_that_of_the_step(loss_scale: float) -> None:
    batch = next(ToyBatches(CONFIG).steps(STEP))[0]
    found, total = term_and_total(ToyObjective(0.2, torch.float64), batch, loss_scale)  # the same dropout in each
    assert list(found) == ["token_loss", "order_loss"]
    assert all(float(vector.norm()) > 1e-2 for vector in found.values())
    torch.testing.assert_close(sum(found.values()), total, rtol=1e-12, atol=1e-15)


def logged(folder: Path, **more: Any) -> tuple[str, list[dict[str, Any]]]:
    """Hash of the final weights and rows of training metrics of a toy run."""
    _, objective = run_toy(folder, replace(CONFIG, **more))
    return fingerprint(objective), toy.training_metrics(folder)


def test_logging_them_changes_no_weight_and_no_other_number(tmp_path: Path) -> None:
    parts = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    weights, without = logged(tmp_path / "without", **parts)
    same, rows = logged(tmp_path / "with", **parts, log_gradient_norms=True)
    assert same == weights
    found = [[row.pop(name) for name in NORMS] for row in rows]
    assert all(token > 0 for token, _ in found)
    assert {order > 0 for _, order in found} == {True, False}  # 0 without an example that has an order
    assert rows == without


def test_two_ranks_log_the_norms_of_one_big_batch_and_train_as_without(tmp_path: Path) -> None:
    with_norms, without = map(json.loads, run_ranks(2, tmp_path, "norms").splitlines())
    assert with_norms[0] == without[0]
    big = replace(CONFIG, per_device_train_batch_size=2 * CONFIG.per_device_train_batch_size, log_gradient_norms=True)
    run_toy(tmp_path / "big", big, objective=ToyObjective(0.0, torch.float64))
    pairs = zip(with_norms[1], toy.training_metrics(tmp_path / "big"), strict=True)
    # Float64: only the order of additions differs.
    assert all(row[name] == pytest.approx(other[name], rel=1e-9) for row, other in pairs for name in NORMS)


@compiled
@pytest.mark.parametrize("compilation", ["blocks", "step"])
def test_they_are_the_same_for_a_compiled_objective(compilation: Literal["blocks", "step"]) -> None:
    objective, graph, batch = build("rtd"), build("rtd"), make_batch()
    compile_for_training(graph, compilation)
    expected, found = term_and_total(objective, batch)[0], term_and_total(graph, batch)[0]
    for name, vector in expected.items():
        assert float((found[name] - vector).norm()) <= 1e-4 * float(vector.norm())  # float32 sums in another order
