"""A run can be told to stop, cannot be started twice in one folder, and survives a few updates that are not finite."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from electra_albert.contracts import DivergedError, UsageError
from electra_albert.training.guards import (
    MAX_SKIPPED,
    MAX_SKIPPED_IN_A_ROW,
    RunLock,
    StopSignal,
    UpdateGuard,
    poison_unless_finite,
)

FINITE, NAN = torch.tensor(1.0), torch.tensor(torch.nan)
NO, YES = torch.tensor(False), torch.tensor(True)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_only_sets_the_flag(number: signal.Signals) -> None:
    with StopSignal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # torchrun passes on what the terminal has sent already: still one wish
        assert stop.requested


def test_old_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_a_while_later_ends_the_process_at_once(number: signal.Signals) -> None:
    program = (
        "import os, time; from electra_albert.training.guards import StopSignal\n"
        "with StopSignal():\n"
        f"    os.kill(os.getpid(), {int(number)}); time.sleep(1.2); os.kill(os.getpid(), {int(number)}); time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=50, check=False)
    assert done.returncode == -number


def test_a_second_run_in_the_folder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(UsageError, match=f"pid {os.getpid()}"), RunLock(tmp_path):
        pass


def test_a_lock_left_by_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "run.lock").write_text("pid 999999999 on elsewhere, with much to say about itself\n")
    with RunLock(tmp_path):
        assert (tmp_path / "run.lock").read_text().split()[1] == str(os.getpid())


def test_the_lock_is_free_after_the_run(tmp_path: Path) -> None:
    for _ in range(2):
        with RunLock(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write into"), RunLock(tmp_path / "file" / "run"):
        pass


def test_bad_updates_are_skipped_and_counted_and_good_ones_are_not() -> None:
    guard = UpdateGuard(torch.device("cpu"))
    verdicts = [bool(guard.observe(norm, NO)) for norm in (FINITE, NAN, FINITE, torch.tensor(torch.inf), FINITE)]
    assert verdicts == [True, False, True, False, True]
    assert guard.skipped() == 2
    guard.check(5)


def test_overflows_that_the_loss_scale_answers_are_skipped_but_never_divergence() -> None:
    guard = UpdateGuard(torch.device("cpu"))
    assert not any(bool(guard.observe(NAN, YES)) for _ in range(MAX_SKIPPED))
    assert guard.skipped() == 0
    guard.check(MAX_SKIPPED)


def test_too_many_bad_updates_in_a_row_are_divergence_even_if_good_ones_follow() -> None:
    guard = UpdateGuard(torch.device("cpu"))
    for norm in [NAN] * MAX_SKIPPED_IN_A_ROW + [FINITE]:
        guard.observe(norm, NO)
    with pytest.raises(DivergedError, match=f"{MAX_SKIPPED_IN_A_ROW} updates in a row"):
        guard.check(9)


def test_too_many_bad_updates_in_all_are_divergence_across_a_resume() -> None:
    guard = UpdateGuard(torch.device("cpu"))
    for _ in range(MAX_SKIPPED):
        guard.check(1)
        resumed = UpdateGuard(torch.device("cpu"))
        resumed.restore(guard.state())
        guard = resumed
        guard.observe(FINITE, NO)
        guard.observe(NAN, NO)
    with pytest.raises(DivergedError, match=f"{MAX_SKIPPED} updates"):
        guard.check(1)


def test_a_gradient_starts_from_the_scale_where_the_loss_is_finite() -> None:
    start = poison_unless_finite(torch.tensor(3.0, dtype=torch.float64), torch.tensor(1024.0))
    assert (float(start), start.dtype) == (1024.0, torch.float64)


def test_a_bad_loss_with_finite_slopes_still_poisons_the_gradient() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = weight.sum() + torch.inf
    loss.backward(poison_unless_finite(loss))
    assert weight.grad is not None
    assert weight.grad.isnan().all()
