"""Where an export writes: what lies there and is not ours stays, what cannot be written to is told in one line."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from electra_albert.apps.export import main as export
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call

CARD = "README.md"


def export_into(finished: Finished, folder: object, *more: object) -> Ended:
    return call(export.main, "--model", finished.folder, "--output_dir", folder, *more)


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """As on a full disk: what grows further cannot be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_readme_of_somebody_else_stays_and_that_is_said(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / CARD).write_bytes(b"# My project\r\n\xff\n")
    ended = export_into(finished, tmp_path)
    assert (ended.code, (tmp_path / CARD).read_bytes()) == (0, b"# My project\r\n\xff\n")
    assert f"notice: {tmp_path / CARD} was not written here" in ended.err
    assert (tmp_path / "model.safetensors").is_file()


def test_weights_of_another_format_go_and_that_is_said(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"somebody's")
    ended = export_into(finished, tmp_path)
    assert (ended.code, (tmp_path / "pytorch_model.bin").exists()) == (0, False)
    assert f"notice: removed {tmp_path / 'pytorch_model.bin'}" in ended.err


def test_a_card_that_its_maker_filled_in_stays(finished: Finished, tmp_path: Path) -> None:
    written = (finished.folder / "generator" / CARD).read_text()
    mine = written.replace("tags:", "license: mit\ntags:")
    assert mine != written
    (tmp_path / CARD).write_text(mine)
    ended = export_into(finished, tmp_path)
    assert (ended.code, (tmp_path / CARD).read_text()) == (0, mine)
    assert "it stays" in ended.err


def test_a_card_of_ours_as_it_was_written_gives_way_to_the_new_one(finished: Finished, tmp_path: Path) -> None:
    shutil.copy(finished.folder / "generator" / CARD, tmp_path)
    ended = export_into(finished, tmp_path, "--kind", "discriminator")
    assert (ended.code, ended.err) == (0, "")
    assert "AlbertModel.from_pretrained" in (tmp_path / CARD).read_text()


@pytest.mark.parametrize("inner", [".", "generator", "discriminator", "model", "tokenizer"])
@pytest.mark.parametrize("mark", ["environment.json", "checkpoints"])
def test_a_runs_folder_and_those_in_it_are_not_written_into(
    finished: Finished, tmp_path: Path, mark: str, inner: str
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True) if mark == "checkpoints" else run.mkdir()
    (run / mark).touch()
    (run / CARD).write_text("of the run")
    assert_refused(export_into(finished, run / inner), 2, "belongs to a run", "choose another --output_dir")
    assert sorted(path.name for path in run.iterdir()) == sorted({CARD, mark})
    assert (run / CARD).read_text() == "of the run"


def test_another_folder_inside_a_run_is_written_into(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "environment.json").touch()
    assert export_into(finished, tmp_path / "exported").code == 0


@pytest.mark.parametrize("option", ["model", "output_dir"])
def test_an_empty_path_is_refused(finished: Finished, tmp_path: Path, option: str) -> None:
    given = {"model": finished.folder, "output_dir": tmp_path / "out", option: ""}
    argv = [word for name, value in given.items() for word in (f"--{name}", value)]
    assert_refused(call(export.main, *argv), 2, f"--{option} is empty")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["x" * 300, "loop", "loop/inner", "nowhere", "nowhere/inner"])
def test_an_output_dir_that_cannot_be_is_refused(finished: Finished, tmp_path: Path, place: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("gone")
    assert_refused(export_into(finished, tmp_path / place), 2, "cannot write into", "choose another folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "nowhere"]


@pytest.mark.parametrize(
    ("file_format", "first_too_large"),
    [("safetensors", "tokenizer.json"), ("safetensors", "model.safetensors"), ("pt", "weights.pt")],
)
def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(
    finished: Finished, tmp_path: Path, file_format: str, first_too_large: str
) -> None:
    assert export_into(finished, tmp_path / "whole", "--format", file_format).code == 0
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "whole").iterdir()}
    with files_of_at_most(sizes[first_too_large] - 1):
        ended = export_into(finished, tmp_path / "full", "--format", file_format)
    assert_refused(ended, 2, "cannot write the model into", "make room")
    assert list((tmp_path / "full").iterdir()) == []
