"""The smaller measurements: the encoder's forward pass beside stock's, and the building of training batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from electra_albert.apps.bench.config import ATTENTIONS, OURS, STOCK, BenchConfig, spread
from electra_albert.apps.bench.lines import make_bench_job
from electra_albert.apps.bench.machine import peak_memory
from electra_albert.apps.bench.roofs import Roofs, Work, busy_seconds, roof_shares
from electra_albert.apps.bench.tables import roof_lines
from electra_albert.apps.bench.timing import UPDATES_A_TIMING, in_turns, now, shown_seconds
from electra_albert.config import PretrainConfig
from electra_albert.contracts import Batch, UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from electra_albert.contracts import Arithmetic
    from electra_albert.corpus.batches import TrainBatches
    from electra_albert.model.electra import Discriminator
    from electra_albert.objectives.rtd import ReplacedTokenDetection

LOG = logging.getLogger(__name__)

TARGET_TOKENS = 7_500_000  # a second: three times what a GPU's step of preset small takes
MANY_ROWS = 1024
_ROWS_A_TIMING = 16_384
_TURNS = 2  # of the kinds of attention, before the faster one is taken


def measure_encoder(config: BenchConfig, settings: PretrainConfig) -> dict[str, Any]:
    """Seconds of a forward pass without gradient of ours and of stock's AlbertModel, in turns on one real batch.

    Raises UserError where the two do not compute the same.
    """
    import torch

    from electra_albert.apps.bench.stock import StockPair
    from electra_albert.model.flops import encoder_flops
    from electra_albert.training.step import autocast

    world, job = make_bench_job(config, settings)
    objective = cast("ReplacedTokenDetection", job.objective.eval())
    ours = objective.discriminator
    stock = StockPair(objective, is_tuned=False).to(world.device).eval().discriminator
    batch = job.batches.micro_batches(1)[0].to(world.device)
    check_same_encoder(ours, stock, batch)
    LOG.info("ours and stock give the same hidden states on the batch")
    ids, mask, segments = batch[:3]
    with torch.no_grad(), autocast(world.device, job.arithmetic):
        calls = {OURS: lambda: ours.encode(ids, mask, segments), STOCK: lambda: stock(ids, mask, segments)}
        settled = _settle_attention(stock, calls[STOCK], config, world.device)
        costs = _costs(calls, config.repeats, world.device)
    tokens, flops = int(mask.sum()), len(ids) * encoder_flops(ours.config, ids.shape[1])
    roofs = Roofs.of(world.device, job.arithmetic)
    return {
        "preset": config.presets[0],
        "precision": job.arithmetic,
        "rows": len(ids),
        "max_seq_length": ids.shape[1],
        "tokens": tokens,
        "flops": flops,
        "matrix_rate": roofs.matrix,
        "copy_rate": roofs.bandwidth,
        "repeats": config.repeats,
        "attention": settled,
        "contenders": _encoder_records(costs, tokens, flops, world.device, job.arithmetic),
    }


class _Cost(NamedTuple):
    """What was measured of one contender."""

    seconds: list[float]  # a pass, of each timing
    peak: int | None  # bytes at the highest, beyond what is resident
    traffic: int  # bytes that kernels read and write
    busy_seconds: float | None  # that a GPU computes in a pass


def _costs(calls: Mapping[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, _Cost]:
    from electra_albert.apps.bench.traffic import TrafficCounter

    count = UPDATES_A_TIMING[device.type]
    seconds = in_turns(calls, repeats, device, count)
    costs = {}
    for name, call in calls.items():
        peak = peak_memory(call, device)
        with TrafficCounter(device.type) as counter:
            call()
        busy = busy_seconds(lambda call=call: [call() for _ in range(count)], device)  # type: ignore[misc]
        costs[name] = _Cost(seconds[name], peak, counter.bytes, None if busy is None else busy / count)
    return costs


def _encoder_records(
    costs: dict[str, _Cost], tokens: int, flops: int, device: torch.device, arithmetic: Arithmetic
) -> dict[str, Any]:
    """What is reported of each contender; ratios are those of timings side by side."""
    ours = costs[OURS].seconds
    return {
        name: {
            "tokens_per_second": spread([tokens / second for second in cost.seconds]),
            "seconds": spread(cost.seconds),
            "ratio": spread([theirs / mine for theirs, mine in zip(cost.seconds, ours, strict=True)]),
            "peak_bytes": cost.peak,
            **roof_shares(Work(flops, cost.traffic, median(cost.seconds), cost.busy_seconds), device, arithmetic),
        }
        for name, cost in costs.items()
    }


def check_same_encoder(ours: Discriminator, stock: nn.Module, batch: Batch) -> None:
    """UserError unless both give the same hidden states, in float32, wherever `batch` has tokens."""
    import torch

    from electra_albert.apps.bench.stock import LOSS_TOLERANCE

    ids, mask, segments = batch[:3]
    with torch.no_grad():
        found = ours.encode(ids, mask, segments)[mask]
        expected = stock(ids, mask, segments).last_hidden_state[mask]
    difference = float((found - expected).norm() / expected.norm())
    if not difference <= LOSS_TOLERANCE:
        raise UserError(
            f"ours and stock do not compute the same: hidden states differ by {difference:.1e} of their norm; "
            "no ratio is printed: install the versions that requirements.txt pins"
        )


def _settle_attention(stock: nn.Module, call: Callable[[], object], config: BenchConfig, device: torch.device) -> str:
    """Set stock's attention to the one asked for or the faster one."""
    encoder = cast(Any, stock)

    def call_with(kind: str) -> None:
        encoder.set_attn_implementation(kind)
        call()

    kinds = ATTENTIONS if config.attention == "auto" else (config.attention,)
    calls = {kind: partial(call_with, kind) for kind in kinds}
    seconds = in_turns(calls, _TURNS, device, UPDATES_A_TIMING[device.type])
    fastest = min(kinds, key=lambda kind: min(seconds[kind]))
    encoder.set_attn_implementation(fastest)
    return fastest


