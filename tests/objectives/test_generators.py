"""Generators that share layers or are fixed; test_objectives.py has the laws of objectives."""

from dataclasses import replace

import pytest
import torch

from electra_albert.config.objectives import RtdConfig
from tests.objectives.test_rtd import assert_rates
from tests.objectives.toy import MODEL, build, make_batch, make_objective

HALF = RtdConfig(mask_rate=0.5)
SHARED = replace(HALF, generator="shared", generator_size=1.0)


@pytest.mark.parametrize(("groups", "first"), [(1, None), (3, 4)])
def test_a_shared_generator_is_the_first_layers_of_the_discriminator(
    groups: int, first: int | None
) -> None:
    shape = replace(MODEL, num_hidden_layers=6, num_hidden_groups=groups)
    options = replace(SHARED, generator_layers=first, generator_rate=3.0, discriminator_rate=0.5)
    objective = make_objective(shape, options)
    batch = make_batch()
    generator = objective.generator
    discriminator = objective.discriminator
    embedded = discriminator.embeddings(batch.input_ids, batch.token_type_ids)
    hidden_states = discriminator.encoder.embedding_hidden_mapping_in(embedded)
    for layer in range(first or 6):
        group = discriminator.encoder.albert_layer_groups[layer * groups // 6]
        hidden_states = group(hidden_states, batch.attention_mask)
    inputs = batch[:3]
    assert torch.equal(generator(*inputs), hidden_states)
    assert torch.equal(generator(*inputs), discriminator.encode(*inputs)) == (first is None)
    theirs = {parameter.data_ptr() for parameter in discriminator.parameters()}
    for name, parameter in generator.named_parameters():
        assert (parameter.data_ptr() in theirs) != name.startswith("predictions"), name
    expected = {".embeddings.": 1.0, ".generator.predictions.": 3.0, "": 0.5}
    assert_rates(objective.lr_multipliers, expected)


def test_layers_that_are_not_the_first_ones_of_whole_groups_are_refused() -> None:
    shape = replace(MODEL, num_hidden_layers=6, num_hidden_groups=3)
    for first in (3, 8):
        with pytest.raises(ValueError, match=f"generator_layers={first}"):
            replace(SHARED, generator_layers=first).generator_config(shape)
    with pytest.raises(ValueError, match="generator_size"):
        RtdConfig(generator="shared")


def test_a_fixed_generator_takes_no_part_in_training() -> None:
    objective = build("rtd with fixed", replace(MODEL, hidden_dropout_prob=0.5)).train()
    batch, (fixed,) = make_batch(), objective._fixed
    first = objective.corrupt(batch)
    second = objective.corrupt(batch)
    assert torch.equal(first.logits, second.logits), "dropout is on"
    assert not first.logits.requires_grad
    assert "generator_loss" in objective(batch).keys() - objective.weights.keys()  # a metric
    registered = {tensor.data_ptr() for tensor in objective.state_dict().values()}
    assert registered.isdisjoint(parameter.data_ptr() for parameter in fixed.parameters())
