"""The token store: the token streams of the train and validation splits, and the corpus statistics.

The parts of the corpus stay separate files, which are written and read independently; the manifest lists them. Layout:
train/ and validation/, each with NNNNNN.tokens.bin (uint16 or uint32), NNNNNN.sentence_ends.bin and
NNNNNN.document_ends.bin (int64, in tokens from the part's start) of each part with text, and its examples (rows.py);
token_counts.bin (int64 [V], of train); manifest.json, written last, with size and SHA-256 of each file. checked.json:
when these were last compared.
"""

import hashlib
import json
import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock

from electra_albert.contracts import LOG, CheckpointError, DataError, UsageError
from electra_albert.corpus.held_out import SPLITS, HeldOut, choose_held_out
from electra_albert.corpus.parts import Part, PartPlan, content_hash, run_all, token_dtype
from electra_albert.corpus.rows import CHECKED, PARTS_PER_WORKER, Split, TokenStream, mapped, rows_name, write_rows
from electra_albert.corpus.text_encoder import FORMS_REWRITTEN, MARKS_REMOVED
from electra_albert.files import (
    DIGESTS,
    FileDigest,
    HashedFile,
    find_damage,
    read_json,
    replacing,
    sha256,
    write_json,
)

FORMAT_VERSION = 5
_BLOCK = 1 << 20  # numbers copied at once


class Store(NamedTuple):
    """An opened token store."""

    folder: Path
    fingerprint: str
    vocab_size: int
    train: Split
    validation: Split
    token_counts: np.ndarray  # [V] int64, of train
    statistics: dict[str, Any]  # corpus statistics


class _Splitting(NamedTuple):
    """Arguments of the splitting of a part that are the same for all parts."""

    plan: PartPlan  # without units, which would be sent to each process
    held: HeldOut
    key: str  # hash of all parts and of what decides how they are split


