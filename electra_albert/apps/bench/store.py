"""Building a token store: MB of text a second and core, and how that grows with the number of processes."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.bench.config import BenchConfig, spread

if TYPE_CHECKING:
    from electra_albert.corpus.parts import PartPlan
    from electra_albert.corpus.sources import Unit

LOG = logging.getLogger(__name__)

TARGET_MEGABYTES = {"sentences": 3.0, "documents": 3.0, "paragraphs": 1.5}  # a second and core
TOKENIZER_CHARACTERS = 4_000_000  # that the tokenizer of a store measurement is trained on; its training is not timed


def measure_store(config: BenchConfig) -> list[dict[str, Any]]:
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
            LOG.info(f"training a tokenizer of {config.vocab_size:,} pieces, which is not timed")
            tokenizer = train_tokenizer(_beginning(sources[0]), config.vocab_size, do_lower_case=True)
        return [_measure_files(files, tokenizer, folder, config) for files in sources]


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


def _measure_files(files: list[Path], tokenizer: Any, folder: Path, config: BenchConfig) -> dict[str, Any]:
    from electra_albert.corpus.sources import plan_units

    rates, scaled = [], []
    processes, units = len(os.sched_getaffinity(0)), plan_units(files)
    reason = no_scaling(len(units), processes)
    for repeat in range(config.repeats):
        alone = _build(files, tokenizer, folder, config.seed)
        rates.append(alone.megabytes / alone.seconds)
        told = f"{files[0].name}: build {repeat + 1} of {config.repeats}, {rates[-1]:.2f} MB/s"
        if reason is None:
            together = _write_parts(units, tokenizer, folder, processes)
            scaled.append((alone.megabytes / alone.writing_seconds, alone.megabytes / together))
            told += f", parts {scaled[-1][0]:.2f} MB/s by one process, {scaled[-1][1]:.2f} by {processes}"
        LOG.info(told)
    kinds = sorted({span.kind for unit in units for span in unit.spans})
    return {
        "kind": "+".join(kinds),
        "corpus": config.corpus,
        "megabytes": alone.megabytes,
        "tokens": alone.tokens,
        "vocab_size": len(tokenizer),
        "megabytes_per_second_and_core": spread(rates),
        "scaling": scaling_record(scaled, len(units), processes, reason),
        "target": min(TARGET_MEGABYTES.get(kind, TARGET_MEGABYTES["paragraphs"]) for kind in kinds),
    }


class _Built(NamedTuple):
    """A store that was built by one process, and what that took."""

    megabytes: float
    tokens: int
    seconds: float
    writing_seconds: float  # of these, on the clock, those that other processes could have shared


def _build(files: list[Path], tokenizer: Any, folder: Path, seed: int) -> _Built:
    from electra_albert.corpus.parts import write_parts
    from electra_albert.corpus.sources import plan_units
    from electra_albert.corpus.store import build_store

    began, began_working = time.perf_counter(), time.process_time()
    units = plan_units(files)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        plan = _plan(units, tokenizer, Path(name))
        began_writing = time.perf_counter()
        write_parts(plan, range(len(units)), 1)
        writing_seconds = time.perf_counter() - began_writing
        receipt = build_store(
            plan, Path(name), sources=[0] * len(units), vocab_size=len(tokenizer), seed=seed, found=Counter()
        ).statistics
        # Threads of the tokenizer would hide in the one, waiting for the disk in the other: the larger one counts.
        seconds = max(time.perf_counter() - began, time.process_time() - began_working)
    return _Built(receipt["read"]["bytes"] / 1e6, receipt["written"]["tokens"], seconds, writing_seconds)


def _write_parts(units: list[Unit], tokenizer: Any, folder: Path, processes: int) -> float:
    """Seconds on the clock until `processes` have tokenised all units, their start included."""
    from electra_albert.corpus.parts import write_parts

    with tempfile.TemporaryDirectory(dir=folder) as name:
        plan = _plan(units, tokenizer, Path(name))
        began = time.perf_counter()
        write_parts(plan, range(len(units)), processes)
        return time.perf_counter() - began


def _plan(units: list[Unit], tokenizer: Any, store: Path) -> PartPlan:
    from electra_albert.corpus.parts import PartPlan, token_dtype
    from electra_albert.corpus.word_encoder import encoder_settings

    return PartPlan(units, encoder_settings(tokenizer), store / "parts", "bench", token_dtype(len(tokenizer)))


def no_scaling(unit_count: int, processes: int) -> str | None:
    """Why nothing can be told of building by several processes, or None where it can."""
    if processes < 2:
        return "this process may use one core only"
    if unit_count < processes:
        return f"units of text: {unit_count}, processes: {processes}; give more text"
    return None


def scaling_record(
    rates: list[tuple[float, float]], unit_count: int, processes: int, reason: str | None
) -> dict[str, Any]:
    """How much of `processes` times the rate of one process was reached, from pairs of both rates; or the reason not.

    Units are not cut further, so that the last of them keep some processes waiting: `possible` allows for that.
    """
    record: dict[str, Any] = {"processes": processes, "units": unit_count, "reason": reason}
    if reason is not None:
        return record
    return record | {
        "one": spread([one for one, _ in rates]),
        "all": spread([together for _, together in rates]),
        "efficiency": spread([together / (processes * one) for one, together in rates]),
        "possible": unit_count / (processes * -(-unit_count // processes)),
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
    lines.append("\nparts of the store written by several processes (target: near-linear in cores)")
    for record in records:
        lines.append(f"{record['kind']:<12}{_scaling_line(record['scaling'])}")
    return "\n".join(lines)


def _scaling_line(scaling: dict[str, Any]) -> str:
    if scaling["reason"] is not None:
        return f"-  ({scaling['reason']})"
    efficiency = scaling["efficiency"]
    return (
        f"{scaling['one']['median']:.2f} MB/s by 1, {scaling['all']['median']:.2f} by {scaling['processes']}: "
        f"{efficiency['median']:.0%} ({efficiency['lowest']:.0%} to {efficiency['highest']:.0%}) of linear; "
        f"{scaling['units']} equal units would allow {scaling['possible']:.0%}"
    )
