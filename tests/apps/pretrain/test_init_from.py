"""--init_from with a run of ours: its weights, shape and tokenizer, a new corpus and a new
schedule.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_albert.apps import export, show_batch
from electra_albert.apps.pretrain import init_from
from electra_albert.apps.pretrain import main as pretrain
from tests.apps import tiny_run
from tests.apps.conftest import Finished
from tests.apps.tiny_run import (
    STEPS,
    Ended,
    assert_refused,
    call,
    english,
    finish,
    rows,
    start,
    succeed,
    untimed_rows,
)

_SIZES = tiny_run.TRAINING | {
    "max_steps": 12,
    "warmup_steps": 3,
    "logging_steps": 4,
    "eval_steps": 6,
    "save_steps": 6,
}


def options(finished: Finished, folder: Path, *more: object) -> list[str]:
    """Options with another corpus and --init_from, without the model's shape."""
    corpus = folder / "other.txt"
    if not corpus.exists():
        corpus.write_text(english(130, seed=9).replace("the", "some"), encoding="utf-8")
    argv = ["--corpus", corpus, "--init_from", finished.folder, "--prepared_dir", finished.prepared]
    return [
        str(word)
        for word in (*argv, *tiny_run.as_argv(_SIZES), "--output_dir", folder / "run", *more)
    ]


@pytest.fixture(scope="module")
def continued(
    finished: Finished, make_once: Callable[[str, Callable[[], Ended]], Ended]
) -> tuple[Path, Ended]:
    folder = finished.folder.parent / "continued"
    folder.mkdir(exist_ok=True)
    ended = make_once(
        "continued", lambda: finish(start(["Pretraining.py", *options(finished, folder)], folder))
    )
    assert ended.code == 0, ended.err
    return folder / "run", ended


def evaluations(run: Path) -> list[dict[str, float]]:
    return [row for row in rows(run) if "eval_generator_loss" in row]


