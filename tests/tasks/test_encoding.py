"""Text to features to batches: stock ids, offsets, the same features for every split."""

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from electra_albert.contracts import Batch
from electra_albert.corpus.tokenizer_training import train_tokenizer
from electra_albert.tasks.encoding import EncodedExamples, TaskBatches, eval_batches, flatten
from electra_albert.tasks.sequence import truncate_pair
from electra_albert.tokenization.text_encoder import TextEncoder, cover
from tests.refusals import rows
from tests.tasks.small_tokenizers import encoder, kinds, steady, texts, thorough, tokenizer
from tests.tokenization.tokenizer_kinds import FAIRSEQ_SPECIALS, PROSE, STOCK_SPECIALS

# Features of texts.


@steady
@given(st.tuples(st.integers(0, 60), st.integers(0, 60)), st.integers(0, 70))
def test_truncation_equals_popping_from_the_longer_text(
    lengths: tuple[int, int], room: int
) -> None:
    remaining = [*lengths]
    while sum(remaining) > room:
        remaining[remaining[0] <= remaining[1]] -= 1
    assert truncate_pair(*lengths, room) == tuple(remaining)


@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_features_equal_those_of_the_stock_tokenizer(kind: str) -> None:
    ids = encoder(kind).encode(PROSE[:3])
    pairs = [(ids[0], ids[1]), (ids[2], None)]
    batch = flatten(encoder(kind), pairs, range(2), None).collate([0, 1])
    options = {"return_token_type_ids": True, "padding": "max_length"}
    options["max_length"] = batch.input_ids.shape[1]
    for number, sentences in enumerate((PROSE[:2], PROSE[2:3])):
        for name, row in tokenizer(kind)(*sentences, **options).items():
            assert getattr(batch, name)[number].tolist() == row, name


def test_long_texts_are_encoded_a_few_at_a_time() -> None:
    sizes: list[int] = []

    def encode_batch(batch: list[str], **_: object) -> list[str]:
        sizes.append(sum(map(len, batch)))
        return batch

    long_texts = [*["x" * 400_000] * 7, *["y"] * 5000]
    assert [*encoder("bert")._in_batches(long_texts, encode_batch)] == long_texts
    assert sizes == [1_200_000, 1_200_000, 400_000 + 2047, 2048, 905]


@thorough
@given(kinds, texts, st.sampled_from(sorted({*STOCK_SPECIALS, *FAIRSEQ_SPECIALS})))
def test_text_gives_no_special_token_and_offsets_in_order_without_spaces(
    kind: str, text: str, special: str
) -> None:
    forbidden = {*tokenizer(kind).all_special_ids} - {tokenizer(kind).unk_token_id}
    several = [text + special, f"{special} {text}{special}", text]
    for content, subwords in zip(several, encoder(kind).encode_with_offsets(several), strict=True):
        ids, starts, ends = (array.tolist() for array in subwords)
        assert forbidden.isdisjoint(ids)
        assert ids == encoder(kind).encode([content])[0].tolist()
        assert starts == sorted(starts)
        assert ends == sorted(ends)
        for start, end in zip(starts, ends, strict=True):
            assert 0 <= start <= end <= len(content)
            assert not content[start:end][:1].isspace()


# A text, the offsets of its tokens, and those with the characters that a normalizer drops: the
# space before a word, two normalized to one, an accent removed, also at the end, and a bare `▁`.
COVERED = """
a b         | 01 13    | 01 23
``a''       | 12 23 45 | 02 23 35
e\u0301 b   | 01 34    | 02 34
ae\u0301    | 02       | 03
a  b        | 01 22 34 | 01 22 34
"""


@pytest.mark.parametrize(("text", "offsets", "expected"), rows(COVERED))
def test_characters_a_normaliser_drops_belong_to_a_token_of_their_word(
    text: str, offsets: str, expected: str
) -> None:
    spans = cover(text, [(int(start), int(end)) for start, end in offsets.split()])
    assert " ".join(f"{start}{end}" for start, end in spans) == expected


def test_truncation_and_padding_settings_of_the_tokenizer_are_ignored_and_kept() -> None:
    trained = train_tokenizer(PROSE, 120, do_lower_case=True)
    (whole,) = TextEncoder(trained).encode(PROSE[:1])
    backend = trained.backend_tokenizer
    backend.enable_truncation(3)
    backend.enable_padding(length=99)
    settings = backend.to_str()
    assert np.array_equal(*TextEncoder(trained).encode(PROSE[:1]), whole)
    assert backend.to_str() == settings


@steady
@given(kinds)
def test_the_text_of_a_special_token_is_read_in_subwords(kind: str) -> None:
    ((ids, starts, ends),) = encoder(kind).encode_with_offsets(["the <pad> house"])
    assert tokenizer(kind).unk_token_id not in ids
    inside = (starts >= 4) & (ends <= 9)
    assert (ends - starts)[inside].max() <= len("pad")


# Batches.


