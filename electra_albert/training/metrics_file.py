"""metrics.jsonl of a run: read back, and cut where a run goes on from an earlier step."""

from __future__ import annotations

import json
from pathlib import Path

from electra_albert.contracts import Metrics

CLOCK = ("elapsed_seconds", "time")  # the keys of a row that say when it was written


def read_metrics(path: Path) -> list[Metrics]:
    """The rows of a metrics file in order, none where there is no file; what was torn is passed over."""
    return [row for row, _ in _rows(path)]


def cut_metrics(path: Path, step: int, *, is_evaluated: bool) -> None:
    """Cut a metrics file back to `step`, written beside and renamed; torn lines go.

    Evaluation rows of `step` itself stay only where they are not about to be made again: is_evaluated.
    """
    if not path.exists():
        return
    kept = []
    for row, line in _rows(path):
        is_evaluation = any(key.startswith("eval_") for key in row)
        if row["step"] < step or (row["step"] == step and (is_evaluated or not is_evaluation)):
            kept.append(line + "\n")
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_text("".join(kept), encoding="utf-8")
    beside.replace(path)


def _rows(path: Path) -> list[tuple[Metrics, str]]:
    """Each whole row, and the line it stands on."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            found.append((row, line))
    return found