def format_encoder(result: dict[str, Any]) -> str:
    """The result as a table."""
    lines = [
        f"\nencoder, forward without gradient: preset {result['preset']}, {result['precision']}, {result['rows']} rows "
        f"of {result['max_seq_length']}, {result['tokens']:,} tokens, {result['repeats']} repeats (no target)\n"
        f"{'':<31}{'tokens/s':>11}{'lowest':>11}{'highest':>11}{'s':>10}{'ours is':>9}{'peak MB':>11}"
    ]
    shown = {f"{n} ({result['attention']})" if n == STOCK else n: found for n, found in result["contenders"].items()}
    for name, record in shown.items():
        rate, peak = record["tokens_per_second"], record["peak_bytes"]
        columns = f"{rate['median']:>11,.0f}{rate['lowest']:>11,.0f}{rate['highest']:>11,.0f}"
        against = "-" if name == OURS else f"{record['ratio']['median']:.2f}x"
        lines.append(
            f"{name:<31}{columns}{shown_seconds(record['seconds']['median']):>10}{against:>9}"
            f"{'-' if peak is None else format(peak / 1e6, ',.0f'):>11}"
        )
    lines += [
        "",
        *roof_lines(shown),
        f"{result['flops'] / 1e9:,.1f} GFLOP a pass, of matrix products over all places, padding included; measured "
        f"here: {result['matrix_rate'] / 1e12:.3g} TFLOP/s, {result['copy_rate'] / 1e9:,.0f} GB/s of copying;",
        "peak: memory beyond weights and batch; columns are explained at the training step's tables",
    ]
    return "\n".join(lines)


def measure_batches(config: BenchConfig, settings: PretrainConfig) -> dict[str, Any]:
    """Tokens a second, padding left out, of batches as the loop gets them: from the one thread that makes them."""
    from electra_albert.apps.prepare.main import prepare
    from electra_albert.corpus.batches import TrainBatches
    from electra_albert.corpus.examples import Rows
    from electra_albert.corpus.tokenizer import special_ids
    from electra_albert.training.distributed import start

    device = start(config.device).device
    prepared = prepare(settings.corpus, config.seed)
    length = settings.corpus.max_seq_length
    special = special_ids(prepared.tokenizer)
    rows = Rows(prepared.store.train, prepared.train_table, length, config.seed, special=special)
    own = settings.training.per_device_train_batch_size
    records: list[dict[str, Any]] = []
    for count in dict.fromkeys((own, MANY_ROWS)):
        batches = TrainBatches(rows, prepared.order, count, pin_memory=device.type == "cuda")
        rates = _batch_rates(batches, config.repeats)
        records.append({"rows": count, "tokens_per_second": spread(rates)})
        LOG.info(f"batches of {count} rows: {records[-1]['tokens_per_second']['median']:,.0f} tokens/s")
    return {
        "preset": config.presets[0],
        "max_seq_length": length,
        "repeats": config.repeats,
        "records": records,
        "target": TARGET_TOKENS,
    }


def _batch_rates(batches: TrainBatches, repeats: int) -> list[float]:
    """Tokens a second of some batches, one after the other; what was made ahead is used up before."""
    import torch

    host = torch.device("cpu")
    count = -(-_ROWS_A_TIMING // batches.per_device_train_batch_size)
    steps = batches.steps(1)
    rates = []
    for _ in range(repeats + 1):
        tokens, began = 0, now(host)
        for _ in range(count):
            tokens += sum(int(batch.attention_mask.sum()) for batch in next(steps))  # as the loop counts them too
        rates.append(tokens / (now(host) - began))
    return rates[1:]


def format_batches(result: dict[str, Any]) -> str:
    """The result as a table."""
    lines = [
        f"\ntraining batches from the token store: preset {result['preset']}, rows of {result['max_seq_length']}, "
        f"{result['repeats']} repeats\n{'':<22}{'tokens/s':>14}{'lowest':>14}{'highest':>14}{'of target':>11}"
    ]
    for record in result["records"]:
        rate = record["tokens_per_second"]
        columns = f"{rate['median']:>14,.0f}{rate['lowest']:>14,.0f}{rate['highest']:>14,.0f}"
        lines.append(
            f"{'batches of ' + format(record['rows'], ','):<22}{columns}{rate['median'] / result['target']:>11.0%}"
        )
    lines.append(
        "as the loop gets them, from the one thread that makes them ahead; tokens that are no padding\n"
        f"target for preset small on a host of 16 cores: {result['target']:,} tokens/s, 3 x what a GPU's step takes"
    )
    return "\n".join(lines)
