"""The folder of a sweep: settings, results.json (fractions), tables (x 100), model and card."""

import copy
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from huggingface_hub import EvalResult

from electra_albert.apps import run_folder
from electra_albert.apps.finetune.job import TaskJob
from electra_albert.apps.run_folder import CARD, COMMAND, CONFIG, ENVIRONMENT
from electra_albert.apps.settings import compare_settings, recorded_settings
from electra_albert.config.checks import names_of
from electra_albert.config.finetuning import CUSTOM, DERIVED, DataConfig, TuningConfig, table_name
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import CheckpointError, Metrics, UsageError, redacted
from electra_albert.files import load_json, record_digests, write_json, write_text, writing
from electra_albert.hub import card, save
from electra_albert.tasks import metrics as scoring
from electra_albert.tasks import registry
from electra_albert.tasks.encoding import RECORDED
from electra_albert.tasks.kinds import TaskObjective, confusion_table, predictions_table
from electra_albert.tokenization.tokenizer import fingerprint
from electra_albert.training.run_log import LOG_FILE

RESULT = "result.json"
RESULTS = "results.json"
TABLE = "results.md"
MODEL = "model"
MODEL_FILES = f"{MODEL}/*[!d]"  # without the card, README.md, which users may edit
SUBMISSION = "submission"
PREDICTED = "predicted.tsv"
_TABLES = ("predictions.tsv", "confusion.tsv")
_OUTPUTS = (CONFIG, COMMAND, CARD, RESULTS, TABLE, *_TABLES, SUBMISSION, PREDICTED, LOG_FILE, MODEL)
DATA_FILES = ("data_dir", "train_file", "validation_file")  # whose contents are compared by a hash
_OF_CALL = names_of("per_call", TuningConfig)  # not recorded
_MAY_CHANGE = names_of("free by_content", DataConfig, TuningConfig)
_MAY_CHANGE |= names_of("free", TrainingConfig) - DERIVED
_ADVICE = {  # for a collapsed seed, by measure
    "multi_label": "more --num_train_epochs",  # it first learns that most labels are absent
    "regression": "more --num_train_epochs, a lower --learning_rate or labels of a few units",
}


class SeedResult(NamedTuple):
    """The results of one seed; the fields are the keys of its result.json."""

    seed: int
    step: int
    metrics: Metrics
    values: dict[str, list[list[float]]]  # by evaluation set: inputs of the metrics, per example
    predictions: dict[str, list[Any]]  # by evaluation set
    probabilities: dict[str, list[Any] | None]
    is_collapsed: bool  # the same prediction for every example
    new_parts: list[str]  # randomly initialized parts of the model


def best_of(job: TaskJob, results: Iterable[SeedResult]) -> SeedResult:
    """The result with the best main metric; the first of equal ones."""
    return max(results, key=lambda result: result.metrics[job.task.main])


def metric_inputs(results: Iterable[SeedResult], set_name: str) -> list[Any]:
    """The inputs of the metrics of each seed on an evaluation set, float64 [examples, k]."""
    return [np.asarray(result.values[set_name], np.float64) for result in results]


def read_result(folder: Path) -> SeedResult | None:
    """The result in a seed's folder; None if the seed is not finished."""
    file = folder / RESULT
    try:
        return SeedResult(**load_json(file, SeedResult.__annotations__))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:  # the last for further keys
        advice = f"remove {folder} to train this seed again"
        raise CheckpointError(f"{file} cannot be read ({error}); {advice}") from None


def check_output_folder(folder: Path) -> None:
    """UsageError if a sweep would overwrite files of another origin in the folder."""
    advice = "choose another --output_dir"
    if any((folder / name).exists() for name in ("checkpoints", "generator")):
        raise UsageError(f"{folder} is the folder of a pretraining run; {advice}")
    present = [name for name in _OUTPUTS if (folder / name).exists()]
    if present and not (folder / ENVIRONMENT).is_file():
        raise UsageError(f"{folder} holds {present[0]}, not made by fine-tuning; {advice}")


