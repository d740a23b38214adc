"""A generator that a stock folder lacks is first trained alone, while all other weights stay
bit-identical.
"""

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.generator_warmup import warm_up
from electra_albert.apps.pretrain.job import Job
from electra_albert.apps.run_folder import WARMUP
from electra_albert.apps.settings import MAY_CHANGE, ResumePoint, check_settings, compare_settings
from electra_albert.config.objectives import RtdConfig
from electra_albert.config.pretraining import REMOVED, PretrainConfig, as_settings
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import STOPPED_BY_SIGNAL, CheckpointError
from electra_albert.objectives import masking
from electra_albert.training.monitor import Monitor
from electra_albert.training.signals import StopSignal
from electra_albert.training.step import RunSettings
from tests.apps.pretrain.test_distributed_run import max_difference, on_ranks
from tests.apps.tiny_run import assert_refused, call, interrupt, outcome, rows, succeed
from tests.apps.tiny_stock import Toy, adapt
from tests.training import toy as toys
from tests.training.recorder import ReplayingRecorder

ELECTRA = "ElectraForPreTraining"
ALONE, TOGETHER, SAVED = 24, 6, 4  # updates of the generator, of both, and between checkpoints
COMMAND = (
    f"--rtd.generator_warmup_steps {ALONE} --max_steps {TOGETHER} --save_steps {SAVED} "
    "--model.hidden_dropout_prob 0.1 --learning_rate 0.01 --save_total_limit 20"
).split()
NOTICE = "training the new generator alone"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("toy"))


def is_warmed_up(job: Job, folder: Path, record: Any = None) -> bool:
    with Monitor(folder, TOGETHER) as monitor, StopSignal() as stop:
        run = RunSettings(folder, job.config.training, toys.ALONE, monitor, stop, record=record)
        return warm_up(job, run)


@pytest.fixture(scope="module")
def whole(toy: Toy) -> Path:
    """The uninterrupted run."""
    run = toy.folder / "whole"
    adapt(toy, toy.stock(ELECTRA), run, *COMMAND)
    return run


def everything(run: Path, alone: int = ALONE) -> list[Any]:
    """Outcomes of the warm-up and of the joint run."""
    return [outcome(run / WARMUP, alone), outcome(run, TOGETHER)]


def losses(run: Path, name: str) -> list[float]:
    return [row[name] for row in rows(run) if row.get(name) is not None]


def test_only_the_generators_own_weights_change(toy: Toy, tmp_path: Path) -> None:
    job, _ = toy.job(toy.stock(ELECTRA), *COMMAND)
    before = {name: tensor.clone() for name, tensor in job.objective.state_dict().items()}
    recorder = ReplayingRecorder()  # of the joint run alone
    assert is_warmed_up(job, tmp_path, recorder)
    assert not recorder.replays
    after = job.objective.state_dict()
    own = {name for name in after if ".generator." in name and ".embeddings." not in name}
    assert own
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]) == (name not in own), name


def test_joint_training_starts_with_the_warmed_up_generator(
    toy: Toy, whole: Path, tmp_path: Path
) -> None:
    assert len(losses(whole / WARMUP, "mlm_loss")) == ALONE
    cold = tmp_path / "cold"
    adapt(toy, toy.stock(ELECTRA), cold, *COMMAND, "--rtd.generator_warmup_steps", 0)
    assert losses(whole, "eval_generator_loss")[0] < losses(cold, "eval_generator_loss")[0]
    learned = losses(whole / WARMUP, "eval_mlm_loss")[-1]
    # With equal masks, the first loss of the joint run is the last one of the warm-up.
    assert losses(whole, "eval_generator_loss")[0] == pytest.approx(learned, rel=1e-6)


def test_warmup_takes_a_tenth_of_the_run_by_default() -> None:
    for max_steps, asked, expected in ((4000, None, 400), (5, None, 1), (4000, 0, 0)):
        rtd = RtdConfig(generator_warmup_steps=asked)
        config = PretrainConfig(training=TrainingConfig(max_steps), rtd=rtd)
        assert config.generator_warmup_steps == expected


