"""Files of corpora and tasks: found by path, folder, glob, URL or hub name; unpacked, and read as lines or rows."""

from __future__ import annotations

import codecs
import re

# Bytes above ASCII as they occur in Western European text: letters, few in a row, quotes and dashes.
_WESTERN = re.compile(
    rb"(?<![\xc0-\xff])[\xc0-\xff]{1,2}(?![\xc0-\xff])|[\x80\x82-\x8c\x8e\x91-\x9c\x9e\x9f\xa0\xa1\xab\xbb\xbf]"
)
_WESTERN_SHARE = 0.9  # of the bytes above ASCII
# ASCII, and ASCII that stands for other characters in encodings whose bytes above it mean nothing by themselves.
_PLAIN = bytes(range(128)) + rb" \n \u0041 ~{VP~} .xn--mnchen-3ya." + b"\x1b$B!!\x1b(B \x1b$)C"
_SHOWN_BYTES = 16  # on each side of the first byte above ASCII
_HUB_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<config>[\w.-]+))?")


def canonical_encoding(name: str) -> str:
    """Python's own name of an encoding. Raises ValueError unless it holds ASCII as ASCII does, line ends above all."""
    try:
        is_usable = _PLAIN.decode(name) == _PLAIN.decode("ascii")
    except (LookupError, ValueError):
        is_usable = False
    if not is_usable:
        known = "utf-8, cp1252, cp1251, gb18030 or another of Python's encodings that extend ASCII"
        raise ValueError(f"encoding={name} is not {known}; take one, or convert the text with iconv -t UTF-8")
    return codecs.lookup(name).name.removesuffix("-sig")  # a byte order mark is dropped in any case


def encoding_hint(raw: bytes) -> str:
    """Advice for text that is not UTF-8: the encoding that it looks like, with a sample of it in that."""
    high = len(raw) - len(raw.translate(None, bytes(range(128, 256))))
    if len(b"".join(_WESTERN.findall(raw))) < _WESTERN_SHARE * high:
        return "convert it with iconv -f <its encoding> -t UTF-8, or read it as it is by --encoding"
    first = next(position for position, byte in enumerate(raw) if byte > 127)
    sample = raw[max(0, first - _SHOWN_BYTES) : first + _SHOWN_BYTES].decode("cp1252", "replace")
    return (
        f"it looks like cp1252, which includes Latin-1, and then reads {' '.join(sample.split())!r}: convert it with "
        "iconv -f cp1252 -t UTF-8, or read it as it is by --encoding cp1252"
    )


def hub_name(text: str) -> tuple[str, str | None] | None:
    """The dataset and its config that OWNER/NAME or OWNER/NAME:CONFIG names; None for any other text."""
    match = _HUB_NAME.fullmatch(text)
    return match and (match["name"], match["config"])
