"""Sweeps over all tasks of GLUE with their averages, and the comparison of two sweeps over one task."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.base_model import BaseModel, apply_recipe, find_base_model
from electra_albert.apps.finetune.job import Assignment
from electra_albert.apps.finetune.results import RESULTS, markdown_table, percent
from electra_albert.apps.run_folder import ENVIRONMENT, writing
from electra_albert.apps.settings import recorded_settings
from electra_albert.contracts import LOG, CheckpointError, DataError, UsageError
from electra_albert.files import read_json, write_json, write_text
from electra_albert.finetuning_config import PREDICT_TEST, FinetuneConfig
from electra_albert.model_config import require
from electra_albert.tasks import metrics, reading
from electra_albert.tasks.registry import ELECTRA_EIGHT, GLUE, TASKS
from electra_albert.tasks.task import Report
from electra_albert.training.distributed import World

_MNLI = "mnli"  # its model is evaluated on the diagnostic set and can initialize small tasks
_FROM_MNLI = ("rte", "mrpc", "stsb")
_OFFICIAL = {name: TASKS[name].metrics for name in GLUE if TASKS[name].trained_by is None}
# MNLI's `accuracy` is on the matched set, `mismatched_accuracy` on the mismatched one.
_CONVENTIONS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "electra": ("mean over ELECTRA's eight tasks", {name: (TASKS[name].main,) for name in ELECTRA_EIGHT}),
    "official": ("mean over the nine official tasks", _OFFICIAL | {_MNLI: ("accuracy", "mismatched_accuracy")}),
}
_SUMMARY = {"median": float, "mean": float, "std": float | None, "best": float}
_RESULTS: dict[str, Any] = dict.fromkeys(("measure", "task", "main_metric", "deciding_set"), str)
_RESULTS |= {"seeds": list[int], "metrics": {str: _SUMMARY}, "official_metrics": list[str]}
_RESULTS |= {"evaluation_examples": dict[str, int]}
_ENOUGH_SEEDS = 5  # false positives at p < 0.05, simulated: one test in fourteen; with two seeds one in six
_SEED = 42  # of the resampling: a comparison is reproducible


def find_glue(config: FinetuneConfig) -> list[str]:
    """The tasks whose folders exist, MNLI first; UsageError for none, and for options of single tasks."""
    asked, tuning, folder = config.data, config.tuning, Path(config.data.data_dir or "")
    if asked.data_dir is None or asked.train_file or asked.validation_file or asked.test_file:
        raise UsageError("--task glue reads the folders of all tasks: give --data_dir, and no single files")
    if tuning.class_weights != "none" or tuning.metric_for_best_model or asked.validation_split:
        raise UsageError("--class_weights, --metric_for_best_model and --validation_split need one --task, not glue")
    if not tuning.is_training:
        raise UsageError("--num_train_epochs 0 evaluates one fine-tuned model on one task; name it with --task")
    if tuning.predict not in (None, PREDICT_TEST):
        raise UsageError(f"--predict {tuning.predict} needs one --task; glue takes only --predict test")
    if not folder.is_dir():
        raise UsageError(f"--data_dir {folder} is not a folder; give the one that holds CoLA, SST-2 and the others")
    names = [name for name in GLUE if any((folder / own).is_dir() for own in TASKS[name].files.folders)]
    if _MNLI not in names:
        names = [name for name in names if not TASKS[name].trained_by]
    missing = ", ".join(TASKS[name].files.folders[0] for name in GLUE if name not in names)
    require(bool(names), f"--data_dir {folder} holds none of {missing}; give the folder that holds them")
    if missing:
        LOG.info(f"notice: tasks without data in {folder}, skipped: {missing}")
    require(_MNLI in names or not tuning.from_mnli, f"--from_mnli, but {folder} holds no MNLI; drop the option")
    return sorted(names, key=lambda name: (name != _MNLI, GLUE.index(name)))


def glue_tasks(
    config: FinetuneConfig, names: Sequence[str], base: BaseModel, folder: Path, world: World
) -> Iterator[Assignment]:
    """Task, settings, base model and folder of each task; the base model from MNLI is looked up once it is trained."""
    problem = f"{folder} holds the sweep of a single task; choose another --output_dir"
    require(not (folder / ENVIRONMENT).exists(), problem)
    of_mnli: BaseModel | None = None
    for name in names:
        task, own, initial = TASKS[name], folder / name, base
        needs_mnli = task.trained_by is not None or (config.tuning.from_mnli and name in _FROM_MNLI)
        if needs_mnli and config.tuning.dry_run:
            LOG.info(f"{name}: starts from the model fine-tuned on MNLI, which a dry run does not train")
            continue
        changes: dict[str, Any] = {"output_dir": str(own)}
        if needs_mnli:  # also in a sweep from scratch: MNLI's model was trained in it
            tuning = replace(config.tuning, model=str(folder / _MNLI))
            of_mnli = of_mnli or find_base_model(replace(config, tuning=tuning), world)
            initial = of_mnli
            changes |= {"from_scratch": False, "model": str(folder / _MNLI)}
        changes |= {"num_train_epochs": 0, "max_steps": None, "seeds": 1} if task.trained_by else {}
        changes |= {} if task.is_symmetric else {"double_unordered": False}
        mine = apply_recipe(config, name, initial)
        mine = replace(mine, data=replace(mine.data, task=name), tuning=replace(mine.tuning, **changes))
        if task.trained_by:  # `precision` is that of the trained tasks
            mine = replace(mine, training=replace(mine.training, precision="auto"))
        trains = mine.tuning.is_training
        found = reading.locate(task, mine.data, Report(), needs_test=False, is_trained=trains)
        if mine.tuning.predict and not found["test"]:
            LOG.info(f"notice: {name} has no test set in {mine.data.data_dir}; no predictions are written for it")
            mine = replace(mine, tuning=replace(mine.tuning, predict=None))
        if needs_mnli and trains and recorded_settings(own).get("weights", initial.fingerprint) != initial.fingerprint:
            raise CheckpointError(f"{own} started from another model than MNLI's best seed; remove it to train again")
        yield task, mine, initial, own


class GlueAverage(NamedTuple):
    """A mean over GLUE tasks (None without any score), its tasks, and the missing tasks or metrics."""

    average: float | None
    used: tuple[str, ...]
    missing: tuple[str, ...]


def glue_average(scores: Mapping[str, Mapping[str, float]], convention: str) -> GlueAverage:
    """The mean over GLUE of scores {task: {metric: value}}; tasks that lack a metric are listed as missing."""
    found: dict[str, float] = {}
    missing: list[str] = []
    for name, wanted in _CONVENTIONS[convention][1].items():
        if absent := [metric for metric in wanted if metric not in scores.get(name, {})]:
            missing += [f"{name} {metric}" for metric in absent] if name in scores else [name]
        else:
            found[name] = math.fsum(scores[name][metric] for metric in wanted) / len(wanted)
    average = math.fsum(found.values()) / len(found) if found else None
    return GlueAverage(average, tuple(found), tuple(missing))


def write_glue(folder: Path, names: Sequence[str]) -> str:
    """Write results.json of all tasks and a table with the median over seeds of every metric; returns the table."""
    results = {name: read_json(folder / name / RESULTS, _RESULTS) for name in names}
    found = {name: content for name, content in results.items() if content}
    rows = [
        [name, metric, *(percent(one["metrics"][metric][key]) for key in ("median", "std")), str(len(one["seeds"]))]
        for name, one in found.items()
        for metric in files.table_metrics(one)
    ]
    lines = [*markdown_table(("task", "metric (x 100)", "median", "std", "seeds"), rows), ""]
    scores = {name: {key: metric["median"] for key, metric in one["metrics"].items()} for name, one in found.items()}
    averages = {convention: glue_average(scores, convention) for convention in _CONVENTIONS}
    for convention, (value, used, missing) in averages.items():
        of = f"over {', '.join(used)}" + (f"; NOT over all tasks, missing: {', '.join(missing)}" if missing else "")
        shown = "- (none of its tasks was run)" if value is None else f"{percent(value)} ({of})"
        lines.append(f"{_CONVENTIONS[convention][0]}: {shown}")
    table = "\n".join(lines)
    with writing(folder):
        content = {"tasks": found, "averages": {name: average._asdict() for name, average in averages.items()}}
        write_json(folder / RESULTS, content)
        write_text(folder / files.TABLE, table + "\n")
    return table


def _read(folder: Path) -> tuple[dict[str, Any], list[files.SeedResult], str]:
    """Results of a finished sweep, of its seeds, and a description of its task."""
    file = folder / RESULTS
    require(file.is_file(), f"{file} does not exist; give the folder of a finished sweep")
    results = read_json(file, _RESULTS)
    if not results:
        raise CheckpointError(f"{file} is damaged or not of a sweep over one task; run the sweep again")
    seeds = [files.read_result(folder / f"seed-{seed}") for seed in results["seeds"]]
    done = [*filter(None, seeds)]
    if len(done) < len(seeds):
        raise CheckpointError(f"{folder} lacks the result of a seed: it is unfinished, or only evaluated a model")
    settings = recorded_settings(folder)
    named = ", ".join(str(settings[name]) for name in files.DATA_FILES if settings.get(name))
    return results, done, f"{folder}: {results['task']} ({results['measure']}{' of ' + named if named else ''})"


def compare_folders(first: Path, second: Path) -> str:
    """A table that compares two sweeps in every metric; UsageError or DataError if they cannot be compared."""
    (results, done, of_first), (others, others_done, of_second) = _read(first), _read(second)
    seeds, described = [done, others_done], f"{of_first}, {of_second}"
    if any(results[key] != others[key] for key in ("task", "measure")):
        raise UsageError(f"{described}; compare sweeps over one task")
    rows, deciding = [], results["deciding_set"]
    further = [name for name in results["evaluation_examples"] if name != deciding]
    for name in (name for name in files.table_metrics(results) if name in others["metrics"]):
        set_name = next((other for other in further if name.startswith(f"{other}_")), deciding)
        metric = name if set_name == deciding else name.removeprefix(f"{set_name}_")
        tables = [[np.asarray(result.values[set_name], dtype=np.float64) for result in side] for side in seeds]
        try:
            found = metrics.compare(tables[0], tables[1], results["measure"], metric, _SEED)
        except DataError as error:
            raise DataError(f"{described}; {error}") from None
        means = [percent(side["metrics"][name]["mean"]) for side in (results, others)]
        stds = "-" if found.difference_in_stds is None else f"{found.difference_in_stds:+.1f}"
        interval = f"{100 * found.low:+.2f} to {100 * found.high:+.2f}"
        rows.append([name, *means, f"{100 * found.difference:+.2f}", interval, f"{found.p_value:.3f}", stds])
    header = ("metric (x 100)", "first", "second", "difference", "95 % interval", "p-value", "difference / std")
    against = f"first {first} ({len(done)} seed(s)), second {second} ({len(others_done)} seed(s))"
    lines = [f"{results['task']}: {against}", "", *markdown_table(header, rows), ""]
    lines.append("Bootstrap over examples (the same for both) and seeds; two-sided p-value; std pooled over seeds.")
    if min(map(len, seeds)) < _ENOUGH_SEEDS:
        fewer = f"with fewer than {_ENOUGH_SEEDS} seeds per sweep"
        lines.append(f"notice: {fewer} the interval is unreliable and the p-value too low")
    return "\n".join(lines)
