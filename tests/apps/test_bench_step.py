"""The measured step: what is compared computes the same function, and what does not is refused."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from electra_albert.apps.bench.config import OURS, STOCK, TUNED, TUNED_COMPILED
from electra_albert.apps.bench.contenders import (
    Contender,
    check_stock,
    make_ready,
    our_contenders,
    stock_contender,
    stock_contenders,
)
from electra_albert.apps.bench.step import measure_step
from electra_albert.apps.bench.stock import StockPair, check_same_function, draw
from electra_albert.config import PretrainConfig, RtdConfig, TrainingConfig
from electra_albert.contracts import Batch, DataError, UserError
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.rtd import ReplacedTokenDetection
from electra_albert.training.distributed import World
from tests.apps.tiny_bench import SEED, SHAPE, L, V, bench_config, set_roofs, settings, write_corpus

B = 3
WORLD = World(0, 1, 0, torch.device("cpu"))
SPECIAL = SpecialIds(4, (0, 1, 2, 3, 4))
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")

PLAIN_OF = {"ours, blocks compiled": OURS, "ours, step compiled": OURS, TUNED_COMPILED: TUNED}


@pytest.fixture
def ours() -> ReplacedTokenDetection:
    torch.manual_seed(SEED)
    return ReplacedTokenDetection(SHAPE, RtdConfig(mask_rate=0.3), SPECIAL, SEED)


@pytest.fixture
def batch() -> Batch:
    ids = torch.randint(5, V, (B, L), generator=torch.Generator().manual_seed(SEED))
    mask = torch.arange(L) < torch.tensor([[L], [17], [11]])
    segments = ((torch.arange(L) > 7) & mask).long()
    return Batch(ids * mask, mask, segments, torch.full((B,), -100), torch.arange(B))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path)


@pytest.mark.parametrize("is_tuned", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_stock_pair_with_our_weights_computes_our_losses_and_gradient(
    ours: ReplacedTokenDetection, batch: Batch, is_tuned: bool, attention: str
) -> None:
    pair = StockPair(ours, is_tuned=is_tuned)
    pair.use_attention(attention)
    check_same_function(ours, pair, batch)


def change_a_weight(pair: StockPair) -> None:
    with torch.no_grad():
        pair.discriminator_predictions.dense.weight[0, 0] += 0.1


def untie_the_decoder(pair: StockPair) -> None:
    decoder = pair.generator.predictions.decoder
    decoder.weight = torch.nn.Parameter(decoder.weight.detach().clone())


def part_the_embeddings(pair: StockPair) -> None:
    pair.discriminator.embeddings = copy.deepcopy(pair.generator.albert.embeddings)


# A weight that differs shows in a loss; a lost tie leaves every loss as it is and shows in the gradient's norm alone,
# an untied decoder in the generator's, parted embeddings where both losses' gradients meet.
FAULTS: dict[str, tuple[Callable[[StockPair], None], str]] = {
    "another weight": (change_a_weight, "discriminator_loss"),
    "untied decoder": (untie_the_decoder, "gradient norm after generator_loss"),
    "embeddings not shared": (part_the_embeddings, "gradient norm after discriminator_loss"),
}


@pytest.mark.parametrize(("plant", "shows_in"), FAULTS.values(), ids=FAULTS.keys())
def test_what_computes_another_function_is_refused(
    ours: ReplacedTokenDetection, batch: Batch, plant: Callable[[StockPair], None], shows_in: str
) -> None:
    pair = StockPair(ours, is_tuned=False)
    plant(pair)
    with pytest.raises(UserError, match=f"do not compute the same: {shows_in}"):
        check_same_function(ours, pair, batch)


def test_stock_shares_what_ours_shares(ours: ReplacedTokenDetection) -> None:
    pair = StockPair(ours, is_tuned=False)
    assert sum(p.numel() for p in pair.parameters()) == sum(p.numel() for p in ours.parameters())


def test_stock_trains_each_parameter_at_the_rate_that_ours_trains_it_at(ours: ReplacedTokenDetection) -> None:
    """Found in review: stock's generator had a quarter of the rate of the run that it was compared with."""
    ours.rtd = replace(ours.rtd, generator_rate=4.0, discriminator_rate=0.5)
    scales = ours.rate_scales
    assert scales is not None
    assert set(scales.values()) == {0.5, 1.0, 4.0}
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.fill_(scales[name])
    stock = StockPair(ours, is_tuned=False)
    for group in stock_contender(stock, TrainingConfig(), WORLD, "fp32").optimizer.param_groups:
        assert all((parameter == group["rate_scale"]).all() for parameter in group["params"])


def test_stock_draws_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, 0.5])
    torch.manual_seed(SEED)
    drawn = draw(logits.expand(20_000, 4), temperature=2.0).bincount(minlength=4) / 20_000
    # Five standard deviations of the most uncertain share; a temperature left out is off by .2.
    assert torch.allclose(drawn, (logits / 2.0).softmax(-1), atol=5 * 0.5 / 20_000**0.5)


def contenders(ours: ReplacedTokenDetection, *, compiled: bool = False) -> dict[str, Contender]:
    """All there are, in float32, with the weights of `ours`."""
    given = (ours, PretrainConfig(), WORLD)
    return our_contenders(*given, "fp32", compiled=compiled) | stock_contenders(*given, "fp32", compiled=compiled)


