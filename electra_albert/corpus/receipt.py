"""What became of every sentence of a corpus, in a few aligned lines for the console."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from electra_albert.corpus.lost_characters import describe_lost

_KINDS = {
    "files_of_sentences": "of text, one sentence a line",
    "files_of_paragraphs": "of text, one paragraph a line, split into sentences",
    "files_of_records": "of JSON, one document a line, split into sentences",
    "files_of_csv": "of CSV, one document a row, split into sentences",
    "files_of_tsv": "of TSV, one document a row, split into sentences",
    "files_of_parquet": "of Parquet, one document a row, split into sentences",
    "files_of_arrow": "of Arrow, one document a row, split into sentences",
}
# What was left out, and what was done to the rest; a count of 0 is not shown.
_SKIPPED = {
    "hidden_entries_skipped": "hidden files or folders",
    "other_files_skipped": "files that are no text, by their names",
    "special_files_skipped": "entries that are no files: pipes, sockets, broken links",
    "repeated_files_skipped": "files named twice",
    "blank_files_skipped": "files without text",
    "splits_skipped": "splits of a dataset other than train",
    "skipped_lines": "lines that are not UTF-8",
    "skipped_documents": "documents that are not UTF-8",
    "skipped_bytes": "bytes in these",
    "documents_without_text": "empty documents",
}
_READ_NOTES = {
    "paragraphs_split": "paragraphs split into sentences",
    "invalid_bytes": "invalid UTF-8 bytes replaced",
    "nul_bytes": "NUL bytes replaced by spaces",
    "byte_order_marks": "byte order marks dropped",
    "long_lines_cut": "cuts in lines that are too long",
}
_WRITTEN_NOTES = {
    "sentences_without_a_token": "sentences without a token (accents or invisible characters only)",
    "documents_without_a_token": "documents without a token",
    "special_texts": "words holding the text of a special token, read as plain text",
}
_SHOWN_ELSEWHERE = {"files", "bytes", "documents", "sentences", *_KINDS}


def format_receipt(receipt: dict[str, Any], padding_share: float) -> str:
    """The receipt of a token store as lines of `what  how much`."""
    read, written = receipt["read"], receipt["written"]
    megabytes = read["bytes"] / 1e6
    kinds = ", ".join(f"{read[name]:,} {text}" for name, text in _KINDS.items() if read.get(name))
    lines = [
        ("read", f"{read.get('files', 0):,} files, {megabytes:,.1f} MB, {read['sentences']:,} sentences"),
        ("files", kinds),
        ("documents", f"{written['documents']:,}"),
        ("tokens", f"{written['tokens']:,} ({_share(receipt['kept'])} of the text kept)"),
        ("unknown tokens", _unknown(written)),
        ("padding", f"{padding_share:.1%} of the positions of all rows"),
    ]
    for name, side in receipt["sides"].items():
        share = side["tokens"] / written["tokens"]
        counted = f"{side['documents']:,} documents, {side['sentences']:,} sentences, {side['tokens']:,} tokens"
        lines.append((name, f"{counted} ({share:.1%})"))
    lines.append(("held out", receipt["held_out"]))
    lines += _counted("skipped", _SKIPPED, read)
    known = _READ_NOTES | _SKIPPED
    others = {name: name.replace("_", " ") for name in sorted(read.keys() - _SHOWN_ELSEWHERE - known.keys())}
    lines += _counted("noted", _READ_NOTES | others, read)
    lines += _counted("noted", _WRITTEN_NOTES, written)
    lines += [("noted", text) for text in describe_lost(written)]
    lines.append(("speed", f"{megabytes / max(receipt['process_seconds'], 1e-9):.1f} MB a second and process"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in lines)


def _share(kept: float) -> str:
    """In per cent, rounded down: only what was kept whole is 100%."""
    return f"{math.floor(kept * 10_000) / 100:g}%"


def _unknown(written: Mapping[str, int]) -> str:
    """How much of the text has no token: by tokens it may look like little, for one may stand for a whole word."""
    shown = f"{written['unknown_tokens']:,} ({written['unknown_tokens'] / written['tokens']:.3%})"
    return f"{shown}, standing for {written['unknown_characters'] / written['characters']:.3%} of the characters"


def _counted(what: str, words: Mapping[str, str], counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    return ((what, f"{counts[name]:,} {text}") for name, text in words.items() if counts.get(name))
