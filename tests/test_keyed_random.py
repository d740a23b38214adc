"""Draws are a pure function of their keys and uniform; the shuffle is a bijection (law 3)."""

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from electra_albert.keyed_random import Stream, bits, derived_seed, gumbel, permute, uniform

WORD = (1 << 64) - 1
EXAMPLES, POSITIONS = torch.arange(100, 137)[:, None], torch.arange(41)
ACCEPTED = 1e-3  # least p-value; seeds are fixed, so the result is the same in every run


def splitmix(state: int, word: int) -> int:
    """One round of the SplitMix64 finaliser in unsigned arithmetic, as published."""
    x = ((state ^ word) * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & WORD
    return x ^ x >> 31


def plain_bits(seed: int, stream: int, example: int, position: int) -> int:
    """Reference for `bits` on Python integers."""
    key = splitmix(splitmix(0, seed & WORD), stream)
    return splitmix(splitmix((example & WORD) ^ key, 0), position & WORD) & (WORD >> 1)


def assert_uniform(values: Tensor) -> None:
    """Assert that float values are uniform on (0, 1) (Kolmogorov-Smirnov test)."""
    assert stats.kstest(values.flatten().double().numpy(), "uniform").pvalue > ACCEPTED


@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from(Stream),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**63 - 1),
)
def test_bits_equal_a_reference_on_python_integers(
    seed: int, stream: Stream, example: int, position: int
) -> None:
    found = bits(seed, stream, torch.tensor(example), torch.tensor(position))
    assert int(found) == plain_bits(seed, stream, example, position)


def test_draws_never_change_between_versions() -> None:
    # A run resumed with a later version must see the same batches, masks and samples.
    found = bits(42, Stream.MASK, torch.tensor([0, 1, 2**40]), torch.tensor([0, 7, 511]))
    assert found.tolist() == [2958759570485810719, 360955567855889891, 6781799907984919253]
    assert permute(torch.arange(7), 7, 42, torch.tensor(1)).tolist() == [2, 5, 0, 1, 6, 3, 4]
    assert derived_seed(42, Stream.DROPOUT, 3, 1, 0) == 2163043209692985287
    numbers = [str(int(stream)) for _, stream in sorted(Stream.__members__.items())]
    assert " ".join(numbers) == "17 13 14 11 8 6 7 3 1 15 20 22 9 10 4 2 16 5 19 18 12 21"


def drawn_once(keys: Iterable[tuple[int, Stream]]) -> bool:
    """Whether all draws of 200 examples x 200 positions with these keys are different."""
    numbers = torch.arange(200)
    values = torch.stack(
        [bits(seed, stream, numbers[:, None], numbers) for seed, stream in keys]
    ).flatten()
    # One collision among a million draws of 63 bits has a probability of 1 in 18 million.
    return values.unique().numel() == values.numel()


def test_seeds_streams_examples_and_positions_share_no_draw() -> None:
    # By name: iteration would omit an alias, a second name for a number.
    assert drawn_once((seed, stream) for seed in (42, 43) for stream in Stream.__members__.values())
    assert drawn_once((seed, Stream.MASK) for seed in (0, 1, 2, 3, 42, 2**62))
    assert derived_seed(42, Stream.DROPOUT, 3, 1) != derived_seed(42, Stream.DROPOUT, 1, 3)


def test_draws_of_every_stream_are_uniform() -> None:
    numbers = torch.arange(150)
    for stream in Stream:
        assert_uniform(uniform(bits(11, stream, numbers[:, None], numbers)))
    # Planted: 31 of the 63 bits scaled as if they were all, and a power.
    drawn = bits(11, Stream.MASK, numbers[:, None], numbers)
    for wrong in (uniform(drawn) ** 1.05, uniform(drawn >> 1)):
        with pytest.raises(AssertionError):
            assert_uniform(wrong)


def test_gumbel_noise_is_finite_at_both_ends_and_follows_its_law() -> None:
    ends = torch.tensor([0, 1, 2**62, 2**63 - 2, 2**63 - 1])
    assert torch.isfinite(gumbel(ends)).all()
    assert ((uniform(ends) > 0) & (uniform(ends) < 1)).all()
    drawn = gumbel(bits(5, Stream.SAMPLE_TOKEN, torch.arange(200)[:, None], torch.arange(200)))
    assert stats.kstest(drawn.flatten().double().numpy(), "gumbel_r").pvalue > ACCEPTED


def test_permute_is_a_bijection_that_is_computed_for_each_index_alone() -> None:
    for size in (*range(1, 40), 63, 64, 65, 255, 256, 257, 1000, 4097):
        index = torch.arange(size)
        shuffled = permute(index, size, 9, torch.arange(3)[:, None])  # [3, size]
        assert torch.equal(shuffled.sort(-1).values, index.expand(3, -1))
        assert int(permute(index[-1], size, 9, torch.tensor(2))) == int(shuffled[2, -1])


def test_permute_is_uniform_over_epochs() -> None:
    epochs, size = 4000, 16
    # [epochs] each.
    for found in permute(torch.arange(size), size, 1, torch.arange(epochs)[:, None]).T:
        assert stats.chisquare(torch.bincount(found, minlength=size).numpy()).pvalue > ACCEPTED / 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_draws_are_the_same_on_a_gpu() -> None:
    found = bits(7, Stream.MASK, EXAMPLES.cuda(), POSITIONS.cuda()).cpu()
    assert torch.equal(found, bits(7, Stream.MASK, EXAMPLES, POSITIONS))
