"""Metrics read back exactly, log records reach the console and log.txt, and logging errors never
stop a run.
"""

import io
import json
import logging
import resource
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from electra_albert.contracts import DataError, UsageError
from electra_albert.training.distributed import World
from electra_albert.training.monitor import (
    CLOCK,
    Monitor,
    Tally,
    cut_metrics,
    means_of,
    read_metrics,
)
from electra_albert.training.run_log import RunLog, console_log, log_to_file
from electra_albert.training.trackers import check_trackers
from tests.training.toy import ALONE

POSITION = {"step": 1, "tokens": 7, "epoch": 0.1}
ROW = {**POSITION, "loss": 0.1 + 0.2, "sop_loss": None, "tokens_per_second": 3.0}


def read_rows(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in rows]


def test_metrics_read_back_exactly_with_null_if_not_finite(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Monitor(tmp_path, 10) as monitor:
        monitor.start(0)
        monitor.row({**ROW, "auc": float("nan")})
        # On disk at once, not at the end.
        assert read_rows(tmp_path) == [{**ROW, "auc": None, "phase": "train"}]
        assert "auc is nan at step 1" in caplog.text
        monitor.evaluation(POSITION, {"loss": 1 / 3})
    assert read_rows(tmp_path)[1] == {**POSITION, "eval_loss": 1 / 3, "phase": "eval"}


TORN = ('{"step": 2, "lo', '{"step": 2, "lo{"step": 3, "loss": 1.0}', "[1, 2]", "7", "null", "\x00")


def test_a_resume_removes_later_rows_and_incomplete_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"step": 1}, {"step": 2, "loss": 0.1}, {"step": 2, "phase": "eval"}, {"step": 3}]
    first, *others = (json.dumps(row) for row in rows)
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    for is_evaluated, kept in ((True, rows[:3]), (False, rows[:2])):
        path.write_text("\n".join((first, *TORN, *others, '{"step": 3, "lo')))
        assert read_metrics(path) == rows
        assert cut_metrics(path, 2, is_evaluated=is_evaluated) == kept == read_metrics(path)
    assert caplog.messages == [f"{path}: removing 7 incomplete lines"] * 2


def test_full_disks_warn_once_and_logs_continue_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unlimited, folder = resource.getrlimit(resource.RLIMIT_FSIZE), tmp_path / "tensorboard"
    with Monitor(tmp_path, 10) as monitor:
        monitor.start(0)
        # Step 3 leaves incomplete records.
        for step, room in ((1, 0), (2, None), (3, 5), (4, None)):
            files = (*folder.glob("*"), *tmp_path.glob("metrics.jsonl"))
            size = max((file.stat().st_size for file in files), default=0)
            limit = unlimited if room is None else (size + room, unlimited[1])
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            monitor.row({**ROW, "step": step})
            monitor.samples(step, ["a"], [{"text": "a"}])
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    names = ("metrics.jsonl", "tensorboard", "samples.jsonl")
    failed = [message.split(" (")[0] for message in caplog.messages]
    assert failed == [f"cannot write {name}" for name in names]
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4]
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [2, 4]


