"""The training step, ours and stock's: in one process, in turns, on the same batches of text.

ours: an update by the training loop's step. stock: the same networks, of stock classes, updated by
a plain script.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, cycle, islice, product
from statistics import fmean
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from benchmarks.config import BenchConfig, bench_job, pretraining
from benchmarks.profile import profile_updates
from benchmarks.stock import ATTENTIONS, StockPair, check_same_function
from benchmarks.timing import (
    LOG,
    OURS,
    STOCK,
    Record,
    compare,
    graph_memory,
    in_turns,
    matrix_speed,
    peak_memory,
    seconds_per_call,
)
from benchmarks.traffic import ByteCounter, compiled_bytes, count_compiled_bytes
from electra_albert.apps.execution import choose_arithmetic, choose_compilation
from electra_albert.apps.pretrain.job import Job
from electra_albert.apps.pretrain.trial import flops_per_step, quiet_run
from electra_albert.contracts import Batch, Objective
from electra_albert.model.compilation import Compilation, compile_for_training
from electra_albert.objectives.rtd import PretrainingModule, ReplacedTokenDetection
from electra_albert.training import graphs
from electra_albert.training.distributed import World, start
from electra_albert.training.optimizer import build_optimizer
from electra_albert.training.step import TrainingStep, autocast, count_step

TUNED = "stock, tuned"
TUNED_COMPILED = f"{TUNED}, compiled"
TUNED_OVERHEAD = f"{TUNED}, reduce-overhead"
COMPILED: dict[str, Compilation] = {f"{OURS}, step compiled": "step"}
RECORDED: dict[str, Compilation] = {
    f"{OURS}, recorded": "none",
    f"{OURS}, step compiled, recorded": "step",
}
_MODES = {TUNED_COMPILED: None, TUNED_OVERHEAD: "reduce-overhead"}  # of torch.compile
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_CHECKED_EXAMPLES = 16  # of the first batch, on which ours and stock must agree
_BATCHES = 10  # that each implementation cycles through
_UPDATES = {"cpu": 3, "cuda": 10}  # per timing
_NOTES = [
    "stock, tuned: logits at the masked positions only. Tokens exclude padding. MFU: FLOPs of our",
    "step, with padding, per second, over the measured speed of a matrix product, for all.",
    "GB/s: bytes of the tensors that the operators and compiled kernels of an update read, and of",
    "those that they write, per second. Memory: with weights and optimizer state.",
]


class Implementation(NamedTuple):
    """A model with its optimizer, and the function that makes one update on a batch."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    update: Callable[[Batch], None]
    compilation: Compilation = "none"  # of the module

    def resident_bytes(self) -> int:
        """Bytes of weights, buffers, gradients that stay in place, and the optimizer's state."""
        parameters = list(self.module.parameters())
        tensors: list[Any] = [*parameters, *self.module.buffers()]
        tensors += [parameter.grad for parameter in parameters]
        for state in self.optimizer.state.values():
            tensors += state.values()
        sizes = {t.data_ptr(): t.nbytes for t in tensors if isinstance(t, Tensor)}
        return sum(sizes.values())


class Ready(NamedTuple):
    """Costs of an implementation, from the updates before it is timed."""

    seconds: float  # per update
    bytes: int | None  # read and written per update; None if unknown
    graph_memory: int  # bytes for CUDA graphs
    graphs_skipped: int  # by torch.compile, which did not record them though its mode asks for that


def measure_step(config: BenchConfig) -> Iterator[Record]:
    """A record for each preset, objective, precision and batch size.

    Raises UserError if stock's losses differ.
    """
    world = start(config.device)
    wanted: Any = {False: "none", True: "step"}.get(cast("Any", config.torch_compile), "auto")
    is_compiled = choose_compilation(wanted, world.device) != "none"
    if is_compiled:
        count_compiled_bytes()
    precisions = {
        choose_arithmetic(cast("Any", name), world.device) for name in config.values("precision")
    }
    for preset, objective in product(config.values("preset"), config.values("objective")):
        settings = pretraining(config, preset, objective)
        sizes = config.batch_sizes(world.device.type, settings.corpus.max_seq_length)
        for precision, size in product(sorted(precisions), sizes):
            job = bench_job(config, settings, world, size, precision)
            title = (
                f"step: {objective}, preset {preset}, {precision}, {size} x "
                f"{settings.corpus.max_seq_length}"
            )
            LOG.info(title)
            with graphs.own_stream(world.device):
                record = _measure(config, job, world, title, is_compiled=is_compiled)
            yield record
            del job  # before the next one is made
            # Otherwise later shapes would count as recompilations, which are limited.
            torch.compiler.reset()
            if world.device.type == "cuda":
                torch.cuda.empty_cache()


