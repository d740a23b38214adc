"""--init_from with a run of ours: its weights, shape and tokenizer, a new corpus and a new
schedule.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_albert.apps import export, show_batch
from electra_albert.apps.pretrain import init_from
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.hub import find
from tests.apps.conftest import Finished, Once
from tests.apps.tiny_run import (
    STEPS,
    Ended,
    assert_refused,
    call,
    english,
    rows,
    succeed,
    untimed_rows,
)

SIZES = (
    "--max_steps 12 --warmup_steps 3 --logging_steps 4 --eval_steps 6 --save_steps 6 "
    "--learning_rate 0.002 --per_device_train_batch_size 8 --per_device_eval_batch_size 8 "
    "--gradient_accumulation_steps 1 --eval_examples 16 --precision fp32 --device cpu "
    "--preprocessing_num_workers 1"
)
LAST = "step-0000012"


def options(finished: Finished, folder: Path, more: str = "") -> list[str]:
    """Options with another corpus and --init_from, without the model's shape."""
    corpus = finished.folder.parent / "other.txt"
    if not corpus.exists():
        corpus.write_text(english(130, seed=9).replace("the", "some"), encoding="utf-8")
    files = f"--corpus {corpus} --init_from {finished.folder} --prepared_dir {finished.prepared}"
    return f"{files} {SIZES} --output_dir {folder}/run {more}".split()


@pytest.fixture(scope="module")
def continued(finished: Finished, make_once: Once) -> tuple[Path, Ended]:
    folder = finished.folder.parent / "continued"
    ended = make_once("continued", lambda: call(pretrain.main, *options(finished, folder)))
    assert ended.code == 0, ended.err
    return folder / "run", ended


@pytest.fixture
def stopped(continued: tuple[Path, Ended], tmp_path: Path) -> Path:
    """A copy of the run without its last checkpoint."""
    return shutil.copytree(continued[0], tmp_path / "run", ignore=shutil.ignore_patterns(LAST))


def evaluations(run: Path) -> list[dict[str, float]]:
    return [row for row in rows(run) if "eval_generator_loss" in row]


def test_shape_objective_and_tokenizer_are_inherited(
    finished: Finished, continued: tuple[Path, Ended]
) -> None:
    then, now = (
        yaml.safe_load((run / "config.yaml").read_text()) for run in (finished.folder, continued[0])
    )
    for name in ("model", "rtd", "objective"):
        assert now[name] == then[name]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        file = f"tokenizer/{name}"
        assert (continued[0] / file).read_bytes() == (finished.folder / file).read_bytes()


def test_first_losses_on_the_old_text_are_the_old_runs_last(
    finished: Finished, continued: tuple[Path, Ended]
) -> None:
    first, last = evaluations(continued[0])[0], evaluations(finished.folder)[-1]
    assert first["step"] == 0
    # In float32, with equal examples, masks and samples; only the split into batches may differ.
    for name in ("generator_loss", "discriminator_loss"):
        assert first[f"eval_old_text_{name}"] == pytest.approx(last[f"eval_{name}"], rel=1e-5)


def test_loss_on_the_new_text_decreases_and_both_texts_are_reported(
    continued: tuple[Path, Ended],
) -> None:
    run, ended = continued
    first, last = evaluations(run)[0], evaluations(run)[-1]
    assert last["eval_generator_loss"] < first["eval_generator_loss"]
    for word in ("new text", "old text", "at step 0", "at step 12", f"after step {STEPS}"):
        assert word in ended.out + ended.err, word
    one = next(row for row in rows(run) if row["step"] == 1)
    assert one["learning_rate"] == pytest.approx(0.002 / 3)  # of the new schedule


def test_a_stopped_run_resumes_with_the_same_command(
    finished: Finished, continued: tuple[Path, Ended], stopped: Path, tmp_path: Path
) -> None:
    assert "after step 6" in succeed(pretrain.main, *options(finished, tmp_path)).err
    assert untimed_rows(stopped) == untimed_rows(continued[0])


