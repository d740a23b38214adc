"""Every trainable parameter is in exactly one group (law 6); Adam and the learning rate are those asked for."""

from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from electra_albert.config import TrainingConfig
from electra_albert.training.optimizer import (
    build_optimizer,
    check_gradients,
    check_groups,
    learning_rate,
    parameter_groups,
)
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


def test_every_trainable_parameter_is_in_one_group_with_its_decay_and_rate_scale() -> None:
    tied = ToyObjective()
    check_groups(tied, parameter_groups(tied, 0.01))
    module = AlbertNames()
    named = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    scales = {name: 1.0 if "norm" in name.lower() else 0.5**number for number, name in enumerate(named)}
    groups = parameter_groups(module, 0.01, scales)
    check_groups(module, groups)
    names = {parameter: name for name, parameter in module.named_parameters()}
    assert {names[p]: group["rate_scale"] for group in groups for p in group["params"]} == scales
    decayed = {names[p] for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {"word_embeddings.weight", "query.weight"}
    with pytest.raises(KeyError):
        parameter_groups(module, 0.01, {})


def test_groups_that_leave_a_parameter_out_or_have_it_twice_are_refused() -> None:
    # Planted: the undecayed group is lost; a tied table is under both of its names; a tie is made of two parameters.
    module = ToyObjective()
    groups = parameter_groups(module, 0.01)
    with pytest.raises(ValueError, match="0 times"):
        check_groups(module, groups[:1])
    groups[1]["params"].append(module.decoder.weight)
    with pytest.raises(ValueError, match="2 times"):
        check_groups(module, groups)
    twins = AlbertNames()
    twins.twin = nn.Parameter(twins.query.weight.data)
    with pytest.raises(ValueError, match="2 times"):
        build_optimizer(twins, CONFIG)


def test_a_parameter_that_no_loss_reaches_is_refused() -> None:
    module = AlbertNames()
    module.query(module.word_embeddings(torch.tensor([1]))).sum().backward()
    with pytest.raises(ValueError, match="decoder_bias"):
        check_gradients(module)


# --- learning rate --------------------------------------------------------------------------------------------------


def curve(kind: str, max_steps: int = 100, warmup_steps: int = 10) -> list[float]:
    """The rates of updates 1, 2, … of a whole run, with a peak of one."""
    config = TrainingConfig(
        max_steps=max_steps,
        warmup_steps=warmup_steps,
        learning_rate=1.0,
        lr_scheduler_type=kind,  # type: ignore[arg-type]
    )
    assert learning_rate(max_steps + 1, config) == learning_rate(5 * max_steps, config) == 0.0
    return [learning_rate(step, config) for step in range(1, max_steps + 1)]


def test_each_schedule_is_the_published_one_but_for_the_counting() -> None:
    electra = curve("electra")
    expected = {1: 0.1, 5: 0.5 * 0.96, 10: 0.91, 51: 0.5, 100: 0.01}
    assert {step: electra[step - 1] for step in expected} == pytest.approx(expected, rel=1e-12)
    # As published, by updates counted from 0: g / w while g < w, then 1 - g / T. The warm-up is one update ahead.
    published = [g / 10 if g < 10 else 1 - g / 100 for g in range(100)]
    bert = curve("bert")
    assert bert == pytest.approx([*published[1:10], 1 - 9 / 100, *published[10:]], rel=1e-12)
    # The usual formula, by updates counted from 0 in the decay: (T - g) / (T - w).
    linear = [*(step / 10 for step in range(1, 11)), *((100 - g) / 90 for g in range(10, 100))]
    assert curve("linear") == pytest.approx(linear, rel=1e-12)


@pytest.mark.parametrize("kind", get_args(get_type_hints(TrainingConfig)["lr_scheduler_type"]))
def test_no_update_of_a_run_has_a_rate_of_zero_or_above_the_peak(kind: str) -> None:
    for warmup_steps in (0, 1, 10, 99, 100, 150):
        assert all(0 < rate <= 1 for rate in curve(kind, warmup_steps=warmup_steps))
    assert curve(kind, warmup_steps=0)[0] == 1.0
    if kind != "electra":  # a warm-up longer than the run only rises
        assert curve(kind, max_steps=8, warmup_steps=16) == [step / 16 for step in range(1, 9)]
