"""The contenders of the training step: ours as the training loop makes it, and stock's as a plain script would."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from electra_albert.apps.bench.config import ATTENTIONS, OURS, STOCK, TUNED, TUNED_COMPILED, ours_named
from electra_albert.apps.bench.machine import peak_memory
from electra_albert.apps.bench.stock import StockPair, check_same_function
from electra_albert.apps.bench.timing import UPDATES_A_TIMING, in_turns
from electra_albert.apps.bench.traffic import TrafficCounter, bytes_of
from electra_albert.config import PretrainConfig, TrainingConfig
from electra_albert.contracts import Arithmetic, Batch, Objective
from electra_albert.model.compilation import Compilation, compile_for_training
from electra_albert.objectives.registry import PretrainingObjective
from electra_albert.objectives.rtd import ReplacedTokenDetection
from electra_albert.training.distributed import World
from electra_albert.training.guards import StopSignal, UpdateGuard
from electra_albert.training.monitor import Monitor, Tally
from electra_albert.training.optimizer import build_optimizer
from electra_albert.training.settings import RunSettings
from electra_albert.training.step import autocast, backward, count_step, term_scales

LOG = logging.getLogger(__name__)

COMPILED: tuple[Compilation, ...] = ("blocks", "step")

_WARM_UPDATES = {"cpu": 1, "cuda": 3}
_WARM_COMPILED_UPDATES = 3  # the first compiles
_TURNS = 2  # of the kinds of attention, before the faster one is taken

Update = Callable[[Batch, int], None]


@dataclass
class Contender:
    """One that makes updates, and what it holds between them."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    update: Update
    is_compiled: bool = False
    attention: str | None = None  # stock's

    def resident_bytes(self) -> int:
        """Bytes of weights, gradients that are kept and the optimiser's state."""
        weights = [*self.module.parameters(), *self.module.buffers()]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        state = [value for of_one in self.optimizer.state.values() for value in of_one.values()]
        return bytes_of([*weights, *gradients, *(value for value in state if isinstance(value, Tensor))])

    def peak_bytes(self, batch: Batch, step: int, device: torch.device) -> int | None:
        """Bytes that an update needs at its highest, with what is resident; None where that cannot be told."""
        resident = self.resident_bytes()
        transient = peak_memory(lambda: self.update(batch, step), device)
        return None if transient is None else resident + transient

    def traffic_bytes(self, batch: Batch, step: int, device: torch.device) -> int | None:
        """Bytes that the kernels of an update read and write, nothing fused; None of compiled ones, which fuse.

        Those of a compiled one are at most those of the plain one that it was made of.
        """
        if self.is_compiled:
            self.update(batch, step)
            return None
        with TrafficCounter(device.type) as counter:
            self.update(batch, step)
        return counter.bytes


def our_contenders(
    objective: PretrainingObjective, settings: PretrainConfig, world: World, arithmetic: Arithmetic, *, compiled: bool
) -> dict[str, Contender]:
    """Ours as it is and, where asked for, compiled in each way, every one with weights of its own."""
    copies = {ours_named(what): what for what in COMPILED} if compiled else {}
    found = {}
    for name, what in copies.items():
        module = copy.deepcopy(objective)
        compile_for_training(module, what)
        found[name] = our_contender(module, settings.training, world, arithmetic)
        found[name].is_compiled = True
    return {OURS: our_contender(objective, settings.training, world, arithmetic), **found}


def our_contender(
    objective: PretrainingObjective, training: TrainingConfig, world: World, arithmetic: Arithmetic
) -> Contender:
    """One update by the training loop's own pieces, its guard and its sums for the log among them."""
    monitor = Monitor(Path(), training.max_steps, is_main=False)  # writes nothing
    run = RunSettings(Path(), training, world, monitor, StopSignal(), arithmetic)
    optimizer = build_optimizer(objective, training, objective.rate_scales)
    guard, tally = UpdateGuard(world.device), Tally(world.device)
    has_overflowed = torch.zeros((), dtype=torch.bool, device=world.device)  # fp16's; there is no loss scale here
    objective.train()

    def update(batch: Batch, step: int) -> None:
        counts = count_step(cast(Objective, objective), [batch], run)
        scales = term_scales(objective.weights, counts.terms, world.world_size)
        terms = backward(objective, [batch], scales, step, run)
        norm = nn.utils.clip_grad_norm_(objective.parameters(), training.max_grad_norm)
        is_finite = guard.observe(norm, has_overflowed)
        optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tally.add(terms, is_finite)

    return Contender(objective, optimizer, update)


