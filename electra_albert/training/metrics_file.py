"""metrics.jsonl of a run that goes on from an earlier step."""

from __future__ import annotations

import json
from pathlib import Path


def cut_metrics(path: Path, step: int, *, is_evaluated: bool) -> None:
    """Cut a metrics file back to `step`, written beside and renamed; a torn last line goes.

    Evaluation rows of `step` itself stay only where they are not about to be made again: is_evaluated.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # torn by a crash
            continue
        is_evaluation = any(key.startswith("eval_") for key in row)
        if row["step"] < step or (row["step"] == step and (is_evaluated or not is_evaluation)):
            kept.append(line + "\n")
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_text("".join(kept), encoding="utf-8")
    beside.replace(path)
