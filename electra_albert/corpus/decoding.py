"""Bytes to text by one rule for every source: what is not UTF-8, NUL bytes, byte order marks, white space.

Every white space but the line feed becomes a plain space, whatever other programs take for a line end. Nothing is
mended or left out without being counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

from electra_albert.contracts import DataError
from electra_albert.corpus.lines import MAX_LINE_BYTES, cut_line, with_line_feeds

BadUtf8 = Literal["replace", "skip", "error"]

_INNER_SPACE = bytes(c for c in range(33) if chr(c).isspace() and c != 10) + b"\0"
_TO_SPACE = bytes.maketrans(_INNER_SPACE, b" " * len(_INNER_SPACE))
_WIDE_SPACE = re.compile(r"[^\S \n]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_OTHER_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # those that stand for no byte
_BYTE_ORDER_MARK = "\ufeff"


class Decoder(NamedTuple):
    """Turns bytes into text and counts what it does to them."""

    bad_utf8: BadUtf8
    counts: Counter[str]

    def lines(self, raw: bytes, place: Callable[[int], str]) -> str:
        """The text of whole lines; `place` says where a line is, by its number in `raw`. A bad line may be missing.

        A line over MAX_LINE_BYTES comes in pieces, each a line here: of such a line only the bad pieces are left out.
        Raises DataError where bytes are not UTF-8 and that is to be an error.
        """
        raw = self._without_nul(raw)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            if self.bad_utf8 == "error":
                raise _refusal(place(raw.count(b"\n", 0, error.start)), error) from error
            text = self._without_bad_lines(raw) if self.bad_utf8 == "skip" else self._replaced(raw)
        return self._plain(text)

    def record(self, raw: bytes, place: Callable[[], str]) -> str | None:
        """The text of one document, which `place` finds; None where it is left out because of bad bytes.

        Raises DataError where bytes are not UTF-8 and that is to be an error.
        """
        raw = self._cut(self._without_nul(with_line_feeds(raw)))
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            if self.bad_utf8 == "error":
                raise _refusal(place(), error) from error
            if self.bad_utf8 == "skip":
                self.counts["skipped_documents"] += 1
                self.counts["skipped_bytes"] += len(raw)
                return None
            text = self._replaced(raw)
        return self._plain(text)

    def _without_nul(self, raw: bytes) -> bytes:
        self.counts["nul_bytes"] += raw.count(0)
        return raw.translate(_TO_SPACE)

    def _replaced(self, raw: bytes) -> str:
        text, invalid = _SURROGATE.subn("\ufffd", raw.decode("utf-8", "surrogateescape"))
        self.counts["invalid_bytes"] += invalid
        return text

    def _without_bad_lines(self, raw: bytes) -> str:
        kept = []
        for line in raw.split(b"\n"):
            try:
                kept.append(line.decode())
            except UnicodeDecodeError:
                self.counts["skipped_lines"] += 1
                self.counts["skipped_bytes"] += len(line)
        return "\n".join(kept)

    def _plain(self, text: str) -> str:
        if text.isascii():
            return text
        if marks := text.count(_BYTE_ORDER_MARK):
            self.counts["byte_order_marks"] += marks
            text = text.replace(_BYTE_ORDER_MARK, "")
        return _WIDE_SPACE.sub(" ", text)

    def _cut(self, raw: bytes) -> bytes:
        """A document without lines that are too long."""
        if len(raw) <= MAX_LINE_BYTES:
            return raw
        lines = []
        for line in raw.split(b"\n"):
            while len(line) > MAX_LINE_BYTES:
                head, line = cut_line(line)
                lines.append(head)
                self.counts["long_lines_cut"] += 1
            lines.append(line)
        return b"\n".join(lines)


def _refusal(place: str, error: UnicodeDecodeError) -> DataError:
    found = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
    return DataError(f"{place}: {found}; mend it, or take --bad_utf8 replace or skip")


def escape(raw: bytes) -> str:
    """Text for a parser: bytes that are not UTF-8 become lone surrogates, which `unescape` turns back."""
    return raw.decode("utf-8", "surrogateescape")


def unescape(text: str) -> bytes:
    """The bytes of a parsed text; a lone surrogate of its own becomes one byte that is not UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _OTHER_SURROGATE.sub("\udcff", text).encode("utf-8", "surrogateescape")
