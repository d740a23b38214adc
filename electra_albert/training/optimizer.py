"""AdamW or LAMB over groups in which every trainable parameter is exactly once, and the learning rate by step.

Updates are counted from 1 while the rate rises and from 0 while it falls, so that neither the first nor the last update
of a run is made with a rate of zero. The published codes count from 0 throughout: their first update changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config import TrainingConfig
from electra_albert.training.lamb import Lamb

Groups = list[dict[str, Any]]

# From this many updates on, 1 - beta**step is one for every beta in use: nothing is corrected any more. In float32, the
# type of the counter, adding one to it changes nothing either, so it does not grow.
_UNCORRECTED_STEP = 1e8
# The fused projection holds query, key and value one above the other.
_FUSED, _FUSED_MATRICES = "qkv.weight", 3
_TRUST_RATIOS = (1, _FUSED_MATRICES, 0)  # of a matrix, of the fused projection, of what is not decayed


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Rate of update `step`, counted from 1, by config.lr_scheduler_type; zero beyond the end of the run.

    electra: warm-up times a decay over the whole run (ELECTRA appendix A). bert: warm-up, then a jump down onto that
    decay, as in BERT's and ALBERT's code. linear: warm-up to the peak, then a decay over the updates that remain.
    """
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
    """Optimiser groups over the trainable parameters; a tied one is in one of them, once.

    Matrices and embeddings are decayed, biases and LayerNorms are not; these have no trust ratio in LAMB either, as in
    ALBERT's code. In the fused projection query, key and value have a ratio each. rate_scales gives by parameter name
    a multiple of the learning rate; by default all have the same.
    """
    members: dict[tuple[float, int], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():  # names a parameter shared by two modules once
        if parameter.requires_grad:
            scale = 1.0 if rate_scales is None else rate_scales[name]
            members.setdefault((-scale, _ratio_index(name, parameter)), []).append(parameter)
    return [
        {
            "params": members[key],
            "weight_decay": weight_decay if _TRUST_RATIOS[key[1]] else 0.0,
            "trust_ratios": _TRUST_RATIOS[key[1]],
            "rate_scale": -key[0],
        }
        for key in sorted(members)
    ]


def _ratio_index(name: str, parameter: Tensor) -> int:
    """Index into _TRUST_RATIOS of a parameter."""
    if parameter.ndim <= 1 and (name.endswith("bias") or "norm" in name.lower()):
        return 2
    return 1 if name.endswith(_FUSED) else 0


def check_groups(module: nn.Module, groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError unless every trainable parameter, identified by its storage, is in exactly one group."""
    times = Counter(parameter.data_ptr() for group in groups for parameter in group["params"])
    for name, parameter in module.named_parameters():
        found = times.pop(parameter.data_ptr(), 0)
        if found != int(parameter.requires_grad):
            raise ValueError(f"{name} is {found} times in the optimiser, not {int(parameter.requires_grad)}")
    if times:
        raise ValueError(f"{len(times)} tensors in the optimiser are no parameters of the module")


def check_gradients(module: nn.Module) -> None:
    """Raise ValueError if a trainable parameter got no gradient: it would never be trained."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ValueError(f"{name} is trainable, but no loss reaches it; build it only where it is trained")


def _adamw(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    if groups[0]["params"][0].device.type == "mps":  # where the fused update does not look at found_inf
        return Lamb([{**group, "trust_ratios": 0} for group in groups], **options)
    return torch.optim.AdamW(groups, fused=True, **options)


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adamw": _adamw, "lamb": Lamb}


def build_optimizer(
    module: nn.Module, config: TrainingConfig, rate_scales: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """The optimiser of config.optimizer with its state allocated, so that a checkpoint can be copied into it.

    Each group's `rate_scale` is a multiple of the learning rate; see parameter_groups. Without adam_bias_correction the
    moments are used as they are, as in ELECTRA's and ALBERT's own optimisers. Where the attribute `found_inf` [] of the
    optimiser holds 1, an update changes neither weights nor state.
    """
    groups = parameter_groups(module, config.weight_decay, rate_scales)
    check_groups(module, groups)
    optimizer = _OPTIMIZERS[config.optimizer](
        groups, lr=config.learning_rate, betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_epsilon
    )
    first_step = 0.0 if config.adam_bias_correction else _UNCORRECTED_STEP
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.full((), first_step, dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer
