"""Packed examples hold every token once, in a documented layout that no batch changes."""

import threading
from functools import partial
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
from electra_albert.corpus.mixture import order_examples
from electra_albert.corpus.rows import Split, TokenStream, build_table, inside, padding_share
from tests.corpus.reading import joined

PAD = 3  # unlike ALBERT's, which no code may assume
CLS = 1
SEP = 4
SPECIAL = SpecialIds(pad=PAD, unk=None, cls=CLS, sep=SEP, mask=2, never_masked=())
SEED = 11


def make_stream(documents: list[list[int]]) -> TokenStream:
    """Documents given as sentence lengths; an id shows its position: token i has the id 5 + i."""
    lengths = [length for sentences in documents for length in sentences]
    tokens = np.arange(5, 5 + sum(lengths), dtype=np.uint32)
    return TokenStream(tokens, np.cumsum(lengths), np.cumsum([*map(sum, documents)]))


def draw_stream(
    seed: int, documents: int, longest_sentence: int, most_sentences: int
) -> TokenStream:
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, most_sentences + 1, documents)
    draw = partial(generator.integers, 1, longest_sentence + 1)
    return make_stream([draw(count).tolist() for count in counts])


def cut_in_parts(stream: TokenStream, count: int) -> list[TokenStream]:
    """At most `count` parts of a stream, cut where documents end."""
    step = -(-len(stream.document_ends) // count)
    borders = [*stream.document_ends[::-step][::-1].tolist()]
    parts = []
    for start, end in pairwise([0, *borders]):
        ends = (each[(each > start) & (each <= end)] - start for each in stream[1:])
        parts.append(TokenStream(stream.tokens[start:end], *ends))
    return parts


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


def edges_of(examples: PackedExamples) -> list[int]:
    """Where all examples start and end, in tokens from the start of the first part."""
    edges = [0]
    for part in examples.table.edges:
        edges += (part[1:] + edges[-1]).tolist()
    return edges


class Layout(NamedTuple):
    ids: list[int]
    types: list[int]
    label: int


def plain_layouts(examples: PackedExamples, number: int) -> list[Layout]:
    """Every allowed layout of an example, by plain enumeration."""
    stream = joined(examples.split)
    start, end = edges_of(examples)[number : number + 2]
    tokens = stream.tokens[start:end].tolist()
    borders = [edge - start for edge in stream.document_ends.tolist() if start < edge < end]
    inside = [edge - start for edge in stream.sentence_ends.tolist() if start < edge < end]
    if borders:
        first, *others = (tokens[a:b] for a, b in pairwise([0, *borders, len(tokens)]))
        rest = [token for segment in others for token in [*segment, SEP]]
        return [two_segments(first, rest[:-1], IGNORED_LABEL)]
    swappable = inside[1:-1] if examples.swap_rate else []
    layouts = []
    for cut in inside:
        label = 0 if cut in swappable or not examples.swap_rate else IGNORED_LABEL
        layouts.append(two_segments(tokens[:cut], tokens[cut:], label))
    for cut in swappable:
        edges = [0, inside[0], cut, inside[-1], len(tokens)]
        head, first, second, tail = (tokens[a:b] for a, b in pairwise(edges))
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
    stream = make_stream(documents)
    folder = tmp_path_factory.mktemp("examples")
    for rates in ({"one_segment_rate": 0.2}, {"swap_rate": 0.5, "one_segment_rate": 0.0}):
        examples = make_examples(stream, folder, length, count, **rates)
        batch = all_examples(examples)
        assert batch.input_ids.shape == (examples.table.count, length)
        tokens = tokens_in_order(batch)
        assert (sorted(tokens) if examples.swap_rate else tokens) == stream.tokens.tolist()
        for number in range(examples.table.count):
            assert laid_out(batch, number) in plain_layouts(examples, number)


def test_examples_hold_as_many_tokens_as_fit(tmp_path: Path) -> None:
    stream = draw_stream(2, 3_000, 12, 5)
    examples = make_examples(stream, tmp_path)
    edges = examples.table.edges[0]
    length = examples.max_seq_length
    borders = inside(stream.document_ends, edges[:-1], edges[1:] + 1)[1]
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


def test_epochs_change_cuts_but_not_tokens_and_dtypes_and_padding_are_as_documented(
    tmp_path: Path,
) -> None:
    examples = make_examples(draw_stream(6, 80, 9, 6), tmp_path, 24, 3, one_segment_rate=0.0)
    first = all_examples(examples, 0)
    second = all_examples(examples, 1)
    assert tokens_in_order(first) == tokens_in_order(second)
    assert not torch.equal(first.token_type_ids, second.token_type_ids)
    actual = [field.dtype for field in first if field is not None]
    assert actual == [torch.int64, torch.bool, torch.int64, torch.int64, torch.int64]
    share = padding_share(examples.split, examples.table, examples.max_seq_length)
    assert share == pytest.approx(1 - float(first.attention_mask.double().mean()), abs=1e-12)


# Batches: a pure function of the step, independent of ranks, accumulation and resumption.


@pytest.fixture
def examples(tmp_path: Path) -> PackedExamples:
    return make_examples(draw_stream(1, 75, 8, 7), tmp_path, 16, 2)


def train_batches(examples: PackedExamples, *sizes: int) -> TrainBatches:
    return TrainBatches(examples, order_examples([0], examples.table.count, None, SEED), *sizes)


def ids_by_example(batches: list[Batch]) -> dict[int, list[int]]:
    ids = torch.cat([batch.example_id for batch in batches]).tolist()
    assert len({*ids}) == len(ids)
    return dict(zip(ids, torch.cat([batch.input_ids for batch in batches]).tolist(), strict=True))


def test_every_epoch_trains_on_every_example_once(examples: PackedExamples) -> None:
    batches = train_batches(examples, 7)
    count = examples.table.count
    assert count % 7
    steps = -(-3 * count // 7)
    trained = ids_by_example([batches.micro_batches(step)[0] for step in range(1, steps + 1)])
    assert list(trained) == list(range(7 * steps))
    first_tokens = [min(token for token in ids if token >= 5) for ids in trained.values()]
    expected = [edge + 5 for edge in edges_of(examples)[:-1]]
    epochs = [first_tokens[epoch * count : (epoch + 1) * count] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [expected] * 3
    assert epochs[0] != epochs[1] != expected


def test_a_step_trains_on_the_same_examples_however_it_is_split(examples: PackedExamples) -> None:
    def of_step(step: int, ranks: int, accumulation: int, size: int) -> dict[int, list[int]]:
        batches = []
        for rank in range(ranks):
            part = train_batches(examples, size, accumulation, rank, ranks)
            batches += part.micro_batches(step)
        return ids_by_example(batches)

    for step in (1, 9):
        for split in ((2, 2, 3), (12, 1, 1)):
            assert of_step(step, *split) == of_step(step, 1, 1, 12), split


def test_resumed_steps_equal_those_of_the_uninterrupted_run(examples: PackedExamples) -> None:
    batches = train_batches(examples, 3, 2)
    straight = list(map(ids_by_example, islice(batches.steps(1), 40)))
    for first in (2, 40):  # in the first epoch and in a later one
        resumed = map(ids_by_example, islice(batches.steps(first), 41 - first))
        assert list(resumed) == straight[first - 1 :]
        assert ids_by_example(batches.micro_batches(first)) == straight[first - 1]


def test_an_error_in_the_thread_reaches_the_caller_and_the_thread_ends(
    examples: PackedExamples,
) -> None:
    count = examples.table.count
    beyond = order_examples([0], 2 * count, None, SEED)
    with pytest.raises(IndexError):
        [*islice(TrainBatches(examples, beyond, count).steps(1), 2)]
    running = train_batches(examples, 4).steps(1)
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
    batches = []
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
