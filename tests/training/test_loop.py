"""The training loop: sums over global counts, exact resumes, logging, stopping and errors."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import Arithmetic, Batch, Metrics, Term, UsageError
from electra_albert.training.checkpoint import find_checkpoint, list_checkpoints
from electra_albert.training.monitor import Monitor
from electra_albert.training.optimizer import learning_rate
from electra_albert.training.signals import StopSignal
from electra_albert.training.step import RunSettings, TrainingStep, count_step
from tests.apps.tiny_run import untimed_rows
from tests.training import toy
from tests.training.test_distributed import run_ranks
from tests.training.toy import (
    ALONE,
    CONFIG,
    Breaking,
    ToyBatches,
    ToyObjective,
    fingerprint,
    run_toy,
)

Gradient = Callable[[nn.Module, list[Batch], RunSettings], None]
STEP = 2


def run_of(folder: Path) -> RunSettings:
    return RunSettings(folder, CONFIG, ALONE, Monitor(folder, 8), StopSignal())


def loop_gradient(model: nn.Module, micro_batches: list[Batch], run: RunSettings) -> None:
    counts = count_step(model, micro_batches, run)
    training_step = TrainingStep(model, run)
    training_step.accumulate(micro_batches, counts.terms, STEP)


def mean_of_means(model: nn.Module, micro_batches: list[Batch], run: RunSettings) -> None:
    """Planted: the mean of the micro-batches' own means."""
    training_step = TrainingStep(model, run)
    for batch in micro_batches:
        counts = {name: count * len(micro_batches) for name, count in model.counts(batch).items()}
        training_step.accumulate([batch], counts, STEP)


def check_split_changes_no_gradient(gradient: Gradient, folder: Path) -> None:
    """Assert that the gradient of four micro-batches is that of weight * sum / count of all."""
    whole = ToyBatches(replace(CONFIG, per_device_train_batch_size=12))
    parts = ToyBatches(
        replace(CONFIG, per_device_train_batch_size=3, gradient_accumulation_steps=4)
    )
    model, plain = ToyObjective(0.0, torch.float64), ToyObjective(0.0, torch.float64)
    gradient(model, next(parts.steps(STEP)), run_of(folder))
    terms = plain(next(whole.steps(STEP))[0])
    losses = [plain.weights[name] * terms[name].sum / terms[name].count for name in plain.weights]
    sum(losses).backward()
    # Float64: only the order of additions differs.
    torch.testing.assert_close(toy.gradient_of(model), toy.gradient_of(plain), rtol=0, atol=1e-12)


def test_gradient_accumulation_equals_one_large_batch(tmp_path: Path) -> None:
    check_split_changes_no_gradient(loop_gradient, tmp_path)
    with pytest.raises(AssertionError, match="not close"):
        check_split_changes_no_gradient(mean_of_means, tmp_path)


def test_accumulation_on_several_ranks_equals_one_large_batch(tmp_path: Path) -> None:
    model = ToyObjective(0.0, torch.float64)
    whole = next(ToyBatches(replace(CONFIG, per_device_train_batch_size=12)).steps(STEP))
    loop_gradient(model, whole, run_of(tmp_path))
    expected = toy.gradient_of(model)
    found = dict(json.loads(line) for line in run_ranks(2, tmp_path, "gradients").splitlines())
    furthest = [
        (torch.tensor(found[name], dtype=torch.float64) - expected).abs().amax(1)
        for name in ("as the loop does", "never")
    ]
    # Float64: only the order of additions differs.
    assert max(furthest[0]) < 1e-9
    # Planted: the last micro-batch is left out of the reduction.
    assert min(furthest[1]) > 1e-4


def saved(folder: Path, step: int, name: str = "model") -> dict[str, Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:07d}" / f"{name}.safetensors")


