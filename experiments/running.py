"""Running stages in parallel: a finished stage is not run again, a stopped one is resumed."""

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from electra_albert.contracts import STOPPED_BY_SIGNAL, CheckpointError, UsageError, redacted
from electra_albert.files import write_json
from experiments.plan import PRETRAINING, Stage, typed

LOG = logging.getLogger("electra_albert.experiments")

_PRCTL = (
    getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
)  # a lookup could deadlock later
OTHER_RECIPE = "was made with other options or from other weights"


def failure(stage: Stage) -> str | None:
    """Why a started stage is not done; empty if it is done, None if it was never started."""
    try:
        record = json.loads(stage.record.read_text(encoding="utf-8"))
        code, recipe = record["exit_code"], record["recipe"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(
            f"{stage.record} is not a stage's record; delete it to run the stage again"
        ) from None
    if recipe != stage.recipe:
        return OTHER_RECIPE
    if code == 0:
        return "" if stage.output.exists() else f"has no output: {stage.output} is missing"
    if code in (None, STOPPED_BY_SIGNAL):
        return "was stopped and can be resumed"
    return f"failed with exit code {code}, see {stage.record.with_suffix('.log')}"


def is_done(stage: Stage) -> bool:
    """Whether the stage succeeded with the plan's current recipe and its output exists."""
    return failure(stage) == ""


def check_recipes(stages: Sequence[Stage]) -> None:
    """Raise UsageError if a stage would write into the output of other options or weights; scores
    are overwritten.
    """
    others = [stage for stage in stages if failure(stage) == OTHER_RECIPE and stage.output.is_dir()]
    folders = {
        stage.output.parent if stage.name.startswith(PRETRAINING) else stage.output
        for stage in others
    }
    outermost = sorted(str(folder) for folder in folders if not folders & {*folder.parents})
    for stage in others:
        remedy = f"choose another --output_dir, or delete {' and '.join(outermost)}"
        raise UsageError(f"{stage.name} of {stage.variant} {OTHER_RECIPE}; {remedy}")


def run_stages(stages: Sequence[Stage], jobs: int) -> list[int]:
    """Run the stages, `jobs` at a time; returns exit codes of failures.

    An interrupt lets all save, then is raised.
    """
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // jobs))
    # Linux kills a command when the runner is killed: it would keep the lock of its folder. 1 is
    # PR_SET_PDEATHSIG.
    start = partial(_PRCTL, 1, signal.SIGKILL) if _PRCTL else None
    root, path = Path(__file__).resolve().parents[1], os.environ.get("PYTHONPATH")
    env = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else str(root),
    }
    running, lock, stopping = set[subprocess.Popen[bytes]](), threading.Lock(), threading.Event()

    def run(stage: Stage) -> int:
        command = [sys.executable, "-m", *stage.module, *typed(stage.options)]
        record: dict[str, Any] = {"command": redacted(command), "recipe": stage.recipe}
        record["exit_code"] = None
        with lock:
            if stopping.is_set():
                return STOPPED_BY_SIGNAL
            stage.record.parent.mkdir(parents=True, exist_ok=True)
            write_json(stage.record, record)
            with stage.record.with_suffix(".log").open("ab") as log:
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, env=env, preexec_fn=start
                )
            running.add(process)
        code = STOPPED_BY_SIGNAL if (code := process.wait()) and stopping.is_set() else code
        write_json(stage.record, {**record, "exit_code": code})
        LOG.info(f"{stage.variant}: {stage.name} {failure(stage) or 'done'}")
        return code if code >= 0 else 1  # negative: killed by a signal

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(run, stage) for stage in stages]
            try:
                return [code for future in futures if (code := future.result())]
            finally:  # after an interrupt or an error; otherwise all have ended
                with lock:
                    stopping.set()
                    for process in running:
                        process.terminate()
    finally:
        signal.signal(signal.SIGTERM, before)
