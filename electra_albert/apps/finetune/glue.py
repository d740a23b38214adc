"""All of GLUE in one sweep: every task whose data is there, and both averages over what was run."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.finetune.files import RESULTS, TABLE, writing
from electra_albert.apps.finetune.options import with_recipe
from electra_albert.apps.finetune.start import find_start
from electra_albert.apps.finetune.tables import shown_metrics
from electra_albert.apps.finetune.task import Session, run_task
from electra_albert.apps.run_folder import ENVIRONMENT, recorded_settings, write_whole
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.finetuning_config import PREDICT_TEST, FinetuneConfig
from electra_albert.tasks.task import Report
from electra_albert.tasks.locating import locate
from electra_albert.tasks.registry import GLUE, TASKS
from electra_albert.tasks.submission import GlueAverage, glue_average

if TYPE_CHECKING:
    from electra_albert.apps.finetune.start import Start

LOG = logging.getLogger(__name__)

_FIRST = "mnli"  # whose model scores the diagnostic set, and may be what the small tasks begin with
_FROM_MNLI = ("rte", "mrpc", "stsb")
_CONVENTIONS = {"electra": "ELECTRA's mean of eight", "official": "mean over the nine official tasks"}


def find_glue(config: FinetuneConfig) -> list[str]:
    """The tasks whose folders are there, MNLI first; those that are not are said.

    Raises UsageError where there is none, or an option has a meaning for single tasks only.
    """
    asked = config.data
    if asked.data_dir is None or asked.train_file or asked.validation_file or asked.test_file:
        raise UsageError("--task glue reads whole folders: give --data_dir and none of the single files")
    if config.tuning.class_weights != "none" or config.tuning.metric_for_best_model or asked.validation_split:
        raise UsageError("--class_weights, --metric_for_best_model and --validation_split need one --task, not glue")
    if not config.tuning.is_training:
        raise UsageError("--num_train_epochs 0 scores one fine-tuned model on one task; name it by --task")
    if config.tuning.predict not in (None, PREDICT_TEST):
        raise UsageError(
            f"--predict {config.tuning.predict} needs one --task; with glue only --predict test has a meaning"
        )
    names = _found(Path(asked.data_dir))
    if config.tuning.from_mnli and _FIRST not in names:
        raise UsageError(f"--from_mnli, but {asked.data_dir} holds no MNLI; leave it out")
    return names


def run_glue(config: FinetuneConfig, names: Sequence[str], start: Start, folder: Path, session: Session) -> int:
    """Fine-tune on every GLUE task of find_glue into a folder for each; returns the exit code."""
    if (folder / ENVIRONMENT).exists():
        raise UsageError(f"{folder} holds the sweep of a single task; choose another --output_dir")
    for name in names:
        begin, task = start, TASKS[name]
        follows = task.trained_by is not None or (config.tuning.from_mnli and name in _FROM_MNLI)
        if follows and config.tuning.dry_run:
            LOG.info(f"{name}: begins with the model fine-tuned on MNLI, which a dry run does not make")
            continue
        if follows:
            begin = find_start(str(folder / _FIRST), config.data.prepared_dir, session.world)
        mine = with_recipe(session.argv, name, begin.family, begin.config)
        mine = _with_task(mine, name, folder / name, is_from_mnli=follows)
        if (
            mine.tuning.predict
            and not locate(task, mine.data, Report(), needs_test=False, is_trained=mine.tuning.is_training).test
        ):
            LOG.info(f"notice: {name} has no test set in {mine.data.data_dir}; nothing is predicted for it")
            mine = replace(mine, tuning=replace(mine.tuning, predict=None))
        _check_follows(mine, begin, folder / name, follows=follows)
        code = run_task(task, mine, begin, folder / name, session)
        if code:
            return code
    if session.world.is_main and not config.tuning.dry_run:
        content, table = summarize_glue(folder, names)
        with writing(folder):
            write_whole(folder / RESULTS, json.dumps(content, indent=2) + "\n")
            write_whole(folder / TABLE, table + "\n")
        print(table)
    return 0


def _check_follows(config: FinetuneConfig, begin: Start, folder: Path, *, follows: bool) -> None:
    """CheckpointError where seeds were trained from an MNLI model that is no longer the best."""
    weights = recorded_settings(folder).get("weights", begin.fingerprint)
    if follows and config.tuning.is_training and weights != begin.fingerprint:
        raise CheckpointError(
            f"{folder} began with another model than MNLI's best seed of now; remove it to train it again from this one"
        )


def _with_task(config: FinetuneConfig, name: str, folder: Path, *, is_from_mnli: bool) -> FinetuneConfig:
    """The settings of one of the tasks.

    One that begins with our MNLI model takes its weights even in a sweep from scratch: they were learned there.
    """
    tuning = replace(config.tuning, output_dir=str(folder))
    if is_from_mnli:
        tuning = replace(tuning, from_scratch=False, model=str(folder.parent / _FIRST))
    if TASKS[name].trained_by:
        tuning = replace(tuning, num_train_epochs=0, max_steps=None, seeds=1)
    if not TASKS[name].is_symmetric:
        tuning = replace(tuning, double_unordered=False)
    return replace(config, data=replace(config.data, task=name), tuning=tuning)


def _found(data_dir: Path) -> list[str]:
    if not data_dir.is_dir():
        raise UsageError(f"--data_dir {data_dir} is no folder; give the one that holds CoLA, SST-2 and the others")
    names = [name for name in GLUE if any((data_dir / folder).is_dir() for folder in TASKS[name].files.folders)]
    if _FIRST not in names:
        names = [name for name in names if not TASKS[name].trained_by]
    missing = [TASKS[name].folder for name in GLUE if name not in names]
    if not names:
        raise UsageError(f"--data_dir {data_dir} holds none of {', '.join(missing)}; give the folder that holds them")
    if missing:
        LOG.info(f"notice: left out, for their data is not in {data_dir}: {', '.join(missing)}")
    return sorted(names, key=lambda name: (name != _FIRST, GLUE.index(name)))


def summarize_glue(folder: Path, names: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The contents of results.json over all tasks, and a table with the median over seeds of every metric."""
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
    lines = ["| task | metric | median x 100 | std | seeds |", "| --- | --- | --- | --- | --- |"]
    for name, results in content["tasks"].items():
        for metric in shown_metrics(results):
            told = results["metrics"][metric]
            std = "-" if told["std"] is None else f"{100 * told['std']:.2f}"
            lines.append(f"| {name} | {metric} | {100 * told['median']:.2f} | {std} | {len(results['seeds'])} |")
    lines += ["", *(_line(_CONVENTIONS[name], average) for name, average in averages.items())]
    return content, "\n".join(lines)


def _read(folder: Path) -> dict[str, Any] | None:
    """The results of a task; None where it was only predicted."""
    file = folder / RESULTS
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except ValueError as error:
        raise CheckpointError(f"{file} cannot be read ({error}); run the sweep again") from None


def _line(told: str, average: GlueAverage) -> str:
    if average.average is None:
        return f"{told}: - (nothing of it was run)"
    missing = f"; NOT over all: without {', '.join(average.missing)}" if average.missing else ""
    return f"{told}: {100 * average.average:.2f} (of {', '.join(average.used)}{missing})"
