"""Measure what the toolkit is fast at, beside what it is compared with.

    python -m electra_albert.apps.bench store --corpus my.txt
    python -m electra_albert.apps.bench step --precision bf16 --output bench.json
    python -m electra_albert.apps.bench finetune --task sst2 --data_dir GLUE --model runs/mine

store: MB of text a second and core, from file to token store. step: the joint training step beside the same two
networks composed from stock transformers classes, on the same batches, in turns within one process. finetune: whole
passes over a task beside stock's Trainer on the same model, in turns too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from electra_albert.apps.bench_config import BenchConfig, environment, settings_of
from electra_albert.apps.bench_finetune import format_finetune, has_trainer, measure_finetune
from electra_albert.apps.bench_step import format_step, measure_step
from electra_albert.apps.bench_store import format_store, measure_store
from electra_albert.apps.command_line import check_can_write, make_parser, parse, run_app
from electra_albert.contracts import UsageError

WHAT = ("store", "step", "finetune", "all")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser(
        "python -m electra_albert.apps.bench", "Measure store building, the training step and fine-tuning."
    )
    parser.add_argument("what", choices=WHAT, nargs="?", default="all", help="What to measure.")
    parser.add_class_arguments(BenchConfig)
    options = parse(parser, argv).as_dict()
    what = options.pop("what")
    config = BenchConfig(**options)
    settings = settings_of(config)
    check_can_write(Path(config.prepared_dir))
    if config.output:
        check_can_write(Path(config.output).parent)
    results: dict[str, Any] = {"settings": asdict(config), "environment": environment(config)}
    print("  ".join(f"{name} {value}" for name, value in results["environment"].items()), flush=True)
    if what in ("store", "all"):
        results["store"] = measure_store(config, _say)
        print(format_store(results["store"]), flush=True)
    if what in ("step", "all"):
        results["step"] = measure_step(config, settings, _say)
        print(format_step(results["step"]), flush=True)
    if what == "all" and not has_trainer():
        _say("finetune is left out: stock's Trainer needs accelerate, which is not installed")
    elif what in ("finetune", "all"):
        results["finetune"] = measure_finetune(config, settings.model, _say)
        print(format_finetune(results["finetune"]), flush=True)
    if config.output:
        _write(Path(config.output), results)
    return 0


def _write(file: Path, results: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file} ({error.strerror}); choose another --output") from None


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(run_app(main))
