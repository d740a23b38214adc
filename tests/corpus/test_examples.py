"""Packed examples hold every token once, in a documented layout that no batch changes."""

import threading
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import IGNORED_LABEL, Batch, SpecialIds
from electra_albert.corpus.examples import PackedExamples, TrainBatches, eval_batches
from electra_albert.corpus.mixture import ExampleOrder, order_examples
from electra_albert.corpus.rows import ExampleTable, Split, TokenStream, build_table, padding_share
from tests.corpus.reading import joined

PAD, CLS, SEP = 3, 1, 4  # unlike ALBERT's, which no code may assume
SPECIAL = SpecialIds(pad=PAD, unk=None, cls=CLS, sep=SEP, mask=2, never_masked=())
SEED = 11


def make_stream(documents: list[list[int]]) -> TokenStream:
    """Documents given as sentence lengths; an id shows its position: token i has the id 5 + i."""
    lengths = [length for sentences in documents for length in sentences]
    sentence_ends = np.cumsum(lengths, dtype=np.int64)
    document_ends = np.cumsum([sum(sentences) for sentences in documents], dtype=np.int64)
    return TokenStream(
        np.arange(5, 5 + sentence_ends[-1], dtype=np.uint32), sentence_ends, document_ends
    )


def draw_stream(
    seed: int, documents: int, longest_sentence: int, most_sentences: int
) -> TokenStream:
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, most_sentences + 1, documents)
    return make_stream(
        [generator.integers(1, longest_sentence + 1, count).tolist() for count in counts]
    )


def cut_in_parts(stream: TokenStream, count: int) -> list[TokenStream]:
    """At most `count` parts of a stream, cut where documents end."""
    borders = np.unique(
        [
            0,
            *(
                stream.document_ends[len(stream.document_ends) * n // count - 1]
                for n in range(1, count + 1)
            ),
        ]
    )
    return [
        TokenStream(
            stream.tokens[a:b], *(ends[(ends > a) & (ends <= b)] - a for ends in stream[1:])
        )
        for a, b in pairwise(borders.tolist())
    ]


def make_examples(
    stream: TokenStream, folder: Path, length: int = 24, count: int = 1, **rates: float
) -> PackedExamples:
    """Examples of a stream in `count` parts."""
    parts = cut_in_parts(stream, count)
    split = Split(folder, 1 << 30, [*range(len(parts))], parts, [0] * len(parts))
    return PackedExamples(split, build_table(split, length, SEED), length, SEED, SPECIAL, **rates)


def all_examples(examples: PackedExamples, epoch: int = 0) -> Batch:
    index = torch.arange(examples.table.count)
    return examples.gather(index, example_id=epoch * examples.table.count + index)


def edges_of(examples: PackedExamples) -> np.ndarray:
    """Where all examples start and end, in tokens from the start of the first part."""
    firsts = np.cumsum([0, *(len(part.tokens) for part in examples.split.parts)])
    return np.unique(
        np.concatenate([e + first for e, first in zip(examples.table.edges, firsts, strict=False)])
    )


class Layout(NamedTuple):
    ids: list[int]
    types: list[int]
    label: int


def plain_layouts(examples: PackedExamples, number: int) -> list[Layout]:
    """Every allowed layout of an example, by plain enumeration."""
    stream, (start, end) = joined(examples.split), edges_of(examples)[number : number + 2].tolist()
    tokens = stream.tokens[start:end].tolist()
    inside = [int(e) - start for e in stream.document_ends if start < e < end]
    if inside:
        edges = [0, *inside, end - start]
        segments = [tokens[a:b] for a, b in pairwise(edges)]
        rest = [token for segment in segments[1:] for token in [*segment, SEP]]
        first = [CLS, *segments[0], SEP]
        return [Layout(first + rest, [0] * len(first) + [1] * len(rest), IGNORED_LABEL)]
    inside = [int(e) - start for e in stream.sentence_ends if start < e < end]
    layouts = []
    for cut in inside:
        label = (
            0
            if examples.swap_rate == 0 or (len(inside) > 2 and cut in inside[1:-1])
            else IGNORED_LABEL
        )
        layouts.append(two_segments(tokens[:cut], tokens[cut:], label))
    for cut in inside[1:-1] if examples.swap_rate else ():
        head, first, second, tail = (
            tokens[a:b] for a, b in pairwise([0, inside[0], cut, inside[-1], len(tokens)])
        )
        layouts.append(two_segments(head + second, first + tail, 1))
    return [*layouts, Layout([CLS, *tokens, SEP], [0] * (len(tokens) + 2), IGNORED_LABEL)]


def two_segments(a: list[int], b: list[int], label: int) -> Layout:
    return Layout([CLS, *a, SEP, *b, SEP], [0] * (len(a) + 2) + [1] * (len(b) + 1), label)


def laid_out(batch: Batch, number: int) -> Layout:
    ids, mask, types, label = (field[number] for field in batch[:4] if field is not None)
    used = int(mask.sum())
    assert mask[:used].all(), "padding is only at the end"
    assert ((ids[used:] == PAD) & (types[used:] == 0)).all()
    return Layout(ids[:used].tolist(), types[:used].tolist(), int(label))


def has_allowed_layout(examples: PackedExamples, batch: Batch) -> bool:
    return all(
        laid_out(batch, number) in plain_layouts(examples, number)
        for number in range(examples.table.count)
    )


def tokens_in_order(batch: Batch) -> list[int]:
    return batch.input_ids[batch.input_ids >= 5].tolist()


DOCUMENTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    documents=DOCUMENTS,
    length=st.sampled_from([8, 11, 24, 37]),
    count=st.sampled_from([1, 1, 2, 5]),
)
def test_examples_hold_every_token_once_in_an_allowed_layout(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], length: int, count: int
) -> None:
    stream, folder = make_stream(documents), tmp_path_factory.mktemp("examples")
    examples = make_examples(stream, folder, length, count, one_segment_rate=0.2)
    batch = all_examples(examples)
    assert batch.input_ids.shape == (examples.table.count, length)
    assert tokens_in_order(batch) == stream.tokens.tolist()
    assert has_allowed_layout(examples, batch)
    swapping = make_examples(stream, folder, length, count, swap_rate=0.5, one_segment_rate=0.0)
    swapped = all_examples(swapping)
    assert sorted(tokens_in_order(swapped)) == stream.tokens.tolist()
    assert has_allowed_layout(swapping, swapped)


