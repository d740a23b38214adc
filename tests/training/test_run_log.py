"""log.txt keeps what a run prints, and its failing stops nothing."""

from pathlib import Path

import pytest

from electra_albert.contracts import DataError
from electra_albert.training.monitor import Monitor
from electra_albert.training.run_log import LOG, RunLog, console_log


def log_of(folder: Path, *lines: str) -> str:
    """The text of log.txt after a run of a few lines, the first of which is printed before the folder is open."""
    first, *others = lines
    with console_log(), RunLog() as log, Monitor(folder, 10):
        LOG.info(first)
        log.open(folder)
        for line in others:
            LOG.info(line)
    file = folder / "log.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def test_every_line_has_a_time_and_those_of_a_resumed_run_follow(tmp_path: Path) -> None:
    log_of(tmp_path, "plan\n  of two lines", "step 1 ␣")
    lines = log_of(tmp_path, "plan", "step 2").splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["plan", "  of two lines", "step 1 ␣", "plan", "step 2"]
    assert all(line.split(" ")[0].endswith("Z") for line in lines)


def log_and_fail(log: RunLog, folder: Path) -> None:
    log.open(folder)
    raise DataError("no text")


def test_what_ends_a_run_is_logged(tmp_path: Path) -> None:
    log = RunLog()
    with pytest.raises(DataError), log:
        log_and_fail(log, tmp_path)
    assert (tmp_path / "log.txt").read_text().endswith("error: no text\n")


def test_a_log_that_cannot_be_written_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    log_of(tmp_path, "plan", "step 1", "step 2")
    assert capsys.readouterr().err.count("cannot write log.txt (No space left on device)") == 1
    log_of(tmp_path / "not there", "plan", "step 1")
    assert capsys.readouterr().err.count("cannot write log.txt") == 1
