"""AdamW, LAMB and Muon, their parameter groups, and the learning rate schedules."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config import OPTIMIZERS, TrainingConfig

MUON_ITERATIONS = 5  # of Newton and Schulz
MUON_MOMENTUM = 0.95
MUON_SCALE = 0.2  # root mean square of an update at learning rate 1, that of AdamW. Paper: Liu et al. 2025 section 2.2
Groups = list[dict[str, Any]]


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Learning rate of `step`, counted from 1, by config.lr_scheduler_type; 0 after the end of the run.

    electra: warmup times a linear decay over the whole run (ELECTRA appendix A). bert: warmup, then a drop onto that
    decay, as in BERT's and ALBERT's code. linear: warmup to the peak, then a linear decay over the remaining steps.
    wsd: warmup, constant, then a linear decay over the last lr_decay_share of the run, at most over the steps after the
    warmup (MiniCPM section 4). cosine: warmup, then half a cosine (Loshchilov and Hutter 2017).
    """
    # Differs from the published code: the decay counts from 0, the warmup from 1, so that no step has learning rate 0.
    # Differs from MiniCPM, whose decay is exponential: wsd decays linearly, as the other schedules do.
    peak, warmup, total = config.learning_rate, config.warmup_steps, config.max_steps
    if step > total:
        return 0.0
    warmed_up = peak * (min(1.0, step / warmup) if warmup else 1.0)
    decay = 1.0 - (step - 1) / total
    left, after = total - step + 1, max(1, total - warmup)  # steps left, this one included; steps after the warmup
    schedules = {
        "electra": warmed_up * decay,
        "bert": warmed_up if step < warmup else peak * decay,
        "linear": warmed_up if step <= warmup else peak * (1.0 - (step - 1 - warmup) / (total - warmup)),
        "wsd": warmed_up * min(1.0, left / max(1, min(config.lr_decay_share * total, after))),
        "cosine": warmed_up * math.sin(math.pi / 2 * min(1.0, left / after)) ** 2,
    }
    return schedules[config.lr_scheduler_type]


