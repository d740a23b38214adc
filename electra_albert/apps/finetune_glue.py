"""All of GLUE in one sweep: every task whose data is there, and both averages over what was run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.finetune import RUNS, run_task, saying, with_recipe
from electra_albert.apps.finetune_files import RESULTS, TABLE
from electra_albert.apps.finetune_start import find_start
from electra_albert.apps.finetune_tables import shown_metrics
from electra_albert.apps.run_folder import write_whole
from electra_albert.contracts import UsageError
from electra_albert.finetuning_config import FinetuneConfig
from electra_albert.tasks.examples import Report
from electra_albert.tasks.locating import locate
from electra_albert.tasks.registry import GLUE, TASKS
from electra_albert.tasks.submission import GlueAverage, glue_average

if TYPE_CHECKING:
    from electra_albert.apps.finetune_start import Start
    from electra_albert.training.distributed import World
    from electra_albert.training.guards import StopSignal

_FIRST = "mnli"  # whose model scores the diagnostic set, and may be what the small tasks begin with
_FROM_MNLI = ("rte", "mrpc", "stsb")
_CONVENTIONS = {"electra": "ELECTRA's mean of eight", "official": "mean over the nine official tasks"}


def find_glue(config: FinetuneConfig, say: Callable[[str], None]) -> list[str]:
    """The tasks whose folders are there, MNLI first; those that are not are said.

    Raises UsageError where there is none, or an option has a meaning for single tasks only.
    """
    asked = config.data
    if asked.data_dir is None or asked.train_file or asked.validation_file or asked.test_file:
        raise UsageError("--task glue reads whole folders: give --data_dir and none of the single files")
    if config.tuning.predict not in (None, "test"):
        raise UsageError(
            f"--predict {config.tuning.predict} needs one --task; with glue only --predict test has a meaning"
        )
    return _found(Path(asked.data_dir), say)


def run_glue(
    argv: Sequence[str], config: FinetuneConfig, names: Sequence[str], start: Start, world: World, stop: StopSignal
) -> int:
    """Fine-tune on every GLUE task of find_glue; returns the exit code."""
    asked, say = config.data, saying(world)
    begun = "-from-scratch" if config.tuning.from_scratch else ""
    folder = Path(config.tuning.output_dir) if config.tuning.output_dir else RUNS / f"glue-{start.name}{begun}"
    for name in names:
        task = TASKS[name]
        begin = start
        if task.trained_by or (config.tuning.from_mnli and name in _FROM_MNLI and _FIRST in names):
            begin = find_start(str(folder / _FIRST), asked.prepared_dir, world, say)
        mine = _with_task(with_recipe(argv, task, begin), name, begin is not start)
        if mine.tuning.predict and not locate(task, mine.data, Report(), needs_test=False).test:
            say(f"notice: {name} has no test set in {asked.data_dir}; nothing is predicted for it")
            mine = replace(mine, tuning=replace(mine.tuning, predict=None))
        code = run_task(argv, task, mine, begin, folder / name, world, stop)
        if code:
            return code
    if world.is_main and not config.tuning.dry_run:
        table = summarize_glue(folder, names)
        write_whole(folder / TABLE, table + "\n")
        print(table)
    return 0


def _with_task(config: FinetuneConfig, name: str, is_from_mnli: bool) -> FinetuneConfig:
    """The settings of one of the tasks; one that begins with our MNLI model takes its weights even in a sweep from
    scratch: they were learned from the task's own kind of data alone."""
    tuning = replace(config.tuning, from_scratch=False) if is_from_mnli else config.tuning
    return replace(config, data=replace(config.data, task=name), tuning=tuning)


def _found(data_dir: Path, say: Callable[[str], None]) -> list[str]:
    if not data_dir.is_dir():
        raise UsageError(f"--data_dir {data_dir} is no folder; give the one that holds CoLA, SST-2 and the others")
    names = [name for name in GLUE if any((data_dir / folder).is_dir() for folder in TASKS[name].files.folders)]
    if _FIRST not in names:
        names = [name for name in names if not TASKS[name].trained_by]
    missing = [TASKS[name].folder for name in GLUE if name not in names]
    if not names:
        raise UsageError(f"--data_dir {data_dir} holds none of {', '.join(missing)}; give the folder that holds them")
    if missing:
        say(f"notice: left out, for their data is not in {data_dir}: {', '.join(missing)}")
    return sorted(names, key=lambda name: (name != _FIRST, GLUE.index(name)))


def summarize_glue(folder: Path, names: Sequence[str]) -> str:
    """Write results.json over all tasks and return the table, with the median over seeds of every metric."""
    found = {name: _read(folder / name) for name in names}
    scores = {
        name: {metric: results["metrics"][metric]["median"] for metric in results["metrics"]}
        for name, results in found.items()
        if results is not None
    }
    averages = {convention: glue_average(scores, convention) for convention in _CONVENTIONS}  # type: ignore[arg-type]
    content = {
        "tasks": {name: results for name, results in found.items() if results is not None},
        "averages": {convention: average._asdict() for convention, average in averages.items()},
    }
    write_whole(folder / RESULTS, json.dumps(content, indent=2) + "\n")
    lines = ["| task | metric | median x 100 | std | seeds |", "| --- | --- | --- | --- | --- |"]
    for name, results in content["tasks"].items():
        for metric in shown_metrics(results):
            told = results["metrics"][metric]
            std = "-" if told["std"] is None else f"{100 * told['std']:.2f}"
            lines.append(f"| {name} | {metric} | {100 * told['median']:.2f} | {std} | {len(results['seeds'])} |")
    return "\n".join([*lines, "", *(_line(_CONVENTIONS[name], average) for name, average in averages.items())])


def _read(folder: Path) -> dict[str, Any] | None:
    """The results of a task; None where it was only predicted."""
    file = folder / RESULTS
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _line(told: str, average: GlueAverage) -> str:
    if average.average is None:
        return f"{told}: - (nothing of it was run)"
    missing = f"; NOT over all: without {', '.join(average.missing)}" if average.missing else ""
    return f"{told}: {100 * average.average:.2f} (of {', '.join(average.used)}{missing})"
