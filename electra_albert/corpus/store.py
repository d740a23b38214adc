"""The token store: the token streams of the train and validation splits, and the corpus statistics.

The parts of the corpus stay separate files, which are written and read independently:
    train/000000.tokens.bin         uint16 or uint32, and the same files in validation/
    train/000000.sentence_ends.bin  int64, in tokens from the part's start
    train/000000.document_ends.bin  int64
    train/rows-*                    the examples (rows.py)
    token_counts.bin                int64 [V], of train
    manifest.json                   written last, with size and SHA-256 of each file
    checked.json                    when these were last compared
"""

import math
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock

from electra_albert.contracts import LOG, CheckpointError, DataError, UsageError
from electra_albert.corpus.held_out import SPLITS, HeldOut, choose_held_out
from electra_albert.corpus.parts import Part, PartPlan, read_statistics, run_all, token_dtype
from electra_albert.corpus.rows import (
    CHECKED,
    Split,
    TokenStream,
    inside,
    mapped,
    rows_name,
    write_rows,
)
from electra_albert.files import (
    FileDigest,
    HashedFile,
    content_hash,
    find_damage,
    read_json,
    read_manifest,
    replacing,
    sha256,
    write_json,
    write_manifest,
)
from electra_albert.tokenization.text_encoder import FORMS_REWRITTEN, MARKS_REMOVED

FORMAT_VERSION = 6
_BLOCK = 1 << 20  # numbers copied at once


class Store(NamedTuple):
    """An opened token store."""

    folder: Path
    fingerprint: str
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
    """Write the training and held-out text of these parts, and their examples.

    Raises UsageError for a missing part, DataError for a corpus of fewer than two sentences.
    """
    parts = _finished(plan)
    sentences = sum(part.statistics["written"]["sentences"] for part in parts)
    if sentences < 2:
        held = "a single sentence" if sentences else "no sentence"
        raise DataError(f"the corpus holds {held}, too little for two splits; add text")
    file, key = _held_out_file(plan, parts)
    with FileLock(plan.folder / ".held_out.lock"):  # the first of several jobs chooses
        held_out = HeldOut.load(file)
        if held_out is None:
            held_out = choose_held_out(parts, plan.sources, plan.seed)
            held_out.save(file)
    key += sha256(file)
    for split in SPLITS:
        (plan.folder.parent / split).mkdir(exist_ok=True)
    missing = []
    for number in numbers:
        part = parts[number]
        files = read_statistics(part.path("split.json"), key).get("files", {})
        checked = part.path("split.checked.json")
        if not files or find_damage(part.folder.parent, files, checked):
            missing.append(part)
    shared = _Splitting(plan._replace(units=[]), held_out, key)
    run_all("splitting", _split_part, missing, num_workers, shared, is_quick=True)


def _finished(plan: PartPlan) -> list[Part]:
    parts = plan.parts()
    for part in parts:
        if not part.statistics:
            which = f"{plan.folder}: part {part.number}"
            raise UsageError(f"{which} is missing or has other settings; write it again")
    return parts


def _held_out_file(plan: PartPlan, parts: Sequence[Part]) -> tuple[Path, str]:
    """The file of the held-out text, and a hash of all that decides it."""
    files = [part.statistics["files"] for part in parts]
    key = content_hash([plan.seed, plan.sources, plan.max_seq_length, files])
    return plan.folder / f"held_out-{key}.safetensors", key


