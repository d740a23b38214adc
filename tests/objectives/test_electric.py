"""Electric: the optimum of the noise-contrastive loss is the distribution of the text; its noise is
exact.

Dimensions: B batch, L length, K = masking.max_targets, V vocab.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_albert.config.objectives import RtdConfig
from electra_albert.config.pretraining import PretrainConfig, RunConfig
from electra_albert.objectives import ElectricConfig
from electra_albert.objectives.electric import Electric
from tests.objectives.toy import MASK, MODEL, SEED, SPECIAL, build, make_batch

V = MODEL.vocab_size
FIRST = len(SPECIAL.never_masked)
SIGMAS = 4.5


def distribution(salt: int) -> Tensor:
    """A distribution over the tokens that are not special, far from uniform: float64 [V]."""
    logits = 1.5 * torch.randn(
        V, dtype=torch.float64, generator=torch.Generator().manual_seed(salt)
    )
    logits[:FIRST] = -100.0
    return logits.softmax(0)


class Table(nn.Module):
    """A head that reads the energies that `encode` returns instead of hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.energies = nn.Parameter(-distribution(1).clamp(min=1e-30).log())

    def encode(self, input_ids: Tensor, *_: Tensor) -> Tensor:
        return self.energies[input_ids]

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states


def with_known_noise(temperature: float = 1.0, share: float = 0.5) -> Electric:
    """An objective with distribution(2) as its noise, and the energies of distribution(1)."""
    options = RtdConfig(0.5, temperature=temperature), ElectricConfig(share)
    objective = Electric(MODEL, *options, SPECIAL, SEED)
    head = objective.generator.predictions
    table = Table()
    with torch.no_grad():
        head.LayerNorm.weight.zero_()
        head.LayerNorm.bias.zero_()
        head.bias.copy_(temperature * distribution(2).log())
    objective.discriminator.discriminator_predictions = table  # type: ignore[assignment]
    objective.discriminator.encode = table.encode  # type: ignore[method-assign]
    return objective


def test_the_gradient_is_zero_at_the_distribution_of_the_text() -> None:
    """The objective itself: its labels, its noise probabilities and its share, on 20,000 tokens."""
    objective = with_known_noise(temperature=2.0, share=0.25)
    batch = make_batch((23,) * 2_000)
    draw = torch.Generator().manual_seed(3)
    drawn = distribution(1).multinomial(batch.input_ids.numel(), True, generator=draw)
    ids = torch.where(batch.input_ids >= FIRST, drawn.view_as(batch.input_ids), batch.input_ids)
    batch = batch._replace(input_ids=ids)
    corruption = objective.corrupt(batch)
    hidden_states, odds = objective.detect(batch, corruption)
    loss, count = objective.terms(batch, corruption, hidden_states, odds)["discriminator_loss"]
    energies = objective.discriminator.discriminator_predictions.parameters()
    (gradient,) = torch.autograd.grad(loss, energies)  # [V]
    noise = odds.detach()[corruption.is_classified].sigmoid().double()
    tokens = corruption.corrupted_ids[corruption.is_classified]
    variance = torch.zeros(V, dtype=torch.float64).index_add(0, tokens, noise * (1 - noise))
    assert (gradient.abs() <= SIGMAS * variance.sqrt()).all()
    assert float(variance.max().sqrt() / count) < 0.003


def test_noise_replaces_a_share_of_targets_that_the_generator_does_not_see() -> None:
    batch = make_batch((23, 9) * 150)  # some targets are unused
    share = 0.25
    found = with_known_noise(share=share).corrupt(batch)
    is_used = found.targets.weight > 0
    # Rtd.mask_token_share is 0.85 by default.
    assert ((found.masked_ids == MASK) == found.is_classified).all()
    assert torch.equal(
        found.is_kept | found.is_replaced.gather(1, found.targets.positions), is_used
    )
    assert torch.equal(found.corrupted_ids[~found.is_replaced], batch.input_ids[~found.is_replaced])
    targets = int(is_used.sum())
    deviation = (share * (1 - share) / targets) ** 0.5
    assert abs(float(found.is_replaced.sum()) / targets - share) < SIGMAS * deviation


def test_energies_are_not_rounded_to_half_precision() -> None:
    # Regression: around log V, bfloat16 has steps of 1/16, and 800 energies of a trained model had
    # two values.
    objective = build("electric")
    batch = make_batch((23,) * 8)
    with torch.autocast("cpu", torch.bfloat16):
        energies = objective.discriminator(*batch[:3])
    assert energies.dtype == torch.float32
    assert len(energies[batch.attention_mask].unique()) > 100


@pytest.mark.parametrize(
    "options", [{"mlm_share": 0.5}, {"mask_token_share": 0.5}, {"generator": "a/folder"}]
)
def test_options_that_contradict_the_noise_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="excludes electric"):
        PretrainConfig(run=RunConfig(objective="electric"), rtd=RtdConfig(**options))


def test_the_loss_starts_at_chance_level_for_any_share_of_noise() -> None:
    objective = Electric(MODEL, RtdConfig(0.5), ElectricConfig(0.2), SPECIAL, SEED)
    loss, count = objective(make_batch((23,) * 8))["discriminator_loss"]
    assert float(loss.detach() / count) == pytest.approx(math.log(2), rel=0.05)
