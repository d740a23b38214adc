"""Log records on the console of the main rank and in log.txt."""

import logging
from pathlib import Path

import pytest

from electra_albert.contracts import DataError
from electra_albert.training.run_log import RunLog, console_log, log_to_file

LOG = logging.getLogger("electra_albert.any")


def log_of(folder: Path, *lines: str) -> str:
    """The text of log.txt after a run that logs these lines, the first one before the folder is known."""
    first, *others = lines
    with console_log(), RunLog() as log:
        LOG.info(first)
        log.open(folder)
        for line in others:
            LOG.info(line)
    file = folder / "log.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def test_every_line_has_a_time_stamp_and_a_resumed_run_appends(tmp_path: Path) -> None:
    log_of(tmp_path, "  plan", "step 1 ␣")
    lines = log_of(tmp_path, "plan", "step 2").splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["  plan", "step 1 ␣", "plan", "step 2"]
    assert all(line.split(" ")[0].endswith("Z") for line in lines)


def test_log_txt_has_every_line_without_configured_logging(tmp_path: Path) -> None:
    logger = logging.getLogger("electra_albert")
    before = logger.level
    with RunLog() as log:
        log.open(tmp_path)
        LOG.info("step 1")
    assert "step 1" in (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert logger.level == before


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_console_has_the_lines_of_the_main_rank_except_those_for_the_file_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    with console_log(), console_log():
        LOG.info("plan")
        LOG.warning("full")
        log_to_file("result")
    assert capsys.readouterr().err.splitlines() == (["plan", "warning: full"] if rank == "0" else [])


def log_and_fail(log: RunLog, folder: Path) -> None:
    log.open(folder)
    raise DataError("no text")


def test_the_error_that_ends_a_run_is_logged(tmp_path: Path) -> None:
    log = RunLog()
    with pytest.raises(DataError), console_log(), log:
        log_and_fail(log, tmp_path)
    assert (tmp_path / "log.txt").read_text().endswith("error: no text\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which only Linux has")
def test_an_unwritable_log_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    for folder, reason in ((tmp_path, "No space left on device"), (tmp_path / "not there", "No such file")):
        log_of(folder, "plan", "step 1", "step 2")
        assert caplog.text.count(f"cannot write log.txt ({reason}") == 1
