"""Each schedule is the published one but for the counting, and no update of a run has a rate of zero."""

from dataclasses import replace
from itertools import pairwise
from typing import get_args, get_type_hints

import pytest

from electra_albert.config import TrainingConfig
from electra_albert.training.schedule import learning_rate

CONFIG = TrainingConfig(max_steps=100, warmup_steps=10, learning_rate=2e-3)
KINDS = get_args(get_type_hints(TrainingConfig)["lr_scheduler_type"])


def curve(kind: str, max_steps: int = 100, warmup_steps: int = 10) -> list[float]:
    """The rates of updates 1, 2, … of a whole run, with a peak of one."""
    config = TrainingConfig(
        max_steps=max_steps,
        warmup_steps=warmup_steps,
        learning_rate=1.0,
        lr_scheduler_type=kind,  # type: ignore[arg-type]
    )
    return [learning_rate(step, config) for step in range(1, max_steps + 1)]


@pytest.mark.parametrize(("step", "share"), [(1, 0.1), (5, 0.5 * 0.96), (10, 0.91), (51, 0.5), (100, 0.01)])
def test_electra_is_the_product_of_warm_up_and_decay(step: int, share: float) -> None:
    assert learning_rate(step, CONFIG) == pytest.approx(2e-3 * share, rel=1e-12)


def test_bert_is_the_published_code_one_update_ahead_in_the_warm_up() -> None:
    # As published, by updates counted from 0: g / w while g < w, then 1 - g / T.
    published = [g / 10 if g < 10 else 1 - g / 100 for g in range(100)]
    ours = curve("bert")
    assert ours[:9] == pytest.approx(published[1:10], rel=1e-12)
    assert ours[10:] == pytest.approx(published[10:], rel=1e-12)
    assert ours[9] == pytest.approx(1 - 9 / 100, rel=1e-12)  # the warm-up is over one update earlier too


def test_bert_jumps_down_after_a_long_warm_up() -> None:
    ours = curve("bert", warmup_steps=50)
    assert ours[48] == pytest.approx(49 / 50)
    assert ours[49] == pytest.approx(1 - 49 / 100)


def test_linear_reaches_the_peak_and_falls_evenly_over_the_rest() -> None:
    # The usual formula, by updates counted from 0 in the decay: (T - g) / (T - w).
    ours = curve("linear")
    assert ours[:10] == pytest.approx([step / 10 for step in range(1, 11)], rel=1e-12)
    assert ours[10:] == pytest.approx([(100 - g) / 90 for g in range(10, 100)], rel=1e-12)


@pytest.mark.parametrize("warmup_steps", [0, 1, 10, 50, 99])
def test_linear_has_no_jump(warmup_steps: int) -> None:
    ours = curve("linear", warmup_steps=warmup_steps)
    steepest = max(1 / max(1, warmup_steps), 1 / (100 - warmup_steps))
    changes = [abs(after - before) for before, after in pairwise(ours)]
    assert max(changes) <= steepest + 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup_steps", [0, 1, 10, 99, 100, 150])
def test_no_update_of_a_run_has_a_rate_of_zero_or_above_the_peak(kind: str, warmup_steps: int) -> None:
    assert all(0 < rate <= 1 for rate in curve(kind, warmup_steps=warmup_steps))


@pytest.mark.parametrize("kind", KINDS)
def test_without_warm_up_the_first_rate_is_the_peak(kind: str) -> None:
    assert curve(kind, warmup_steps=0)[0] == 1.0


@pytest.mark.parametrize("kind", ["bert", "linear"])
def test_a_warm_up_longer_than_the_run_only_rises(kind: str) -> None:
    assert curve(kind, max_steps=8, warmup_steps=16) == [step / 16 for step in range(1, 9)]


@pytest.mark.parametrize("kind", KINDS)
def test_rate_beyond_the_end_is_zero(kind: str) -> None:
    config = replace(CONFIG, lr_scheduler_type=kind)  # type: ignore[arg-type]
    assert learning_rate(101, config) == learning_rate(500, config) == 0.0
