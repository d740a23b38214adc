"""The model that is taken where none is named: the newest finished run, else what comes with the checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from electra_albert.apps import default_model
from electra_albert.apps.demo import main as demo
from electra_albert.apps.demo.sentences import OF_ANYTHING, OF_DOCUMENTATION
from electra_albert.apps.finetune import main as finetune
from electra_albert.inference.model import load_model
from tests.apps.conftest import Finished
from tests.apps.tiny_run import ROOT, assert_refused, call, copy_as_learned
from tests.apps.tiny_tasks import Tiny, cola, results

QUICK = ("--max_steps", 3, "--logging_steps", 1)
TOLD = "which comes with the checkout (runs/ holds no finished run)"
COMMITTED = ROOT / "data" / "models"
LARGEST_BYTES = 12_000_000  # of a model that come with a checkout


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return cola(tmp_path / "tasks")


def ship(shipped: Path, folder: Path, name: str = "little") -> Path:
    return shutil.copytree(shipped, folder / "data" / "models" / name)


def test_without_a_run_the_demo_takes_the_shipped_model_and_says_so(shipped: Path, in_folder: Path) -> None:
    ship(shipped, in_folder)
    ended = call(demo.main)
    assert (ended.code, ended.err) == (0, f"model: data/models/little, {TOLD}\n")
    assert all(sentence in ended.out for sentence in OF_ANYTHING)
    assert not any(sentence in ended.out for sentence in OF_DOCUMENTATION)


def test_of_several_shipped_models_the_last_by_name_is_taken(shipped: Path, in_folder: Path) -> None:
    for name in ("b", "c", "a"):
        ship(shipped, in_folder, name)
    (in_folder / "data" / "models" / "z").mkdir()
    assert "model: data/models/c, " in call(demo.main).err


def test_with_a_run_the_shipped_model_is_not_taken(finished: Finished, shipped: Path, in_folder: Path) -> None:
    broken = ship(shipped, in_folder)
    (broken / "generator" / "model.safetensors").write_bytes(b"broken")
    copy_as_learned(finished.folder, in_folder / "runs" / "mine")
    ended = call(demo.main)
    assert ended.code == 0, ended.err
    assert TOLD not in ended.err
    assert all(sentence in ended.out for sentence in OF_DOCUMENTATION)


def test_without_either_the_demo_says_how_to_make_a_run(in_folder: Path) -> None:
    (in_folder / "data" / "models" / "empty").mkdir(parents=True)
    assert_refused(call(demo.main), 2, "holds no finished run; train one first")


def test_it_is_looked_for_in_the_checkout_that_the_code_lies_in() -> None:
    assert default_model.SHIPPED == COMMITTED


def test_it_is_found_from_any_working_folder(shipped: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed = ship(shipped, in_folder)
    (in_folder / "elsewhere").mkdir()
    monkeypatch.chdir(in_folder / "elsewhere")
    ended = call(demo.main)
    assert (ended.code, ended.err) == (0, f"model: {placed}, {TOLD}\n")


def test_a_pair_that_was_copied_to_the_runs_is_none_of_them(finished: Finished, shipped: Path, in_folder: Path) -> None:
    run = shutil.copytree(finished.folder, in_folder / "runs" / "mine")
    shutil.copytree(shipped, in_folder / "runs" / "pair", copy_function=shutil.copy)  # written later
    assert default_model.newest_run(in_folder / "runs") == run


@pytest.mark.parametrize("place", ["unfinished", "deeper/mine"])
def test_a_run_that_is_not_finished_or_lies_deeper_is_not_taken(
    finished: Finished, shipped: Path, in_folder: Path, place: str
) -> None:
    ship(shipped, in_folder)
    run = in_folder / "runs" / place
    shutil.copytree(finished.folder, run)
    if place == "unfinished":
        shutil.rmtree(run / "generator")
    assert call(demo.main).err == f"model: data/models/little, {TOLD}\n"


def spoil(run: Path, flaw: str) -> None:
    """Make of a run that learned one that did not, or of which that is not known."""
    if flaw == "stopped at step 20 of 40":
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("max_steps: 20", "max_steps: 40"))
    elif flaw == "not clear of the baselines after 20 steps":
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    else:
        (run / "metrics.jsonl").write_text("[]\n")


@pytest.mark.parametrize(
    "flaw",
    [
        "stopped at step 20 of 40",
        "not clear of the baselines after 20 steps",
        "its files do not say what it learned",
    ],
)
def test_a_run_that_did_not_finish_or_learn_is_passed_over_and_named(
    finished: Finished, shipped: Path, in_folder: Path, flaw: str
) -> None:
    ship(shipped, in_folder)
    learned = copy_as_learned(finished.folder, in_folder / "runs" / "learned")
    spoil(copy_as_learned(finished.folder, in_folder / "runs" / "newer"), flaw)
    found = default_model.default_model("--gen")
    notice = f"not taken by default: runs/newer ({flaw}); to take it: --gen runs/newer"
    assert (found.path, found.passed_over) == (Path("runs/learned"), notice)
    shutil.rmtree(learned)
    err = call(demo.main).err
    told = "which comes with the checkout (runs/ holds no other finished run)"
    assert err == f"notice: {notice}\nmodel: data/models/little, {told}\n"


def test_models_that_come_with_the_checkout_are_small_whole_and_fill_masks() -> None:
    models = [file.parents[1] for file in sorted(COMMITTED.glob("*/generator/config.json"))]
    assert models
    for folder in models:
        assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < LARGEST_BYTES
        model = load_model(folder, "cpu")
        assert model.discriminator is not None
        guesses = model.fill_mask("The book was written in the nineteenth [MASK].")
        assert (guesses[0]["token_str"], len(guesses)) == ("century", 5)
        assert guesses[0]["score"] > 0.5


@pytest.mark.slow
def test_what_comes_with_the_checkout_is_fine_tuned_by_the_bare_command_to_more_than_random_weights_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = call(finetune.main)
    assert ended.code == 0, ended.err
    assert TOLD in ended.err
    (folder,) = (tmp_path / "runs").glob("docs-*")
    (accuracy,) = results(folder)["metrics"]["accuracy"]["values"]
    labels = len((folder / "confusion.tsv").read_text(encoding="utf-8").splitlines()[0].split("\t")) - 1
    assert accuracy > 1.8 / labels  # random weights have reached 1.65 / labels, and the model 2.0 and more


def without_model(tiny: Tiny) -> list[str]:
    argv = tiny.options(Path("x"), None, *QUICK)
    place = argv.index("--model")
    return [*argv[:place], *argv[place + 2 :]]


def test_without_a_run_fine_tuning_takes_the_shipped_model_and_says_so(
    shipped: Path, tiny: Tiny, in_folder: Path
) -> None:
    ship(shipped, in_folder)
    ended = call(finetune.main, *without_model(tiny))
    assert ended.code == 0, ended.err
    assert f"model: data/models/little, {TOLD}" in ended.err
    assert (in_folder / "runs" / "cola-little" / "results.json").is_file()


def test_with_a_run_fine_tuning_does_not_take_the_shipped_model(
    finished: Finished, shipped: Path, tiny: Tiny, in_folder: Path
) -> None:
    ship(shipped, in_folder)
    copy_as_learned(finished.folder, in_folder / "runs" / "mine")
    ended = call(finetune.main, *without_model(tiny))
    assert ended.code == 0, ended.err
    assert "model: runs/mine, the newest run" in ended.err
    assert TOLD not in ended.err


def test_built_in_sentences_for_any_text_have_no_one_and_two_masks() -> None:
    assert {sentence.count(demo.MASK) for sentence in OF_ANYTHING} == {0, 1, 2}
