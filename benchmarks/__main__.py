"""Compare the toolkit's speed with stock transformers, from the checkout.

    python -m benchmarks step --preset small,base --precision bf16 --output bench.json
    python -m benchmarks all --corpus my.txt --repeats 7

step: the training step, against the same two networks composed from stock classes; also its kernels
(--profile). store: text to a token store, against `datasets`. batches: training batches, against a
DataLoader. fill_mask: against stock's pipeline. finetune: one epoch, against stock's Trainer.
attention: local against softmax, by length. Speedups are ratios of timings taken in turns in one
run, after both sides have been checked to compute the same, which attention kinds do not.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.config import BenchConfig, pretraining
from electra_albert.apps.command_line import check_can_write, make_parser, parse, run_app

PARTS = {
    "step": "benchmarks.step:measure_step",
    "store": "benchmarks.data_path:measure_store",
    "batches": "benchmarks.data_path:measure_batches",
    "fill_mask": "benchmarks.fill_mask:measure_fill_mask",
    "finetune": "benchmarks.finetune:measure_finetune",
    "attention": "benchmarks.attention:measure_attention",
}


def main(argv: Sequence[str]) -> int:
    """Measure, printing and writing each record as soon as it is complete.

    Returns the exit code.
    """
    parser = make_parser(
        "python -m benchmarks", "Compare the toolkit's speed with stock transformers."
    )
    parser.add_argument(
        "what", choices=(*PARTS, "all"), nargs="?", default="all", help="The part to measure."
    )
    parser.add_class_arguments(BenchConfig)
    options = parse(parser, argv).as_dict()
    what = options.pop("what")
    config = BenchConfig(**options)
    for preset in config.values("preset"):
        pretraining(
            config, preset
        )  # refuses options that do not fit a preset before anything is measured
    check_can_write(Path(config.prepared_dir))
    check_can_write(Path(config.output or config.prepared_dir).parent)
    from benchmarks.profile import format_profile
    from benchmarks.timing import format_table
    from electra_albert.apps.run_folder import environment
    from electra_albert.training.distributed import start

    start(config.device)  # refuses a missing device
    found: dict[str, Any] = {"settings": asdict(config), "environment": environment()}
    print("  ".join(f"{name} {value}" for name, value in found["environment"].items()), flush=True)
    for name in PARTS if what == "all" else (what,):
        module, _, function = PARTS[name].partition(":")
        measure: Callable[[BenchConfig], Iterator[dict[str, Any]]] = getattr(
            import_module(module), function
        )
        found[name] = []
        for record in measure(config):
            found[name].append(record)
            print(format_table(record), flush=True)
            for implementation, profile in record.get("profiles", {}).items():
                print(format_profile(implementation, profile), flush=True)
            if config.output:
                Path(config.output).parent.mkdir(parents=True, exist_ok=True)
                Path(config.output).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_app(main, sys.argv[1:]))
