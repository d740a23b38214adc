"""Stages run side by side, each once: what ended well is not run again, what was stopped is resumed."""

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
from experiments.plan import PRETRAINING, Stage, typed

LOG = logging.getLogger("electra_albert.experiments")

_ROOT = Path(__file__).resolve().parents[1]
OTHERWISE = "was made with other options or from other weights"


def trouble(stage: Stage) -> str | None:
    """Why a stage that was begun is not done, empty where it is done; None where it was never begun."""
    try:
        record = json.loads(stage.record.read_text(encoding="utf-8"))
        code, recipe = record["exit_code"], record["recipe"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{stage.record} is no record of a stage; remove it to have the stage run again"
        ) from None
    if recipe != stage.recipe:
        return OTHERWISE
    if code == 0:
        return "" if stage.output.exists() else f"has lost {stage.output}"
    if code in (None, STOPPED_BY_SIGNAL):
        return "was stopped and can be resumed"
    return f"ended with exit code {code}, see {stage.record.with_suffix('.log')}"


def is_done(stage: Stage) -> bool:
    """Whether it has ended well, as the plan has it now, and its output is there."""
    return trouble(stage) == ""


def check_recipes(stages: Sequence[Stage]) -> None:
    """UsageError where a stage would mix its output with that of other options or weights; scores are overwritten."""
    others = [stage for stage in stages if trouble(stage) == OTHERWISE and stage.output.is_dir()]
    folders = {stage.output.parent if stage.name.startswith(PRETRAINING) else stage.output for stage in others}
    outermost = sorted(str(folder) for folder in folders if not folders & {*folder.parents})
    for stage in others:
        remedy = f"choose another --output_dir, or remove {' and '.join(outermost)}"
        raise UsageError(f"{stage.name} of {stage.arm} {OTHERWISE}; {remedy}")


def write_json(file: Path, content: object) -> None:
    """Write a JSON file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}")
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, file)


def run_stages(stages: Sequence[Stage], jobs: int) -> list[int]:
    """Run the stages, `jobs` at once; returns exit codes of failures. An interrupt lets all save, then is raised."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // jobs))
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": path}
    running, lock, stopping = set[subprocess.Popen[bytes]](), threading.Lock(), threading.Event()

    def run(stage: Stage) -> int:
        command = [sys.executable, "-m", *stage.module, *typed(stage.options)]
        record: dict[str, Any] = {"command": command, "recipe": stage.recipe, "exit_code": None}
        with lock:
            if stopping.is_set():
                return STOPPED_BY_SIGNAL
            write_json(stage.record, record)
            with stage.record.with_suffix(".log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            running.add(process)
        code = process.wait()
        code = STOPPED_BY_SIGNAL if code and stopping.is_set() else code
        write_json(stage.record, {**record, "exit_code": code})
        LOG.info(f"{stage.arm}: {stage.name} {trouble(stage) or 'done'}")
        return code if code >= 0 else 1  # one that was killed has no code of its own

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(run, stage) for stage in stages]
            try:
                return [code for future in futures if (code := future.result())]
            finally:  # an interrupt or an error: else all have ended
                with lock:
                    stopping.set()
                    for process in running:
                        process.terminate()
    finally:
        signal.signal(signal.SIGTERM, before)
