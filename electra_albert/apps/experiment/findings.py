"""What the folders of an experiment hold once its commands have ended, as numbers: losses, scores, results of tasks."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.command_line import parse_pretraining
from electra_albert.apps.estimate import step_flops
from electra_albert.apps.experiment.plan import Arm, Plan
from electra_albert.apps.experiment.stages import Site
from electra_albert.apps.run_folder import CONFIG, recorded_settings
from electra_albert.contracts import Metrics
from electra_albert.training.metrics_file import read_metrics

_EVALUATED = "eval_"


class Spread(NamedTuple):
    """Values of one quantity over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The sample standard deviation; None of a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


class Pretrained(NamedTuple):
    """One pretraining run."""

    seed: int
    rows: list[Metrics]  # of metrics.jsonl
    flops: float  # of all its updates

    @property
    def final(self) -> Metrics:
        """The last scores on held-out text, names without their prefix; empty where there are none yet."""
        evaluated = [row for row in self.rows if any(name.startswith(_EVALUATED) for name in row)]
        return {name.removeprefix(_EVALUATED): value for name, value in evaluated[-1].items()} if evaluated else {}

    @property
    def tokens(self) -> int:
        return int(max((row.get("tokens") or 0 for row in self.rows), default=0))

    @property
    def seconds(self) -> float:
        """Time in updates, by the log's rates; what evaluating and saving took is not in it."""
        return training_seconds(self.rows)


class Findings(NamedTuple):
    """Everything found of one arm."""

    arm: Arm
    runs: list[Pretrained]
    tasks: dict[str, Spread]  # the deciding metric of each, fractions
    task_metrics: dict[str, str]  # its name
    scores: dict[str, Any]  # of apps.score
    failures: list[str]


def training_seconds(rows: Sequence[Metrics]) -> float:
    """The time that the updates of a metrics file took: non-pad tokens of each row by its rate."""
    total, before = 0.0, 0.0
    for row in rows:
        rate, tokens = row.get("tokens_per_second"), row.get("tokens")
        if rate and tokens:
            total += (tokens - before) / rate
            before = tokens
    return total


def find(plan: Plan, site: Site, failures: dict[str, list[str]]) -> list[Findings]:
    """What is there of every arm of the plan, in its order."""
    return [_find(plan, site, arm, failures.get(arm.name, [])) for arm in plan.arms]


def _find(plan: Plan, site: Site, arm: Arm, failures: list[str]) -> Findings:
    folder = site.output_dir / arm.folder_name
    results = {task: _read(folder / task / "results.json") for task in plan.tasks}
    done = {task: found for task, found in results.items() if found}
    return Findings(
        arm,
        [run for seed in arm.seeds if (run := _pretrained(site.run(arm, seed), seed)) is not None],
        {task: Spread(tuple(found["metrics"][found["main_metric"]]["values"])) for task, found in done.items()},
        {task: found["main_metric"] for task, found in done.items()},
        _read(folder / "scores.json"),
        failures,
    )


def _pretrained(run: Path, seed: int) -> Pretrained | None:
    rows = read_metrics(run / "metrics.jsonl")
    if not rows:
        return None
    steps = max(row["step"] or 0 for row in rows)
    return Pretrained(seed, rows, steps * flops_of_an_update(run))


def flops_of_an_update(run: Path) -> int:
    """Operations of one update of the run in that folder, counted from its shapes."""
    _, config = parse_pretraining(["--config", str(run / CONFIG), "--output_dir", str(run)], "Pretraining.py")
    vocab_size = int(recorded_settings(run)["model"]["vocab_size"])  # the tokenizer's
    training, model = config.training, replace(config.model, vocab_size=vocab_size)
    rows = training.per_device_train_batch_size * training.gradient_accumulation_steps
    return step_flops(replace(config, model=model), rows)


def _read(file: Path) -> dict[str, Any]:
    """A JSON object on file; empty where there is no file yet."""
    if not file.is_file():
        return {}
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def difference_in_stds(ours: Spread, other: Spread) -> float | None:
    """The difference of the means in pooled standard deviations over seeds; None without a spread."""
    if ours.std is None or other.std is None:
        return None
    pooled = math.sqrt((ours.std**2 + other.std**2) / 2)
    return (ours.mean - other.mean) / pooled if pooled else None


def as_record(plan: Plan, found: Sequence[Findings]) -> dict[str, Any]:
    """What was found as JSON holds it: of every arm its options, last scores and results, each seed's."""
    return {
        "title": plan.title,
        "arms": {
            each.arm.name: {
                "weights": each.arm.weights,
                "options": each.arm.options,
                "pretraining": [
                    {
                        "seed": run.seed,
                        "tokens": run.tokens,
                        "flops": run.flops,
                        "seconds": run.seconds,
                        "held_out": run.final,
                    }
                    for run in each.runs
                ],
                "tasks": {task: {each.task_metrics[task]: list(spread.values)} for task, spread in each.tasks.items()},
                "scores": each.scores,
                "failures": each.failures,
            }
            for each in found
        },
    }
