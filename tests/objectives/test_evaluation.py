"""Held-out metrics, context-free baselines, and metrics that are undefined, so None."""

import math

import numpy as np
import pytest
import torch

from electra_albert.apps.metrics_table import has_learned
from electra_albert.config.objectives import RtdConfig
from electra_albert.objectives import evaluation
from electra_albert.objectives.evaluation import (
    Unigram,
    detection_scores,
    is_discriminator_at_chance,
)
from tests.objectives.toy import SPECIAL, make_batch, make_objective

# Special tokens are the most frequent, as in real text.
COUNTS = np.array([50, 3, 90, 90, 0, 8, 4, 2, 1, 1, *[0] * 9])


def test_unigram_ignores_special_tokens_and_smooths_over_the_whole_vocabulary() -> None:
    counts = COUNTS.copy()
    unigram = Unigram.from_counts(counts, SPECIAL.never_masked)
    assert np.array_equal(counts, COUNTS)
    share = np.array([8, 4, 2, 1, 1]) / 16
    assert unigram.most_frequent_id == 5
    assert unigram.entropy == pytest.approx(float(-(share * np.log(share)).sum()))
    assert unigram.nats.dtype == torch.float32
    assert float((-unigram.nats.double()).exp().sum()) == pytest.approx(1.0)
    assert float(unigram.nats[5]) == pytest.approx(-math.log(9 / (16 + len(COUNTS))))
    # An unseen token has a finite loss.
    assert float(unigram.nats[18]) == pytest.approx(math.log(16 + len(COUNTS)))


def test_baselines_and_generator_have_the_same_targets() -> None:
    batch = make_batch()
    objective = make_objective(rtd=RtdConfig(mask_rate=0.5))
    unigram = Unigram.from_counts(COUNTS, SPECIAL.never_masked)
    corruption = objective.corrupt(batch)
    baselines = evaluation.baseline_terms(corruption.targets, corruption.is_masked, unigram)
    terms = objective(batch)
    loss = baselines["unigram_loss"]
    accuracy = baselines["most_frequent_accuracy"]
    assert int(loss.count) == int(terms["generator_loss"].count)
    assert int(accuracy.count) == int(terms["generator_accuracy"].count)
    labels = corruption.targets.labels
    torch.testing.assert_close(loss.sum, unigram.nats[labels[corruption.targets.weight > 0]].sum())
    assert int(accuracy.sum) == int((labels[corruption.is_masked] == 5).sum())


def test_one_class_or_non_finite_logits_score_none() -> None:
    both = np.array([True, False, True])
    finite = np.linspace(0, 1, 3, dtype=np.float32)
    assert None not in detection_scores(finite, both, 1).values()
    infinite = np.where(both, finite, np.float32(np.nan))
    for scores, labels in ((finite, both | True), (finite, both & False), (infinite, both)):
        assert {*detection_scores(scores, labels, 1).values()} == {None}
    assert {*detection_scores(*evaluation.Detections().arrays(), 1).values()} == {None}


def test_perfect_and_reversed_detectors_have_auc_one_and_zero() -> None:
    is_replaced = np.arange(20_000) % 10 == 0
    scores = np.float32(is_replaced + np.linspace(0, 0.5, len(is_replaced)))
    perfect = detection_scores(scores, is_replaced, 1)
    assert perfect["discriminator_auc"] == perfect["discriminator_average_precision"] == 1.0
    assert detection_scores(-scores, is_replaced, 1)["discriminator_auc"] == 0.0
    # 2,000 of 20,000: the AUC of a random order has a standard deviation of 1 / sqrt(12 * 2000) =
    # 0.0065.
    assert perfect["shuffled_labels_auc"] == pytest.approx(0.5, abs=0.02)


LEARNED = {
    "generator_accuracy": 0.20,
    "most_frequent_accuracy": 0.05,
    "discriminator_auc": 0.70,
    "discriminator_average_precision": 0.20,
    "replaced_fraction": 0.10,
}
MLM_LEARNED = {"mlm_accuracy": 0.20, "most_frequent_accuracy": 0.05, "sop_accuracy": None}


def test_a_run_has_learned_if_it_is_above_every_baseline() -> None:
    assert has_learned(LEARNED)
    assert has_learned(MLM_LEARNED)
    assert has_learned({"own_loss": 1.0}) is None
    below = {
        "generator_accuracy": 0.12,
        "discriminator_auc": 0.64,
        "discriminator_average_precision": 0.14,
    }
    for name, value in below.items():
        for wrong in (value, None, math.nan):
            assert not has_learned(LEARNED | {name: wrong}), (name, wrong)
    assert not has_learned(MLM_LEARNED | {"mlm_accuracy": 0.12})


IDLE = {"discriminator_auc": 0.502, "generator_loss": 4.7, "unigram_loss": 6.4}


def test_a_discriminator_is_at_chance_only_if_the_generator_has_learned() -> None:
    assert is_discriminator_at_chance(IDLE)
    # A run of tiny at four times the learning rate kept .55 to .57 for 4,000 steps; a healthy one
    # passes .64 at 4.94.
    assert is_discriminator_at_chance(IDLE | {"discriminator_auc": 0.555})
    early = {"discriminator_auc": 0.54, "generator_loss": 5.0}
    unknown = [{name: value} for name, value in zip(IDLE, (None, math.nan, None), strict=True)]
    for change in ({"discriminator_auc": 0.61}, early, {"generator_loss": 6.3}, *unknown):
        assert not is_discriminator_at_chance(IDLE | change)
