"""What is made ready and timed: memory, attention, what does not fit, and the arithmetic and clipping of both sides."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import chain

import pytest
import torch
from torch import nn

from electra_albert.apps.bench.config import ATTENTIONS, OURS, STOCK, TUNED, TUNED_COMPILED
from electra_albert.apps.bench.contenders import (
    Contender,
    make_ready,
    our_contender,
    settle_attention,
    stock_contender,
)
from electra_albert.apps.bench.stock import StockPair
from electra_albert.config import RtdConfig, TrainingConfig
from electra_albert.contracts import Arithmetic, Batch
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.rtd import ReplacedTokenDetection
from electra_albert.training.distributed import World
from tests.apps.tiny_bench import SEED, SHAPE, L, V

B = 3
CPU = torch.device("cpu")
WORLD = World(0, 1, 0, CPU)
FLOAT = 4  # bytes
MEGABYTE = 1 << 20
SLOW_SECONDS = 0.03
Costs = Mapping[str, float | None]  # seconds of an update with each attention; None where it does not fit into memory


@pytest.fixture
def batch() -> Batch:
    ids = torch.randint(5, V, (B, L), generator=torch.Generator().manual_seed(SEED))
    mask = torch.ones(B, L, dtype=torch.bool)
    return Batch(ids, mask, torch.zeros_like(ids), torch.full((B,), -100), torch.arange(B))


def detection(**changes: float) -> ReplacedTokenDetection:
    torch.manual_seed(SEED)
    return ReplacedTokenDetection(SHAPE, RtdConfig(**changes), SpecialIds(4, (0, 1, 2, 3, 4)), SEED)


class Switched(StockPair):
    """A pair of stock's that computes nothing, and knows its attention."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.zeros(()))
        self.attention = ""

    def use_attention(self, kind: str) -> None:
        self.attention = kind


def contender(costs: Costs | float | None) -> Contender:
    """One whose update takes so long: with each attention, or as one of ours, without any."""
    module: nn.Module = Switched() if isinstance(costs, Mapping) else nn.Linear(1, 1)

    def update(batch: Batch, step: int) -> None:
        seconds = costs[module.attention] if isinstance(module, Switched) else costs  # type: ignore[index]
        if seconds is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        time.sleep(float(seconds))  # type: ignore[arg-type]

    return Contender(module, torch.optim.SGD(module.parameters(), lr=0.1), update)


def test_peak_memory_is_what_is_resident_and_what_an_update_takes_beside(batch: Batch) -> None:
    module = nn.Linear(1024, 8192, bias=False)  # 32 MB

    def update(batch: Batch, step: int) -> None:
        assert torch.ones(64 * MEGABYTE // FLOAT).sum() > 0

    found = Contender(module, torch.optim.SGD(module.parameters(), lr=0.1), update)
    update(batch, 1)
    peak = found.peak_bytes(batch, 1, CPU)
    if peak is None:
        pytest.skip("this kernel does not let its highest mark begin anew")
    assert round(peak / MEGABYTE) == pytest.approx(32 + 64, abs=4)  # pages of others come and go


@pytest.mark.parametrize("seconds_of_others", [SLOW_SECONDS, None], ids=["slower", "too large"])
@pytest.mark.parametrize("best", ATTENTIONS)
def test_fastest_attention_that_fits_into_memory_is_taken(
    best: str, seconds_of_others: float | None, batch: Batch
) -> None:
    found = contender({kind: 0.0 if kind == best else seconds_of_others for kind in ATTENTIONS})
    settle_attention(found, ATTENTIONS, batch, CPU)
    assert isinstance(found.module, Switched)
    assert (found.attention, found.module.attention) == (best, best)


def test_pair_that_fits_with_one_attention_takes_part(batch: Batch) -> None:
    found = {OURS: contender(0.0), STOCK: contender({ATTENTIONS[0]: None, ATTENTIONS[1]: 0.0})}
    make_ready(found, "auto", batch, CPU)
    assert list(found) == [OURS, STOCK]
    assert found[STOCK].attention == ATTENTIONS[1]


NOTHING_FITS = dict.fromkeys(ATTENTIONS)


@pytest.mark.parametrize("attention", ["auto", *ATTENTIONS])
def test_pair_that_fits_with_no_attention_is_left_out_and_said_to_be(attention: str, batch: Batch) -> None:
    said: list[str] = []
    found = {OURS: contender(0.0), STOCK: contender(NOTHING_FITS)}
    make_ready(found, attention, batch, CPU)
    assert list(found) == [OURS]
    (line,) = said
    assert STOCK in line
    assert f"{B} rows do not fit into memory" in line


def test_one_of_ours_that_does_not_fit_is_left_out_and_the_others_stay(batch: Batch) -> None:
    compiled = f"{OURS}, blocks compiled"
    found = {OURS: contender(None), compiled: contender(0.0), STOCK: contender(dict.fromkeys(ATTENTIONS, 0.0))}
    make_ready(found, "auto", batch, CPU)
    assert list(found) == [compiled, STOCK]


def test_compiled_pair_has_the_attention_asked_for_where_the_plain_one_did_not_fit(batch: Batch) -> None:
    found = {TUNED: contender(NOTHING_FITS), TUNED_COMPILED: contender(dict.fromkeys(ATTENTIONS, 0.0))}
    make_ready(found, "eager", batch, CPU)
    assert list(found) == [TUNED_COMPILED]
    assert found[TUNED_COMPILED].is_compiled
    assert found[TUNED_COMPILED].attention == "eager"
    assert found[TUNED_COMPILED].module.attention == "eager"


SIDES: dict[str, Callable[[ReplacedTokenDetection, Arithmetic], Contender]] = {
    OURS: lambda ours, arithmetic: our_contender(ours, TrainingConfig(), WORLD, arithmetic),
    STOCK: lambda ours, arithmetic: stock_contender(
        StockPair(ours, is_tuned=False), TrainingConfig(), WORLD, arithmetic
    ),
}


@pytest.mark.parametrize(("arithmetic", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
@pytest.mark.parametrize("make", SIDES.values(), ids=SIDES.keys())
def test_products_of_both_sides_are_in_the_arithmetic_measured(
    make: Callable[[ReplacedTokenDetection, Arithmetic], Contender],
    arithmetic: Arithmetic,
    dtype: torch.dtype,
    batch: Batch,
) -> None:
    found = make(detection(), arithmetic)
    dtypes: set[torch.dtype] = set()

    def note(module: nn.Module, given: object, product: torch.Tensor) -> None:
        dtypes.add(product.dtype)

    for module in found.module.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(note)
    found.update(batch, 1)
    assert dtypes == {dtype}


@pytest.mark.parametrize("make", SIDES.values(), ids=SIDES.keys())
def test_gradient_that_both_sides_step_with_is_clipped(
    make: Callable[[ReplacedTokenDetection, Arithmetic], Contender], batch: Batch
) -> None:
    found = make(detection(generator_weight=1e4, discriminator_weight=1e4), "fp32")
    norms: list[float] = []

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        weights = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        norms.append(float(nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None])))

    found.optimizer.register_step_pre_hook(note)
    found.update(batch, 1)
    assert norms == [pytest.approx(TrainingConfig().max_grad_norm, rel=1e-3)]
