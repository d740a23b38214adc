"""Files of corpora and tasks: found by path, folder, glob, URL or hub name; unpacked, and read as lines or rows."""

import codecs
import re
from contextlib import suppress

# ASCII, and ASCII that encodes other characters in some encodings; a backslash only where Python knows the escape.
_PLAIN = bytes(range(128)).replace(b"\\", b"") + rb" \n \u0041 ~{VP~} .xn--mnchen-3ya." + b"\x1b$B!!\x1b(B \x1b$)C"
_SHOWN_BYTES = 16  # on each side of the first byte above ASCII


def canonical_encoding(name: str) -> str:
    """Python's own name of an encoding. Raises ValueError unless it holds ASCII as ASCII does, line ends above all."""
    with suppress(LookupError, ValueError):
        if _PLAIN.decode(name) == _PLAIN.decode("ascii"):
            return codecs.lookup(name).name.removesuffix("-sig")  # a byte order mark is dropped in any case
    known = "utf-8, cp1252, gb18030 or another of Python's encodings that extend ASCII"
    raise ValueError(f"encoding={name} is not {known}; take one, or convert the text with iconv -t UTF-8")


def encoding_hint(raw: bytes) -> str:
    """Advice for text that is not UTF-8, with a sample of it decoded as cp1252, the most usual other encoding."""
    first = next(position for position, byte in enumerate(raw) if byte > 127)
    sample = raw[max(0, first - _SHOWN_BYTES) : first + _SHOWN_BYTES].decode("cp1252", "replace")
    reads = f"in cp1252, which includes Latin-1, it reads {' '.join(sample.split())!r}"
    return f"{reads}: if that is right, take --encoding cp1252, else convert it with iconv -f <its encoding> -t UTF-8"


def hub_name(text: str) -> tuple[str, str | None] | None:
    """The dataset and its config that OWNER/NAME or OWNER/NAME:CONFIG names; None for any other text."""
    match = re.fullmatch(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w.-]+))?", text)
    return match and (match[1], match[2])