@pytest.mark.parametrize(
    ("lost", "is_warming_up"),
    [(f"{WARMUP}/checkpoints/step-00000[12]*", True), (f"checkpoints/*{TOGETHER}", False)],
    ids=["in the warm-up", "in the run"],
)
def test_a_warmup_resumes_exactly(
    toy: Toy, whole: Path, tmp_path: Path, lost: str, is_warming_up: bool
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    folders = [*run.glob(lost), *(run.glob("checkpoints") if WARMUP in lost else ())]
    assert folders
    for folder in folders:
        shutil.rmtree(folder)
    ended = adapt(toy, toy.stock(ELECTRA), run, *COMMAND)
    assert (NOTICE in ended.err) == is_warming_up
    assert "resuming from" in ended.err
    assert everything(run) == everything(whole)


def test_a_run_with_flops_resumes_from_its_warmup(toy: Toy, tmp_path: Path) -> None:
    # Regression: the length and the warm-up steps of the generator's own run were taken for those
    # of the whole.
    argv = toy.options(
        toy.stock(ELECTRA), tmp_path, "--rtd.generator_warmup_steps", ALONE, "--flops", 1e8
    )
    del argv[(at := argv.index("--max_steps")) : at + 2]
    succeed(pretrain.main, *argv)
    first, config = rows(tmp_path)[-1]["step"], (tmp_path / "config.yaml").read_text()
    shutil.rmtree(tmp_path / "checkpoints")
    assert f"resuming from {tmp_path / WARMUP}" in succeed(pretrain.main, *argv).err
    assert (first, config) == (rows(tmp_path)[-1]["step"], (tmp_path / "config.yaml").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_stopped_warmup_saves_and_a_killed_one_resumes(
    toy: Toy, tmp_path: Path, number: signal.Signals
) -> None:
    run, long = tmp_path / "run", tmp_path / "long"
    command = (*COMMAND, "--rtd.generator_warmup_steps", 400)
    script = ["Pretraining.py", *toy.options(toy.stock(ELECTRA), run, *command)]
    stopped = interrupt(script, run / WARMUP / "metrics.jsonl", 10, number)
    last = rows(run / WARMUP)[-1]["step"]
    assert last < 400
    assert not (run / "checkpoints").exists()
    assert stopped.code == (STOPPED_BY_SIGNAL if number == signal.SIGTERM else -number), stopped.err
    if number == signal.SIGTERM:
        assert (run / WARMUP / "checkpoints" / f"step-{last:07d}" / "MANIFEST.json").is_file()
    assert "resuming from" in adapt(toy, toy.stock(ELECTRA), run, *command).err
    adapt(toy, toy.stock(ELECTRA), long, *command)
    assert everything(run, 400) == everything(long, 400)


@pytest.mark.slow
def test_two_ranks_have_the_numbers_of_one(toy: Toy, tmp_path: Path) -> None:
    # Muon, the preset's optimizer, enlarges the last bits, most in bfloat16.
    more = "--optimizer adamw --model.hidden_dropout_prob 0 --extend_vocab_to 250"
    fixed = (*COMMAND, *more.split(), "--old_corpus", toy.old_text)
    origin, half = toy.stock(ELECTRA), ("--per_device_train_batch_size", 4)
    adapt(toy, origin, tmp_path / "one", *fixed)
    ended = on_ranks(toy.options(origin, tmp_path / "two", *fixed, *half), tmp_path)
    assert ended.code == 0, ended.err
    together = ("generator_loss", "discriminator_loss", "eval_loss", "eval_old_text_loss")
    for part, names in ((Path(WARMUP), ("mlm_loss", "eval_mlm_loss")), (Path(), together)):
        one, two = rows(tmp_path / "one" / part), rows(tmp_path / "two" / part)
        assert max_difference(one, two, names=names) < 1e-5  # float32 sums in another order


def test_a_warmup_with_different_settings_is_refused(toy: Toy, whole: Path, tmp_path: Path) -> None:
    # Regression: another objective started in the same folder; a shorter run used a half-trained
    # generator.
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / WARMUP / "checkpoints" / f"step-{ALONE:07d}")
    for options, words in (
        ((*COMMAND[2:], "--objective", "mlm"), "objective: rtd before, mlm now"),
        ((*COMMAND, "--max_steps", 5), f"max_steps: {TOGETHER} before, 5 now"),
    ):
        ended = call(pretrain.main, *toy.options(toy.stock(ELECTRA), run, *options))
        assert_refused(ended, 4, words)


def test_a_warmup_alone_is_refused_with_resume_never_before_the_text_is_prepared(
    toy: Toy, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole / WARMUP, run / WARMUP)
    argv = toy.options(toy.stock(ELECTRA), run, *COMMAND, "--resume", "never")
    argv += ["--prepared_dir", str(tmp_path / "prepared")]
    assert_refused(call(pretrain.main, *argv), 2, "--resume never")
    assert not (tmp_path / "prepared").exists()


def test_an_old_text_cannot_be_added_to_a_run_that_has_begun(toy: Toy, whole: Path) -> None:
    again = toy.options(toy.stock(ELECTRA), whole, *COMMAND, "--old_corpus", toy.old_text)
    assert_refused(call(pretrain.main, *again), 4, "old_corpus: None before")


NOW = as_settings(PretrainConfig()) | {"store": "one"}
# As recorded by an older version, which had no attention options.
OLDER = {name: value for name, value in NOW["model"].items() if not name.startswith("attention")}
BEFORE = {**NOW, "model": OLDER}
SMOOTHED = {"rtd": {**NOW["rtd"], "label_smoothing": 0.1}}


def test_settings_are_compared_by_name_and_a_missing_option_has_its_default() -> None:
    unused = {name: removed.unused for name, removed in REMOVED.items()}
    for before, now in (
        (BEFORE, NOW),
        ({**BEFORE, **unused}, NOW),
        ({**BEFORE, "log_gradient_norms": True}, NOW),  # changed no weight
        (BEFORE, {**NOW, "is_recorded": False}),
    ):
        assert compare_settings(before, now, Path("run")) == []
    other = {"model": {**NOW["model"], "attention": "window"}}
    for then, changes, words in (
        ({}, other, "model.attention: softmax before, window now"),
        ({}, {"store": "other", "encoding": "cp1252"}, "(encoding: utf-8 before, cp1252 now)"),
        ({}, {"store": "other"}, "contents of sample"),
        (SMOOTHED, {}, "rtd.label_smoothing 0.1, which is gone"),
        ({"short_seq_steps": 9}, {}, "short_seq_steps 9, which is gone"),
    ):
        with pytest.raises(CheckpointError, match=re.escape(words)):
            compare_settings({**BEFORE, **then}, NOW | changes, Path("run"))
    recorded = {"step": 1, "settings": {**BEFORE, "batch_ramp_steps": 4}}
    # Also before the corpus is read.
    with pytest.raises(CheckpointError, match="batch_ramp_steps 4, which is gone"):
        check_settings(ResumePoint(Path("run"), recorded, MAY_CHANGE), "tiny", PretrainConfig(), 1)


def test_the_warmup_masks_as_the_joint_run(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = "--rtd.mask_unit word --rtd.mask_rate 0.4 --rtd.mask_token_share 0.6"
    job, _ = toy.job(toy.stock(ELECTRA), *COMMAND, *shares.split())
    original, is_equal = masking.mask, set[bool]()

    def compared(batch: Any, size: int, options: Any, *rest: Any) -> Any:
        joint = original(batch, size, job.config.rtd, *rest)
        masked = original(batch, size, options, *rest)
        is_equal.add(torch.equal(masked[0], joint[0]))
        return masked

    monkeypatch.setattr(masking, "mask", compared)
    assert is_warmed_up(job, tmp_path)
    assert is_equal == {True}
