"""What a sweep leaves behind: settings, results, predictions to look at, a model and its card.

results.json holds fractions; tables show them times 100.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from electra_albert.apps.finetune.tables import confusion_table, format_results, predictions_table
from electra_albert.apps.run_folder import (
    CARD,
    COMMAND,
    CONFIG,
    ENVIRONMENT,
    compare_settings,
    environment,
    recorded_settings,
    write_whole,
    writing,
)
from electra_albert.contracts import CheckpointError, Metrics, UsageError
from electra_albert.corpus.tokenizer import fingerprint
from electra_albert.finetuning_config import CUSTOM, FinetuneConfig, as_flat_settings, table_name
from electra_albert.hub.load import TASK_FILE
from electra_albert.hub.save import save_model
from electra_albert.model.attention import stock_computes
from electra_albert.tasks.metrics import LOWER_IS_BETTER, MEASURES
from electra_albert.tasks.statistics import LEVEL, bootstrap_intervals, summarize
from electra_albert.training.run_log import LOG_FILE

if TYPE_CHECKING:
    from electra_albert.apps.finetune.job import TaskJob
    from electra_albert.apps.finetune.sweep import SeedResult
    from electra_albert.hub.card import Facts
    from electra_albert.tasks.objective import TaskObjective

RESULTS, TABLE, MODEL = "results.json", "results.md", "model"
PREDICTIONS, CONFUSION = "predictions.tsv", "confusion.tsv"
SUBMISSION, PREDICTED = "submission", "predicted.tsv"
_TABLE_HEADER = b"id\tgold\tpredicted\t"  # of predictions_table
_WRITTEN = (CONFIG, COMMAND, CARD, RESULTS, TABLE, PREDICTIONS, CONFUSION, SUBMISSION, PREDICTED, LOG_FILE)
_OF_THE_CALL = frozenset({"predict", "compare", "resume", "dry_run"})  # they leave the sweep as it is
DATA_FILES = ("data_dir", "train_file", "validation_file")
# Settings that say where things lie and how many seeds there are; what lies there is compared by fingerprint.
_MAY_CHANGE = frozenset(
    {
        "model",
        "output_dir",
        "data_dir",
        "train_file",
        "validation_file",
        "unknown_labels",
        "test_file",
        "prepared_dir",
        "encoding",
        "seeds",
        "device",
        "from_mnli",
        "arithmetic",
        "logging_steps",
        "per_device_train_batch_size",  # the batch is compared as a whole
        "gradient_accumulation_steps",
        "per_device_eval_batch_size",
        "gradient_checkpointing",
    }
)


_AUTO = {
    "sequence": "AutoModelForSequenceClassification",
    "choice": "AutoModelForMultipleChoice",
    "span": "AutoModelForQuestionAnswering",
    "token": "AutoModelForTokenClassification",
}


def check_is_ours(folder: Path) -> None:
    """UsageError where the folder holds what a sweep would overwrite and was not made by one."""
    for taken in ("checkpoints", "generator"):
        if (folder / taken).exists():
            raise UsageError(f"{folder} is the folder of a pretraining run; choose another --output_dir")
    if (folder / ENVIRONMENT).is_file():
        return
    taken_names = [name for name in (*_WRITTEN, MODEL) if (folder / name).exists()]
    if taken_names:
        raise UsageError(
            f"{folder} was not made by Finetuning.py and holds {taken_names[0]}, which would be overwritten; choose "
            "another --output_dir"
        )


def check_is_table(file: Path) -> None:
    """UsageError where there is a file that was not written by a prediction."""
    if file.exists() and not (file.is_file() and file.read_bytes().startswith(_TABLE_HEADER)):
        raise UsageError(f"{file} was not written by Finetuning.py and would be replaced; choose another --output_dir")


def open_folder(job: TaskJob, folder: Path, argv: Sequence[str], found: Mapping[str, Any]) -> list[str]:
    """Record the sweep in its folder; returns what changed since it began.

    `found` is what is not in the options, such as the fingerprint of the data. Raises CheckpointError where the folder
    holds a sweep with other settings, UsageError where it holds one and --resume never, or cannot be written.
    """
    import yaml

    options = {name: value for name, value in as_flat_settings(job.config).items() if name not in _OF_THE_CALL}
    settings = {
        **options,
        "task": job.task.name,  # however it was spelt
        "is_trained": job.train is not None,
        "arithmetic": job.arithmetic,
        "updates": job.training.max_steps,
        "weights": job.start.fingerprint,
        "tokenizer_fingerprint": fingerprint(job.start.tokenizer),
        **found,
    }
    recorded, changes = recorded_settings(folder), []
    if recorded:
        if job.config.tuning.resume == "never":
            raise UsageError(f"--resume never, but {folder} holds a sweep; choose another --output_dir")
        if job.train is not None or recorded.get("is_trained") is not False:  # a scoring is made anew over a scoring
            changes = _changes(recorded, settings, folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # First of all: a folder that holds it is known to be a sweep's.
        write_whole(folder / ENVIRONMENT, json.dumps({**environment(), "settings": settings}, indent=2) + "\n")
        write_whole(folder / CONFIG, yaml.safe_dump(options, sort_keys=False))
        write_whole(folder / COMMAND, shlex.join(["python", "Finetuning.py", *argv]) + "\n")
    return changes


def _is_same_file(then: Any, now: Any) -> bool:
    return then == now or (None not in (then, now) and os.path.realpath(then) == os.path.realpath(now))


def _changes(recorded: Mapping[str, Any], settings: Mapping[str, Any], folder: Path) -> list[str]:
    """What changed since the sweep in the folder began; CheckpointError where it would train on something else."""
    defaults = as_flat_settings(FinetuneConfig())  # of options that an older version did not record
    then = {name: value for name, value in {**defaults, **recorded}.items() if name not in _OF_THE_CALL}
    is_other_data = then.get("data") != settings["data"]
    moved = [name for name in DATA_FILES if not _is_same_file(then.get(name), settings.get(name))]
    if is_other_data and moved:
        files = [", ".join(str(side[name]) for name in moved if side.get(name)) for side in (then, settings)]
        raise CheckpointError(
            f"{folder} was made with other data files ({files[0]} then, {files[1]} now); choose another --output_dir"
        )
    changes = compare_settings({**then, "data": settings["data"]}, settings, folder, _MAY_CHANGE)
    if is_other_data:
        files = [str(settings[name]) for name in DATA_FILES if settings.get(name)]
        raise CheckpointError(
            f"{folder} was made with other data: {', '.join(files)} changed since then; choose another --output_dir"
        )
    return changes


def export_best(job: TaskJob, objective: TaskObjective, seed: int, folder: Path, metrics: Metrics) -> None:
    """Write the fine-tuned model of a seed as a stock folder that says what it is for and what it reached."""
    details = {
        "task": job.task.name,
        "family": job.start.family,
        "seed": seed,
        "labels": list(job.data.labels),
        "columns": {"text": list(job.task.columns.text), "pair": list(job.task.columns.pair)},
        "is_regression": job.plan.is_regression,
        "has_null_answer": job.plan.has_null_answer,
        "max_seq_length": job.plan.max_seq_length,
        "doc_stride": job.plan.doc_stride,
        "max_answer_length": job.plan.max_answer_length,
    }
    facts = task_facts(job, metrics, f"seed {seed}")
    save_model(objective.model.cpu(), job.start.tokenizer, folder / MODEL, details, facts)


def task_facts(job: TaskJob, metrics: Metrics, of: str) -> Facts:
    """What the card of a fine-tuned model says of it: task, data, model it began with, labels and official scores.

    `of` says what the scores are of, such as one seed.
    """
    from huggingface_hub import EvalResult

    from electra_albert.hub.card import HUB_TASKS, Facts

    data, examples = job.config.data, len(job.data.evaluation[job.deciding_set])
    name = table_name(data) if job.task.name == CUSTOM else job.task.name
    own = (data.train_file, data.validation_file, data.validation_split, data.max_eval_examples)
    hub = None if any(own) else job.task.hub  # of other data than the task's own, or a part, scores are no comparison
    is_from_scratch = job.start.files is None or (job.train is not None and job.config.tuning.from_scratch)
    base = None if is_from_scratch else job.start.name
    scores = {metric: metrics[metric] for metric in job.task.metrics if metrics.get(metric) is not None}
    results = [
        EvalResult(
            task_type=HUB_TASKS[job.task.kind],
            dataset_type=hub.dataset if hub else name,
            dataset_name=name,
            dataset_config=hub.config if hub else None,
            dataset_split=hub.evaluation.get(job.deciding_set) if hub else None,
            metric_type=metric,
            metric_value=value,
            metric_name=f"{metric} ({of})",
        )
        for metric, value in scores.items()
    ]
    begun = "with random weights" if base is None else f"with the weights of `{base}`"
    labels = f" Labels: {', '.join(f'`{label}`' for label in job.data.labels)}." if job.data.labels else ""
    reached = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
    made = f"Fine-tuned on `{name}` ({len(job.data.train):,} examples), beginning {begun}."
    if job.train is None:
        made = f"Scores of `{base}`, which was not trained any further, on `{name}`."
    text = f"{made}{labels} On {examples:,} examples of {job.deciding_set} ({of}): {reached}."
    datasets = [hub.dataset] if hub else None
    known = {"base_model": base, "datasets": datasets, "metrics": list(scores)}
    return Facts({**known, "model_name": f"{job.start.name}-{name}", "eval_results": results}, text)


def check_model(folder: Path, seed: int) -> None:
    """CheckpointError unless the model in the folder is that of a seed."""
    try:
        content = json.loads((folder / MODEL / TASK_FILE).read_text(encoding="utf-8"))
        found = content.get("seed") if isinstance(content, dict) else None
    except (OSError, ValueError):
        found = None
    if found != seed:
        what = "is gone or damaged" if found is None else f"is that of seed {found}"
        raise CheckpointError(
            f"{folder / MODEL} {what}, the best seed is {seed}; remove {folder / f'seed-{seed}'} to train it again"
        )


def summarize_sweep(job: TaskJob, results: Sequence[SeedResult], best: SeedResult) -> dict[str, Any]:
    """The contents of results.json."""
    # A metric that only some seeds have, such as the F1 of a class the others never named, is no metric of the sweep.
    names = [name for name in best.metrics if all(result.metrics.get(name) is not None for result in results)]
    metrics: dict[str, Any] = {
        name: summarize(
            [result.metrics[name] for result in results],
            is_lower_better=name.endswith("loss") or name in LOWER_IS_BETTER,
        )
        for name in names
    }
    for set_name in best.values:
        per_seed = [np.asarray(result.values[set_name], dtype=np.float64) for result in results]
        prefix = "" if set_name == job.deciding_set else f"{set_name}_"
        for name, interval in bootstrap_intervals(per_seed, MEASURES[job.measure], job.config.training.seed).items():
            if f"{prefix}{name}" in metrics:
                metrics[f"{prefix}{name}"]["interval"] = list(interval)
    return {
        "task": job.task.name,
        "model": job.config.tuning.model or job.start.name,
        "from_scratch": job.train is not None and (job.config.tuning.from_scratch or job.start.files is None),
        "head": job.head.style,
        "seeds": [result.seed for result in results],
        "best_seed": best.seed,
        "collapsed_seeds": [result.seed for result in results if result.is_collapsed],
        "commonest_share": _commonest_share(job, best),
        "class_weights": job.config.tuning.class_weights,
        "main_metric": job.task.main,
        "official_metrics": list(job.task.metrics),
        "measure": job.measure,
        "deciding_set": job.deciding_set,
        "interval_level": LEVEL,
        "updates": [result.step for result in results],
        "train_examples": len(job.data.train),
        "evaluation_examples": {name: len(examples) for name, examples in job.data.evaluation.items()},
        "noticed": job.data.report.lines(),
        "metrics": metrics,
    }


def _commonest_share(job: TaskJob, result: SeedResult) -> float | None:
    """The accuracy of always the commonest gold label; None where labels are no classes."""
    if job.measure not in ("classification", "choice"):
        return None
    _, counts = np.unique(np.asarray(result.values[job.deciding_set])[:, 1], return_counts=True)
    return float(counts.max() / counts.sum())


def write_results(job: TaskJob, folder: Path, results: Mapping[str, Any], best: SeedResult) -> None:
    """Write results.json, the table, the best seed's predictions and the card; UsageError where that fails."""
    with writing(folder):
        for name, examples in job.data.evaluation.items():
            suffix = "" if name == job.deciding_set else f"_{name}"
            predicted = predictions_table(examples, best.predictions[name], best.probabilities[name])
            write_whole(folder / _with_suffix(PREDICTIONS, suffix), predicted)
            confusion = confusion_table(job.measure, job.data.labels, examples, best.predictions[name])
            if confusion:
                write_whole(folder / _with_suffix(CONFUSION, suffix), confusion)
        write_whole(folder / TABLE, format_results(results) + "\n")
        _write_card(job, folder, results)
        write_whole(folder / RESULTS, json.dumps(results, indent=2) + "\n")