def stock_contenders(
    ours: PretrainingObjective, settings: PretrainConfig, world: World, arithmetic: Arithmetic, *, compiled: bool
) -> dict[str, Contender]:
    """Stock's pair as it comes, tuned, and, where asked for, tuned and compiled; of other objectives there is none."""
    is_detection = isinstance(ours, ReplacedTokenDetection) and ours.sop is None
    if not is_detection:
        return {}
    names = (STOCK, TUNED, TUNED_COMPILED) if compiled else (STOCK, TUNED)
    found = {}
    for name in names:
        pair = StockPair(cast(ReplacedTokenDetection, ours), is_tuned=name != STOCK).to(world.device)
        pair.use_attention(ATTENTIONS[0])
        found[name] = stock_contender(pair, settings.training, world, arithmetic)
    return found


def stock_contender(pair: StockPair, training: TrainingConfig, world: World, arithmetic: Arithmetic) -> Contender:
    """One update as a plain training script makes it, with the same optimiser, rates and clipping."""
    optimizer = build_optimizer(pair, training, pair.rate_scales)
    pair.train()

    def update(batch: Batch, step: int) -> None:
        with autocast(world.device, arithmetic):
            losses = pair(batch.to(world.device))
        torch.stack([losses[name] * weight for name, weight in pair.weights.items()]).sum().backward()
        nn.utils.clip_grad_norm_(pair.parameters(), training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Contender(pair, optimizer, update)


def check_stock(ours: PretrainingObjective, stock: dict[str, Contender], batch: Batch) -> None:
    """UserError unless every pair of stock computes what ours does; before anything is compiled or updated."""
    for contender in stock.values():
        check_same_function(cast(ReplacedTokenDetection, ours), cast(StockPair, contender.module), batch)


def settle_attention(contender: Contender, kinds: tuple[str, ...], batch: Batch, device: torch.device) -> None:
    """Set stock's attention to the fastest of `kinds` here that fits into memory; the pair is warm afterwards.

    Raises torch.OutOfMemoryError where none fits. What is compiled is compiled for each kind: Dynamo's guards see it.
    """
    pair = cast(StockPair, contender.module)

    def update(kind: str) -> None:
        pair.use_attention(kind)
        contender.update(batch, 1)

    calls = {kind: partial(update, kind) for kind in kinds}
    fitting = {kind: call for kind, call in calls.items() if _fits(call, contender, device)}
    if not fitting:
        raise torch.OutOfMemoryError(f"{len(batch.input_ids)} rows do not fit with attention {' or '.join(kinds)}")
    seconds = in_turns(fitting, _TURNS, device, UPDATES_A_TIMING[device.type]) if len(fitting) > 1 else {}
    contender.attention = min(fitting, key=lambda kind: min(seconds.get(kind, [0.0])))
    pair.use_attention(contender.attention)


def _fits(update: Callable[[], None], contender: Contender, device: torch.device) -> bool:
    """Warm up; False, with nothing left in memory, where that does not suffice."""
    try:
        for _ in range(_WARM_COMPILED_UPDATES if contender.is_compiled else _WARM_UPDATES[device.type]):
            update()
    except torch.OutOfMemoryError:
        contender.optimizer.zero_grad(set_to_none=True)
    else:
        return True
    torch.cuda.empty_cache()  # here, where no exception holds on to what was computed
    return False


def make_ready(contenders: dict[str, Contender], attention: str, batch: Batch, device: torch.device) -> dict[str, str]:
    """Settle stock's attention, compile stock's pair, and warm all up.

    What does not fit into memory is taken out of `contenders`, and returned with the reason.
    """
    left_out = {}
    kinds = ATTENTIONS if attention == "auto" else (attention,)
    for name in list(contenders):
        if name == TUNED_COMPILED:
            _compile_stock(contenders[name])
        if not _is_ready(contenders[name], _kinds_for(name, contenders, kinds, device), batch, device):
            left_out[name] = f"{len(batch.input_ids)} rows do not fit into memory"
            LOG.info(f"{name} is left out: {left_out[name]}")
            del contenders[name]
            torch.cuda.empty_cache()
    return left_out


def _is_ready(contender: Contender, kinds: tuple[str, ...], batch: Batch, device: torch.device) -> bool:
    """Whether a contender fits into memory; it is warm then, and stock's attention is settled."""
    if not isinstance(contender.module, StockPair):
        return _fits(lambda: contender.update(batch, 1), contender, device)
    try:
        settle_attention(contender, kinds, batch, device)
    except torch.OutOfMemoryError:
        return False
    return True


def _kinds_for(
    name: str, contenders: dict[str, Contender], kinds: tuple[str, ...], device: torch.device
) -> tuple[str, ...]:
    """The kinds of attention to choose from; on a CPU, where compiling takes minutes, what the plain pair has."""
    if name != TUNED_COMPILED or device.type == "cuda":
        return kinds
    tuned = contenders.get(TUNED)
    return (tuned.attention,) if tuned and tuned.attention else kinds[:1]


def _compile_stock(contender: Contender) -> None:
    """Compile the pair's forward pass."""
    cast(StockPair, contender.module).compile(dynamic=False)
    contender.is_compiled = True