def test_examples_hold_as_many_tokens_as_fit(tmp_path: Path) -> None:
    stream = draw_stream(2, 3_000, 12, 5)
    examples = make_examples(stream, tmp_path)
    edges, length = examples.table.edges[0], examples.max_seq_length
    first = np.searchsorted(stream.document_ends, edges[:-1], side="right")
    borders = np.searchsorted(stream.document_ends, edges[1:] + 1) - first
    # With the next token, whose border would be inside.
    used = np.diff(edges) + 2 + np.maximum(borders, 1)
    is_full = used[:-1] + 1 > length
    assert 0.03 < 1 - is_full.mean() < 0.07


def test_every_sentence_end_is_chosen_equally_often(tmp_path: Path) -> None:
    examples = make_examples(make_stream([[2] * 10]), tmp_path, one_segment_rate=0.0)
    assert examples.table.count == 1
    epochs = torch.arange(9_000)
    batch = examples.gather(torch.zeros_like(epochs), example_id=epochs)
    counts = (batch.input_ids == SEP).int().argmax(-1).bincount(minlength=20)
    assert counts[3:20:2].sum() == 9_000
    assert ((counts[3:20:2] - 1000).abs() < 130).all()  # 4 standard deviations of a binomial


def test_swaps_and_single_segments_occur_at_their_rates(tmp_path: Path) -> None:
    stream = make_stream([[3] * 20_000])
    for swap_rate, one_segment_rate in ((0.0, 0.1), (0.5, 0.0), (1.0, 0.0)):
        rates = {"swap_rate": swap_rate, "one_segment_rate": one_segment_rate}
        examples = make_examples(stream, tmp_path, 25, **rates)
        label = all_examples(examples).sentence_order_label
        error = 4 * 0.5 / examples.table.count**0.5
        is_ignored = label == IGNORED_LABEL
        assert abs(float(is_ignored.float().mean()) - one_segment_rate) < error
        assert abs(float(label[~is_ignored].float().mean()) - swap_rate) < error