def split_parts(plan: PartPlan, numbers: Sequence[int], num_workers: int) -> None:
    """Write the training and held-out text of these parts, and their examples. All parts must have been written.

    Raises UsageError for a missing part, DataError for a corpus of fewer than two sentences.
    """
    parts = _finished(plan)
    sentences = sum(part.statistics["written"]["sentences"] for part in parts)
    if sentences < 2:
        held = "no sentence" if not sentences else "a single sentence"
        raise DataError(f"the corpus holds {held}, too little for training and validation; add text")
    key = _splitting_key(plan, parts)
    file = plan.folder / f"held_out-{key}.safetensors"
    with FileLock(plan.folder / ".held_out.lock"):  # the first of several jobs chooses
        if (chosen := HeldOut.load(file)) is None:
            chosen = choose_held_out(parts, plan.sources, plan.seed)
            chosen.save(file)
    key += sha256(file)
    for split in SPLITS:
        (plan.folder.parent / split).mkdir(exist_ok=True)
    missing = [parts[number] for number in numbers if not _split_statistics(parts[number], key, is_thorough=True)]
    shared = _Splitting(plan._replace(units=[]), chosen, key)
    run_all("splitting", _split_part, missing, min(num_workers, len(missing) // PARTS_PER_WORKER), shared)


def _finished(plan: PartPlan) -> list[Part]:
    parts = plan.parts()
    if missing := [part.number for part in parts if not part.statistics]:
        raise UsageError(f"{plan.folder}: part {missing[0]} is missing or has other settings; write it again")
    return parts


def _splitting_key(plan: PartPlan, parts: Sequence[Part]) -> str:
    return content_hash([plan.seed, plan.sources, plan.max_seq_length, [part.statistics["files"] for part in parts]])


def _split_statistics(part: Part, key: str, *, is_thorough: bool = False) -> dict[str, Any]:
    """The record of `_split_part`; empty unless it has the same key. is_thorough also compares the files."""
    found = read_json(part.path("split.json"), {"key": str, "files": DIGESTS})
    if found.pop("hash", "") != content_hash(found) or found["key"] != key:
        return {}
    files = {name: FileDigest(*digest) for name, digest in found["files"].items()}
    damage = is_thorough and find_damage(part.folder.parent, files, part.path("split.checked.json"))
    return {} if damage else found


def _split_part(part: Part, shared: _Splitting) -> None:
    """Copy the text of a part into both splits, and pack it into examples; DataError if the part is damaged."""
    plan, folder = shared.plan, part.folder.parent
    if damage := part.damage():
        for path in (part.path("json"), *part.folder.glob("held_out-*")):  # which may come from what is damaged
            path.unlink(missing_ok=True)
        raise DataError(f"{damage}; start again, and this part is written again")
    token_counts = np.zeros(plan.vocab_size, "<i8")
    files: dict[str, FileDigest] = {}
    tables: dict[str, dict[str, FileDigest]] = {}
    sizes: dict[str, Counter[str]] = {}
    spans = shared.held.split(part)
    for split in (split for split in SPLITS if len(spans[split])):
        size = sizes[split] = Counter[str](tokens=0, sentences=0, documents=0)
        with ExitStack() as stack:
            names = {name: f"{split}/{part.number:06d}.{name}.bin" for name in TokenStream._fields}
            opened = {name: HashedFile(stack.enter_context(replacing(folder / path))) for name, path in names.items()}
            tokens = np.memmap(part.path("tokens"), part.dtype, "r")
            for start, end in spans[split].tolist():
                for first in range(start, end, _BLOCK):
                    block = tokens[first : min(first + _BLOCK, end)]
                    opened["tokens"].write(block.tobytes())
                    if split == "train":
                        token_counts += np.bincount(block, minlength=plan.vocab_size)
                for name in ("sentences", "documents"):
                    ends = f"{name[:-1]}_ends"
                    size[name] += _copy_ends(part.path(ends), start, end, size["tokens"] - start, opened[ends])
                size["tokens"] += end - start
            files |= {names[name]: file.finish() for name, file in opened.items()}
        document_ends = np.fromfile(folder / names["document_ends"], "<i8")
        name, digest = write_rows((folder / split, part.number, document_ends, plan.max_seq_length), plan.seed)
        tables[f"{split}/{rows_name(plan.max_seq_length, plan.seed)}.json"] = {name: digest}
    rows = {f"{name.split('/')[0]}/{row}": digest for name, table in tables.items() for row, digest in table.items()}
    if damage := find_damage(folder, files | rows, part.path("split.checked.json")):
        raise CheckpointError(f"{damage}, right after writing; check the disk, then start again")
    with replacing(part.path("token_counts")) as file:
        file.write(token_counts.tobytes())
    left_out = spans["near_duplicates"]
    statistics = {"key": shared.key, "files": files, "tables": tables, "sizes": sizes, "left_out": len(left_out)}
    statistics |= {"left_out_tokens": int(np.diff(left_out).sum())}
    write_json(part.path("split.json"), statistics | {"hash": content_hash(statistics)})


def _copy_ends(path: Path, start: int, end: int, shift: int, file: HashedFile) -> int:
    """Append the sentence or document ends in (start, end] of a part; one that the split cuts ends here too."""
    ends = np.memmap(path, "<i8", "r")
    first, last = map(int, np.searchsorted(ends, (start, end), side="right"))
    for begin in range(first, last, _BLOCK):
        file.write((ends[begin : min(begin + _BLOCK, last)] + shift).tobytes())
    if last > first and ends[last - 1] == end:
        return last - first
    file.write(np.array([end + shift], "<i8").tobytes())
    return last - first + 1


def merge_parts(plan: PartPlan, found: Counter[str]) -> Store:
    """Write the manifest of the split parts, and delete what only the preparation needed. found: skipped files."""
    folder, parts = plan.folder.parent, _finished(plan)
    key = _splitting_key(plan, parts)
    file = plan.folder / f"held_out-{key}.safetensors"
    held = HeldOut.load(file)
    splits = [_split_statistics(part, key + sha256(file)) for part in parts] if held else []
    if held is None or not all(splits):
        raise UsageError(f"{plan.folder} has parts that are not split; start again")
    read, written, token_counts = Counter(found), Counter[str](), np.zeros(plan.vocab_size, "<i8")
    files: dict[str, FileDigest] = {}
    tables: defaultdict[str, dict[str, FileDigest]] = defaultdict(dict)
    for part, split in zip(parts, splits, strict=True):
        read.update(part.statistics["read"])
        written.update(part.statistics["written"])
        read["near_duplicates_of_held_out_text_skipped"] += split["left_out"]
        token_counts += np.fromfile(part.path("token_counts"), "<i8")
        files |= {name: FileDigest(*digest) for name, digest in split["files"].items()}
        for name, table in split["tables"].items():
            tables[name] |= table
    with replacing(folder / "token_counts.bin") as opened:
        counted = HashedFile(opened)
        counted.write(token_counts.tobytes())
        files["token_counts.bin"] = counted.finish()
    kept_names = {*files, *tables, *(f"{name.split('/')[0]}/{row}" for name, table in tables.items() for row in table)}
    for path in (path for name in SPLITS for path in (folder / name).iterdir()):
        if path.relative_to(folder).as_posix() not in kept_names:  # of an earlier store
            path.unlink()
    for name, table in tables.items():
        write_json(folder / name, table)
    checked = (read_json(part.path("split.checked.json")) for part in parts)  # compared when split
    write_json(folder / CHECKED, {name: entry for some in checked for name, entry in some.items()})
    sides = {name: _side(name, splits, plan.sources) for name in SPLITS}
    kept = sum(side["tokens"] for side in sides.values())
    left_out = sum(split["left_out_tokens"] for split in splits)
    assert kept + left_out == written["tokens"], "the streams do not hold all tokens of the parts"
    statistics = {
        "read": dict(read),
        "written": dict(written),
        "kept": kept / written["tokens"] * (1 - read["skipped_bytes"] / read["bytes"]),
        "sides": sides,
        "held_out": held.notice.tobytes().decode(),
        "process_seconds": sum(part.statistics["seconds"] for part in parts),
    }
    manifest = {"format_version": FORMAT_VERSION, "fingerprint": plan.fingerprint, "vocab_size": plan.vocab_size}
    manifest |= {"sources": plan.sources, "files": files, "statistics": statistics}
    write_json(folder / "manifest.json", {**manifest, "sha256": _digest(manifest)})
    store = open_store(folder)
    shutil.rmtree(plan.folder, ignore_errors=True)  # another job may still be writing
    return store


def _side(name: str, splits: Sequence[Mapping[str, Any]], sources: Sequence[int]) -> dict[str, Any]:
    """Counts of a split, and its tokens by source."""
    side: dict[str, Any] = {"tokens": 0, "sentences": 0, "documents": 0, "source_tokens": [0] * (sources[-1] + 1)}
    for source, split in zip(sources, splits, strict=True):
        for what, count in split["sizes"].get(name, {}).items():
            side[what] += count
        side["source_tokens"][source] += split["sizes"].get(name, {}).get("tokens", 0)
    return side


def open_store(folder: Path) -> Store:
    """Memory-map the store in `folder`. Raises CheckpointError if it is damaged and must be built again."""
    file = folder / "manifest.json"
    if not file.is_file():
        raise UsageError(f"{folder} holds no token store; run prepare on the corpus")
    manifest = read_json(file)  # its own hash is compared
    digest = manifest.pop("sha256", None)
    if manifest.get("format_version") != FORMAT_VERSION or digest != _digest(manifest):
        raise CheckpointError(f"{file} is damaged, or not of version {FORMAT_VERSION}")
    files = {name: FileDigest(*entry) for name, entry in manifest["files"].items()}
    if damage := find_damage(folder, files, folder / CHECKED):
        raise CheckpointError(damage)
    vocab_size, sources = manifest["vocab_size"], manifest["sources"]
    token_counts = np.fromfile(folder / "token_counts.bin", "<i8")
    train, validation = (_open_split(folder / name, files, vocab_size, sources) for name in SPLITS)
    return Store(folder, manifest["fingerprint"], vocab_size, train, validation, token_counts, manifest["statistics"])


def ready_store(folder: Path, wanted: str) -> Store | None:
    """The store in `folder` if it is complete and has the fingerprint `wanted`."""
    try:
        store = open_store(folder)
        if store.fingerprint != wanted:
            raise CheckpointError(f"the token store in {folder} was made with another tokenizer")
    except UsageError:  # it does not exist
        return None
    except CheckpointError as problem:
        LOG.info(f"{problem}; rebuilding the token store")
        return None
    LOG.info(f"using the token store in {folder}: {store.train.token_count:,} training tokens")
    return store


def _open_split(folder: Path, files: Mapping[str, FileDigest], vocab_size: int, sources: Sequence[int]) -> Split:
    starts = (name.removeprefix(f"{folder.name}/") for name in files if name.endswith(".tokens.bin"))
    numbers = sorted(int(start.partition(".")[0]) for start in starts if "/" not in start)
    types = dict(zip(TokenStream._fields, (token_dtype(vocab_size), np.dtype("<i8"), np.dtype("<i8")), strict=True))
    parts = [
        TokenStream(*(mapped(folder / f"{n:06d}.{name}.bin", kind) for name, kind in types.items())) for n in numbers
    ]
    return Split(folder, vocab_size, numbers, parts, [sources[number] for number in numbers])


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


# Corpus statistics: everything that was read, skipped, changed and written.

_KINDS = {"sentences": "text, one sentence per line", "paragraphs": "text, one paragraph per line"}
_KINDS |= {"documents": "text, one document per line", "wrapped": "text, hard-wrapped lines joined to paragraphs"}
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
        ("files", ", ".join(files) or "none, but the documents of a datatrove pipeline"),
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
