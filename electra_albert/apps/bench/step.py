"""The training step, ours and stock's: one process, in turns, on the same real batches, against the machine's roofs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from electra_albert.apps.bench.config import STOCK, first_of_ours, plain_of, rows_of, spread
from electra_albert.apps.bench.roofs import Roofs, Work, busy_seconds, roof_shares
from electra_albert.apps.bench.timing import UPDATES_A_TIMING, now, shown_seconds
from electra_albert.contracts import DataError

if TYPE_CHECKING:
    import torch

    from electra_albert.apps.bench.config import BenchConfig
    from electra_albert.apps.bench.contenders import Contender
    from electra_albert.apps.prepare.main import Prepared
    from electra_albert.config import PretrainConfig
    from electra_albert.contracts import Arithmetic, Batch
    from electra_albert.objectives.registry import PretrainingObjective
    from electra_albert.training.distributed import World

LOG = logging.getLogger(__name__)

_CHECKED_ROWS = 16  # of the first batch, on which ours and stock must agree


class Case(NamedTuple):
    """One step to measure: its settings hold objective, shape, rows and length."""

    preset: str
    settings: PretrainConfig
    arithmetic: Arithmetic
    objective: PretrainingObjective
    timings: list[list[Batch]]  # the batches of each timing, on the host

    @property
    def name(self) -> str:
        """What tells the case from others in a line."""
        rows, length = self.settings.training.per_device_train_batch_size, self.settings.corpus.max_seq_length
        return f"{self.settings.run.objective}, preset {self.preset}, {self.arithmetic}, {rows} rows of {length}"


class Cost(NamedTuple):
    """What was measured of one contender."""

    seconds: list[float]  # an update, of each timing
    memory: int | None  # bytes at the highest
    traffic: int | None  # bytes an update; of a compiled one at most so many
    busy_seconds: float | None  # that a GPU computes in an update
    is_compiled: bool


def measure_step(config: BenchConfig, settings: PretrainConfig) -> list[dict[str, Any]]:
    """A record for each objective, arithmetic and number of rows asked for; `settings` are those of the first preset.

    Raises UserError where ours and stock do not compute the same: a ratio would say nothing.
    """
    return list(step_records(config, settings))


def step_records(config: BenchConfig, settings: PretrainConfig) -> Iterator[dict[str, Any]]:
    """The records of measure_step, each as soon as it is measured."""
    import torch

    from electra_albert.apps.bench.machine import arithmetics_of, has_compiled
    from electra_albert.apps.obstacles import why_not_compiled
    from electra_albert.apps.prepare.main import prepare
    from electra_albert.training.distributed import start

    world = start(config.device)
    compiled = has_compiled(config, world.device)
    if not compiled and config.torch_compile == "auto" and world.device.type == "cuda":
        LOG.info(f"nothing is measured compiled: {why_not_compiled(world.device)}")
    prepared = prepare(settings.corpus, config.seed)
    numbers_of_rows = rows_of(config, world.device.type, settings.corpus.max_seq_length)
    cases = product(config.objectives, arithmetics_of(config, world.device), numbers_of_rows)
    for objective, arithmetic, rows in cases:
        wanted = _settings(config, settings, prepared, objective, rows)
        case = _make_case(config, wanted, prepared, arithmetic, world.device)
        LOG.info(case.name)
        record = _measure_case(config, case, world, partial(_say_of, say, case.name), compiled=compiled)
        del case  # before the next one is made
        torch.compiler.reset()  # else later shapes would be taken for recompilations, which are limited
        torch.cuda.empty_cache()
        yield record


def _say_of(case: str, message: str) -> None:
    LOG.info(f"{case}: {message}")


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

    from electra_albert.apps.pretrain.job import rows_for
    from electra_albert.corpus.batches import TrainBatches
    from electra_albert.objectives.masking import SpecialIds
    from electra_albert.objectives.registry import make_objective

    tokenizer, size = prepared.tokenizer, settings.training.per_device_train_batch_size
    rows = rows_for(prepared.store.train, prepared.train_table, settings, tokenizer)
    if rows.table.count < size:
        raise DataError(
            f"the corpus gives {rows.table.count} rows, a step takes {size}; "
            "lower --per_device_train_batch_size or give more text"
        )
    batches = TrainBatches(rows, prepared.order, size, pin_memory=device.type == "cuda")
    torch.manual_seed(config.seed)
    special = SpecialIds(tokenizer.mask_token_id, tuple(sorted(tokenizer.all_special_ids)))
    objective = make_objective(settings, special).to(device)
    count = UPDATES_A_TIMING[device.type]
    found = [batches.micro_batches(step)[0] for step in range(1, config.repeats * count + 1)]
    timings = [found[first : first + count] for first in range(0, len(found), count)]
    return Case(config.presets[0], settings, arithmetic, objective, timings)


def _measure_case(config: BenchConfig, case: Case, world: World, *, compiled: bool) -> dict[str, Any]:
    """The record of one case; what does not fit into memory is named in it."""
    from electra_albert.apps.bench.contenders import check_stock, make_ready, our_contenders, stock_contenders

    device, first = world.device, case.timings[0][0]
    given = (case.objective, case.settings, world, case.arithmetic)
    contenders = stock_contenders(*given, compiled=compiled)
    if contenders:
        check_stock(case.objective, contenders, first.map(lambda field: field[:_CHECKED_ROWS]).to(device))
        LOG.info("ours and stock's give the same losses and gradient norm on the first batch")
    contenders = our_contenders(*given, compiled=compiled) | contenders
    left_out = make_ready(contenders, config.attention, first, device)
    costs = _costs(contenders, case.timings, device)
    attention = {name: contender.attention for name, contender in contenders.items() if contender.attention}
    told = {**_conditions(config, case, device), "attention": attention, "left_out": left_out}
    return {**told, **_summary(case, costs, device)}


def _costs(contenders: dict[str, Contender], timings: list[list[Batch]], device: torch.device) -> dict[str, Cost]:
    """What each contender costs: memory, then traffic, then time."""
    first = timings[0][0]
    memory = {name: contender.peak_bytes(first, 1, device) for name, contender in contenders.items()}
    # One update more for each: the measurement of memory has taken from them what the allocator kept.
    traffic = {name: contender.traffic_bytes(first, 1, device) for name, contender in contenders.items()}
    seconds = _time(contenders, timings, device)
    costs = {}
    for name, contender in contenders.items():
        at_most = traffic.get(plain_of(name)) if contender.is_compiled else traffic[name]
        busy = busy_seconds(partial(_update_all, contender, timings[-1], 1), device)
        busy = None if busy is None else busy / len(timings[-1])
        costs[name] = Cost(seconds[name], memory[name], at_most, busy, contender.is_compiled)
    return costs


def _update_all(contender: Contender, batches: list[Batch], first_step: int) -> None:
    for place, batch in enumerate(batches):
        contender.update(batch, first_step + place)


def _time(contenders: dict[str, Contender], timings: list[list[Batch]], device: torch.device) -> dict[str, list[float]]:
    """Seconds an update of each contender in each timing, in turns on the same batches."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number, batches in enumerate(timings):
        for name, contender in contenders.items():
            began = now(device)
            _update_all(contender, batches, number * len(batches) + 1)
            seconds[name].append((now(device) - began) / len(batches))
        done = ", ".join(f"{name} {shown_seconds(times[-1])} s" for name, times in seconds.items())
        LOG.info(f"timing {number + 1} of {len(timings)}: {done}")
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
    Ratios are against our first contender that was measured; None where there is none.
    """
    from electra_albert.apps.pretrain.estimate import step_flops

    tokens = [fmean(int(batch.attention_mask.sum()) for batch in batches) for batches in case.timings]
    flops = step_flops(case.settings, case.settings.training.per_device_train_batch_size)
    roofs = Roofs.of(device, case.arithmetic)
    first, stock = first_of_ours(costs), costs.get(STOCK)
    contenders = {}
    for name, cost in costs.items():
        work = Work(flops, cost.traffic, median(cost.seconds), cost.busy_seconds, is_fused=cost.is_compiled)
        contenders[name] = {
            "tokens_per_second": spread([count / time for count, time in zip(tokens, cost.seconds, strict=True)]),
            "seconds_a_step": {**spread(cost.seconds), "values": cost.seconds},
            "ratio": _ratio(cost, costs[first]) if first else None,
            "peak_memory_bytes": cost.memory,
            "memory_of_stock": _quotient(cost.memory, stock.memory if stock else None),
            **roof_shares(work, device, case.arithmetic),
        }
    machine = {"matrix_flops_per_second": roofs.matrix, "copy_bytes_per_second": roofs.bandwidth}
    return {"flops_a_step": flops, "machine": machine, "contenders": contenders}


def _ratio(cost: Cost, ours: Cost) -> dict[str, float]:
    """How many times the seconds of ours a contender takes, timing by timing."""
    return spread([theirs / mine for theirs, mine in zip(cost.seconds, ours.seconds, strict=True)])


def _quotient(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None
