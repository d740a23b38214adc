"""Masked language modelling masks 80/10/10, and its losses equal those of transformers'
AlbertForPreTraining.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor

from electra_albert.config.objectives import MlmConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, SpecialIds, UsageError
from electra_albert.objectives.masking import Targets, choose_targets, mask, random_tokens
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


def assert_uniform_over_others(others: Tensor, targets: Targets, special: SpecialIds) -> None:
    """Assert that all tokens except the target itself and special ones are drawn equally often."""
    assert not (others == targets.labels).any(), "a token replaces itself"
    assert not torch.isin(others, torch.tensor(special.never_masked)).any(), (
        "a special token is drawn"
    )
    for label in sorted(set(range(VOCAB)) - set(special.never_masked)):
        found = torch.bincount(others[targets.labels == label], minlength=VOCAB)
        allowed = [
            token for token in range(VOCAB) if token != label and token not in special.never_masked
        ]
        # Bonferroni correction for up to VOCAB tests.
        assert stats.chisquare(found[allowed].numpy()).pvalue > ACCEPTED / VOCAB, (
            f"not uniform for {label}"
        )


# Planted: a special token, the token itself, and another ordinary one, each instead of an ordinary
# token.
FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "special token": lambda labels: torch.full_like(labels, 17),
    "replaces itself": lambda labels: labels,
    "not uniform": lambda labels: torch.where(labels == 4, 3, 4),
}


def test_random_tokens_are_uniform_over_all_other_ordinary_tokens() -> None:
    batch = batch_of(SPREAD)
    targets = choose_targets(batch.input_ids, batch.attention_mask, 0.5, SEED, KEYS)
    others = random_tokens(targets, SPREAD, VOCAB, SEED, KEYS)
    assert_uniform_over_others(others, targets, SPREAD)
    for words, fault in FAULTS.items():
        with pytest.raises(AssertionError, match=words):
            assert_uniform_over_others(
                torch.where(others == 3, fault(targets.labels), others), targets, SPREAD
            )


def assert_masked_in_shares(mlm: MlmConfig, shares: tuple[float, float]) -> None:
    """Assert that these shares of the targets are [MASK] and random, and all other tokens are
    unchanged.
    """
    batch = batch_of(SPECIAL)
    ids = batch.input_ids
    masked_ids, targets, is_masked = mask(batch, VOCAB, mlm, SPECIAL, SEED)
    used = targets.weight > 0
    tokens = masked_ids.gather(1, targets.positions)
    is_mask, is_kept = (tokens == MASK) & used, (tokens == targets.labels) & used
    assert torch.equal(is_mask, is_masked)
    is_random, total = used & ~is_mask & ~is_kept, int(used.sum())
    for is_kind, share in (
        (is_mask, shares[0]),
        (is_random, shares[1]),
        (is_kept, 1 - sum(shares)),
    ):
        count = int(is_kind.sum())
        assert stats.binomtest(count, total, round(share, 9)).pvalue > ACCEPTED, (
            f"{count} of {total}, not {share}"
        )
    is_target = torch.zeros_like(ids, dtype=torch.bool).scatter(1, targets.positions, used)
    assert torch.equal(masked_ids[~is_target], ids[~is_target])


@pytest.mark.parametrize("shares", [(0.8, 0.1), (0.0, 0.0)], ids=str)
def test_targets_are_masked_and_randomised_in_the_configured_shares(
    shares: tuple[float, float],
) -> None:
    assert_masked_in_shares(
        MlmConfig(mask_token_share=shares[0], random_token_share=shares[1]), shares
    )
    # Planted: other shares than the configured ones.
    for other in (MlmConfig(mask_token_share=0.75), MlmConfig(random_token_share=0.15)):
        with pytest.raises(AssertionError):
            assert_masked_in_shares(other, shares)


def test_a_vocabulary_with_a_single_ordinary_token_is_refused_for_random_tokens() -> None:
    model = replace(MODEL, vocab_size=6)
    with pytest.raises(UsageError, match=r"--mlm\.random_token_share 0"):
        MaskedLanguageModeling(model, MlmConfig(), SPECIAL, SEED)
    objective = MaskedLanguageModeling(model, MlmConfig(random_token_share=0.0), SPECIAL, SEED)
    assert int(objective(make_batch(vocab=6))["mlm_loss"].count) > 0


def assert_loss_is_stocks(batch: Batch, stock_order: Tensor) -> None:
    """Assert that loss and gradients equal those of AlbertForPreTraining with the labels
    `stock_order`.
    """
    objective = build("mlm_sop", replace(MODEL, initializer_range=0.3))
    assert isinstance(objective, MaskedLanguageModeling)
    twin, prediction = masked_lm_twin(objective.generator), objective.corrupt(batch)
    targets = prediction.targets
    chosen = targets.labels.masked_fill(targets.weight == 0, IGNORED_LABEL)
    labels = torch.full_like(batch.input_ids, IGNORED_LABEL).scatter(1, targets.positions, chosen)
    given = (prediction.masked_ids, batch.attention_mask, batch.token_type_ids)
    stock = twin(*given, labels=labels, sentence_order_label=stock_order)
    terms = objective.terms(batch, prediction)
    loss = (
        terms["mlm_loss"].sum / terms["mlm_loss"].count
        + terms["sop_loss"].sum / terms["sop_loss"].count
    )
    # Float32: sums in another order.
    torch.testing.assert_close(loss, stock.loss, rtol=1e-5, atol=0)
    loss.backward()
    stock.loss.backward()
    assert_same_gradients(gradients(objective.generator), gradients(twin))


def test_loss_and_gradients_equal_those_of_albert_for_pretraining() -> None:
    batch = ordered(make_batch())
    labels = batch.sentence_order_label
    assert_loss_is_stocks(batch, labels)
    # Planted: label 1 for sentences in order.
    with pytest.raises(AssertionError):
        assert_loss_is_stocks(batch, torch.where(labels == IGNORED_LABEL, labels, 1 - labels))


# Both sum the same exponentials, in different orders: a few ulp of each dtype.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_cross_entropy_and_its_gradient_equal_those_of_pytorch(
    dtype: torch.dtype, tolerance: float
) -> None:
    generator, weight = torch.Generator().manual_seed(3), (torch.arange(7) % 3).to(dtype)
    logits = (
        (10 * torch.randn(7, 31, generator=generator, dtype=torch.float64))
        .to(dtype)
        .requires_grad_()
    )
    labels, before = torch.randint(31, (7,), generator=generator), logits.detach().clone()
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    found = CrossEntropy.apply(logits, labels)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    gradients = [
        torch.autograd.grad((nats * weight).sum(), logits)[0] for nats in (expected, found)
    ]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=tolerance, atol=tolerance)
    assert torch.equal(logits, before)