def _measure(
    config: BenchConfig,
    job: Job,
    world: World,
    title: str,
    *,
    is_compiled: bool,
) -> Record:
    device = world.device
    batches = _batches(job)
    few = batches[0].map(lambda field: field[:_CHECKED_EXAMPLES]).to(device)
    flops = flops_per_step(job.config)
    members = implementations(job, world, is_compiled=is_compiled)
    for name, member in members.items():
        if isinstance(member.module, StockPair):
            check_same_function(cast(ReplacedTokenDetection, job.objective), member.module, few)
            LOG.info(f"{name}: same losses and gradient norms as ours")
    names = list(members)
    ready = make_ready(members, batches[0])
    calls = {name: _next_update(member, batches) for name, member in members.items()}
    memory = {name: peak_memory(call, device) for name, call in calls.items()}
    number = _UPDATES[device.type]
    timings = {name: partial(seconds_per_call, call, number) for name, call in calls.items()}
    tokens = fmean(int(batch.attention_mask.sum()) for batch in batches)
    baseline = STOCK if STOCK in members else next(iter(members))
    results = compare(in_turns(timings, config.repeats), tokens, baseline)
    machine = matrix_speed(device, _DTYPES[job.arithmetic])
    for name, result in results.items():
        seconds = result["seconds"]["median"]
        result["MFU"] = flops / seconds / machine
        result |= _costs(members[name], ready[name], memory[name], seconds)
    notes = [f"{name} is not measured: out of memory" for name in names if name not in members]
    for name, costs in ready.items():
        if costs.graphs_skipped:
            notes.append(f"{name}: {costs.graphs_skipped} compiled graphs are not recorded")
    profiles = {}
    for name in members if config.profile else ():
        if name.startswith(OURS):
            profiles[name] = profile_updates(calls[name], device, number)
    modules = {name: member.module for name, member in members.items()}
    pairs = {name: pair for name, pair in modules.items() if isinstance(pair, StockPair)}
    return {
        "title": f"{title}, vocabulary {job.config.model.vocab_size:,}",
        "unit": "tokens/s",
        "baseline": baseline,
        "results": results,
        "columns": {"MFU": ".1%", "GB/s": ".1f", "memory GB": ".2f"},
        "notes": [*_NOTES, *notes],
        "tokens_per_step": tokens,
        "flops_per_step": flops,
        "matrix_flops_per_second": machine,
        "attention": {name: pair.attention for name, pair in pairs.items()},
        "profiles": profiles,
    }


def _costs(member: Implementation, ready: Ready, peak: int | None, seconds: float) -> Record:
    """Columns on memory; peak: bytes that an update adds, None if not measured."""
    resident = member.resident_bytes() + ready.graph_memory
    return {
        "bytes_per_step": ready.bytes,
        "GB/s": None if ready.bytes is None else ready.bytes / seconds / 1e9,
        "memory GB": None if peak is None else (peak + resident) / 1e9,
    }


def _batches(job: Job) -> list[Batch]:
    """The first batches of the job."""
    steps: Any = job.batches.steps(1)
    batches = [micro_batches[0] for micro_batches in islice(steps, _BATCHES)]
    steps.close()
    return batches


def _next_update(member: Implementation, batches: list[Batch]) -> Callable[[], None]:
    """A function that makes an update on the next of the batches."""
    turns = cycle(batches)
    return lambda: member.update(next(turns))


def implementations(job: Job, world: World, *, is_compiled: bool) -> dict[str, Implementation]:
    """Ours, and for rtd stock's pair, plain and tuned, each with its own weights.

    is_compiled: also compiled. On CUDA also recorded in CUDA graphs, by us and by torch.compile.
    """
    ours: Any = job.objective
    is_cuda = world.device.type == "cuda"
    variants = {**(COMPILED if is_compiled else {}), **(RECORDED if is_cuda else {})}
    members = {OURS: our_implementation(ours, job, world)}
    for name, compilation in variants.items():
        if compilation == "none" or is_compiled:
            module = copy.deepcopy(ours)
            compile_for_training(module, compilation)
            variant = our_implementation(module, job, world, is_recorded=name in RECORDED)
            members[name] = variant._replace(compilation=compilation)
    if type(ours) is ReplacedTokenDetection:
        names = [STOCK, TUNED]
        names += [TUNED_COMPILED] if is_compiled else []
        names += [TUNED_OVERHEAD] if is_compiled and is_cuda else []
        for name in names:
            pair = StockPair(ours, is_tuned=name != STOCK).to(world.device)
            rival = stock_implementation(pair, job, world, is_recorded=name == TUNED_OVERHEAD)
            members[name] = rival._replace(compilation="step" if name in _MODES else "none")
    return members