def test_each_step_uses_its_own_learning_rate(tmp_path: Path) -> None:
    memoryless = replace(
        CONFIG, weight_decay=0.0, adam_epsilon=1e-12, adam_beta1=0.0, adam_beta2=0.0, save_steps=1
    )
    run_toy(tmp_path, memoryless)  # each step is the gradient's sign times the learning rate
    before = dict(ToyObjective().state_dict())
    for step in range(1, CONFIG.max_steps + 1):
        after = saved(tmp_path, step)
        moved = float((after["table.weight"] - before["table.weight"]).abs().max())
        assert moved == pytest.approx(learning_rate(step, CONFIG), rel=1e-3)
        before = after
    for row in toy.training_metrics(tmp_path):
        assert row["learning_rate"] == learning_rate(row["step"], CONFIG)


@pytest.mark.parametrize("arithmetic", ["fp32", "fp16"])
def test_gradients_are_clipped_to_the_configured_norm(
    tmp_path: Path, arithmetic: Arithmetic
) -> None:
    norms = {}
    for limit in (1e-3, 1e9):
        # The first moment is the last gradient.
        config = replace(CONFIG, adam_beta1=0.0, max_grad_norm=limit)
        run_toy(tmp_path / str(limit), config, arithmetic=arithmetic)
        moments = saved(tmp_path / str(limit), CONFIG.max_steps, "optimizer")
        gradient = [value.flatten() for name, value in moments.items() if name.endswith("exp_avg")]
        norms[limit] = float(torch.cat(gradient).norm())
    assert norms[1e-3] == pytest.approx(1e-3, rel=0.01)
    assert norms[1e9] > 0.1


def test_dropout_differs_by_seed_step_micro_batch_and_rank(tmp_path: Path) -> None:
    model, batch, masks = ToyObjective(0.5), ToyBatches(CONFIG).examples(torch.arange(4)), set()
    model.dropout.register_forward_hook(
        lambda _, __, output: masks.add((output == 0).numpy().tobytes())
    )
    for rank, seed, step in product((0, 1), (1, 2), (1, 2)):
        world = ALONE._replace(rank=rank)
        run = replace(run_of(tmp_path), world=world, config=replace(CONFIG, seed=seed))
        TrainingStep(model, run).accumulate([batch, batch], dict.fromkeys(model.weights, 1), step)
    assert len(masks) == 2 * 2 * 2 * 2


def test_dropout_is_active_in_training_only(tmp_path: Path) -> None:
    outcome, model = run_toy(tmp_path)
    with torch.no_grad():
        assert outcome.metrics == toy.held_out(model.eval(), CONFIG)(CONFIG.max_steps)
        assert outcome.metrics != toy.held_out(model.train(), CONFIG)(CONFIG.max_steps)


def check_resume(
    folder: Path, config: TrainingConfig, build: Callable[[], nn.Module], step: int, **more: Any
) -> None:
    """Assert that a run resumed at `step` has the weights, optimizer state and metrics of an
    uninterrupted one.
    """
    config = replace(config, save_steps=1)
    _, through = run_toy(folder / "through", config, objective=build(), **more)
    # All later rows and checkpoints are still there, as after an explicit --resume of an older one.
    shutil.copytree(folder / "through", folder / "resumed")
    start = folder / "resumed" / "checkpoints" / f"step-{step:07d}"
    _, resumed = run_toy(folder / "resumed", config, objective=build(), resume_from=start, **more)
    assert fingerprint(resumed) == fingerprint(through)
    assert untimed_rows(folder / "resumed") == untimed_rows(folder / "through")
    last = f"checkpoints/step-{config.max_steps:07d}"
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        file = f"{last}/{name}"
        assert (folder / "resumed" / file).read_bytes() == (folder / "through" / file).read_bytes()


@pytest.mark.parametrize(("step", "accumulation"), [(4, 1), (8, 1), (5, 3)])
def test_a_resumed_run_equals_the_uninterrupted_one_bitwise(
    tmp_path: Path, step: int, accumulation: int
) -> None:
    check_resume(
        tmp_path, replace(CONFIG, gradient_accumulation_steps=accumulation), ToyObjective, step
    )


def test_a_resume_restores_the_count_of_skipped_steps(tmp_path: Path) -> None:
    check_resume(tmp_path, CONFIG, lambda: Breaking((2, 6)), 4)
    assert untimed_rows(tmp_path / "resumed")[-2]["skipped_steps"] == 2


