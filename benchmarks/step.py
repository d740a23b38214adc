"""The training step, ours and stock's: in one process, in turns, on the same batches of text.

ours: an update by the training loop's functions. stock: the same networks, of stock classes, updated by a plain script.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, cycle, islice, product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from benchmarks.config import BenchConfig, bench_job, pretraining
from benchmarks.stock import ATTENTIONS, StockPair, check_same_function
from benchmarks.timing import LOG, OURS, STOCK, Record, compare, in_turns, matrix_speed, peak_memory, seconds_per_call
from electra_albert.apps.pretrain.job import Job, choose_arithmetic, choose_compilation
from electra_albert.apps.pretrain.trial import flops_per_step
from electra_albert.contracts import Batch, Objective
from electra_albert.model.compilation import Compilation, compile_for_training
from electra_albert.objectives.rtd import PretrainingObjective, ReplacedTokenDetection
from electra_albert.training.distributed import World, start
from electra_albert.training.guards import StopSignal, UpdateGuard
from electra_albert.training.monitor import Monitor, Tally
from electra_albert.training.optimizer import build_optimizer
from electra_albert.training.step import RunSettings, autocast, backward, count_step, term_scales

TUNED, TUNED_COMPILED = "stock, tuned", "stock, tuned, compiled"
COMPILED: dict[str, Compilation] = {f"{OURS}, blocks compiled": "blocks", f"{OURS}, step compiled": "step"}
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_CHECKED_EXAMPLES = 16  # of the first batch, on which ours and stock must agree
_BATCHES = 10  # that each implementation cycles through
_UPDATES = {"cpu": 3, "cuda": 10}  # per timing
_NOTES = [
    "stock, tuned: logits at the masked positions only. Tokens exclude padding. MFU: FLOPs of our step, with padding,",
    "per second, over the measured speed of a matrix product, for all. Memory: with weights and optimizer state",
]


class Implementation(NamedTuple):
    """A model with its optimizer, and the function that makes one update on a batch."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    update: Callable[[Batch], None]

    def resident_bytes(self) -> int:
        """Bytes of weights, buffers and the optimizer's state."""
        state = [value for of_one in self.optimizer.state.values() for value in of_one.values()]
        tensors = [*self.module.parameters(), *self.module.buffers(), *state]
        return sum({t.data_ptr(): t.nbytes for t in tensors if isinstance(t, Tensor)}.values())


def measure_step(config: BenchConfig) -> Iterator[Record]:
    """A record for each preset, objective, precision and batch size. Raises UserError if stock's losses differ."""
    world = start(config.device)
    wanted: Any = {False: "none", True: "blocks"}.get(cast("Any", config.torch_compile), "auto")
    is_compiled = choose_compilation(wanted, world.device) != "none"
    precisions = {choose_arithmetic(cast("Any", name), world.device) for name in config.values("precision")}
    for preset, objective in product(config.values("preset"), config.values("objective")):
        settings = pretraining(config, preset, objective)
        sizes = config.batch_sizes(world.device.type, settings.corpus.max_seq_length)
        for precision, size in product(sorted(precisions), sizes):
            job = bench_job(config, settings, world, size, precision)
            title = f"step: {objective}, preset {preset}, {precision}, {size} x {settings.corpus.max_seq_length}"
            LOG.info(title)
            yield _measure(config, job, world, title, is_compiled=is_compiled)
            del job  # before the next one is made
            torch.compiler.reset()  # otherwise later shapes would count as recompilations, which are limited
            if world.device.type == "cuda":
                torch.cuda.empty_cache()


def _measure(config: BenchConfig, job: Job, world: World, title: str, *, is_compiled: bool) -> Record:
    device, objective = world.device, job.objective
    steps: Any = job.batches.steps(1)
    batches: list[Batch] = [micro_batches[0] for micro_batches in islice(steps, _BATCHES)]
    steps.close()
    few = batches[0].map(lambda field: field[:_CHECKED_EXAMPLES]).to(device)
    flops = flops_per_step(job.config)[-1][1]
    found = implementations(job, world, is_compiled=is_compiled)
    for name, one in found.items():
        if isinstance(one.module, StockPair):
            check_same_function(cast(ReplacedTokenDetection, objective), one.module, few)
            LOG.info(f"{name}: same losses and gradient norms as ours")
    left_out = make_ready(found, batches[0])
    rounds = {name: cycle(batches) for name in found}
    calls = {name: lambda name=name: found[name].update(next(rounds[name])) for name in found}
    memory = {name: peak_memory(call, device) for name, call in calls.items()}
    timings = {name: partial(seconds_per_call, call, _UPDATES[device.type]) for name, call in calls.items()}
    tokens = fmean(int(batch.attention_mask.sum()) for batch in batches)
    baseline = STOCK if STOCK in found else next(iter(found))
    results = compare(in_turns(timings, config.repeats), tokens, baseline)
    machine = matrix_speed(device, _DTYPES[job.arithmetic])
    for name, result in results.items():
        peak = memory[name]
        result["MFU"] = flops / result["seconds"]["median"] / machine
        result["memory GB"] = None if peak is None else (peak + found[name].resident_bytes()) / 1e9
    return {
        "title": f"{title}, vocabulary {job.config.model.vocab_size:,}",
        "unit": "tokens/s",
        "baseline": baseline,
        "results": results,
        "columns": {"MFU": ".1%", "memory GB": ".2f"},
        "notes": [*_NOTES, *(f"{name} is not measured: out of memory" for name in left_out)],
        "tokens_per_step": tokens,
        "flops_per_step": flops,
        "matrix_flops_per_second": machine,
        "attention": {n: one.module.attention for n, one in found.items() if isinstance(one.module, StockPair)},
    }


