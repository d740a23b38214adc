"""What fine-tuning asks of the loop: a rate of its own for each parameter, and an end after an evaluation."""

from pathlib import Path

import pytest
import torch

from electra_albert.contracts import Metrics
from tests.training.toy import CONFIG, ToyObjective, fingerprint, rows, run_toy


def test_a_rate_scale_of_zero_leaves_a_parameter_as_it_was(tmp_path: Path) -> None:
    before = ToyObjective()
    scales = {name: 0.0 if name.startswith("table") else 1.0 for name, _ in before.named_parameters()}
    _, after, _ = run_toy(tmp_path, rate_scales=scales)
    assert torch.equal(after.table.weight, before.table.weight)
    assert not torch.equal(after.order.weight, before.order.weight)


def test_rate_scales_of_one_train_as_none_do_to_the_bit(tmp_path: Path) -> None:
    _, plain, _ = run_toy(tmp_path / "plain")
    scales = {name: 1.0 for name, _ in plain.named_parameters()}
    _, scaled, _ = run_toy(tmp_path / "scaled", rate_scales=scales)
    assert fingerprint(scaled) == fingerprint(plain)


def test_a_run_ends_after_the_evaluation_that_is_enough(tmp_path: Path) -> None:
    outcome, _, _ = run_toy(tmp_path, is_enough=lambda: True)
    assert (outcome.step, outcome.is_stopped) == (CONFIG.eval_steps, False)
    assert outcome.metrics == _without_position(rows(tmp_path)[-1])


@pytest.mark.parametrize("step", [2, 4])
def test_a_run_that_ended_early_and_is_started_again_ends_there_to_the_bit(tmp_path: Path, step: int) -> None:
    _, first, _ = run_toy(tmp_path, is_enough=lambda: True)
    start = tmp_path / "checkpoints" / f"step-{step:07d}"
    told = rows(tmp_path)
    outcome, again, _ = run_toy(tmp_path, resume_from=start, is_enough=lambda: True)
    assert (outcome.step, fingerprint(again)) == (CONFIG.eval_steps, fingerprint(first))
    assert rows(tmp_path) == told


def _without_position(row: Metrics) -> Metrics:
    return {name.removeprefix("eval_"): value for name, value in row.items() if name.startswith("eval_")}
