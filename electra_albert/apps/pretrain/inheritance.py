"""Options that a run takes over from the run, or the stock folder, whose weights it begins with (--init_from)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from electra_albert.apps.pretrain.stock_origin import is_stock, stock_options
from electra_albert.apps.run_folder import shape_options


def inherited_options(run: Path, output_dir: Path) -> dict[str, Any]:
    """What a run in `output_dir` that begins with the weights of `run` takes over: preset, objective, shape, tokenizer.

    Of a stock folder, what its config.json says. Once the new run has a checkpoint they stand in that, and `run` need
    not be there. Raises UsageError where `run` is neither, CheckpointError where it holds no model that can be read.
    """
    recorded = _recorded_inheritance(run, output_dir)
    if recorded is not None:
        return {**recorded, "tokenizer": str(output_dir / "tokenizer")}
    return stock_options(run) if is_stock(run) else {**shape_options(run), "tokenizer": str(run / "tokenizer")}


def _recorded_inheritance(run: Path, output_dir: Path) -> dict[str, Any] | None:
    """What the newest checkpoint in `output_dir` that can be read says was taken over from `run`."""
    for file in sorted(output_dir.glob("checkpoints/step-*/state.json"), reverse=True):
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))["settings"]
            if settings["init_from"] == str(run):
                return dict(settings["origin"]["options"])
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None
