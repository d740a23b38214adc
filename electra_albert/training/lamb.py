"""LAMB: Adam's direction with decay, scaled for each matrix by the ratio of its norm to that of its update."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """LAMB as ALBERT was trained with. Paper: You et al. 2020, algorithm 2.

    A group's `trust_ratios` is how many ratios each of its tensors has: n for one for each n-th of the rows, or 0 for
    none, which is AdamW. The state is that of AdamW (step, exp_avg, exp_avg_sq), made by build_optimizer. Where the
    attribute `found_inf` [] holds 1, an update leaves weights and state as they are; the host does not wait to know.
    """

    found_inf: Tensor | None = None

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "trust_ratios": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Make one update by the gradients. A closure is not supported."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Move one parameter and its state, or copy them onto themselves where the update is to be skipped."""
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        step = state["step"] + 1
        first = torch.lerp(state["exp_avg"], gradient, 1 - beta1)
        second = torch.lerp(state["exp_avg_sq"], gradient.square(), 1 - beta2)
        # In float64, where there is one: 1 - beta2**step is a small difference of numbers near one.
        wide = step if step.device.type == "mps" else step.double()
        correction1, correction2 = (1 - beta**wide for beta in (beta1, beta2))
        direction = (first / correction1) / ((second / correction2).sqrt() + group["eps"])
        direction = direction + group["weight_decay"] * parameter
        if group["trust_ratios"]:
            direction = _trust(parameter, direction, group["trust_ratios"])
        moved = (parameter - group["lr"] * direction, step, first, second)
        for target, value in zip((parameter, state["step"], state["exp_avg"], state["exp_avg_sq"]), moved, strict=True):
            target.copy_(value if self.found_inf is None else torch.where(self.found_inf == 0, value, target))


def _trust(parameter: Tensor, direction: Tensor, parts: int) -> Tensor:
    """Scale each of `parts` equal runs of rows to the norm of its weights; where either norm is 0 it stays."""
    rows = direction.reshape(parts, -1)
    weight_norm = torch.linalg.vector_norm(parameter.reshape(parts, -1), dim=1)  # [parts]
    direction_norm = torch.linalg.vector_norm(rows, dim=1)  # [parts]
    ratio = torch.where((weight_norm > 0) & (direction_norm > 0), weight_norm / direction_norm, 1.0)
    return (rows * ratio[:, None]).view_as(direction)
