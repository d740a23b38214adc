"""Building a token store: MB of text a second and core."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra_albert.apps.bench_config import BenchConfig, Say, spread

TARGET_MEGABYTES = {"sentences": 3.0, "documents": 3.0, "paragraphs": 1.5}  # a second and core
TOKENIZER_CHARACTERS = 4_000_000  # that the tokenizer of a store measurement is trained on; its training is not timed


def measure_store(config: BenchConfig, say: Say) -> list[dict[str, Any]]:
    """One record for each kind of text: MB a second and core of planning, reading, splitting, tokenising, writing."""
    from electra_albert.config import BUILT_IN_CORPUS
    from electra_albert.corpus.sources import find_files
    from electra_albert.corpus.tokenizer import load_tokenizer, train_tokenizer

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        is_built_in = config.corpus == BUILT_IN_CORPUS
        sources = _docs_as_text(config, folder) if is_built_in else [find_files(config.corpus, Counter())]
        if config.tokenizer:
            tokenizer = load_tokenizer(Path(config.tokenizer))
        else:
            say(f"training a tokenizer of {config.vocab_size:,} pieces, which is not timed")
            tokenizer = train_tokenizer(_beginning(sources[0]), config.vocab_size, do_lower_case=True)
        return [_measure_files(files, tokenizer, folder, config, say) for files in sources]


def _docs_as_text(config: BenchConfig, folder: Path) -> list[list[Path]]:
    """The built-in corpus as two text files: one sentence a line, and one document a line that must be split."""
    from electra_albert.config import BUILT_IN_CORPUS
    from electra_albert.corpus.installed_docs import write_installed_docs
    from electra_albert.corpus.sources import plan_units, read_unit

    units = plan_units([write_installed_docs(Path(config.prepared_dir) / BUILT_IN_CORPUS)])
    files = []
    for kind, between in (("sentences", "\n"), ("paragraphs", " ")):
        file = folder / f"{kind}.txt"
        with file.open("w", encoding="utf-8") as text:
            for document in (document for unit in units for document in read_unit(unit, Counter())):
                text.write(between.join(document.sentences) + "\n\n")
        files.append([file])
    return files


def _beginning(files: list[Path]) -> Iterator[str]:
    from electra_albert.corpus.sources import plan_units, read_unit

    left = TOKENIZER_CHARACTERS
    documents = (document for unit in plan_units(files) for document in read_unit(unit, Counter()))
    for sentence in (sentence for document in documents for sentence in document.sentences):
        if left <= 0:
            return
        yield sentence
        left -= len(sentence)


def _measure_files(files: list[Path], tokenizer: Any, folder: Path, config: BenchConfig, say: Say) -> dict[str, Any]:
    from electra_albert.corpus.parts import PartPlan, token_dtype, write_parts
    from electra_albert.corpus.sources import plan_units
    from electra_albert.corpus.store import build_store
    from electra_albert.corpus.word_encoder import encoder_settings

    rates = []
    for repeat in range(config.repeats):
        began, began_working = time.perf_counter(), time.process_time()
        units = plan_units(files)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            store, vocab_size = Path(name), len(tokenizer)
            plan = PartPlan(units, encoder_settings(tokenizer), store / "parts", "bench", token_dtype(vocab_size))
            write_parts(plan, range(len(units)), 1, say)
            receipt = build_store(
                plan, store, sources=[0] * len(units), vocab_size=vocab_size, seed=config.seed, found=Counter()
            ).receipt
            # Threads of the tokenizer would hide in the one, waiting for the disk in the other: the larger one counts.
            seconds = max(time.perf_counter() - began, time.process_time() - began_working)
        rates.append(receipt["read"]["bytes"] / 1e6 / seconds)
        say(f"{files[0].name}: build {repeat + 1} of {config.repeats}, {rates[-1]:.2f} MB/s")
    kinds = sorted({span.kind for unit in units for span in unit.spans})
    return {
        "kind": "+".join(kinds),
        "corpus": config.corpus,
        "megabytes": receipt["read"]["bytes"] / 1e6,
        "tokens": receipt["written"]["tokens"],
        "vocab_size": len(tokenizer),
        "megabytes_per_second_and_core": spread(rates),
        "target": min(TARGET_MEGABYTES.get(kind, TARGET_MEGABYTES["paragraphs"]) for kind in kinds),
    }


def format_store(records: list[dict[str, Any]]) -> str:
    """The records as a table."""
    lines = [
        "",
        f"token store, one process\n{'text':<12}{'MB':>9}{'MB/s a core':>13}{'lowest':>9}{'highest':>9}{'target':>8}",
    ]
    for record in records:
        rate = record["megabytes_per_second_and_core"]
        columns = f"{rate['median']:>13.2f}{rate['lowest']:>9.2f}{rate['highest']:>9.2f}{record['target']:>8.1f}"
        lines.append(f"{record['kind']:<12}{record['megabytes']:>9.1f}{columns}")
    return "\n".join(lines)
