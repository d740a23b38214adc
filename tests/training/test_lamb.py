"""LAMB is the published one: a ratio for each matrix, query, key and value apart, none for biases and LayerNorms."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig, TrainingConfig
from electra_albert.model.encoder import Encoder
from electra_albert.training.lamb import Lamb
from electra_albert.training.optimizer import build_optimizer, parameter_groups
from tests.training.test_loop import check_resume_is_exact
from tests.training.toy import CONFIG as TOY_CONFIG
from tests.training.toy import ToyObjective, run_toy

D = 3
CONFIG = TrainingConfig(optimizer="lamb", learning_rate=0.05, weight_decay=0.1, adam_epsilon=1e-6)
# How many ratios each parameter of OneOfEach has as published; 0 also says that it is not decayed.
PUBLISHED = {
    "table.weight": 1,
    "dense.weight": 1,
    "dense.bias": 0,
    "qkv.weight": 3,
    "qkv.bias": 0,
    "full_layer_layer_norm.weight": 0,
    "full_layer_layer_norm.bias": 0,
}


class OneOfEach(nn.Module):
    """One parameter of each kind, in float64, drawn so that the thirds of the fused matrix differ much in size."""

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
        yield {
            name: torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)
            for name, parameter in module.named_parameters()
        }


def give(module: nn.Module, gradient: dict[str, Tensor]) -> None:
    for name, parameter in module.named_parameters():
        parameter.grad = gradient[name].clone()


def reference_lamb(weight: Tensor, gradient: list[Tensor], config: TrainingConfig, is_adapted: bool) -> Tensor:
    """LAMB of one matrix written out plainly."""
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, slope in enumerate(gradient, 1):
        first = config.adam_beta1 * first + (1 - config.adam_beta1) * slope
        second = config.adam_beta2 * second + (1 - config.adam_beta2) * slope**2
        correction1 = 1 - config.adam_beta1**step if config.adam_bias_correction else 1.0
        correction2 = 1 - config.adam_beta2**step if config.adam_bias_correction else 1.0
        direction = (first / correction1) / ((second / correction2).sqrt() + config.adam_epsilon)
        ratio = 1.0
        if is_adapted:
            direction = direction + config.weight_decay * weight
            ratio = float(weight.norm() / direction.norm())
        weight = weight - config.learning_rate * ratio * direction
    return weight


def check_lamb_is(ratios: dict[str, int], config: TrainingConfig) -> None:
    """Ten updates must equal those written out, each parameter cut into as many matrices as it has ratios."""
    module = OneOfEach()
    slopes = list(gradients(module, 10))
    expected = {}
    for name, parameter in module.named_parameters():
        tensors = [parameter.detach(), *(gradient[name] for gradient in slopes)]
        parts = zip(*(tensor.chunk(max(1, ratios[name])) for tensor in tensors), strict=True)
        expected[name] = torch.cat([reference_lamb(w, g, config, ratios[name] > 0) for w, *g in parts])
    optimizer = build_optimizer(module, config)
    for gradient in slopes:
        give(module, gradient)
        optimizer.step()
    for name, parameter in module.named_parameters():
        # Float64 throughout, weights up to a few hundred; ten updates leave rounding far below this.
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=0, atol=1e-10, msg=f"{name} differs")


@pytest.mark.parametrize("has_correction", [True, False])
def test_updates_equal_lamb_written_out(has_correction: bool) -> None:
    check_lamb_is(PUBLISHED, replace(CONFIG, adam_bias_correction=has_correction))
    # Planted: one ratio over the fused matrix; a ratio, and decay, for a bias or a LayerNorm; none for a matrix.
    planted = {"qkv.weight": 1, "dense.bias": 1, "full_layer_layer_norm.weight": 1, "dense.weight": 0}
    for name, ratios in planted.items():
        with pytest.raises(AssertionError, match=name):
            check_lamb_is({**PUBLISHED, name: ratios}, CONFIG)


def test_without_trust_ratios_it_is_adamw() -> None:
    # What trains on a Mac's GPU, where the fused AdamW does not look at found_inf.
    ours, reference = OneOfEach(), OneOfEach()
    adamw = build_optimizer(reference, replace(CONFIG, optimizer="adamw"))
    groups = [{**group, "trust_ratios": 0} for group in parameter_groups(ours, CONFIG.weight_decay)]
    lamb = Lamb(groups, CONFIG.learning_rate, (CONFIG.adam_beta1, CONFIG.adam_beta2), CONFIG.adam_epsilon)
    for name, parameter in ours.named_parameters():
        other = dict(reference.named_parameters())[name]
        lamb.state[parameter] = {key: value.clone() for key, value in adamw.state[other].items()}
    for gradient in gradients(ours, 10):
        for module, optimizer in ((ours, lamb), (reference, adamw)):
            give(module, gradient)
            optimizer.step()
    for one, other in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_each_matrix_of_a_shared_block_moves_once_by_its_own_norm() -> None:
    # Without decay an update is as long as rate times weights, however often the block was passed through.
    encoder = Encoder(
        ModelConfig(embedding_size=5, hidden_size=6, num_attention_heads=2, intermediate_size=11)
    ).double()
    before = {name: parameter.detach().clone() for name, parameter in encoder.named_parameters()}
    optimizer = build_optimizer(encoder, replace(CONFIG, weight_decay=0.0))
    assert len(optimizer.state) == len(before)
    embedded = torch.randn(2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    encoder(embedded, torch.ones(2, 7, dtype=torch.bool)).square().sum().backward()
    optimizer.step()
    for name, parameter in encoder.named_parameters():
        if parameter.ndim == 2:
            count = 3 if "qkv" in name else 1
            for old, new in zip(before[name].chunk(count), parameter.detach().chunk(count), strict=True):
                # Float64, and a difference of numbers twenty times as large.
                torch.testing.assert_close((new - old).norm(), CONFIG.learning_rate * old.norm(), rtol=1e-12, atol=0)


def test_where_a_norm_is_zero_the_ratio_is_one() -> None:
    module = nn.Linear(2, 2, bias=False)
    module.weight.data.zero_()
    optimizer = build_optimizer(module, CONFIG)
    give(module, {"weight": torch.ones(2, 2)})
    optimizer.step()  # the first corrected direction of Adam is one everywhere, but for epsilon
    torch.testing.assert_close(module.weight.detach(), torch.full((2, 2), -CONFIG.learning_rate))
    other = nn.Linear(2, 2, bias=False)
    before = other.weight.detach().clone()
    optimizer = build_optimizer(other, replace(CONFIG, weight_decay=0.0))
    give(other, {"weight": torch.zeros(2, 2)})
    optimizer.step()
    assert torch.equal(other.weight, before)


def everything(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Copies of all weights, moments and counters."""
    state = [value for parameter in module.parameters() for value in optimizer.state[parameter].values()]
    return [tensor.detach().clone() for tensor in (*module.parameters(), *state)]


@pytest.mark.parametrize("value", [1.0, torch.nan])
def test_an_update_found_infinite_changes_no_weight_moment_or_counter(value: float) -> None:
    module = OneOfEach()
    optimizer = build_optimizer(module, CONFIG)
    assert isinstance(optimizer, Lamb)
    give(module, next(gradients(module, 1)))
    optimizer.step()
    before = everything(module, optimizer)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, value)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert all(torch.equal(old, new) for old, new in zip(before, everything(module, optimizer), strict=True))
    give(module, next(gradients(module, 1)))
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert not any(torch.equal(old, new) for old, new in zip(before, everything(module, optimizer), strict=True))


@pytest.mark.parametrize(("step", "has_correction"), [(1, True), (4, False)])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(tmp_path: Path, step: int, has_correction: bool) -> None:
    config = replace(TOY_CONFIG, optimizer="lamb", adam_bias_correction=has_correction)
    check_resume_is_exact(tmp_path, config, ToyObjective, step)


@pytest.mark.slow
def test_lamb_learns_through_the_loop(tmp_path: Path) -> None:
    config = replace(TOY_CONFIG, optimizer="lamb", max_steps=400, eval_steps=400, save_steps=400)
    outcome, _ = run_toy(tmp_path, config)
    assert outcome.metrics["token_loss"] < 2.0  # it starts at 5, and the loss at chance is ln 11, about 2.4
