"""Sweeps over all tasks of GLUE with their averages, and the comparison of two sweeps of a task."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.base_model import BaseModel, apply_recipe, find_base_model
from electra_albert.apps.finetune.job import Assignment
from electra_albert.apps.finetune.results import RESULTS, markdown_table, percent
from electra_albert.apps.run_folder import ENVIRONMENT
from electra_albert.apps.settings import recorded_settings
from electra_albert.config.checks import require
from electra_albert.config.finetuning import PREDICT_TEST, FinetuneConfig
from electra_albert.contracts import LOG, CheckpointError, DataError, UsageError
from electra_albert.files import read_json, write_json, write_text, writing
from electra_albert.tasks import metrics, reading
from electra_albert.tasks.registry import ELECTRA_EIGHT, GLUE, TASKS
from electra_albert.tasks.task import Report
from electra_albert.training.distributed import World

_MNLI = "mnli"  # its model is evaluated on the diagnostic set and can initialize small tasks
_FROM_MNLI = ("rte", "mrpc", "stsb")
_OFFICIAL = {name: TASKS[name].metrics for name in GLUE if TASKS[name].trained_by is None}
# MNLI's `accuracy` is on the matched set, `mismatched_accuracy` on the mismatched one.
_OFFICIAL[_MNLI] = ("accuracy", "mismatched_accuracy")
_ELECTRA: dict[str, tuple[str, ...]] = {name: (TASKS[name].main,) for name in ELECTRA_EIGHT}
_CONVENTIONS = {
    "electra": ("mean over ELECTRA's eight tasks", _ELECTRA),
    "official": ("mean over the nine official tasks", _OFFICIAL),
}
_SUMMARY = {"median": float, "mean": float, "std": float | None, "best": float}
_RESULTS: dict[str, Any] = {
    "measure": str,
    "task": str,
    "main_metric": str,
    "deciding_set": str,
    "seeds": list[int],
    "metrics": {str: _SUMMARY},
    "official_metrics": list[str],
    "evaluation_examples": dict[str, int],
    "evaluation_fingerprints": dict[str, str],
}
# False positives at p < 0.05, simulated: one test in fourteen; with two seeds one in six.
_ENOUGH_SEEDS = 5
_SEED = 42  # of the resampling: a comparison is reproducible


def find_glue(config: FinetuneConfig) -> list[str]:
    """The tasks whose folders exist, MNLI first.

    Raises UsageError for none, and for options of single tasks.
    """
    data = config.data
    tuning = config.tuning
    folder = Path(data.data_dir or "")
    problem = ""
    if data.data_dir is None or data.train_file or data.validation_file or data.test_file:
        problem = "--task glue reads the folders of all tasks: give --data_dir, and no single files"
    elif tuning.class_weights != "none" or tuning.metric_for_best_model or data.validation_split:
        problem = (
            "--class_weights, --metric_for_best_model and --validation_split need one --task, "
            "not glue"
        )
    elif not tuning.is_training:
        problem = (
            "--num_train_epochs 0 evaluates one fine-tuned model on one task; name it with --task"
        )
    elif tuning.predict not in (None, PREDICT_TEST):
        problem = f"--predict {tuning.predict} needs one --task; glue takes only --predict test"
    require(not problem, problem)
    names = []
    for name in GLUE:
        possible = map(folder.joinpath, TASKS[name].files.folders)
        if any(map(Path.is_dir, possible)):
            names.append(name)
    if _MNLI not in names:
        names = [name for name in names if not TASKS[name].trained_by]
    missing = ", ".join(TASKS[name].files.folders[0] for name in GLUE if name not in names)
    require(
        bool(names),
        f"--data_dir {folder} holds none of {missing}; give the folder that holds them",
    )
    if missing:
        LOG.info(f"notice: tasks without data in {folder}, or MNLI's, skipped: {missing}")
    has_mnli = _MNLI in names or not tuning.from_mnli
    require(has_mnli, f"--from_mnli, but {folder} holds no MNLI; drop the option")
    return sorted(names, key=lambda name: name != _MNLI)


def glue_tasks(
    config: FinetuneConfig, names: Sequence[str], base: BaseModel, folder: Path, world: World
) -> Iterator[Assignment]:
    """Yield each task of GLUE; a base model from MNLI is looked up once it is trained."""
    problem = f"{folder} holds the sweep of a single task; choose another --output_dir"
    require(not (folder / ENVIRONMENT).exists(), problem)
    of_mnli: dict[str, Any] = {"model": str(folder / _MNLI), "from_scratch": False}
    config_of_mnli = config.with_options(of_mnli)
    mnli: BaseModel | None = None
    for name in names:
        task = TASKS[name]
        task_folder = folder / name
        initial = base
        changes: dict[str, Any] = {"task": name, "output_dir": str(task_folder)}
        if not task.is_symmetric:
            changes["double_unordered"] = False
        if task.trained_by:
            changes |= {"num_train_epochs": 0, "max_steps": None, "seeds": 1}
            changes["precision"] = "auto"  # the option is for the trained tasks
        if task.trained_by or (config.tuning.from_mnli and name in _FROM_MNLI):
            if config.tuning.dry_run:
                start = "starts from the model fine-tuned on MNLI"
                LOG.info(f"{name}: {start}, which a dry run does not train")
                continue
            changes |= of_mnli  # also in a sweep from scratch: MNLI's model was trained in it
            if mnli is None:
                mnli = find_base_model(config_of_mnli, world)
            initial = mnli
        task_config = apply_recipe(config, name, initial).with_options(changes)
        data = task_config.data
        is_trained = task_config.tuning.is_training
        sources = reading.locate(task, data, Report(), needs_test=False, is_trained=is_trained)
        if task_config.tuning.predict and not sources["test"]:
            problem = f"{name} has no test set in {data.data_dir}"
            LOG.info(f"notice: {problem}; no predictions are written for it")
            task_config = task_config.with_options({"predict": None})
        recorded = recorded_settings(task_folder).get("weights", initial.fingerprint)
        if initial is mnli and is_trained and recorded != initial.fingerprint:
            problem = "started from another model than MNLI's best seed"
            raise CheckpointError(f"{task_folder} {problem}; remove it to train again")
        yield task, task_config, initial, task_folder


class GlueAverage(NamedTuple):
    """A mean over GLUE tasks (None without any score), its tasks, and missing tasks or metrics."""

    average: float | None
    used: tuple[str, ...]
    missing: tuple[str, ...]


def glue_average(scores: Mapping[str, Mapping[str, float]], convention: str) -> GlueAverage:
    """The mean over GLUE of scores {task: {metric: value}}.

    Tasks that lack a metric are listed as missing.
    """
    means = {}
    missing = []
    _, tasks = _CONVENTIONS[convention]
    for name, required in tasks.items():
        absent = [metric for metric in required if metric not in scores.get(name, {})]
        if not absent:
            means[name] = fmean(scores[name][metric] for metric in required)
        elif name in scores:
            missing += [f"{name} {metric}" for metric in absent]
        else:
            missing.append(name)
    average = None
    if means:
        average = fmean(means.values())
    return GlueAverage(average, tuple(means), tuple(missing))


def write_glue(folder: Path, names: Sequence[str]) -> str:
    """Write results.json of all tasks and a table of the medians over seeds; returns the table."""
    tasks = {}
    scores = {}
    rows = []
    for name in names:
        results = read_json(folder / name / RESULTS, _RESULTS)
        if not results:
            continue
        tasks[name] = results
        values = results["metrics"]
        scores[name] = {metric: values[metric]["median"] for metric in values}
        for metric in files.table_metrics(results):
            cells = [percent(values[metric][key]) for key in ("median", "std")]
            rows.append([name, metric, *cells, str(len(results["seeds"]))])
    lines = [*markdown_table(("task", "metric (x 100)", "median", "std", "seeds"), rows), ""]
    averages = {}
    for convention, (title, _) in _CONVENTIONS.items():
        mean = glue_average(scores, convention)
        averages[convention] = mean._asdict()
        of = "none of its tasks was run"
        if mean.used:
            of = f"over {', '.join(mean.used)}"
            if mean.missing:
                of += f"; NOT over all tasks, missing: {', '.join(mean.missing)}"
        lines.append(f"{title}: {percent(mean.average)} ({of})")
    table = "\n".join(lines)
    with writing(folder):
        write_json(folder / RESULTS, {"tasks": tasks, "averages": averages})
        write_text(folder / files.TABLE, table + "\n")
    return table


class FinishedSweep(NamedTuple):
    """A finished sweep over one task, as its folder has it."""

    results: dict[str, Any]
    seeds: list[files.SeedResult]
    description: str


def _read_sweep(folder: Path) -> FinishedSweep:
    file = folder / RESULTS
    require(file.is_file(), f"{file} does not exist; give the folder of a finished sweep")
    results = read_json(file, _RESULTS)
    if not results:
        raise CheckpointError(
            f"{file} is damaged or not of a sweep over one task; run the sweep again"
        )
    seeds = []
    for seed in results["seeds"]:
        result = files.read_result(folder / f"seed-{seed}")
        if result is None:
            raise CheckpointError(
                f"{folder} lacks the result of a seed: it is unfinished, or only evaluated a model"
            )
        seeds.append(result)
    names = files.data_names(recorded_settings(folder))
    measure = results["measure"]
    if names:
        measure += f" of {names}"
    return FinishedSweep(results, seeds, f"{folder}: {results['task']} ({measure})")


def compare_folders(first: Path, second: Path) -> str:
    """A table that compares two sweeps in every metric.

    Raises UsageError or DataError if they cannot be compared.
    """
    sweeps = (_read_sweep(first), _read_sweep(second))
    described = ", ".join(sweep.description for sweep in sweeps)
    results, second_results = (sweep.results for sweep in sweeps)
    measure = results["measure"]
    has_same_task = results["task"] == second_results["task"]
    if not has_same_task or measure != second_results["measure"]:
        raise UsageError(f"{described}; compare sweeps over one task")
    rows = []
    for name, (set_name, metric) in files.table_metrics(results).items():
        if name not in second_results["metrics"]:
            continue
        hashes = [sweep.results["evaluation_fingerprints"].get(set_name) for sweep in sweeps]
        if hashes[0] != hashes[1]:
            raise DataError(
                f"{described}; the two were evaluated on different examples; "
                "compare sweeps with the same evaluation data"
            )
        values, second_values = (files.metric_inputs(sweep.seeds, set_name) for sweep in sweeps)
        comparison = metrics.compare(values, second_values, measure, metric, _SEED)
        means = [percent(sweep.results["metrics"][name]["mean"]) for sweep in sweeps]
        stds = "-"
        if comparison.difference_in_stds is not None:
            stds = f"{comparison.difference_in_stds:+.1f}"
        difference = f"{100 * comparison.difference:+.2f}"
        interval = f"{100 * comparison.low:+.2f} to {100 * comparison.high:+.2f}"
        rows.append([name, *means, difference, interval, f"{comparison.p_value:.3f}", stds])
    columns = "metric (x 100),first,second,difference,95 % interval,p-value,difference / std"
    counts = [len(sweep.seeds) for sweep in sweeps]
    folders = f"first {first} ({counts[0]} seed(s)), second {second} ({counts[1]} seed(s))"
    table = markdown_table(columns.split(","), rows)
    lines = [f"{results['task']}: {folders}", "", *table, ""]
    lines.append(
        "Bootstrap over examples (the same for both) and seeds; two-sided p-value; "
        "std pooled over seeds."
    )
    if min(counts) < _ENOUGH_SEEDS:
        problem = "the interval is unreliable and the p-value too low"
        lines.append(f"notice: with fewer than {_ENOUGH_SEEDS} seeds per sweep {problem}")
    return "\n".join(lines)
