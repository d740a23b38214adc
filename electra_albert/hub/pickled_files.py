"""What a pickled file may be made of before torch reads it: what torch.load, even of weights alone, does not bound."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import IO

_MOST_TUPLES = 20_000  # four a tensor; nested as deep as they are many, they would still fit on the stack
_OLD_PARTS = 4  # pickles that a file of the old form begins with, the last of them what was saved


def check_pickled(file: Path) -> None:
    """Raise ValueError for a file that unpacks to more bytes than it has, or holds tuples nested without end.

    Hashing such a tuple, as every key of a mapping is, ends the process. Damage is met in other exceptions too.
    """
    if not zipfile.is_zipfile(file):
        with file.open("rb") as opened:
            _check_tuples(opened, _OLD_PARTS)
        return
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
        if is_packed or sum(member.file_size for member in members) > file.stat().st_size:
            raise ValueError("it unpacks to more than its size")
        for member in members:
            if member.filename.lower().endswith(".pkl"):
                with archive.open(member) as opened:
                    _check_tuples(opened, 1)


def _check_tuples(opened: IO[bytes], parts: int) -> None:
    """Of the first `parts` pickles."""
    tuples = 0
    for _ in range(parts):
        for opcode, _, _ in pickletools.genops(opened):
            tuples += opcode.name.startswith("TUPLE")
            if tuples > _MOST_TUPLES:
                raise ValueError("its values are nested without end")
