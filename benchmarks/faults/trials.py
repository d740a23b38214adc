"""Trials of faults: each returns its failure in one line, "" if it held.

A fault is a text for preload.c, such as "kill sync 1 run/checkpoints/*/model.safetensors", or
"after 0.4", which kills after this share of the undisturbed time. A trial holds if the same
command, typed again, ends with 0 and its files are those of an undisturbed run: weights, optimizer,
state, exported folders, rows without times. A command that fails ends with a documented exit code
and one line `error: …`, without a traceback, in bounded time.
"""

import os
import re
import signal
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from benchmarks.faults.bench import PROGRAMS, REFUSED, Bench, problem
from benchmarks.faults.hostile import HOSTILE, LIMIT_SECONDS, MOST_BYTES
from benchmarks.faults.processes import ROOT

_LOGS = ("metrics.jsonl", "samples.jsonl")
_STOPPED = (0, 75, 130)  # exit codes after a signal that the program handles
_REPLACED = (
    "*/checkpoints/*",
    "*prepared/*/store/*",
    "*prepared/*/tokenizer/*",
)  # by older or new files if damaged
_FAILED_RANK = re.compile(r"rank +: (\d+) .*\n +exitcode +: (-?\d+)")  # in the report of torchrun
_IDLE_SECONDS = 2  # until a rank waits for the others, or has ended


def kill(bench: Bench, program: str, faults: Sequence[str], is_fresh: bool) -> str:
    """Kill a program, one time after another; if it ends before, try again in half the time."""
    folder = bench.work(program)
    for number, fault in enumerate(faults):
        ended = bench.finish(program, folder, fault, is_fresh=is_fresh)
        if found := problem(ended, (0, -signal.SIGKILL)):
            return found
        if ended.code == 0 and fault.startswith("after"):
            earlier = f"after {float(fault.split()[1]) / 2}"
            return kill(
                bench, program, [*faults[:number], earlier, *faults[number + 1 :]], is_fresh
            )
        if ended.code == 0:
            return f"{fault} was not reached"
    return bench.again(program, folder, is_fresh=is_fresh)


def fail(bench: Bench, program: str, fault: str) -> str:
    """Let an operation fail: the program is right, or ends with one line; rows of which it warns
    may be missing.
    """
    folder = bench.work(program)
    ended = bench.finish(program, folder, fault)
    if not ended.has_fault:
        return f"{fault} was not reached; {problem(ended)}"
    lost = [f"*{name}" for name in _LOGS if f"cannot write {name}" in ended.err]
    found = (
        ""
        if ended.code
        else bench.difference(program, folder, ended, [*lost, "*/.*-step-*", "*/store/parts*"])
    )
    return problem(ended, (0, *REFUSED)) or found or bench.again(program, folder, forgiven=lost)


def damage(bench: Bench, program: str, path: str, how: str, at: float) -> str:
    """Damage a file that a program reads, at a share of its length: it is replaced, refused or
    harmless.
    """
    folder = bench.work(program, is_half=True)
    (file,) = (
        one for one in folder.rglob("*") if fnmatchcase(one.relative_to(folder).as_posix(), path)
    )
    before = file.read_bytes()
    start = int(at * len(before))
    file.unlink()
    if how == "pipe":
        os.mkfifo(file)
    elif how != "removed":
        file.write_bytes(DAMAGE[how](before, start))
    ended = bench.finish(program, folder)
    forgiven, is_replaced = (
        [path] * (file.name in _LOGS),
        any(fnmatchcase(path, one) for one in _REPLACED),
    )
    if (found := problem(ended, (0,) if is_replaced else (0, *REFUSED))) or ended.code:
        return found
    found = bench.difference(program, folder, ended, forgiven)
    return found or bench.difference("prepare", folder, ended) * (
        is_replaced and path.startswith("prepared/")
    )


DAMAGE: dict[str, Any] = {  # new content from the old one and a position in it
    "flipped bit": lambda old, start: bytes(
        byte ^ 16 * (index == start) for index, byte in enumerate(old)
    ),
    "cut": lambda old, start: old[:start],
    "end of zeros": lambda old, start: old[:start] + bytes(len(old) - start),
    "deep JSON": lambda old, start: b"[" * 100_000,
    "empty": lambda old, start: b"",
    "removed": None,
    "pipe": None,
}


