"""What tensors give back stays with the process, so that the next ones find it there."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Holds 3 GB in tensors of 100 MB and lets go of them, the first one first, so that in the end all of it is free in one
# piece; then holds as much again, and prints how many pages had to be mapped for that.
_HELD = 30
_PAGES_OF_LATER_TENSORS = f"""
import resource
import sys
import torch
from electra_albert.training.allocator import keep_freed_memory

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    assert keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(25_000_000) for _ in range({_HELD})]
    mapped = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    while held:
        held.pop(0)
print(mapped)
"""


def pages_of_later_tensors(how: str) -> int:
    command = [sys.executable, "-c", _PAGES_OF_LATER_TENSORS, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep what is freed")
def test_freed_tensors_make_room_for_the_next_ones() -> None:
    import resource

    pages = _HELD * 25_000_000 * 4 // resource.getpagesize()
    # glibc does not find the room for an aligned tensor at once, so a few more are mapped.
    assert pages_of_later_tensors("kept") < pages / 2
    assert pages_of_later_tensors("as it comes") > 0.9 * pages  # else there is nothing to keep