def test_segment_lengths_do_not_reveal_a_swap(tmp_path: Path) -> None:
    rates = {"swap_rate": 0.5, "one_segment_rate": 0.0}
    batch = all_examples(make_examples(draw_stream(4, 4_000, 9, 40), tmp_path, 40, **rates))
    difference = (batch.attention_mask.sum(1) - 2 * batch.token_type_ids.sum(1)).double()
    groups = [difference[batch.sentence_order_label == label] for label in (0, 1)]
    error = sum(float(group.var()) / len(group) for group in groups) ** 0.5
    assert min(map(len, groups)) > 1_000
    assert abs(float(groups[0].mean() - groups[1].mean())) < 4 * error


def test_an_example_is_the_same_in_any_batch(tmp_path: Path) -> None:
    stream = draw_stream(4, 60, 9, 6)
    examples = make_examples(stream, tmp_path, 24, 4, swap_rate=0.5)
    order = torch.arange(examples.table.count).flip(0)
    alone = [examples.gather(index[None], example_id=index[None]) for index in order]
    for name, field in all_examples(examples)._asdict().items():
        if field is not None:
            assert torch.equal(
                torch.cat([getattr(batch, name) for batch in alone]), field[order]
            ), name


def test_epochs_change_cuts_but_not_tokens_and_dtypes_and_padding_are_as_documented(
    tmp_path: Path,
) -> None:
    examples = make_examples(draw_stream(6, 80, 9, 6), tmp_path, 24, 3, one_segment_rate=0.0)
    first, second = all_examples(examples, 0), all_examples(examples, 1)
    assert tokens_in_order(first) == tokens_in_order(second)
    assert not torch.equal(first.token_type_ids, second.token_type_ids)
    actual = [field.dtype for field in first if field is not None]
    assert actual == [torch.int64, torch.bool, torch.int64, torch.int64, torch.int64]
    share = padding_share(examples.split, examples.table, examples.max_seq_length)
    assert share == pytest.approx(1 - float(first.attention_mask.double().mean()), abs=1e-12)


def test_the_padding_of_many_parts_is_that_of_a_sample(tmp_path: Path) -> None:
    examples = make_examples(draw_stream(6, 80, 9, 6), tmp_path, 24, 3)
    part, edges = examples.split.parts[0], examples.table.edges[0]
    unread = part._replace(sentence_ends=None, document_ends=None)  # would raise
    parts = [part if number % 8 == 0 else unread for number in range(700)]

    def share(some: list[TokenStream]) -> float:
        table = examples.table._replace(edges=[edges] * len(some))
        return padding_share(examples.split._replace(parts=some), table, examples.max_seq_length)

    assert 0 < share([part]) == share(parts)


# Batches: a pure function of the step, independent of ranks, accumulation and resumption.


@pytest.fixture
def examples(tmp_path: Path) -> PackedExamples:
    generator = np.random.default_rng(1)
    sentence_ends = generator.integers(1, 9, 300).cumsum()
    stream = TokenStream(
        np.arange(5, 5 + sentence_ends[-1], dtype=np.uint16), sentence_ends, sentence_ends[3::4]
    )
    return make_examples(stream, tmp_path, 16, 2)


def order_of(examples: PackedExamples, seed: int = SEED) -> ExampleOrder:
    return order_examples([0], examples.table.count, None, seed)


def ids_by_example(batches: list[Batch]) -> dict[int, list[int]]:
    actual = {
        int(n): ids
        for b in batches
        for n, ids in zip(b.example_id, b.input_ids.tolist(), strict=True)
    }
    assert len(actual) == sum(len(batch.example_id) for batch in batches)
    return actual


def fields_equal(first: list[Batch], second: list[Batch]) -> bool:
    pairs = [
        (a, b)
        for x, y in zip(first, second, strict=True)
        for a, b in zip(x, y, strict=True)
        if a is not None
    ]
    return all(b is not None and torch.equal(a, b) for a, b in pairs)


