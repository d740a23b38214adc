"""Parameter groups (law 6), AdamW, LAMB and the learning rate schedules."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import Arithmetic
from electra_albert.training import distributed
from electra_albert.training import optimizer as optimizers
from electra_albert.training.optimizer import build_optimizer, check_groups, learning_rate
from electra_albert.training.step import TrainingStep
from tests.training.test_loop import check_resume, run_of
from tests.training.toy import CONFIG as TOY_CONFIG
from tests.training.toy import ToyObjective

D = 3
ADAMW = TrainingConfig(learning_rate=0.05, weight_decay=0.1, adam_beta1=0.8, adam_beta2=0.95)
CONFIG = replace(ADAMW, optimizer="lamb")
# Number of trust ratios of each parameter of OneOfEach in the published LAMB; 0 means no weight
# decay too.
_NORM = "full_layer_layer_norm"
PUBLISHED = {"table.weight": 1, "dense.weight": 1, "dense.bias": 0, "qkv.weight": 3, "qkv.bias": 0}
PUBLISHED |= {f"{_NORM}.weight": 0, f"{_NORM}.bias": 0}


class OneOfEach(nn.Module):
    """One parameter of each kind in float64; the thirds of the fused matrix have very different
    norms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, D)
        self.dense = nn.Linear(D, 5)
        self.qkv = nn.Linear(D, 3 * D)
        self.full_layer_layer_norm = nn.LayerNorm(D)
        self.double()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            self.qkv.weight[D:] *= 10
            self.qkv.weight[2 * D :] *= 10


def gradients(module: nn.Module, count: int) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        named = module.named_parameters()
        yield {
            name: torch.randn(weight.shape, dtype=weight.dtype, generator=generator)
            for name, weight in named
        }


def give(module: nn.Module, gradient: dict[str, Tensor]) -> None:
    for name, parameter in module.named_parameters():
        parameter.grad = gradient[name].clone()


def reference_steps(
    weight: Tensor, gradient: list[Tensor], config: TrainingConfig, is_decayed: bool
) -> Tensor:
    """Reference implementation of AdamW and LAMB for one matrix."""
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, g in enumerate(gradient, 1):
        first = config.adam_beta1 * first + (1 - config.adam_beta1) * g
        second = config.adam_beta2 * second + (1 - config.adam_beta2) * g**2
        correction1 = 1 - config.adam_beta1**step
        correction2 = 1 - config.adam_beta2**step
        direction = (first / correction1) / ((second / correction2).sqrt() + config.adam_epsilon)
        direction = direction + (config.weight_decay * weight if is_decayed else 0.0)
        ratio = (
            float(weight.norm() / direction.norm())
            if is_decayed and config.optimizer == "lamb"
            else 1.0
        )
        weight = weight - config.learning_rate * ratio * direction
    return weight


def check_updates_are(
    ratios: dict[str, int], config: TrainingConfig, *, has_ratios: bool = True
) -> None:
    """Assert that ten steps equal the reference, with each parameter split into as many matrices as
    it has ratios.
    """
    module, reference = OneOfEach(), config if has_ratios else replace(config, optimizer="adamw")
    all_gradients = list(gradients(module, 10))
    expected = {}
    for name, parameter in module.named_parameters():
        tensors = [parameter.detach(), *(gradient[name] for gradient in all_gradients)]
        parts = zip(*(tensor.chunk(max(1, ratios[name])) for tensor in tensors), strict=True)
        expected[name] = torch.cat(
            [reference_steps(w, g, reference, ratios[name] > 0) for w, *g in parts]
        )
    optimizer = build_optimizer(module, config)
    if not has_ratios:
        for group in optimizer.param_groups:
            group["trust_ratios"] = 0
    for gradient in all_gradients:
        give(module, gradient)
        optimizer.step()
    for name, parameter in module.named_parameters():
        # Float64 with weights up to a few hundred: the rounding error of ten steps is far below
        # this.
        torch.testing.assert_close(
            parameter.detach(), expected[name], rtol=0, atol=1e-10, msg=f"{name} differs"
        )


def test_steps_equal_a_reference_implementation_of_adamw_and_lamb() -> None:
    check_updates_are(PUBLISHED, ADAMW)
    check_updates_are(PUBLISHED, CONFIG)
    check_updates_are(PUBLISHED, CONFIG, has_ratios=False)  # AdamW on MPS
    # Planted: one ratio over the fused matrix; a ratio, and decay, for a bias or a LayerNorm; none
    # for a matrix.
    planted = {"qkv.weight": 1, "dense.bias": 1, f"{_NORM}.weight": 1, "dense.weight": 0}
    for name, ratios in planted.items():
        with pytest.raises(AssertionError, match=name):
            check_updates_are({**PUBLISHED, name: ratios}, CONFIG)


def test_the_trust_ratio_is_one_if_a_norm_is_zero() -> None:
    for weight, gradient in ((0.0, 1.0), (1.0, 0.0)):
        module = nn.Linear(2, 2, bias=False)
        module.weight.data.fill_(weight)
        optimizer = build_optimizer(module, replace(CONFIG, weight_decay=0.0))
        give(module, {"weight": torch.full((2, 2), gradient)})
        # The first corrected direction of Adam is one or zero everywhere, but for epsilon.
        optimizer.step()
        expected = torch.full((2, 2), weight - CONFIG.learning_rate * gradient)
        torch.testing.assert_close(module.weight.detach(), expected)


def everything(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Copies of all weights, moments and counters."""
    state = [
        value for parameter in module.parameters() for value in optimizer.state[parameter].values()
    ]
    return [tensor.detach().clone() for tensor in (*module.parameters(), *state)]


@pytest.mark.parametrize("value", [1.0, torch.nan])
@pytest.mark.parametrize("kind", ["lamb", "muon"])
def test_a_step_with_found_inf_changes_no_weight_moment_or_counter(value: float, kind: Any) -> None:
    module = Blocks()
    optimizer = build_optimizer(module, replace(CONFIG, optimizer=kind))
    give(module, next(gradients(module, 1)))
    optimizer.step()
    before = everything(module, optimizer)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, value)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert all(map(torch.equal, before, everything(module, optimizer)))
    give(module, next(gradients(module, 1)))
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert not any(map(torch.equal, before, everything(module, optimizer)))


def test_a_resumed_run_equals_the_uninterrupted_one_bitwise(tmp_path: Path) -> None:
    config = replace(TOY_CONFIG, optimizer="lamb")
    check_resume(tmp_path, config, ToyObjective, 4)


BLOCK = "encoder.albert_layers."  # Muon's matrices are those of the blocks


class Blocks(nn.Module):
    """Two OneOfEach inside blocks, in float32, a wide matrix, and a table outside them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(D, 7, bias=False)
        blocks = [OneOfEach().float(), OneOfEach().float(), nn.Linear(5, 2, bias=False)]
        self.encoder = nn.ModuleDict({"albert_layers": nn.ModuleList(blocks)})


# Which must not change Muon's updates.
MUON = replace(ADAMW, optimizer="muon", muon_rate=3.0, adam_epsilon=0.5)


def test_muon_steps_are_those_of_torch_for_each_matrix_of_a_block_and_adamw_elsewhere() -> None:
    module, twin = Blocks(), Blocks()
    twin.load_state_dict(module.state_dict())
    optimizer = build_optimizer(module, MUON)
    matrices = {
        name: one
        for name, one in twin.named_parameters()
        if name.startswith(BLOCK) and one.ndim == 2
    }
    names = {f"{block}.{name}.weight" for block in range(2) for name in ("table", "dense", "qkv")}
    assert {name.removeprefix(BLOCK) for name in matrices} == names | {"2.weight"}
    chunks = {name: one.detach().chunk(3 if "qkv" in name else 1) for name, one in matrices.items()}
    parts = {name: [nn.Parameter(part) for part in each] for name, each in chunks.items()}
    rest = {name: one for name, one in twin.named_parameters() if name not in matrices}
    muon = partial(torch.optim.Muon, weight_decay=MUON.weight_decay, adjust_lr_fn="match_rms_adamw")
    adamw = partial(torch.optim.AdamW, betas=(0.8, 0.95), eps=MUON.adam_epsilon, fused=True)
    references: list[Any] = [muon(chain(*parts.values()))]
    references += [
        adamw([one], weight_decay=MUON.weight_decay * (one.ndim > 1)) for one in rest.values()
    ]
    for rate, gradient in zip((0.05, 0.02, 0.03), gradients(module, 3), strict=True):
        give(module, gradient)
        give(twin, gradient)
        for name, each in parts.items():
            for part, wanted in zip(each, gradient[name].chunk(len(each)), strict=True):
                part.grad = wanted.clone()
        for group in optimizer.param_groups:
            group["lr"].fill_(rate * group["lr_multiplier"])
        for number, reference in enumerate(references):
            reference.param_groups[0]["lr"] = rate * (MUON.muon_rate if number == 0 else 1)
            reference.step()
        optimizer.step()
    expected = {**rest, **{name: torch.cat([*each]) for name, each in parts.items()}}
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, expected[name]), name


# On a CPU without instructions for bfloat16 it is 20 times slower than float32.
@pytest.mark.parametrize("arithmetic", get_args(Arithmetic))
@pytest.mark.parametrize("other", ["bf16", "fp32"])
def test_muon_computes_in_bfloat16_only_if_all_ranks_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arithmetic: Arithmetic, other: Arithmetic
) -> None:
    seen = []
    monkeypatch.setattr(
        optimizers, "orthogonalized", lambda matrices: seen.append(matrices.dtype) or matrices
    )
    monkeypatch.setattr(distributed, "gather_objects", lambda value, _: [value, other])
    module: Any = Blocks()
    module.weights = {}
    run = replace(run_of(tmp_path), config=MUON, arithmetic=arithmetic)
    optimizer = TrainingStep(module, run).optimizer
    give(module, next(gradients(module, 1)))
    optimizer.step()
    dtype = torch.bfloat16 if arithmetic == other == "bf16" else torch.float32
    assert {*seen} == {dtype}


def test_muon_gives_matrices_of_one_shape_the_learning_rates_of_their_groups() -> None:
    module = Blocks()
    names = [name for name, _ in module.named_parameters()]
    multipliers = {name: 0.0 if ".0." in name else 1.0 for name in names}
    optimizer = build_optimizer(module, MUON, multipliers)
    for group in optimizer.param_groups:
        group["lr"].fill_(MUON.learning_rate * group["lr_multiplier"])
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    give(module, next(gradients(module, 1)))
    optimizer.step()
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name]) == (multipliers[name] == 0), name


def test_every_trainable_parameter_is_in_one_group_with_its_decay_and_lr_multiplier() -> None:
    tied = ToyObjective()
    check_groups(tied, optimizers.parameter_groups(tied, 0.01))
    module = OneOfEach()
    module.dense.bias.requires_grad_(False)
    named = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    scales = {
        name: 1.0 if "norm" in name.lower() else 0.5**number for number, name in enumerate(named)
    }
    groups = optimizers.parameter_groups(module, 0.01, scales)
    check_groups(module, groups)
    names = {parameter: name for name, parameter in module.named_parameters()}
    assert {names[p]: group["lr_multiplier"] for group in groups for p in group["params"]} == scales
    decayed = {names[p] for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {"table.weight", "dense.weight", "qkv.weight"}
    with pytest.raises(KeyError):
        optimizers.parameter_groups(module, 0.01, {})


def test_two_parameters_with_the_same_storage_are_refused() -> None:
    twins = OneOfEach()
    twins.twin = nn.Parameter(twins.qkv.weight.data)
    with pytest.raises(ValueError, match="2 times"):
        build_optimizer(twins, CONFIG)


def curve(kind: str, max_steps: int = 100, warmup_steps: int = 10, **more: float) -> list[float]:
    """Learning rates of steps 1, 2, … of a whole run with peak 1."""
    steps = {"max_steps": max_steps, "warmup_steps": warmup_steps}
    config = TrainingConfig(**steps, learning_rate=1.0, lr_scheduler_type=kind, **more)
    assert learning_rate(max_steps + 1, config) == learning_rate(5 * max_steps, config) == 0.0
    return [learning_rate(step, config) for step in range(1, max_steps + 1)]


def test_each_schedule_is_the_published_one_except_for_the_offset() -> None:
    electra = curve("electra")
    expected = {1: 0.1, 5: 0.5 * 0.96, 10: 0.91, 51: 0.5, 100: 0.01}
    assert {step: electra[step - 1] for step in expected} == pytest.approx(expected, rel=1e-12)
    # As published, with steps counted from 0: g / w while g < w, then 1 - g / T. The warmup is one
    # step ahead.
    published = [g / 10 if g < 10 else 1 - g / 100 for g in range(100)]
    bert = [*published[1:10], 1 - 9 / 100, *published[10:]]
    assert curve("bert") == pytest.approx(bert, rel=1e-12)
    # The usual formula, with steps counted from 0 in the decay: (T - g) / (T - w).
    linear = [*(step / 10 for step in range(1, 11)), *((100 - g) / 90 for g in range(10, 100))]
    assert curve("linear") == pytest.approx(linear, rel=1e-12)
    # MiniCPM section 4 with a linear decay: 1 for g < S, then (T - g) / (T - S), here with S = 70.
    wsd = [*linear[:10], *(1.0 for _ in range(10, 70)), *((100 - g) / 30 for g in range(70, 100))]
    assert curve("wsd", lr_decay_share=0.3) == pytest.approx(wsd, rel=1e-12)
    # No decay before the peak.
    assert curve("wsd", lr_decay_share=0.95) == pytest.approx(linear, rel=1e-12)
    assert curve("wsd", lr_decay_share=0) == pytest.approx([*linear[:10], *[1.0] * 90], rel=1e-12)
    # Loshchilov and Hutter 2017, equation 5, with one period after the warmup.
    cosine = [*linear[:10], *((1 + math.cos(math.pi * (g - 10) / 90)) / 2 for g in range(10, 100))]
    assert curve("cosine") == pytest.approx(cosine, rel=1e-12)


@pytest.mark.parametrize("kind", get_args(get_type_hints(TrainingConfig)["lr_scheduler_type"]))
def test_the_learning_rate_is_never_zero_or_above_the_peak(kind: str) -> None:
    for warmup_steps in (0, 1, 10, 99, 100, 150):
        assert all(0 < rate <= 1 for rate in curve(kind, warmup_steps=warmup_steps))
    assert curve(kind, warmup_steps=0)[0] == 1.0
    if kind != "electra":  # a warmup longer than the run never decays
        assert curve(kind, max_steps=8, warmup_steps=16) == [step / 16 for step in range(1, 9)]
