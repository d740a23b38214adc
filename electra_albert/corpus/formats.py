"""What a file holds, by its name and by a sample of its beginning, and which files are no text at all."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Literal, NamedTuple

from electra_albert.contracts import DataError
from electra_albert.corpus.compressed import COMPRESSED_SUFFIXES, open_stream
from electra_albert.corpus.lines import UTF8
from electra_albert.corpus.sentences import word_set
from electra_albert.data_files import encoding_hint

Format = Literal["text", "jsonl", "csv", "tsv", "parquet", "arrow"]

SAMPLE_BYTES = 1 << 20
_FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_NOT_TEXT = word_set(
    ".zip .7z .tar .tgz .tbz .txz .rar .lz4 .z .png .jpg .jpeg .gif .webp .bmp .tif .tiff .pdf .doc .docx .odt "
    ".epub .xls .xlsx .ppt .pptx .mp3 .mp4 .wav .avi .bin .pt .pth .npy .npz .pkl .pickle .safetensors .onnx .h5 "
    ".sqlite .db .so .o .a .exe .dll .class .jar .pyc .model .json .feather .orc .avro .lock"
)
_FOREIGN = {
    b"PK\x03\x04": "a zip archive; unpack it",
    b"%PDF-": "a PDF; give its text",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it",
    b"version https://git-lfs": "a pointer of git LFS, not the file; run git lfs pull",
}
_TAR_MARK = slice(257, 262)
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_STRAY_BYTES, _STRAY_SHARE = 3, 0.001  # not in UTF-8: as many are mended, or left out, whatever the rest is
_MAX_INVALID_SHARE = 0.2  # of the bytes: above it the file is in another encoding
_MAX_CONTROL_SHARE = 0.05  # of the bytes: above it the file is no text
_CONTROL = bytes(c for c in range(32) if not chr(c).isspace() and c not in (8, 27)) + b"\x7f"


class Sample(NamedTuple):
    """The first bytes of what a file holds, decompressed."""

    raw: bytes
    is_whole: bool  # there are no others


def format_of(path: Path) -> Format | None:
    """The format that the name says, with or without .gz, .bz2, .xz or .zst behind it; None where it is no text."""
    name = Path(path.name.lower())
    if name.suffix in COMPRESSED_SUFFIXES:
        name = name.with_suffix("")
    return None if name.suffix in _NOT_TEXT else _FORMATS.get(name.suffix, "text")


def read_sample(path: Path) -> Sample:
    """Raises UsageError or DataError where the file cannot be read or decompressed."""
    blocks = []
    left = SAMPLE_BYTES
    with open_stream(path) as file:
        while left and (block := file.read(left)):
            blocks.append(block)
            left -= len(block)
        return Sample(b"".join(blocks), left > 0 or not file.read(1))


def refuse_foreign(path: Path, sample: bytes, encoding: str = UTF8) -> None:
    """Raise DataError where a sample from the start of a file is an archive, binary or in another encoding."""
    if path.name.lower().endswith(".json"):
        raise DataError(f"{path}: JSON; give one object a line in a file named .jsonl")
    for magic, what in _FOREIGN.items():
        if sample.startswith(magic):
            raise DataError(f"{path}: {what}")
    if sample[_TAR_MARK] == b"ustar":
        raise DataError(f"{path}: a tar archive; unpack it")
    nul = sample.count(0)
    looks_wide = nul > len(sample) // 5 and max(sample[::2].count(0), sample[1::2].count(0)) > 0.9 * nul
    if sample.startswith(_WIDE_MARKS) or looks_wide:
        raise DataError(f"{path}: UTF-16 or UTF-32; convert it with iconv -f UTF-16 -t UTF-8")
    control = len(sample) - len(sample.translate(None, _CONTROL))
    if control > _MAX_CONTROL_SHARE * len(sample):
        raise DataError(f"{path}: binary, {control / len(sample):.0%} of it are control bytes; give UTF-8 text")
    _refuse_other_encoding(path, sample, encoding)


def _refuse_other_encoding(path: Path, sample: bytes, encoding: str) -> None:
    """Raise DataError where more than a few bytes, and most characters above ASCII, are not in the encoding."""
    text = codecs.getincrementaldecoder(UTF8)("replace").decode(sample)  # without a last character that is cut
    invalid = text.count("\ufffd") - sample.count("\ufffd".encode())
    valid = len(text) - len(text.encode("ascii", "ignore")) - invalid
    if encoding != UTF8:
        if valid and not invalid:
            raise DataError(f"{path}: it is UTF-8, not {encoding}; leave out --encoding, or convert the others")
        return
    is_stray = invalid <= max(_STRAY_BYTES, _STRAY_SHARE * len(sample)) or invalid <= valid
    if invalid > _MAX_INVALID_SHARE * len(sample) or not is_stray:
        raise DataError(f"{path}: not UTF-8; {encoding_hint(sample)}")
