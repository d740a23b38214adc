"""AdamW or LAMB over groups in which every trainable parameter is exactly once, and the learning rate by step."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config import TrainingConfig

Groups = list[dict[str, Any]]


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Rate of update `step`, counted from 1, by config.lr_scheduler_type; zero beyond the end of the run.

    electra: warm-up times a decay over the whole run (ELECTRA appendix A). bert: warm-up, then a jump down onto that
    decay, as in BERT's and ALBERT's code. linear: warm-up to the peak, then a decay over the updates that remain.
    """
    # Differs from the published codes: the decay counts from 0, the warm-up from 1, so that no update has a rate of 0.
    peak, warmup, total = config.learning_rate, config.warmup_steps, config.max_steps
    if step > total:
        return 0.0
    risen = peak * (min(1.0, step / warmup) if warmup else 1.0)
    left = 1.0 - (step - 1) / total
    rates = {
        "electra": risen * left,
        "bert": risen if step < warmup else peak * left,
        "linear": risen if step <= warmup else peak * (1.0 - (step - 1 - warmup) / (total - warmup)),
    }
    return rates[config.lr_scheduler_type]


def parameter_groups(module: nn.Module, weight_decay: float, rate_scales: Mapping[str, float] | None = None) -> Groups:
    """Optimizer groups over the trainable parameters, a tied one once; rate_scales: multiples of the rate by name.

    Biases and LayerNorms have no decay and, as in ALBERT's code, no trust ratio; of a fused qkv matrix each third has.
    """
    members: dict[tuple[float, int], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():  # names a parameter shared by two modules once
        if parameter.requires_grad:
            is_plain = parameter.ndim <= 1 and (name.endswith("bias") or "norm" in name.lower())
            ratios = 0 if is_plain else 3 if name.endswith("qkv.weight") else 1
            scale = 1.0 if rate_scales is None else rate_scales[name]
            members.setdefault((scale, ratios), []).append(parameter)
    return [
        {"params": params, "weight_decay": weight_decay if ratios else 0.0, "trust_ratios": ratios, "rate_scale": scale}
        for (scale, ratios), params in members.items()
    ]


def check_groups(module: nn.Module, groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError unless every trainable parameter, identified by its storage, is in exactly one group."""
    times = Counter(parameter.data_ptr() for group in groups for parameter in group["params"])
    for name, parameter in module.named_parameters():
        if (found := times.pop(parameter.data_ptr(), 0)) != int(parameter.requires_grad):
            raise ValueError(f"{name} is {found} times in the optimiser, not {int(parameter.requires_grad)}")
    if times:
        raise ValueError(f"{len(times)} tensors in the optimiser are no parameters of the module")


def check_gradients(module: nn.Module) -> None:
    """Raise ValueError if a trainable parameter got no gradient."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ValueError(f"{name} is trainable, but no loss reaches it; build it only where it is trained")


class Lamb(torch.optim.Optimizer):
    """LAMB as ALBERT was trained with. Paper: You et al. 2020, algorithm 2.

    A group's `trust_ratios` is the number of ratios of each of its tensors, one for each part of its rows; 0 is AdamW.
    The state is made by build_optimizer. Where `found_inf` [] holds 1, an update leaves weights and state as they are.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: Groups, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "trust_ratios": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Make one update; a closure is not supported."""
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
        if parts := group["trust_ratios"]:  # where either norm is 0 the ratio is 1
            rows = direction.reshape(parts, -1)
            weight_norm = torch.linalg.vector_norm(parameter.reshape(parts, -1), dim=1)  # [parts]
            direction_norm = torch.linalg.vector_norm(rows, dim=1)  # [parts]
            ratio = torch.where((weight_norm > 0) & (direction_norm > 0), weight_norm / direction_norm, 1.0)
            direction = (rows * ratio[:, None]).view_as(direction)
        moved = (parameter - group["lr"] * direction, step, first, second)
        for target, value in zip((parameter, state["step"], state["exp_avg"], state["exp_avg_sq"]), moved, strict=True):
            target.copy_(value if self.found_inf is None else torch.where(self.found_inf == 0, value, target))


def _adamw(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    if groups[0]["params"][0].device.type == "mps":  # where the fused update does not look at found_inf
        return Lamb([{**group, "trust_ratios": 0} for group in groups], **options)
    return torch.optim.AdamW(groups, fused=True, **options)


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adamw": _adamw, "lamb": Lamb}


def build_optimizer(
    module: nn.Module, config: TrainingConfig, rate_scales: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """The optimizer, its state allocated to copy a checkpoint into; no update changes it where `found_inf` [] is 1."""
    groups = parameter_groups(module, config.weight_decay, rate_scales)
    check_groups(module, groups)
    betas = config.adam_beta1, config.adam_beta2
    optimizer = _OPTIMIZERS[config.optimizer](groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon)
    # From 1e8 on 1 - beta**step is one for every beta in use, and in float32 the counter does not grow any more.
    first_step = 0.0 if config.adam_bias_correction else 1e8
    for parameter in (one for group in groups for one in group["params"]):
        step = torch.full((), first_step, dtype=torch.float32, device=parameter.device)
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": step, **moments}
    return optimizer
