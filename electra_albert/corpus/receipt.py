"""What became of every sentence of a corpus, in a few aligned lines for the console."""

from __future__ import annotations

from typing import Any

# What the reader counted, in the words of the console; a count of 0 is not shown.
_READ_NOTES = {
    "paragraphs_split": "paragraphs split into sentences",
    "invalid_bytes": "invalid UTF-8 bytes replaced",
    "byte_order_marks": "byte order marks dropped",
    "long_lines_cut": "long lines cut in pieces",
}
_WRITTEN_NOTES = {
    "sentences_without_a_token": "sentences without a token (accents or invisible characters only)",
    "documents_without_a_token": "documents without a token",
    "special_texts": "words holding the text of a special token, read as plain text",
}
_KINDS = {
    "files_of_sentences": "one sentence a line",
    "files_of_paragraphs": "one paragraph a line, split into sentences",
    "files_of_documents": "documents already split",
}
_SHOWN_ELSEWHERE = {"files", "bytes", "documents", "sentences", *_KINDS}


def format_receipt(receipt: dict[str, Any], padding_share: float) -> str:
    """The receipt of a token store as lines of `what  how much`."""
    read, written = receipt["read"], receipt["written"]
    sides = receipt["sides"]
    megabytes = read["bytes"] / 1e6
    kinds = ", ".join(f"{read[name]:,} of {text}" for name, text in _KINDS.items() if read.get(name))
    lines = [
        ("read", f"{read.get('files', 0):,} files, {megabytes:,.1f} MB, {read['sentences']:,} sentences"),
        ("files", kinds),
        ("documents", f"{written['documents']:,}"),
        ("tokens", f"{written['tokens']:,} ({receipt['kept']:.0%} of the text kept)"),
        ("unknown tokens", f"{written['unknown_tokens']:,} ({written['unknown_tokens'] / written['tokens']:.3%})"),
        ("padding", f"{padding_share:.1%} of the positions of all rows"),
    ]
    for name, side in sides.items():
        share = side["tokens"] / written["tokens"]
        counted = f"{side['documents']:,} documents, {side['sentences']:,} sentences, {side['tokens']:,} tokens"
        lines.append((name, f"{counted} ({share:.1%})"))
    lines.append(("held out", receipt["held_out"]))
    notes = {name: text for name, text in _READ_NOTES.items() if name in read}
    others = {name: name.replace("_", " ") for name in read.keys() - _SHOWN_ELSEWHERE - notes.keys()}
    for name, text in sorted((notes | others).items()):
        if read[name]:
            lines.append(("noted", f"{read[name]:,} {text}"))
    for name, text in _WRITTEN_NOTES.items():
        if written.get(name):
            lines.append(("noted", f"{written[name]:,} {text}"))
    lines.append(("speed", f"{megabytes / max(receipt['process_seconds'], 1e-9):.1f} MB a second and process"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in lines)
