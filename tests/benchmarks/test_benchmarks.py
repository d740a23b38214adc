"""Benchmarks: both sides compute the same or are refused, and speedups are ratios of timings taken
in turns.
"""

import copy
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from benchmarks import data_path, fill_mask, step, timing
from benchmarks.__main__ import main
from benchmarks.config import BenchConfig, bench_job, pretraining
from benchmarks.stock import StockPair, check_same_function
from benchmarks.timing import OURS, STOCK, compare, in_turns
from benchmarks.traffic import ByteCounter
from electra_albert.apps.pretrain.job import Job
from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import RtdConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import Batch, SpecialIds, UsageError, UserError
from electra_albert.objectives.rtd import ReplacedTokenDetection
from tests.apps.tiny_run import english
from tests.training.toy import ALONE

B, L, V, SEED = 3, 23, 61, 5
# Large initial weights, so that losses are far from chance level and depend on every weight.
SPECIAL = SpecialIds(0, 1, 2, 3, 4, never_masked=(0, 1, 2, 3, 4))
SHAPE = ModelConfig(
    V, embedding_size=13, hidden_size=28, num_hidden_layers=2, initializer_range=0.2
)


@pytest.fixture
def ours() -> ReplacedTokenDetection:
    torch.manual_seed(SEED)
    return ReplacedTokenDetection(SHAPE, RtdConfig(mask_rate=0.3), SPECIAL, SEED)


@pytest.fixture
def batch() -> Batch:
    ids = torch.randint(5, V, (B, L), generator=torch.Generator().manual_seed(SEED))
    mask = torch.arange(L) < torch.tensor([[L], [17], [11]])
    return Batch(
        ids * mask,
        mask,
        ((torch.arange(L) > 7) & mask).long(),
        torch.full((B,), -100),
        torch.arange(B),
    )


SETTINGS = """{preset: tiny, max_seq_length: 32, per_device_train_batch_size: "4", precision: fp32,
vocab_size: 300, repeats: 1, examples: 16, device: cpu}"""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a tiny comparison; matrix products and batches are measured briefly, with one
    process.
    """
    monkeypatch.setattr(data_path, "_EXAMPLES_PER_TIMING", 64)
    monkeypatch.setattr(timing, "_MATRIX_SIZE", {"cpu": 64, "cuda": 1024})
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    (tmp_path / "tales.txt").write_text(english(150), encoding="utf-8")
    folders = {"corpus": str(tmp_path / "tales.txt"), "prepared_dir": str(tmp_path / "prepared")}
    return folders | yaml.safe_load(SETTINGS)


def run(part: str, given: dict[str, Any], **changes: object) -> None:
    assert main([part, *(f"--{name}={value}" for name, value in {**given, **changes}.items())]) == 0


# A changed weight changes a loss; a lost tie changes only the gradient norm.
DIFFERENCES = {
    "discriminator_predictions.dense.weight": "discriminator_loss",
    "generator.predictions.decoder.weight": "gradient norm after generator_loss",
    "discriminator.embeddings": "gradient norm after discriminator_loss",
}


def test_stock_computes_our_losses_and_gradients_or_is_refused(
    ours: ReplacedTokenDetection, batch: Batch
) -> None:
    for is_tuned, attention in ((False, "sdpa"), (True, "eager")):
        pair = StockPair(ours, is_tuned=is_tuned)
        pair.use_attention(attention)
        check_same_function(ours, pair, batch)
    assert sum(p.numel() for p in pair.parameters()) == sum(p.numel() for p in ours.parameters())
    for part, shows_in in DIFFERENCES.items():
        pair, (path, _, name) = StockPair(ours, is_tuned=False), part.rpartition(".")
        own = copy.deepcopy(getattr(pair.get_submodule(path), name))
        setattr(pair.get_submodule(path), name, own)
        if shows_in == "discriminator_loss":
            own.data[0, 0] += 0.1
        with pytest.raises(UserError, match=f"do not compute the same: {shows_in}"):
            check_same_function(ours, pair, batch)


def test_stock_trains_each_parameter_at_the_learning_rate_of_ours(
    ours: ReplacedTokenDetection,
) -> None:
    """Regression: stock's generator had a quarter of the learning rate of ours."""
    ours.rtd = replace(ours.rtd, generator_rate=4.0, discriminator_rate=0.5)
    scales = ours.lr_multipliers
    assert {*scales.values()} == {0.5, 1.0, 4.0}
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.fill_(scales[name])
    pair = StockPair(ours, is_tuned=False)
    for group in step.build_optimizer(pair, TrainingConfig(), pair.lr_multipliers).param_groups:
        assert all((parameter == group["lr_multiplier"]).all() for parameter in group["params"])


