"""Scores on held-out text stand beside what no context gives, and are null where they mean nothing."""

import math

import numpy as np
import pytest
import torch

from electra_albert.config import RtdConfig
from electra_albert.contracts import Metrics
from electra_albert.objectives.evaluation import (
    Detections,
    Unigram,
    baseline_terms,
    detection_scores,
    has_learned,
    is_discriminator_idle,
)
from tests.objectives.toy import MODEL, SPECIAL, STEP, make_batch, make_objective

COUNTS = np.array([50, 3, 90, 90, 0, 8, 4, 2, 1, 1, *[0] * 9])  # special tokens are the most frequent, as in real text
RATE = RtdConfig(mask_rate=0.5)


def test_unigram_leaves_special_tokens_out_and_has_the_entropy_of_the_counts() -> None:
    unigram = Unigram.from_counts(COUNTS, SPECIAL.never_masked)
    share = np.array([8, 4, 2, 1, 1]) / 16
    assert unigram.most_frequent_id == 5
    assert unigram.entropy == pytest.approx(float(-(share * np.log(share)).sum()))


def test_unigram_cost_is_a_finite_distribution_over_all_tokens() -> None:
    nats = Unigram.from_counts(COUNTS, SPECIAL.never_masked).nats
    assert nats.dtype == torch.float32
    assert float((-nats.double()).exp().sum()) == pytest.approx(1.0)
    assert float(nats[5]) == pytest.approx(-math.log(9 / (16 + len(COUNTS))))
    # A token that was never seen costs most, but not infinitely much.
    assert float(nats[18]) == float(nats.max()) == pytest.approx(math.log(16 + len(COUNTS)))


def test_counts_are_left_as_they_were() -> None:
    counts = COUNTS.copy()
    Unigram.from_counts(counts, SPECIAL.never_masked)
    assert np.array_equal(counts, COUNTS)


def test_baselines_are_scored_on_the_very_tokens_the_generator_is() -> None:
    batch, objective = make_batch(), make_objective(rtd=RATE)
    unigram = Unigram.from_counts(COUNTS, SPECIAL.never_masked)
    corruption = objective.corrupt(batch)
    baselines = baseline_terms(corruption.targets, corruption.is_shown_masked, unigram)
    terms = objective(batch, STEP)
    assert torch.equal(baselines["unigram_loss"].count, terms["generator_loss"].count)
    assert torch.equal(baselines["most_frequent_accuracy"].count, terms["generator_accuracy"].count)
    used = corruption.targets.weight > 0
    labels = corruption.targets.labels[used]
    assert float(baselines["unigram_loss"].sum) == pytest.approx(float(unigram.nats[labels].sum()), rel=1e-6)
    shown = corruption.targets.labels[corruption.is_shown_masked]
    assert float(baselines["most_frequent_accuracy"].sum) == float((shown == 5).sum())


def test_no_batch_gives_empty_arrays_and_null_scores() -> None:
    scores, is_replaced = Detections().arrays()
    assert detection_scores(scores, is_replaced, 1) == dict.fromkeys(
        ("discriminator_auc", "discriminator_average_precision", "shuffled_labels_auc")
    )


@pytest.mark.parametrize("label", [True, False])
def test_one_kind_of_token_gives_null_scores(label: bool) -> None:
    values = detection_scores(np.linspace(0, 1, 9, dtype=np.float32), np.full(9, label), 1)
    assert set(values.values()) == {None}


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_score_that_is_not_finite_gives_null_scores(wrong: float) -> None:
    values = detection_scores(np.array([0.1, wrong, 0.3], np.float32), np.array([True, False, True]), 1)
    assert set(values.values()) == {None}


def test_perfect_and_reversed_detectors_score_one_and_nought_and_the_control_neither() -> None:
    is_replaced = np.arange(20_000) % 10 == 0
    scores = is_replaced.astype(np.float32) + np.linspace(0, 0.5, len(is_replaced), dtype=np.float32)
    perfect, reverse = (detection_scores(values, is_replaced, 1) for values in (scores, -scores))
    assert perfect["discriminator_auc"] == perfect["discriminator_average_precision"] == 1.0
    assert reverse["discriminator_auc"] == 0.0
    # 2,000 of 20,000: the AUC of a chance order deviates by 1 / sqrt(12 * 2000) = 0.0065.
    assert perfect["shuffled_labels_auc"] == pytest.approx(0.5, abs=0.02)


def test_control_repeats_with_its_seed() -> None:
    is_replaced = np.arange(300) % 7 == 0
    scores = np.linspace(0, 1, 300, dtype=np.float32)
    one, again, other = (detection_scores(scores, is_replaced, seed)["shuffled_labels_auc"] for seed in (1, 1, 2))
    assert one == again != other


LEARNED: Metrics = {
    "generator_accuracy": 0.20,
    "most_frequent_accuracy": 0.05,
    "discriminator_auc": 0.70,
    "discriminator_average_precision": 0.20,
    "replaced_fraction": 0.10,
}


def test_run_above_every_bar_has_learned() -> None:
    assert has_learned(LEARNED)


@pytest.mark.parametrize(
    "change",
    [
        {"generator_accuracy": 0.12},
        {"discriminator_auc": 0.64},
        {"discriminator_average_precision": 0.14},
        {"discriminator_auc": None},
        {"generator_accuracy": math.nan},
        {"discriminator_average_precision": math.inf},
    ],
    ids=str,
)
def test_run_below_any_bar_or_without_a_number_has_not_learned(change: Metrics) -> None:
    assert not has_learned(LEARNED | change)


IDLE: Metrics = {"discriminator_auc": 0.502, "generator_loss": 4.7, "unigram_loss": 6.4}


def test_chance_beside_a_generator_that_learns_is_an_idle_discriminator() -> None:
    assert is_discriminator_idle(IDLE)


@pytest.mark.parametrize(
    "change",
    [
        {"discriminator_auc": 0.54},
        {"generator_loss": 6.3},
        *({name: None} for name in IDLE),
        *({name: math.nan} for name in IDLE),
    ],
    ids=str,
)
def test_a_discriminator_that_finds_some_or_has_little_to_find_is_not_idle(change: Metrics) -> None:
    assert not is_discriminator_idle(IDLE | change)


def test_without_a_discriminator_none_is_idle() -> None:
    assert not is_discriminator_idle({"mlm_loss": 4.7, "unigram_loss": 6.4})


MLM_LEARNED: Metrics = {"mlm_accuracy": 0.20, "most_frequent_accuracy": 0.05}


@pytest.mark.parametrize("further", [{}, {"sop_accuracy": 0.5}, {"sop_accuracy": None}], ids=str)
def test_bar_of_a_run_without_a_discriminator_is_its_accuracy_alone(further: Metrics) -> None:
    assert has_learned(MLM_LEARNED | further)


@pytest.mark.parametrize("accuracy", [0.12, None, math.nan])
def test_run_below_the_bar_of_accuracy_has_not_learned(accuracy: float | None) -> None:
    assert not has_learned(MLM_LEARNED | {"mlm_accuracy": accuracy})


def test_vocabulary_of_the_counts_is_the_models() -> None:
    assert len(COUNTS) == MODEL.vocab_size
