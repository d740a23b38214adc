"""The token store: two memory-mapped streams of tokens, one to train on and one held out, and the corpus statistics.

Layout: train/ and validation/, each with tokens.bin (uint16 or uint32), sentence_ends.bin and document_ends.bin (int64,
in tokens from the stream's start), token_counts.bin (int64 [V], of train), and manifest.json, written last, with size
and SHA-256 of all of them. checked.json remembers when they were last found to be as written.
"""

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.held_out import SIDES, HeldOutRun, plan_sides
from electra_albert.corpus.parts import PartPlan, token_dtype
from electra_albert.corpus.text_encoder import FORMS_REWRITTEN, MARKS_REMOVED
from electra_albert.files import FileDigest, HashedFile, find_damage, read_json, write_json

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


def build_store(plan: PartPlan, *, seed: int, found: Counter[str]) -> Store:
    """Put the finished parts of `plan` together to a store in the folder above, and remove them.

    found: counts from the listing of files. Raises UsageError where a part is missing, DataError for too little text.
    """
    folder = plan.folder.parent
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
    runs, notice = plan_sides(parts, plan.sources, seed)
    sides, files = _merge(runs, plan)
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
    manifest = {"format_version": FORMAT_VERSION, "fingerprint": plan.fingerprint, "vocab_size": plan.vocab_size}
    manifest |= {"files": {name: file._asdict() for name, file in files.items()}, "statistics": statistics}
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
    files = {name: FileDigest(**entry) for name, entry in manifest["files"].items()}
    if damage := find_damage(folder, files, folder / "checked.json"):
        raise CheckpointError(damage)
    vocab_size = manifest["vocab_size"]
    dtypes = dict(zip(TokenStream._fields, (token_dtype(vocab_size), np.dtype("<i8"), np.dtype("<i8")), strict=True))
    train, validation = (
        TokenStream(*(np.memmap(folder / side / f"{name}.bin", dtype, "r") for name, dtype in dtypes.items()))
        for side in SIDES
    )
    for side, stream in zip(SIDES, (train, validation), strict=True):  # which sizes and times do not show
        if int(stream.tokens.max()) >= vocab_size:
            raise CheckpointError(f"{folder / side}: tokens.bin holds an id beyond the {vocab_size} of the tokenizer")
        if not all(_rise_to(len(stream.tokens), ends) for ends in (stream.sentence_ends, stream.document_ends)):
            raise CheckpointError(f"{folder / side}: its sentences or documents do not end at the last token")
    token_counts = np.fromfile(folder / "token_counts.bin", "<i8")
    return Store(folder, manifest["fingerprint"], vocab_size, train, validation, token_counts, manifest["statistics"])


def _rise_to(last: int, ends: np.ndarray) -> bool:
    """Whether ends [n] int64 rise from above 0 to `last`; read in blocks, since there are many."""
    blocks = (ends[first : first + _BLOCK + 1] for first in range(0, len(ends), _BLOCK))
    return bool(ends[0] > 0 and ends[-1] == last and all((block[1:] > block[:-1]).all() for block in blocks))


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _merge(runs: Callable[[], Iterator[HeldOutRun]], plan: PartPlan) -> tuple[dict[str, Any], dict[str, FileDigest]]:
    """Write the streams; returns their sizes and where each source ends, by side, and the hashes by file name."""
    folder, vocab_size, sources = plan.folder.parent, plan.vocab_size, plan.sources
    token_counts = np.zeros(vocab_size, "<i8")
    sides: dict[str, Any] = {}
    written: dict[str, FileDigest] = {}
    for side in SIDES:
        (folder / side).mkdir(parents=True, exist_ok=True)
        sizes = dict.fromkeys(("tokens", "sentences", "documents"), 0)
        source_ends = [0] * (sources[-1] + 1)
        with ExitStack() as stack:
            paths = {name: folder / side / f"{name}.bin" for name in TokenStream._fields}
            files = {name: HashedFile(stack.enter_context(path.open("wb"))) for name, path in paths.items()}
            for run in (run for run in runs() if run.side == side):
                for block in _blocks(np.memmap(run.part.path("tokens"), run.part.dtype, "r"), run.start, run.end):
                    files["tokens"].write(block.tobytes())
                    if side == "train":
                        token_counts += np.bincount(block, minlength=vocab_size)
                shift = sizes["tokens"] - run.start
                sizes["sentences"] += _copy_ends(run, files["sentence_ends"], "sentence_ends", shift)
                sizes["documents"] += _copy_ends(run, files["document_ends"], "document_ends", shift)
                sizes["tokens"] += run.end - run.start
                source_ends[sources[run.part.number]] = sizes["tokens"]
            written |= {f"{side}/{name}.bin": file.finish() for name, file in files.items()}
        sides[side] = {**sizes, "source_ends": list(accumulate(source_ends, max))}
    with (folder / "token_counts.bin").open("wb") as opened:
        file = HashedFile(opened)
        file.write(token_counts.tobytes())
        written["token_counts.bin"] = file.finish()
    return sides, written