def open_folder(job: TaskJob, command: Sequence[str]) -> list[str]:
    """Record the sweep's settings in its folder; returns what changed since an earlier command."""
    folder = job.folder
    options = redacted(job.config.options())
    for name in _OF_CALL:
        options.pop(name, None)
    settings = {
        **options,
        "task": job.task.name,  # not as spelled by the user
        "is_trained": job.train is not None,
        "arithmetic": job.arithmetic,
        "is_recorded": job.is_recorded,
        "updates": job.training.max_steps,
        "weights": job.base.fingerprint,
        "tokenizer_fingerprint": fingerprint(job.base.tokenizer),
        "data": job.data_fingerprint,
        "global_batch_size": job.global_batch_size,
    }
    recorded = recorded_settings(folder)
    if recorded and job.config.tuning.resume == "never":
        raise UsageError(f"--resume never, but {folder} holds a sweep; choose another --output_dir")
    changes = []
    # A sweep without training may replace another one.
    is_fixed = job.train is not None or recorded.get("is_trained") is not False
    if recorded and is_fixed:
        changes = _changes(recorded, settings, folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # First: check_output_folder recognizes a sweep by this file.
        write_json(folder / ENVIRONMENT, {**run_folder.environment(), "settings": settings})
        write_text(folder / CONFIG, yaml.safe_dump(options, sort_keys=False))
        write_text(folder / COMMAND, run_folder.format_command(command) + "\n")
    return changes


def _changes(recorded: dict[str, Any], settings: dict[str, Any], folder: Path) -> list[str]:
    """The allowed differences between recorded and new settings, else CheckpointError."""
    before = {name: value for name, value in recorded.items() if name not in _OF_CALL}
    same_data = before | {"data": settings["data"]}
    changes = compare_settings(same_data, settings, folder, _MAY_CHANGE)
    if before.get("data") != settings["data"]:
        names = data_names(settings)
        old_names = data_names(before)
        was = "changed since" if names == old_names else f"now, {old_names} before"
        problem = f"was made with other data ({names} {was})"
        raise CheckpointError(f"{folder} {problem}; choose another --output_dir")
    return changes


def data_names(settings: Mapping[str, Any]) -> str:
    """The names of the data in recorded settings."""
    return ", ".join(str(settings[name]) for name in DATA_FILES if settings.get(name))


def export_best(job: TaskJob, objective: TaskObjective, result: SeedResult) -> None:
    """Write the model of a seed as a stock Hugging Face folder with task details and a card."""
    columns = job.task.columns
    details = {
        "task": job.task.name,
        "family": job.base.family,
        "seed": result.seed,
        "labels": list(job.data.labels),
        "columns": {"text": columns.text, "pair": columns.pair},
    }
    for name in RECORDED:
        details[name] = getattr(job.plan, name)
    facts = _task_facts(job, result.metrics, f"seed {result.seed}")
    model = copy.deepcopy(objective.model).cpu()  # the next seed trains the same tensors
    save.save_model(model, job.base.tokenizer, job.folder / MODEL, details, facts)
    record_digests(job.folder, MODEL_FILES)


def _task_facts(job: TaskJob, metrics: Metrics, of: str) -> card.Facts:
    """Facts for the model card; `of` describes the scores, such as `seed 42`."""
    data = job.config.data
    task = job.task
    name = table_name(data) if task.name == CUSTOM else task.name
    evaluation_set = job.deciding_set
    fields: dict[str, Any] = {"dataset_type": name}
    hub = task.hub
    if hub is not None and not registry.has_official_evaluation(hub, data):
        hub = None  # whose scores are not comparable
    if hub is not None:
        split = hub.evaluation.get(evaluation_set)
        fields = {"dataset_type": hub.dataset, "dataset_config": hub.config, "dataset_split": split}
    fields |= {"task_type": card.HUB_TASKS[task.kind], "dataset_name": name}
    scores = {}
    results = []
    for metric in task.metrics:
        value = metrics.get(metric)
        if value is not None:
            scores[metric] = value
            title = f"{metric} ({of})"
            results.append(
                EvalResult(metric_type=metric, metric_value=value, metric_name=title, **fields)
            )
    base = None if job.is_from_scratch else job.base.name
    examples = f"`{name}` ({len(job.data.train):,} examples)"
    if job.train is None:
        text = f"Scores of `{base}` on `{name}`, without further training."
    elif base is None:
        text = f"Trained from scratch on {examples}."
    else:
        text = f"Fine-tuned from `{base}` on {examples}."
    if job.data.labels:
        text += f" Labels: {', '.join(f'`{label}`' for label in job.data.labels)}."
    values = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
    count = len(job.data.evaluation[evaluation_set])
    text += f" On {count:,} examples of {evaluation_set} ({of}): {values}."
    known = {
        "base_model": base,
        "datasets": [hub.dataset] if hub else None,
        "metrics": list(scores),
        "model_name": f"{job.base.name}-{name}",
        "eval_results": results,
    }
    return card.Facts(known, text)


def summarize_sweep(
    job: TaskJob, results: Sequence[SeedResult], best: SeedResult
) -> dict[str, Any]:
    """The contents of results.json."""
    values = metric_inputs([best], job.deciding_set)[0]
    sizes = {name: len(examples) for name, examples in job.data.evaluation.items()}
    return {
        "task": job.task.name,
        "model": job.config.tuning.model or job.base.name,
        "from_scratch": job.is_from_scratch,
        "head": job.head.style,
        "seeds": [result.seed for result in results],
        "best_seed": best.seed,
        "collapsed_seeds": [result.seed for result in results if result.is_collapsed],
        "constant_baseline": scoring.constant_baseline(job.measure, values),
        "class_weights": job.config.tuning.class_weights,
        "main_metric": job.task.main,
        "official_metrics": job.task.metrics,
        "measure": job.measure,
        "deciding_set": job.deciding_set,
        "interval_level": scoring.LEVEL,
        "updates": [result.step for result in results],
        "train_examples": len(job.data.train),
        "evaluation_examples": sizes,
        "evaluation_fingerprints": job.evaluation_fingerprints,
        "noticed": job.data.report.lines(),
        "metrics": _summarize_metrics(job, results, best),
    }


def _summarize_metrics(
    job: TaskJob, results: Sequence[SeedResult], best: SeedResult
) -> dict[str, Any]:
    """Statistics over seeds of each metric, with intervals."""
    metrics = {}
    for name in best.metrics:
        values: list[Any] = [result.metrics.get(name) for result in results]
        # Some seeds may lack a metric, such as F1 of a class they never predict.
        if None not in values:
            is_lower_better = name.endswith(("loss", "mean_squared_error"))
            metrics[name] = scoring.summarize(values, is_lower_better=is_lower_better)
    measure = scoring.MEASURES[job.measure]
    for set_name in best.values:
        per_seed = metric_inputs(results, set_name)
        intervals = scoring.bootstrap_intervals(per_seed, measure, job.training.seed)
        for name, interval in intervals.items():
            summary = metrics.get(job.prefix(set_name) + name)
            if summary is not None:
                summary["interval"] = interval
    return metrics


def write_results(job: TaskJob, results: Sequence[SeedResult], best: SeedResult) -> str:
    """Write results.json and .md, the best seed's predictions and the card; returns the table."""
    folder = job.folder
    summary = summarize_sweep(job, results, best)
    table = format_results(summary)
    with writing(folder):
        for name, examples in job.data.evaluation.items():
            predictions = best.predictions[name]
            contents = [predictions_table(examples, predictions, best.probabilities[name])]
            if job.measure in ("classification", "token"):
                contents.append(confusion_table(job.data.labels, examples, predictions))
            for file, content in zip(_TABLES, contents, strict=False):
                suffix = f"_{name}.tsv" if job.prefix(name) else ".tsv"
                write_text(folder / file.replace(".tsv", suffix), content)
        write_text(folder / TABLE, table + "\n")
        _write_card(job, summary, table)
        write_json(folder / RESULTS, summary)
    return table


def _write_card(job: TaskJob, results: Mapping[str, Any], table: str) -> None:
    """Write the folder's card: scores, code to load the model, command to reproduce it."""
    path = f'"THIS_FOLDER", subfolder="{MODEL}"'
    own_path = f"THIS_FOLDER/{MODEL}"
    choice = (
        f"the model is from the best seed, {results['best_seed']}, selected on the evaluation set "
        "itself: its score is optimistic, the median is not."
    )
    if job.train is None and job.base.files is not None:
        own_path = str(job.base.files.weights.parent)
        path = f'"{own_path}"'
        choice = "the model was only evaluated here."
    code = card.OWN_CODE.replace("THIS_FOLDER", own_path)
    library = None
    if job.shape.is_stock:
        library = "transformers"
        code = card.stock_code(job.head.architecture, path, with_pooler=job.head.has_pooler)
    medians = {name: metric["median"] for name, metric in results["metrics"].items()}
    facts = _task_facts(job, medians, f"median of {len(results['seeds'])} seed(s)")
    tags = ["albert", "electra", job.task.name]
    fields = {"library_name": library, "tags": tags, **facts.fields}
    note = f"results.json has the same scores as fractions, for every seed; {choice}"
    words = (job.folder / COMMAND).read_text(encoding="utf-8", errors="replace")
    command = run_folder.format_command(shlex.split(words), is_public=True)
    text = f"{facts.text}\n\n{table}\n\n{note}"
    card.write_card(job.folder, card.Facts(fields, text), code, command)


def format_results(results: Mapping[str, Any]) -> str:
    """The official metrics and ELECTRA's as a Markdown table, for every evaluation set."""
    seeds = len(results["seeds"])
    counts = [f"{count:,} {name}" for name, count in results["evaluation_examples"].items()]
    sizes = f"{results['train_examples']:,} train, {', '.join(counts)} examples, {seeds} seed(s)"
    model = run_folder.without_folders(results["model"])
    if results["from_scratch"]:
        model += " from scratch"
    rows = []
    for name in table_metrics(results):
        metric = results["metrics"][name]
        title = f"**{name}**" if name == results["main_metric"] else name
        summary = [percent(metric[key]) for key in ("median", "mean", "std", "best")]
        interval = " to ".join(map(percent, metric["interval"]))
        values = " ".join(map(percent, metric["values"]))
        rows.append([title, *summary, interval, values])
    columns = "metric (x 100),median,mean,std,best,95 % interval of the mean,per seed"
    title = f"{results['task']}, {model}: {sizes}"
    lines = [title, "", *markdown_table(columns.split(","), rows)]
    for name, score in results["constant_baseline"].items():
        lines += ["", f"baseline (the same prediction for every example): {name} {percent(score)}"]
    if seeds == 1:
        lines += ["", "one seed gives no std: use --seeds 5 to measure the variation between seeds"]
    if results["collapsed_seeds"]:
        lines += ["", _warning(results)]
    return "\n".join(lines)


def _warning(results: Mapping[str, Any]) -> str:
    """The warning about collapsed seeds, with advice if they were trained here."""
    collapsed = ", ".join(map(str, results["collapsed_seeds"]))
    warning = f"warning: collapsed (same prediction for every example): seed {collapsed}"
    if any(results["updates"]):
        warning += f"; try {_ADVICE.get(results['measure'], 'a lower --learning_rate')}"
        if results["measure"] == "classification" and results["class_weights"] == "none":
            warning += (
                ", or --class_weights balanced if one label is far more frequent than the others"
            )
    return warning


def table_metrics(results: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Evaluation set and metric by name: the official metrics and ELECTRA's, for every set."""
    names = {}
    for set_name in results["evaluation_examples"]:
        for metric in (results["main_metric"], *results["official_metrics"]):
            name = metric
            if set_name != results["deciding_set"]:
                name = f"{set_name}_{metric}"
            if name in results["metrics"]:
                names[name] = (set_name, metric)
    return names


def percent(value: float | None) -> str:
    """A fraction times 100 with two decimals."""
    return "-" if value is None else f"{100 * value:.2f}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    rule = ["---"] * len(header)
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


def describe_files(job: TaskJob) -> list[str]:
    """The files in the folder and the next command, if there are any."""
    form = "stock Hugging Face folder" if job.shape.is_stock else "this toolkit's own format"
    files = [name for name in (RESULTS, TABLE, *_TABLES) if (job.folder / name).exists()]
    if (job.folder / MODEL).exists():
        files.append(f"{MODEL}/ (best seed, {form})")
    if not files:
        return []
    lines = [f"written to {job.folder}: {', '.join(files)}"]
    has_single_texts = getattr(next(iter(job.data.train), None), "text_pair", "") is None
    if has_single_texts and job.config.tuning.predict is None:
        command = ("finetune", "--model", str(job.folder), "--predict", "new_texts.txt")
        lines.append(run_folder.next_command(*command))
    return lines
