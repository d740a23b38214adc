"""Text to features and features to batches: stock ids, offsets into the text, the same features for every split."""

from collections import Counter
from itertools import islice
from typing import Any

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
from tests.tasks.small_tokenizers import encoder, kinds, steady, texts, thorough, tokenizer
from tests.tokenization.tokenizer_kinds import FAIRSEQ_SPECIALS, PROSE, STOCK_SPECIALS

# Features of texts.


@steady
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 70))
def test_truncation_equals_popping_from_the_longer_text(first: int, second: int, room: int) -> None:
    found = truncate_pair(first, second, room)
    while first + second > room:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    assert found == (first, second)


@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_features_equal_those_of_the_stock_tokenizer(kind: str) -> None:
    ids = encoder(kind).encode(PROSE[:6])
    pairs = [*zip(ids[:3], ids[3:], strict=True), (ids[0], None)]
    batch = flatten(encoder(kind), pairs, range(4), None).collate(range(4))
    given_texts = [*zip(PROSE[:3], PROSE[3:6], strict=True), (PROSE[0],)]
    wanted = [tokenizer(kind)(*text, return_token_type_ids=True) for text in given_texts]
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        padding = tokenizer(kind).pad_token_id if name == "input_ids" else 0
        for row, one in zip(getattr(batch, name).tolist(), wanted, strict=True):
            assert row == one[name] + [padding] * (len(row) - len(one[name])), name


def test_long_texts_are_encoded_a_few_at_a_time() -> None:
    given_texts, sizes = [*["x" * 400_000] * 7, *["y"] * 5000], list[int]()

    def encode_batch(batch: list[str], **_: object) -> list[str]:
        sizes.append(len("".join(batch)))
        return batch

    assert [*encoder("bert")._in_batches(given_texts, encode_batch)] == given_texts
    assert sizes == [1_200_000, 1_200_000, 400_000 + 2047, 2048, 905]


@thorough
@given(kinds, texts, st.sampled_from(sorted({*STOCK_SPECIALS, *FAIRSEQ_SPECIALS})))
def test_text_gives_no_special_token_and_offsets_in_order_without_spaces(kind: str, text: str, special: str) -> None:
    forbidden = {*tokenizer(kind).all_special_ids} - {tokenizer(kind).unk_token_id}
    given_texts = [text + special, f"{special} {text}{special}", text]
    for one, (ids, *offsets) in zip(given_texts, encoder(kind).encode_with_offsets(given_texts), strict=True):
        assert not forbidden & set(ids.tolist())
        assert ids.tolist() == encoder(kind).encode([one])[0].tolist()
        assert all((np.diff(side) >= 0).all() for side in offsets)
        for _, start, end in zip(ids, *(side.tolist() for side in offsets), strict=True):
            assert 0 <= start <= end <= len(one)
            assert start == end or not one[start].isspace()


@pytest.mark.parametrize("kind", ["albert", "bert", "unigram"])
def test_tokens_are_the_text_at_their_offsets(kind: str) -> None:
    text = "The  old house on\tthe hill, in 1912"
    (subwords,) = encoder(kind).encode_with_offsets([text])
    names = tokenizer(kind).convert_ids_to_tokens(subwords.ids.tolist())
    for name, start, end in zip(names, subwords.starts.tolist(), subwords.ends.tolist(), strict=True):
        bare = name.lstrip("▁").removeprefix("##")
        assert bare in ("", "<unk>", "[UNK]") or bare.lower() == text[start:end].lower()


@pytest.mark.parametrize(
    ("text", "offsets", "wanted"),
    [
        ("a b", [(0, 1), (1, 3)], [(0, 1), (2, 3)]),  # the space before a word
        ("``a''", [(1, 2), (2, 3), (4, 5)], [(0, 2), (2, 3), (3, 5)]),  # two characters normalized to one
        ("e\u0301 b", [(0, 1), (3, 4)], [(0, 2), (3, 4)]),  # an accent removed
        ("a  b", [(0, 1), (2, 2), (3, 4)], [(0, 1), (2, 2), (3, 4)]),  # a bare `▁` covers no character
    ],
)
def test_characters_a_normaliser_drops_belong_to_a_token_of_their_word(text: str, offsets: Any, wanted: Any) -> None:
    assert cover(text, offsets) == wanted


def test_truncation_and_padding_settings_of_the_tokenizer_are_ignored_and_kept() -> None:
    trained = train_tokenizer(PROSE, 120, do_lower_case=True)
    trained.backend_tokenizer.enable_truncation(3)
    trained.backend_tokenizer.enable_padding(length=99)
    settings = trained.backend_tokenizer.to_str()
    assert all(len(ids) > 3 and trained.pad_token_id not in ids for ids in TextEncoder(trained).encode(PROSE[:2]))
    assert trained.backend_tokenizer.to_str() == settings
    assert not trained.backend_tokenizer.encode_special_tokens


@steady
@given(kinds)
def test_the_text_of_a_special_token_is_read_in_subwords_and_not_as_unknown(kind: str) -> None:
    ((ids, starts, ends),) = encoder(kind).encode_with_offsets(["the <pad> house"])
    assert tokenizer(kind).unk_token_id not in ids.tolist()
    inside = (starts >= len("the ")) & (ends <= len("the <pad>")) & (starts < ends)
    assert (ends - starts)[inside].max() <= len("pad")


# Batches.