def _split_part(part: Part, shared: _Splitting) -> None:
    """Copy the text of a part into both splits, and pack it into examples."""
    damage = part.damage()
    if damage:
        # The held-out text may come from what is damaged.
        for path in (part.path("json"), *part.folder.glob("held_out-*")):
            path.unlink(missing_ok=True)
        raise DataError(f"{damage}; start again, and this part is written again")
    plan = shared.plan
    folder = part.folder.parent
    token_counts = np.zeros(plan.vocab_size, "<i8")
    files: dict[str, FileDigest] = {}
    sizes: dict[str, dict[str, int]] = {}
    spans = shared.held.split(part)
    for split in SPLITS:
        if not len(spans[split]):
            continue
        names = [f"{split}/{part.number:06d}.{name}.bin" for name in TokenStream._fields]
        digests, sizes[split], counts = _copy_text(part, spans[split], names, plan.vocab_size)
        files |= zip(names, digests, strict=True)
        if split == "train":
            token_counts += counts
        document_ends = np.fromfile(folder / names[-1], "<i8")
        job = (folder / split, part.number, document_ends, plan.max_seq_length)
        rows, digest = write_rows(job, plan.seed)
        files[f"{split}/{rows}"] = digest
    damage = find_damage(folder, files, part.path("split.checked.json"))
    if damage:
        raise CheckpointError(f"{damage}, right after writing; check the disk, then start again")
    with replacing(part.path("token_counts")) as file:
        file.write(token_counts.tobytes())
    left_out = spans["near_duplicates"]
    write_manifest(
        part.path("split.json"),
        files,
        key=shared.key,
        sizes=sizes,
        left_out=len(left_out),
        left_out_tokens=int(np.diff(left_out).sum()),
    )


def _copy_text(
    part: Part, spans: np.ndarray, names: Sequence[str], vocab_size: int
) -> tuple[list[FileDigest], dict[str, int], np.ndarray]:
    """Copy spans [n, 2] of a part's tokens, and the sentence and document ends in them, into files.

    Returns the files' digests, their numbers of tokens and ends, and the count of each token, [V].
    """
    token_counts = np.zeros(vocab_size, "<i8")
    tokens = np.memmap(part.path("tokens"), part.dtype, "r")
    token_count = sentences = documents = 0
    with ExitStack() as stack:
        folder = part.folder.parent
        files = [HashedFile(stack.enter_context(replacing(folder / name))) for name in names]
        for start, end in spans.tolist():
            for block in _blocks(tokens[start:end]):
                files[0].write(block.tobytes())
                token_counts += np.bincount(block, minlength=vocab_size)
            shift = token_count - start
            sentences += _copy_ends(part.path("sentence_ends"), start, end, shift, files[1])
            documents += _copy_ends(part.path("document_ends"), start, end, shift, files[2])
            token_count += end - start
    sizes = {"tokens": token_count, "sentences": sentences, "documents": documents}
    digests = [file.finish() for file in files]
    return digests, sizes, token_counts


def _copy_ends(path: Path, start: int, end: int, shift: int, file: HashedFile) -> int:
    """Append the sentence or document ends in (start, end]; one that the split cuts ends there."""
    ends = np.memmap(path, "<i8", "r")
    first, count = map(int, inside(ends, start, end))
    for block in _blocks(ends[first : first + count]):
        file.write((block + shift).tobytes())
    file.write(np.array([end + shift], "<i8").tobytes())
    return count + 1


def _blocks(numbers: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(numbers), _BLOCK):
        yield numbers[start : start + _BLOCK]


def merge_parts(plan: PartPlan, skipped: Counter[str]) -> Store:
    """Write the manifest of the split parts and, with counts of skipped files, the statistics."""
    folder = plan.folder.parent
    parts = _finished(plan)
    file, key = _held_out_file(plan, parts)
    held_out = HeldOut.load(file)
    splits = []
    if held_out:
        key += sha256(file)
        splits = [read_statistics(part.path("split.json"), key) for part in parts]
    if held_out is None or not all(splits):
        raise UsageError(f"{plan.folder} has parts that are not split; start again")
    read = Counter(skipped)
    written = Counter[str]()
    for part, split in zip(parts, splits, strict=True):
        read.update(part.statistics["read"])
        written.update(part.statistics["written"])
        read["near_duplicates_of_held_out_text_skipped"] += split["left_out"]
    sides = {name: _side(name, splits, plan.sources) for name in SPLITS}
    tokens = sum(side["tokens"] for side in sides.values())
    left_out = sum(split["left_out_tokens"] for split in splits)
    assert tokens + left_out == written["tokens"], "the streams do not hold all tokens of the parts"
    token_share = tokens / written["tokens"]
    byte_share = 1 - read["skipped_bytes"] / read["bytes"]
    write_manifest(
        folder / "manifest.json",
        _merge_files(plan, parts, splits),
        format_version=FORMAT_VERSION,
        fingerprint=plan.fingerprint,
        vocab_size=plan.vocab_size,
        sources=plan.sources,
        statistics={
            "read": read,
            "written": written,
            "kept": token_share * byte_share,
            "sides": sides,
            "held_out": held_out.notice.tobytes().decode(),
            "process_seconds": sum(part.statistics["seconds"] for part in parts),
        },
    )
    store = open_store(folder)
    shutil.rmtree(plan.folder, ignore_errors=True)  # another job may still be writing
    return store


