"""What is reached of the roofs, by hand: shares, what binds, how busy a GPU is, and how many rows it is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from electra_albert.apps.bench import roofs
from electra_albert.apps.bench.config import BenchConfig, length_of, rows_of
from electra_albert.apps.bench.roofs import Work, binding, covered, roof_shares
from electra_albert.apps.bench.timing import shown_seconds

CPU = torch.device("cpu")
WORK = Work(flops=6e9, traffic=4_000_000_000, seconds=2.0)


@pytest.fixture
def _known_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofs, "matrix_rate", lambda device, arithmetic: {"fp32": 6e9, "bf16": 1.2e10}[arithmetic])
    monkeypatch.setattr(roofs, "copy_bandwidth", lambda device: 8e9)


@pytest.mark.usefixtures("_known_roofs")
def test_shares_are_what_is_done_a_second_over_what_the_machine_can() -> None:
    found = roof_shares(WORK, CPU, "fp32")
    assert (found["flops_per_second"], found["share_of_matrix_rate"]) == (3e9, 0.5)
    assert (found["bytes_per_second"], found["share_of_bandwidth"]) == (2e9, 0.25)
    assert (found["busy_share"], found["is_traffic_at_most"]) == (None, False)
    assert roof_shares(WORK, CPU, "bf16")["share_of_matrix_rate"] == 0.25


@pytest.mark.usefixtures("_known_roofs")
def test_busy_share_is_that_of_the_time_and_at_most_all_of_it() -> None:
    shares = [roof_shares(WORK._replace(busy_seconds=busy), CPU, "fp32")["busy_share"] for busy in (0.5, 3.0)]
    assert shares == [0.25, 1.0]


@pytest.mark.usefixtures("_known_roofs")
def test_traffic_of_compiled_code_is_marked_as_a_bound_and_unknown_traffic_is_none() -> None:
    assert roof_shares(WORK._replace(is_fused=True), CPU, "fp32")["is_traffic_at_most"]
    unknown = roof_shares(WORK._replace(traffic=None), CPU, "fp32")
    assert (unknown["bytes_per_second"], unknown["share_of_bandwidth"], unknown["binds"]) == (None, None, None)


BINDING: dict[str, tuple[float, float | None, float | None, str | None]] = {
    "products": (0.5, 0.4, None, "matrix products"),
    "memory": (0.2, 0.4, None, "memory"),
    "neither": (0.2, 0.1, None, "neither (launch and host)"),
    "not known": (0.5, None, None, None),
    "products of a busy GPU": (0.5, 0.4, 0.9, "matrix products"),
    "a GPU that waits": (0.5, 0.4, 0.6, "launch and host"),
}


@pytest.mark.parametrize(("matrix", "bandwidth", "busy", "wanted"), BINDING.values(), ids=BINDING.keys())
def test_what_binds_is_the_nearer_roof_if_one_is_near(
    matrix: float, bandwidth: float | None, busy: float | None, wanted: str | None
) -> None:
    record: dict[str, Any] = {"share_of_matrix_rate": matrix, "share_of_bandwidth": bandwidth, "busy_share": busy}
    assert binding(record) == wanted


def test_time_that_kernels_cover_counts_once_where_they_run_side_by_side() -> None:
    assert covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0
    assert covered([]) == 0.0


ROWS: dict[str, tuple[dict[str, Any], str, int, tuple[int, ...]]] = {
    "processor": ({}, "cpu", 128, (32,)),
    "GPU, short rows": ({}, "cuda", 128, (128, 512, 1024)),
    "GPU, long rows": ({}, "cuda", 512, (32, 64)),
    "asked for": ({"per_device_train_batch_size": "8,4"}, "cuda", 128, (8, 4)),
}


@pytest.mark.parametrize(("changes", "device", "length", "wanted"), ROWS.values(), ids=ROWS.keys())
def test_rows_of_a_step_suit_device_and_length_unless_asked_for(
    changes: dict[str, Any], device: str, length: int, wanted: tuple[int, ...]
) -> None:
    assert rows_of(BenchConfig(**changes), device, length) == wanted


def test_rows_are_as_long_as_the_preset_has_them_unless_asked_for() -> None:
    assert [length_of(BenchConfig(preset="small,base"), name) for name in (None, "small", "base")] == [128, 128, 512]
    assert length_of(BenchConfig(max_seq_length=64), "base") == 64


def test_short_times_are_shown_with_four_digits() -> None:
    assert [shown_seconds(seconds) for seconds in (12.3, 0.5, 0.00123449)] == ["12.3000", "0.5000", "0.001234"]
