"""Measure what the toolkit is fast at, beside what it is compared with.

    python -m electra_albert.apps.bench step --preset small,base --objective rtd,mlm_sop --output bench.json
    python -m electra_albert.apps.bench store --corpus my.txt
    python -m electra_albert.apps.bench finetune --task sst2 --data_dir GLUE --model runs/mine

store: MB of text a second and core, from file to token store. step: the training step beside the same two networks
composed from stock transformers classes, on the same batches, in turns within one process, against the machine's own
matrix rate and copy bandwidth. encoder: its forward pass beside stock's. batches: making them from the store.
fill_mask: one sentence and many beside stock's pipeline. text: training on real text beside a stock loop with its
usual padding. finetune: whole passes over a task beside stock's Trainer on the same model.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.bench.config import BenchConfig, Say, settings_of
from electra_albert.apps.bench.fill_mask import format_fill_mask, measure_fill_mask
from electra_albert.apps.bench.finetune import format_finetune, has_trainer, measure_finetune
from electra_albert.apps.bench.parts import format_batches, format_encoder, measure_batches, measure_encoder
from electra_albert.apps.bench.step import step_records
from electra_albert.apps.bench.store import format_store, measure_store
from electra_albert.apps.bench.tables import format_case, format_notes
from electra_albert.apps.bench.text import format_text, measure_text
from electra_albert.apps.command_line import check_can_write, make_parser, parse, run_app
from electra_albert.config import PretrainConfig
from electra_albert.contracts import UsageError

LOG = logging.getLogger(__name__)

Measure = Callable[[BenchConfig, PretrainConfig, Say], Any]


class Part(NamedTuple):
    """One thing that is measured, and how it is shown.

    `measure` returns the result or, where it consists of several cases, yields what has come of them so far.
    """

    measure: Measure
    show: Callable[[Any], str]  # what is new in the result
    close: Callable[[Any], str] | None = None  # what is said below all cases


def _measure_store(config: BenchConfig, settings: PretrainConfig) -> list[dict[str, Any]]:
    return measure_store(config)


def _measure_steps(config: BenchConfig, settings: PretrainConfig) -> Iterator[list[dict[str, Any]]]:
    """The records of every preset asked for, one more each time."""
    records: list[dict[str, Any]] = []
    for name in config.presets:
        for record in step_records(replace(config, preset=name), settings_of(config, name)):
            records.append(record)
            yield records


def _measure_finetune(config: BenchConfig, settings: PretrainConfig) -> dict[str, Any]:
    return measure_finetune(config, settings.model)


PARTS: dict[str, Part] = {
    "step": Part(_measure_steps, lambda records: format_case(records[-1]), format_notes),
    "encoder": Part(measure_encoder, format_encoder),
    "batches": Part(measure_batches, format_batches),
    "fill_mask": Part(measure_fill_mask, format_fill_mask),
    "text": Part(measure_text, format_text),
    "store": Part(_measure_store, format_store),
    "finetune": Part(_measure_finetune, format_finetune),
}
WHAT = (*PARTS, "all")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser("python -m electra_albert.apps.bench", "Measure the toolkit's speed, beside stock's classes.")
    parser.add_argument("what", choices=WHAT, nargs="?", default="all", help="What to measure.")
    parser.add_class_arguments(BenchConfig)
    options = parse(parser, argv).as_dict()
    what = options.pop("what")
    config = BenchConfig(**options)
    for name in config.presets:
        settings_of(config, name)  # refuses what does not fit a preset before anything is measured
    check_can_write(Path(config.prepared_dir))
    if config.output:
        check_can_write(Path(config.output).parent)
    names = tuple(PARTS) if what == "all" else (what,)
    say = _say_once()
    if what == "all" and not has_trainer():
        LOG.info("finetune is left out: stock's Trainer needs accelerate, which is not installed")
        names = tuple(name for name in names if name != "finetune")
    _measure(config, names)
    return 0


def _measure(config: BenchConfig, names: Sequence[str]) -> None:
    """Measure the parts of these names; each result is shown and written as soon as it is there."""
    from electra_albert.apps.bench.machine import environment, has_compiled, machine_rates
    from electra_albert.training.distributed import start

    device = start(config.device).device  # which also settles how freed memory is kept, as for a run
    if "step" in names:
        has_compiled(config, device)  # refuses what cannot work before anything is prepared
    results: dict[str, Any] = {"settings": asdict(config), "environment": environment(config, device)}
    print("  ".join(f"{name} {value}" for name, value in results["environment"].items()), flush=True)
    if {"step", "encoder"} & set(names):
        results["machine"] = machine_rates(config, device)
    settings = settings_of(config)
    for name in names:
        part = PARTS[name]
        found = part.measure(config, settings, say)
        for result in found if isinstance(found, Iterator) else [found]:
            results[name] = result
            print(part.show(result), flush=True)
            if config.output:
                _write(Path(config.output), results)
        if part.close:
            print(part.close(results[name]), flush=True)


def _write(file: Path, results: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file} ({error.strerror}); choose another --output") from None


def _say_once() -> Say:
    """Say each line once: every part opens the same corpus, and has the same to say of it."""
    said: set[str] = set()

    def say(message: str) -> None:
        if message not in said:
            said.add(message)
            print(message, file=sys.stderr, flush=True)

    return say


if __name__ == "__main__":
    raise SystemExit(run_app(main, sys.argv[1:]))
