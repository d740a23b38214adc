"""Where a pair is written and where not, and what of it the words of a command mean."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from electra_albert.apps.export import main as export
from electra_albert.hub.pair_file import PAIR_FILE
from tests.apps.conftest import Finished
from tests.apps.shipped_pair import WRITTEN, export_pair, files_in
from tests.apps.tiny_run import Ended, assert_refused, call, sha256


def test_a_single_model_is_no_pair(finished: Finished, tmp_path: Path) -> None:
    ended = export_pair(finished.folder / "generator", tmp_path / "out")
    assert_refused(ended, 2, "name the folder that holds generator/ and discriminator/")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kind", "pair", "--format", "pt"), "--kind pair is written as safetensors"),
        (("--kind", "pair", "--card", "nowhere.md"), "--card nowhere.md cannot be read"),
        (("--kind", "generator", "--card", "scores.md"), "--card goes with --kind pair"),
        (("--kind", "pair", "--card", ""), "--card is empty"),
    ],
)
def test_options_that_mean_nothing_for_it_are_refused(
    finished: Finished, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    ended = call(export.main, "--model", finished.folder, "--output_dir", tmp_path / "out", *options)
    assert_refused(ended, 2, words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["model.safetensors", "generator/pytorch_model.bin"])
def test_a_pair_is_not_written_where_another_model_lies(finished: Finished, tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_bytes(b"somebody's")
    assert_refused(export_pair(finished.folder, tmp_path), 2, place, "choose another --output_dir")
    assert files_in(tmp_path) == {place}


@pytest.mark.parametrize("place", ["", "generator"])
def test_another_model_is_not_written_where_a_pair_lies(
    finished: Finished, shipped: Path, tmp_path: Path, place: str
) -> None:
    folder = shutil.copytree(shipped, tmp_path / "pair")
    ended = call(export.main, "--model", finished.folder, "--output_dir", folder / place)
    assert_refused(ended, 2, "choose another --output_dir")
    assert files_in(folder) == WRITTEN


@pytest.mark.parametrize("kind", ["generator", "pair"])
@pytest.mark.parametrize("place", [".", "../generator", "../../link"])
def test_a_configurations_folder_is_known_under_any_name(
    finished: Finished, shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, kind: str
) -> None:
    folder = shutil.copytree(shipped, tmp_path / "pair")
    (tmp_path / "link").symlink_to(folder / "generator")
    monkeypatch.chdir(folder / "generator")
    ended = call(export.main, "--model", finished.folder, "--kind", kind, "--output_dir", place)
    assert_refused(ended, 2, "choose another --output_dir")
    assert files_in(folder) == WRITTEN


@pytest.mark.parametrize("named", ["", PAIR_FILE])
def test_a_pair_is_not_written_over_itself(shipped: Path, tmp_path: Path, named: str) -> None:
    folder = shutil.copytree(shipped, tmp_path / "pair")
    assert_refused(export_pair(folder / named, folder), 2, "is where the model comes from")
    assert {name: sha256(folder / name) for name in WRITTEN} == {name: sha256(shipped / name) for name in WRITTEN}


def test_a_newer_pair_takes_the_place_of_an_older_one(finished: Finished, shipped: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shipped, tmp_path / "pair")
    (folder / PAIR_FILE).write_bytes(b"older")
    assert export_pair(finished.folder, folder).code == 0
    assert sha256(folder / PAIR_FILE) == sha256(shipped / PAIR_FILE)


def test_weights_are_put_in_place_last(finished: Finished, tmp_path: Path) -> None:
    # A folder where a file should go stops the writing half-way; what is there then must not look whole.
    (tmp_path / "tokenizer_config.json" / "mine").mkdir(parents=True)
    assert_refused(export_pair(finished.folder, tmp_path), 2, "cannot write the pair into")
    assert (tmp_path / "tokenizer.json").exists()
    assert not (tmp_path / PAIR_FILE).exists()


def export_task(model: Path, folder: Path) -> Ended:
    return call(export.main, "--model", model, "--kind", "task", "--output_dir", folder)


@pytest.mark.parametrize("named", ["", PAIR_FILE])
def test_a_pair_has_no_fine_tuned_model_to_export(shipped: Path, tmp_path: Path, named: str) -> None:
    assert_refused(export_task(shipped / named, tmp_path / "out"), 2, "no fine-tuned model; name a folder")


def test_a_run_without_a_discriminator_is_no_pair(finished: Finished, tmp_path: Path) -> None:
    run = shutil.copytree(finished.folder, tmp_path / "run")
    shutil.rmtree(run / "discriminator")
    assert_refused(export_pair(run, tmp_path / "out"), 2, "has a generator and no discriminator", "--kind generator")
