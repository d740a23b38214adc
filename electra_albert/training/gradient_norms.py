"""Gradient of each weighted loss by itself, for the log (--log_gradient_norms)."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from electra_albert.contracts import Batch, Objective
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.training.distributed import sum_over_ranks
from electra_albert.training.step import RunSettings, autocast, term_scales


def term_gradients(
    module: nn.Module, batch: Batch, step: int, run: RunSettings, loss_scale: Tensor
) -> Iterator[tuple[str, list[Tensor]]]:
    """Each loss and its gradient by parameter: of weight * sum / count over this micro-batch of all ranks.

    Each loss has a forward pass of its own, because compiled graphs free their tensors in the first backward pass.
    `.grad` does not change, so that DDP's hooks are not called. loss_scale [] is that of fp16, or 1.
    """
    objective, world, device = cast(Objective, module), run.world, run.world.device
    counts, names = objective.counts(batch, step), list(objective.weights)
    total = sum_over_ranks(torch.tensor([counts[name] for name in names]), world).tolist()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for name, scale in term_scales(objective.weights, dict(zip(names, total, strict=True)), 1).items():
        torch.manual_seed(derived_seed(run.config.seed, Stream.DROPOUT, step, 0, world.rank))  # as in `backward`
        with autocast(device, run.arithmetic):
            terms = objective(batch.to(device), torch.full((), step, dtype=torch.int64, device=device))
        loss = terms[name].sum * scale
        found = torch.autograd.grad(loss, parameters, loss_scale.to(loss.dtype), allow_unused=True)
        pairs = zip(parameters, found, strict=True)
        own = [torch.zeros_like(parameter) if gradient is None else gradient for parameter, gradient in pairs]
        yield name, [sum_over_ranks(gradient.contiguous(), world) / loss_scale for gradient in own]


def gradient_norms(module: nn.Module, batch: Batch, step: int, run: RunSettings, scale: Tensor) -> dict[str, Tensor]:
    """The norm [] of each of the `term_gradients`, by the name that it has in metrics.jsonl."""
    found = term_gradients(module, batch, step, run, scale)
    return {f"grad_norm/{name}": torch.stack([each.norm() for each in gradients]).norm() for name, gradients in found}
