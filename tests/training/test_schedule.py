"""The learning rate is ELECTRA's joint form and never zero inside a run."""

from dataclasses import replace

import pytest

from electra_albert.config import TrainingConfig
from electra_albert.training.schedule import learning_rate

CONFIG = TrainingConfig(max_steps=100, warmup_steps=10, learning_rate=2e-3)


def test_no_update_of_a_run_has_a_rate_of_zero() -> None:
    assert all(learning_rate(step, CONFIG) > 0 for step in range(1, 101))


@pytest.mark.parametrize(("step", "share"), [(1, 0.1), (5, 0.5 * 0.96), (10, 0.91), (51, 0.5), (100, 0.01)])
def test_rate_is_the_product_of_warm_up_and_decay(step: int, share: float) -> None:
    assert learning_rate(step, CONFIG) == pytest.approx(2e-3 * share, rel=1e-12)


def test_without_warm_up_the_first_rate_is_the_peak() -> None:
    assert learning_rate(1, replace(CONFIG, warmup_steps=0)) == CONFIG.learning_rate


def test_rate_beyond_the_end_is_not_negative() -> None:
    assert learning_rate(500, CONFIG) == 0.0
