"""A generator that a stock folder does not bring is trained alone first; all else stays bit for bit until then."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.generator_warmup import FOLDER, warm_up
from electra_albert.config import PretrainConfig, RtdConfig, TrainingConfig
from electra_albert.training.distributed import World
from electra_albert.training.guards import StopSignal
from electra_albert.training.monitor import Monitor
from electra_albert.training.settings import RunSettings
from tests.apps.pretrain.test_distributed_run import furthest, on_two_ranks
from tests.apps.tiny_run import assert_refused, call, outcome, rows
from tests.apps.tiny_stock import Desk, adapt, load_stock

ELECTRA = "ElectraForPreTraining"
ALONE, TOGETHER, SAVED = 24, 6, 4  # updates of the generator, of both, and between checkpoints
SHARED = "generator.embeddings."
Command = tuple[object, ...]
COMMAND: Command = (
    *("--rtd.generator_warmup_steps", ALONE, "--max_steps", TOGETHER, "--save_steps", SAVED),
    *("--model.hidden_dropout_prob", 0.1, "--learning_rate", 0.01, "--save_total_limit", 20),
)
NOTICE = "training the new generator alone"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module")
def whole(desk: Desk) -> Path:
    """The run that nothing interrupts."""
    run = desk.folder / "whole"
    adapt(desk, desk.stock(ELECTRA), run, *COMMAND)
    return run


def everything(run: Path) -> list[Any]:
    """What two runs must share to be the same one, the warm-up's part and the joint one."""
    return [outcome(run / FOLDER, ALONE), outcome(run, TOGETHER)]


def losses(run: Path, name: str) -> list[float]:
    return [row[name] for row in rows(run) if row.get(name) is not None]


@pytest.fixture
def warmed(desk: Desk, tmp_path: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """A job whose generator was trained alone, and the weights it began with."""
    job, _ = desk.job(desk.stock(ELECTRA), *COMMAND)
    before = {name: tensor.clone() for name, tensor in job.objective.state_dict().items()}
    world = World(0, 1, 0, torch.device("cpu"))
    with Monitor(tmp_path, TOGETHER) as monitor, StopSignal() as stop:
        assert warm_up(job, RunSettings(tmp_path, job.config.training, world, monitor, stop))
    return job, before


def test_only_the_generators_own_weights_change(warmed: tuple[Any, dict[str, torch.Tensor]]) -> None:
    job, before = warmed
    after = job.objective.state_dict()
    own = {name for name in after if ".generator." in name and ".embeddings." not in name}
    assert own
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]) == (name not in own), name


def test_the_tables_of_the_folder_are_those_the_generator_learned_with(desk: Desk, whole: Path) -> None:
    stock = load_stock(desk.stock(ELECTRA), ELECTRA).state_dict()
    saved = load_file(whole / FOLDER / "checkpoints" / f"step-{ALONE:07d}" / "model.safetensors")
    for name in ("word_embeddings.weight", "position_embeddings.weight", "LayerNorm.bias"):
        assert torch.equal(saved[f"{SHARED}{name}"], stock[f"electra.embeddings.{name}"])


def test_both_learn_together_only_when_the_generator_has_learned_alone(desk: Desk, whole: Path, tmp_path: Path) -> None:
    assert len(losses(whole / FOLDER, "mlm_loss")) == ALONE
    cold = tmp_path / "cold"
    adapt(desk, desk.stock(ELECTRA), cold, *COMMAND, "--rtd.generator_warmup_steps", 0)
    assert losses(whole, "eval_generator_loss")[0] < losses(cold, "eval_generator_loss")[0]
    learned = losses(whole / FOLDER, "eval_mlm_loss")[-1]
    # Rows masked alike: what it ended alone with is what the joint run begins with.
    assert losses(whole, "eval_generator_loss")[0] == pytest.approx(learned, rel=1e-6)


@pytest.mark.parametrize(
    ("max_steps", "asked", "expected"),
    [(4000, None, 400), (5, None, 1), (4000, 0, 0)],
)
def test_it_takes_a_tenth_of_the_run_unless_told(max_steps: int, asked: int | None, expected: int) -> None:
    config = PretrainConfig(training=TrainingConfig(max_steps=max_steps), rtd=RtdConfig(generator_warmup_steps=asked))
    assert config.generator_warmup_steps == expected


# Stopped and started again.


def lose_all_behind(run: Path, step: int) -> None:
    """As if the generator's training had been killed before the checkpoint behind `step`."""
    shutil.rmtree(run / "checkpoints")
    for checkpoint in (run / FOLDER / "checkpoints").glob("step-*"):
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)


def lose_the_run(run: Path) -> None:
    """As if it had been killed when both had just begun to learn together."""
    shutil.rmtree(run / "checkpoints")


def lose_the_end(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / f"step-{TOGETHER:07d}")


@pytest.mark.parametrize(
    ("lose", "is_told"),
    [(lambda run: lose_all_behind(run, 8), True), (lose_the_run, True), (lose_the_end, False)],
    ids=["in the warm-up", "behind it", "in the run"],
)
def test_it_goes_on_where_it_was_and_ends_as_if_never_interrupted(
    desk: Desk, whole: Path, tmp_path: Path, lose: Callable[[Path], None], is_told: bool
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    lose(run)
    ended = adapt(desk, desk.stock(ELECTRA), run, *COMMAND)
    assert (NOTICE in ended.err) == is_told
    assert "going on from" in ended.err
    assert everything(run) == everything(whole)


def test_what_was_begun_by_other_settings_is_not_gone_on_with(desk: Desk, whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    lose_all_behind(run, 8)
    ended = call(pretrain.main, *desk.options(desk.stock(ELECTRA), run, *COMMAND, "--rtd.mask_rate", 0.3))
    assert_refused(ended, 4, FOLDER, "rtd.mask_rate")


def test_never_going_on_is_heeded_here_too(desk: Desk, whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    lose_the_run(run)
    ended = call(pretrain.main, *desk.options(desk.stock(ELECTRA), run, *COMMAND, "--resume", "never"))
    assert_refused(ended, 2, "--resume never", FOLDER)


def test_two_ranks_have_the_numbers_of_one(desk: Desk, tmp_path: Path) -> None:
    still = (*COMMAND, "--model.hidden_dropout_prob", 0, "--extend_vocab_to", 250, "--old_corpus", desk.old_text)
    origin, half = desk.stock(ELECTRA), ("--per_device_train_batch_size", 4)
    adapt(desk, origin, tmp_path / "one", *still)
    ended = on_two_ranks(desk.options(origin, tmp_path / "two", *still, *half), tmp_path)
    assert ended.code == 0, ended.err
    together = ("generator_loss", "discriminator_loss", "eval_loss", "eval_old_text_loss")
    for part, names in ((Path(FOLDER), ("mlm_loss", "eval_mlm_loss")), (Path(), together)):
        one, two = rows(tmp_path / "one" / part), rows(tmp_path / "two" / part)
        assert furthest(one, two, names=names) < 1e-5  # float32 sums in another order
