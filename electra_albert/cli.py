"""The console command `electra-albert COMMAND [option ...]`."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

_WATCHED_SECONDS = 0.1
_STATISTICS = Path("/proc/stat")  # of Linux, where it is not hidden
COMMANDS = {  # name: (module with main(argv) -> exit code, one line of help)
    "pretrain": ("electra_albert.apps.pretrain.main", "pretrain an encoder on raw text"),
    "finetune": (
        "electra_albert.apps.finetune.main",
        "fine-tune on GLUE, SQuAD, RACE, tags, your data",
    ),
    "demo": ("electra_albert.apps.demo", "fill in masks and rewrite text with a generator"),
    "prepare": ("electra_albert.apps.prepare", "train a tokenizer and tokenise a corpus"),
    "export": ("electra_albert.apps.export", "export a model for transformers or as ONNX"),
    "score": ("electra_albert.apps.score", "evaluate a model on held-out text and minimal pairs"),
    "doctor": ("electra_albert.apps.doctor", "check a corpus and a configuration before training"),
    "report": ("electra_albert.apps.report", "write report.html of a run: curves, scores, samples"),
    "show-batch": ("electra_albert.apps.show_batch", "print the batch of a step, token by token"),
}


def main(argv: Sequence[str]) -> int:
    """Run the command given by the first argument; returns its exit code."""
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print("usage: electra-albert COMMAND [option ...]\n")
        for command, (_, text) in COMMANDS.items():
            print(f"  {command:10}  {text}")
        print("\nCOMMAND --help lists its options.")
        return 0
    if name == "--version":
        from electra_albert import __version__

        print(__version__)
        return 0
    if name not in COMMANDS:
        from electra_albert.apps.command_line import suggest
        from electra_albert.contracts import UsageError

        listed = ", ".join(COMMANDS)
        raise UsageError(f"unknown command {name!r}{suggest(name, COMMANDS)}; use one of: {listed}")
    run: Callable[[Sequence[str]], int] = import_module(COMMANDS[name][0]).main
    return run(argv[1:])


def run(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console command and of the scripts; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["pretrain"], ["finetune"]) and "--help" not in argv:
        _share_cores()
    from electra_albert.apps.command_line import run_app

    return run_app(main, argv)


def _share_cores() -> None:
    """Before torch loads: let OpenMP's threads sleep while they wait if other programs are running.

    By default they spin, which is faster alone, but delays both them and the others otherwise.
    """
    is_chosen = any(name.startswith(("OMP_", "GOMP_")) for name in os.environ)
    if is_chosen or not _STATISTICS.exists():
        return
    before = _busy_seconds()
    time.sleep(_WATCHED_SECONDS)
    if _busy_seconds() - before > _WATCHED_SECONDS / 2:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        print("notice: other programs are running: OMP_WAIT_POLICY is passive", file=sys.stderr)


def _busy_seconds() -> float:
    """Seconds that the cores of this process were in programs and the kernel, since the start."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in _STATISTICS.read_text().splitlines():
        name, *times = line.split()
        if name in cores:
            ticks += sum(map(int, times[:3]))  # user, nice and system
    return ticks / os.sysconf("SC_CLK_TCK")
