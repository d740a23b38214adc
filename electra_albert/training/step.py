"""One training step: settings of the run, global counts of the loss terms, forward and backward pass, norms."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from electra_albert.config import TrainingConfig
from electra_albert.contracts import Arithmetic, Batch, Objective, Term
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.training import distributed, guards
from electra_albert.training.monitor import Monitor


@dataclass(frozen=True)
class RunSettings:
    """Folder, configuration, processes and logging of a run."""

    folder: Path
    config: TrainingConfig
    world: distributed.World
    monitor: Monitor
    stop: guards.StopSignal
    arithmetic: Arithmetic = "fp32"
    resume_from: Path | None = None
    eval_on_start: bool = False  # evaluate before the first step too
    lr_multipliers: Mapping[str, float] | None = None  # multiples of the learning rate by parameter name
    should_stop: Callable[[], bool] = bool  # early stopping: called after each evaluation; bool() is False
    plan: Callable[[int], int] | None = None  # max_steps after a step
    settings: Mapping[str, Any] = field(default_factory=dict)  # recorded in each checkpoint, as JSON

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


class StepCounts(NamedTuple):
    """Counts of one step over the global batch, the same on all ranks."""

    terms: dict[str, int]  # count of each weighted term
    tokens: int
    is_stopping: bool  # whether any rank received a stop signal


def count_step(objective: Objective, micro_batches: list[Batch], step: int, run: RunSettings) -> StepCounts:
    """Counts of a step over all micro-batches and ranks, with a single all-reduce on the host."""
    names, counts = list(objective.weights), [objective.counts(batch, step) for batch in micro_batches]
    mine = [sum(count[name] for count in counts) for name in names]
    tokens = sum(int(batch.attention_mask.sum()) for batch in micro_batches)
    total = distributed.sum_over_ranks(torch.tensor([*mine, tokens, int(run.stop.requested)]), run.world).tolist()
    return StepCounts(dict(zip(names, total, strict=False)), total[-2], total[-1] > 0)


def term_scales(weights: Mapping[str, float], counts: Mapping[str, int], world_size: int) -> dict[str, float]:
    """Factor of each term's sum: gradients averaged over ranks become those of weight * sum / count; 0 for count 0."""
    return {name: world_size * weight / counts[name] if counts[name] else 0.0 for name, weight in weights.items()}


def backward(
    model: nn.Module,
    micro_batches: list[Batch],
    scales: Mapping[str, float],
    step: int,
    run: RunSettings,
    loss_scale: Tensor | None = None,
) -> dict[str, Term]:
    """Accumulate gradients (all-reduced with the last micro-batch, times loss_scale []); returns the summed terms."""
    device = run.world.device
    step_tensor = torch.full((), step, dtype=torch.int64, device=device)
    totals: dict[str, Term] = {}
    for index, batch in enumerate(micro_batches):
        torch.manual_seed(derived_seed(run.config.seed, Stream.DROPOUT, step, index, run.world.rank))
        is_last = index + 1 == len(micro_batches)
        with nullcontext() if is_last or not isinstance(model, DistributedDataParallel) else model.no_sync():
            with autocast(device, run.arithmetic):
                terms: dict[str, Term] = model(batch.to(device), step_tensor)
            loss = torch.stack([terms[name].sum * scale for name, scale in scales.items()]).sum()
            torch.autograd.backward(loss, guards.loss_scale_or_nan(loss, loss_scale))
        for name, term in terms.items():
            total = totals.get(name, Term(torch.zeros_like(term.sum), torch.zeros_like(term.count)))
            totals[name] = Term(total.sum + term.sum.detach(), total.count + term.count)
    return totals


def autocast(device: torch.device, arithmetic: Arithmetic) -> torch.autocast:
    """The autocast context of an arithmetic; disabled for fp32."""
    dtype = torch.float16 if arithmetic == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=arithmetic != "fp32")


def term_gradients(
    module: nn.Module, batch: Batch, step: int, run: RunSettings, loss_scale: Tensor
) -> Iterator[tuple[str, list[Tensor]]]:
    """Each loss by itself and its gradient by parameter: of weight * sum / count over this micro-batch of all ranks.

    Each loss has a forward pass of its own, because compiled graphs free their tensors in the first backward pass.
    `.grad` does not change, so that DDP's hooks are not called. loss_scale [] is that of fp16, or 1.
    """
    objective, world, device = cast(Objective, module), run.world, run.world.device
    counts = count_step(objective, [batch], step, run).terms
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for name, scale in term_scales(objective.weights, counts, 1).items():
        torch.manual_seed(derived_seed(run.config.seed, Stream.DROPOUT, step, 0, world.rank))  # as in `backward`
        with autocast(device, run.arithmetic):
            terms = objective(batch.to(device), torch.full((), step, dtype=torch.int64, device=device))
        loss = terms[name].sum * scale
        found = torch.autograd.grad(loss, parameters, loss_scale.to(loss.dtype), allow_unused=True)
        pairs = zip(parameters, found, strict=True)
        own = [torch.zeros_like(parameter) if gradient is None else gradient for parameter, gradient in pairs]
        yield name, [distributed.sum_over_ranks(gradient.contiguous(), world) / loss_scale for gradient in own]


def gradient_norms(module: nn.Module, batch: Batch, step: int, run: RunSettings, scale: Tensor) -> dict[str, Tensor]:
    """The norm [] of each of the `term_gradients`, by its name in metrics.jsonl (--log_gradient_norms)."""
    found = term_gradients(module, batch, step, run, scale)
    return {f"grad_norm/{name}": torch.stack([each.norm() for each in gradients]).norm() for name, gradients in found}