def _with_suffix(name: str, suffix: str) -> str:
    stem, dot, kind = name.partition(".")
    return f"{stem}{suffix}{dot}{kind}"


def _write_card(job: TaskJob, folder: Path, results: Mapping[str, Any]) -> None:
    """Write the folder's card: scores, how to load the model, how to make it again."""
    from electra_albert.hub import card

    is_stock = stock_computes(job.shape)
    loader = (
        "AutoModel" if job.head.style == "electra" and job.head.kind in ("sequence", "choice") else _AUTO[job.head.kind]
    )
    path, own_path = f'"THIS_FOLDER", subfolder="{MODEL}"', f"THIS_FOLDER/{MODEL}"
    choice = (
        f"the model is that of the best seed, {results['best_seed']}, chosen on the set it is scored on: its score is "
        "optimistic, the median is not."
    )
    if job.train is None and job.start.files is not None:
        own_path = str(job.start.files.weights.parent)
        path, choice = f'"{own_path}"', "the model was fine-tuned elsewhere and only scored here."
    medians = {name: metric["median"] for name, metric in results["metrics"].items()}
    facts = task_facts(job, medians, f"median of {len(results['seeds'])} seed(s)")
    fields = {
        "library_name": "transformers" if is_stock else None,
        "tags": ["albert", "electra", job.task.name],
        **facts.fields,
    }
    note = f"Fractions of the same numbers, with every seed, are in results.json; {choice}"
    text = f"{facts.text}\n\n{format_results(results)}\n\n{note}"
    code = card.stock_code(loader, path) if is_stock else card.OWN_CODE.replace("THIS_FOLDER", own_path)
    command = (folder / COMMAND).read_text(encoding="utf-8").strip()
    card.write_card(folder, card.Facts(fields, text), code, command)