def test_shape_objective_and_tokenizer_are_inherited(
    finished: Finished, continued: tuple[Path, Ended]
) -> None:
    then, now = (
        yaml.safe_load((run / "config.yaml").read_text()) for run in (finished.folder, continued[0])
    )
    assert (now["model"], now["rtd"], now["objective"]) == (
        then["model"],
        then["rtd"],
        then["objective"],
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (continued[0] / "tokenizer" / name).read_bytes() == (
            finished.folder / "tokenizer" / name
        ).read_bytes()


def test_first_losses_on_the_old_text_are_the_old_runs_last(
    finished: Finished, continued: tuple[Path, Ended]
) -> None:
    first, last = evaluations(continued[0])[0], evaluations(finished.folder)[-1]
    assert first["step"] == 0
    # In float32, with equal examples, masks and samples; only the split into batches may differ.
    assert first["eval_old_text_generator_loss"] == pytest.approx(
        last["eval_generator_loss"], rel=1e-5
    )
    assert first["eval_old_text_discriminator_loss"] == pytest.approx(
        last["eval_discriminator_loss"], rel=1e-5
    )


def test_loss_on_the_new_text_decreases_and_both_texts_are_reported(
    continued: tuple[Path, Ended],
) -> None:
    run, ended = continued
    first, last = evaluations(run)[0], evaluations(run)[-1]
    assert last["eval_generator_loss"] < first["eval_generator_loss"]
    for word in (
        "new text",
        "old text",
        "at step 0",
        "at step 12",
        f"after step {STEPS}",
        "start at step 1",
    ):
        assert word in ended.out + ended.err, word
    one = next(row for row in rows(run) if row["step"] == 1)
    assert one["learning_rate"] == pytest.approx(0.002 / 3)  # of the new schedule


def test_a_stopped_run_resumes_with_the_same_command(finished: Finished, tmp_path: Path) -> None:
    succeed(pretrain.main, *options(finished, tmp_path))
    expected = untimed_rows(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000012")
    assert "after step 6" in succeed(pretrain.main, *options(finished, tmp_path)).err
    assert untimed_rows(tmp_path / "run") == expected


def start_and_stop(finished: Finished, folder: Path) -> Path:
    """A copy of the finished run, and a run initialized from it without its last checkpoint."""
    origin = folder / "origin"
    shutil.copytree(finished.folder, origin)
    succeed(pretrain.main, *options(finished, folder, "--init_from", origin))
    shutil.rmtree(folder / "run" / "checkpoints" / "step-0000012")
    return origin


def test_an_option_of_an_earlier_run_without_checkpoint_is_not_kept(
    finished: Finished, tmp_path: Path
) -> None:
    succeed(pretrain.main, *options(finished, tmp_path, "--rtd.temperature", 5))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    succeed(pretrain.main, *options(finished, tmp_path))
    assert (
        yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["rtd"]["temperature"] == 1.0
    )


@pytest.mark.parametrize("change", ["deleted", "another checkpoint"])
def test_a_run_resumes_after_changes_to_its_source_run(
    finished: Finished, tmp_path: Path, change: str
) -> None:
    origin = start_and_stop(finished, tmp_path)
    if change == "deleted":
        shutil.rmtree(origin)
    else:
        shutil.rmtree(origin / "checkpoints" / f"step-{STEPS:07d}")  # another one is now the newest
    again = succeed(
        pretrain.main,
        *options(finished, tmp_path, "--init_from", f"{origin.parent}/./{origin.name}/"),
    )
    assert "after step 6" in again.err
    succeed(pretrain.main, "--config", tmp_path / "run" / "config.yaml")
    succeed(show_batch.main, "--run", tmp_path / "run", "--step", 8)


def test_options_are_taken_only_from_whole_checkpoints(finished: Finished, tmp_path: Path) -> None:
    """Of a checkpoint with another digit the one before is used; config.yaml is for people."""
    run = shutil.copytree(finished.folder, tmp_path / "old")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("intermediate_size: 64", "intermediate_size: 65"))
    argv = options(finished, tmp_path, "--init_from", run)
    succeed(pretrain.main, *argv)
    newest = tmp_path / "run" / "checkpoints" / "step-0000012"
    state = newest / "state.json"
    state.write_text(state.read_text().replace('size": 64', 'size": 65'))
    refused = call(export.main, "--model", newest, "--output_dir", tmp_path / "model")
    assert_refused(refused, 4, "state.json has changed since it was written")
    assert "after step 6" in succeed(pretrain.main, *argv).err


def test_options_removed_since_then_are_not_inherited(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = init_from.read_state

    def older(checkpoint: Path) -> dict[str, Any]:
        state = read(checkpoint)
        settings = state["settings"]
        rtd = settings["rtd"] | {"z_loss": 0.0, "temperature_decay": 0.1}
        return state | {"settings": settings | {"short_seq_steps": 0, "rtd": rtd}}

    inherited = init_from.inherited_options(finished.folder, tmp_path)
    monkeypatch.setattr(init_from, "read_state", older)
    assert init_from.inherited_options(finished.folder, tmp_path) == inherited
    succeed(pretrain.main, *options(finished, tmp_path, "--dry_run"))


def test_another_init_from_is_refused_on_resume(finished: Finished, tmp_path: Path) -> None:
    start_and_stop(finished, tmp_path)
    assert_refused(
        call(pretrain.main, *options(finished, tmp_path, "--init_from", finished.folder)),
        4,
        "init_from",
    )


def test_an_invalid_init_from_is_refused_in_one_line(finished: Finished, tmp_path: Path) -> None:
    settings = yaml.safe_load((finished.folder / "config.yaml").read_text())
    shutil.copytree(
        finished.folder, tmp_path / "untrained", ignore=shutil.ignore_patterns("checkpoints")
    )
    for name, changed in {
        "shape": {"model": {"hidden_size": "abc"}},
        "size": {"preset": "huge"},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(settings | changed))
    for name, code, words in (
        ("shape", 4, ("--init_from",)),
        ("size", 2, ("preset",)),
        ("missing", 2, (f"--init_from {tmp_path}/missing does not exist",)),
        ("untrained", 2, ("--init_from", f"{tmp_path}/untrained")),
    ):
        assert_refused(
            call(pretrain.main, *options(finished, tmp_path, "--init_from", tmp_path / name)),
            code,
            *words,
        )
    ended = call(pretrain.main, *options(finished, tmp_path, "--model.intermediate_size", 96))
    assert_refused(ended, 4, "intermediate_size=96 is not a multiple of 64", str(finished.folder))
