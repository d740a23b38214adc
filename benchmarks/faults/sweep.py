"""Try faults from outside, and print the table `class | trials | held | failed`.

    python -m benchmarks.faults --trials 1500 --seed 42 --jobs 2 --output runs/faults
    python -m benchmarks.faults --trial '["kill", "pretrain", ["kill mkdir 1 *step-0000006"], true]'
    python -m benchmarks.faults --soak 20000 --kills 50

Number N of a seed is always the same trial. Outcomes are appended to a file in --output, and not
repeated. A fresh process is started as a user's is; a forked one begins when its imports are done.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.faults.bench import Bench
from benchmarks.faults.hostile import HOSTILE
from benchmarks.faults.soak import soak
from benchmarks.faults.trials import DAMAGE, TRIALS
from electra_albert.apps.command_line import format_table

_TURNS = {
    "fresh": 11,
    "forked": 12,
    "fail": 11,
    "damage": 9,
    "interrupt": 2,
    "together": 2,
    "hostile": 2,
    "rank": 1,
}
_PROGRAMS = [*["pretrain"] * 5, *["prepare"] * 2, "warmup", "export", "finetune"]
_ERRORS = ("EIO", "EIO", "ENOSPC", "EDQUOT", "EFBIG")
_FULL = ("write", "mkdir")  # the operations that need room
_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP", "SIGQUIT", "SIGXCPU")
_GOLDEN = 0.6180339887  # multiples of it, without their whole part, are spread evenly


@cache
def _bench(scratch: str) -> Bench:
    """The bench of this process."""
    return Bench(Path(tempfile.mkdtemp(dir=scratch)))


def draw(bench: Bench, number: int, seed: int) -> tuple[str, list[Any]]:
    """The class of this trial, and its function and arguments."""
    draws, kinds = (
        Random(f"{seed} {number}"),
        [kind for kind, count in _TURNS.items() for _ in range(count)],
    )
    cycle, turn = divmod(number, len(kinds))
    order = Random(seed).sample(kinds, len(kinds))
    kind, index = order[turn], cycle * _TURNS[order[turn]] + order[:turn].count(order[turn])
    program = draws.choice(["pretrain", "prepare", "finetune"] if kind == "together" else _PROGRAMS)
    at_operation = draws.random() < 0.7

    def spread(items: list[str]) -> str:
        return items[int((number * _GOLDEN % 1) * len(items))]

    if kind in ("fresh", "forked"):
        later = [f"after {draws.uniform(0.3, 1):.3f}" for _ in range(draws.choice((0, 0, 1, 2)))]
        first = (
            spread(bench.faults(program, "kill"))
            if at_operation
            else f"after {draws.uniform(0.3, 1):.3f}"
        )
        name = f"kill -9, {kind}, {'at a file operation' if at_operation else 'at a random time'}"
        return f"{name}: {program}", ["kill", program, [first, *later], kind == "fresh"]
    if kind == "fail":
        error = draws.choice(_ERRORS)
        faults = [
            one for one in bench.faults(program, error) if error == "EIO" or one.split()[1] in _FULL
        ]
        return f"failing call, {error}: {program}", [kind, program, spread(faults)]
    if kind == "interrupt":
        return f"signal: {program}", [
            kind,
            program,
            spread(bench.faults(program, "stop")),
            draws.choice(_SIGNALS),
        ]
    if kind == "together":
        return f"two processes: {program}", [kind, program, spread(bench.faults(program, "stop"))]
    if kind == "rank":
        faults, name = bench.faults("ranks", "stop"), draws.choice(("SIGKILL", "SIGSTOP"))
        faults = [
            one for one in faults if name == "SIGKILL" or "-step-" in one
        ]  # elsewhere ranks wait for the first
        return f"{name} of one rank of two", ["lose_rank", spread(faults), draws.randrange(2), name]
    if kind == "hostile" and index < len(HOSTILE):
        return "hostile file", [kind, list(HOSTILE)[index]]
    program, how = draws.choice([*_PROGRAMS, "demo"]), draws.choice(["flipped bit", *DAMAGE])
    path = spread(bench.files_read(program))
    return f"damaged file, {how}: {program}", [
        "damage",
        program,
        path,
        how,
        round(draws.random(), 4),
    ]


def attempt(number: int, seed: int, scratch: str) -> dict[str, Any]:
    """Perform a trial; returns its record."""
    bench = _bench(scratch)
    name, trial = draw(bench, number, seed)
    started = time.monotonic()
    failure = TRIALS[trial[0]](bench, *trial[1:])
    bench.remove_work()
    seconds = round(time.monotonic() - started, 1)
    return {"number": number, "class": name, "trial": trial, "failure": failure, "seconds": seconds}


def sweep(trials: int, seed: int, jobs: int, output: Path, scratch: str) -> bool:
    """Perform the trials that the output folder lacks, and write the table; returns whether one has
    failed.
    """
    output.mkdir(parents=True, exist_ok=True)
    log = output / f"trials-{seed}.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    missing = sorted({*range(trials)}.difference(record["number"] for record in records))
    with get_context("spawn").Pool(jobs) as pool, log.open("a") as file:
        for record in pool.imap_unordered(partial(attempt, seed=seed, scratch=scratch), missing):
            records.append(record)
            print(json.dumps(record), file=file, flush=True)
            print(
                f"{len(records)}/{trials} {record['class']}: {record['failure'] or 'held'}",
                flush=True,
            )
    counts, failures = (
        Counter(one["class"] for one in records),
        [one for one in records if one["failure"]],
    )
    failed = Counter(one["class"] for one in failures)
    table = [
        (name, count, count - failed[name], failed[name]) for name, count in sorted(counts.items())
    ]
    table.append(("all", len(records), len(records) - len(failures), len(failures)))
    print(
        format_table([("class", "trials", "held", "failed"), *([*map(str, row)] for row in table)])
    )
    for one in failures:
        print(
            f"python -m benchmarks.faults --trial '{json.dumps(one['trial'])}'  # {one['failure']}"
        )
    content = {"seed": seed, "table": table, "failures": failures}
    (output / f"table-{seed}.json").write_text(json.dumps(content, indent=1) + "\n")
    return bool(failures)


def main() -> int:
    """Perform a sweep, one trial or a soak; returns 1 if something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults", description="Try faults from outside."
    )
    for name, default in (("trials", 100), ("seed", 42), ("jobs", 1), ("soak", 0), ("kills", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output", type=Path, default=Path("runs/faults"))
    parser.add_argument("--trial", type=json.loads)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as scratch:
        if options.trial:
            failure = TRIALS[options.trial[0]](_bench(scratch), *options.trial[1:])
        elif options.soak:
            failure = soak(_bench(scratch), options.soak, options.kills, options.seed)
        else:
            return sweep(options.trials, options.seed, options.jobs, options.output, scratch)
    print(failure or "held")
    return bool(failure)