class Terminal(io.StringIO):
    """A stderr that may be a terminal and may be closed."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal, self.is_closed = is_terminal, False

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        if self.is_closed:
            raise BrokenPipeError
        return super().write(text)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_has_a_progress_bar_and_a_closed_stderr_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    stream = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    with console_log(), Monitor(tmp_path, 4) as monitor:
        monitor.start(2)
        monitor.tick()
        monitor.row({**ROW, "step": 3})
        shown = stream.getvalue()
        stream.is_closed = True
        monitor.tick()
        monitor.row({**ROW, "step": 4})
    assert ("\r" in shown) == is_terminal
    assert ("step 3/4  loss 0.3  sop -  tokens/s 3" in shown) != is_terminal
    assert [row["step"] for row in read_rows(tmp_path)] == [3, 4]


def test_lines_and_the_bar_fit_100_columns_and_show_losses_auc_and_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide row: all losses of an objective with four, at the end of a long run."""
    losses = {f"{name}_loss": 0.12345678 for name in ("generator", "discriminator", "sop")}
    row = {**POSITION, "step": 12345, "loss": 29.0123, "generator_accuracy": 0.2, **losses}
    training = {**row, "grad_norm": 61.0, "tokens_per_second": 123456.0, "data_wait": 0.1}
    scores = {**row, "unigram_loss": 6.5, "discriminator_auc": 0.8028, "x": 1.0}
    monkeypatch.setenv("COLUMNS", "100")
    for is_terminal in (True, False):
        stream = Terminal(is_terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        with console_log(), Monitor(tmp_path / str(is_terminal), 62_500) as monitor:
            monitor.start(12344)
            monitor.row(training)
            monitor.tick()
            monitor.evaluation(POSITION, scores)
        text = stream.getvalue().replace("\r", "\n")
        assert max(map(len, text.splitlines())) <= 100
        assert "held out: loss 29.01" in text
        assert "AUC 0.8028" in text
        assert "unigram" not in text  # the same number at each evaluation
    for word in ("discriminator 0.1235", "tokens/s 123,456", "left"):
        assert word in text


def test_a_notebook_shows_the_bar_and_lines_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with console_log(), Monitor(tmp_path, 4) as monitor:
        monitor.start(2)
        LOG.info("plan")
        monitor.tick()
    shown = capsys.readouterr()
    assert "plan" in shown.out
    assert "3/4" in shown.out
    assert shown.err == ""


def test_tensorboard_drops_the_steps_that_a_resume_repeats(tmp_path: Path) -> None:
    for first, steps in ((0, (1, 2, 3)), (1, (2,))):
        with Monitor(tmp_path, 10) as monitor:
            monitor.start(first)
            for step in steps:
                monitor.row({**ROW, "step": step})
                monitor.evaluation({**POSITION, "step": step}, {"loss": 1.0})
                monitor.samples(step, ["a: b"], [{"text": "a"}])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    performance = {"perf/tokens", "perf/epoch", "perf/tokens_per_second"}
    assert set(events.Tags()["scalars"]) == {"train/loss", "eval/loss"} | performance
    for tag in ("train/loss", "perf/tokens"):  # evaluations do not write perf/tokens again
        assert [event.step for event in events.Scalars(tag)] == [1, 2]
    assert events.Tags()["tensors"] == ["samples/predictions/text_summary"]


class FakeTracker(ModuleType):
    """The interface that wandb and trackio share, recording what it gets."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.runs: list[dict[str, Any]] = []
        self.rows: list[tuple[dict[str, float], int]] = []
        self.finished = 0

    def init(self, **given: Any) -> Any:
        self.runs.append(given)
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((metrics, step))

    def finish(self) -> None:
        self.finished += 1


def test_trackers_get_the_metrics_and_a_resumed_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = {name: FakeTracker(name) for name in ("wandb", "trackio")}
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    folders = [tmp_path / name / "seed-42" for name in ("x", "x", "y/x")]
    for first, folder in enumerate(folders):
        with Monitor(folder, 10, "wandb,trackio", settings={"seed": 7}) as monitor:
            monitor.start(first)
            monitor.row({**ROW, "step": first + 1})
            monitor.evaluation({**POSITION, "step": first + 1}, {"loss": 1.0})
    assert not (folders[0] / "tensorboard").exists()
    speed = {"perf/tokens": 7, "perf/epoch": 0.1, "perf/tokens_per_second": 3.0}
    trained = {**speed, "train/loss": ROW["loss"]}
    for fake in fakes.values():
        for step in (1, 2, 3):
            assert fake.rows[2 * step - 2 : 2 * step] == [
                (trained, step),
                ({"eval/loss": 1.0}, step),
            ]
        assert [(run["config"], run["resume"]) for run in fake.runs] == [({"seed": 7}, "allow")] * 3
        # Trackio resumes by name.
        first, resumed, other = (run.get("id", run["name"]) for run in fake.runs)
        assert first == resumed != other
        assert fake.finished == 3


def test_a_tracker_that_cannot_start_is_refused_and_one_that_fails_later_only_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="pip install trackio"):
        check_trackers("tensorboard,trackio")
    check_trackers("none")
    fake = FakeTracker("wandb")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with Monitor(tmp_path, 10, "wandb") as monitor:
        monitor.start(0)
        fake.log = None  # a TypeError
        for step in (1, 2):
            monitor.row({**ROW, "step": step})
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 2]
    assert [message.split(" (")[0] for message in caplog.messages] == ["cannot write wandb"]
    fake.init = None
    with pytest.raises(UsageError, match="wandb"), Monitor(tmp_path, 10, "wandb") as monitor:
        monitor.start(0)


@pytest.mark.parametrize(("rank", "total"), [(0, 3.5), (1, 0.0)])
def test_the_first_of_three_ranks_gets_the_tally_of_two(rank: int, total: float) -> None:
    tally = Tally(torch.device("cpu"))
    state = {"names": ["a"], "ranks": [[[(1.5).hex()], [1]], [[(2.0).hex()], [2]]]}
    tally.restore(state, World(rank, 3, torch.device("cpu")))
    assert tally.take(ALONE)["a"][0] == total


def test_the_mean_of_nothing_is_none() -> None:
    means = means_of({"a": (0.0, 2), "b": (3.0, 0)}, {"a": 2.0, "b": 1.0})
    assert means == {"loss": 0.0, "a": 0.0, "b": None}


def test_elapsed_seconds_continue_after_a_resume(tmp_path: Path) -> None:
    before = [{"step": 1, "elapsed_seconds": 99.5}, {"step": 2, "elapsed_seconds": 500.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in before))
    with Monitor(tmp_path, 10) as monitor:
        monitor.start(1)
        monitor.row({**ROW, "step": 2})
    row = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert 99.5 < row["elapsed_seconds"] < 130
    assert abs(datetime.fromisoformat(row["time"]) - datetime.now(UTC)) < timedelta(seconds=30)


LOG = logging.getLogger("electra_albert")


def write_log(folder: Path, first: str, *others: str) -> None:
    """Log lines, the first one before the folder is known, without configured logging."""
    before = LOG.level
    with RunLog() as log:
        LOG.info(first)
        log.open(folder)
        for line in others:
            LOG.info(line)
    assert LOG.level == before


def test_every_line_has_a_time_stamp_and_a_resumed_run_appends(tmp_path: Path) -> None:
    write_log(tmp_path, "  plan", "step 1 ␣")
    write_log(tmp_path, "plan", "step 2")
    lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["  plan", "step 1 ␣", "plan", "step 2"]
    assert all(line.split(" ")[0].endswith("Z") for line in lines)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_console_has_the_lines_of_the_main_rank_except_those_for_the_file_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    with console_log(), console_log():
        LOG.info("plan")
        LOG.warning("full")
        log_to_file("result")
    assert capsys.readouterr().err.splitlines() == (
        ["plan", "warning: full"] if rank == "0" else []
    )


def test_the_callers_handler_and_level_decide_what_is_printed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: after logging.basicConfig() each line was printed twice."""
    caplog.set_level(logging.WARNING, LOG.name)
    with console_log(), RunLog() as log:
        log.open(tmp_path)
        LOG.info("plan")
        LOG.warning("full")
    assert "plan" in (tmp_path / "log.txt").read_text()
    assert capsys.readouterr().err == "warning: full\n"
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()])
    with console_log():
        LOG.warning("full")
    assert capsys.readouterr().err == "full\n"


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
    for name, reason in ((".", "No space left on device"), ("not there", "No such file")):
        write_log(tmp_path / name, "plan", "step 1", "step 2")
        assert caplog.text.count(f"cannot write log.txt ({reason}") == 1