def implementations(job: Job, world: World, *, is_compiled: bool) -> dict[str, Implementation]:
    """Ours, and for rtd stock's pair, plain and tuned, each with its own weights; is_compiled: also compiled."""
    ours = job.objective
    found = {OURS: our_implementation(ours, job, world)}
    for name, compilation in COMPILED.items() if is_compiled else ():
        module = copy.deepcopy(ours)
        compile_for_training(module, compilation)
        found[name] = our_implementation(module, job, world)
    if type(ours) is ReplacedTokenDetection:
        for name in (STOCK, TUNED, TUNED_COMPILED) if is_compiled else (STOCK, TUNED):
            pair = StockPair(ours, is_tuned=name != STOCK).to(world.device)
            found[name] = stock_implementation(pair, job, world)
    return found


def our_implementation(objective: PretrainingObjective, job: Job, world: World) -> Implementation:
    """An update by the training loop's functions, with its checks and its sums for the log."""
    training = job.config.training
    run = RunSettings(Path(), training, world, Monitor(Path(), 1, is_main=False), StopSignal(), job.arithmetic)
    optimizer: Any = build_optimizer(objective, training, objective.lr_multipliers)
    guard, tally, step = UpdateGuard(world.device), Tally(world.device), count(1)
    has_overflowed = torch.zeros((), dtype=torch.bool, device=world.device)  # only fp16 sets it
    objective.train()

    def update(batch: Batch) -> None:
        counts = count_step(cast(Objective, objective), [batch], 1, run)
        scales = term_scales(objective.weights, counts.terms, world.world_size)
        terms = backward(objective, [batch], scales, next(step), run)
        norm = nn.utils.clip_grad_norm_(objective.parameters(), training.max_grad_norm)
        is_finite = guard.observe(norm, has_overflowed)
        optimizer.found_inf = (~is_finite).float()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tally.add(terms, is_finite)

    return Implementation(objective, optimizer, update)


def stock_implementation(pair: StockPair, job: Job, world: World) -> Implementation:
    """An update of a plain training script, with the same optimizer, learning rates and gradient clipping."""
    optimizer = build_optimizer(pair, job.config.training, pair.lr_multipliers)
    pair.use_attention(ATTENTIONS[0])
    pair.train()

    def update(batch: Batch) -> None:
        with autocast(world.device, job.arithmetic):
            losses = pair(batch.to(world.device))
        torch.autograd.backward(torch.stack([losses[name] * weight for name, weight in pair.weights.items()]).sum())
        nn.utils.clip_grad_norm_(pair.parameters(), job.config.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Implementation(pair, optimizer, update)


def make_ready(found: dict[str, Implementation], batch: Batch) -> list[str]:
    """Warm up and choose stock's faster attention. Implementations that run out of memory are removed and returned."""
    left_out = []
    for name, one in list(found.items()):
        pair = one.module if isinstance(one.module, StockPair) else None
        kinds = ATTENTIONS
        if name == TUNED_COMPILED:
            one.module.compile(dynamic=False)
            kinds = (cast(StockPair, found[TUNED].module).attention,) if TUNED in found else ("sdpa",)
        seconds: dict[str, float] = {}
        for kind in kinds if pair else ("",):
            if pair:
                pair.use_attention(kind)
            try:
                seconds[kind] = seconds_per_call(partial(one.update, batch), 2)
            except torch.OutOfMemoryError:
                one.optimizer.zero_grad(set_to_none=True)
        if not seconds:
            left_out.append(name)
            del found[name], one, pair
            torch.cuda.empty_cache()
        elif pair:
            pair.use_attention(min(seconds, key=lambda kind: seconds[kind]))
    return left_out