def parameter_groups(
    module: nn.Module, decay: float, lr_multipliers: Mapping[str, float] | None = None, muon_rate: float | None = None
) -> Groups:
    """Optimizer groups of the trainable parameters; lr_multipliers: multiples of the learning rate by name.

    Biases and LayerNorms have no weight decay and, as in ALBERT's code, no trust ratio; a fused qkv matrix has three.
    With muon_rate, a further multiple for them, the matrices of the blocks have groups of their own, `is_orthogonal`.
    """
    members: dict[tuple[float, int, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():  # lists tied parameters once
        if parameter.requires_grad:
            has_no_decay = parameter.ndim <= 1 and (name.endswith("bias") or "norm" in name.lower())
            ratios = 0 if has_no_decay else 3 if name.endswith("qkv.weight") else 1
            scale = 1.0 if lr_multipliers is None else lr_multipliers[name]
            is_orthogonal = muon_rate is not None and parameter.ndim == 2 and ".albert_layers." in name
            scale *= muon_rate if is_orthogonal and muon_rate is not None else 1.0
            members.setdefault((scale, ratios, is_orthogonal), []).append(parameter)
    names = ("weight_decay", "trust_ratios", "lr_multiplier", "is_orthogonal")
    return [
        {"params": params, **dict(zip(names, (decay * (ratios > 0), ratios, scale, is_orthogonal), strict=True))}
        for (scale, ratios, is_orthogonal), params in members.items()
    ]


def check_groups(module: nn.Module, groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError unless every trainable parameter, identified by its storage, is in exactly one group."""
    times = Counter(parameter.data_ptr() for group in groups for parameter in group["params"])
    for name, parameter in module.named_parameters():
        if (found := times.pop(parameter.data_ptr(), 0)) != int(parameter.requires_grad):
            raise ValueError(f"{name} is {found} times in the optimizer, expected {int(parameter.requires_grad)}")
    if times:
        raise ValueError(f"{len(times)} tensors in the optimizer are not parameters of the module")


def check_gradients(module: nn.Module) -> None:
    """Raise ValueError if a trainable parameter got no gradient."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ValueError(f"{name} is trainable but has no gradient from any loss; freeze or remove it")


class Lamb(torch.optim.Optimizer):
    """LAMB, the optimizer of ALBERT. Paper: You et al. 2020, algorithm 2.

    A group's `trust_ratios`: number of trust ratios per tensor, each for an equal part of its rows; 0 gives AdamW.
    build_optimizer creates the state. If `found_inf` [] is 1, a step changes neither weights nor state.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: Groups, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "trust_ratios": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Perform one optimizer step; a closure is not supported."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update a parameter and its state; if the step is skipped, copy them onto themselves."""
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        step = state["step"] + 1
        first = torch.lerp(state["exp_avg"], gradient, 1 - beta1)
        second = torch.lerp(state["exp_avg_sq"], gradient.square(), 1 - beta2)
        # In float64 except on MPS, which has none: 1 - beta2**step is a small difference of numbers near one.
        wide = step if step.device.type == "mps" else step.double()
        correction1, correction2 = (1 - beta**wide for beta in (beta1, beta2))
        direction = (first / correction1) / ((second / correction2).sqrt() + group["eps"])
        direction = direction + group["weight_decay"] * parameter
        if parts := group["trust_ratios"]:  # the ratio is 1 if a norm is 0
            rows = direction.reshape(parts, -1)
            weight_norm = torch.linalg.vector_norm(parameter.reshape(parts, -1), dim=1)  # [parts]
            direction_norm = torch.linalg.vector_norm(rows, dim=1)  # [parts]
            ratio = torch.where((weight_norm > 0) & (direction_norm > 0), weight_norm / direction_norm, 1.0)
            direction = (rows * ratio[:, None]).view_as(direction)
        moved = (parameter - group["lr"] * direction, step, first, second)
        for target, value in zip((parameter, state["step"], state["exp_avg"], state["exp_avg_sq"]), moved, strict=True):
            target.copy_(value if self.found_inf is None else torch.where(self.found_inf == 0, value, target))


def adamw(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    """PyTorch's fused AdamW, except on MPS."""
    if groups[0]["params"][0].device.type == "mps":  # fused AdamW ignores found_inf there
        return Lamb([{**group, "trust_ratios": 0} for group in groups], **options)
    return torch.optim.AdamW(groups, fused=True, **options)


class Muon(torch.optim.Optimizer):
    """Muon for the groups with `is_orthogonal`, AdamW for the others. Papers: Jordan 2024; Liu et al. 2025 section 2.2.

    Updates have the size of AdamW's, so both take the same learning rates. Query, key and value of a fused matrix are
    orthogonalised one by one. build_optimizer creates the state. If `found_inf` [] is 1, a step changes nothing.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: Groups, **options: Any) -> None:
        super().__init__(groups, {**options, "capturable": False})
        self._others = [group for group in self.param_groups if not group["is_orthogonal"]]
        self._adamw = adamw([{**group} for group in self._others], **options)
        self._adamw.state = self.state
        # torch.optim.Muon calls some 25 operators per matrix, one after the other; matrices of one shape share them.
        self._stacks = dict[torch.Size, list[tuple[Any, dict[str, Any]]]]()  # parameters, groups
        for group in self.param_groups:
            for parameter in group["params"] if group["is_orthogonal"] else ():
                shape = _wide(parameter, group).shape[1:]
                self._stacks.setdefault(shape, []).append((parameter, group))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Perform one optimizer step; a closure is not supported."""
        assert closure is None
        for group, inner in zip(self._others, self._adamw.param_groups, strict=True):
            inner["lr"] = group["lr"]
            inner["capturable"] = group["capturable"]
        self._adamw.found_inf = self.found_inf  # type: ignore[attr-defined]
        self._adamw.step()
        for (_, columns), members in self._stacks.items():
            weights = [_wide(one, group) for one, group in members]
            momenta = [_wide(self.state[one]["momentum_buffer"], group) for one, group in members]
            gradients = [_wide(one.grad, group) for one, group in members]
            counts = [group["trust_ratios"] for _, group in members]
            weight = torch.cat(weights)  # [N, m, n]
            momentum = torch.cat(momenta)
            gradient = torch.cat(gradients)
            rates = [group["lr"].expand(group["trust_ratios"]) for _, group in members]
            rate = torch.cat(rates)[:, None, None]  # [N, 1, 1]
            moved = momentum.lerp(gradient, 1 - MUON_MOMENTUM)
            direction = orthogonalized(gradient.lerp(moved, MUON_MOMENTUM))  # Nesterov's
            kept_share = 1 - rate * members[0][1]["weight_decay"]
            decayed = weight * kept_share.to(weight.dtype)
            size = MUON_SCALE * math.sqrt(columns)
            updated = decayed.addcmul_(direction, (-rate * size).to(weight.dtype))
            for targets, old, new in ((momenta, momentum, moved), (weights, weight, updated)):
                kept = new if self.found_inf is None else torch.where(self.found_inf == 0, new, old)
                for target, value in zip(targets, kept.split(counts), strict=True):
                    target.copy_(value)


def _wide(tensor: Tensor, group: Mapping[str, Any]) -> Tensor:
    """A view of a weight as the group's number of matrices, of at least as many columns as rows."""
    matrices = tensor.view(group["trust_ratios"], -1, tensor.shape[1])
    return matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices


def orthogonalized(matrices: Tensor) -> Tensor:
    """Matrices [N, m, n], m <= n, in bfloat16, singular values near 1, by Newton and Schulz. Paper: Jordan 2024."""
    found = matrices.bfloat16()
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=1e-7)
    linear, cubic, quintic = 3.4445, -4.7750, 2.0315
    for _ in range(MUON_ITERATIONS):
        gram = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), found, beta=linear)
    return found


def build_optimizer(
    module: nn.Module, config: TrainingConfig, lr_multipliers: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """The optimizer with allocated state, into which a checkpoint is copied; it skips a step if `found_inf` [] is 1.

    The learning rate of each group is a tensor, which a recorded step reads.
    """
    groups = _groups(module, config, lr_multipliers)
    check_groups(module, groups)
    name, _, kind = OPTIMIZERS[config.optimizer].class_path.partition(":")
    build: Callable[..., torch.optim.Optimizer] = getattr(import_module(name), kind)
    betas = (config.adam_beta1, config.adam_beta2)
    optimizer = build(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon)
    for group in optimizer.param_groups:
        device = group["params"][0].device
        group["lr"] = torch.full((), config.learning_rate, dtype=learning_rate_dtype(device), device=device)
        names = _moments(config, group)
        for parameter in group["params"]:
            state = {name: torch.zeros_like(parameter) for name in names}
            if not group["is_orthogonal"]:
                state = {"step": torch.zeros((), dtype=torch.float32, device=device), **state}
            optimizer.state[parameter] = state
    reset_state(optimizer, config)
    return optimizer


def checkpoint_bytes(module: nn.Module, config: TrainingConfig) -> int:
    """Bytes of the weights and of the optimizer's moments."""
    total = 0
    for group in _groups(module, config, None):
        copies = 1 + len(_moments(config, group))
        total += copies * sum(parameter.nbytes for parameter in group["params"])
    return total


def _groups(module: nn.Module, config: TrainingConfig, lr_multipliers: Mapping[str, float] | None) -> Groups:
    muon_rate = config.muon_rate if OPTIMIZERS[config.optimizer].matrix_moments else None
    return parameter_groups(module, config.weight_decay, lr_multipliers, muon_rate)


def _moments(config: TrainingConfig, group: Mapping[str, Any]) -> tuple[str, ...]:
    spec = OPTIMIZERS[config.optimizer]
    return spec.matrix_moments if group["is_orthogonal"] else spec.moments


def learning_rate_dtype(device: torch.device) -> torch.dtype:
    """Exact on the CPU; fused AdamW on CUDA reads float32, and MPS has no float64."""
    return torch.float64 if device.type == "cpu" else torch.float32


def reset_state(optimizer: torch.optim.Optimizer, config: TrainingConfig) -> None:
    """Set the state to that before the first step, in place."""
    for state in optimizer.state.values():
        for tensor in state.values():
            tensor.zero_()
        if "step" in state and not config.adam_bias_correction:
            # Here 1 - beta**step is 1 for all usual betas, and the float32 counter no longer grows.
            state["step"].fill_(1e8)


def flat_gradient(module: nn.Module) -> Tensor:
    """Give all trainable parameters, of one dtype, gradients of 0 that are views of the result."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # Odd sizes last: vectorised kernels need aligned tensors.
    parameters.sort(key=lambda parameter: parameter.numel() % 4)
    sizes = [parameter.numel() for parameter in parameters]
    gradient = parameters[0].new_zeros(sum(sizes))
    for parameter, part in zip(parameters, torch.split(gradient, sizes), strict=True):
        parameter.grad = part.view_as(parameter)
    return gradient
