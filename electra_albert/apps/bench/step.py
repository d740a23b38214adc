"""The training step, ours and stock's: one process, in turns, on the same real batches, against the machine's roofs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from electra_albert.apps.bench.config import spread
from electra_albert.contracts import DataError

if TYPE_CHECKING:
    import torch

    from electra_albert.apps.bench.config import BenchConfig
    from electra_albert.apps.bench.contenders import Contender
    from electra_albert.apps.prepare import Prepared
    from electra_albert.config import PretrainConfig
    from electra_albert.contracts import Arithmetic, Batch
    from electra_albert.corpus.examples import Rows
    from electra_albert.objectives.pretraining import PretrainingObjective
    from electra_albert.training.distributed import World

OURS, STOCK, TUNED = "ours", "stock", "stock, tuned"
SMALL_SHARE = 0.3  # of either roof, below which neither can be what holds a step up

# A small step takes a GPU some milliseconds; on a CPU the first update finds others' tensors in the caches.
_UPDATES_A_TIMING = {"cpu": 3, "cuda": 10}
_CHECKED_ROWS = 16  # of the first batch, on which ours and stock must agree


class Case(NamedTuple):
    """One step to measure: its settings hold objective, shape, rows and length."""

    preset: str
    settings: PretrainConfig
    arithmetic: Arithmetic
    objective: PretrainingObjective
    timings: list[list[Batch]]  # the batches of each timing, on the host


class Cost(NamedTuple):
    """What was measured of one contender."""

    seconds: list[float]  # an update, of each timing
    memory: int | None  # bytes at the highest
    traffic: int | None  # bytes an update


def measure_step(config: BenchConfig, settings: PretrainConfig, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A record for each objective, arithmetic and number of rows asked for; `settings` are those of the first preset.

    Raises UserError where ours and stock do not compute the same: a ratio would say nothing.
    """
    import torch

    from electra_albert.apps.bench.machine import arithmetics_of
    from electra_albert.apps.prepare import prepare
    from electra_albert.training.distributed import start

    world = start(config.device)
    prepared = prepare(settings.corpus, config.seed, say)
    records = []
    for objective in config.objectives:
        for arithmetic in arithmetics_of(config, world.device):
            for rows in config.rows:
                wanted = _settings(config, settings, prepared, objective, rows)
                case = _make_case(config, wanted, prepared, arithmetic, world.device)
                say(f"{objective}, preset {case.preset}, {arithmetic}, {rows} rows of {config.max_seq_length}")
                record = _measure_case(config, case, world, say)
                if record is not None:
                    records.append(record)
                del case
                torch.compiler.reset()  # else later shapes would be taken for recompilations, which are limited
                torch.cuda.empty_cache()
    return records


def _settings(
    config: BenchConfig, settings: PretrainConfig, prepared: Prepared, objective: str, rows: int
) -> PretrainConfig:
    """The settings of one case, with the vocabulary that is measured."""
    pieces = len(prepared.tokenizer)
    vocab_size = pieces if config.tokenizer else max(config.vocab_size, pieces)
    return replace(
        settings,
        run=replace(settings.run, objective=cast("Any", objective)),
        model=replace(settings.model, vocab_size=vocab_size),
        training=replace(
            settings.training, per_device_train_batch_size=rows, gradient_accumulation_steps=1, seed=config.seed
        ),
    )


def _make_case(
    config: BenchConfig, settings: PretrainConfig, prepared: Prepared, arithmetic: Arithmetic, device: torch.device
) -> Case:
    """The objective with its initial weights, and the batches of all timings, as the loop's thread would hand them."""
    import torch

    from electra_albert.corpus.batches import TrainBatches
    from electra_albert.objectives.masking import SpecialIds
    from electra_albert.objectives.pretraining import make_objective

    tokenizer, size = prepared.tokenizer, settings.training.per_device_train_batch_size
    rows = _rows(settings, prepared)
    if rows.table.count < size:
        raise DataError(
            f"the corpus gives {rows.table.count} rows, a step takes {size}; "
            "lower --per_device_train_batch_size or give more text"
        )
    batches = TrainBatches(rows, prepared.order, size, pin_memory=device.type == "cuda")
    torch.manual_seed(config.seed)
    special = SpecialIds(tokenizer.mask_token_id, tuple(sorted(tokenizer.all_special_ids)))
    objective = make_objective(settings, special).to(device)
    count = _UPDATES_A_TIMING[device.type]
    found = [batches.micro_batches(step)[0] for step in range(1, config.repeats * count + 1)]
    timings = [found[first : first + count] for first in range(0, len(found), count)]
    return Case(config.presets[0], settings, arithmetic, objective, timings)


def _rows(settings: PretrainConfig, prepared: Prepared) -> Rows:
    """Rows laid out as a run of the objective lays them out."""
    from electra_albert.apps.job import SWAP_RATE
    from electra_albert.corpus.examples import ONE_SEGMENT_RATE, Rows
    from electra_albert.corpus.tokenizer import special_ids

    has_order = settings.run.has_sentence_order
    return Rows(
        prepared.store.train,
        prepared.train_table,
        settings.corpus.max_seq_length,
        settings.training.seed,
        special=special_ids(prepared.tokenizer),
        swap_rate=SWAP_RATE if has_order else 0.0,
        one_segment_rate=0.0 if has_order else ONE_SEGMENT_RATE,
    )


