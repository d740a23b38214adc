"""Writing a pair: its files, their sums, the card, what rounding changes, and what is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from electra_albert.apps import export
from electra_albert.apps.pair_card import without_folders
from electra_albert.model.pair_file import PAIR_FILE
from electra_albert.model.weight_files import write_safetensors
from tests.apps.conftest import Finished
from tests.apps.shipped_pair import PARTS, WRITTEN, export_pair, files_in
from tests.apps.tiny_run import assert_refused, call, sha256


@pytest.fixture(scope="module")
def shipped(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair of the tiny run. Tests read it and leave it as it is."""
    folder = tmp_path_factory.mktemp("written") / "shipped"
    ended = export_pair(finished.folder, folder)
    assert ended.code == 0, ended.err
    return folder


def test_a_pair_is_one_file_of_weights_with_all_that_belongs_to_it(shipped: Path) -> None:
    assert files_in(shipped) == WRITTEN


def test_sums_are_those_of_all_other_files(shipped: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=shipped, check=True, capture_output=True)
    names = [line.split("  ")[1] for line in (shipped / "SHA256SUMS").read_text().splitlines()]
    assert names == sorted(WRITTEN - {"SHA256SUMS"})


def test_the_same_run_gives_the_same_bytes_and_so_does_a_pair(
    finished: Finished, shipped: Path, tmp_path: Path
) -> None:
    again, copied = tmp_path / "again" / shipped.name, tmp_path / "copied"
    assert export_pair(finished.folder, again).code == 0
    assert export_pair(shipped, copied).code == 0
    assert {name: sha256(again / name) for name in WRITTEN} == {name: sha256(shipped / name) for name in WRITTEN}
    of_weights = [PAIR_FILE, *(f"{part}/config.json" for part in PARTS)]
    assert [sha256(copied / name) for name in of_weights] == [sha256(shipped / name) for name in of_weights]


def test_what_rounding_changes_is_told_and_small(finished: Finished, tmp_path: Path) -> None:
    ended = export_pair(finished.folder, tmp_path / "out")
    assert "rounding to half precision moves masked-token logits by" in ended.out
    found = [float(number) for number in re.findall(r"[0-9.]+e-[0-9]+", ended.out)]
    assert len(found) == 2
    assert all(0 < number < 0.01 for number in found)


def test_card_tells_the_run_and_nothing_of_the_machine(finished: Finished, shipped: Path) -> None:
    card = (shipped / "README.md").read_text(encoding="utf-8")
    assert str(finished.folder.parent) in (finished.folder / "command.txt").read_text()
    assert str(finished.folder.parent) not in card
    assert "Pretraining.py --corpus tales.txt" in card
    for told in (
        "license: apache-2.0",
        "Objective `rtd`",
        "20 steps",
        "| discriminator auc |",
        "hidden_size | 16 | 32",
    ):
        assert told in card


def test_scores_stand_in_the_card(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "scores.md").write_text("| CoLA | 0.5 |\n", encoding="utf-8")
    assert export_pair(finished.folder, tmp_path / "out", "--card", tmp_path / "scores.md").code == 0
    assert "## Scores\n\n| CoLA | 0.5 |\n" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path / "out", check=True, capture_output=True)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("python x.py --corpus '/home/me/my texts/a.txt'", "python x.py --corpus a.txt"),
        ("python x.py --corpus=/home/me/a.txt --seed 3", "python x.py --corpus=a.txt --seed 3"),
        ("python x.py --corpus '../wiki-0*.txt'", "python x.py --corpus 'wiki-0*.txt'"),
        ("python x.py --rtd.generator_size 0.25", "python x.py --rtd.generator_size 0.25"),
    ],
)
def test_of_a_path_in_a_command_only_the_name_is_told(typed: str, told: str) -> None:
    assert without_folders(typed) == told


def test_a_command_that_cannot_be_read_is_told_in_one_line(finished: Finished, tmp_path: Path) -> None:
    run = shutil.copytree(finished.folder, tmp_path / "run")
    (run / "command.txt").write_text("python Pretraining.py --corpus 'open\n")
    assert_refused(export_pair(run, tmp_path / "out"), 4, "command.txt holds no command line")
    assert files_in(tmp_path / "out") == set()


def test_a_card_of_somebody_else_stays_and_is_summed(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"# My model\r\n\xff\n")
    ended = export_pair(finished.folder, tmp_path)
    assert (ended.code, (tmp_path / "README.md").read_bytes()) == (0, b"# My model\r\n\xff\n")
    assert "it stays" in ended.err
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)


# What is not written.


def test_a_single_model_is_no_pair(finished: Finished, tmp_path: Path) -> None:
    ended = export_pair(finished.folder / "generator", tmp_path / "out")
    assert_refused(ended, 2, "name the folder that holds generator/ and discriminator/")
    assert not (tmp_path / "out").exists()


def test_two_models_with_tables_of_their_own_are_no_pair(finished: Finished, tmp_path: Path) -> None:
    for part in PARTS:
        shutil.copytree(finished.folder / part, tmp_path / "two" / part)
    weights = tmp_path / "two" / "generator" / "model.safetensors"
    tensors = load_file(weights)
    tensors["albert.embeddings.LayerNorm.bias"][0] += 1
    write_safetensors(tensors, weights)
    assert_refused(export_pair(tmp_path / "two", tmp_path / "out"), 4, "have tables of their own")
    assert files_in(tmp_path / "out") == set()


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


def test_a_pair_is_not_written_over_itself(shipped: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shipped, tmp_path / "pair")
    assert_refused(export_pair(folder, folder), 2, "is where the models come from")
