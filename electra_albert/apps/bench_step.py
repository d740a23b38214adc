"""The joint training step, ours and two of stock classes: one process, in turns, on the same real batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from electra_albert.apps.bench_config import spread
from electra_albert.contracts import DataError, Objective

if TYPE_CHECKING:
    import torch

    from electra_albert.apps.bench_config import BenchConfig
    from electra_albert.apps.bench_stock import StockPair
    from electra_albert.config import PretrainConfig
    from electra_albert.contracts import Batch
    from electra_albert.objectives.rtd import ReplacedTokenDetection
    from electra_albert.training.distributed import World

OURS, STOCK, TUNED = "ours", "stock", "stock, tuned"
TARGET_RATIO = 1.3  # ours over stock

Update = Callable[["Batch", int], None]


def measure_step(config: BenchConfig, preset: PretrainConfig, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds a step of ours, stock and stock tuned, in turns on the same batches.

    Raises UserError where the three do not compute the same: a ratio would say nothing.
    """
    from electra_albert.apps.bench_stock import ATTENTIONS, StockPair, check_same_function
    from electra_albert.training.distributed import start

    world = start(config.device)
    ours, batches = _make_ours(config, preset, world.device, say)
    pairs = {name: StockPair(ours, is_tuned=name == TUNED).to(world.device) for name in (STOCK, TUNED)}
    for pair in pairs.values():
        pair.use_attention(ATTENTIONS[0])
        check_same_function(ours, pair, batches[0].to(world.device))
    say("ours, stock and stock tuned give the same losses and gradient norm on the first batch")
    updates: dict[str, Update] = {OURS: _our_update(ours, config, preset, world)}
    attention = {}
    for name, pair in pairs.items():
        updates[name] = _stock_update(pair, config, preset, world)
        attention[name] = _settle_attention(pair, updates[name], config, batches[0], world.device)
    updates[OURS](batches[0], 1)  # warm, as the others are by now
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for step, batch in enumerate(batches, start=1):
        for name, update in updates.items():
            seconds[name].append(_timed(update, batch, step, world.device))
        say(f"step {step}: " + ", ".join(f"{name} {times[-1]:.3f} s" for name, times in seconds.items()))
    return _summary(config, ours, batches, seconds, attention)


def _make_ours(
    config: BenchConfig, preset: PretrainConfig, device: torch.device, say: Callable[[str], None]
) -> tuple[ReplacedTokenDetection, list[Batch]]:
    """The objective with its initial weights, and one batch of real rows a repeat."""
    import torch

    from electra_albert.apps.prepare import prepare
    from electra_albert.corpus.batches import TrainBatches
    from electra_albert.corpus.examples import Rows
    from electra_albert.corpus.tokenizer import special_ids
    from electra_albert.objectives.masking import SpecialIds
    from electra_albert.objectives.rtd import ReplacedTokenDetection

    prepared = prepare(preset.corpus, config.seed, say)
    tokenizer = prepared.tokenizer
    store, special = prepared.store, special_ids(tokenizer)
    rows = Rows(store.train, prepared.train_table, config.max_seq_length, config.seed, special=special)
    if rows.table.count < config.per_device_train_batch_size:
        raise DataError(
            f"the corpus gives {rows.table.count} rows, a step takes {config.per_device_train_batch_size}; "
            "lower --per_device_train_batch_size or give more text"
        )
    batches = TrainBatches(rows, prepared.order, config.per_device_train_batch_size)
    vocab_size = len(tokenizer) if config.tokenizer else max(config.vocab_size, len(tokenizer))
    torch.manual_seed(config.seed)
    masking = SpecialIds(tokenizer.mask_token_id, tuple(sorted(tokenizer.all_special_ids)))
    model = replace(preset.model, vocab_size=vocab_size)
    ours = ReplacedTokenDetection(model, preset.rtd, masking, config.seed).to(device)
    return ours, [batches.micro_batches(step)[0] for step in range(1, config.repeats + 1)]


