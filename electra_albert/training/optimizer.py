"""AdamW or LAMB over groups in which every trainable parameter stands exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config import TrainingConfig
from electra_albert.training.lamb import Lamb

Groups = list[dict[str, Any]]

# From this many updates on, 1 - beta**step is one for every beta in use: nothing is corrected any more. In float32, the
# type of the counter, adding one to it changes nothing either, so it stays there.
_UNCORRECTED_STEP = 1e8
# The fused projection holds query, key and value one above the other.
_FUSED, _FUSED_MATRICES = "qkv.weight", 3
_TRUST_RATIOS = (1, _FUSED_MATRICES, 0)  # of a matrix, of the fused projection, of what is not decayed


def _is_undecayed(name: str, parameter: Tensor) -> bool:
    """Whether weight decay leaves it out: biases and the weights of LayerNorms. Embeddings are decayed."""
    return parameter.ndim <= 1 and (name.endswith("bias") or "norm" in name.lower())


def parameter_groups(module: nn.Module, weight_decay: float, rate_scales: Mapping[str, float] | None = None) -> Groups:
    """Optimiser groups over the trainable parameters; a tied one stands in one of them, once.

    Matrices are decayed, biases and LayerNorms are not; these have no trust ratio in LAMB either, as in ALBERT's code.
    The fused projection is apart because there query, key and value are three matrices with a ratio each. rate_scales
    says by a parameter's name what its learning rate is multiplied with; by default all have the same.
    """
    members: dict[tuple[float, int], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():  # names a parameter shared by two modules once
        if parameter.requires_grad:
            scale = 1.0 if rate_scales is None else rate_scales[name]
            members.setdefault((-scale, _place(name, parameter)), []).append(parameter)
    return [
        {
            "params": members[key],
            "weight_decay": weight_decay if _TRUST_RATIOS[key[1]] else 0.0,
            "trust_ratios": _TRUST_RATIOS[key[1]],
            "rate_scale": -key[0],
        }
        for key in sorted(members)
    ]


def _place(name: str, parameter: Tensor) -> int:
    """Which of _TRUST_RATIOS a parameter belongs to."""
    if _is_undecayed(name, parameter):
        return 2
    return 1 if name.endswith(_FUSED) else 0


def check_groups(module: nn.Module, groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError unless every trainable parameter, told apart by its storage, is in exactly one group."""
    times: dict[int, int] = {}
    for group in groups:
        for parameter in group["params"]:
            times[parameter.data_ptr()] = times.get(parameter.data_ptr(), 0) + 1
    for name, parameter in module.named_parameters():
        found = times.pop(parameter.data_ptr(), 0)
        if found != int(parameter.requires_grad):
            raise ValueError(f"{name} stands {found} times in the optimiser, not {int(parameter.requires_grad)}")
    if times:
        raise ValueError(f"{len(times)} tensors in the optimiser are no parameters of the module")


def check_gradients(module: nn.Module) -> None:
    """Raise ValueError if a trainable parameter got no gradient: it would never be trained."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ValueError(f"{name} is trainable, but no loss reaches it; build it only where it is trained")


def _adamw(groups: Groups, config: TrainingConfig) -> torch.optim.Optimizer:
    betas = (config.adam_beta1, config.adam_beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon, fused=True)


def _lamb(groups: Groups, config: TrainingConfig) -> torch.optim.Optimizer:
    betas = (config.adam_beta1, config.adam_beta2)
    return Lamb(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon)


_OPTIMIZERS: dict[str, Callable[[Groups, TrainingConfig], torch.optim.Optimizer]] = {"adamw": _adamw, "lamb": _lamb}


def build_optimizer(
    module: nn.Module, config: TrainingConfig, rate_scales: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """The optimiser of config.optimizer, its state ready from the start, so that a checkpoint is copied into it.

    Each group's `rate_scale` is what its learning rate is to be multiplied with; see parameter_groups. Without
    adam_bias_correction the moments are used as they are, as in ELECTRA's and ALBERT's own optimisers. Where the
    attribute `found_inf` [] of the optimiser holds 1, an update changes neither weights nor state.
    """
    groups = parameter_groups(module, config.weight_decay, rate_scales)
    check_groups(module, groups)
    optimizer = _OPTIMIZERS[config.optimizer](groups, config)
    first_step = 0.0 if config.adam_bias_correction else _UNCORRECTED_STEP
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.full((), first_step, dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer
