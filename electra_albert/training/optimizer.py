"""AdamW, LAMB and Muon, their parameter groups, and the learning rate schedules."""

import math
from collections import Counter
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config.training import OPTIMIZERS, TrainingConfig

_MUON_ITERATIONS = 5  # of Newton and Schulz
MUON_MOMENTUM = 0.95
# Root mean square of an update at learning rate 1, as AdamW's. Paper: Liu et al. 2025 section 2.2
MUON_SCALE = 0.2
Groups = list[dict[str, Any]]


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Learning rate of `step`, counted from 1, by config.lr_scheduler_type; 0 after the last step.

    electra: warmup times a linear decay over the whole run (ELECTRA appendix A). bert: warmup, then
    a drop onto that decay, as in BERT's and ALBERT's code. linear: warmup to the peak, then a
    linear decay over the remaining steps. wsd: warmup, constant, then a linear decay over the last
    lr_decay_share of the run, at most over the steps after the warmup (MiniCPM section 4). cosine:
    warmup, then half a cosine (Loshchilov and Hutter 2017).
    """
    # Differs from the published code: the decay counts from 0, the warmup from 1, so that no step
    # has learning rate 0. Differs from MiniCPM, whose decay is exponential: wsd decays linearly.
    peak = config.learning_rate
    warmup = config.warmup_steps
    total = config.max_steps
    if step > total:
        return 0.0
    warmed_up = peak
    if step < warmup:
        warmed_up = peak * (step / warmup)
    decay = 1.0 - (step - 1) / total
    left = total - step + 1  # steps, this one included
    after = max(1, total - warmup)  # steps after the warmup
    decay_after = 1.0 - (step - 1 - warmup) / after
    decay_steps = max(1, min(config.lr_decay_share * total, after))
    quarter_wave = math.pi / 2 * min(1.0, left / after)
    schedules = {
        "electra": warmed_up * decay,
        "bert": warmed_up if step < warmup else peak * decay,
        "linear": warmed_up if step <= warmup else peak * decay_after,
        "wsd": warmed_up * min(1.0, left / decay_steps),
        "cosine": warmed_up * math.sin(quarter_wave) ** 2,
    }
    return schedules[config.lr_scheduler_type]


def parameter_groups(
    module: nn.Module,
    decay: float,
    lr_multipliers: Mapping[str, float] | None = None,
    muon_rate: float | None = None,
) -> Groups:
    """Optimizer groups of the trainable parameters.

    Biases and LayerNorms have no weight decay and, as in ALBERT's code, no trust ratio; a fused qkv
    matrix has three. lr_multipliers: multiples of the learning rate by name. With muon_rate, a
    further multiple for them, the matrices of the blocks have groups of their own, `is_orthogonal`.
    """
    groups: dict[Any, dict[str, Any]] = {}
    for name, parameter in module.named_parameters():  # lists tied parameters once
        if not parameter.requires_grad:
            continue
        is_vector = parameter.ndim <= 1 and (name.endswith("bias") or "norm" in name.lower())
        weight_decay = decay
        ratios = 1
        if is_vector:
            weight_decay = 0.0
            ratios = 0
        elif name.endswith("qkv.weight"):
            ratios = 3
        scale = 1.0
        if lr_multipliers is not None:
            scale = lr_multipliers[name]
        is_orthogonal = False
        if muon_rate is not None and parameter.ndim == 2 and ".albert_layers." in name:
            is_orthogonal = True
            scale *= muon_rate
        new = {
            "params": [],
            "weight_decay": weight_decay,
            "trust_ratios": ratios,
            "lr_multiplier": scale,
            "is_orthogonal": is_orthogonal,
        }
        group = groups.setdefault((scale, ratios, is_orthogonal), new)
        group["params"].append(parameter)
    return [*groups.values()]


def check_groups(module: nn.Module, groups: Groups) -> None:
    """Raise ValueError unless every trainable parameter, by its storage, is in one group."""
    times = Counter[int]()
    for group in groups:
        times.update(parameter.data_ptr() for parameter in group["params"])
    for name, parameter in module.named_parameters():
        count = times.pop(parameter.data_ptr(), 0)
        expected = int(parameter.requires_grad)
        if count != expected:
            raise ValueError(f"{name} is {count} times in the optimizer, expected {expected}")
    if times:
        raise ValueError(f"{len(times)} tensors in the optimizer are not parameters of the module")


def check_gradients(module: nn.Module) -> None:
    """Raise ValueError if a trainable parameter got no gradient."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ValueError(f"{name} has no gradient from any loss; freeze or remove it")