def test_contenders_begin_with_the_same_weights_and_none_trains_those_of_another(
    ours: ReplacedTokenDetection, batch: Batch
) -> None:
    found = contenders(ours)
    assert list(found) == [OURS, STOCK, TUNED]
    check_stock(ours, {name: one for name, one in found.items() if name != OURS}, batch)
    before = copy.deepcopy(ours.state_dict())
    for name in (STOCK, TUNED):
        found[name].update(batch, 1)
    assert all(torch.equal(before[name], weight) for name, weight in ours.state_dict().items())
    found[OURS].update(batch, 1)
    assert not all(torch.equal(before[name], weight) for name, weight in ours.state_dict().items())


def test_resident_memory_is_that_of_weights_and_both_moments_once_each(ours: ReplacedTokenDetection) -> None:
    numbers = {p.data_ptr(): p.numel() for p in ours.parameters()}
    found = contenders(ours)[OURS]
    steps = len(numbers)  # a counter for each weight tensor
    assert found.resident_bytes() == 4 * (3 * sum(numbers.values()) + steps)


def test_traffic_of_a_step_grows_with_the_rows_and_stock_moves_more_than_ours(
    ours: ReplacedTokenDetection, batch: Batch
) -> None:
    found = contenders(ours)
    twice = batch.map(lambda field: field.repeat(2, *[1] * (field.ndim - 1)))
    once, double = (found[OURS].traffic_bytes(rows, 1, WORLD.device) for rows in (batch, twice))
    stock = found[STOCK].traffic_bytes(batch, 1, WORLD.device)
    assert once is not None
    assert double is not None
    assert stock is not None
    assert once < double < 2 * once  # weights are read and written once, however many rows there are
    assert stock > once


@pytest.fixture
def _forget_what_was_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_compiled_contenders_stand_beside_the_plain_ones_they_are_made_of(ours: ReplacedTokenDetection) -> None:
    found = contenders(ours, compiled=True)
    assert list(found) == [OURS, *list(PLAIN_OF)[:2], STOCK, TUNED, TUNED_COMPILED]
    assert [name for name, one in found.items() if one.is_compiled] == list(PLAIN_OF)[:2]  # stock's, once it is ready
    weights = [parameter.data_ptr() for one in found.values() for parameter in one.module.parameters()]
    assert len(set(weights)) == len(weights)  # none trains another's


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("_forget_what_was_compiled")
@pytest.mark.parametrize(("name", "plain"), PLAIN_OF.items())
def test_compiled_contender_computes_the_losses_of_the_plain_one(name: str, plain: str, batch: Batch) -> None:
    torch.manual_seed(SEED)
    shallow = replace(SHAPE, num_hidden_layers=1)
    all_there_are = contenders(ReplacedTokenDetection(shallow, RtdConfig(), SPECIAL, SEED), compiled=True)
    found = {one: all_there_are[one] for one in (plain, name)}
    make_ready(found, "eager", batch, WORLD.device)
    assert [found[one].is_compiled for one in (plain, name)] == [False, True]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    found[name].module.load_state_dict(found[plain].module.state_dict())
    expected, value = (losses(found[one].module, batch) for one in (plain, name))
    assert value == pytest.approx(expected, rel=1e-5)


def losses(module: torch.nn.Module, batch: Batch) -> dict[str, float]:
    """Our losses, or of stock's the one that does not depend on what torch draws."""
    if isinstance(module, StockPair):
        return {"generator_loss": float(module(batch)["generator_loss"].detach())}
    terms = module(batch, torch.tensor(1))
    return {name: float(terms[name].sum.detach()) for name in ("generator_loss", "discriminator_loss")}


def test_step_gives_a_row_for_each_contender_on_the_same_batches(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_roofs(monkeypatch)
    config = bench_config(corpus)
    (record,) = measure_step(config, settings(config))
    assert list(record["contenders"]) == [OURS, STOCK, TUNED]
    assert record["contenders"][OURS]["ratio"]["median"] == 1.0
    for found in record["contenders"].values():
        assert 0 < found["tokens_per_second"]["lowest"] <= found["tokens_per_second"]["median"]
        assert found["flops_per_second"] * found["seconds_a_step"]["median"] == pytest.approx(record["flops_a_step"])
        assert found["share_of_matrix_rate"] > 0
        assert found["bytes_a_step"] > 0
    assert 0 < record["tokens_a_step"] <= 3 * L


@pytest.mark.slow
def test_step_is_measured_for_each_objective_precision_and_number_of_rows(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_roofs(monkeypatch)
    config = bench_config(
        corpus, objective="mlm,rtd_sop", precision="fp32,bf16", per_device_train_batch_size="3,2", repeats=1
    )
    records = measure_step(config, settings(config))
    cases = [(record["objective"], record["precision"], record["rows"]) for record in records]
    assert cases == [(o, p, r) for o in ("mlm", "rtd_sop") for p in ("fp32", "bf16") for r in (3, 2)]
    assert all(list(record["contenders"]) == [OURS] for record in records)  # of these stock has no like


def test_step_in_bfloat16_with_the_attention_asked_for(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_roofs(monkeypatch)
    config = bench_config(corpus, precision="bf16", attention="eager", repeats=1)
    (record,) = measure_step(config, settings(config))
    assert set(record["attention"].values()) == {"eager"}


def test_step_refuses_a_corpus_smaller_than_a_batch(corpus: Path) -> None:
    config = bench_config(corpus, per_device_train_batch_size=9_999)
    with pytest.raises(DataError, match="a step takes 9999"):
        measure_step(config, settings(config))