def make_features(lengths: list[int], num_choices: int = 1) -> EncodedExamples:
    """Sequences of given lengths whose first token is their index plus 100."""
    starts = np.cumsum([0, *lengths])
    ids = np.ones(starts[-1], dtype=np.int32)
    ids[starts[:-1]] = 100 + np.arange(len(lengths))
    index = np.arange(len(lengths) // num_choices)
    return EncodedExamples(ids, starts, np.array(lengths), index, index, 0, num_choices=num_choices)


def skewed(count: int) -> list[int]:
    return np.random.default_rng(3).lognormal(3, 0.7, count).astype(int).clip(4, 128).tolist()


def split(
    data: EncodedExamples, ranks: int, accumulation: int, size: int, max_steps: int = 300
) -> list[TaskBatches]:
    return [
        TaskBatches(data, size, accumulation, 5, max_steps, rank, ranks) for rank in range(ranks)
    ]


def per_step(splits: list[TaskBatches], steps: int) -> list[list[int]]:
    """All features of each update over all ranks, sorted."""
    features: list[list[int]] = []
    for batches in islice(zip(*(part.steps(1) for part in splits), strict=True), steps):
        features.append(sorted(chain(*(batch.example_id.tolist() for batch in chain(*batches)))))
    return features


def padding_share(batches: list[Batch]) -> float:
    masks = torch.cat([batch.attention_mask.flatten() for batch in batches])
    return 1 - float(masks.double().mean())


@pytest.mark.parametrize(("ranks", "accumulation", "size"), [(2, 2, 3), (4, 3, 1)])
def test_an_update_takes_the_same_features_for_every_split(
    ranks: int, accumulation: int, size: int
) -> None:
    features = make_features(skewed(101))
    actual = per_step(split(features, ranks, accumulation, size), 40)
    assert actual == per_step(split(features, 1, 1, 12), 40)


@pytest.mark.parametrize("first_step", [64, 65, 130])
def test_batches_are_the_same_from_any_step(first_step: int) -> None:
    (batches,) = split(make_features(skewed(700)), 1, 2, 4, max_steps=66)
    straight = islice(batches.steps(1), first_step - 1, first_step + 2)
    for ours, resumed in zip(straight, batches.steps(first_step), strict=False):
        assert all(map(torch.equal, chain(*ours), chain(*resumed)))


@pytest.mark.parametrize("count", [5, 97, 640])
def test_a_run_takes_every_feature_once_per_epoch(count: int) -> None:
    steps = per_step(split(make_features(skewed(count)), 1, 1, 10, max_steps=97), 97)
    assert count < 20 or all(len(set(step)) == 10 for step in steps)
    epochs, rest = divmod(970, count)
    times = Counter(Counter(chain(*steps)).values())
    assert times == +Counter({epochs: count - rest, epochs + 1: rest})
    first, again = ([*chain(*part)][:40] for part in (steps, steps[count // 10 :]))
    assert set(first) != set(again) or count < 60, "each epoch has its own order"


def test_padding_is_far_below_that_of_unsorted_batches() -> None:
    features = make_features(skewed(3000))
    in_order = [batch for (batch,) in islice(split(features, 1, 1, 32)[0].steps(1), 90)]
    order = np.random.default_rng(0).permutation(90 * 32).reshape(90, 32)
    assert padding_share(in_order) < 0.1 < 0.4 < padding_share([*map(features.collate, order)])


def test_padding_to_a_multiple_stays_within_the_longest_sequence() -> None:
    lengths = [4, 31, 32, 33, 65, 70]
    features = make_features(lengths)
    padded = [features.collate([index], multiple=32) for index in range(6)]
    assert [len(batch.input_ids[0]) for batch in padded] == [32, 32, 32, 64, 70, 70]
    assert [batch.attention_mask.sum() for batch in padded] == lengths
    assert not any(batch.input_ids[~batch.attention_mask].any() for batch in padded)


def test_ranks_take_turns_at_the_longest_sequences() -> None:
    ranks = split(make_features([*range(4, 304)]), 4, 1, 2)
    longest: Counter[int] = Counter()
    for batches in islice(zip(*(rank.steps(1) for rank in ranks), strict=True), 100):
        tokens = [int(batch.attention_mask.sum()) for (batch,) in batches]
        longest[tokens.index(max(tokens))] += 1
    # 25 expected, standard deviation 4.3
    assert min(longest[rank] for rank in range(4)) > 10


@pytest.mark.parametrize(("count", "ranks"), [(23, 3), (2, 3), (0, 2)])
def test_evaluation_takes_every_feature_once_over_all_ranks(count: int, ranks: int) -> None:
    features = make_features(skewed(2 * count), num_choices=2)
    batches = [batch for rank in range(ranks) for batch in eval_batches(features, 4, rank, ranks)]
    numbers = chain(*(batch.example_id[::2].tolist() for batch in batches))
    assert sorted(numbers) == [*range(count)]
    assert all(len(batch.input_ids) <= 8 for batch in batches)
    widths = [batch.input_ids.shape[1] for batch in eval_batches(features, 4)]
    assert widths == sorted(widths, reverse=True)
