"""Names for what is written in full before it is renamed into place."""

from __future__ import annotations

import secrets
from pathlib import Path


def name_beside(path: Path) -> Path:
    """A name in the same folder that nobody else takes; the number of a process repeats on another machine."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}")
