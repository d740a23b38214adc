"""How store building grows with the number of processes: what is told of it, and when nothing can be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from electra_albert.apps.bench.store import format_store, measure_store, no_scaling, scaling_record
from tests.apps.tiny_bench import bench_config


@pytest.mark.parametrize(
    ("units", "processes", "reason"),
    [(3, 1, "one core only"), (3, 4, "units of text: 3, processes: 4"), (4, 4, None), (9, 4, None)],
)
def test_scaling_needs_several_cores_and_a_unit_for_each(units: int, processes: int, reason: str | None) -> None:
    found = no_scaling(units, processes)
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)


def test_efficiency_is_the_rate_of_all_over_that_of_one_times_their_number() -> None:
    record = scaling_record([(2.0, 6.0), (2.0, 7.0), (1.0, 4.0)], unit_count=9, processes=4, reason=None)
    assert record["efficiency"] == {"median": 0.875, "lowest": 0.75, "highest": 1.0}
    assert record["possible"] == 0.75  # 9 equal units on 4 processes take the time of 3
    assert record["one"]["median"] == 2.0
    assert record["all"]["median"] == 6.0


def test_small_text_is_built_but_tells_nothing_of_scaling(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("\n\n".join(f"The river runs by house {number}.\nIt is old." for number in range(50)) + "\n")
    (record,) = measure_store(bench_config(file, repeats=1))
    processes = len(os.sched_getaffinity(0))
    assert record["scaling"] == {"processes": processes, "units": 1, "reason": no_scaling(1, processes)}
    assert record["megabytes"] == file.stat().st_size / 1e6
    table = format_store([record])
    assert "near-linear in cores" in table
    assert f"-  ({record['scaling']['reason']})" in table


def test_table_shows_rates_and_efficiency() -> None:
    scaling = scaling_record([(2.0, 7.0)], unit_count=9, processes=4, reason=None)
    rate = {"median": 2.0, "lowest": 2.0, "highest": 2.0}
    record = {"kind": "sentences", "megabytes": 1.0, "megabytes_per_second_and_core": rate, "target": 3.0}
    table = format_store([{**record, "scaling": scaling}])
    assert "2.00 MB/s by 1, 7.00 by 4: 88% (88% to 88%) of linear; 9 equal units would allow 75%" in table
