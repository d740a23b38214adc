"""Atomic writes, and checks of files by size and hash."""

import os
from pathlib import Path

import pytest

from electra_albert.files import HashedFile, find_damage, read_json, replacing, write_json


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with replacing(path) as one, replacing(path) as other:  # as on two machines of a cluster
        assert one.name != other.name
    write_json(path, {"ä": 1})
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", None])
    assert (read_json(path), [*tmp_path.iterdir()]) == ({"ä": 1}, [path])


def test_damage_is_found_after_a_cached_check(tmp_path: Path) -> None:
    with (path := tmp_path / "a.bin").open("wb") as opened:
        (file := HashedFile(opened)).write(b"whole")
        files = {path.name: file.finish()}
    assert [find_damage(tmp_path, files, tmp_path / "note") for _ in range(2)] == [None, None]
    noted = read_json(tmp_path / "note")
    path.write_bytes(b"while")
    os.utime(path, ns=(1, noted[path.name][2]))  # the same size and time
    assert "has changed" in str(find_damage(tmp_path, files, tmp_path / "note"))
    path.write_bytes(b"whole and more")
    assert "bytes" in str(find_damage(tmp_path, files, tmp_path / "note"))
    path.unlink()
    assert "missing" in str(find_damage(tmp_path, files, tmp_path / "note"))


def test_json_with_any_text_reads_back(tmp_path: Path) -> None:
    content = {"label": "caf\u00e9 \ud83d", "path": "\udcff.txt"}  # half of a pair, and a byte of a file's name
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