def _merge_files(
    plan: PartPlan, parts: Sequence[Part], splits: Sequence[Mapping[str, Any]]
) -> dict[str, FileDigest]:
    """Write the files that concern all parts, and delete those of an earlier store."""
    folder = plan.folder.parent
    table = rows_name(plan.max_seq_length, plan.seed)
    files: dict[str, FileDigest] = {}
    rows: dict[str, dict[str, FileDigest]] = {name: {} for name in SPLITS}
    checked: dict[str, Any] = {}  # when split
    token_counts = np.zeros(plan.vocab_size, "<i8")
    for part, split in zip(parts, splits, strict=True):
        token_counts += np.fromfile(part.path("token_counts"), "<i8")
        checked |= read_json(part.path("split.checked.json"))
        for path, digest in split["files"].items():
            split_name, _, name = path.partition("/")
            if name.endswith(f"{table}.bin"):
                rows[split_name][name] = digest
            else:
                files[path] = digest
    for split_name, digests in rows.items():
        for path in (folder / split_name).iterdir():
            if path.name not in digests and f"{split_name}/{path.name}" not in files:
                path.unlink()
        write_manifest(folder / split_name / f"{table}.json", digests)
    with replacing(folder / "token_counts.bin") as opened:
        file = HashedFile(opened)
        file.write(token_counts.tobytes())
        files["token_counts.bin"] = file.finish()
    write_json(folder / CHECKED, checked)
    return files


def _side(name: str, splits: Sequence[Mapping[str, Any]], sources: Sequence[int]) -> dict[str, Any]:
    """Counts of a split, and its tokens by source."""
    totals = Counter[str](tokens=0, sentences=0, documents=0)
    source_tokens = [0] * (sources[-1] + 1)
    for source, split in zip(sources, splits, strict=True):
        sizes = split["sizes"].get(name, {})
        totals.update(sizes)
        source_tokens[source] += sizes.get("tokens", 0)
    return {**totals, "source_tokens": source_tokens}


def open_store(folder: Path) -> Store:
    """Memory-map the store in `folder`. Raises CheckpointError if it must be built again."""
    file = folder / "manifest.json"
    if not file.is_file():
        raise UsageError(f"{folder} holds no token store; run prepare on the corpus")
    manifest = read_manifest(file)
    if manifest.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(f"{file} is damaged, or not of version {FORMAT_VERSION}")
    damage = find_damage(folder, manifest["files"], folder / CHECKED)
    if damage:
        raise CheckpointError(damage)
    train, validation = (_open_split(folder / name, manifest) for name in SPLITS)
    counts = np.fromfile(folder / "token_counts.bin", "<i8")
    statistics = manifest["statistics"]
    return Store(folder, manifest["fingerprint"], train, validation, counts, statistics)


def ready_store(folder: Path, fingerprint: str) -> Store | None:
    """The store in `folder` if it is complete and has this fingerprint."""
    try:
        store = open_store(folder)
        if store.fingerprint != fingerprint:
            raise CheckpointError(f"the token store in {folder} was made with another tokenizer")
    except UsageError:  # it does not exist
        return None
    except CheckpointError as problem:
        LOG.info(f"{problem}; it is not used")
        return None
    LOG.info(f"using the token store in {folder}: {store.train.token_count:,} training tokens")
    return store