def _measure_case(config: BenchConfig, case: Case, world: World, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The record of one case; None where ours does not fit into memory."""
    from electra_albert.apps.bench.contenders import check_stock, make_ready, our_contenders, stock_contenders

    device, first = world.device, case.timings[0][0]
    compiled = device.type == "cuda" if config.torch_compile == "auto" else config.torch_compile
    given = (case.objective, case.settings, world, case.arithmetic)
    stock = stock_contenders(*given, compiled=compiled)
    contenders = our_contenders(*given, compiled=compiled) | stock
    if stock:
        check_stock(case.objective, stock, first.map(lambda field: field[:_CHECKED_ROWS]).to(device))
        say("ours and stock's give the same losses and gradient norm on the first batch")
    make_ready(contenders, config.attention, first, device, say)
    if OURS not in contenders:
        return None
    memory = {name: contender.peak_bytes(first, 1, device) for name, contender in contenders.items()}
    # One update more for each: the measurement of memory has taken from them what the allocator kept.
    traffic = {name: contender.traffic_bytes(first, 1, device) for name, contender in contenders.items()}
    seconds = _time(contenders, case.timings, device, say)
    costs = {name: Cost(seconds[name], memory[name], traffic[name]) for name in contenders}
    attention = {name: contender.attention for name, contender in contenders.items() if contender.attention}
    return {**_conditions(config, case, device), "attention": attention, **_summary(case, costs, device)}


def _time(
    contenders: dict[str, Contender], timings: list[list[Batch]], device: torch.device, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds an update of each contender in each timing, in turns on the same batches."""
    from electra_albert.apps.bench.contest import now

    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number, batches in enumerate(timings):
        for name, contender in contenders.items():
            began = now(device)
            for place, batch in enumerate(batches):
                contender.update(batch, number * len(batches) + place + 1)
            seconds[name].append((now(device) - began) / len(batches))
        done = ", ".join(f"{name} {times[-1]:.4f} s" for name, times in seconds.items())
        say(f"timing {number + 1} of {len(timings)}: {done}")
    return seconds


def _conditions(config: BenchConfig, case: Case, device: torch.device) -> dict[str, Any]:
    """What the numbers hold for."""
    import torch

    settings = case.settings
    rows, length = settings.training.per_device_train_batch_size, settings.corpus.max_seq_length
    tokens = fmean(int(batch.attention_mask.sum()) for batches in case.timings for batch in batches)
    return {
        "objective": settings.run.objective,
        "preset": case.preset,
        "precision": case.arithmetic,
        "rows": rows,
        "max_seq_length": length,
        "vocab_size": settings.model.vocab_size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "repeats": config.repeats,
        "updates_a_timing": len(case.timings[0]),
        "tokens_a_step": tokens,
        "padding": 1 - tokens / (rows * length),
    }


def _summary(case: Case, costs: dict[str, Cost], device: torch.device) -> dict[str, Any]:
    """What is reported of each contender. Rates are in tokens that are not padding; FLOPs are those of all places.

    FLOPs are the same for all: what ours computes. Logits that are thrown away do not add to the share of the roof.
    """
    from electra_albert.apps.bench.machine import copy_bandwidth, matrix_rate
    from electra_albert.apps.estimate import step_flops

    tokens = [fmean(int(batch.attention_mask.sum()) for batch in batches) for batches in case.timings]
    flops = step_flops(case.settings, case.settings.training.per_device_train_batch_size)
    matrix, bandwidth = matrix_rate(device, case.arithmetic), copy_bandwidth(device)
    ours, stock = costs[OURS], costs.get(STOCK)
    contenders = {}
    for name, cost in costs.items():
        median = spread(cost.seconds)["median"]
        contenders[name] = {
            "tokens_per_second": spread([count / time for count, time in zip(tokens, cost.seconds, strict=True)]),
            "seconds_a_step": {**spread(cost.seconds), "values": cost.seconds},
            "ratio": spread([theirs / mine for theirs, mine in zip(cost.seconds, ours.seconds, strict=True)]),
            "peak_memory_bytes": cost.memory,
            "memory_of_stock": _quotient(cost.memory, stock.memory if stock else None),
            "flops_per_second": flops / median,
            "share_of_matrix_rate": flops / median / matrix,
            "bytes_a_step": cost.traffic,
            "bytes_per_second": _quotient(cost.traffic, median),
            "share_of_bandwidth": _quotient(cost.traffic, median * bandwidth),
        }
        contenders[name]["binds"] = binding(contenders[name])
    machine = {"matrix_flops_per_second": matrix, "copy_bytes_per_second": bandwidth}
    return {"flops_a_step": flops, "machine": machine, "contenders": contenders}


def _quotient(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def binding(record: dict[str, Any]) -> str | None:
    """Which roof a contender is nearer to; None where its traffic is not known, as of what is compiled."""
    matrix, bandwidth = record["share_of_matrix_rate"], record["share_of_bandwidth"]
    if bandwidth is None:
        return None
    if max(matrix, bandwidth) < SMALL_SHARE:
        return "neither (launch and host)"
    return "matrix products" if matrix >= bandwidth else "memory"