class Lamb(torch.optim.Optimizer):
    """LAMB, the optimizer of ALBERT. Paper: You et al. 2020, algorithm 2.

    A group's `trust_ratios`: number of trust ratios per tensor, each for an equal part of its rows;
    0 gives AdamW. build_optimizer creates the state. A step with `found_inf` [] of 1 has no effect.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: Groups, **options: Any) -> None:
        super().__init__(groups, options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Perform one optimizer step; a closure is not supported."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update a parameter and its state; if the step is skipped, copy them onto themselves."""
        state = self.state[parameter]
        beta1, beta2 = group["betas"]
        step = state["step"] + 1
        first = torch.lerp(state["exp_avg"], gradient, 1 - beta1)
        second = torch.lerp(state["exp_avg_sq"], gradient.square(), 1 - beta2)
        # In float64 except on MPS, which has none: 1 - beta2**step is a small difference.
        wide = step if step.device.type == "mps" else step.double()
        scale = (second / (1 - beta2**wide)).sqrt() + group["eps"]
        direction = first / (1 - beta1**wide) / scale + group["weight_decay"] * parameter
        parts = group["trust_ratios"]
        if parts:
            weight_rows = parameter.reshape(parts, -1)
            rows = direction.reshape(parts, -1)
            weight_norm = torch.linalg.vector_norm(weight_rows, dim=1)  # [parts]
            direction_norm = torch.linalg.vector_norm(rows, dim=1)  # [parts]
            has_norms = (weight_norm > 0) & (direction_norm > 0)
            ratio = torch.where(has_norms, weight_norm / direction_norm, 1.0)
            direction = (rows * ratio[:, None]).view_as(direction)
        updates = (
            (parameter, parameter - group["lr"] * direction),
            (state["step"], step),
            (state["exp_avg"], first),
            (state["exp_avg_sq"], second),
        )
        for target, value in updates:
            if self.found_inf is not None:
                value = torch.where(self.found_inf == 0, value, target)
            target.copy_(value)


def adamw(groups: Groups, **options: Any) -> torch.optim.Optimizer:
    """PyTorch's fused AdamW, except on MPS."""
    first = groups[0]["params"][0]
    if first.device.type == "mps":  # fused AdamW ignores found_inf there
        without_ratios = [{**group, "trust_ratios": 0} for group in groups]
        return Lamb(without_ratios, **options)
    return torch.optim.AdamW(groups, fused=True, **options)


class Muon(torch.optim.Optimizer):
    """Muon for the groups with `is_orthogonal`, AdamW for the others.

    Papers: Jordan 2024; Liu et al. 2025 section 2.2. Updates have the size of AdamW's, so both take
    the same learning rates. Query, key and value of a fused matrix are orthogonalised one by one.
    build_optimizer creates the state. If `found_inf` [] is 1, a step changes nothing.
    """

    found_inf: Tensor | None = None
    matrix_dtype = torch.bfloat16  # as published; TrainingStep may set float32

    def __init__(self, groups: Groups, **options: Any) -> None:
        super().__init__(groups, {**options, "capturable": False})
        self._others = [group for group in self.param_groups if not group["is_orthogonal"]]
        self._adamw = adamw([{**group} for group in self._others], **options)
        self._adamw.state = self.state
        # torch.optim.Muon calls some 25 operators per matrix; here all of one shape share them.
        self._stacks = dict[torch.Size, list[tuple[Any, dict[str, Any]]]]()  # parameters, groups
        for group in self.param_groups:
            if not group["is_orthogonal"]:
                continue
            for parameter in group["params"]:
                shape = wide(parameter, group).shape[1:]
                self._stacks.setdefault(shape, []).append((parameter, group))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Perform one optimizer step; a closure is not supported."""
        for group, inner in zip(self._others, self._adamw.param_groups, strict=True):
            inner["lr"] = group["lr"]
            inner["capturable"] = group["capturable"]
        self._adamw.found_inf = self.found_inf  # type: ignore[attr-defined]
        self._adamw.step()
        for (_, columns), members in self._stacks.items():
            weights = []
            momenta = []
            gradients = []
            rates = []
            for parameter, group in members:
                weights.append(wide(parameter, group))
                momenta.append(wide(self.state[parameter]["momentum_buffer"], group))
                gradients.append(wide(parameter.grad, group))
                rates.append(group["lr"].expand(group["trust_ratios"]))
            weight = torch.cat(weights)  # [N, m, n]
            momentum = torch.cat(momenta)
            gradient = torch.cat(gradients)
            rate = torch.cat(rates)[:, None, None]  # [N, 1, 1]
            moved = momentum.lerp(gradient, 1 - MUON_MOMENTUM)
            # Nesterov's momentum
            direction = orthogonalized(gradient.lerp(moved, MUON_MOMENTUM).to(self.matrix_dtype))
            remaining = 1 - rate * members[0][1]["weight_decay"]  # the same for all
            decayed = weight * remaining.to(weight.dtype)
            size = MUON_SCALE * math.sqrt(columns)
            factor = (-rate * size).to(weight.dtype)
            updated = decayed.addcmul_(direction, factor)
            counts = [len(matrices) for matrices in weights]
            for targets, old, new in ((momenta, momentum, moved), (weights, weight, updated)):
                if self.found_inf is not None:
                    new = torch.where(self.found_inf == 0, new, old)
                for target, value in zip(targets, new.split(counts), strict=True):
                    target.copy_(value)


def wide(tensor: Tensor, group: Mapping[str, Any]) -> Tensor:
    """A weight, any float, as a view of the group's N matrices [N, m, n], m <= n."""
    matrices = tensor.view(group["trust_ratios"], -1, tensor.shape[1])
    _, rows, columns = matrices.shape
    return matrices.mT if rows > columns else matrices


