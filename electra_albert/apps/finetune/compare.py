"""Two sweeps on the same task compared: is one model better, or was it luck?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.results import RESULTS, SeedResult, percent
from electra_albert.apps.run_folder import recorded_settings
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.tasks.metrics import Comparison, compare

_NEEDED = {"measure", "task", "seeds", "metrics", "main_metric", "official_metrics"}
_NEEDED |= {"deciding_set", "evaluation_examples"}
_ENOUGH_SEEDS = 5  # with these, simulated, one test in fourteen finds a difference that is none; with two, one in six
_SEED = 42  # of the resampling: the same two folders give the same interval


def _read(folder: Path) -> tuple[dict[str, Any], str]:
    """The results of a finished sweep, and a phrase that names their task; UsageError for a folder without any."""
    if not (folder / RESULTS).is_file():
        raise UsageError(f"{folder / RESULTS} does not exist; name the folder of a finished sweep")
    results = files.read_results(folder / RESULTS)
    if not results.keys() >= _NEEDED:
        raise CheckpointError(f"{folder / RESULTS} is not the result of a sweep over one task")
    settings = recorded_settings(folder)
    named = ", ".join(str(settings[name]) for name in files.DATA_FILES if settings.get(name))
    return results, f"{folder} is of {results['task']} ({results['measure']}{' of ' + named if named else ''})"


def _seeds(folder: Path, results: dict[str, Any]) -> list[SeedResult]:
    found = [files.read_result(folder / f"seed-{seed}") for seed in results["seeds"]]
    if None in found:
        raise CheckpointError(f"{folder} lacks the result of a seed; run the sweep again")
    return [result for result in found if result is not None]


def compare_folders(first: Path, second: Path) -> str:
    """The table of how two sweeps differ in every metric; UsageError or DataError where they cannot be compared."""
    (results, of_first), (others, of_second) = _read(first), _read(second)
    described = f"{of_first}, {of_second}"
    if any(results[key] != others[key] for key in ("task", "measure")):
        raise UsageError(f"{described}; compare sweeps of one task")
    seeds = [_seeds(first, results), _seeds(second, others)]
    counts = [len(side) for side in seeds]
    lines = [
        f"{results['task']}: {first} ({counts[0]} seeds) against {second} ({counts[1]} seeds)",
        "",
        "| metric, x 100 | first | second | difference | 95 % interval | p | in standard deviations |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in files.shown_metrics(results):
        if name in others["metrics"]:
            try:
                found = _compare(name, results, seeds)
            except DataError as error:
                raise DataError(f"{described}: {error}") from None
            means = " | ".join(percent(side["metrics"][name]["mean"]) for side in (results, others))
            stds = "-" if found.difference_in_stds is None else f"{found.difference_in_stds:+.1f}"
            interval = f"{100 * found.low:+.2f} to {100 * found.high:+.2f}"
            shown = f"{100 * found.difference:+.2f} | {interval} | {found.p_value:.3f} | {stds}"
            lines.append(f"| {name} | {means} | {shown} |")
    lines += ["", "The interval resamples examples, the same for both, and seeds; p is two-sided."]
    if min(counts) < _ENOUGH_SEEDS:
        lines += [f"notice: p and interval can be trusted from {_ENOUGH_SEEDS} seeds a side; with fewer p is too low"]
    return "\n".join(lines)


def _compare(name: str, results: dict[str, Any], seeds: list[list[SeedResult]]) -> Comparison:
    """The comparison by one metric, which may be that of a further evaluation set: `set_metric`."""
    further = [other for other in results["evaluation_examples"] if other != results["deciding_set"]]
    set_name = next((other for other in further if name.startswith(f"{other}_")), results["deciding_set"])
    metric = name.removeprefix(f"{set_name}_") if set_name in further else name
    tables = [[np.asarray(result.values[set_name], dtype=np.float64) for result in side] for side in seeds]
    return compare(tables[0], tables[1], results["measure"], metric, _SEED)
