"""--dry_run: FLOPs as PyTorch counts them, memory, and time of the remaining steps."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain import trial
from electra_albert.apps.pretrain.trial import flops_per_step
from electra_albert.config.objectives import RtdConfig
from electra_albert.config.pretraining import CorpusConfig, PretrainConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.files import write_json
from electra_albert.hub.formats import stock_config
from electra_albert.objectives.masking import max_targets
from electra_albert.training.optimizer import build_optimizer
from tests.apps.conftest import Finished
from tests.apps.tiny_run import STEPS, succeed
from tests.objectives import toy
from tests.training.recorder import ReplayingRecorder

LENGTH, BATCH_SIZE, MASK_RATE = 23, 5, 0.3
DATA: Any = {
    "corpus": CorpusConfig(max_seq_length=LENGTH),
    "training": TrainingConfig(9, BATCH_SIZE),
}
MODELS = {
    "one group": toy.MODEL,
    "inner groups": replace(toy.MODEL, num_hidden_layers=6, num_hidden_groups=2, inner_group_num=3),
    "modern": replace(toy.MODEL, block="modern", initialization="local", num_attention_heads=2),
}


def measured_flops(objective: Any) -> int:
    """FLOPs of one training step by PyTorch's counter."""
    batch = toy.ordered(toy.make_batch(length=LENGTH))
    assert batch.input_ids.shape == (BATCH_SIZE, LENGTH)
    with FlopCounterMode(display=False) as counter:
        # On the CPU, attention in bfloat16 runs as plain matrix products; the counter does not know
        # the fused kernel.
        with torch.autocast("cpu", torch.bfloat16):
            terms = objective(batch)
        torch.stack([terms[name].sum for name in objective.weights]).sum().backward()
    return counter.get_total_flops()


def test_flops_follow_from_the_shapes_of_the_matrices() -> None:
    """Two for each multiply-add of the forward pass, three times that with the backward pass."""
    config = replace(toy.config_of("rtd", toy.MODEL, MASK_RATE), **DATA)
    model = config.model
    generator = config.rtd.generator_config(model)
    targets, pass_ = max_targets(LENGTH, MASK_RATE), 0
    for one in (generator, model):
        block = LENGTH * one.hidden_size * (4 * one.hidden_size + 2 * one.intermediate_size)
        block += 2 * LENGTH**2 * one.hidden_size
        pass_ += LENGTH * one.embedding_size * one.hidden_size + one.num_hidden_layers * block
    pass_ += targets * one.embedding_size * (generator.hidden_size + one.vocab_size)
    pass_ += LENGTH * one.hidden_size * (one.hidden_size + 1)
    assert flops_per_step(config) == BATCH_SIZE * 3 * 2 * pass_


@pytest.mark.parametrize(
    ("name", "model"),
    [*((name, "one group") for name in toy.OBJECTIVES), ("rtd", "inner groups"), ("mlm", "modern")],
)
def test_flops_from_the_settings_equal_measured_flops(
    name: str, model: str, tmp_path: Path
) -> None:
    config = replace(toy.config_of(name, MODELS[model], MASK_RATE), **DATA)
    objective = toy.build(name, MODELS[model], mask_rate=MASK_RATE)
    for fixed in [objective._fixed[0]] if name.endswith("fixed") else []:
        config = replace(config, rtd=replace(config.rtd, generator=str(tmp_path)))
        shape = replace(fixed.config, vocab_size=99)  # more than the tokenizer has
        write_json(tmp_path / "config.json", stock_config(shape, "AlbertForMaskedLM", {}))
        (tmp_path / "model.safetensors").touch()
    assert flops_per_step(config) == measured_flops(objective)


