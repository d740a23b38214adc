"""Every trainable parameter is in exactly one group, decayed or not as it should be, and Adam is the Adam asked for."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from electra_albert.config import TrainingConfig
from electra_albert.training.optimizer import build_optimizer, check_gradients, check_groups, parameter_groups
from tests.training.toy import ToyObjective

CONFIG = TrainingConfig(learning_rate=0.05, weight_decay=0.1, adam_epsilon=1e-6)


class AlbertNames(nn.Module):
    """One parameter of each kind, under the names the encoder gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(7, 3)
        self.LayerNorm = nn.LayerNorm(3)
        self.full_layer_layer_norm = nn.LayerNorm(3)
        self.query = nn.Linear(3, 5)
        self.decoder_bias = nn.Parameter(torch.zeros(7))
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)


def reference_adam(start: Tensor, gradients: list[Tensor], config: TrainingConfig) -> Tensor:
    """AdamW written out plainly."""
    weight, first, second = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step, gradient in enumerate(gradients, 1):
        first = config.adam_beta1 * first + (1 - config.adam_beta1) * gradient
        second = config.adam_beta2 * second + (1 - config.adam_beta2) * gradient**2
        correction1 = 1 - config.adam_beta1**step if config.adam_bias_correction else 1.0
        correction2 = 1 - config.adam_beta2**step if config.adam_bias_correction else 1.0
        direction = (first / correction1) / ((second / correction2).sqrt() + config.adam_epsilon)
        weight = weight - config.learning_rate * (direction + config.weight_decay * weight)
    return weight


@pytest.mark.parametrize("has_correction", [True, False])
def test_updates_equal_adam_written_out(has_correction: bool) -> None:
    config = replace(CONFIG, adam_bias_correction=has_correction)
    module = nn.Linear(5, 3, bias=False, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(3, 5, dtype=torch.float64, generator=generator) for _ in range(30)]
    expected = reference_adam(module.weight.detach(), gradients, config)
    optimizer = build_optimizer(module, config)
    for gradient in gradients:
        module.weight.grad = gradient.clone()
        optimizer.step()
    # Float64 throughout; thirty updates of size 0.05 leave rounding far below this.
    torch.testing.assert_close(module.weight.detach(), expected, rtol=0, atol=1e-12)


def test_uncorrected_adam_still_corrects_nothing_after_many_updates_and_a_reload() -> None:
    config = replace(CONFIG, adam_bias_correction=False)
    module = nn.Linear(2, 2)
    optimizer = build_optimizer(module, config)
    again = build_optimizer(module, config)
    again.load_state_dict(optimizer.state_dict())
    for _ in range(100):
        module.weight.grad = torch.ones(2, 2)
        again.step()
    step = float(again.state[module.weight]["step"])
    assert 1 - config.adam_beta2**step == 1.0


def test_every_trainable_parameter_is_in_exactly_one_group_a_tied_one_once() -> None:
    module = ToyObjective()
    groups = parameter_groups(module, 0.01)
    check_groups(module, groups)
    assert sum(len(group["params"]) for group in groups) == len(list(module.parameters()))


def test_a_parameter_left_out_of_the_groups_is_refused() -> None:
    # Planted fault: the second list comes out empty, so that biases and LayerNorms are never trained.
    module = ToyObjective()
    with pytest.raises(ValueError, match="0 times"):
        check_groups(module, parameter_groups(module, 0.01)[:1])


def test_a_parameter_in_two_groups_is_refused() -> None:
    # Planted fault: a tied table is listed under both of its names.
    module = ToyObjective()
    groups = parameter_groups(module, 0.01)
    groups[1]["params"].append(module.decoder.weight)
    with pytest.raises(ValueError, match="2 times"):
        check_groups(module, groups)


def test_two_parameters_over_one_storage_are_refused() -> None:
    # Planted fault: a tie made of two parameter objects, which would be updated twice.
    module = AlbertNames()
    module.twin = nn.Parameter(module.query.weight.data)
    with pytest.raises(ValueError, match="2 times"):
        build_optimizer(module, CONFIG)


def test_a_parameter_that_no_loss_reaches_is_refused() -> None:
    module = AlbertNames()
    module.query(module.word_embeddings(torch.tensor([1]))).sum().backward()
    with pytest.raises(ValueError, match="decoder_bias"):
        check_gradients(module)


def test_every_parameter_has_the_rate_scale_of_its_name_and_stands_in_one_group() -> None:
    module = AlbertNames()
    scales = {name: 1.0 if "norm" in name.lower() else 0.5**number for number, (name, _) in enumerate(_named(module))}
    groups = parameter_groups(module, 0.01, scales)
    check_groups(module, groups)
    names = {parameter: name for name, parameter in module.named_parameters()}
    assert {names[p]: group["rate_scale"] for group in groups for p in group["params"]} == scales
    decayed = {names[p] for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {"word_embeddings.weight", "query.weight"}


def test_a_parameter_without_a_rate_scale_is_refused() -> None:
    with pytest.raises(KeyError):
        parameter_groups(AlbertNames(), 0.01, {})


def _named(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
