"""Compressed files give what was packed, whatever their names, and damage is an error that names them."""

import bz2
import gzip
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files.finding import find_files
from electra_albert.data_files.streams import open_stream, read_text, text_lines
from tests.corpus.reading import PROSE, sentences, write

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: pyarrow.compress(raw, "zstd", asbytes=True),
}


@pytest.mark.parametrize("ending", COMPRESS)
def test_members_after_one_another_are_one_text(tmp_path: Path, ending: str) -> None:
    members = [COMPRESS[ending](f"Line {i} of it.\n".encode() * 4000) for i in range(3)]
    path = write(tmp_path, b"".join(members), f"a.txt{ending}")
    assert [len(document) for document in sentences(path)] == [12_000]
    assert len(list(text_lines(path))) == 12_000


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_data_that_is_damaged_is_an_error_that_names_the_file(tmp_path: Path, ending: str) -> None:
    # Catches files that end early without a word, as the standard library's do at what is no second member.
    noise = np.random.default_rng(0).integers(97, 123, 200_000, dtype=np.uint8).tobytes()
    whole = COMPRESS[ending](noise)
    middle = len(whole) // 2
    overwritten = whole[:middle] + bytes(2000) + whole[middle + 2000 :]
    for number, broken in enumerate([whole[:-20], whole + whole[:middle], whole + b"not compressed", overwritten]):
        path = write(tmp_path, broken, f"{number}.txt{ending}")
        with (
            pytest.raises(DataError, match=rf"{number}\.txt.*damaged or incomplete") as refusal,
            open_stream(path) as f,
        ):
            f.read()
        assert "\n" not in str(refusal.value)


def test_zstd_that_begins_with_a_frame_to_be_skipped_is_read(tmp_path: Path) -> None:
    frame = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"  # as pzstd writes it
    member = frame + COMPRESS[".zst"]("\n".join(PROSE).encode() + b"\n")
    path = write(tmp_path, member + member, "a.txt.zst")
    assert find_files(str(path), Counter()) == [path]
    assert sentences(path) == [PROSE * 2]


def test_a_compressed_file_is_known_by_its_content_whatever_its_name(tmp_path: Path) -> None:
    for name in ("a.txt", "a.txt.XZ"):
        assert sentences(write(tmp_path, gzip.compress("\n".join(PROSE).encode(), mtime=0), name)) == [PROSE]


def test_text_is_decoded_without_its_mark_and_bad_bytes_are_named_by_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffone\r\ntwo\x85\u2028\n\nlast")
    assert list(text_lines(path)) == ["one\r", "two\x85\u2028", "", "last"]
    assert read_text(path) == "one\r\ntwo\x85\u2028\n\nlast"
    path = write(tmp_path, "ein\nschöner Tag\n".encode("latin-1"))
    assert list(text_lines(path, "cp1252")) == ["ein", "schöner Tag"]
    for reader in (read_text, lambda path: list(text_lines(path))):
        with pytest.raises(DataError, match=r"corpus\.txt:2: .*--encoding cp1252"):
            reader(path)
    with pytest.raises(DataError, match="ASCII; choose another"):
        read_text(path, "ascii")
    with pytest.raises(UsageError, match="cannot be read"):
        read_text(tmp_path)
