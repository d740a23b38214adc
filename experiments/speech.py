"""Write what is spoken in books: the lines of plays and the quoted sentences of novels.

    zstd -dc --long=27 books-gutenberg-00.txt.zst | python -m experiments.speech > speech.txt

One line is what one paragraph or one part of a play has; a blank line after every 40 of them. Of
79 MB of books three quarters make 2.4 million words.
"""

import re
import sys

_QUOTED = re.compile(r'[“"]([^“”"]+)[”"]')
_PART = re.compile(r"^_?[A-Z][A-Z .]{2,20}[.:]_? +(.*)")  # HAMLET. To be, or not to be
_DIRECTION = re.compile(r"\s*[\[(_][^\])_]*[\])_]")
_LINES = 40


def spoken(paragraphs: list[str]) -> list[str]:
    """The spoken lines of one book or of a part of it."""
    parts = [match[1] for match in map(_PART.match, paragraphs) if match]
    if len(paragraphs) > 20 and len(parts) > 0.4 * len(paragraphs):
        lines = [_DIRECTION.sub("", part) for part in parts]
    else:
        lines = []
        for paragraph in paragraphs:
            quotes = [quote.strip(" ,") for quote in _QUOTED.findall(paragraph)]
            sentences = [quote for quote in quotes if len(quote.split()) >= 3]
            closed = [text if text[-1] in ".?!" else f"{text}." for text in sentences]
            line = " ".join(closed)
            lines.append(line[:1].upper() + line[1:])
    return [line for line in lines if len(line.split()) >= 3]


if __name__ == "__main__":
    for book in sys.stdin.read().split("\n\n"):
        lines = spoken(book.split("\n"))
        for start in range(0, len(lines) if len(lines) >= 5 else 0, _LINES):
            print("\n".join(lines[start : start + _LINES]), end="\n\n")
