"""Tables of scores: the scores of each objective next to their baselines, and nothing that was not
measured.
"""

import pytest

from electra_albert.apps.metrics_table import format_forgetting, format_scores

MASKS = {"unigram_loss": 6.0, "most_frequent_accuracy": 0.05}
MLM = {**MASKS, "mlm_loss": 4.0, "mlm_accuracy": 0.2}
ORDER = {"sop_loss": 0.6, "sop_accuracy": 0.7, "swapped_fraction": 0.45}
RTD = {
    **MASKS,
    **{"generator_loss": 4.0, "generator_accuracy": 0.2, "replaced_fraction": 0.1},
    **{"discriminator_auc": 0.8, "shuffled_labels_auc": 0.5},
    "discriminator_average_precision": 0.5,
}


@pytest.mark.parametrize(
    ("metrics", "shown", "hidden"),
    [
        (
            MLM | ORDER,
            ["masked-token accuracy", "accuracy of the second segment  0.700  0.550"],
            ["discriminator"],
        ),
        # Of electric.
        (
            MASKS | {"discriminator_loss": 0.7},
            ["discriminator loss (nats)"],
            ["ROC-AUC", "clearly"],
        ),
        (RTD, ["generator loss", "ROC-AUC", "5.00 x"], ["masked-token", "order"]),
    ],
)
def test_table_has_the_objectives_scores_only(
    metrics: dict[str, float], shown: list[str], hidden: list[str]
) -> None:
    table = format_scores(metrics)
    assert all(word in table for word in shown), table
    assert not any(word in table for word in hidden), table


def test_each_source_has_its_own_row() -> None:
    of_sources = {"generator_loss/a": 3.5, "unigram_loss/a": 6.5, "masked_tokens/a": 1_500}
    of_sources |= {"generator_loss/b": None, "unigram_loss/b": None, "masked_tokens/b": 0}
    lines = [line.split() for line in format_scores(RTD | of_sources).splitlines()]
    assert ["a", "6.500", "3.500", "1,500"] in lines
    assert ["b", "-", "-", "0"] in lines


def test_scores_from_few_tokens_give_a_warning() -> None:
    # Regression: there was no warning for scores from one sentence.
    table = format_scores({**RTD, "masked_tokens": 7})
    assert "only 7 masked tokens" in table
    assert "about 1 nats" in table
    assert "warning" not in format_scores({**RTD, "masked_tokens": 900})


def test_missing_scores_are_dashes_and_not_a_success() -> None:
    table = format_scores(dict.fromkeys(RTD | ORDER))
    assert "not yet clearly" in table
    assert "None" not in table
    assert "nan" not in table


def test_forgetting_table_has_both_texts_before_and_after_training() -> None:
    losses = {"generator_loss": 5.0, "old_text_generator_loss": 4.0, "unigram_loss": 6.0}
    after = losses | {"step": 50, "generator_loss": 4.5, "old_text_generator_loss": 4.25}
    between = {**after, "step": 25, "generator_loss": 9.0}
    table = format_forgetting([{**losses, "step": 0}, between, after])
    title, *lines = table.splitlines()
    assert ("at step 0" in title, "at step 50" in title) == (True, True)
    assert [" ".join(line.split()[-3:]) for line in lines] == [
        "5.000 4.500 -0.500",
        "4.000 4.250 +0.250",
    ]
    assert "unigram" not in table
