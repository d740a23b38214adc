"""Replaced-token detection: labels, counts, metrics and gradient flow (laws 3 to 5)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from electra_albert.config.objectives import RtdConfig
from electra_albert.contracts import Batch
from electra_albert.objectives.rtd import Corruption, ReplacedTokenDetection
from tests.objectives.toy import CLS, MASK, MODEL, PAD, SEP, make_batch, make_objective

HALF = RtdConfig(mask_rate=0.5)


def assert_sample_is_detached(objective: ReplacedTokenDetection, batch: Batch) -> None:
    """Assert that the discriminator's loss has no gradient in parameters that only the generator
    has.
    """
    objective(batch)["discriminator_loss"].sum.backward()
    for module in (objective.generator.encoder, objective.generator.predictions):
        for name, parameter in module.named_parameters():
            assert parameter.grad is None or not parameter.grad.any(), (
                f"{name} of the generator has a gradient"
            )
    assert objective.generator.embeddings.word_embeddings.weight.grad is not None


class StraightThrough(ReplacedTokenDetection):
    """Planted: the discriminator's logits depend on the generator's logits."""

    def detect(self, batch: Batch, corruption: Corruption) -> tuple[Tensor, Tensor]:
        soft = corruption.logits.softmax(-1).amax(-1)  # [B, K]
        hidden_states, logits = super().detect(batch, corruption)
        return hidden_states, logits.scatter_add(1, corruption.targets.positions, soft)


def test_a_sampled_token_equal_to_the_original_is_labelled_original() -> None:
    batch = make_batch(lengths=(23,) * 40)  # enough that some samples are correct
    corruption = make_objective(rtd=HALF).corrupt(batch)
    assert torch.equal(corruption.is_replaced, corruption.corrupted_ids != batch.input_ids)
    hits = (
        corruption.corrupted_ids.gather(1, corruption.targets.positions)
        == corruption.targets.labels
    )
    assert (hits & corruption.is_masked).any(), "no sample is correct: the case does not occur"
    assert corruption.is_replaced.any()
    assert not torch.equal(
        corruption.is_replaced, corruption.corrupted_ids != corruption.masked_ids
    )


def test_only_targets_are_masked_or_replaced() -> None:
    batch = make_batch()
    corruption = make_objective(rtd=HALF).corrupt(batch)
    used = corruption.targets.weight > 0
    is_target = torch.zeros_like(batch.attention_mask).scatter(
        1, corruption.targets.positions, used
    )
    for ids in (corruption.masked_ids, corruption.corrupted_ids):
        assert torch.equal(ids[~is_target], batch.input_ids[~is_target])
    assert not (is_target & torch.isin(batch.input_ids, torch.tensor([PAD, CLS, SEP]))).any()
    # Targets that are not replaced by [MASK] are sampled too, as in ELECTRA's code.
    assert (corruption.is_replaced & is_target & (corruption.masked_ids != MASK)).any()


def test_the_discriminator_loss_covers_all_tokens_except_padding() -> None:
    batch, objective = make_batch(), make_objective()
    corruption, mask = objective.corrupt(batch), batch.attention_mask
    detected = objective.discriminator(corruption.corrupted_ids, mask, batch.token_type_ids)
    nats = torch.nn.functional.binary_cross_entropy_with_logits(
        detected, corruption.is_replaced.float(), reduction="none"
    )
    loss = objective(batch)["discriminator_loss"]
    assert int(loss.count) == int(mask.sum()) < mask.numel()
    torch.testing.assert_close(loss.sum, nats[mask].sum())
    assert not torch.isclose(nats[mask].sum(), nats.sum())


def test_metrics_equal_counts_by_hand() -> None:
    batch, objective = make_batch(), make_objective(rtd=replace(HALF, mask_token_share=0.5))
    corruption, mask = objective.corrupt(batch), batch.attention_mask
    certain = torch.nn.functional.one_hot(corruption.targets.labels, MODEL.vocab_size).float()
    # The generator is correct for every other target, among them some that are not masked.
    is_known = torch.arange(certain.shape[1]) % 2 == 0
    corruption = corruption._replace(logits=corruption.logits + 99 * certain * is_known[:, None])
    hidden_states, logits = objective.detect(batch, corruption)
    terms = objective.terms(batch, corruption, hidden_states, logits)
    detected, is_replaced = logits[mask] > 0, corruption.is_replaced[mask]
    hits = int((detected & is_replaced).sum())
    found = {name: (float(term.sum.detach()), int(term.count)) for name, term in terms.items()}
    assert found["discriminator_precision"] == (hits, int(detected.sum()))
    assert found["discriminator_recall"] == (hits, int(is_replaced.sum()))
    assert found["replaced_fraction"] == (int(is_replaced.sum()), int(mask.sum()))
    right, shown = corruption.logits.argmax(-1) == corruption.targets.labels, corruption.is_masked
    assert (right & ~shown & (corruption.targets.weight > 0)).any(), "the case does not occur"
    assert found["generator_accuracy"] == (int((right & shown).sum()), int(shown.sum()))


def test_no_gradient_flows_through_the_sample() -> None:
    assert_sample_is_detached(make_objective(rtd=HALF), make_batch())
    with pytest.raises(AssertionError, match="of the generator has a gradient"):
        assert_sample_is_detached(make_objective(rtd=HALF, kind=StraightThrough), make_batch())


def test_generator_and_discriminator_have_their_own_learning_rates_but_shared_embeddings() -> None:
    scales = make_objective(
        rtd=RtdConfig(generator_rate=0.5, discriminator_rate=0.25)
    ).lr_multipliers
    for name, scale in scales.items():
        assert scale == (
            1.0 if ".embeddings." in name else 0.5 if ".generator." in name else 0.25
        ), name
    assert len({*scales.values()}) == 3
    assert make_objective().lr_multipliers is None


def with_weights_of(other: ReplacedTokenDetection) -> ReplacedTokenDetection:
    """An objective without further options that has the generator's table and all other weights of
    `other`.
    """
    objective, differences = (
        make_objective(rtd=HALF),
        "discriminator.embeddings.word_embeddings.weight",
    )
    state = {
        name: tensor
        for name, tensor in other.state_dict().items()
        if not name.endswith(differences)
    }
    objective.load_state_dict(state, strict=False)
    return objective


def test_a_share_of_the_targets_stays_masked_and_is_predicted_by_the_discriminator() -> None:
    batch, share = make_batch(), 0.4
    objective = make_objective(rtd=replace(HALF, mlm_share=share))
    found, plain = objective.corrupt(batch), with_weights_of(objective).corrupt(batch)
    assert torch.equal(found.is_kept.sum(1), (found.targets.weight.sum(1) * share).round().long())
    assert not (found.is_kept & (found.targets.weight == 0)).any()
    is_kept = torch.zeros_like(batch.attention_mask).scatter(
        1, found.targets.positions, found.is_kept
    )
    assert (found.corrupted_ids[is_kept] == MASK).all()
    assert torch.equal(found.corrupted_ids[~is_kept], plain.corrupted_ids[~is_kept])
    assert torch.equal(found.is_classified, batch.attention_mask & ~is_kept)
    assert torch.equal(found.is_replaced, plain.is_replaced & ~is_kept)
    hidden_states, _ = objective.detect(batch, found)
    logits = objective.discriminator.mlm_logits(hidden_states)[is_kept]
    nats = torch.nn.functional.cross_entropy(logits, batch.input_ids[is_kept], reduction="sum")
    loss = objective(batch)["discriminator_mlm_loss"]
    assert int(loss.count) == int(is_kept.sum()) > 0
    torch.testing.assert_close(loss.sum, nats)


def test_disentangled_embeddings_start_equal_and_take_no_gradient_from_the_discriminator() -> None:
    # DeBERTaV3 section 3.3; positions, segments and LayerNorm are shared as before.
    batch, objective = (
        make_batch(),
        make_objective(rtd=replace(HALF, embedding_sharing="disentangled")),
    )
    ours, plain = objective(batch), with_weights_of(objective)(batch)
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
        before, table = (
            objective.detect(batch, corruption),
            base.word_embeddings.weight + own.word_embeddings.weight,
        )
        own.merge_base()
        base.word_embeddings.weight.zero_()  # no longer used
        assert torch.equal(own.word_embeddings.weight, table)
        assert torch.equal(objective.detect(batch, corruption)[1], before[1])