def test_the_resume_check_finds_random_numbers_from_a_generator(tmp_path: Path) -> None:
    # Planted: dropout from a generator with state, like global random state.
    class Streaming(ToyObjective):
        def __init__(self) -> None:
            super().__init__(0.0)
            self.generator = torch.Generator().manual_seed(1)

        def forward(self, batch: Batch) -> dict[str, Term]:
            keep = torch.rand(batch.input_ids.shape, generator=self.generator) > 0.2
            return super().forward(batch._replace(input_ids=batch.input_ids * keep))

    with pytest.raises(AssertionError):
        check_resume(tmp_path, CONFIG, Streaming, 3)


@pytest.mark.slow
def test_three_ranks_resume_bitwise(tmp_path: Path) -> None:
    # With three ranks or more the order of DDP's buckets changes the sums; without the loop's check
    # this fails.
    results = [json.loads(line) for line in run_ranks(3, tmp_path, "resume").splitlines()]
    assert len(results) == 4
    assert all(result == results[0] for result in results)


def test_evaluating_and_saving_do_not_change_the_training(tmp_path: Path) -> None:
    trained = set()
    for every in (1, 8):
        intervals = dict.fromkeys(("eval_steps", "save_steps", "logging_steps"), every)
        _, model = run_toy(tmp_path / str(every), replace(CONFIG, **intervals))
        trained.add(fingerprint(model))
    assert len(trained) == 1


def test_logged_means_are_sums_over_counts_since_the_last_log(tmp_path: Path) -> None:
    run_toy(tmp_path / "each", replace(CONFIG, logging_steps=1))
    run_toy(tmp_path / "third", CONFIG)
    each = toy.training_metrics(tmp_path / "each")
    third = {row["step"]: row for row in toy.training_metrics(tmp_path / "third")}
    assert sorted(third) == [1, 3, 6, 8]
    tokens = [after - before for before, after in pairwise([0, *(row["tokens"] for row in each)])]
    for first, last in ((1, 1), (2, 3), (4, 6), (7, 8)):
        row, part = third[last], slice(first - 1, last)
        losses = [step["token_loss"] for step in each[part]]
        mean = np.average(losses, weights=tokens[part])
        assert row["token_loss"] == pytest.approx(mean, rel=1e-12)
        loss = row["token_loss"] + 2.5 * (row["order_loss"] or 0.0)
        assert row["loss"] == pytest.approx(loss, rel=1e-12)


def test_a_term_with_count_zero_has_no_gradient_and_is_logged_as_null(tmp_path: Path) -> None:
    run_toy(tmp_path, replace(CONFIG, per_device_train_batch_size=1, logging_steps=1, max_steps=6))
    assert {row["order_loss"] is None for row in toy.training_metrics(tmp_path)} == {True, False}


def test_a_signal_saves_the_step_and_the_resume_is_exact(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="electra_albert")
    _, through = run_toy(tmp_path / "through")
    with StopSignal() as stop:  # while the loop waits for data
        before = {4: lambda: os.kill(os.getpid(), signal.SIGTERM)}
        outcome, _ = run_toy(tmp_path / "stopped", before=toy.at_steps(before), stop=stop)
    assert (outcome.step, outcome.is_stopped) == (3, True)
    assert "stopped by a signal after step 3" in caplog.text
    found = tmp_path / "stopped" / "checkpoints" / "step-0000003"
    assert found == find_checkpoint(found.parent, "auto")
    _, resumed = run_toy(tmp_path / "stopped", resume_from=found)
    assert fingerprint(resumed) == fingerprint(through)
    assert untimed_rows(tmp_path / "stopped") == untimed_rows(tmp_path / "through")


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    assert json.loads(run_ranks(2, tmp_path, "stop")) == [[[3, True], [3, True]], [2, 3]]


@pytest.mark.parametrize("step", [4, 8])
def test_an_evaluation_stopped_by_a_signal_is_repeated_after_the_resume(
    tmp_path: Path, step: int
) -> None:
    run_toy(tmp_path / "through")
    model = ToyObjective()
    score = toy.held_out(model, CONFIG)

    def cut_short(at: int) -> Metrics | None:
        return os.kill(os.getpid(), signal.SIGTERM) if at == step else score(at)

    with StopSignal() as stop:
        outcome, _ = run_toy(tmp_path / "cut", objective=model, evaluate=cut_short, stop=stop)
    assert (outcome.step, outcome.is_stopped) == (step, True)
    run_toy(tmp_path / "cut", resume_from=tmp_path / "cut" / "checkpoints" / f"step-{step:07d}")
    assert untimed_rows(tmp_path / "cut") == untimed_rows(tmp_path / "through")