def together(bench: Bench, program: str, fault: str) -> str:
    """Start a program again while it is stopped in the middle: the second one waits, or one is
    refused.
    """
    folder = bench.work(program)
    first = bench.start(program, folder, fault)
    if not first.await_stop():
        return f"did not stop: {problem(first.wait())}"
    second = bench.start(program, folder)
    while not second.has_ended and b"waiting" not in second.output.with_suffix(".err").read_bytes():
        time.sleep(0.005)
        if time.monotonic() - second.started > LIMIT_SECONDS:
            return f"the second one hangs: {problem(second.wait(0))}; {problem(first.wait(0))}"
    os.kill(first.pid, signal.SIGCONT)
    ends = first.wait(), second.wait()
    if all(end.code for end in ends):
        return f"none ended with 0: {problem(ends[0])}"
    return (
        problem(ends[0], (0, 2))
        or problem(ends[1], (0, 2))
        or bench.difference(program, folder, ends[0])
    )


def interrupt(bench: Bench, program: str, fault: str, name: str) -> str:
    """Send a signal while a program is stopped in the middle."""
    folder, number = bench.work(program), signal.Signals[name]
    process = bench.start(program, folder, fault)
    if not process.await_stop():
        return f"did not stop: {problem(process.wait())}"
    os.kill(process.pid, number)
    os.kill(process.pid, signal.SIGCONT)
    return problem(process.wait(), (*_STOPPED, -number)) or bench.again(program, folder)


def lose_rank(bench: Bench, fault: str, lost: int, name: str) -> str:
    """Kill a rank of two or let it hang while rank 0 is stopped in the middle: the other rank names
    it.
    """
    folder = bench.work("ranks")
    process = bench.start("ranks", folder, fault)
    if not process.await_stop(of_child=True):
        return f"did not stop: {problem(process.wait())}"
    time.sleep(_IDLE_SECONDS)
    ranks = process.children()
    if (
        is_alone := len(ranks) == 1
    ):  # rank 1 has ended before the export: none is left that could notice
        lost, name = 0, "SIGKILL"
    os.kill(ranks[lost], signal.Signals[name])
    if lost:
        os.kill(ranks[0], signal.SIGCONT)
    until = time.monotonic() + LIMIT_SECONDS
    while name == "SIGSTOP" and len(process.children()) == 2:
        time.sleep(0.1)
        if time.monotonic() > until:
            return f"the hang is not noticed: {problem(process.wait(0))}"
    if name == "SIGSTOP":
        os.kill(ranks[lost], signal.SIGKILL)  # as torchrun does half a minute later
    ended, codes = process.wait(), {str(lost): "-9"} | ({} if is_alone else {str(1 - lost): "6"})
    if ended.code is None or f'File "{ROOT}/electra_albert' in ended.err:
        return problem(ended)
    if (found := dict(_FAILED_RANK.findall(ended.err))) != codes:
        return f"exit codes of ranks {found}, not {codes}"
    error = "\n".join(re.findall("^error: .*", ended.err, re.M))
    lasts = [
        log.read_text().rstrip().rpartition("\n")[2] for log in folder.glob("two/log.txt")
    ]  # none at the start
    is_named = re.fullmatch(f"error: rank {lost} of 2 .* same command again .*", error)
    if not is_alone and not (is_named and all(last.endswith(error) for last in lasts)):
        return f"{error or 'no error line'}; log.txt ends with {lasts}"
    return bench.again("ranks", folder)


def hostile(bench: Bench, name: str) -> str:
    """Read a hostile file: an answer or a refusal, in bounded time and memory, and nothing in it is
    executed.
    """
    file = HOSTILE[name]
    folder = bench.work(file.program, is_half=file.program == "pretrain")
    (folder / "kept").write_text("kept")
    ended = bench.launcher.start(file.write(folder, PROGRAMS[file.program].argv), folder).wait(
        LIMIT_SECONDS
    )
    if (folder / "canary").exists() or (folder / "kept").read_text() != "kept":
        return "its code was executed, or another file overwritten"
    return problem(ended, (0, *REFUSED)) or f"{ended.peak_bytes >> 20} MiB" * (
        ended.peak_bytes > MOST_BYTES
    )


TRIALS: dict[str, Any] = {
    one.__name__: one for one in (kill, fail, damage, together, interrupt, lose_rank, hostile)
}