def test_an_option_of_an_earlier_run_without_checkpoint_is_not_kept(
    finished: Finished, stopped: Path, tmp_path: Path
) -> None:
    config = stopped / "config.yaml"
    text = config.read_text()
    assert "temperature: 1.0" in text
    config.write_text(text.replace("temperature: 1.0", "temperature: 5.0"))
    shutil.rmtree(stopped / "checkpoints")
    succeed(pretrain.main, *options(finished, tmp_path, "--max_steps 1"))
    assert yaml.safe_load(config.read_text())["rtd"]["temperature"] == 1.0


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_run_resumes_after_changes_to_its_source_run(
    finished: Finished, tmp_path: Path, is_deleted: bool
) -> None:
    origin = shutil.copytree(finished.folder, tmp_path / "origin")
    succeed(pretrain.main, *options(finished, tmp_path, f"--init_from {origin}"))
    shutil.rmtree(tmp_path / "run" / "checkpoints" / LAST)
    # Without its newest checkpoint another one is the newest.
    shutil.rmtree(origin if is_deleted else origin / "checkpoints" / f"step-{STEPS:07d}")
    again = options(finished, tmp_path, f"--init_from {tmp_path}/./origin/")
    assert "after step 6" in succeed(pretrain.main, *again).err
    succeed(pretrain.main, "--config", tmp_path / "run" / "config.yaml")
    succeed(show_batch.main, "--run", tmp_path / "run", "--step", 8)


def test_another_seed_on_the_same_text_is_warned_of(finished: Finished, tmp_path: Path) -> None:
    """Regression: the text that it holds out was training text of the initial weights."""
    for seed, count in ((7, 1), (42, 0)):
        more = f"--corpus {finished.corpus} --seed {seed} --dry_run"
        ended = succeed(pretrain.main, *options(finished, tmp_path, more))
        assert ended.err.count("was partly training text of the initial weights") == count


def test_options_are_taken_only_from_whole_checkpoints(finished: Finished, tmp_path: Path) -> None:
    """Of a checkpoint with another digit the one before is used; config.yaml is for people."""
    run = shutil.copytree(finished.folder, tmp_path / "old")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("intermediate_size: 64", "intermediate_size: 65"))
    argv = options(finished, tmp_path, f"--init_from {run}")
    succeed(pretrain.main, *argv)
    newest = tmp_path / "run" / "checkpoints" / LAST
    state = newest / "state.json"
    state.write_text(state.read_text().replace('size": 64', 'size": 65'))
    refused = call(export.main, "--model", newest, "--output_dir", tmp_path / "model")
    assert_refused(refused, 4, "state.json has changed since it was written")
    assert "after step 6" in succeed(pretrain.main, *argv).err


def test_options_removed_since_then_are_not_inherited(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(read: Callable[[Path], Any], path: Path) -> dict[str, Any]:
        state = read(path)
        settings = state["settings"]
        rtd = settings["rtd"] | {"z_loss": 0.0, "temperature_decay": 0.1}
        return state | {"settings": settings | {"short_seq_steps": 0, "rtd": rtd}}

    inherited = init_from.inherited_options(finished.folder, tmp_path)
    monkeypatch.setattr(init_from, "read_state", partial(older, init_from.read_state))
    monkeypatch.setattr(find, "_read_state", partial(older, find._read_state))
    files = find.locate(finished.folder / "checkpoints" / f"step-{STEPS:07d}", "generator")
    assert find.read_contents(files)["hidden_size"] == 16
    assert init_from.inherited_options(finished.folder, tmp_path) == inherited
    succeed(pretrain.main, *options(finished, tmp_path, "--dry_run"))


def test_another_init_from_is_refused_on_resume(
    finished: Finished, stopped: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(finished.folder, tmp_path / "other")
    argv = options(finished, tmp_path, f"--init_from {other}")
    assert_refused(call(pretrain.main, *argv), 4, "init_from")


def test_an_invalid_init_from_is_refused_in_one_line(finished: Finished, tmp_path: Path) -> None:
    settings = yaml.safe_load((finished.folder / "config.yaml").read_text())
    shutil.copytree(
        finished.folder, tmp_path / "untrained", ignore=shutil.ignore_patterns("checkpoints")
    )
    for name, changed in (
        ("shape", {"model": {"hidden_size": "abc"}}),
        ("size", {"preset": "huge"}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(settings | changed))
    for name, code, word in (
        ("shape", 4, "--init_from"),
        ("size", 2, "preset"),
        ("missing", 2, f"--init_from {tmp_path}/missing does not exist"),
        ("untrained", 2, f"--init_from {tmp_path}/untrained"),
    ):
        argv = options(finished, tmp_path, f"--init_from {tmp_path}/{name}")
        assert_refused(call(pretrain.main, *argv), code, word)
    ended = call(pretrain.main, *options(finished, tmp_path, "--model.intermediate_size 96"))
    assert_refused(ended, 4, "intermediate_size=96 is not a multiple of 64", str(finished.folder))
