"""File formats that corpora and tables of tasks share: unknown encodings, separators of CSV, datasets on the hub."""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Collection, Iterable
from itertools import islice
from threading import Thread
from typing import Any

from electra_albert.contracts import UsageError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}  # of a file named .csv, the usual one first
_SEPARATED_LINES = 100  # of a file without a header, that show its separator
_HUB_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<config>[\w.-]+))?")
_HUB_SECONDS = 3  # to wait for an answer of the hub
# Bytes above ASCII as they occur in Western European text: letters, few in a row, quotes and dashes.
_WESTERN = re.compile(
    rb"(?<![\xc0-\xff])[\xc0-\xff]{1,2}(?![\xc0-\xff])|[\x80\x82-\x8c\x8e\x91-\x9c\x9e\x9f\xa0\xa1\xab\xbb\xbf]"
)
_WESTERN_SHARE = 0.9  # of the bytes above ASCII
# ASCII, and ASCII that stands for other characters in encodings whose bytes above it mean nothing by themselves.
_PLAIN = bytes(range(128)) + rb" \n \u0041 ~{VP~} .xn--mnchen-3ya." + b"\x1b$B!!\x1b(B \x1b$)C"
_SHOWN_BYTES = 16  # on each side of the first byte above ASCII


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
    """The way out for text that is not UTF-8, with the encoding that it looks like and a sample of it in that."""
    high = len(raw) - len(raw.translate(None, bytes(range(128, 256))))
    if len(b"".join(_WESTERN.findall(raw))) < _WESTERN_SHARE * high:
        return "convert it with iconv -f <its encoding> -t UTF-8, or train on it as it is by --encoding"
    first = next(place for place, byte in enumerate(raw) if byte > 127)
    sample = raw[max(0, first - _SHOWN_BYTES) : first + _SHOWN_BYTES].decode("cp1252", "replace")
    return (
        f"it looks like cp1252, which includes Latin-1, and then reads {' '.join(sample.split())!r}: convert it with "
        "iconv -f cp1252 -t UTF-8, or train on it as it is by --encoding cp1252"
    )


def csv_delimiter(lines: Iterable[str], wanted: Collection[str] = (), widths: Collection[int] = ()) -> str:
    """The separator of a file named .csv: a comma, unless only another one fits.

    The best one gives a column that is `wanted` in the first line, or else the most columns. Of a file without a header
    it gives one of these `widths` in most of its first lines: text may hold any sign, so one line would not do.
    """
    sample = list(islice(lines, _SEPARATED_LINES if widths else 1))

    def fields(line: str, delimiter: str) -> list[str]:
        try:
            return next(csv.reader([line], delimiter=delimiter, strict=True), [])
        except csv.Error:
            return []

    def fit(delimiter: str) -> tuple[int, int]:
        rows = [fields(line, delimiter) for line in sample]
        if widths:
            return sum(len(row) in widths for row in rows), 0
        return any(name in wanted for row in rows for name in row), sum(map(len, rows))

    return max(SEPARATORS, key=fit)  # the first of those that fit alike


def hub_name(text: str) -> tuple[str, str | None] | None:
    """The dataset and its config that OWNER/NAME or OWNER/NAME:CONFIG names; None for any other text."""
    match = _HUB_NAME.fullmatch(text)
    return match and (match["name"], match["config"])


def load_from_hub(name: str, config: str | None, split: str | None, what: str) -> Any:
    """A dataset, downloaded or from the cache, or one split of it; `what` begins the message where there is none.

    Raises UsageError where it cannot be had: no network, no such dataset or config, no access.
    """
    import datasets

    was_offline = datasets.config.HF_HUB_OFFLINE
    is_local = os.path.exists(name)
    try:
        # Without a network the library tries again for half a minute; told that it is offline, it looks into its cache.
        datasets.config.HF_HUB_OFFLINE = was_offline or not (is_local or _answers(datasets.config.HF_ENDPOINT))
        return datasets.load_dataset(name, config, split=split)  # RuntimeError where that needs a script
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if datasets.config.HF_HUB_OFFLINE and not was_offline:
            reason = f"no answer from {datasets.config.HF_ENDPOINT}, and it is not in the cache"
        way_out = "check the name, the network, and that you may use it"
        raise UsageError(f"{what} ({reason[:300]}); {way_out}") from error
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def _answers(url: str) -> bool:
    """Whether a server answers in time, be it with a refusal; through a proxy where the environment names one."""
    import ssl
    import urllib.error
    import urllib.request

    answers: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_HUB_SECONDS).close()
        except urllib.error.HTTPError:
            pass
        except OSError as error:
            if not isinstance(getattr(error, "reason", None), ssl.SSLError):
                return
        answers.append(True)

    asking = Thread(target=ask, daemon=True)  # which is left where the look-up of the name does not end
    asking.start()
    asking.join(_HUB_SECONDS)
    return bool(answers)
