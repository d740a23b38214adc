"""The numbers reported, on a clock that the contenders themselves set: rates, ratios, memory and what is left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from electra_albert.apps.pretrain.estimate import step_flops

from electra_albert.apps.bench import contenders
from electra_albert.apps.bench.config import OURS, STOCK, TUNED
from electra_albert.apps.bench.contenders import Contender
from electra_albert.apps.bench.step import measure_step
from electra_albert.apps.bench.tables import format_step
from electra_albert.apps.bench.text import LONGEST, PADDED, TOGETHER, measure_text
from electra_albert.apps.bench.timing import UPDATES_A_TIMING
from electra_albert.contracts import Batch
from tests.apps.tiny_bench import (
    BANDWIDTH,
    FRESH_SHAPE,
    MATRIX_RATE,
    L,
    bench_config,
    set_roofs,
    settings,
    write_corpus,
)

UPDATES = UPDATES_A_TIMING["cpu"]
ROWS = 3


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path)


@pytest.fixture(autouse=True)
def _known_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    set_roofs(monkeypatch)


@dataclass
class Clock:
    """Stands still until somebody sets it forward."""

    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "perf_counter", found)
    return found


@dataclass
class Figured(Contender):
    """A contender that trains nothing and tells what it is told to."""

    memory: int | None = 0
    traffic: int = 0
    tokens: list[int] = field(default_factory=list)  # of each update

    def peak_bytes(self, batch: Batch, step: int, device: torch.device) -> int | None:
        return self.memory

    def traffic_bytes(self, batch: Batch, step: int, device: torch.device) -> int | None:
        return self.traffic


def figured(
    found: Contender, clock: Clock, seconds: tuple[float, ...], memory: int | None = 0, traffic: int = 0
) -> Figured:
    """One whose updates take seconds[0] in the first timing, seconds[1] in the second."""

    def update(batch: Batch, step: int) -> None:
        made.tokens.append(int(batch.attention_mask.sum()))
        clock.seconds += seconds[(step - 1) // UPDATES]

    made = Figured(found.module, found.optimizer, update, memory=memory, traffic=traffic)
    return made


SECONDS = {OURS: (2.0, 4.0), STOCK: (6.0, 16.0), TUNED: (3.0, 5.0)}
MEMORY = {OURS: 3_000_000_000, STOCK: 12_000_000_000, TUNED: 6_000_000_000}
TRAFFIC = {OURS: 6_000_000, STOCK: 22_000_000, TUNED: 8_000_000}

Make = Callable[..., dict[str, Contender]]


def changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[str, Contender], Contender]) -> None:
    """Let every contender of the step be changed after it has been made."""

    def changing(make: Make) -> Make:
        return lambda *given, **named: {name: change(name, one) for name, one in make(*given, **named).items()}

    for name in ("our_contenders", "stock_contenders"):
        monkeypatch.setattr(contenders, name, changing(getattr(contenders, name)))


def test_step_reports_what_clock_and_batches_say(corpus: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Figured] = {}

    def change(name: str, one: Contender) -> Contender:
        made[name] = figured(one, clock, SECONDS[name], MEMORY[name], TRAFFIC[name])
        return made[name]

    changed(monkeypatch, change)
    config = bench_config(corpus, repeats=2, attention="eager")
    (record,) = measure_step(config, settings(config))
    found = record["contenders"]
    assert {name: one["seconds_a_step"]["values"] for name, one in found.items()} == {
        name: list(seconds) for name, seconds in SECONDS.items()
    }
    assert found[STOCK]["ratio"] == {"median": 3.5, "lowest": 3.0, "highest": 4.0}
    assert found[TUNED]["ratio"] == {"median": 1.375, "lowest": 1.25, "highest": 1.5}
    assert found[OURS]["ratio"] == {"median": 1.0, "lowest": 1.0, "highest": 1.0}
    assert {name: one["memory_of_stock"] for name, one in found.items()} == {OURS: 0.25, STOCK: 1.0, TUNED: 0.5}
    assert {name: one["peak_memory_bytes"] for name, one in found.items()} == MEMORY
    assert {name: one["bytes_per_second"] for name, one in found.items()} == {OURS: 2e6, STOCK: 2e6, TUNED: 2e6}
    assert {name: one["share_of_bandwidth"] for name, one in found.items()} == {OURS: 0.25, STOCK: 0.25, TUNED: 0.25}
    tokens = made[OURS].tokens[-2 * UPDATES :]
    assert sum(tokens) < 2 * UPDATES * ROWS * L  # there is padding
    assert record["tokens_a_step"] == sum(tokens) / (2 * UPDATES)
    assert record["padding"] == pytest.approx(1 - sum(tokens) / (2 * UPDATES * ROWS * L))
    first, second = sum(tokens[:UPDATES]), sum(tokens[UPDATES:])
    for name, one in found.items():
        rates = [first / UPDATES / SECONDS[name][0], second / UPDATES / SECONDS[name][1]]
        assert one["tokens_per_second"]["highest"] == pytest.approx(max(rates))
        assert one["tokens_per_second"]["lowest"] == pytest.approx(min(rates))


def test_step_counts_for_all_the_flops_of_ours(corpus: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, lambda name, one: figured(one, clock, SECONDS[name]))
    config = bench_config(corpus, repeats=1, attention="eager")
    wanted = settings(config)
    (record,) = measure_step(config, wanted)
    assert record["flops_a_step"] == pytest.approx(step_flops(wanted, ROWS))
    assert record["machine"] == {"matrix_flops_per_second": MATRIX_RATE, "copy_bytes_per_second": BANDWIDTH}
    for name, one in record["contenders"].items():
        assert one["flops_per_second"] == pytest.approx(step_flops(wanted, ROWS) / SECONDS[name][0])
        assert one["share_of_matrix_rate"] == pytest.approx(step_flops(wanted, ROWS) / SECONDS[name][0] / MATRIX_RATE)


def out_of_memory(batch: Batch, step: int) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


LEFT_OUT = {
    "stock": {STOCK},
    "all of stock's": {STOCK, TUNED},
    "ours": {OURS},
    "everything": {OURS, STOCK, TUNED},
}


@pytest.mark.parametrize("names", LEFT_OUT.values(), ids=LEFT_OUT.keys())
def test_what_did_not_fit_is_in_the_record_and_in_the_table_with_the_reason(
    corpus: Path, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(name: str, one: Contender) -> Contender:
        if name in names:
            one.update = out_of_memory
        return one

    changed(monkeypatch, change)
    config = bench_config(corpus, repeats=1, attention="eager")
    said: list[str] = []
    (record,) = measure_step(config, settings(config))
    assert set(record["left_out"]) == names
    assert not names & set(record["contenders"])
    lines = format_step([record]).splitlines()
    for name in names:
        assert any("preset small, fp32, 3 rows" in line and f"{name} is left out" in line for line in said)
        assert any(f"{name} is left out: {ROWS} rows do not fit into memory" in line for line in lines)
    assert not any("has no like" in line for line in lines)


class Timed:
    """Stands for a contender's update: it takes some seconds in the warm-up, others in each later turn."""

    def __init__(self, clock: Clock, seconds: tuple[float, ...]) -> None:
        self.clock, self.seconds = clock, seconds
        self.tokens: list[int] = []  # of each update
        self.places: list[int] = []

    def __call__(self, batch: Batch, step: int) -> None:
        self.tokens.append(int(batch.attention_mask.sum()))
        self.places.append(batch.attention_mask.numel())
        self.clock.seconds += self.seconds[(step - 1) // UPDATES]


TURNS = {OURS: (100.0, 1.0, 2.0), LONGEST: (100.0, 4.0, 5.0), PADDED: (100.0, 8.0, 4.0), TOGETHER: (100.0, 2.0, 2.0)}


@pytest.fixture
def timed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> dict[str, Timed]:
    """The updates of all sides of real text, those of stock in the order in which they are made."""
    made = {name: Timed(clock, seconds) for name, seconds in TURNS.items()}

    def timing(make: Callable[..., Contender], updates: Iterator[Timed]) -> Callable[..., Contender]:
        def change(*given: Any, **named: Any) -> Contender:
            found = make(*given, **named)
            found.update = next(updates)
            return found

        return change

    ours, *stock = made.values()
    for name, updates in {"our_contender": [ours], "stock_contender": stock}.items():
        monkeypatch.setattr(contenders, name, timing(getattr(contenders, name), iter(updates)))
    return made


def test_text_reports_every_turn_but_the_warm_up(corpus: Path, timed: dict[str, Timed]) -> None:
    config = bench_config(corpus, repeats=2, attention="eager")
    result = measure_text(config, settings(config, FRESH_SHAPE))
    rates: dict[str, list[float]] = {}
    for name, one in timed.items():
        last = one.tokens[-2 * UPDATES :]
        turns = (sum(last[:UPDATES]), sum(last[UPDATES:]))
        rates[name] = [tokens / UPDATES / seconds for tokens, seconds in zip(turns, TURNS[name][1:], strict=True)]
        padding = 1 - sum(last) / sum(one.places[-2 * UPDATES :])
        assert result["contenders"][name]["padding"] == pytest.approx(padding)
        assert result["contenders"][name]["seconds_a_step"]["lowest"] == min(TURNS[name][1:])
        assert result["contenders"][name]["seconds_a_step"]["highest"] == max(TURNS[name][1:])
    for name, found in result["contenders"].items():
        assert found["tokens_per_second"]["lowest"] == pytest.approx(min(rates[name]))
        assert found["tokens_per_second"]["highest"] == pytest.approx(max(rates[name]))
        ratios = [mine / theirs for mine, theirs in zip(rates[OURS], rates[name], strict=True)]
        assert found["ratio"]["median"] == pytest.approx(sum(ratios) / 2)
