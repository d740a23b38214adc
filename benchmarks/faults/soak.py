"""A long run that is killed many times: bitwise equal to an undisturbed one, in memory that does
not grow.
"""

import os
import signal
import time
from pathlib import Path
from random import Random

from benchmarks.faults.bench import PROGRAMS, Bench, difference, files_of, problem
from benchmarks.faults.processes import Process

_MORE = "--logging_steps 100 --save_steps 250 --eval_steps 500 --warmup_steps 100 --max_steps"
_MOST_GROWTH = (
    1.05  # of the memory after a fifth of the run; the first evaluation imports its metrics
)
_DAY_SECONDS = 86_400


def soak(bench: Bench, steps: int, kills: int, seed: int) -> str:
    """Train undisturbed, then with kills at random steps; prints times and memory, and returns the
    failure or "".
    """
    command = [*PROGRAMS["pretrain"].argv.split(), *_MORE.split(), str(steps)]
    whole, killed, draws = bench.work("pretrain"), bench.work("pretrain"), Random(seed)
    process = bench.launcher.start(command, whole, is_fresh=True)
    samples, ended = (
        _watch(process, whole, steps),
        process.wait(_DAY_SECONDS),
    )  # the export needs more memory
    first, last = (samples[position] >> 20 for position in (len(samples) // 5, -1))
    print(
        f"{steps} steps in {ended.seconds:.0f} s; {first} MiB after a fifth, {last} last, "
        f"{max(samples) >> 20} most"
    )
    started = time.monotonic()
    for step in sorted(draws.sample(range(1, steps), kills)):
        process = bench.launcher.start(command, killed, is_fresh=True)
        _watch(process, killed, step)
        time.sleep(draws.random())
        os.kill(process.pid, signal.SIGKILL)
        stopped = process.wait(_DAY_SECONDS)
        print(f"killed after step {step}: exit {stopped.code}", flush=True)
        if found := problem(stopped, (0, -signal.SIGKILL)):
            return f"killed after step {step}: {found}"
    again = bench.launcher.start(command, killed, is_fresh=True).wait(_DAY_SECONDS)
    print(f"{kills} kills in {time.monotonic() - started:.0f} s")
    found = difference(files_of("pretrain", killed, again), files_of("pretrain", whole, ended))
    return (
        problem(ended) or problem(again) or found or "memory grows" * (last > first * _MOST_GROWTH)
    )


def _watch(process: Process, folder: Path, step: int) -> list[int]:
    """Wait until the run has logged a step or has ended; returns samples of its resident memory in
    bytes.
    """
    log, samples = folder / "run" / "metrics.jsonl", []
    while not process.has_ended:
        samples.append(
            int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
        )
        rows = log.read_bytes().splitlines() if log.exists() else []
        if rows and int(rows[-1].partition(b'"step": ')[2].partition(b",")[0] or 0) >= step:
            break
        time.sleep(0.1)
    return samples
