"""Corpus statistics: everything that was read, skipped, changed and written, printed as a few aligned lines."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_KINDS = {
    "sentences": "of text, one sentence a line",
    "paragraphs": "of text, one paragraph a line",
    "records": "of JSON, one document a line",
    "csv": "of CSV, one document a row",
    "tsv": "of TSV, one document a row",
    "parquet": "of Parquet, one document a row",
    "arrow": "of Arrow, one document a row",
}
_SHOWN_ELSEWHERE = {"files", "bytes", "documents", "sentences", *(f"files_of_{kind}" for kind in _KINDS)}
_MARKS = "marks_removed_from_"  # and the script of the characters that had them
_FORMS = "compatibility_forms_rewritten"
_SHOWN_WRITTEN = ("sentences_without_a_token", "documents_without_a_token", "special_texts")


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
        (
            "files",
            ", ".join(f"{count:,} {text}" for kind, text in _KINDS.items() if (count := read.get(f"files_of_{kind}"))),
        ),
        ("documents", f"{written['documents']:,}"),
        ("tokens", f"{tokens:,} ({kept:g}% of the text kept)"),
        ("unknown tokens", unknown),
        ("padding", f"{padding_share:.1%} of the positions of all rows"),
    ]
    for name, side in statistics["sides"].items():
        counted = f"{side['documents']:,} documents, {side['sentences']:,} sentences, {side['tokens']:,} tokens"
        lines.append((name, f"{counted} ({side['tokens'] / tokens:.1%})"))
    lines.append(("held out", statistics["held_out"]))
    others = [(name, count) for name, count in sorted(read.items()) if name not in _SHOWN_ELSEWHERE]
    others += [(name, written[name]) for name in _SHOWN_WRITTEN if name in written]
    for name, count in others:
        if count:
            lines.append(("skipped" if "skipped" in name else "noted", f"{count:,} {name.replace('_', ' ')}"))
    lines += [("noted", text) for text in _describe_lost(written)]
    lines.append(("speed", f"{megabytes / max(statistics['process_seconds'], 1e-9):.1f} MB a second and process"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in lines)


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
