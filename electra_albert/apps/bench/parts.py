"""The smaller measurements: the encoder's forward pass beside stock's, and the building of training batches."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from electra_albert.apps.bench.config import BenchConfig, Say, spread
from electra_albert.apps.bench.contest import now
from electra_albert.apps.bench.fill_mask import format_fill_mask, measure_fill_mask
from electra_albert.apps.bench.lines import in_turns, make_bench_job
from electra_albert.apps.bench.machine import matrix_rate, peak_memory
from electra_albert.config import PretrainConfig
from electra_albert.contracts import Batch, UserError

if TYPE_CHECKING:
    from torch import nn

    from electra_albert.corpus.batches import TrainBatches
    from electra_albert.model.electra import Discriminator
    from electra_albert.objectives.rtd import ReplacedTokenDetection

__all__ = [
    "format_batches",
    "format_encoder",
    "format_fill_mask",
    "measure_batches",
    "measure_encoder",
    "measure_fill_mask",
]

OURS, STOCK = "ours", "stock"
TARGET_TOKENS = 7_500_000  # a second: three times what a GPU's step of preset small takes
MANY_ROWS = 1024
_ROWS_A_TIMING = 16_384
_GPU_CALLS = 10  # in a timing, where one takes milliseconds


def measure_encoder(config: BenchConfig, settings: PretrainConfig, say: Say) -> dict[str, Any]:
    """Seconds of a forward pass without gradient of ours and of stock's AlbertModel, in turns on one real batch.

    Raises UserError where the two do not compute the same.
    """
    import torch

    from electra_albert.apps.bench.stock import StockPair
    from electra_albert.model.flops import encoder_flops
    from electra_albert.training.step import autocast

    world, job = make_bench_job(config, settings, say)
    objective = cast("ReplacedTokenDetection", job.objective.eval())
    ours = objective.discriminator
    stock = StockPair(objective, is_tuned=False).to(world.device).eval().discriminator
    batch = job.batches.micro_batches(1)[0].to(world.device)
    check_same_encoder(ours, stock, batch)
    say("ours and stock give the same hidden states on the batch")
    ids, mask, segments = batch[:3]
    with torch.no_grad(), autocast(world.device, job.arithmetic):
        calls = {OURS: lambda: ours.encode(ids, mask, segments), STOCK: lambda: stock(ids, mask, segments)}
        settled = _settle_attention(stock, calls[STOCK], config, world.device)
        count = _GPU_CALLS if world.device.type == "cuda" else 1
        seconds = in_turns(calls, config.repeats, world.device, count)
        peaks = {name: peak_memory(call, world.device) for name, call in calls.items()}
    tokens = int(mask.sum())
    flops = len(ids) * encoder_flops(ours.config, ids.shape[1])
    roof = matrix_rate(world.device, job.arithmetic)
    contenders = {
        name: {
            "tokens_per_second": spread([tokens / second for second in times]),
            "seconds": spread(times),
            "ratio": spread([theirs / mine for theirs, mine in zip(times, seconds[OURS], strict=True)]),
            "flops_per_second": flops / median(times),
            "share_of_matrix_rate": flops / median(times) / roof,
            "peak_bytes": peaks[name],
        }
        for name, times in seconds.items()
    }
    return {
        "preset": config.presets[0],
        "precision": job.arithmetic,
        "rows": len(ids),
        "max_seq_length": ids.shape[1],
        "tokens": tokens,
        "flops": flops,
        "matrix_rate": roof,
        "repeats": config.repeats,
        "attention": settled,
        "contenders": contenders,
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


def _settle_attention(stock: nn.Module, call: Callable[[], object], config: BenchConfig, device: Any) -> str:
    """Set stock's attention to the one asked for or the faster one."""
    from electra_albert.apps.bench.stock import ATTENTIONS

    encoder = cast(Any, stock)
    seconds = {}
    for kind in ATTENTIONS if config.attention == "auto" else (config.attention,):
        encoder.set_attn_implementation(kind)
        (seconds[kind],) = in_turns({kind: call}, 1, device)[kind]
    fastest = min(seconds, key=lambda kind: seconds[kind])
    encoder.set_attn_implementation(fastest)
    return fastest


def format_encoder(result: dict[str, Any]) -> str:
    """The result as a table."""
    lines = [
        f"\nencoder, forward without gradient: preset {result['preset']}, {result['precision']}, {result['rows']} rows "
        f"of {result['max_seq_length']}, {result['tokens']:,} tokens, {result['repeats']} repeats (no target)\n"
        f"{'':<22}{'tokens/s':>10}{'lowest':>10}{'highest':>10}{'s':>10}{'TFLOP/s':>9}{'of matrix rate':>16}"
        f"{'peak MB':>9}{'ours is':>9}"
    ]
    for name, record in result["contenders"].items():
        rate = record["tokens_per_second"]
        label = f"{name} ({result['attention']})" if name == STOCK else name
        columns = f"{rate['median']:>10,.0f}{rate['lowest']:>10,.0f}{rate['highest']:>10,.0f}"
        against = "" if name == OURS else f"{record['ratio']['median']:>8.2f}x"
        peak = "-" if record["peak_bytes"] is None else f"{record['peak_bytes'] / 1e6:,.0f}"
        lines.append(
            f"{label:<22}{columns}{record['seconds']['median']:>10.4f}{record['flops_per_second'] / 1e12:>9.3f}"
            f"{record['share_of_matrix_rate']:>16.1%}{peak:>9}{against}"
        )
    lines.append(
        f"{result['flops'] / 1e9:,.1f} GFLOP a pass, of matrix products over all places, padding included; the matrix "
        f"rate is {result['matrix_rate'] / 1e12:.3f} TFLOP/s; peak: memory beyond weights and batch"
    )
    return "\n".join(lines)


def measure_batches(config: BenchConfig, settings: PretrainConfig, say: Say) -> dict[str, Any]:
    """Tokens a second, padding left out, of batches as the loop gets them: from the one thread that makes them."""
    from electra_albert.apps.prepare import prepare
    from electra_albert.corpus.batches import TrainBatches
    from electra_albert.corpus.examples import Rows
    from electra_albert.corpus.tokenizer import special_ids
    from electra_albert.training.distributed import start

    device = start(config.device).device
    prepared = prepare(settings.corpus, config.seed, say)
    length = settings.corpus.max_seq_length
    special = special_ids(prepared.tokenizer)
    rows = Rows(prepared.store.train, prepared.train_table, length, config.seed, special=special)
    own = settings.training.per_device_train_batch_size
    records: list[dict[str, Any]] = []
    for count in dict.fromkeys((own, MANY_ROWS)):
        batches = TrainBatches(rows, prepared.order, count, pin_memory=device.type == "cuda")
        rates = _batch_rates(batches, config.repeats)
        records.append({"rows": count, "tokens_per_second": spread(rates)})
        say(f"batches of {count} rows: {records[-1]['tokens_per_second']['median']:,.0f} tokens/s")
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
