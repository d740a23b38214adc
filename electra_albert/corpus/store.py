"""The token store: two memory-mapped streams of tokens, one to train on and one held out, and the corpus statistics.

Layout of a store: train/ and validation/, each with tokens.bin (uint16 or uint32), sentence_ends.bin and
document_ends.bin (int64, counted in tokens from the stream's start), token_counts.bin (int64 [V], of train), and
manifest.json, which is written last and holds size and SHA-256 of all of them. checked.json remembers when they were
last found to be as written. Streams are copied from parts in bounded blocks, so memory stays flat.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.held_out import SIDES, Run, plan_sides
from electra_albert.corpus.parts import PartPlan, token_dtype
from electra_albert.files import HashedFile, Written, find_damage, read_json, write_json

FORMAT_VERSION = 3
_BLOCK = 1 << 20  # numbers copied at once


class TokenStream(NamedTuple):
    """Memory-mapped: tokens [T] unsigned, sentence_ends and document_ends int64, the last of each being T."""

    tokens: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray


class Store(NamedTuple):
    """An opened token store."""

    folder: Path
    fingerprint: str
    vocab_size: int
    train: TokenStream
    validation: TokenStream
    token_counts: np.ndarray  # [V] int64, of train
    statistics: dict[str, Any]  # of the corpus

    @property
    def source_starts(self) -> list[int]:
        """Where each source begins in the train stream, in tokens."""
        return [0, *self.statistics["sides"]["train"]["source_ends"][:-1]]


def build_store(
    plan: PartPlan, folder: Path, *, sources: list[int], vocab_size: int, seed: int, found: Counter[str]
) -> Store:
    """Put the finished parts of `plan` together to a store in `folder`; the parts are removed.

    sources: the source that each unit of the plan belongs to, ascending. found: what was noted when the files were
    looked for.
    """
    (folder / "manifest.json").unlink(missing_ok=True)
    for side in SIDES:
        shutil.rmtree(folder / side, ignore_errors=True)  # with the example tables of an older store
    parts = plan.parts()
    if missing := [part.number for part in parts if not part.statistics]:
        raise UsageError(f"{plan.folder}: part {missing[0]} is not there or was made otherwise; write it again")
    read, written = Counter(found), Counter[str]()
    for part in parts:
        read.update(part.statistics["read"])
        written.update(part.statistics["written"])
    if written["sentences"] < 2:
        held = "no sentence" if not written["sentences"] else "a single sentence"
        raise DataError(f"the corpus holds {held}: too little to train on and hold out; give it more text")
    runs, notice = plan_sides(parts, sources, seed)
    sides, files = _merge(runs, folder, sources, plan.dtype, vocab_size)
    kept = sum(side["tokens"] for side in sides.values())
    assert kept == written["tokens"], "tokens were lost between the parts and the streams"
    statistics = {
        "read": dict(read),
        "written": dict(written),
        "kept": kept / written["tokens"] * (1 - read["skipped_bytes"] / read["bytes"]),
        "sides": sides,
        "held_out": notice,
        "process_seconds": sum(part.statistics["seconds"] for part in parts),
    }
    hashes = {name: written._asdict() for name, written in files.items()}
    manifest = {"format_version": FORMAT_VERSION, "fingerprint": plan.fingerprint, "vocab_size": vocab_size}
    manifest |= {"files": hashes, "receipt": statistics}
    write_json(folder / "manifest.json", {**manifest, "sha256": _digest(manifest)})
    shutil.rmtree(plan.folder, ignore_errors=True)  # another job may still write there
    try:
        return open_store(folder)
    except CheckpointError as problem:
        raise CheckpointError(f"{problem}, a moment ago; check the disk, then start again") from None


def open_store(folder: Path) -> Store:
    """Map the store in `folder`. Raises CheckpointError if it is not as it was written: it is to be built again."""
    file = folder / "manifest.json"
    if not file.is_file():
        raise UsageError(f"{folder} holds no token store; run prepare on the corpus")
    manifest = read_json(file)
    digest = manifest.pop("sha256", None)
    if manifest.get("format_version") != FORMAT_VERSION or digest != _digest(manifest):
        raise CheckpointError(f"{file} is damaged, or not of version {FORMAT_VERSION}")
    files = {name: Written(**entry) for name, entry in manifest["files"].items()}
    if damage := find_damage(folder, files, folder / "checked.json"):
        raise CheckpointError(damage)
    vocab_size = manifest["vocab_size"]
    dtypes = {"tokens": token_dtype(vocab_size), "sentence_ends": np.dtype("<i8"), "document_ends": np.dtype("<i8")}
    train, validation = (
        TokenStream(**{name: np.memmap(folder / side / f"{name}.bin", dtype, "r") for name, dtype in dtypes.items()})
        for side in SIDES
    )
    for stream, side in ((train, SIDES[0]), (validation, SIDES[1])):  # what sizes and times do not tell
        if int(stream.tokens.max()) >= vocab_size:
            raise CheckpointError(f"{folder / side}: tokens.bin holds an id beyond the {vocab_size} of the tokenizer")
        if not all(_rise_to(len(stream.tokens), ends) for ends in (stream.sentence_ends, stream.document_ends)):
            raise CheckpointError(f"{folder / side}: its sentences or documents do not end at the last token")
    token_counts = np.fromfile(folder / "token_counts.bin", "<i8")
    return Store(folder, manifest["fingerprint"], vocab_size, train, validation, token_counts, manifest["receipt"])


def _rise_to(last: int, ends: np.ndarray) -> bool:
    """Whether ends [n] int64 rise from above 0 to `last`; read in blocks, since there are many."""
    blocks = (ends[first : first + _BLOCK + 1] for first in range(0, len(ends), _BLOCK))
    return bool(ends[0] > 0 and ends[-1] == last and all((block[1:] > block[:-1]).all() for block in blocks))


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _merge(
    runs: Callable[[], Iterator[Run]], folder: Path, sources: list[int], dtype: np.dtype, vocab_size: int
) -> tuple[dict[str, Any], dict[str, Written]]:
    """Write the streams; returns their sizes and where each source ends, by side, and the hashes by file name."""
    token_counts = np.zeros(vocab_size, "<i8")
    sides: dict[str, Any] = {}
    written: dict[str, Written] = {}
    for side in SIDES:
        (folder / side).mkdir(parents=True, exist_ok=True)
        sizes = dict.fromkeys(("tokens", "sentences", "documents"), 0)
        source_ends = [0] * (sources[-1] + 1)
        with ExitStack() as stack:
            paths = {name: folder / side / f"{name}.bin" for name in TokenStream._fields}
            files = {name: HashedFile(stack.enter_context(path.open("wb"))) for name, path in paths.items()}
            for run in (run for run in runs() if run.side == side):
                for block in _blocks(np.memmap(run.part.path("tokens"), dtype, "r"), run.start, run.end):
                    files["tokens"].write(block.tobytes())
                    if side == "train":
                        token_counts += np.bincount(block, minlength=vocab_size)
                _copy_ends(run, files["sentence_ends"], sizes, "sentences")
                _copy_ends(run, files["document_ends"], sizes, "documents")
                sizes["tokens"] += run.end - run.start
                source_ends[sources[run.part.number]] = sizes["tokens"]
            written |= {f"{side}/{name}.bin": file.finish() for name, file in files.items()}
        sides[side] = {**sizes, "source_ends": list(accumulate(source_ends, max))}
    with (folder / "token_counts.bin").open("wb") as opened:
        file = HashedFile(opened)
        file.write(token_counts.tobytes())
        written["token_counts.bin"] = file.finish()
    return sides, written


def _copy_ends(run: Run, file: HashedFile, sizes: dict[str, int], unit: str) -> None:
    """Append the ends of sentences or documents in (start, end] of a run; one cut by the split ends here as well."""
    shift = sizes["tokens"] - run.start
    ends = np.memmap(run.part.path(f"{unit.removesuffix('s')}_ends"), "<i8", "r")
    first, last = np.searchsorted(ends, (run.start, run.end), side="right").tolist()
    for block in _blocks(ends, first, last):
        file.write((block + shift).tobytes())
    sizes[unit] += last - first
    if last == first or ends[last - 1] != run.end:
        file.write(np.array([run.end + shift], "<i8").tobytes())
        sizes[unit] += 1


def _blocks(array: np.ndarray, first: int, last: int) -> Iterator[np.ndarray]:
    return (array[start : min(start + _BLOCK, last)] for start in range(first, last, _BLOCK))
