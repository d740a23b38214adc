"""Bucketed batches: a pure function of the step, the same units for every split, little padding."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from electra_albert.contracts import Batch
from electra_albert.tasks.rows import Rows, TaskBatches, eval_batches


def make_rows(lengths: list[int], rows_per_unit: int = 1) -> Rows:
    """Rows of given lengths whose first token tells their number."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.ones(starts[-1], dtype=np.int32)
    ids[starts[:-1]] = np.arange(100, 100 + len(lengths))
    units = len(lengths) // rows_per_unit
    labels = np.arange(units, dtype=np.int64)
    return Rows(ids, starts, np.array(lengths), np.arange(units), labels, 0, rows_per_unit=rows_per_unit)


def skewed(count: int) -> list[int]:
    return np.random.default_rng(3).lognormal(3, 0.7, count).astype(int).clip(4, 128).tolist()


def split(
    rows: Rows, ranks: int, accumulation: int, size: int, max_steps: int = 300, seed: int = 5
) -> list[TaskBatches]:
    return [TaskBatches(rows, size, accumulation, seed, max_steps, rank, ranks) for rank in range(ranks)]


def units_of_steps(splits: list[TaskBatches], steps: int) -> list[list[int]]:
    """All units of each update over all ranks, sorted."""
    streams = [islice(one.steps(1), steps) for one in splits]
    return [
        sorted(unit for batches in together for batch in batches for unit in batch.example_id.tolist())
        for together in zip(*streams, strict=True)
    ]


def are_equal(one: list[Batch], other: list[Batch]) -> bool:
    pairs = [(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)


def padding_share(batches: list[Batch]) -> float:
    masks = [batch.attention_mask for batch in batches]
    return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)


@pytest.mark.parametrize(("ranks", "accumulation", "size"), [(1, 4, 3), (2, 2, 3), (4, 3, 1)])
def test_an_update_takes_the_same_units_however_they_are_split(ranks: int, accumulation: int, size: int) -> None:
    rows = make_rows(skewed(101))
    assert units_of_steps(split(rows, ranks, accumulation, size), 40) == units_of_steps(split(rows, 1, 1, 12), 40)


@pytest.mark.parametrize("first_step", [2, 64, 65, 130])
def test_batches_are_the_same_from_any_step(first_step: int) -> None:
    (one,) = split(make_rows(skewed(700)), 1, 2, 4, max_steps=66)
    from_start = list(islice(one.steps(1), first_step + 2))[first_step - 1 :]
    assert all(are_equal(*pair) for pair in zip(from_start, one.steps(first_step), strict=False))


@pytest.mark.parametrize("count", [5, 60, 97, 2000])
def test_a_run_draws_every_unit_as_often_as_its_passes(count: int) -> None:
    size, max_steps = 10, 97
    steps = units_of_steps(split(make_rows(skewed(count)), 1, 1, size, max_steps), max_steps)
    assert count < 2 * size or all(len(set(step)) == size for step in steps)
    drawn = Counter(unit for step in steps for unit in step)
    passes, rest = divmod(size * max_steps, count)
    assert Counter(drawn[unit] for unit in range(count)) == +Counter({passes: count - rest, passes + 1: rest})


def test_each_pass_takes_all_units_in_an_order_of_its_own() -> None:
    rows = make_rows(skewed(640))
    seen = [unit for step in units_of_steps(split(rows, 1, 1, 2, max_steps=1000), 640) for unit in step]
    assert sorted(seen[:640]) == sorted(seen[640:]) == list(range(640))
    assert set(seen[:128]) != set(seen[640:768])  # as many as are sorted together
    assert set(seen[:128]) != set(range(128))


def test_padding_is_far_below_that_of_unsorted_batches() -> None:
    rows = make_rows(skewed(6000))
    sorted_batches = [batch for (batch,) in islice(split(rows, 1, 1, 32)[0].steps(1), 180)]
    order = np.random.default_rng(0).permutation(6000)[: 180 * 32]
    unsorted = [rows.collate(units) for units in order.reshape(180, 32)]
    assert padding_share(sorted_batches) < 0.08 < 0.4 < padding_share(unsorted)


def test_ranks_take_turns_at_the_longest_rows() -> None:
    streams = [one.steps(1) for one in split(make_rows(list(range(4, 304))), 4, 1, 2)]
    tokens = [[int(batch.attention_mask.sum()) for stream in streams for batch in next(stream)] for _ in range(200)]
    longest = np.bincount(np.array(tokens).argmax(axis=1), minlength=4)
    assert longest.min() > 25  # 50 expected, standard deviation 6


@pytest.mark.parametrize(("count", "size", "ranks"), [(23, 4, 1), (23, 4, 3), (2, 4, 3), (0, 4, 2), (24, 4, 2)])
def test_evaluation_scores_every_unit_once_over_all_ranks(count: int, size: int, ranks: int) -> None:
    rows = make_rows(skewed(2 * count), rows_per_unit=2)
    batches = [batch for rank in range(ranks) for batch in eval_batches(rows, size, rank, ranks)]
    units = [unit for batch in batches for unit in batch.example_id[::2].tolist()]
    assert sorted(units) == list(range(count))
    assert all(len(batch.input_ids) <= 2 * size for batch in batches)
    widths = [batch.input_ids.shape[1] for batch in eval_batches(rows, size)]
    assert widths == sorted(widths, reverse=True)
