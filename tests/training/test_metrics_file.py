"""metrics.jsonl with what a crash or a full disk may leave in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from electra_albert.training.metrics_file import cut_metrics, read_metrics

ROWS = [
    '{"step": 1, "loss": 2.0}',
    '{"step": 2, "loss": 1.5}',
    '{"step": 2, "eval_loss": 1.4}',
    '{"step": 3, "loss": 1}',
]


@pytest.mark.parametrize(
    "torn", ['{"step": 2, "lo', '{"step": 2, "lo{"step": 3, "loss": 1.0}', "[1, 2]", "7", "null", "\x00"]
)
def test_torn_lines_are_passed_over(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([ROWS[0], torn, *ROWS[1:]]) + "\n")
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 2, 3]
    cut_metrics(path, 2, is_evaluated=True)
    assert path.read_text().splitlines() == ROWS[:3]
    cut_metrics(path, 2, is_evaluated=False)
    assert path.read_text().splitlines() == ROWS[:2]


def test_a_file_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []
