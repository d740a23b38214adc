"""The code and the machine that numbers were made with."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

_LONGEST_SECONDS = 30


def commit() -> str | None:
    """The commit of the checkout that this package lies in, marked where files differ from it; None without one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # installed: what git would find here is another project's
        return None
    return first_line("git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def first_line(*command: str) -> str | None:
    """The first line that a program prints, or None where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LONGEST_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip() or None


def processor() -> str:
    """The model name of the processor, or what the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
