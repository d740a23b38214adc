"""Batches: a pure function of the step, whatever the ranks, the accumulation or the resume."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from electra_albert.contracts import Batch
from electra_albert.corpus.batches import TrainBatches, eval_batches
from electra_albert.corpus.examples import ExampleTable, Rows, build_table
from electra_albert.corpus.mixture import RowOrder, order_rows
from electra_albert.corpus.store import TokenStream
from electra_albert.corpus.tokenizer import SpecialIds

SEED = 5
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    generator = np.random.default_rng(1)
    sentence_ends = generator.integers(1, 9, 300).cumsum()
    stream = TokenStream(np.arange(5, 5 + sentence_ends[-1], dtype=np.uint16), sentence_ends, sentence_ends[3::4])
    return Rows(stream, build_table(stream, 16, SEED, tmp_path), 16, SEED, SPECIAL)


def order_of(rows: Rows, seed: int = SEED) -> RowOrder:
    return order_rows([0], rows.table.count, None, seed)


def examples_of(batches: list[Batch]) -> dict[int, list[int]]:
    """The ids of each example, by its number; no example is there twice."""
    found = {int(n): ids for b in batches for n, ids in zip(b.example_id, b.input_ids.tolist(), strict=True)}
    assert len(found) == sum(len(batch.example_id) for batch in batches)
    return found


def of_step(splits: list[TrainBatches], step: int) -> dict[int, list[int]]:
    return examples_of([batch for split in splits for batch in split.micro_batches(step)])


def fields_equal(one: list[Batch], other: list[Batch]) -> bool:
    pairs = [(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True) if a is not None]
    return all(b is not None and torch.equal(a, b) for a, b in pairs)


def test_every_epoch_trains_on_every_example_once(rows: Rows) -> None:
    batches = TrainBatches(rows, order_of(rows), per_device_train_batch_size=7)
    count = rows.table.count
    assert count % 7
    steps = -(-3 * count // 7)
    found = examples_of([batch for step in range(1, steps + 1) for batch in batches.micro_batches(step)])
    assert list(found) == list(range(7 * steps))
    first_tokens = [min(token for token in ids if token >= 5) for ids in found.values()]
    expected = sorted((rows.table.edges[:-1] + 5).tolist())
    epochs = [first_tokens[epoch * count : (epoch + 1) * count] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [expected] * 3
    assert epochs[0] != epochs[1] != expected


def test_a_step_trains_on_the_same_examples_however_it_is_split(rows: Rows) -> None:
    def split(ranks: int, accumulation: int, size: int) -> list[TrainBatches]:
        return [TrainBatches(rows, order_of(rows), size, accumulation, rank, ranks) for rank in range(ranks)]

    whole = split(1, 1, 12)
    for step in (1, 2, 9):
        for shape in ((1, 4, 3), (2, 1, 6), (2, 2, 3), (3, 4, 1), (12, 1, 1)):
            assert of_step(split(*shape), step) == of_step(whole, step), shape
    faulty = [TrainBatches(rows, order_of(rows, SEED + rank), 6, 1, rank, 2) for rank in range(2)]  # planted fault
    assert of_step(faulty, 1) != of_step(whole, 1)


def test_steps_from_anywhere_go_on_as_the_uninterrupted_run(rows: Rows) -> None:
    batches = TrainBatches(rows, order_of(rows), 3, 2)
    straight = list(islice(batches.steps(1), 40))
    for first in (2, 17, 40):  # in the first epoch, in later ones
        resumed = list(islice(batches.steps(first), 41 - first))
        assert all(fields_equal(a, b) for a, b in zip(straight[first - 1 :], resumed, strict=True))
        assert fields_equal(batches.micro_batches(first), straight[first - 1])
    assert not fields_equal(straight[0], straight[1])


def test_a_distant_step_is_found_at_once_and_epochs_are_counted(rows: Rows) -> None:
    step = 10**12
    (batch,) = TrainBatches(rows, order_of(rows), 4).micro_batches(step)
    assert batch.example_id.tolist() == [4 * (step - 1) + k for k in range(4)]
    batches = TrainBatches(rows, order_of(rows), 4, 3, 1, 2)
    assert (batches.global_batch_size, batches.epoch(0), batches.epoch(rows.table.count)) == (24, 0, 24)


def test_an_error_of_the_thread_is_raised_where_batches_are_taken_and_it_ends_with_them(rows: Rows) -> None:
    beyond = ExampleTable(np.array(rows.table.edges) + len(rows.stream.tokens))
    broken = Rows(rows.stream, beyond, 16, SEED, SPECIAL)
    with pytest.raises(IndexError):
        next(TrainBatches(broken, order_of(broken), 4).steps(1))
    running = TrainBatches(rows, order_of(rows), 4).steps(1)
    next(running)
    thread = next(t for t in threading.enumerate() if t.name.startswith("batches"))
    running.close()  # type: ignore[attr-defined]
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_few_evaluation_examples_are_spread_over_the_text(rows: Rows) -> None:
    # Regression: of a large text only its beginning was scored.
    count = rows.table.count
    for share in (3, 7):
        taken = torch.cat([batch.example_id for batch in eval_batches(rows, count // share, 4)])
        gaps = taken.diff(prepend=torch.tensor([-1]), append=torch.tensor([count]))
        assert 0 < int(gaps.min()) <= int(gaps.max()) <= 2 * share


@pytest.mark.parametrize("ranks", [1, 5])
def test_evaluation_scores_each_example_once(rows: Rows, ranks: int) -> None:
    limit = rows.table.count - 3
    borders = [0, 5, 5, 6, 30]
    batches = [batch for rank in range(ranks) for batch in eval_batches(rows, limit, 4, rank, ranks, borders)]
    assert examples_of(batches) == examples_of([next(eval_batches(rows, limit, limit))])
    assert all(len(batch.example_id) <= 4 for batch in batches)
    sides = [{int(n) >= border for n in batch.example_id} for batch in batches for border in borders]
    assert all(len(side) == 1 for side in sides), "a batch is of two sources"
    assert list(eval_batches(rows, 2, 4, rank=2, world_size=3)) == [], "a rank more than there are examples"
