"""Files of corpora and tasks: found by path, folder, glob, URL or hub name.

They are read as lines or as rows of tables.
"""

import codecs
import re
from contextlib import suppress

from electra_albert.contracts import UsageError

# ASCII, including sequences that some encodings decode to other characters; a backslash only in a
# valid escape.
_PLAIN = bytes(range(128)).replace(b"\\", b"") + (
    rb" \n \u0041 ~{VP~} .xn--mnchen-3ya." b"\x1b$B!!\x1b(B \x1b$)C"
)
_SHOWN_BYTES = 16  # on each side of the first non-ASCII byte

# Raised by yaml in addition to YAMLError: malformed dates, numbers or booleans, endless nesting.
NOT_YAML = (ValueError, LookupError, AttributeError, TypeError, RecursionError)


def canonical_encoding(name: str) -> str:
    """Python's name of an encoding.

    Raises UsageError unless it extends ASCII, which line ends require.
    """
    with suppress(LookupError, ValueError):
        if _PLAIN.decode(name) == _PLAIN.decode("ascii"):
            # Byte order marks are always dropped.
            return codecs.lookup(name).name.removesuffix("-sig")
    raise UsageError(
        f"encoding={name} is not utf-8, cp1252, gb18030 or another of Python's encodings that "
        "extend ASCII; choose one, or convert the text with iconv -t UTF-8"
    )


def encoding_hint(raw: bytes) -> str:
    """Advice for text that is not UTF-8, with a sample in cp1252, the likeliest other one."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it looks like UTF-16; convert it with iconv -f UTF-16 -t UTF-8"
    first = next(position for position, byte in enumerate(raw) if byte > 127)
    sample = raw[max(0, first - _SHOWN_BYTES) : first + _SHOWN_BYTES].decode("cp1252", "replace")
    return (
        f"decoded as cp1252, which includes Latin-1, it reads {' '.join(sample.split())!r}; if "
        "that is right, set --encoding cp1252, else convert it with iconv -f <its encoding> -t "
        "UTF-8"
    )


def hub_name(text: str) -> tuple[str, str | None] | None:
    """Parse OWNER/NAME or OWNER/NAME:CONFIG into dataset and config; None for any other text."""
    match = re.fullmatch(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w.-]+))?", text)
    if match is None:
        return None
    return match[1], match[2]
