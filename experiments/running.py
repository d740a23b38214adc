"""Stages run side by side, each once: what ended well is not run again, what was stopped is resumed."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from electra_albert.contracts import STOPPED_BY_SIGNAL, CheckpointError, UsageError
from experiments.plan import PRETRAINING, Stage

LOG = logging.getLogger("electra_albert.experiments")

_ROOT = Path(__file__).resolve().parents[1]
_THREADS = "OMP_NUM_THREADS"


def read_record(stage: Stage) -> dict[str, Any] | None:
    """The record of a stage, of whatever recipe; None where there is none."""
    try:
        record = json.loads(stage.record.read_text(encoding="utf-8"))
        return {name: record[name] for name in ("recipe", "exit_code", "threads", "jobs")}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{stage.record} is no record of a stage; remove it to have the stage run again"
        ) from None


def write_json(file: Path, content: object) -> None:
    """Write a JSON file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}")
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, file)


def is_done(stage: Stage) -> bool:
    """Whether it has ended well, as the plan has it now, and its output is there."""
    return stage.record.is_file() and not trouble(stage)


def trouble(stage: Stage) -> str:
    """Why a stage that was begun is not done; empty where it is done or was never begun."""
    record = read_record(stage)
    if record is None:
        return ""
    if record["recipe"] != stage.recipe:
        return "was made with other options or from other weights"
    if record["exit_code"] == 0:
        return "" if stage.output.exists() else f"has lost {stage.output}"
    if record["exit_code"] in (None, STOPPED_BY_SIGNAL):
        return "was stopped and can be resumed"
    return f"ended with exit code {record['exit_code']}, see {stage.record.with_suffix('.log')}"


def check_recipes(stages: Sequence[Stage]) -> None:
    """UsageError where a stage would mix its output with that of other options or weights; scores are overwritten."""
    others = [stage for stage in stages if (record := read_record(stage)) and record["recipe"] != stage.recipe]
    mixed = {s.folder if s.name.startswith(PRETRAINING) else s.output: s for s in others if s.output.is_dir()}
    folders = [str(folder) for folder in mixed if not mixed.keys() & {*folder.parents}]
    for stage in mixed.values():
        remedy = f"choose another --output_dir, or remove {' and '.join(folders)}"
        raise UsageError(f"{stage.name} of {stage.arm} {trouble(stage)}; {remedy}")


def run_stages(stages: Sequence[Stage], jobs: int) -> list[int]:
    """Run the stages that are not done and whose weights are there, `jobs` at once; returns the exit codes of failures.

    An interrupt is handed to the commands, which save what they have, and raised again (KeyboardInterrupt).
    """
    waiting = [stage for stage in stages if not is_done(stage) and (stage.needs is None or is_done(stage.needs))]
    commands = _Commands(jobs)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(commands.run, stage) for stage in waiting]
            try:
                return [code for future in futures if (code := future.result())]
            except BaseException:
                commands.stop()
                raise
    finally:
        signal.signal(signal.SIGTERM, before)


class _Commands:
    """Processes that are told to save and end when this one is stopped."""

    def __init__(self, jobs: int) -> None:
        # A number of threads that the user has set is the user's; else the cores are divided.
        self._threads = os.environ.get(_THREADS) or str(max(1, (os.cpu_count() or 1) // jobs))
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {**os.environ, _THREADS: self._threads, "PYTHONPATH": os.pathsep.join(paths)}
        self._jobs, self._lock, self._is_stopping = jobs, threading.Lock(), False
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, stage: Stage) -> int:
        """Run a stage to its end, note how it went, and return its exit code."""
        command = [sys.executable, "-m", *stage.module, *stage.words]
        record = {"command": command, "recipe": stage.recipe, "exit_code": None}
        record |= {"threads": self._threads, "jobs": self._jobs}
        with self._lock:
            if self._is_stopping:
                return STOPPED_BY_SIGNAL
            write_json(stage.record, record)
            with stage.record.with_suffix(".log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
            self._running.add(process)
        code = process.wait()
        self._running.discard(process)
        code = STOPPED_BY_SIGNAL if code and self._is_stopping else code
        write_json(stage.record, {**record, "exit_code": code})
        LOG.info(f"{stage.arm}: {stage.name} {trouble(stage) or 'done'}")
        return code if code >= 0 else 1  # one that was killed has no code of its own

    def stop(self) -> None:
        """Ask all that run to save and end, and let none begin."""
        with self._lock:
            self._is_stopping = True
            for process in self._running:
                process.terminate()
