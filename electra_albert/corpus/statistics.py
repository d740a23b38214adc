"""Corpus statistics: everything that was read, skipped, changed and written, printed as a few aligned lines."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

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


_MARKS = "marks_removed_from_"  # and the script of the characters that had them
_FORMS = "compatibility_forms_rewritten"


def format_statistics(statistics: dict[str, Any], padding_share: float) -> str:
    """The statistics of a token store as lines of `name  value`."""
    read, written = statistics["read"], statistics["written"]
    megabytes = read["bytes"] / 1e6
    tokens, characters = written["tokens"], written["characters"]
    kept = math.floor(statistics["kept"] * 10_000) / 100  # rounded down: only what was kept whole is 100%
    unknown = f"{written['unknown_tokens']:,} ({written['unknown_tokens'] / tokens:.3%})"  # one may replace a word
    unknown += f", standing for {written['unknown_characters'] / characters:.3%} of the characters"
    lines = [
        ("read", f"{read.get('files', 0):,} files, {megabytes:,.1f} MB, {read['sentences']:,} sentences"),
        ("files", ", ".join(f"{read[name]:,} {text}" for name, text in _KINDS.items() if read.get(name))),
        ("documents", f"{written['documents']:,}"),
        ("tokens", f"{tokens:,} ({kept:g}% of the text kept)"),
        ("unknown tokens", unknown),
        ("padding", f"{padding_share:.1%} of the positions of all rows"),
    ]
    for name, side in statistics["sides"].items():
        counted = f"{side['documents']:,} documents, {side['sentences']:,} sentences, {side['tokens']:,} tokens"
        lines.append((name, f"{counted} ({side['tokens'] / tokens:.1%})"))
    lines.append(("held out", statistics["held_out"]))
    known = _READ_NOTES | _SKIPPED
    others = {name: name.replace("_", " ") for name in sorted(read.keys() - _SHOWN_ELSEWHERE - known.keys())}
    lines += _counted("skipped", _SKIPPED, read)
    lines += _counted("noted", _READ_NOTES | others, read)
    lines += _counted("noted", _WRITTEN_NOTES, written)
    lines += [("noted", text) for text in _describe_lost(written)]
    lines.append(("speed", f"{megabytes / max(statistics['process_seconds'], 1e-9):.1f} MB a second and process"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in lines)


def _counted(name: str, texts: Mapping[str, str], counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    return ((name, f"{counts[key]:,} {text}") for key, text in texts.items() if counts.get(key))


def count_lost(text: str, normalized: str) -> Counter[str]:
    """Combining marks, by script, and compatibility forms that `text` has and `normalized` lacks; case is ignored."""
    if normalized in (text, text.lower()):
        return Counter()
    return _count_marks(text) - _count_marks(normalized)


def _count_marks(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    found[_FORMS] = sum(unicodedata.decomposition(character).startswith("<") for character in text)
    script = "other"
    for character in unicodedata.normalize("NFKD", text):
        if unicodedata.category(character).startswith("M"):
            found[_MARKS + script] += 1
        else:  # the first word of a letter's name is its script
            script = unicodedata.name(character, "other").split()[0].capitalize() if character.isalpha() else "other"
    return found


def _describe_lost(counts: Mapping[str, int]) -> Iterator[str]:
    marks = {name.removeprefix(_MARKS): count for name, count in counts.items() if name.startswith(_MARKS) and count}
    if marks:
        scripts = ", ".join(f"{script} {count:,}" for script, count in sorted(marks.items(), key=lambda item: -item[1]))
        yield f"{sum(marks.values()):,} combining marks removed by the tokenizer: {scripts}"
    if counts.get(_FORMS):
        yield f"{counts[_FORMS]:,} compatibility forms rewritten by the tokenizer, as ﬁ to fi or ½ to 1⁄2"
