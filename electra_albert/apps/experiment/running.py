"""Stages run side by side, each of them once.

A stage that has ended well is not run again; one that was stopped goes on from where it was, since the commands do.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.experiment.records import Record, Stage, read_record, write_record
from electra_albert.apps.experiment.stages import Site
from electra_albert.contracts import STOPPED_BY_SIGNAL

LOG = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[3]  # of the checkout, where the scripts are
_END_OF_LOG = 16_000  # bytes that are looked at for what went wrong
_THREADS = "OMP_NUM_THREADS"
# How a command ends that was interrupted and has nothing to save, by itself or by the error it turned that into.
_INTERRUPTED = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)


class Ended(NamedTuple):
    """How a stage ended."""

    stage: Stage
    exit_code: int
    error: str  # the last line it said, where it failed


def run_stages(stages: Sequence[Stage], site: Site) -> list[Ended]:
    """Run what has not ended well yet, `site.jobs` at once; returns how each has ended, in order.

    How it went is noted in each stage's record. An interrupt is handed to the commands, which save what they have, and
    raised again (KeyboardInterrupt).
    """
    waiting = [stage for stage in stages if not stage.is_done]
    if waiting:
        LOG.info(f"{len(waiting)} of {len(stages)} to be run, {site.jobs} at once")
    with ThreadPoolExecutor(site.jobs) as pool, _Commands(site) as commands:  # the commands are ended, then waited for
        return list(pool.map(lambda stage: _run(stage, commands), waiting))  # an error cancels what waits


def _run(stage: Stage, commands: _Commands) -> Ended:
    before = read_record(stage.record)
    spent = before.seconds if before is not None and not stage.other_than(before) else 0.0
    record = Record(stage.command, None, "", spent, commands.threads, commands.jobs, stage.made_of)
    write_record(stage.record, record)
    said = stage.log.stat().st_size if stage.log.is_file() else 0
    began = time.monotonic()
    code = commands.call(stage.command, stage.log)
    seconds = time.monotonic() - began
    error = "" if code == 0 else f"killed by signal {-code}" if code < 0 else _last_line(stage.log, said)
    code = max(code, 0) or int(code < 0)  # one that was killed has no code of its own
    record = record._replace(exit_code=code, error=error, seconds=spent + seconds)
    write_record(stage.record, record)
    if code == 0:
        LOG.info(f"{stage.arm}: {stage.name} done in {seconds / 60:.1f} min")
    else:
        LOG.info(f"{stage.arm}: {stage.name} {record.tell()}; all it said is in {stage.log}")
    return Ended(stage, code, error)


def _last_line(log: Path, said: int) -> str:
    """The last line of a log after its first `said` bytes, which are of earlier attempts."""
    with log.open("rb") as file:
        file.seek(max(said, file.seek(0, os.SEEK_END) - _END_OF_LOG))
        lines = [line for line in file.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


class _Commands:
    """Processes that end with this one: what stops it, an interrupt above all, lets them save and end."""

    def __init__(self, site: Site) -> None:
        # A number of threads that the user has set is the user's; else the cores are divided.
        words = os.environ.get(_THREADS) or str(max(1, site.cores // site.jobs))
        self.threads, self.jobs = int(words) if words.isdecimal() else None, site.jobs
        self._environment = {**os.environ, _THREADS: words}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopping = False
        self._lock = threading.Lock()
        self._before: Any = None

    def __enter__(self) -> _Commands:
        self._before = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.stop()
        signal.signal(signal.SIGTERM, self._before)

    def call(self, command: Sequence[str], log: Path) -> int:
        """Run a command of this checkout to its end, its output in `log`; returns the exit code, or minus a signal.

        What ends by being told to has been stopped, whether or not it says so by its exit code.
        """
        script = [command[0]] if command[0] == "-m" else [str(_ROOT / command[0])]
        with log.open("ab") as output:
            with self._lock:
                if self._is_stopping:
                    return STOPPED_BY_SIGNAL
                process = subprocess.Popen(
                    [sys.executable, *script, *command[1:]], stdout=output, stderr=output, env=self._environment
                )
                self._running.add(process)
            try:
                code = process.wait()
                return STOPPED_BY_SIGNAL if self._is_stopping and code in _INTERRUPTED else code
            finally:
                self._running.discard(process)

    def stop(self) -> None:
        """Ask all that run to save and end, and wait for them; let none begin."""
        with self._lock:
            self._is_stopping = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
