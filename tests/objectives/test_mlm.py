"""Masked language modelling masks 80/10/10, and its losses equal those of transformers'
AlbertForPreTraining.
"""

from dataclasses import replace

import pytest
import torch
from scipy import stats

from electra_albert.config.objectives import MlmConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, SpecialIds, UsageError
from electra_albert.objectives.masking import choose_targets, mask, random_tokens
from electra_albert.objectives.mlm import CrossEntropy, MaskedLanguageModeling
from tests.model.twins import assert_same_gradients, gradients, masked_lm_twin
from tests.objectives.toy import MASK, MODEL, SEED, SPECIAL, build, make_batch, ordered

ACCEPTED = 1e-3  # least p-value; draws are keyed, so the result is the same in every run
VOCAB = 37
SPREAD = SPECIAL._replace(mask=36, never_masked=(36, 0, 17, 18, 5))
KEYS = torch.arange(1500)


def batch_of(special: SpecialIds) -> Batch:
    """A batch [B, L] of all ordinary tokens equally often, with padding, so that some targets are
    unused.
    """
    ordinary = torch.tensor([token for token in range(VOCAB) if token not in special.never_masked])
    ids = ordinary[torch.arange(len(KEYS) * 41) % len(ordinary)].view(len(KEYS), 41)
    return Batch(ids, torch.arange(41) < 21 + KEYS[:, None] % 21, torch.zeros_like(ids), KEYS, KEYS)


def test_random_tokens_are_uniform_over_all_other_ordinary_tokens() -> None:
    batch = batch_of(SPREAD)
    targets = choose_targets(batch.input_ids, batch.attention_mask, 0.5, SEED, KEYS)
    others = random_tokens(targets, SPREAD, VOCAB, SEED, KEYS)
    assert not (others == targets.labels).any(), "a token replaces itself"
    assert not torch.isin(others, torch.tensor(SPREAD.never_masked)).any()
    ordinary = sorted({*range(VOCAB)}.difference(SPREAD.never_masked))
    for label in ordinary:
        counts = torch.bincount(others[targets.labels == label], minlength=VOCAB).numpy()
        allowed = [token for token in ordinary if token != label]
        # Bonferroni correction for up to VOCAB tests.
        assert stats.chisquare(counts[allowed]).pvalue > ACCEPTED / VOCAB, label


@pytest.mark.parametrize("shares", [(0.8, 0.1), (0.0, 0.0)], ids=str)
def test_targets_are_masked_and_randomised_in_the_configured_shares(
    shares: tuple[float, float],
) -> None:
    batch = batch_of(SPECIAL)
    ids = batch.input_ids
    mlm = MlmConfig(mask_token_share=shares[0], random_token_share=shares[1])
    masked_ids, targets, is_masked = mask(batch, VOCAB, mlm, SPECIAL, SEED)
    used = targets.weight > 0
    tokens = masked_ids.gather(1, targets.positions)
    is_mask = (tokens == MASK) & used
    is_unchanged = (tokens == targets.labels) & used
    assert torch.equal(is_mask, is_masked)
    kinds = [is_mask, used & ~is_mask & ~is_unchanged, is_unchanged]
    for is_kind, share in zip(kinds, (*shares, 1 - sum(shares)), strict=True):
        test = stats.binomtest(int(is_kind.sum()), int(used.sum()), round(share, 9))
        assert test.pvalue > ACCEPTED, share
    is_target = torch.zeros_like(ids).bool().scatter(1, targets.positions, used)
    assert torch.equal(masked_ids[~is_target], ids[~is_target])


def test_a_vocabulary_with_a_single_ordinary_token_is_refused_for_random_tokens() -> None:
    model = replace(MODEL, vocab_size=6)
    with pytest.raises(UsageError, match=r"--mlm\.random_token_share 0"):
        MaskedLanguageModeling(model, MlmConfig(), SPECIAL, SEED)
    objective = MaskedLanguageModeling(model, MlmConfig(random_token_share=0.0), SPECIAL, SEED)
    assert int(objective(make_batch(vocab=6))["mlm_loss"].count) > 0


def test_loss_and_gradients_equal_those_of_albert_for_pretraining() -> None:
    batch = ordered(make_batch())
    objective = build("mlm_sop", replace(MODEL, initializer_range=0.3))
    twin = masked_lm_twin(objective.generator)
    prediction = objective.corrupt(batch)
    targets = prediction.targets
    chosen = targets.labels.masked_fill(targets.weight == 0, IGNORED_LABEL)
    labels = torch.full_like(batch.input_ids, IGNORED_LABEL).scatter(1, targets.positions, chosen)
    inputs = (prediction.masked_ids, batch.attention_mask, batch.token_type_ids)
    stock = twin(*inputs, labels=labels, sentence_order_label=batch.sentence_order_label)
    terms = objective.terms(batch, prediction)
    loss = sum(terms[name].sum / terms[name].count for name in ("mlm_loss", "sop_loss"))
    # Float32: sums in another order.
    torch.testing.assert_close(loss, stock.loss, rtol=1e-5, atol=0)
    loss.backward()
    stock.loss.backward()
    assert_same_gradients(gradients(objective.generator), gradients(twin))


def test_cross_entropy_and_its_gradient_equal_those_of_pytorch() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 10 * torch.randn(7, 31, generator=generator, dtype=torch.float64)
    before = logits.clone()
    logits.requires_grad_()
    labels = torch.randint(31, (7,), generator=generator)
    nats = [
        torch.nn.functional.cross_entropy(logits, labels, reduction="none"),
        CrossEntropy.apply(logits, labels),
    ]
    weight = torch.arange(7) % 3
    slopes = [torch.autograd.grad((each * weight).sum(), logits)[0] for each in nats]
    for expected, actual in (nats, slopes):  # sums in another order: a few ulp
        torch.testing.assert_close(actual, expected, rtol=1e-14, atol=1e-14)
    assert torch.equal(logits, before)
