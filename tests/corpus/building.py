"""Small corpora, and token stores built from them as preparing a corpus does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from electra_albert.corpus.parts import PartPlan, token_dtype, write_parts
from electra_albert.corpus.sources import Unit, find_files, plan_units
from electra_albert.corpus.store import Store, build_store
from electra_albert.corpus.word_encoder import encoder_settings

TEXT = "river bridge house people night water road hill moon dog stone wind old new great small sang fell"
WORDS = TEXT.split()


def document(number: int, sentences: int = 3) -> list[str]:
    """Sentences of about ten words, others for each number."""
    draw = np.random.default_rng(number).integers(len(WORDS), size=(sentences, 10))
    return [" ".join(WORDS[word] for word in row) + f" {number}." for row in draw]


def write_corpus(folder: Path, documents: list[list[str]], files: int = 3) -> list[Unit]:
    """One sentence a line, a blank line between documents, spread over some files; one unit each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        share = documents[number * len(documents) // files : (number + 1) * len(documents) // files]
        (folder / f"{number}.txt").write_text("\n\n".join("\n".join(d) for d in share) + "\n", encoding="utf-8")
    return [unit for file in find_files(str(folder), Counter()) for unit in plan_units([file])]


def build(
    units: list[Unit],
    tokenizer: Any,
    folder: Path,
    *,
    fingerprint: str = "f",
    seed: int = 3,
    num_workers: int = 1,
    sources: list[int] | None = None,
) -> Store:
    """Write the parts that are missing and put them together, as preparing a corpus does."""
    vocab_size = len(tokenizer)
    plan = PartPlan(units, encoder_settings(tokenizer), folder / "parts", fingerprint, token_dtype(vocab_size))
    write_parts(plan, range(len(units)), num_workers)
    sources = sources or [0] * len(units)
    return build_store(plan, folder, sources=sources, vocab_size=vocab_size, seed=seed, found=Counter())


def stored_bytes(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.bin"))}
