"""Real text, end to end: updates from the token store beside a plain loop over tokenised lines, padded as usual."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

from electra_albert.apps.bench.config import ATTENTIONS, BenchConfig, first_of_ours, ours_named, spread
from electra_albert.apps.bench.lines import make_bench_job, sample_lines
from electra_albert.apps.bench.timing import UPDATES_A_TIMING, now, shown_seconds
from electra_albert.config import PretrainConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, DataError

if TYPE_CHECKING:
    import torch

    from electra_albert.apps.pretrain.job import Job
    from electra_albert.objectives.rtd import ReplacedTokenDetection
    from electra_albert.training.distributed import World

LOG = logging.getLogger(__name__)

Padding = Literal["longest", "max_length"]
Row = dict[str, list[int]]

TARGET_RATIO = 2.0  # ours over stock padded to the longest, in tokens that are no padding, on a CPU
LONGEST, PADDED = "stock, padded to the longest", "stock, padded to the full length"
TOGETHER = "stock, lines run together"
PADDINGS: dict[str, Padding] = {LONGEST: "longest", PADDED: "max_length", TOGETHER: "longest"}
_SHORTEST = 3  # tokens: [CLS], one of text, [SEP]


@dataclass
class _Contestant:
    """One side of the contest: where its batches come from, and what is done with each."""

    batches: Iterator[Batch]
    update: Callable[[Batch, int], None]
    steps: int = 0
    tokens: list[int] = field(default_factory=list)  # of each timing, padding left out
    places: list[int] = field(default_factory=list)  # of each timing, padding included
    seconds: list[float] = field(default_factory=list)  # of each timing

    def take(self, updates: int, device: torch.device) -> None:
        """Fetch and train on some batches, and note what that took."""
        masks = []
        began = now(device)
        for _ in range(updates):
            batch = next(self.batches)
            self.steps += 1
            self.update(batch, self.steps)
            masks.append(batch.attention_mask)
        self.seconds.append(now(device) - began)
        self.tokens.append(sum(int(mask.sum()) for mask in masks))
        self.places.append(sum(mask.numel() for mask in masks))


def measure_text(config: BenchConfig, settings: PretrainConfig) -> dict[str, Any]:
    """Tokens a second, padding left out, of ours and of stock with each way of filling its rows, in turns.

    From asking for a batch to the end of the update. Tokenising is timed for none: both prepare their text once.
    """
    world, job = make_bench_job(config, settings)
    length, tokenizer = settings.corpus.max_seq_length, job.prepared.tokenizer
    rows = tokenised(sample_lines(settings.corpus, config.seed), tokenizer, length)
    _require(rows, job.config.training.per_device_train_batch_size, "lines")
    LOG.info(f"stock reads {len(rows):,} lines of {_mean_tokens(rows):.0f} tokens")
    contestants, attention = _contestants(config, job, world, rows)
    LOG.info(f"ours and stock give the same losses and gradient norm on stock's batches; attention: {attention}")
    updates = UPDATES_A_TIMING[world.device.type]
    for repeat in range(config.repeats + 1):
        for contestant in contestants.values():
            contestant.take(updates, world.device)
        told = ", ".join(f"{name} {c.tokens[-1] / c.seconds[-1]:,.0f}" for name, c in contestants.items())
        LOG.info(f"{f'turn {repeat} of {config.repeats}' if repeat else 'warm-up'}: tokens/s {told}")
    return {
        "preset": config.presets[0],
        "device": world.device.type,
        "precision": job.arithmetic,
        "vocab_size": len(tokenizer),
        "max_seq_length": length,
        "rows": job.config.training.per_device_train_batch_size,
        "updates_a_timing": updates,
        "repeats": config.repeats,
        "lines": len(rows),
        "mean_line_tokens": _mean_tokens(rows),
        "attention": attention,
        "contenders": _records(contestants, updates),
        "target": TARGET_RATIO,
    }


def _contestants(
    config: BenchConfig, job: Job, world: World, rows: list[Row]
) -> tuple[dict[str, _Contestant], dict[str, str | None]]:
    """All sides with the same weights, stock warm and checked, and stock's attention.

    Ours is compiled as a run's is here. Stock's script is not: rows padded to their longest change their shape.
    """
    from electra_albert.apps.bench.contenders import check_stock, our_contender, settle_attention, stock_contender
    from electra_albert.apps.bench.stock import StockPair
    from electra_albert.apps.pretrain.job import choose_compilation
    from electra_albert.model.compilation import compile_for_training

    kinds = ATTENTIONS if config.attention == "auto" else (config.attention,)
    ours, training = cast("ReplacedTokenDetection", job.objective), job.config.training
    mine = our_contender(ours, training, world, job.arithmetic)
    found, attention = {}, {}
    for name, padding in PADDINGS.items():
        pair = StockPair(ours, is_tuned=False).to(world.device)
        pair.use_attention(ATTENTIONS[0])
        contender = stock_contender(pair, training, world, job.arithmetic)
        filled = blocks(rows, job.config.corpus.max_seq_length) if name == TOGETHER else rows
        _require(filled, training.per_device_train_batch_size, "rows of lines run together")
        batches = stock_batches(filled, job.prepared.tokenizer, job.config, padding, pin=world.device.type == "cuda")
        first = next(batches)
        check_stock(ours, {name: contender}, first.to(world.device))
        settle_attention(contender, kinds, first, world.device)
        attention[name] = contender.attention
        found[name] = _Contestant(batches, contender.update)
    compilation = choose_compilation("auto", world.device)
    compile_for_training(ours, compilation)  # only now: what was checked is the plain function
    batches = (micro_batches[0] for micro_batches in job.batches.steps(1))
    return {ours_named(compilation): _Contestant(batches, mine.update), **found}, attention


def _require(rows: list[Row], count: int, what: str) -> None:
    if len(rows) < count:
        raise DataError(f"the corpus gives {len(rows)} {what}, a step takes {count}; lower the batch size")


def tokenised(lines: list[str], tokenizer: Any, length: int) -> list[Row]:
    """What transformers' tokenizer makes of each line on its own, cut at `length` tokens; lines without a token go."""
    from electra_albert.hub.save import quiet_transformers

    with quiet_transformers():
        found = tokenizer(lines, truncation=True, max_length=length, return_token_type_ids=True)
    names = ("input_ids", "token_type_ids", "attention_mask")
    rows = [dict(zip(names, row, strict=True)) for row in zip(*(found[name] for name in names), strict=True)]
    return [row for row in rows if len(row["input_ids"]) >= _SHORTEST]