def _open_split(folder: Path, manifest: Mapping[str, Any]) -> Split:
    numbers = []
    parts = []
    sources = []
    types = (token_dtype(manifest["vocab_size"]), np.dtype("<i8"), np.dtype("<i8"))
    for number, source in enumerate(manifest["sources"]):
        names = [f"{number:06d}.{name}.bin" for name in TokenStream._fields]
        if f"{folder.name}/{names[0]}" in manifest["files"]:
            numbers.append(number)
            files = map(folder.joinpath, names)
            parts.append(TokenStream(*map(mapped, files, types)))
            sources.append(source)
    return Split(folder, manifest["vocab_size"], numbers, parts, sources)


# Corpus statistics: everything that was read, skipped, changed and written.

_FILE_LABELS = {
    "files_of_sentences": "text, one sentence per line",
    "files_of_paragraphs": "text, one paragraph per line",
    "files_of_documents": "text, one document per line",
    "files_of_wrapped": "text, hard-wrapped lines joined to paragraphs",
    "files_of_records": "JSON, one document per line",
    "files_of_csv": "CSV, one document per row",
    "files_of_tsv": "TSV, one document per row",
    "files_of_parquet": "Parquet, one document per row",
    "files_of_arrow": "Arrow, one document per row",
}
_TOTALS = ("files", "bytes", "documents", "sentences")
_WRITTEN_LABELS = {
    "sentences_without_a_token": "sentences without a token",
    "documents_without_a_token": "documents without a token",
    "special_texts": "special texts",
    MARKS_REMOVED: "combining marks removed by the tokenizer",
    FORMS_REWRITTEN: "compatibility forms rewritten by the tokenizer, such as ﬁ to fi or ½ to 1⁄2",
}


def format_statistics(statistics: dict[str, Any], padding_share: float) -> str:
    """Format the statistics of a token store as aligned lines of `name  value`."""
    read = statistics["read"]
    written = statistics["written"]
    megabytes = read["bytes"] / 1e6
    tokens = written["tokens"]
    unknown_share = written["unknown_characters"] / written["characters"]
    percent = math.floor(statistics["kept"] * 10_000) / 100  # 100% only if nothing was skipped
    files = [f"{read[name]:,} of {label}" for name, label in _FILE_LABELS.items() if name in read]
    seconds = max(statistics["process_seconds"], 1e-9)
    unknown = f"{written['unknown_tokens']:,} ({written['unknown_tokens'] / tokens:.3%})"
    counts = f"{read.get('files', 0):,} files, {megabytes:,.1f} MB, {read['sentences']:,} sentences"
    lines = [
        ("read", counts),
        ("files", ", ".join(files) or "none, but the documents of a datatrove pipeline"),
        ("documents", f"{written['documents']:,}"),
        ("tokens", f"{tokens:,} ({percent:g}% of the text kept)"),
        ("unknown tokens", f"{unknown}, {unknown_share:.3%} of the characters"),
        ("padding", f"{padding_share:.1%} of all positions"),
    ]
    for name, side in statistics["sides"].items():
        counts = f"{side['documents']:,} documents, {side['sentences']:,} sentences"
        share = side["tokens"] / tokens
        lines.append((name, f"{counts}, {side['tokens']:,} tokens ({share:.1%})"))
    lines.append(("held out", statistics["held_out"]))
    other_names = {*read}.difference(_FILE_LABELS, _TOTALS)
    notes = {name: read[name] for name in sorted(other_names)}
    notes |= {label: written.get(name, 0) for name, label in _WRITTEN_LABELS.items()}
    for name, count in notes.items():
        if count:
            text = name.replace("_skipped", "").replace("skipped_", "").replace("_", " ")
            label = "noted"
            if "skipped" in name:
                label = "skipped"
            lines.append((label, f"{count:,} {text}"))
    lines.append(("speed", f"{megabytes / seconds:.1f} MB/s per process"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in lines)
