"""Nothing is timed before both sides are seen to compute the same: a planted difference refuses each measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.apps.bench import contenders, stock
from electra_albert.apps.bench.config import STOCK, TUNED
from electra_albert.apps.bench.fill_mask import measure_fill_mask
from electra_albert.apps.bench.parts import measure_encoder
from electra_albert.apps.bench.step import measure_step
from electra_albert.apps.bench.stock import StockPair
from electra_albert.apps.bench.text import PADDINGS, measure_text
from electra_albert.contracts import UserError
from electra_albert.inference import fill_mask
from tests.apps.tiny_bench import FRESH_SHAPE, bench_config, settings, write_corpus

Made = dict[str, contenders.Contender]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path)


def change_a_weight(pair: torch.nn.Module) -> None:
    """Make a pair of stock's compute something else."""
    assert isinstance(pair, StockPair)
    with torch.no_grad():
        pair.discriminator.embeddings.position_embeddings.weight[3, 0] += 1.0


@pytest.mark.parametrize("other", [STOCK, TUNED])
def test_step_is_not_measured_beside_another_function(
    corpus: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = contenders.stock_contenders

    def with_another(*given: Any, **named: Any) -> Made:
        found = make(*given, **named)
        change_a_weight(found[other].module)
        return found

    monkeypatch.setattr(contenders, "stock_contenders", with_another)
    config = bench_config(corpus, repeats=1)
    with pytest.raises(UserError, match="ours and stock do not compute the same"):
        measure_step(config, settings(config))


@pytest.mark.parametrize("other", range(len(PADDINGS)))
def test_text_is_not_measured_beside_another_function(
    corpus: Path, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = contenders.stock_contender
    made: list[StockPair] = []

    def with_another(pair: StockPair, *given: Any, **named: Any) -> contenders.Contender:
        if len(made) == other:
            change_a_weight(pair)
        made.append(pair)
        return make(pair, *given, **named)

    monkeypatch.setattr(contenders, "stock_contender", with_another)
    config = bench_config(corpus, repeats=1)
    with pytest.raises(UserError, match="ours and stock do not compute the same"):
        measure_text(config, settings(config, FRESH_SHAPE))


def test_encoder_is_not_measured_beside_another_function(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Another(StockPair):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            change_a_weight(self)

    monkeypatch.setattr(stock, "StockPair", Another)
    config = bench_config(corpus, repeats=1)
    with pytest.raises(UserError, match="hidden states differ by"):
        measure_encoder(config, settings(config, FRESH_SHAPE))


Found = list[list[dict[str, Any]]]
PLANTED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "score": lambda proposal: {**proposal, "score": 1.01 * proposal["score"]},
    "text": lambda proposal: {**proposal, "sequence": proposal["sequence"].upper() + "."},
}


@pytest.mark.parametrize("change", PLANTED.values(), ids=PLANTED.keys())
def test_fill_mask_is_not_measured_beside_other_proposals(
    corpus: Path, change: Callable[[dict[str, Any]], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = fill_mask.fill_masks

    def with_another(*given: Any, **named: Any) -> Found:
        return [[*found[:-1], change(found[-1])] for found in fill(*given, **named)]

    monkeypatch.setattr(fill_mask, "fill_masks", with_another)
    config = bench_config(corpus, repeats=1)
    with pytest.raises(UserError, match="ours and the pipeline do not propose the same for"):
        measure_fill_mask(config, settings(config))
