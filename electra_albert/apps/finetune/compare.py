"""Two sweeps on the same task side by side: is one model better, or was it luck?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_albert.apps.finetune.files import DATA_FILES, RESULTS
from electra_albert.apps.finetune.sweep import SeedResult, read_result
from electra_albert.apps.finetune.tables import shown_metrics
from electra_albert.apps.run_folder import recorded_settings
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.tasks.metrics import GOLD_COLUMNS, MEASURES
from electra_albert.tasks.metrics import Comparison, compare

_NEEDED = {
    "measure",
    "task",
    "seeds",
    "metrics",
    "main_metric",
    "official_metrics",
    "deciding_set",
    "evaluation_examples",
}
_ENOUGH_SEEDS = 5  # with these, simulated, one test in fourteen finds a difference that is none; with two, one in six
_SEED = 42  # of the resampling: the same two folders give the same interval


def compare_folders(first: Path, second: Path) -> int:
    """Print how two sweeps differ in every metric; returns the exit code.

    Raises UsageError for a folder that holds no finished sweep, and DataError where the two were not scored on the same
    examples.
    """
    results, others = _read(first), _read(second)
    named = f"{first} is of {_described(first, results)}, {second} of {_described(second, others)}"
    if results["measure"] != others["measure"] or results["task"] != others["task"]:
        raise UsageError(f"{named}; compare sweeps of one task")
    mine, theirs = _seeds(first, results), _seeds(second, others)
    shared = [name for name in shown_metrics(results) if name in others["metrics"]]
    try:
        lines = [_line(name, results, others, _compare(name, results, mine, theirs)) for name in shared]
    except DataError as error:
        raise DataError(f"{named}: {error}") from None
    counts = [len(side["seeds"]) for side in (results, others)]
    print(f"{results['task']}: {first} ({counts[0]} seeds) against {second} ({counts[1]} seeds)\n")
    print("| metric, x 100 | first | second | difference | 95 % interval | p | in standard deviations |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(lines))
    print("\nThe interval resamples examples, the same for both, and seeds; p is two-sided.")
    if min(counts) < _ENOUGH_SEEDS:
        print(f"notice: p and interval can be trusted from {_ENOUGH_SEEDS} seeds a side on; with fewer p is too small")
    return 0


def _described(folder: Path, results: dict[str, Any]) -> str:
    """The task of a sweep with the files it was of."""
    settings = recorded_settings(folder)
    files = ", ".join(str(settings[name]) for name in DATA_FILES if settings.get(name))
    return f"{results['task']} ({results['measure']}{' of ' + files if files else ''})"


def _read(folder: Path) -> dict[str, Any]:
    file = folder / RESULTS
    if not file.is_file():
        raise UsageError(f"{file} does not exist; name the folder of a finished sweep")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} cannot be read ({error}); run the sweep again") from None
    if not isinstance(content, dict) or not content.keys() >= _NEEDED:
        raise CheckpointError(f"{file} is not the result of a sweep over one task")
    return content


def _seeds(folder: Path, results: dict[str, Any]) -> list[SeedResult]:
    found = [read_result(folder / f"seed-{seed}") for seed in results["seeds"]]
    if any(result is None for result in found):
        raise CheckpointError(f"{folder} lacks the result of a seed; run the sweep again")
    return [result for result in found if result is not None]


def _compare(
    name: str, results: dict[str, Any], first: Sequence[SeedResult], second: Sequence[SeedResult]
) -> Comparison:
    """The comparison by one metric, which may be that of a further evaluation set: `set_metric`."""
    set_name, metric = results["deciding_set"], name
    for other in results["evaluation_examples"]:
        if other != set_name and name.startswith(f"{other}_"):
            set_name, metric = other, name.removeprefix(f"{other}_")
            break
    measure = MEASURES[results["measure"]]
    mine, theirs = (
        [np.asarray(result.values[set_name], dtype=np.float64) for result in side] for side in (first, second)
    )
    gold = GOLD_COLUMNS[results["measure"]]
    return compare(mine, theirs, lambda values: measure(values)[metric], _SEED, gold)


def _line(name: str, results: dict[str, Any], others: dict[str, Any], found: Comparison) -> str:
    means = [f"{100 * side['metrics'][name]['mean']:.2f}" for side in (results, others)]
    stds = "-" if found.difference_in_stds is None else f"{found.difference_in_stds:+.1f}"
    interval = f"{100 * found.low:+.2f} to {100 * found.high:+.2f}"
    return (
        f"| {name} | {' | '.join(means)} | {100 * found.difference:+.2f} | {interval} | {found.p_value:.3f} | {stds} |"
    )