def _copy_ends(run: HeldOutRun, file: HashedFile, name: str, shift: int) -> int:
    """Append the ends of sentences or documents in (start, end] of a run; one cut by the split ends here as well."""
    ends = np.memmap(run.part.path(name), "<i8", "r")
    first, last = np.searchsorted(ends, (run.start, run.end), side="right").tolist()
    for block in _blocks(ends, first, last):
        file.write((block + shift).tobytes())
    if last > first and ends[last - 1] == run.end:
        return last - first
    file.write(np.array([run.end + shift], "<i8").tobytes())
    return last - first + 1


def _blocks(array: np.ndarray, first: int, last: int) -> Iterator[np.ndarray]:
    return (array[start : min(start + _BLOCK, last)] for start in range(first, last, _BLOCK))


# Corpus statistics: everything that was read, skipped, changed and written.

_KINDS = {"sentences": "text, one sentence a line", "paragraphs": "text, one paragraph a line"}
_KINDS |= {"records": "JSON, one document a line", "csv": "CSV, one document a row", "tsv": "TSV, one document a row"}
_KINDS |= {"parquet": "Parquet, one document a row", "arrow": "Arrow, one document a row"}
_SHOWN_ELSEWHERE = {"files", "bytes", "documents", "sentences", *(f"files_of_{kind}" for kind in _KINDS)}
_SHOWN_WRITTEN = {  # and the words they are shown in
    **{name: name for name in ("sentences_without_a_token", "documents_without_a_token", "special_texts")},
    MARKS_REMOVED: "combining marks removed by the tokenizer",
    FORMS_REWRITTEN: "compatibility forms rewritten by the tokenizer, as ﬁ to fi or ½ to 1⁄2",
}


def format_statistics(statistics: dict[str, Any], padding_share: float) -> str:
    """The statistics of a token store as aligned lines of `name  value`."""
    read, written = statistics["read"], statistics["written"]
    megabytes, tokens = read["bytes"] / 1e6, written["tokens"]
    kept = math.floor(statistics["kept"] * 10_000) / 100  # rounded down: only what was kept whole is 100%
    unknown = f"{written['unknown_tokens']:,} ({written['unknown_tokens'] / tokens:.3%})"  # one may replace a word
    unknown += f", standing for {written['unknown_characters'] / written['characters']:.3%} of the characters"
    files = [f"{count:,} of {text}" for kind, text in _KINDS.items() if (count := read.get(f"files_of_{kind}"))]
    lines = [
        ("read", f"{read.get('files', 0):,} files, {megabytes:,.1f} MB, {read['sentences']:,} sentences"),
        ("files", ", ".join(files)),
        ("documents", f"{written['documents']:,}"),
        ("tokens", f"{tokens:,} ({kept:g}% of the text kept)"),
        ("unknown tokens", unknown),
        ("padding", f"{padding_share:.1%} of the positions of all rows"),
    ]
    for name, side in statistics["sides"].items():
        counted = f"{side['documents']:,} documents, {side['sentences']:,} sentences, {side['tokens']:,} tokens"
        lines.append((name, f"{counted} ({side['tokens'] / tokens:.1%})"))
    lines.append(("held out", statistics["held_out"]))
    others = {name: count for name, count in sorted(read.items()) if name not in _SHOWN_ELSEWHERE}
    for name, count in (others | {name: written.get(name, 0) for name in _SHOWN_WRITTEN}).items():
        text = _SHOWN_WRITTEN.get(name, name).replace("_", " ")
        lines += [("skipped" if "skipped" in name else "noted", f"{count:,} {text}")] * (count > 0)
    lines.append(("speed", f"{megabytes / max(statistics['process_seconds'], 1e-9):.1f} MB a second and process"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in lines)
