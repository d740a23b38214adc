"""Files that are written in full under another name before they are renamed into place."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def name_beside(path: Path) -> Path:
    """A name in the same folder that nobody else takes; the number of a process repeats on another machine."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name `path` once all of it is written; where that fails nothing of it is left.

    Arrays are written with `tobytes()`: `ndarray.tofile` overlooks what fails when its last bytes are flushed.
    """
    beside = name_beside(path)
    try:
        with beside.open("xb") as file:
            yield file
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
