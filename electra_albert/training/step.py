"""One training step: settings of the run, global counts of terms, gradients and the update."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import Arithmetic, Batch, Objective, Term
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.training import distributed, graphs
from electra_albert.training.loss_scale import LossScale, UpdateGuard
from electra_albert.training.monitor import Monitor, Tally
from electra_albert.training.optimizer import (
    build_optimizer,
    check_gradients,
    flat_gradient,
    learning_rate,
    learning_rate_dtype,
    reset_state,
)
from electra_albert.training.signals import StopSignal

GRADIENT_NORM = "grad_norm"


@dataclass(frozen=True)
class RunSettings:
    """Folder, configuration, processes and logging of a run."""

    folder: Path
    config: TrainingConfig
    world: distributed.World
    monitor: Monitor
    stop: StopSignal
    arithmetic: Arithmetic = "fp32"
    resume_from: Path | None = None
    eval_on_start: bool = False  # evaluate before the first step too
    lr_multipliers: Mapping[str, float] | None = None  # of the learning rate, by parameter name
    should_stop: Callable[[], bool] = lambda: False  # early stopping, after each evaluation
    plan: Callable[[int, float], int] | None = None  # max_steps from step and seconds of training
    record: graphs.Recorder | None = None  # of the step's functions; None: always called
    settings: Mapping[str, Any] = field(default_factory=dict)  # for each checkpoint, as JSON

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


class StepCounts(NamedTuple):
    """Counts of one step over the global batch, the same on all ranks."""

    terms: dict[str, int]  # count of each weighted term
    tokens: int
    is_stopping: bool  # whether any rank received a stop signal


def count_step(objective: Objective, micro_batches: list[Batch], run: RunSettings) -> StepCounts:
    """Counts of a step over all micro-batches and ranks, with a single all-reduce on the host.

    Raises KeyError if the objective's counts lack one of its losses.
    """
    rows = []
    for batch in micro_batches:
        counts = objective.counts(batch)
        losses = [counts[name] for name in objective.weights]
        rows.append([*losses, int(batch.attention_mask.sum()), run.stop.requested])
    totals = distributed.sum_over_ranks(torch.tensor(rows).sum(0), run.world)
    *sums, tokens, stops = totals.tolist()
    terms = dict(zip(objective.weights, sums, strict=True))
    return StepCounts(terms, tokens, stops > 0)


class TrainingStep:
    """A step in two functions that can be recorded: `micro` for each micro-batch, then `update`.

    Everything that changes from step to step is in tensors that stay in place, filled before these
    functions run. If the step is recorded, the gradients are views of one tensor, which several
    ranks sum instead of DDP's buckets.
    """

    def __init__(self, objective: Any, run: RunSettings) -> None:
        device = run.world.device
        self.run = run
        self.module = objective  # a contracts.Objective
        self.model = objective  # wrapped in DDP if several ranks do not record the step
        self.is_checked = False  # by `check`, as it must be before the first step
        self.optimizer: Any = build_optimizer(objective, run.config, run.lr_multipliers)
        # With precision auto, ranks on unlike machines compute in different ones.
        if {*distributed.gather_objects(run.arithmetic, run.world)} != {"bf16"}:
            self.optimizer.matrix_dtype = torch.float32  # type: ignore[attr-defined]
        self.guard = UpdateGuard(device)
        self.loss_scale = LossScale(device, run.arithmetic)
        self.tally = Tally(device)
        self._graphs = graphs.Graphs(run.record)
        self._gradient: Tensor | None = None  # of all parameters, if the step is recorded
        self._weights = objective.weights
        # Of the terms since the last update, made by the first forward pass.
        self._names: list[str] = []
        self._sums: Tensor
        self._counts: Tensor
        groups = self.optimizer.param_groups
        count = len(self._weights)
        # Scales of the losses and learning rates of the groups, which one copy fills.
        self._scales_and_rates = torch.zeros(
            count + len(groups), dtype=learning_rate_dtype(device), device=device
        )
        self._scales = self._scales_and_rates[:count]
        for group, rate in zip(groups, self._scales_and_rates[count:], strict=True):
            group["lr"] = rate

    def distribute(self) -> None:
        """Give all ranks the weights of the first one, and sum gradients over ranks from now on."""
        if self.run.world.world_size == 1 or self.model is not self.module:
            return
        if self.run.record is None:
            self.model = DistributedDataParallel(self.module, gradient_as_bucket_view=True)
        else:
            for tensor in self.module.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)

    def restart(self, weights: Mapping[str, Tensor], run: RunSettings) -> None:
        """Start another run with these weights in the same tensors: a recording stays valid.

        Only its seed, folder and checkpoint may be others; parameter groups and clipping stay.
        """
        self.run = run
        if self.loss_scale.is_enabled():  # in fp16, which is not recorded
            self.loss_scale = LossScale(run.world.device, run.arithmetic)
        self.module.load_state_dict(weights)
        reset_state(self.optimizer)
        self.guard.restore((0, 0, 0))
        self.tally.clear()

    def accumulate(self, micro_batches: list[Batch], counts: Mapping[str, int], step: int) -> None:
        """Forward and backward passes of micro-batches: adds up gradients, and sums of the terms.

        The summed gradient of all ranks is that of weight * sum / count of each term, for global
        counts; terms with a count of 0 have none. DDP averages over ranks instead, so its scales
        are world_size times larger.
        """
        config = self.run.config
        device = self.run.world.device
        scheduled = learning_rate(step, config)
        factor = 1
        if self.run.record is None:
            factor = self.run.world.world_size
        numbers = []
        for name, weight in self._weights.items():
            numbers.append(factor * weight / counts[name] if counts[name] else 0.0)
        for group in self.optimizer.param_groups:
            numbers.append(scheduled * group["lr_multiplier"])
        # A new tensor each time: the copy of the one before may not have begun yet.
        is_pinned = device.type == "cuda"
        filled = torch.tensor(numbers, dtype=self._scales_and_rates.dtype, pin_memory=is_pinned)
        self._scales_and_rates.copy_(filled, non_blocking=is_pinned)
        for index, batch in enumerate(micro_batches):
            seed = derived_seed(config.seed, Stream.DROPOUT, step, index, self.run.world.rank)
            torch.manual_seed(seed)
            placed = self._graphs.to_device(batch, device)
            is_last = index + 1 == len(micro_batches)
            reduction: Any = nullcontext()
            if isinstance(self.model, DistributedDataParallel) and not is_last:
                reduction = self.model.no_sync()
            micro = partial(self.micro, placed)
            with reduction:
                self._graphs.run(placed.input_ids.shape, micro)

    def finish(self) -> None:
        """Sum the gradients over ranks, unless DDP has, and run `update`."""
        if self._gradient is not None and self.run.world.world_size > 1:
            torch.distributed.all_reduce(self._gradient)
        self._graphs.run("update", self.update)

    def micro(self, batch: Batch) -> None:
        """Forward and backward pass of a batch; adds to gradients and sums of terms."""
        with autocast(self.run.world.device, self.run.arithmetic):
            terms: dict[str, Term] = self.model(batch)
        losses = torch.stack([terms[name].sum for name in self._weights])
        scaled = losses * self._scales.to(losses.dtype)
        loss = scaled.sum()
        # NaN for a loss that is not finite: it is skipped even where its gradients are finite.
        gradient = torch.where(loss.isfinite(), self.loss_scale.current(), torch.nan)
        torch.autograd.backward(loss, gradient.to(loss.dtype))
        sums = torch.stack([term.sum.detach() for term in terms.values()])
        counts = torch.stack([term.count for term in terms.values()])
        if not self._names:
            self._names = list(terms)
            self._sums = torch.zeros_like(sums)
            self._counts = torch.zeros_like(counts)
        self._sums += sums
        self._counts += counts

    def update(self) -> None:
        """Clip the gradient, update the weights unless it is not finite, and clear it and the sums.

        Never synchronises with the device.
        """
        self.loss_scale.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.run.config.max_grad_norm)
        is_finite = self.guard.observe(norm, self.loss_scale.update_scale())
        is_recording = norm.is_cuda and torch.cuda.is_current_stream_capturing()
        for group in self.optimizer.param_groups:
            group["capturable"] = is_recording  # required inside a recording, slower outside
        # The optimizer reads this on the device; at 1 it changes no weight, moment or counter.
        self.optimizer.found_inf = (~is_finite).float()
        self.optimizer.step()
        terms = self.terms()
        terms[GRADIENT_NORM] = Term(norm.detach(), self._counts.new_ones(()))
        self.tally.add(terms, is_finite)
        self._clear()

    def terms(self) -> dict[str, Term]:
        """The terms of the micro-batches since the last update, summed, in place."""
        terms = map(Term, self._sums.unbind(), self._counts.unbind())
        return dict(zip(self._names, terms, strict=True))

    def _clear(self) -> None:
        """Set the sums of terms and the gradients to 0."""
        self._sums.zero_()
        self._counts.zero_()
        if self._gradient is None:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._gradient.zero_()

    def check(self, batch: Batch, step: int) -> None:
        """Raise ValueError if a parameter gets no gradient, or counts on host and device differ."""
        self.optimizer.zero_grad(set_to_none=True)  # of an earlier run
        no_loss = dict.fromkeys(self._weights, 0)  # the gradients exist, but are 0
        # Also makes a resume exact: DDP reorders its buckets, and thus sums, after a backward pass.
        self.accumulate([batch], no_loss, step)
        check_gradients(self.module)
        terms = self.terms()
        for name, count in self.module.counts(batch).items():
            on_device = int(terms[name].count)
            if count != on_device:
                raise ValueError(f"{name} has count {on_device}, but counts() returned {count}")
        self._clear()
        if self.run.record is not None:
            self._gradient = flat_gradient(self.module)
        self.is_checked = True


def autocast(device: torch.device, arithmetic: Arithmetic) -> torch.autocast:
    """The autocast context of an arithmetic; disabled for fp32."""
    dtype = torch.bfloat16
    if arithmetic == "fp16":
        dtype = torch.float16
    return torch.autocast(device.type, dtype, enabled=arithmetic != "fp32")