def test_a_parameter_without_gradient_or_a_wrong_count_is_refused_at_the_first_step(
    tmp_path: Path,
) -> None:
    class Miscounting(ToyObjective):
        """Planted: padding is counted on the host."""

        def counts(self, batch: Batch) -> dict[str, int]:
            return {**super().counts(batch), "token_loss": batch.attention_mask.numel()}

    unreached = ToyObjective()
    unreached.unused = nn.Linear(2, 2)
    unreached.unused.weight.grad = torch.ones(2, 2)  # of an earlier run
    for model, named in ((unreached, r"unused\.weight"), (Miscounting(), "token_loss has count")):
        with pytest.raises(ValueError, match=named):
            run_toy(tmp_path, objective=model)


def test_counts_without_one_of_the_losses_are_an_error(tmp_path: Path) -> None:
    class Uncounted(ToyObjective):
        """Planted: the second loss is not counted on the host."""

        def counts(self, batch: Batch) -> dict[str, int]:
            return {"token_loss": super().counts(batch)["token_loss"]}

    with pytest.raises(KeyError, match="order_loss"):
        count_step(Uncounted(), next(ToyBatches(CONFIG).steps(STEP)), run_of(tmp_path))


def test_a_failed_save_warns_but_is_an_error_at_the_last_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (blocked := tmp_path / "checkpoints").touch()
    with pytest.raises(UsageError, match="free disk space"):
        run_toy(tmp_path)
    caplog.clear()
    outcome, _ = run_toy(tmp_path, before=toy.at_steps({6: blocked.unlink}))
    assert outcome.step == CONFIG.max_steps
    assert [line[:27] for line in caplog.messages] == ["cannot write the checkpoint"] * 2
    assert [step for step, _ in list_checkpoints(blocked)] == [6, 8]


def test_lr_multipliers_scale_the_learning_rate_of_each_parameter(tmp_path: Path) -> None:
    before = ToyObjective()
    scales = dict.fromkeys(dict(before.named_parameters()), 1.0) | {"table.weight": 0.0}
    _, after = run_toy(tmp_path, lr_multipliers=scales)
    assert torch.equal(after.table.weight, before.table.weight)
    assert not torch.equal(after.order.weight, before.order.weight)


@pytest.mark.parametrize("step", [2, 4])
def test_early_stopping_ends_a_run_and_its_resume_at_the_same_step(
    tmp_path: Path, step: int
) -> None:
    outcome, first = run_toy(tmp_path, should_stop=lambda: True)
    assert (outcome.step, outcome.is_stopped) == (CONFIG.eval_steps, False)
    before = untimed_rows(tmp_path)
    assert outcome.metrics == {
        name[5:]: value for name, value in before[-1].items() if name.startswith("eval_")
    }
    start = tmp_path / "checkpoints" / f"step-{step:07d}"
    again, second = run_toy(tmp_path, resume_from=start, should_stop=lambda: True)
    assert (again.step, fingerprint(second)) == (CONFIG.eval_steps, fingerprint(first))
    assert untimed_rows(tmp_path) == before


def test_a_resumed_run_with_a_plan_is_evaluated_first(tmp_path: Path) -> None:
    """The plan reserves the time that an evaluation takes."""
    run_toy(tmp_path / "first")
    more: dict[str, Any] = {"resume_from": tmp_path / "first" / "checkpoints" / "step-0000002"}
    for plan, expected in ((None, [4, 8]), (lambda *_: CONFIG.max_steps, [2, 4, 8])):
        steps = list[int]()
        evaluate = lambda step: steps.append(step) or {}  # noqa: B023, E731
        run_toy(tmp_path / str(bool(plan)), plan=plan, evaluate=evaluate, **more)
        assert steps == expected
