"""What tensors give back stays with the process, so that the next ones find it there."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Fills 100 MB again and again, more than 2 GiB of them held at once now and then, as a training step does, and prints
# how many pages had to be mapped once it has begun.
_TENSORS, _HELD = 8, 24
_PAGES_OF_LATER_TENSORS = f"""
import resource
import sys
import torch
from electra_albert.training.allocator import keep_freed_memory

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    assert keep_freed_memory()
for _ in range(2):
    held = [torch.ones(25_000_000) for _ in range({_HELD})]
    del held
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({_TENSORS}):
    torch.ones(25_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_of_later_tensors(how: str) -> int:
    command = [sys.executable, "-c", _PAGES_OF_LATER_TENSORS, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep what is freed")
def test_a_freed_tensor_makes_room_for_the_next_one_without_new_pages() -> None:
    import resource

    pages_of_one = 25_000_000 * 4 // resource.getpagesize()
    # glibc finds the room again when two neighbours are free, so now and then one tensor more is mapped.
    assert pages_of_later_tensors("kept") <= 2 * pages_of_one
    assert pages_of_later_tensors("as it comes") > (_TENSORS - 1) * pages_of_one  # else there is nothing to keep
