"""The token store: memory-mapped token streams of the train and validation splits, and the corpus statistics.

Layout: train/ and validation/, each with tokens.bin (uint16 or uint32), sentence_ends.bin and document_ends.bin (int64,
in tokens from the stream's start), token_counts.bin (int64 [V], of train), and manifest.json, written last, with size
and SHA-256 of each file. checked.json caches when the files were last verified.
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
from electra_albert.corpus.held_out import SPLITS, SplitSpan, plan_splits
from electra_albert.corpus.parts import PartPlan, token_dtype
from electra_albert.corpus.text_encoder import FORMS_REWRITTEN, MARKS_REMOVED
from electra_albert.files import FileDigest, HashedFile, find_damage, read_json, replacing, write_json

FORMAT_VERSION = 4
_BLOCK = 1 << 20  # numbers copied at once


class TokenStream(NamedTuple):
    """Memory-mapped arrays: tokens [T] uint16 or uint32; sentence_ends and document_ends int64, both ending in T."""

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
    statistics: dict[str, Any]  # corpus statistics

    @property
    def source_starts(self) -> list[int]:
        """The start of each source in the train stream, in tokens."""
        return [0, *self.statistics["sides"]["train"]["source_ends"][:-1]]


def build_store(plan: PartPlan, *, seed: int, found: Counter[str]) -> Store:
    """Merge the finished parts of `plan` into a store in the parent folder, and delete them.

    found: counts of skipped files. Raises UsageError for a missing part, DataError for fewer than two sentences.
    """
    folder = plan.folder.parent
    (folder / "manifest.json").unlink(missing_ok=True)
    for split in SPLITS:
        shutil.rmtree(folder / split, ignore_errors=True)  # including the example tables of an older store
    parts = plan.parts()
    if missing := [part.number for part in parts if not part.statistics]:
        raise UsageError(f"{plan.folder}: part {missing[0]} is missing or has other settings; write it again")
    read, written = Counter(found), Counter[str]()
    for part in parts:
        read.update(part.statistics["read"])
        written.update(part.statistics["written"])
    if written["sentences"] < 2:
        held = "no sentence" if not written["sentences"] else "a single sentence"
        raise DataError(f"the corpus holds {held}, too little for training and validation; add text")
    spans, notice = plan_splits(parts, plan.sources, seed)
    sides, files = _merge(spans, plan)
    kept = sum(split["tokens"] for split in sides.values())
    assert kept == written["tokens"], "the streams do not hold all tokens of the parts"
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
    shutil.rmtree(plan.folder, ignore_errors=True)  # another job may still be writing
    try:
        return open_store(folder)
    except CheckpointError as problem:
        raise CheckpointError(f"{problem}, right after writing; check the disk, then start again") from None


def open_store(folder: Path) -> Store:
    """Memory-map the store in `folder`. Raises CheckpointError if it is damaged and must be built again."""
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
        TokenStream(*(np.memmap(folder / split / f"{name}.bin", dtype, "r") for name, dtype in dtypes.items()))
        for split in SPLITS
    )
    for split, stream in zip(SPLITS, (train, validation), strict=True):  # sizes and times do not show this
        if int(stream.tokens.max()) >= vocab_size:
            raise CheckpointError(f"{folder / split}: tokens.bin holds an id beyond the vocabulary")
        if not all(_ascends_to(len(stream.tokens), ends) for ends in (stream.sentence_ends, stream.document_ends)):
            raise CheckpointError(f"{folder / split}: sentences or documents do not end at the last token")
    token_counts = np.fromfile(folder / "token_counts.bin", "<i8")
    return Store(folder, manifest["fingerprint"], vocab_size, train, validation, token_counts, manifest["statistics"])


def _ascends_to(last: int, ends: np.ndarray) -> bool:
    """Whether ends [n] int64 are positive and strictly increase to `last`; read in blocks, to bound memory."""
    blocks = (ends[first : first + _BLOCK + 1] for first in range(0, len(ends), _BLOCK))
    return bool(ends[0] > 0 and ends[-1] == last and all((block[1:] > block[:-1]).all() for block in blocks))


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _merge(spans: Callable[[], Iterator[SplitSpan]], plan: PartPlan) -> tuple[dict[str, Any], dict[str, FileDigest]]:
    """Write the streams. Returns sizes and source ends by split, and file hashes by name."""
    folder, vocab_size, sources = plan.folder.parent, plan.vocab_size, plan.sources
    token_counts = np.zeros(vocab_size, "<i8")
    sides: dict[str, Any] = {}
    written: dict[str, FileDigest] = {}
    for split in SPLITS:
        (folder / split).mkdir(parents=True, exist_ok=True)
        sizes = dict.fromkeys(("tokens", "sentences", "documents"), 0)
        source_ends = [0] * (sources[-1] + 1)
        with ExitStack() as stack:
            paths = {name: folder / split / f"{name}.bin" for name in TokenStream._fields}
            files = {name: HashedFile(stack.enter_context(replacing(path))) for name, path in paths.items()}
            for span in (span for span in spans() if span.split == split):
                for block in _blocks(np.memmap(span.part.path("tokens"), span.part.dtype, "r"), span.start, span.end):
                    files["tokens"].write(block.tobytes())
                    if split == "train":
                        token_counts += np.bincount(block, minlength=vocab_size)
                shift = sizes["tokens"] - span.start
                sizes["sentences"] += _copy_ends(span, files["sentence_ends"], "sentence_ends", shift)
                sizes["documents"] += _copy_ends(span, files["document_ends"], "document_ends", shift)
                sizes["tokens"] += span.end - span.start
                source_ends[sources[span.part.number]] = sizes["tokens"]
            written |= {f"{split}/{name}.bin": file.finish() for name, file in files.items()}
        sides[split] = {**sizes, "source_ends": list(accumulate(source_ends, max))}
    with replacing(folder / "token_counts.bin") as opened:
        file = HashedFile(opened)
        file.write(token_counts.tobytes())
        written["token_counts.bin"] = file.finish()
    return sides, written


def _copy_ends(span: SplitSpan, file: HashedFile, name: str, shift: int) -> int:
    """Append the sentence or document ends in (start, end] of a span; one that the split cuts ends here too."""
    ends = np.memmap(span.part.path(name), "<i8", "r")
    first, last = map(int, np.searchsorted(ends, (span.start, span.end), side="right"))
    for block in _blocks(ends, first, last):
        file.write((block + shift).tobytes())
    if last > first and ends[last - 1] == span.end:
        return last - first
    file.write(np.array([span.end + shift], "<i8").tobytes())
    return last - first + 1


def _blocks(array: np.ndarray, first: int, last: int) -> Iterator[np.ndarray]:
    return (array[start : min(start + _BLOCK, last)] for start in range(first, last, _BLOCK))


# Corpus statistics: everything that was read, skipped, changed and written.

_KINDS = {"sentences": "text, one sentence per line", "paragraphs": "text, one paragraph per line"}
_KINDS |= {"records": "JSON, one document per line"}
_KINDS |= {kind.lower(): f"{kind}, one document per row" for kind in ("CSV", "TSV", "Parquet", "Arrow")}
_SHOWN_ELSEWHERE = {"files", "bytes", "documents", "sentences", *(f"files_of_{kind}" for kind in _KINDS)}
_SHOWN_WRITTEN = {  # counts of written text, and their labels
    **{name: name for name in ("sentences_without_a_token", "documents_without_a_token", "special_texts")},
    MARKS_REMOVED: "combining marks removed by the tokenizer",
    FORMS_REWRITTEN: "compatibility forms rewritten by the tokenizer, such as ﬁ to fi or ½ to 1⁄2",
}


def format_statistics(statistics: dict[str, Any], padding_share: float) -> str:
    """Format the statistics of a token store as aligned lines of `name  value`."""
    read, written = statistics["read"], statistics["written"]
    megabytes, tokens = read["bytes"] / 1e6, written["tokens"]
    kept = math.floor(statistics["kept"] * 10_000) / 100  # rounded down: 100% only if nothing was skipped
    unknown = f"{written['unknown_tokens']:,} ({written['unknown_tokens'] / tokens:.3%})"
    unknown += f", {written['unknown_characters'] / written['characters']:.3%} of the characters"
    files = [f"{count:,} of {text}" for kind, text in _KINDS.items() if (count := read.get(f"files_of_{kind}"))]
    lines = [
        ("read", f"{read.get('files', 0):,} files, {megabytes:,.1f} MB, {read['sentences']:,} sentences"),
        ("files", ", ".join(files)),
        ("documents", f"{written['documents']:,}"),
        ("tokens", f"{tokens:,} ({kept:g}% of the text kept)"),
        ("unknown tokens", unknown),
        ("padding", f"{padding_share:.1%} of all positions"),
    ]
    for name, side in statistics["sides"].items():
        counted = f"{side['documents']:,} documents, {side['sentences']:,} sentences, {side['tokens']:,} tokens"
        lines.append((name, f"{counted} ({side['tokens'] / tokens:.1%})"))
    lines.append(("held out", statistics["held_out"]))
    others = {name: count for name, count in sorted(read.items()) if name not in _SHOWN_ELSEWHERE}
    for name, count in (others | {name: written.get(name, 0) for name in _SHOWN_WRITTEN}).items():
        text = _SHOWN_WRITTEN.get(name, name).replace("_skipped", "").replace("skipped_", "").replace("_", " ")
        lines += [("skipped" if "skipped" in name else "noted", f"{count:,} {text}")] * (count > 0)
    lines.append(("speed", f"{megabytes / max(statistics['process_seconds'], 1e-9):.1f} MB/s per process"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in lines)