def _our_update(ours: ReplacedTokenDetection, config: BenchConfig, preset: PretrainConfig, world: World) -> Update:
    """One update by the training loop's own pieces."""
    from torch import nn

    from electra_albert.training.guards import StopSignal
    from electra_albert.training.monitor import Monitor
    from electra_albert.training.optimizer import build_optimizer
    from electra_albert.training.run import Run
    from electra_albert.training.step import backward, count_step, term_scales

    training = preset.training
    monitor = Monitor(Path(), training.max_steps, is_main=False)  # writes nothing
    run = Run(Path(), training, world, monitor, StopSignal(), config.precision)
    optimizer = build_optimizer(ours, training)

    def update(batch: Batch, step: int) -> None:
        counts = count_step(cast(Objective, ours), [batch], run)
        backward(ours, [batch], term_scales(ours.weights, counts.terms, world.world_size), step, run)
        nn.utils.clip_grad_norm_(ours.parameters(), training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update


def _stock_update(pair: StockPair, config: BenchConfig, preset: PretrainConfig, world: World) -> Update:
    """One update as a plain training script makes it, with the same optimiser and clipping."""
    import torch
    from torch import nn

    from electra_albert.training.optimizer import build_optimizer

    training = preset.training
    optimizer = build_optimizer(pair, training)

    def update(batch: Batch, step: int) -> None:
        with torch.autocast(world.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            losses = pair(batch.to(world.device))
        torch.stack([losses[name] * weight for name, weight in pair.weights.items()]).sum().backward()
        nn.utils.clip_grad_norm_(pair.parameters(), training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update


def _settle_attention(pair: StockPair, update: Update, config: BenchConfig, batch: Batch, device: torch.device) -> str:
    """Set stock's attention to the one asked for or the faster one; the pair is warm afterwards."""
    from electra_albert.apps.bench_stock import ATTENTIONS

    seconds = {}
    for kind in ATTENTIONS if config.attention == "auto" else (config.attention,):
        pair.use_attention(kind)
        update(batch, 1)
        seconds[kind] = _timed(update, batch, 1, device)
    fastest = min(seconds, key=lambda kind: seconds[kind])
    pair.use_attention(fastest)
    return fastest


def _timed(update: Update, batch: Batch, step: int, device: torch.device) -> float:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    update(batch, step)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _summary(
    config: BenchConfig,
    ours: ReplacedTokenDetection,
    batches: list[Batch],
    seconds: dict[str, list[float]],
    attention: dict[str, str],
) -> dict[str, Any]:
    """Rates in tokens that are not padding; ratios are medians of those of one batch each, timed side by side."""
    tokens = [int(batch.attention_mask.sum()) for batch in batches]
    contenders = {}
    for name, times in seconds.items():
        contenders[name] = {
            "tokens_per_second": spread([count / time for count, time in zip(tokens, times, strict=True)]),
            "seconds_a_step": spread(times),
            "ratio": spread([theirs / mine for theirs, mine in zip(times, seconds[OURS], strict=True)]),
        }
    return {
        "preset": config.preset,
        "vocab_size": ours.electra.discriminator.config.vocab_size,
        "max_seq_length": config.max_seq_length,
        "rows": config.per_device_train_batch_size,
        "repeats": config.repeats,
        "attention": attention,
        "contenders": contenders,
        "target": TARGET_RATIO,
    }


def format_step(result: dict[str, Any]) -> str:
    """The result as a table."""
    heading = (
        f"\njoint RTD step: preset {result['preset']}, {result['rows']} rows of {result['max_seq_length']}, "
        f"V {result['vocab_size']:,}, {result['repeats']} repeats (ours must be {result['target']} x stock)\n"
        f"{'':<22}{'tokens/s':>10}{'lowest':>10}{'highest':>10}{'s a step':>10}{'ours is':>9}   of each batch"
    )
    lines = [heading]
    for name, record in result["contenders"].items():
        rate, ratio = record["tokens_per_second"], record["ratio"]
        label = f"{name} ({result['attention'][name]})" if name in result["attention"] else name
        columns = f"{rate['median']:>10,.0f}{rate['lowest']:>10,.0f}{rate['highest']:>10,.0f}"
        times = f"{record['seconds_a_step']['median']:>10.3f}"
        against = "" if name == OURS else f"{ratio['median']:>8.2f}x   {ratio['lowest']:.2f} to {ratio['highest']:.2f}"
        lines.append(f"{label:<22}{columns}{times}{against}")
    return "\n".join(lines)