def test_speedups_are_ratios_of_timings_in_turns() -> None:
    times, order = {OURS: iter([1.0, 2.0, 4.0]), STOCK: iter([2.0, 4.0, 2.0])}, []

    def seconds_of(name: str) -> float:
        order.append(name)
        return next(times[name])

    results = compare(in_turns({name: partial(seconds_of, name) for name in times}, 3), work=8)
    assert order == [OURS, STOCK] * 3
    assert results[OURS]["rate"]["values"] == [8.0, 4.0, 2.0]
    assert results[OURS]["rate"]["median"] == 4.0
    assert results[OURS]["ratio"]["values"] == [2.0, 2.0, 0.5]
    assert results[STOCK]["ratio"]["values"] == [1.0, 1.0, 1.0]


@pytest.fixture
def job(given: dict[str, Any]) -> Job:
    config = BenchConfig(**given)
    return bench_job(config, pretraining(config), ALONE, 4, "fp32")


def test_implementations_share_no_weights_and_updates_change_all_of_them(job: Job) -> None:
    batch = job.batches.micro_batches(1)[0]
    members = step.implementations(job, ALONE, is_compiled=False)
    weights = [one.data_ptr() for member in members.values() for one in member.module.parameters()]
    assert len(set(weights)) == len(weights)
    for name, member in members.items():
        before = copy.deepcopy(dict(member.module.named_parameters()))
        for _ in range(3):  # some gradients are 0 until a matrix after them is no longer 0
            member.update(batch)
        for part, parameter in member.module.named_parameters():
            assert not torch.equal(parameter, before[part]), f"{name}: {part}"


BYTES = {  # of float32 matrices [5, 7], which have 140
    "add": (lambda x: x + x.clone(), 280 + 420),
    "an argument read twice": (lambda x: x * x, 280),
    "a broadcast argument": (lambda x: x + x[0].expand(5, 7), 280 + 28),
    "in place": (lambda x: x.add_(1), 280),
    "product": (lambda x: torch.mm(x, x.t(), out=torch.empty(5, 5)), 2 * 140 + 100),
    "view and allocation": (lambda x: torch.empty_like(x.t().unsqueeze(0)), 0),
}


@pytest.mark.parametrize("case", BYTES)
def test_bytes_of_an_operator_are_those_of_distinct_tensors(case: str) -> None:
    function, expected = BYTES[case]
    x = torch.ones(5, 7)
    with ByteCounter(x.device) as counter:
        function(x)
    assert counter.bytes == expected


def test_step_writes_speedups_over_stock(given: dict[str, Any], tmp_path: Path) -> None:
    several = {"objective": "rtd,mlm_sop", "profile": True}
    run("step", given, **several, output=tmp_path / "out" / "bench.json")
    records = json.loads((tmp_path / "out" / "bench.json").read_text(encoding="utf-8"))["step"]
    assert [list(record["results"]) for record in records] == [[OURS, STOCK, step.TUNED], [OURS]]
    for record in records:
        for result in record["results"].values():
            assert result["ratio"]["lowest"] > 0
            flops_per_second = record["flops_per_step"] / result["seconds"]["median"]
            bytes_per_second = result["bytes_per_step"] / result["seconds"]["median"]
            assert 0 < result["GB/s"] == pytest.approx(bytes_per_second / 1e9)
            assert result["MFU"] == pytest.approx(
                flops_per_second / record["matrix_flops_per_second"]
            )
        assert 0 < record["tokens_per_step"] <= 4 * 32
        assert 0 < record["profiles"][OURS]["busy_share"] < 1
        assert "aten::addmm" in {one["name"] for one in record["profiles"][OURS]["kernels"]}


def test_different_predictions_and_invalid_options_are_refused(given: dict[str, Any]) -> None:
    likely = {"token": 7, "token_str": "owl", "score": 0.5, "sequence": "the owl left ."}
    last = {"token": 8, "token_str": "cat", "score": 0.1, "sequence": "the cat left ."}
    fill_mask.check_same_predictions([[likely, last]], [[likely, {**last, "token": 9}]])  # a tie
    for change in ({"score": 0.51}, {"sequence": "the Owl left."}):
        with pytest.raises(UserError, match="different predictions"):
            fill_mask.check_same_predictions([[{**likely, **change}, last]], [[likely, last]])
    for option, value in {"preset": "small,huge", "repeats": 0, "max_seq_length": 4}.items():
        with pytest.raises(UsageError, match=option):
            run("step", given, **{option: value})


@pytest.mark.slow
@pytest.mark.parametrize("parts", [("store", "batches"), ("fill_mask",), ("finetune",)])
def test_every_other_part_is_compared_with_stock(
    parts: Any, given: Any, capsys: pytest.CaptureFixture
) -> None:
    for part in parts:
        run(part, given)
        lines = capsys.readouterr().out.splitlines()
        assert {OURS, STOCK} <= {line.split("  ")[0] for line in lines}