def our_implementation(
    objective: PretrainingModule, job: Job, world: World, *, is_recorded: bool = False
) -> Implementation:
    """An update by the training loop's step, with its checks and its sums for the log."""
    recorder = graphs.CudaRecorder(world.device) if is_recorded else None
    run = replace(quiet_run(job, world), lr_multipliers=objective.lr_multipliers, record=recorder)
    training_step = TrainingStep(objective, run)
    steps = count(1)
    objective.train()

    def update(batch: Batch) -> None:
        step = next(steps)
        counts = count_step(cast(Objective, objective), [batch], run)
        if not training_step.is_checked:
            training_step.check(batch, step)
        training_step.accumulate([batch], counts.terms, step)
        training_step.finish()

    return Implementation(objective, training_step.optimizer, update)


def stock_implementation(
    pair: StockPair,
    job: Job,
    world: World,
    *,
    is_recorded: bool = False,
) -> Implementation:
    """An update of a plain script, with the same optimizer, learning rates and gradient clipping.

    is_recorded: by torch.compile with mode="reduce-overhead", whose memory each update uses again.
    """
    optimizer = build_optimizer(pair, job.config.training, pair.lr_multipliers)
    for group in optimizer.param_groups:
        group["lr"].mul_(group["lr_multiplier"])
    pair.use_attention(ATTENTIONS[0])
    pair.train()

    def update(batch: Batch) -> None:
        if is_recorded:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with autocast(world.device, job.arithmetic):
            losses = pair(batch.to(world.device))
        weighted = [losses[name] * weight for name, weight in pair.weights.items()]
        torch.autograd.backward(torch.stack(weighted).sum())
        nn.utils.clip_grad_norm_(pair.parameters(), job.config.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Implementation(pair, optimizer, update)


def make_ready(members: dict[str, Implementation], batch: Batch) -> dict[str, Ready]:
    """Warm up, record, count bytes, choose stock's attention; remove what runs out of memory."""
    ready = dict[str, Ready]()
    graph_bytes = dict[type, int]()
    for name, member in list(members.items()):
        pair = member.module if isinstance(member.module, StockPair) else None
        kinds = ATTENTIONS if pair else ("",)
        if name in _MODES:
            member.module.compile(dynamic=False, mode=_MODES[name])
            is_known = TUNED in members
            kinds = (cast(StockPair, members[TUNED].module).attention if is_known else "sdpa",)
        trials = dict[str, Ready]()
        for kind in kinds:
            if pair:
                pair.use_attention(kind)
            try:
                is_counted = name != TUNED_OVERHEAD  # which records its operators meanwhile
                trials[kind] = _warm_up(member, batch, graph_bytes, is_counted=is_counted)
            except torch.OutOfMemoryError:
                member.optimizer.zero_grad(set_to_none=True)
        if not trials:
            del members[name], member, pair
            torch.cuda.empty_cache()
            continue
        fastest = min(trials, key=lambda kind: trials[kind].seconds)
        ready[name] = trials[fastest]
        if pair:
            pair.use_attention(fastest)
    return ready


def _warm_up(
    member: Implementation, batch: Batch, graph_bytes: dict[type, int], *, is_counted: bool
) -> Ready:
    """Make updates until all is compiled and recorded; count the bytes of the second one; time two.

    graph_bytes: of the compiled graphs, by class of the module, whose copies can share them.
    """
    from torch._dynamo.utils import counters

    kind = type(member.module)
    device = next(member.module.parameters()).device
    memory, graph_sum = graph_memory(device), compiled_bytes()
    skips = counters["inductor"]["cudagraph_skips"]
    member.update(batch)
    counter = ByteCounter(device)
    with counter if is_counted else nullcontext():
        member.update(batch)
    for _ in range(graphs.WARM_CALLS - 1):
        member.update(batch)
    seconds = seconds_per_call(partial(member.update, batch), 2)
    total: int | None = counter.bytes if is_counted else None
    if member.compilation == "step" and is_counted:
        graph_bytes[kind] = compiled_bytes() - graph_sum or graph_bytes.get(kind, 0)
        total = counter.bytes + graph_bytes[kind] if graph_bytes[kind] else None
    skips = counters["inductor"]["cudagraph_skips"] - skips
    return Ready(seconds, total, graph_memory(device) - memory, skips)
