"""Small corpora, read completely or built into token stores."""

import bz2
import gzip
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from electra_albert.corpus.documents import Document
from electra_albert.corpus.parts import PartPlan, write_parts
from electra_albert.corpus.rows import Split, TokenStream
from electra_albert.corpus.sources import ReadOptions, Span, Unit, plan_units, read_unit
from electra_albert.corpus.store import Store, merge_parts, split_parts
from electra_albert.data_files.finding import find_files
from electra_albert.tokenization.text_encoder import TextEncoder

PROSE = [
    "The cat sat on the mat near the door.",
    "It was warm there.",
    "Nobody came to see it that day.",
]
_WORDS = "river bridge house people night water road hill moon dog stone wind old new great small"
WORDS = f"{_WORDS} sang fell".split()
COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: pyarrow.compress(raw, "zstd", asbytes=True),
}


def write(folder: Path, content: str | bytes, name: str = "corpus.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(
    *files: Path, unit_bytes: int = 8 << 20, **how: Any
) -> tuple[list[Document], Counter[str]]:
    """All documents of the files, and the counts; `how` are fields of ReadOptions."""
    counts = Counter()
    units = plan_units(list(files), ReadOptions(**how), unit_bytes)
    return [document for unit in units for document in read_unit(unit, counts)], counts


def sentences(*files: Path, unit_bytes: int = 8 << 20, **how: Any) -> list[list[str]]:
    return [document.sentences for document in read(*files, unit_bytes=unit_bytes, **how)[0]]


def cut(path: Path, unit_bytes: int) -> list[Span]:
    return [span for unit in plan_units([path], unit_bytes=unit_bytes) for span in unit.spans]


def solid(text: str) -> str:
    return "".join(text.split())


def write_table(path: Path, texts: list[str | None], rows: int = 7) -> Path:
    table = pyarrow.table({"id": range(len(texts)), "text": pyarrow.array(texts, pyarrow.string())})
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=rows)
    else:
        new = pyarrow.ipc.new_file if path.stem == "file" else pyarrow.ipc.new_stream
        with path.open("wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, rows)
    return path


def document(number: int, sentences: int = 3) -> list[str]:
    """Sentences of ten words, different for each number."""
    draw = np.random.default_rng(number).integers(len(WORDS), size=(sentences, 10))
    return [" ".join(WORDS[word] for word in row) + f" {number}." for row in draw]


def write_corpus(folder: Path, documents: int | list[list[str]], files: int = 3) -> list[Unit]:
    """Write these documents, or as many different ones; one unit per file.

    A sentence per line, a blank line between documents.
    """
    if isinstance(documents, int):
        documents = [document(number) for number in range(documents)]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        share = documents[number * len(documents) // files : (number + 1) * len(documents) // files]
        write(folder, "\n\n".join("\n".join(d) for d in share) + "\n", f"{number}.txt")
    return [unit for file in find_files(str(folder), Counter()) for unit in plan_units([file])]


def plan_parts(
    units: list[Unit], tokenizer: Any, folder: Path, sources: list[int] | None = None
) -> PartPlan:
    sources = sources or [0] * len(units)
    return PartPlan(
        units, sources, TextEncoder(tokenizer), len(tokenizer), folder / "parts", "f", "f", 3, 32
    )


def build(
    units: list[Unit], tokenizer: Any, folder: Path, sources: list[int] | None = None
) -> Store:
    """Write the missing parts and merge them, as `prepare` does."""
    plan = plan_parts(units, tokenizer, folder, sources)
    write_parts(plan, range(len(units)), 1)
    split_parts(plan, range(len(units)), 1)
    return merge_parts(plan, Counter())


def joined(split: Split) -> TokenStream:
    """The parts of a split one after the other."""
    edges = np.cumsum([0, *(len(part.tokens) for part in split.parts)])
    parts = [TokenStream(t, s + e, d + e) for (t, s, d), e in zip(split.parts, edges, strict=False)]
    return TokenStream(*map(np.concatenate, zip(*parts, strict=True)))


def stored_bytes(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.bin"))
    }
