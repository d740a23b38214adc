"""How the C library keeps the memory that tensors on the CPU give back."""

from __future__ import annotations

import ctypes
import sys

# Of <malloc.h>, where they are part of the interface.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = -1  # which glibc takes for the largest number of bytes


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed for the next tensor; returns whether it did, which other C libraries do not.

    By default each large tensor is a mapping of its own, given back when it is freed. A training step makes the same
    large tensors again and again, so it would spend much of its time on having the same pages zeroed and mapped.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