def make_features(lengths: list[int], num_choices: int = 1) -> EncodedExamples:
    """Sequences of given lengths whose first token is their index plus 100."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.ones(starts[-1], dtype=np.int32)
    ids[starts[:-1]] = np.arange(100, 100 + len(lengths))
    count = len(lengths) // num_choices
    labels = np.arange(count, dtype=np.int64)
    return EncodedExamples(ids, starts, np.array(lengths), np.arange(count), labels, 0, num_choices=num_choices)


def skewed(count: int) -> list[int]:
    return np.random.default_rng(3).lognormal(3, 0.7, count).astype(int).clip(4, 128).tolist()


def split(data: EncodedExamples, ranks: int, accumulation: int, size: int, max_steps: int = 300) -> list[TaskBatches]:
    return [TaskBatches(data, size, accumulation, 5, max_steps, rank, ranks) for rank in range(ranks)]


def per_step(splits: list[TaskBatches], steps: int) -> list[list[int]]:
    """All features of each update over all ranks, sorted."""
    streams = [islice(one.steps(1), steps) for one in splits]
    return [
        sorted(feature for batches in together for batch in batches for feature in batch.example_id.tolist())
        for together in zip(*streams, strict=True)
    ]


def are_equal(one: list[Batch], other: list[Batch]) -> bool:
    pairs = [(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)


def padding_share(batches: list[Batch]) -> float:
    masks = [batch.attention_mask for batch in batches]
    return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)


@pytest.mark.parametrize(("ranks", "accumulation", "size"), [(1, 4, 3), (2, 2, 3), (4, 3, 1)])
def test_an_update_takes_the_same_features_for_every_split(ranks: int, accumulation: int, size: int) -> None:
    features = make_features(skewed(101))
    assert per_step(split(features, ranks, accumulation, size), 40) == per_step(split(features, 1, 1, 12), 40)


@pytest.mark.parametrize("first_step", [2, 64, 65, 130])
def test_batches_are_the_same_from_any_step(first_step: int) -> None:
    (one,) = split(make_features(skewed(700)), 1, 2, 4, max_steps=66)
    from_start = list(islice(one.steps(1), first_step + 2))[first_step - 1 :]
    assert all(are_equal(*pair) for pair in zip(from_start, one.steps(first_step), strict=False))


@pytest.mark.parametrize("count", [5, 60, 97, 2000])
def test_a_run_takes_every_feature_once_per_epoch(count: int) -> None:
    size, max_steps = 10, 97
    steps = per_step(split(make_features(skewed(count)), 1, 1, size, max_steps), max_steps)
    assert count < 2 * size or all(len(set(step)) == size for step in steps)
    drawn = Counter(feature for step in steps for feature in step)
    epochs, rest = divmod(size * max_steps, count)
    assert Counter(drawn[feature] for feature in range(count)) == +Counter({epochs: count - rest, epochs + 1: rest})


def test_each_epoch_takes_all_features_in_its_own_order() -> None:
    features = make_features(skewed(640))
    seen = [feature for step in per_step(split(features, 1, 1, 2, max_steps=1000), 640) for feature in step]
    assert sorted(seen[:640]) == sorted(seen[640:]) == list(range(640))
    assert set(seen[:128]) != set(seen[640:768])  # features that are sorted together
    assert set(seen[:128]) != set(range(128))


def test_padding_is_far_below_that_of_unsorted_batches() -> None:
    features = make_features(skewed(6000))
    sorted_batches = [batch for (batch,) in islice(split(features, 1, 1, 32)[0].steps(1), 180)]
    order = np.random.default_rng(0).permutation(6000)[: 180 * 32]
    unsorted = [features.collate(chosen) for chosen in order.reshape(180, 32)]
    assert padding_share(sorted_batches) < 0.08 < 0.4 < padding_share(unsorted)


def test_padding_to_a_multiple_adds_no_token_and_stays_within_the_longest_sequence() -> None:
    features = make_features([4, 31, 32, 33, 65, 70])
    padded = [features.collate([index], multiple=32) for index in range(6)]
    assert [batch.input_ids.shape[1] for batch in padded] == [32, 32, 32, 64, 70, 70]
    assert [int(batch.attention_mask.sum()) for batch in padded] == [4, 31, 32, 33, 65, 70]
    assert not any(batch.input_ids[~batch.attention_mask].any() for batch in padded)


def test_ranks_take_turns_at_the_longest_sequences() -> None:
    streams = [one.steps(1) for one in split(make_features(list(range(4, 304))), 4, 1, 2)]
    tokens = [[int(batch.attention_mask.sum()) for stream in streams for batch in next(stream)] for _ in range(200)]
    assert np.bincount(np.array(tokens).argmax(axis=1), minlength=4).min() > 25  # 50 expected, standard deviation 6


@pytest.mark.parametrize(("count", "size", "ranks"), [(23, 4, 1), (23, 4, 3), (2, 4, 3), (0, 4, 2), (24, 4, 2)])
def test_evaluation_takes_every_feature_once_over_all_ranks(count: int, size: int, ranks: int) -> None:
    features = make_features(skewed(2 * count), num_choices=2)
    batches = [batch for rank in range(ranks) for batch in eval_batches(features, size, rank, ranks)]
    seen = [feature for batch in batches for feature in batch.example_id[::2].tolist()]
    assert sorted(seen) == list(range(count))
    assert all(len(batch.input_ids) <= 2 * size for batch in batches)
    widths = [batch.input_ids.shape[1] for batch in eval_batches(features, size)]
    assert widths == sorted(widths, reverse=True)