def orthogonalized(matrices: Tensor) -> Tensor:
    """Matrices, any float [N, m, n], m <= n, with singular values near 1. Paper: Jordan 2024."""
    result: Tensor = matrices / torch.linalg.matrix_norm(matrices, keepdim=True).clamp(min=1e-7)
    linear, cubic, quintic = 3.4445, -4.7750, 2.0315
    for _ in range(_MUON_ITERATIONS):  # of Newton and Schulz
        gram = result @ result.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic)
        result = torch.baddbmm(result, polynomial, result, beta=linear)
    return result


def build_optimizer(
    module: nn.Module, config: TrainingConfig, lr_multipliers: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """The optimizer with allocated state, into which a checkpoint is copied.

    It skips a step if `found_inf` [] is 1. The learning rate of each group is a tensor, which a
    recorded step reads.
    """
    spec = OPTIMIZERS[config.optimizer]
    groups = _groups(module, config, lr_multipliers)
    check_groups(module, groups)
    optimizer: torch.optim.Optimizer = resolve_name(spec.class_path)(
        groups,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
    )
    for group in optimizer.param_groups:
        device = group["params"][0].device
        dtype = learning_rate_dtype(device)
        group["lr"] = torch.tensor(config.learning_rate, dtype=dtype, device=device)
        moments = spec.moments
        if group["is_orthogonal"]:
            moments = spec.matrix_moments
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            for name in moments:
                state[name] = torch.zeros_like(parameter)
            if not group["is_orthogonal"]:
                state["step"] = parameter.new_zeros((), dtype=torch.float32)
    reset_state(optimizer)
    return optimizer


def checkpoint_bytes(module: nn.Module, config: TrainingConfig) -> int:
    """Bytes of the weights and of the optimizer's moments."""
    spec = OPTIMIZERS[config.optimizer]
    total = 0
    for group in _groups(module, config, None):
        moments = spec.moments
        if group["is_orthogonal"]:
            moments = spec.matrix_moments
        weight_bytes = sum(parameter.nbytes for parameter in group["params"])
        total += (1 + len(moments)) * weight_bytes
    return total


def _groups(
    module: nn.Module, config: TrainingConfig, lr_multipliers: Mapping[str, float] | None
) -> Groups:
    muon_rate = None
    if OPTIMIZERS[config.optimizer].matrix_moments:
        muon_rate = config.muon_rate
    return parameter_groups(module, config.weight_decay, lr_multipliers, muon_rate)


def learning_rate_dtype(device: torch.device) -> torch.dtype:
    """Exact on the CPU; fused AdamW on CUDA reads float32, and MPS has no float64."""
    return torch.float64 if device.type == "cpu" else torch.float32


def reset_state(optimizer: torch.optim.Optimizer) -> None:
    """Set the state to that before the first step, in place."""
    for state in optimizer.state.values():
        for tensor in state.values():
            tensor.zero_()


def flat_gradient(module: nn.Module) -> Tensor:
    """Give all trainable parameters, of one dtype, gradients of 0 that are views of the result."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # Odd sizes last: vectorised kernels need aligned tensors.
    parameters.sort(key=lambda parameter: parameter.numel() % 4)
    sizes = [parameter.numel() for parameter in parameters]
    gradient = parameters[0].new_zeros(sum(sizes))
    parts = torch.split(gradient, sizes)
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
    return gradient
