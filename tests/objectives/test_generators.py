"""Limit cases and references for generators and sampling; test_objectives.py tests the laws of objectives for each."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra_albert.config import RtdConfig
from electra_albert.contracts import Batch
from electra_albert.objectives.generators import sampling_logits, temperature_at
from electra_albert.objectives.masking import Targets, sample
from electra_albert.objectives.rtd import Corruption, ReplacedTokenDetection
from tests.objectives.test_static_shapes import contents, trace
from tests.objectives.toy import MODEL, SPECIAL, STEP, build, make_batch, make_objective

HALF = RtdConfig(mask_rate=0.5)
SHARED = replace(HALF, generator="shared", generator_size=1.0)
MANY = make_batch(lengths=(23,) * 60)


def is_sampled(corruption: Corruption) -> Tensor:
    return (corruption.targets.weight > 0) & ~corruption.is_kept


def test_the_temperature_falls_exponentially_to_that_of_evaluations() -> None:
    # Fast-ELECTRA: 1 + (T0 - 1) exp(-u / τ).
    options = replace(HALF, temperature=3.0, temperature_end=1.0, temperature_decay=0.25)
    for step in (1, 2, 26, 101):
        expected = 1 + 2 * math.exp(-((step - 1) / 100) / 0.25)
        assert float(temperature_at(options, torch.tensor(step), 101)) == pytest.approx(expected, rel=1e-6)
    falling, hot, cold = (make_objective(rtd=each) for each in (options, replace(HALF, temperature=3.0), HALF))
    first, last = falling.corrupt(MANY, torch.tensor(1)).corrupted_ids, falling.corrupt(MANY).corrupted_ids
    assert torch.equal(first, hot.corrupt(MANY).corrupted_ids)
    assert torch.equal(last, cold.corrupt(MANY).corrupted_ids)
    assert not torch.equal(first, last)
    traces = [trace(make_objective(rtd=options), batch) for batch in contents()]  # no synchronisation
    assert traces[0] == traces[1] == traces[2]


@pytest.mark.parametrize("kind", ["own", "uniform"])
def test_a_sampled_token_is_never_the_original_one(kind: str) -> None:
    changes: dict[str, Any] = {"generator": kind} if kind == "uniform" else {"exclude_original": True}
    found, free = (make_objective(rtd=replace(HALF, **more, mlm_share=0.4)).corrupt(MANY) for more in (changes, {}))
    assert torch.equal(found.is_replaced.gather(1, found.targets.positions), is_sampled(found))
    hits = is_sampled(free) & ~free.is_replaced.gather(1, free.targets.positions)
    assert hits.any(), "no sample is correct: the case does not occur"


def test_without_the_original_token_the_others_keep_their_relative_probabilities() -> None:
    # 17 tokens are sampled in blocks of 8, 8 and 1, so the original one is a whole block.
    count, options = 20_000, replace(HALF, exclude_original=True, temperature=0.5)
    logits, zeros = torch.linspace(-101, -99, 17).repeat(count, 1, 1), torch.zeros(count).long()
    scores = sampling_logits(logits, Targets(zeros, zeros, torch.full((count, 1), 16)), options, None, 1)
    drawn = sample(scores[:, 0], 1.0, 3, torch.arange(count), zeros)
    wanted = F.pad((logits[0, 0, :16] / 0.5).softmax(0), (0, 1))
    assert ((drawn.bincount(minlength=17) / count - wanted).abs() <= 4.5 * (wanted / count).sqrt()).all()


def test_uniform_replacements_are_uniform_over_the_ordinary_tokens() -> None:
    corruption, special = build("rtd with uniform").corrupt(MANY), len(SPECIAL.never_masked)
    tokens = corruption.corrupted_ids.gather(1, corruption.targets.positions)[is_sampled(corruption)]
    wanted = F.pad(torch.full((MODEL.vocab_size - special,), 1 / (MODEL.vocab_size - special)), (special, 0))
    share = tokens.bincount(minlength=MODEL.vocab_size) / len(tokens)
    assert ((share - wanted).abs() <= 4.5 * (wanted / len(tokens)).sqrt()).all()


def embed_explicitly(objective: ReplacedTokenDetection, batch: Batch, corruption: Corruption) -> Tensor:
    """Discriminator embeddings [B, L, E] of one-hot vectors whose gradients are those of the softmax, in float64."""
    embeddings, positions = objective.discriminator.embeddings, corruption.targets.positions
    share = (corruption.logits.double() / objective.rtd.temperature).softmax(-1) * is_sampled(corruption)[:, :, None]
    hard = F.one_hot(corruption.corrupted_ids, MODEL.vocab_size).double()  # [B, L, V]
    soft = torch.zeros_like(hard).scatter(1, positions[:, :, None].expand_as(share), share)
    summed = (hard + soft - soft.detach()) @ embeddings.table + embeddings.token_type_embeddings(batch.token_type_ids)
    return embeddings.LayerNorm(summed + embeddings.position_embeddings.weight[: batch.input_ids.shape[1]])


@pytest.mark.parametrize("sharing", ["full", "disentangled"])
def test_the_straight_through_gradient_is_that_of_the_softmax(sharing: Any) -> None:
    options, batch = replace(HALF, temperature=1.7, mlm_share=0.3, embedding_sharing=sharing), make_batch()
    plain, objective = (
        make_objective(rtd=replace(options, straight_through=is_on)).double() for is_on in (False, True)
    )
    terms, without = objective(batch, STEP), plain(batch, STEP)
    assert all(torch.equal(term.sum, without[name].sum) for name, term in terms.items())
    terms["discriminator_loss"].sum.backward()
    found = {name: parameter.grad for name, parameter in objective.named_parameters()}
    objective.zero_grad()
    corruption = objective.corrupt(batch)
    assert (corruption.targets.weight == 0).any()
    embedded = embed_explicitly(objective, batch, corruption)
    hidden_states = objective.discriminator.encoder(embedded, batch.attention_mask)
    logits = objective.discriminator.discriminator_predictions(hidden_states)
    objective.terms(batch, corruption, hidden_states, logits)["discriminator_loss"].sum.backward()
    # Logits and losses are float32, with a relative error of 6e-8 per number.
    for name, parameter in objective.named_parameters():
        if parameter.grad is not None:
            assert (found[name] - parameter.grad).norm() <= 1e-5 * parameter.grad.norm() + 1e-9, name
    assert found["electra.generator.predictions.bias"].any()


def test_smoothed_labels_mix_the_loss_with_that_of_both_labels() -> None:
    batch, epsilon = make_batch(), 0.3
    objective = make_objective(rtd=replace(HALF, label_smoothing=epsilon))
    loss, plain = (each(batch, STEP)["discriminator_loss"].sum for each in (objective, make_objective(rtd=HALF)))
    logits = objective.detect(batch, objective.corrupt(batch))[1][batch.attention_mask]
    both = -(F.logsigmoid(logits) + F.logsigmoid(-logits)).sum() / 2
    torch.testing.assert_close(loss, (1 - epsilon) * plain + epsilon * both)


@pytest.mark.parametrize(("groups", "first"), [(1, 2), (1, None), (3, 1), (3, 4), (6, 3)])
def test_a_shared_generator_is_the_first_layers_of_the_discriminator(groups: int, first: int | None) -> None:
    shape = replace(MODEL, num_hidden_layers=6, num_hidden_groups=groups, residual_scale=2.0)
    options = replace(SHARED, generator_layers=first, generator_rate=3.0, discriminator_rate=0.5)
    objective, batch = make_objective(shape, options), make_batch()
    generator, discriminator = objective.generator, objective.discriminator
    embedded = discriminator.embeddings(batch.input_ids, batch.token_type_ids)
    hidden_states = discriminator.encoder.embedding_hidden_mapping_in(embedded)
    for layer in range(first or 6):
        group = discriminator.encoder.albert_layer_groups[layer * groups // 6]
        hidden_states = group(hidden_states, batch.attention_mask)
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    assert torch.equal(generator(*inputs), hidden_states)
    assert torch.equal(generator(*inputs), discriminator.encode(*inputs)) == (first is None)
    theirs = {parameter.data_ptr() for parameter in discriminator.parameters()}
    own = {name.split(".")[0] for name, each in generator.named_parameters() if each.data_ptr() not in theirs}
    assert own == {"predictions"}
    for name, scale in objective.lr_multipliers.items():
        assert scale == (1.0 if ".embeddings." in name else 3.0 if ".generator.predictions." in name else 0.5), name


@pytest.mark.parametrize(("groups", "first"), [(1, 7), (3, 3), (3, 5), (6, 8)])
def test_layers_that_are_not_the_first_ones_of_whole_groups_are_refused(groups: int, first: int) -> None:
    shape = replace(MODEL, num_hidden_layers=6, num_hidden_groups=groups)
    with pytest.raises(ValueError, match=f"generator_layers={first} of 6 layers in {groups} groups"):
        replace(SHARED, generator_layers=first).generator_config(shape)


def test_a_fixed_generator_takes_no_part_in_training() -> None:
    objective = build("rtd with fixed", replace(MODEL, hidden_dropout_prob=0.5)).train()
    batch, (fixed,) = make_batch(), objective.fixed
    first, second = objective.corrupt(batch), objective.corrupt(batch)
    assert torch.equal(first.logits, second.logits), "dropout is on"
    assert not first.logits.requires_grad
    assert "generator_loss" in objective(batch, STEP).keys() - objective.weights.keys()  # a metric
    registered = {tensor.data_ptr() for tensor in (*objective.parameters(), *objective.state_dict().values())}
    assert not registered & {parameter.data_ptr() for parameter in fixed.parameters()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generator": "shared"}, "generator_size=0.25 must be 1"),
        ({"generator": "uniform", "straight_through": True}, "straight_through=True has no effect"),
        ({"generator": "a/folder", "z_loss": 0.1}, "z_loss=0.1 has no effect with generator=a/folder, not trained"),
        ({"generator": "uniform", "temperature": 2.0}, "temperature=2.0 has no effect"),
        ({"temperature_decay": 0.5}, "temperature_decay=0.5 has no effect with temperature_end=None"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0 must be in"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RtdConfig(**options)