@pytest.mark.parametrize(
    ("name", "model"),
    [("rtd", "inner groups"), ("mlm", "one group"), ("rtd with shared", "one group")],
)
def test_flops_of_muon_equal_measured_flops(name: str, model: str) -> None:
    objective, config = toy.build(name, MODELS[model]), toy.config_of(name, MODELS[model])
    config = replace(config, training=TrainingConfig(optimizer="muon"))
    if objective.discriminator is None:  # idle options
        config = replace(config, rtd=RtdConfig(generator="shared", generator_size=1))
    optimizer = build_optimizer(objective, config.training)
    for parameter in objective.parameters():
        parameter.grad = torch.ones_like(parameter)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    without = flops_per_step(replace(config, training=TrainingConfig()))
    assert counter.get_total_flops() == flops_per_step(config) - without


def test_the_disk_must_hold_milestones_too(tmp_path: Path) -> None:
    training = TrainingConfig(max_steps=16_000, save_steps=1000, save_milestones=1000)
    model: Any = nn.Linear(10**5, 10**4, bias=False, device="meta")  # 12 GB
    job: Any = SimpleNamespace(config=PretrainConfig(training=training), objective=model)
    # Of 1, 2, 4, 8, 14, 15, 16.
    assert trial.disk_space(job, tmp_path)[0].startswith("checkpoints need 84.00 GB")
    assert trial.disk_space(job, tmp_path, 9000)[0].startswith("checkpoints need 36.00 GB")


def test_a_model_above_memory_is_not_timed(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "memory_of", lambda device: 1000)
    ended = succeed(pretrain.main, *finished.options(tmp_path / "run", "--dry_run"))
    assert "not timed" in ended.err
    assert "choose a smaller model" in ended.err
    assert "per step: " not in ended.err


def test_a_dry_run_reports_flops_memory_and_time(finished: Finished, tmp_path: Path) -> None:
    argv = finished.options(tmp_path / "run", "--dry_run")
    ended = succeed(pretrain.main, *argv, "--gradient_accumulation_steps", 2)
    assert re.search(r"FLOPs: [\d.e+]+ per token, [\d.e+]+ per step", ended.err)
    assert re.search(
        r"peak memory measured: [1-9\d.]+ GB|peak memory measured: 0\.\d*[1-9]\d* GB", ended.err
    )
    assert f": {STEPS} steps in " in ended.err
    assert ", 2 evaluations in " in ended.err
    at = argv.index("--max_steps")
    argv[at : at + 2] = ["--budget", "20s"]
    ended = succeed(pretrain.main, *argv, "--eval_steps", 10**6)
    assert ", 9 evaluations in " in ended.err  # the first one before the training
    assert not (tmp_path / "run").exists()


def test_a_dry_run_has_the_runs_precision(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: micro-batches of a run in bf16 were timed in fp32.
    measured, accumulate = [], trial.TrainingStep.accumulate

    def record(self: Any, *arguments: Any) -> Any:
        measured.append(self.run.arithmetic)
        return accumulate(self, *arguments)

    monkeypatch.setattr(trial.TrainingStep, "accumulate", record)
    argv = finished.options(tmp_path / "run", "--dry_run", "--precision", "bf16")
    succeed(pretrain.main, *argv)
    assert {*measured} == {"bf16"}


def test_a_dry_run_times_recorded_steps_if_the_run_records_them(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = ReplayingRecorder()  # on a CPU, as the recorder of CUDA graphs on a GPU
    monkeypatch.setattr("electra_albert.apps.execution.choose_recording", lambda *_: True)
    monkeypatch.setattr(trial, "CudaRecorder", lambda device: recorder)
    succeed(pretrain.main, *finished.options(tmp_path / "run", "--dry_run"))
    assert len(recorder.replays) == 2
    assert min(recorder.replays) > 0  # what is timed


def test_a_dry_run_of_a_finished_run_has_no_steps_left(finished: Finished) -> None:
    before = sorted(path.name for path in finished.folder.iterdir())
    ended = succeed(pretrain.main, *finished.options(finished.folder, "--dry_run"))
    assert ": 0 steps in " in ended.err
    assert sorted(path.name for path in finished.folder.iterdir()) == before
