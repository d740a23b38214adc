"""Writing small corpora and reading them whole, for the tests of the sources."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from electra_albert.corpus.sources import Document, Reading, Span, plan_units, read_unit

PROSE = ["The cat sat on the mat near the door.", "It was warm there.", "Nobody came to see it that day."]


def write(folder: Path, content: str | bytes, name: str = "corpus.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(*files: Path, unit_bytes: int = 8 << 20, **how: Any) -> tuple[list[Document], Counter[str]]:
    """All documents of the files, and what was counted; `how` are the fields of Reading."""
    counts: Counter[str] = Counter()
    units = plan_units(list(files), Reading(**how), unit_bytes)
    return [document for unit in units for document in read_unit(unit, counts)], counts


def sentences(*files: Path, unit_bytes: int = 8 << 20, **how: Any) -> list[list[str]]:
    return [document.sentences for document in read(*files, unit_bytes=unit_bytes, **how)[0]]


def cut(path: Path, unit_bytes: int) -> list[Span]:
    """The spans of a file, one a unit."""
    units = plan_units([path], unit_bytes=unit_bytes)
    assert all(len(unit.spans) == 1 for unit in units)
    return [unit.spans[0] for unit in units]


def write_table(path: Path, texts: list[str | None], rows: int = 7) -> Path:
    table = pyarrow.table({"id": range(len(texts)), "text": pyarrow.array(texts, pyarrow.string())})
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=rows)
    else:
        new = pyarrow.ipc.new_file if path.stem == "file" else pyarrow.ipc.new_stream
        with path.open("wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, rows)
    return path
