"""Stop signals, and the lock on a run folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from electra_albert.contracts import UsageError
from electra_albert.training.signals import StopSignal, run_lock
from tests.budgets import ROOT


def test_a_signal_sets_the_flag_and_old_handlers_are_restored() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        with StopSignal() as stop:
            assert not stop.requested
            os.kill(os.getpid(), number)
            # Torchrun forwards the terminal's signal: still one request.
            os.kill(os.getpid(), number)
            assert stop.requested
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_later_second_signal_acts_as_before(number: signal.Signals) -> None:
    """Regression: a second Ctrl-C killed a notebook's kernel."""
    # A shell starts background jobs with SIGINT ignored, also of this test.
    program = f"""import os, signal, time; from electra_albert.training.signals import StopSignal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with StopSignal():
        os.kill(os.getpid(), {number}); time.sleep(1.2); os.kill(os.getpid(), {number})
        time.sleep(60)
except KeyboardInterrupt:
    os._exit(5)"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=50, check=False)
    assert done.returncode == (5 if number == signal.SIGINT else -number)


def test_a_second_run_in_the_folder_is_refused_and_the_lock_is_released(tmp_path: Path) -> None:
    (tmp_path / "run.lock").write_text("pid 999999999 on elsewhere, which was killed\n")
    for _ in range(2):
        with (
            run_lock(tmp_path),
            pytest.raises(UsageError, match=f"pid {os.getpid()} on "),
            run_lock(tmp_path),
        ):
            pass
        assert list(tmp_path.iterdir()) == []


def test_a_lock_is_no_link_and_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    run, linked = tmp_path / "run", tmp_path / "linked"
    (run / "generator" / ".writing-1-files").mkdir(parents=True)
    (run / ".writing-2-config.yaml").touch()
    with run_lock(run):
        assert {path.relative_to(run).as_posix() for path in run.rglob("*")} == {
            "generator",
            "run.lock",
        }
    linked.mkdir()
    (tmp_path / "precious").write_text("text")
    (linked / "run.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match="symbolic links"), run_lock(linked):
        pass
    assert (tmp_path / "precious").read_text() == "text"
