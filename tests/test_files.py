"""Atomic writes, and checks of files by size and hash."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.files import (
    HashedFile,
    content_hash,
    filling,
    find_damage,
    new_folder,
    parse_json,
    read_json,
    read_manifest,
    record_digests,
    recorded_damage,
    remove_leftovers,
    replacing,
    write_json,
)


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with replacing(path) as one, replacing(path) as other:  # as on two machines of a cluster
        assert one.name != other.name
    write_json(path, {"ä": 1})
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", None])
    assert (read_json(path), [*tmp_path.iterdir()]) == ({"ä": 1}, [path])


def _write_file(path: Path) -> None:
    with replacing(path) as file:
        file.write(b"whole")


def _write_folder(path: Path) -> None:
    with new_folder(path) as folder:
        (folder / "file").write_bytes(b"whole")


def _fill_folder(path: Path) -> None:
    with filling(path.parent, last=("a",)) as folder:
        (folder / path.name).write_bytes(b"whole")
        (folder / "a").write_bytes(b"last")


@pytest.mark.parametrize("write", [_write_file, _write_folder, _fill_folder])
def test_contents_are_synced_first_the_folder_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    done, sync, rename, replace = list[str](), os.fsync, os.rename, os.replace

    def record(text: str, call: Callable[..., None], *arguments: Any) -> None:
        call(*arguments)
        done.append(text)

    monkeypatch.setattr(
        os, "fsync", lambda number: record(os.readlink(f"/proc/self/fd/{number}"), sync, number)
    )
    monkeypatch.setattr(os, "rename", lambda old, new: record(f"{old} {new}", rename, old, new))
    monkeypatch.setattr(os, "replace", lambda old, new: record(f"{old} {new}", replace, old, new))
    write(tmp_path / "name")
    for number, text in enumerate(done):
        old, _, new = text.partition(" ")
        if new:
            assert old in done[:number]
            assert str(tmp_path) in done[number + 1 :]
    assert next(text.partition(" ")[2] for text in done if " " in text) == str(tmp_path / "name")
    assert not [*tmp_path.glob(".*")]


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    # Referred to: a context that is forgotten is left.
    contexts = [
        filling(tmp_path, last=()),
        replacing(tmp_path / "file"),
        new_folder(tmp_path / "folder"),
    ]
    for context in contexts:
        context.__enter__()  # and not left
    assert len([*tmp_path.iterdir()]) == 4
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


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
    # Half of a pair, and a byte of a file's name.
    content = {"label": "caf\u00e9 \ud83d", "path": "\udcff.txt"}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content


def test_recorded_files_are_checked_and_folders_among_them_are_left_alone(tmp_path: Path) -> None:
    (file := tmp_path / "a.json").write_text("{}")
    (tmp_path / "b").mkdir()
    record_digests(tmp_path, "*")
    assert recorded_damage(tmp_path, "*") is None
    file.write_text("[]")
    assert "a.json has changed" in str(recorded_damage(tmp_path, "*"))
    entry = {"size": 2, "sha256": "0"}
    for files in (5, {"a.json": [1]}, {"a.json": entry | {"size": "2"}}):
        damaged = json.dumps({"files": files})
        (tmp_path / "digests.json").write_text(damaged)  # made again
        assert [recorded_damage(tmp_path, "a*") for _ in range(2)] == [None, None]
        assert "a.json" in read_manifest(tmp_path / "digests.json")["files"]
    further = {"a.json": entry | {"mode": 420}}  # regression: a TypeError
    (tmp_path / "digests.json").write_text(json.dumps({"files": further}))
    assert read_manifest(tmp_path / "digests.json") == {}  # regression: its hash was taken out
    hashed = {"files": further, "hash": content_hash({"files": further})}
    (tmp_path / "digests.json").write_text(json.dumps(hashed))
    assert "a.json has changed" in str(recorded_damage(tmp_path, "a*"))
    record_digests(tmp_path, "*")
    for damaged in ("{", "[1]", (tmp_path / "digests.json").read_text().replace('": 2', '": 3')):
        (tmp_path / "digests.json").write_text(damaged)
        assert read_manifest(tmp_path / "digests.json") == {}


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        (int, "3", ("true", "3.0", '"3"', "null", str(1 << 63))),
        (float, "3.4e38", ("NaN", "1e999", "Infinity", "false", '"3"')),
        (bool, "true", ("1", "null")),
        (str | None, "null", ("1", "[]")),
        (dict[str, tuple[int, str]], '{"a": [1, "b"]}', ('{"a": [1]}', '{"a": 1}', "[]")),
        ({"a": {str: {"b": int}}}, '{"a": {"x": {"b": 1}}, "c": 2}', ('{"a": {"x": {}}}', "{}")),
        ({"a": int | None, "b": list[str]}, '{"b": []}', ('{"b": [1]}', '{"b": "text"}', "1")),
        (object, "[]", ("", "[1", '{"a"}', "[" * 100_000)),
    ],
)
def test_json_of_another_kind_is_refused(kind: Any, fitting: str, others: tuple[str, ...]) -> None:
    parse_json(fitting, kind)
    for other in others:
        with pytest.raises(ValueError, match=r"\S"):
            parse_json(other, kind)
