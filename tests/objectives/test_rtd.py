"""Replaced-token detection: labels, counts, metrics and gradient flow (laws 3 to 5)."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from electra_albert.config.objectives import RtdConfig
from electra_albert.objectives.rtd import ReplacedTokenDetection
from tests.objectives.toy import MASK, MODEL, build, make_batch, make_objective

HALF = RtdConfig(mask_rate=0.5)


def test_a_sampled_token_equal_to_the_original_is_labelled_original() -> None:
    batch = make_batch(lengths=(23,) * 40)  # enough that some samples are correct
    corruption = make_objective(rtd=HALF).corrupt(batch)
    assert torch.equal(corruption.is_replaced, corruption.corrupted_ids != batch.input_ids)
    sampled = corruption.corrupted_ids.gather(1, corruption.targets.positions)
    hits = sampled == corruption.targets.labels
    assert (hits & corruption.is_masked).any(), "no sample is correct: the case does not occur"
    assert corruption.is_replaced.any()


@pytest.mark.parametrize("name", ["rtd", "electric"])
def test_no_gradient_flows_through_the_sample(name: str) -> None:
    objective = build(name)
    objective(make_batch())["discriminator_loss"].sum.backward()
    for module in (objective.generator.encoder, objective.generator.predictions):
        assert all(parameter.grad is None for parameter in module.parameters())
    assert objective.generator.embeddings.word_embeddings.weight.grad is not None


def test_only_targets_are_masked_or_replaced() -> None:
    batch = make_batch()
    corruption = make_objective(rtd=HALF).corrupt(batch)
    targets = corruption.targets
    nowhere = torch.zeros_like(batch.attention_mask)
    is_target = nowhere.scatter(1, targets.positions, targets.weight > 0)
    for ids in (corruption.masked_ids, corruption.corrupted_ids):
        assert torch.equal(ids[~is_target], batch.input_ids[~is_target])
    # Targets that are not replaced by [MASK] are sampled too, as in ELECTRA's code.
    assert (corruption.is_replaced & is_target & (corruption.masked_ids != MASK)).any()


def test_the_discriminator_loss_covers_all_tokens_except_padding() -> None:
    batch = make_batch()
    objective = make_objective()
    corruption = objective.corrupt(batch)
    mask = batch.attention_mask
    detected = objective.discriminator(corruption.corrupted_ids, mask, batch.token_type_ids)
    labels = corruption.is_replaced[mask].float()
    nats = binary_cross_entropy_with_logits(detected[mask], labels, reduction="sum")
    loss = objective(batch)["discriminator_loss"]
    assert int(loss.count) == int(mask.sum()) < mask.numel()
    torch.testing.assert_close(loss.sum, nats)


def test_metrics_equal_counts_by_hand() -> None:
    batch = make_batch()
    objective = make_objective(rtd=replace(HALF, mask_token_share=0.5))
    corruption = objective.corrupt(batch)
    mask = batch.attention_mask
    certain = one_hot(corruption.targets.labels, MODEL.vocab_size).float()
    # The generator is correct for every other target, among them some that are not masked.
    is_known = torch.arange(certain.shape[1]) % 2 == 0
    corruption = corruption._replace(logits=corruption.logits + 99 * certain * is_known[:, None])
    hidden_states, logits = objective.detect(batch, corruption)
    terms = objective.terms(batch, corruption, hidden_states, logits)
    detected = logits[mask] > 0
    is_replaced = corruption.is_replaced[mask]
    hits = (detected & is_replaced).sum()
    right = corruption.logits.argmax(-1) == corruption.targets.labels
    shown = corruption.is_masked
    assert (right & ~shown & (corruption.targets.weight > 0)).any(), "the case does not occur"
    for name, total, count in (
        ("discriminator_precision", hits, detected.sum()),
        ("discriminator_recall", hits, is_replaced.sum()),
        ("replaced_fraction", is_replaced.sum(), mask.sum()),
        ("generator_accuracy", (right & shown).sum(), shown.sum()),
    ):
        assert terms[name].sum == total, name
        assert terms[name].count == count, name


def test_generator_and_discriminator_have_their_own_learning_rates_but_shared_embeddings() -> None:
    rtd = RtdConfig(generator_rate=0.5, discriminator_rate=0.25)
    scales = make_objective(rtd=rtd).lr_multipliers
    assert_rates(scales, {".embeddings.": 1.0, ".generator.": 0.5, "": 0.25})
    assert make_objective().lr_multipliers is None


def assert_rates(scales: dict[str, float], expected: dict[str, float]) -> None:
    """Assert that each parameter has the rate of the first part of a name in `expected` it has."""
    for name, scale in scales.items():
        assert scale == next(rate for part, rate in expected.items() if part in name), name
    assert {*scales.values()} == {*expected.values()}


def with_weights_of(other: ReplacedTokenDetection) -> ReplacedTokenDetection:
    """An objective without further options that has the generator's table and all other weights of
    `other`.
    """
    objective = make_objective(rtd=HALF)
    state = other.state_dict()
    del state["electra.discriminator.embeddings.word_embeddings.weight"]
    objective.load_state_dict(state, strict=False)
    return objective


def test_a_share_of_the_targets_stays_masked_and_is_predicted_by_the_discriminator() -> None:
    batch = make_batch()
    share = 0.4
    objective = make_objective(rtd=replace(HALF, mlm_share=share))
    partly = objective.corrupt(batch)
    plain = with_weights_of(objective).corrupt(batch)
    targets = partly.targets
    assert torch.equal(partly.is_kept.sum(1), (targets.weight.sum(1) * share).round().long())
    assert not (partly.is_kept & (targets.weight == 0)).any()
    nowhere = torch.zeros_like(batch.attention_mask)
    is_kept = nowhere.scatter(1, targets.positions, partly.is_kept)
    assert torch.equal(partly.corrupted_ids, plain.corrupted_ids.masked_fill(is_kept, MASK))
    assert torch.equal(partly.is_classified, batch.attention_mask & ~is_kept)
    assert torch.equal(partly.is_replaced, plain.is_replaced & ~is_kept)
    hidden_states, _ = objective.detect(batch, partly)
    logits = objective.discriminator.mlm_logits(hidden_states)[is_kept]
    nats = cross_entropy(logits, batch.input_ids[is_kept], reduction="sum")
    loss = objective(batch)["discriminator_mlm_loss"]
    assert int(loss.count) == int(is_kept.sum()) > 0
    torch.testing.assert_close(loss.sum, nats)


def test_disentangled_embeddings_start_equal_and_take_no_gradient_from_the_discriminator() -> None:
    # DeBERTaV3 section 3.3; positions, segments and LayerNorm are shared as before.
    batch = make_batch()
    objective = make_objective(rtd=replace(HALF, embedding_sharing="disentangled"))
    ours = objective(batch)
    plain = with_weights_of(objective)(batch)
    assert all(torch.equal(term.sum, plain[name].sum) for name, term in ours.items())
    ours["discriminator_loss"].sum.backward()
    base, own = (model.embeddings for model in (objective.generator, objective.discriminator))
    assert base.word_embeddings.weight.grad is None
    assert own.word_embeddings.weight.grad.any()
    assert base.position_embeddings.weight.grad is not None
    with torch.no_grad():
        own.word_embeddings.weight.normal_()
        base.word_embeddings.weight.normal_()
        corruption = objective.corrupt(batch)
        before = objective.detect(batch, corruption)
        table = base.word_embeddings.weight + own.word_embeddings.weight
        own.merge_base()
        base.word_embeddings.weight.zero_()  # no longer used
        assert torch.equal(own.word_embeddings.weight, table)
        assert torch.equal(objective.detect(batch, corruption)[1], before[1])