def blocks(rows: list[Row], length: int) -> list[Row]:
    """All rows run together and cut into full ones of `length` tokens, as run_mlm.py does unless told otherwise."""
    together = {name: list(chain.from_iterable(row[name] for row in rows)) for name in rows[0]}
    ends = range(length, len(together["input_ids"]) + 1, length)
    return [{name: values[end - length : end] for name, values in together.items()} for end in ends]


def stock_batches(
    rows: list[Row], tokenizer: Any, config: PretrainConfig, padding: Padding, *, pin: bool
) -> Iterator[Batch]:
    """Batches without end as torch's DataLoader and transformers' collator make them; there must be rows for one."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithPadding

    count = config.training.per_device_train_batch_size
    loader = DataLoader(
        cast(Any, rows),
        batch_size=count,
        shuffle=True,
        drop_last=True,
        collate_fn=DataCollatorWithPadding(tokenizer, padding=padding, max_length=config.corpus.max_seq_length),
        generator=torch.Generator().manual_seed(config.training.seed),
    )
    no_order = torch.full((count,), IGNORED_LABEL)
    position = torch.arange(count)
    while True:
        for found in loader:
            mask = found["attention_mask"].bool()
            batch = Batch(found["input_ids"], mask, found["token_type_ids"], no_order, position)
            yield batch.map(torch.Tensor.pin_memory) if pin else batch
            position = position + count


def _mean_tokens(rows: list[Row]) -> float:
    return sum(len(row["input_ids"]) for row in rows) / len(rows)


def _records(contestants: dict[str, _Contestant], updates: int) -> dict[str, Any]:
    """What is shown of each after timings of so many updates, of which the first is the warm-up's.

    Ratios are those of timings side by side.
    """
    rates = {
        name: [tokens / seconds for tokens, seconds in zip(c.tokens[1:], c.seconds[1:], strict=True)]
        for name, c in contestants.items()
    }
    mine = rates[str(first_of_ours(rates))]
    return {
        name: {
            "tokens_per_second": spread(rates[name]),
            "seconds_a_step": spread([seconds / updates for seconds in c.seconds[1:]]),
            "padding": 1 - sum(c.tokens[1:]) / sum(c.places[1:]),
            "ratio": spread([our / their for our, their in zip(mine, rates[name], strict=True)]),
        }
        for name, c in contestants.items()
    }


def format_text(result: dict[str, Any]) -> str:
    """The result as a table."""
    heading = (
        f"{'tokens/s':>10}{'lowest':>10}{'highest':>10}{'padding':>9}{'s a step':>10}{'ours is':>9}   of each turn"
    )
    lines = [
        f"\nreal text, end to end: preset {result['preset']}, {result['precision']}, {result['rows']} rows of at most "
        f"{result['max_seq_length']}, V {result['vocab_size']:,}, {result['repeats']} repeats\n{'':<42}{heading}"
    ]
    for name, record in result["contenders"].items():
        rate, ratio = record["tokens_per_second"], record["ratio"]
        columns = f"{rate['median']:>9,.0f}{rate['lowest']:>9,.0f}{rate['highest']:>9,.0f}{record['padding']:>9.1%}"
        against = (
            ""
            if name == first_of_ours(result["contenders"])
            else f"{ratio['median']:>8.2f}x   {ratio['lowest']:.2f} to {ratio['highest']:.2f}"
        )
        label = f"{name} ({result['attention'][name]})" if name in result["attention"] else name
        lines.append(f"{label:<42}{columns}{shown_seconds(record['seconds_a_step']['median']):>10}{against}")
    lines += [
        "tokens are those that are no padding; batching, collating and the update are timed, tokenising for none",
        f"stock reads {result['lines']:,} lines of {result['mean_line_tokens']:.0f} tokens, one a row; run together, "
        "they are cut into full rows",
        f"target on a CPU: {result['target']} x stock, padded to the longest{_verdict(result)}",
    ]
    return "\n".join(lines)


def _verdict(result: dict[str, Any]) -> str:
    if result["device"] != "cpu":
        return ""
    reached = result["contenders"][LONGEST]["ratio"]["median"]
    return f": {'met' if reached >= result['target'] else 'missed'}, {reached:.2f}"
