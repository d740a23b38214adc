"""Stages are run once, noted before and after, and told of."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from electra_albert.apps.experiment.findings import find
from electra_albert.apps.experiment.records import Record, Stage, read_record
from electra_albert.apps.experiment.running import run_stages
from electra_albert.apps.experiment.stages import Site
from tests.apps.tiny_plan import find_stage, note, planned

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
record, what = Path(sys.argv[1]), sys.argv[2]
print(record.read_text() if what == "record" else os.environ.get("OMP_NUM_THREADS"), flush=True)
if what.startswith("leave"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(what.split()[1])))
if what.startswith(("leave", "idle")):
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(30)
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "fail":
    sys.exit("error: this is why")
"""


def say_nothing(_: str) -> None:
    """In place of standard error."""


def stage(folder: Path, what: str, name: str = "pretraining-1") -> Stage:
    script = folder / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    arm = folder / "a"
    (arm / "out").mkdir(parents=True, exist_ok=True)
    return Stage("a", name, [str(script), str(arm / "stages" / f"{name}.json"), what], arm, arm / "out")


def record_of(made: Stage) -> Record:
    record = read_record(made.record)
    assert record is not None
    return record


def test_the_command_is_noted_before_it_is_run_and_how_it_ended_afterwards(tmp_path: Path) -> None:
    made = stage(tmp_path, "record")
    run_stages([made], Site(tmp_path, "c", jobs=2, cores=4), say_nothing)
    before = json.loads(made.log.read_text(encoding="utf-8"))
    assert (before["command"], before["exit_code"]) == (made.command, None)
    record = record_of(made)
    assert (record.command, record.exit_code, record.error, record.jobs) == (made.command, 0, "", 2)
    assert record.seconds > 0


def test_only_what_did_not_end_well_is_run_again(tmp_path: Path) -> None:
    made, failing = stage(tmp_path, "record"), stage(tmp_path, "fail", "cola")
    for _ in range(2):
        ended = run_stages([made, failing], Site(tmp_path, "c"), say_nothing)
    assert [(each.stage, each.exit_code, each.error) for each in ended] == [(failing, 1, "error: this is why")]
    assert made.log.read_text(encoding="utf-8").count("command") == 1
    assert failing.log.read_text(encoding="utf-8").count("this is why") == 2


def test_what_was_killed_failed_and_its_log_of_before_is_not_taken_for_the_reason(tmp_path: Path) -> None:
    made = stage(tmp_path, "die")
    made.record.parent.mkdir(parents=True)
    made.log.write_text("error: of another day\n", encoding="utf-8")
    (ended,) = run_stages([made], Site(tmp_path, "c"), say_nothing)
    assert (ended.exit_code, ended.error) == (1, "killed by signal 9")
    assert record_of(made).tell() == "ended with exit code 1: killed by signal 9"


def test_the_reason_is_looked_for_in_what_this_attempt_said(tmp_path: Path) -> None:
    made = stage(tmp_path, "fail")
    made.record.parent.mkdir(parents=True)
    made.log.write_text("error: of another day\n", encoding="utf-8")
    script = Path(made.command[0])
    script.write_text("import sys; sys.exit(3)", encoding="utf-8")
    (ended,) = run_stages([made], Site(tmp_path, "c"), say_nothing)
    assert (ended.exit_code, ended.error) == (3, "it said nothing")


@pytest.mark.parametrize(("given", "jobs", "threads"), [(None, 2, 3), (None, 1, 6), ("5", 2, 5)])
def test_cores_are_divided_but_a_number_of_threads_that_is_set_is_the_users(
    given: str | None, jobs: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    made = stage(tmp_path, "threads")
    run_stages([made], Site(tmp_path, "c", jobs=jobs, cores=6), say_nothing)
    assert made.log.read_text(encoding="utf-8").strip() == str(threads)
    assert record_of(made).threads == threads


def test_what_stops_the_runner_stops_its_commands_and_lets_none_begin(tmp_path: Path) -> None:
    assert threading.current_thread() is threading.main_thread()  # where signals are handled
    running, waiting = stage(tmp_path, "leave 75"), stage(tmp_path, "record", "cola")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_stages([running, waiting], Site(tmp_path, "c"), say_nothing)
    assert record_of(running).exit_code == 75
    assert not waiting.log.exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("what", "code"), [("idle", 75), ("leave 130", 75), ("leave 3", 3)])
def test_a_command_that_saves_nothing_when_the_runner_is_stopped_was_stopped_and_did_not_fail(
    what: str, code: int, tmp_path: Path
) -> None:
    made = stage(tmp_path, what)
    with pytest.raises(KeyboardInterrupt):
        run_stages([made], Site(tmp_path, "c"), say_nothing)
    assert record_of(made).exit_code == code


def ready(stages: list[Stage]) -> set[tuple[str, str]]:
    return {(made.arm, made.name) for made in stages if made.is_ready}


def test_an_arm_is_judged_where_its_first_seed_is_sound_whatever_became_of_the_others(tmp_path: Path) -> None:
    _, _, stages = planned(tmp_path, data_dir="GLUE", texts=("held.txt",))
    note(find_stage(stages, "a", "pretraining-1"), 0)
    note(find_stage(stages, "a", "pretraining-2"), 5)
    judged = {("a", "scores"), ("a", "cola"), ("r", "cola")}
    assert ready(stages) == {("a", "pretraining-1"), ("a", "pretraining-2"), ("s", "pretraining-1"), *judged}
    note(find_stage(stages, "a", "pretraining-1"), None)
    assert ready(stages) == {("a", "pretraining-1"), ("a", "pretraining-2")}


def test_failures_of_earlier_calls_are_told_and_what_could_not_begin_with_the_reason(tmp_path: Path) -> None:
    plan, site, stages = planned(tmp_path, data_dir="GLUE")
    note(find_stage(stages, "a", "pretraining-1"), 5, "error: training diverged")
    note(find_stage(stages, "a", "pretraining-2"), 75)
    failures = {found.arm.name: found.failures for found in find(plan, site, stages)}
    reason = "since pretraining-1 of a ended with exit code 5: error: training diverged"
    assert failures["a"] == [
        "pretraining-1 ended with exit code 5: error: training diverged",
        "pretraining-2 was stopped and can go on",
        f"not run: cola, {reason}",
    ]
    assert failures["r"] == [f"not run: cola, {reason}"]
    stopped = "not run: pretraining-2, since pretraining-2 of a was stopped and can go on"
    assert failures["s"] == [f"not run: pretraining-1, {reason}", stopped]