def test_every_epoch_trains_on_every_example_once(examples: PackedExamples) -> None:
    batches, count = (
        TrainBatches(examples, order_of(examples), per_device_train_batch_size=7),
        examples.table.count,
    )
    assert count % 7
    steps = -(-3 * count // 7)
    actual = ids_by_example(
        [batch for step in range(1, steps + 1) for batch in batches.micro_batches(step)]
    )
    assert list(actual) == list(range(7 * steps))
    first_tokens = [min(token for token in ids if token >= 5) for ids in actual.values()]
    expected = (edges_of(examples)[:-1] + 5).tolist()
    epochs = [first_tokens[epoch * count : (epoch + 1) * count] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [expected] * 3
    assert epochs[0] != epochs[1] != expected


def test_a_step_trains_on_the_same_examples_however_it_is_split(examples: PackedExamples) -> None:
    def of_step(step: int, ranks: int, accumulation: int, size: int) -> dict[int, list[int]]:
        batches: list[Batch] = []
        for rank in range(ranks):
            order = order_of(examples)
            part = TrainBatches(examples, order, size, accumulation, rank, ranks)
            batches += part.micro_batches(step)
        return ids_by_example(batches)

    for step in (1, 9):
        for split in ((1, 4, 3), (2, 2, 3), (12, 1, 1)):
            assert of_step(step, *split) == of_step(step, 1, 1, 12), split


def test_resumed_steps_equal_those_of_the_uninterrupted_run(examples: PackedExamples) -> None:
    batches = TrainBatches(examples, order_of(examples), 3, 2)
    straight = list(islice(batches.steps(1), 40))
    for first in (2, 17, 40):  # in the first epoch and in later ones
        resumed = list(islice(batches.steps(first), 41 - first))
        assert all(fields_equal(a, b) for a, b in zip(straight[first - 1 :], resumed, strict=True))
        assert fields_equal(batches.micro_batches(first), straight[first - 1])
    assert not fields_equal(straight[0], straight[1])


def test_a_distant_step_is_computed_directly_and_epochs_are_counted(
    examples: PackedExamples,
) -> None:
    (batch,) = TrainBatches(examples, order_of(examples), 4).micro_batches(10**12)
    assert batch.example_id.tolist() == [4 * (10**12 - 1) + k for k in range(4)]
    batches = TrainBatches(examples, order_of(examples), 4, 3, 1, 2)
    assert (batches.global_batch_size, batches.epoch(0), batches.epoch(examples.table.count)) == (
        24,
        0,
        24,
    )


def test_an_error_in_the_thread_reaches_the_caller_and_the_thread_ends(
    examples: PackedExamples,
) -> None:
    beyond = ExampleTable(
        [edges + len(joined(examples.split).tokens) for edges in examples.table.edges],
        examples.table.firsts,
    )
    broken = PackedExamples(examples.split, beyond, 16, SEED, SPECIAL)
    with pytest.raises(ValueError, match="zero-size"):
        next(TrainBatches(broken, order_of(broken), 4).steps(1))
    running = TrainBatches(examples, order_of(examples), 4).steps(1)
    next(running)
    thread = next(t for t in threading.enumerate() if t.name.startswith("batches"))
    running.close()  # type: ignore[attr-defined]
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_few_evaluation_examples_are_spread_over_the_text(examples: PackedExamples) -> None:
    # Regression: only the beginning of a large text was scored.
    count = examples.table.count
    for share in (3, 7):
        taken = torch.cat([batch.example_id for batch in eval_batches(examples, count // share, 4)])
        gaps = taken.diff(prepend=torch.tensor([-1]), append=torch.tensor([count]))
        assert 0 < int(gaps.min()) <= int(gaps.max()) <= 2 * share


@pytest.mark.parametrize("ranks", [1, 5])
def test_evaluation_scores_each_example_once(examples: PackedExamples, ranks: int) -> None:
    limit = examples.table.count - 3
    borders = [0, 5, 5, 6, 30]
    batches: list[Batch] = []
    for rank in range(ranks):
        batches += eval_batches(examples, limit, 4, rank, ranks, borders)
    assert ids_by_example(batches) == ids_by_example([next(eval_batches(examples, limit, limit))])
    assert all(len(batch.example_id) <= 4 for batch in batches)
    for border in borders:  # no batch mixes two sources
        assert all(len((batch.example_id >= border).unique()) == 1 for batch in batches)
    assert [*eval_batches(examples, 2, 4, rank=2, world_size=3)] == [], "more ranks than examples"


def test_each_part_draws_its_own_short_examples(tmp_path: Path) -> None:
    stream = draw_stream(7, 400, 9, 6)
    split = Split(tmp_path, 1 << 30, [0, 1], [stream, stream], [0, 0])
    assert not np.array_equal(*build_table(split, 24, SEED).edges)
