"""The card of a pair: what repeats the run, nothing of the machine's folders, and no licence that was not named."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from electra_albert.apps.export import main as export
from electra_albert.apps.export.pair_paths import without_folders
from electra_albert.apps.export.pair_repeat import chosen_options
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.run_folder import describe_run, recorded_settings
from electra_albert.config import as_settings
from electra_albert.presets import PRESETS
from tests.apps.conftest import Finished
from tests.apps.shipped_pair import export_pair, files_in
from tests.apps.tiny_run import assert_refused, call


def card_of(source: Path, folder: Path, *more: object) -> str:
    """The card of a pair that is written into `folder`."""
    ended = export_pair(source, folder, *more)
    assert ended.code == 0, ended.err
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def card(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> str:
    return card_of(finished.folder, tmp_path_factory.mktemp("written") / "little")


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Path:
    """The tiny run, to change."""
    return shutil.copytree(finished.folder, tmp_path / "run")


def test_card_tells_the_run_and_nothing_of_the_machine(finished: Finished, card: str) -> None:
    assert str(finished.folder.parent) in (finished.folder / "command.txt").read_text()
    assert str(finished.folder.parent) not in card
    assert "Pretraining.py --corpus tales.txt" in card
    for told in ("Objective `rtd`", "corpus `tales.txt`", "20 steps", "| discriminator auc |", "hidden_size | 16 | 32"):
        assert told in card


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ("- {corpus: tales.txt}\n- {corpus: wiki/*.txt}\n", "corpus `mine.yaml` (`tales.txt`, `*.txt`), rows"),
        ("- {corpus: tales.txt, weight: 2}\n", "corpus `mine.yaml` (`tales.txt` of weight 2), rows"),
        (None, "corpus `mine.yaml`, rows"),
    ],
)
def test_the_sources_that_a_mixture_had_when_the_run_began_are_told(
    run: Path, tmp_path: Path, listed: str | None, told: str
) -> None:
    settings = recorded_settings(run)
    mixture = tmp_path / "mine.yaml"
    (tmp_path / "tales.txt").write_text("A tale.\n", encoding="utf-8")
    if listed is not None:
        mixture.write_text(listed, encoding="utf-8")
    preset, config = parse_pretraining(["--config", str(run / "config.yaml"), "--corpus", str(mixture)], "x")
    describe_run(run, preset, config, ["Pretraining.py"], settings)
    mixture.write_text("- {corpus: tales.txt, weight: 7}\n", encoding="utf-8")  # as it is now does not count
    card = card_of(run, tmp_path / "little")
    assert told in card
    assert str(tmp_path) not in card


def test_options_of_the_card_make_the_configuration_of_the_run(finished: Finished, card: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", card, re.DOTALL)
    (tmp_path / "card.yaml").write_text(block, encoding="utf-8")
    by_card = parse_pretraining(["--config", str(tmp_path / "card.yaml")], "x")
    by_run = parse_pretraining(["--config", str(finished.folder / "config.yaml")], "x")
    found, wanted = as_settings(by_card[1]), as_settings(by_run[1])
    places = {"corpus": "tales.txt", "prepared_dir": "prepared", "output_dir": "run"}
    assert (by_card[0], found) == (by_run[0], wanted | places)


def test_options_of_the_preset_are_not_told_again() -> None:
    settings = as_settings(PRESETS["small"])
    changed = settings | {"learning_rate": 1e-3, "rtd": settings["rtd"] | {"generator_size": 0.5}}
    told = chosen_options({"preset": "small", **changed})
    assert told == {"preset": "small", "learning_rate": 1e-3, "rtd": {"generator_size": 0.5}}


def test_options_of_a_preset_nobody_knows_are_all_told() -> None:
    options = {"preset": "mine", "corpus": "docs", "model": {"hidden_size": 8}}
    assert chosen_options(options) == options


def test_code_and_machine_of_the_run_are_told(finished: Finished, card: str) -> None:
    recorded = json.loads((finished.folder / "environment.json").read_text())
    assert recorded["processor"]
    assert f"Computed on {recorded['processor']} (cores {recorded['cores']}, threads " in card
    commit = f"commit `{recorded['commit']}`" if recorded["commit"] else "a commit that was not recorded"
    assert f"torch {recorded['packages']['torch']}" in card
    assert f"by the code of {commit}." in card


def test_a_run_that_has_recorded_neither_is_told_so(run: Path, tmp_path: Path) -> None:
    (run / "environment.json").write_text("{}")
    told = "Computed on a processor that was not recorded, by the code of a commit that was not recorded."
    assert told in card_of(run, tmp_path / "out")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("python x.py --corpus '/home/me/my texts/a.txt'", "python x.py --corpus a.txt"),
        ("python x.py --corpus=/home/me/a.txt --seed 3", "python x.py --corpus=a.txt --seed 3"),
        ("python x.py --corpus '../wiki-0*.txt'", "python x.py --corpus 'wiki-0*.txt'"),
        ("python x.py --corpus /home/me/texts/", "python x.py --corpus texts"),
        ("python x.py --corpus '~/texts//'", "python x.py --corpus texts"),
        (r"python x.py --corpus 'C:\Users\me\a.txt'", "python x.py --corpus a.txt"),
        ("python x.py --corpus /home/me/docs", "python x.py --corpus ./docs"),
        ("python x.py --corpus Salesforce/wikitext:raw", "python x.py --corpus Salesforce/wikitext:raw"),
        ("python x.py --init_from albert/albert-base-v2", "python x.py --init_from albert/albert-base-v2"),
        ("python x.py --corpus https://example.org/a.txt", "python x.py --corpus https://example.org/a.txt"),
        ("python x.py --corpus 'this and/or that'", "python x.py --corpus 'this and/or that'"),
        ("python x.py --corpus / --text ..", "python x.py --corpus / --text .."),
        ("python x.py --rtd.generator_size 0.25", "python x.py --rtd.generator_size 0.25"),
    ],
)
def test_of_a_path_in_a_command_only_the_name_is_told(typed: str, told: str) -> None:
    assert without_folders(typed) == told


def test_of_a_relative_path_that_is_there_only_the_name_is_told(in_folder: Path) -> None:
    (in_folder / "mine").mkdir()
    assert without_folders("x --corpus mine/texts") == "x --corpus mine/texts"
    (in_folder / "mine" / "texts").mkdir()
    assert without_folders("x --corpus mine/texts/") == "x --corpus texts"


@pytest.mark.parametrize(
    ("corpus", "told"), [("/home/me/texts/", "texts"), ("Salesforce/wikitext", "Salesforce/wikitext")]
)
def test_training_line_tells_a_folder_by_its_name_and_a_hub_name_whole(
    run: Path, tmp_path: Path, corpus: str, told: str
) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"(?m)^corpus: .*$", f"corpus: {corpus}", config))
    found = card_of(run, tmp_path / "out")
    assert f"corpus `{told}`, rows of" in found
    assert f"\ncorpus: {told}\n" in found


def test_a_command_that_cannot_be_read_is_told_in_one_line(run: Path, tmp_path: Path) -> None:
    (run / "command.txt").write_text("python Pretraining.py --corpus 'open\n")
    assert_refused(export_pair(run, tmp_path / "out"), 4, "command.txt holds no command line")
    assert files_in(tmp_path / "out") == set()


def test_scores_stand_in_the_card(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "scores.md").write_text("| CoLA | 0.5 |\n", encoding="utf-8")
    found = card_of(finished.folder, tmp_path / "out", "--card", tmp_path / "scores.md")
    assert "## Scores\n\n| CoLA | 0.5 |\n" in found
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path / "out", check=True, capture_output=True)


def test_scores_in_json_are_no_card(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text('{"cola": 0.5}')
    ended = export_pair(finished.folder, tmp_path / "out", "--card", tmp_path / "scores.json")
    assert_refused(ended, 2, "scores.json holds JSON, and the card is Markdown")


def test_a_licence_is_the_makers_to_name(finished: Finished, card: str, tmp_path: Path) -> None:
    assert "license" not in card.split("---")[1]
    assert "Data, results and licence are for its maker to state here." in card
    licensed = card_of(finished.folder, tmp_path / "out", "--license", "cc-by-sa-4.0")
    assert "license: cc-by-sa-4.0" in licensed.split("---")[1].splitlines()
    assert "## Licence\n\nThe weights are under `cc-by-sa-4.0`.\n" in licensed
    assert "for its maker to state" not in licensed


def test_a_card_is_headed_by_the_folders_name_however_it_is_typed(finished: Finished, in_folder: Path) -> None:
    assert f"\n# {in_folder.name}\n" in card_of(finished.folder, Path("."))


def test_a_copy_says_what_its_card_leaves_out(finished: Finished, tmp_path: Path) -> None:
    first, second = export_pair(finished.folder, tmp_path / "one"), export_pair(tmp_path / "one", tmp_path / "two")
    assert (first.code, second.code) == (0, 0)
    assert "is no run" not in first.err
    assert f"notice: {tmp_path / 'one'} is no run, so the card says nothing of its training" in second.err
    assert "## Training" not in (tmp_path / "two" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("license_id", ["", "my own", "mit\nlibrary_name: x"])
def test_what_is_no_id_of_a_licence_is_refused(finished: Finished, tmp_path: Path, license_id: str) -> None:
    ended = export_pair(finished.folder, tmp_path / "out", "--license", license_id)
    assert_refused(ended, 2, "--license")
    assert not (tmp_path / "out").exists()


def test_a_licence_goes_with_a_pair_alone(finished: Finished, tmp_path: Path) -> None:
    ended = call(export.main, "--model", finished.folder, "--output_dir", tmp_path / "out", "--license", "mit")
    assert_refused(ended, 2, "--license goes with --kind pair")
