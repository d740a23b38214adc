"""The folder of a sweep: settings, results.json (fractions), tables (x 100), predictions, model and card."""

import copy
import shlex
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from huggingface_hub import EvalResult

from electra_albert.apps import run_folder
from electra_albert.apps.finetune.job import TaskJob
from electra_albert.apps.run_folder import CARD, COMMAND, CONFIG, ENVIRONMENT, writing
from electra_albert.apps.settings import compare_settings, recorded_settings
from electra_albert.config import TrainingConfig, names_of
from electra_albert.contracts import CheckpointError, Metrics, UsageError, redacted
from electra_albert.files import load_json, record_digests, write_json, write_text
from electra_albert.finetuning_config import (
    CUSTOM,
    DERIVED,
    DataConfig,
    FinetuneConfig,
    TuningConfig,
    table_name,
)
from electra_albert.hub import card, save
from electra_albert.tasks import metrics as scoring
from electra_albert.tasks.kinds import TaskObjective
from electra_albert.tasks.task import ChoiceExample, SequenceExample, SpanExample, TokenExample
from electra_albert.tokenization.tokenizer import fingerprint
from electra_albert.training.run_log import LOG_FILE

RESULT, RESULTS, TABLE, MODEL = "result.json", "results.json", "results.md", "model"
MODEL_FILES = f"{MODEL}/*[!d]"  # without the card, README.md, which users may edit
PREDICTIONS, CONFUSION, SUBMISSION, PREDICTED = "predictions{}.tsv", "confusion{}.tsv", "submission", "predicted.tsv"
PREDICTIONS_HEADER = "id\tgold\tpredicted\t"
_OUTPUTS = (CONFIG, COMMAND, CARD, RESULTS, TABLE, "predictions.tsv", "confusion.tsv", SUBMISSION, PREDICTED, LOG_FILE)
DATA_FILES = ("data_dir", "train_file", "validation_file")  # whose contents are compared by a hash
_OF_CALL = names_of("per_call", TuningConfig)  # not recorded
_MAY_CHANGE = names_of("free by_content", DataConfig, TuningConfig)
_MAY_CHANGE |= names_of("free", TrainingConfig) - DERIVED
_SHOWN_CHARACTERS = 500  # of a text in predictions.tsv


class SeedResult(NamedTuple):
    """The results of one seed; the fields are the keys of its result.json."""

    seed: int
    step: int
    metrics: Metrics
    values: dict[str, list[list[float]]]  # by evaluation set: inputs of the metrics, one row per example
    predictions: dict[str, list[Any]]  # by evaluation set
    probabilities: dict[str, list[Any] | None]
    is_collapsed: bool  # the same prediction for every example
    new_parts: list[str]  # randomly initialized parts of the model


def best_of(job: TaskJob, results: Iterable[SeedResult]) -> SeedResult:
    """The result with the best main metric; the first of equal ones."""
    return max(results, key=lambda result: result.metrics[job.task.main])


def read_result(folder: Path) -> SeedResult | None:
    """The result in a seed's folder; None if the seed is not finished."""
    file = folder / RESULT
    try:
        return SeedResult(**load_json(file, SeedResult.__annotations__))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:  # the last for further keys
        raise CheckpointError(f"{file} cannot be read ({error}); remove {folder} to train this seed again") from None


def check_output_folder(folder: Path) -> None:
    """UsageError if a sweep would overwrite files of another origin in the folder."""
    if any((folder / name).exists() for name in ("checkpoints", "generator")):
        raise UsageError(f"{folder} is the folder of a pretraining run; choose another --output_dir")
    taken = [name for name in (*_OUTPUTS, MODEL) if (folder / name).exists()]
    if taken and not (folder / ENVIRONMENT).is_file():
        raise UsageError(f"{folder} holds {taken[0]}, not made by fine-tuning; choose another --output_dir")


def open_folder(job: TaskJob, command: Sequence[str]) -> list[str]:
    """Record the sweep's settings in its folder; returns what changed since an earlier command."""
    folder = job.folder
    options = redacted(job.config.options())
    options = {name: options[name] for name in options if name not in _OF_CALL}
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
    recorded, changes = recorded_settings(folder), []
    if recorded and job.config.tuning.resume == "never":
        raise UsageError(f"--resume never, but {folder} holds a sweep; choose another --output_dir")
    # A sweep without training may replace another one.
    if recorded and (job.train is not None or recorded.get("is_trained") is not False):
        before = {**FinetuneConfig().options(), **recorded}  # an older version did not record all options
        same_data = {name: value for name, value in before.items() if name not in _OF_CALL}
        same_data["data"] = settings["data"]
        changes = compare_settings(same_data, settings, folder, _MAY_CHANGE)
        if before.get("data") != settings["data"]:
            files = [", ".join(str(side[name]) for name in DATA_FILES if side.get(name)) for side in (before, settings)]
            was = "changed since" if files[0] == files[1] else f"now, {files[0]} before"
            raise CheckpointError(f"{folder} was made with other data ({files[1]} {was}); choose another --output_dir")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # First: check_output_folder recognizes a sweep by this file.
        write_json(folder / ENVIRONMENT, {**run_folder.environment(), "settings": settings})
        write_text(folder / CONFIG, yaml.safe_dump(options, sort_keys=False))
        write_text(folder / COMMAND, run_folder.format_command(command) + "\n")
    return changes


def export_best(job: TaskJob, objective: TaskObjective, result: SeedResult) -> None:
    """Write the fine-tuned model of a seed as a stock Hugging Face folder with task details and a card."""
    recorded = "is_regression has_null_answer max_seq_length doc_stride max_answer_length"
    details = {
        "task": job.task.name,
        "family": job.base.family,
        "seed": result.seed,
        "labels": list(job.data.labels),
        "columns": {"text": list(job.task.columns.text), "pair": list(job.task.columns.pair)},
        **{name: getattr(job.plan, name) for name in recorded.split()},
    }
    facts = _task_facts(job, result.metrics, f"seed {result.seed}")
    model = copy.deepcopy(objective.model).cpu()  # the next seed trains the same tensors
    save.save_model(model, job.base.tokenizer, job.folder / MODEL, details, facts)
    record_digests(job.folder, MODEL_FILES)


def _task_facts(job: TaskJob, metrics: Metrics, of: str) -> card.Facts:
    """Facts for the model card; `of` describes the scores, such as `seed 42`."""
    data, task, deciding = job.config.data, job.task, job.deciding_set
    name = table_name(data) if task.name == CUSTOM else task.name
    is_own = any((data.train_file, data.validation_file, data.validation_split, data.max_eval_examples))
    hub = None if is_own else task.hub  # scores on other data than the task's own are not comparable
    dataset_type, config, splits = (hub.dataset, hub.config, hub.evaluation) if hub else (name, None, {})
    scores = {metric: metrics[metric] for metric in task.metrics if metrics.get(metric) is not None}
    dataset: dict[str, Any] = {"dataset_config": config, "dataset_split": splits.get(deciding)}
    results = [
        EvalResult(card.HUB_TASKS[task.kind], dataset_type, name, *score, metric_name=f"{score[0]} ({of})", **dataset)
        for score in scores.items()
    ]
    base = None if job.is_from_scratch else job.base.name
    start = "Trained from scratch" if base is None else f"Fine-tuned from `{base}`"
    made = f"{start} on `{name}` ({len(job.data.train):,} examples)."
    if job.train is None:
        made = f"Scores of `{base}` on `{name}`, without further training."
    labels = f" Labels: {', '.join(f'`{label}`' for label in job.data.labels)}." if job.data.labels else ""
    reached = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
    text = f"{made}{labels} On {len(job.data.evaluation[deciding]):,} examples of {deciding} ({of}): {reached}."
    known = {"base_model": base, "datasets": [hub.dataset] if hub else None, "metrics": list(scores)}
    return card.Facts({**known, "model_name": f"{job.base.name}-{name}", "eval_results": results}, text)


def summarize_sweep(job: TaskJob, results: Sequence[SeedResult], best: SeedResult) -> dict[str, Any]:
    """The contents of results.json."""
    tuning = job.config.tuning
    metrics: dict[str, Any] = {}
    for name in best.metrics:
        values: list[Any] = [result.metrics.get(name) for result in results]
        if None not in values:  # a metric may be missing for some seeds, such as F1 of a class they never predict
            is_lower_better = name.endswith("loss") or name in scoring.LOWER_IS_BETTER
            metrics[name] = scoring.summarize(values, is_lower_better=is_lower_better)
    measure, seed = scoring.MEASURES[job.measure], job.config.training.seed
    for set_name in best.values:
        per_seed = [np.asarray(result.values[set_name], dtype=np.float64) for result in results]
        prefix = "" if set_name == job.deciding_set else f"{set_name}_"
        for name, interval in scoring.bootstrap_intervals(per_seed, measure, seed).items():
            if f"{prefix}{name}" in metrics:
                metrics[f"{prefix}{name}"]["interval"] = list(interval)
    majority_share = None  # accuracy of the majority baseline
    if job.measure in ("classification", "choice"):
        counts = Counter(gold for _, gold, *_ in best.values[job.deciding_set])
        majority_share = max(counts.values()) / counts.total()
    return {
        "task": job.task.name,
        "model": tuning.model or job.base.name,
        "from_scratch": job.is_from_scratch,
        "head": job.head.style,
        "seeds": [result.seed for result in results],
        "best_seed": best.seed,
        "collapsed_seeds": [result.seed for result in results if result.is_collapsed],
        "commonest_share": majority_share,
        "class_weights": tuning.class_weights,
        "main_metric": job.task.main,
        "official_metrics": list(job.task.metrics),
        "measure": job.measure,
        "deciding_set": job.deciding_set,
        "interval_level": scoring.LEVEL,
        "updates": [result.step for result in results],
        "train_examples": len(job.data.train),
        "evaluation_examples": {name: len(examples) for name, examples in job.data.evaluation.items()},
        "noticed": job.data.report.lines(),
        "metrics": metrics,
    }


def write_results(job: TaskJob, done: Sequence[SeedResult], best: SeedResult) -> str:
    """Write results.json, results.md, the best seed's predictions and the card; returns the table."""
    folder = job.folder
    results = summarize_sweep(job, done, best)
    table = format_results(results)
    with writing(folder):
        for name, examples in job.data.evaluation.items():
            suffix, found = "" if name == job.deciding_set else f"_{name}", best.predictions[name]
            shown = predictions_table(examples, found, best.probabilities[name])
            write_text(folder / PREDICTIONS.format(suffix), shown)
            if job.measure in ("classification", "token"):
                write_text(folder / CONFUSION.format(suffix), confusion_table(job.data.labels, examples, found))
        write_text(folder / TABLE, table + "\n")
        _write_card(job, results, table)
        write_json(folder / RESULTS, results)
    return table


def _write_card(job: TaskJob, results: Mapping[str, Any], table: str) -> None:
    """Write the folder's card: scores, code to load the model, command to reproduce it."""
    path, own_path = f'"THIS_FOLDER", subfolder="{MODEL}"', f"THIS_FOLDER/{MODEL}"
    choice = f"the model is from the best seed, {results['best_seed']}, selected on the evaluation set itself: "
    choice += "its score is optimistic, the median is not."
    if job.train is None and job.base.files is not None:
        own_path = str(job.base.files.weights.parent)
        path, choice = f'"{own_path}"', "the model was only evaluated here."
    code, library = card.OWN_CODE.replace("THIS_FOLDER", own_path), None
    if job.shape.is_stock:
        library = "transformers"
        code = card.stock_code(job.head.architecture, path, with_pooler=job.head.has_pooler)
    medians = {name: metric["median"] for name, metric in results["metrics"].items()}
    facts = _task_facts(job, medians, f"median of {len(results['seeds'])} seed(s)")
    fields = {"library_name": library, "tags": ["albert", "electra", job.task.name], **facts.fields}
    note = f"results.json has the same scores as fractions, for every seed; {choice}"
    words = shlex.split((job.folder / COMMAND).read_text(encoding="utf-8", errors="replace"))
    command = run_folder.format_command(words, is_public=True)
    card.write_card(job.folder, card.Facts(fields, f"{facts.text}\n\n{table}\n\n{note}"), code, command)


def format_results(results: Mapping[str, Any]) -> str:
    """The results as a Markdown table: the official metrics and ELECTRA's, for every evaluation set."""
    sizes = ", ".join(f"{count:,} {name}" for name, count in results["evaluation_examples"].items())
    base = run_folder.without_folders(results["model"])
    model = f"{results['task']}, {base}{' from scratch' * results['from_scratch']}"
    counts = f"{results['train_examples']:,} train, {sizes} examples, {len(results['seeds'])} seed(s)"
    rows = []
    for name in shown_metrics(results):
        found = results["metrics"][name]
        title = f"**{name}**" if name == results["main_metric"] else name
        summary = [percent(found[key]) for key in ("median", "mean", "std", "best")]
        interval = " to ".join(map(percent, found["interval"]))
        rows.append([title, *summary, interval, " ".join(map(percent, found["values"]))])
    header = ("metric (x 100)", "median", "mean", "std", "best", "95 % interval of the mean", "per seed")
    lines = [f"{model}: {counts}", "", *markdown_table(header, rows)]
    if results["commonest_share"] is not None:
        lines += ["", f"majority baseline (most frequent label): accuracy {percent(results['commonest_share'])}"]
    if len(results["seeds"]) == 1:
        lines += ["", "one seed gives no std: use --seeds 5 to measure the variation between seeds"]
    if results["collapsed_seeds"]:
        seeds = ", ".join(map(str, results["collapsed_seeds"]))
        lines += ["", f"warning: collapsed (same prediction for every example): seed {seeds}"]
        if any(results["updates"]):  # trained here
            lines[-1] += "; try a lower --learning_rate"
            if results["measure"] == "classification" and results["class_weights"] == "none":
                lines[-1] += ", or --class_weights balanced if one label is far more frequent than the others"
    return "\n".join(lines)


def shown_metrics(results: Mapping[str, Any]) -> list[str]:
    """Names of the official metrics and ELECTRA's, for every evaluation set."""
    wanted = dict.fromkeys([results["main_metric"], *results["official_metrics"]])
    prefixes = ["" if name == results["deciding_set"] else f"{name}_" for name in results["evaluation_examples"]]
    return [prefix + name for prefix in prefixes for name in wanted if prefix + name in results["metrics"]]


def percent(value: float | None) -> str:
    """A fraction times 100 with two decimals."""
    return "-" if value is None else f"{100 * value:.2f}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def predictions_table(examples: Sequence[Any], predictions: Sequence[Any], probabilities: Sequence[Any] | None) -> str:
    """One line per example: id, gold label, prediction, its probability (or that of no answer), and the text."""
    is_no_answer = probabilities is not None and isinstance(next(iter(probabilities), None), float)
    lines = [f"{PREDICTIONS_HEADER}{'no_answer' if is_no_answer else 'probability'}\ttext"]
    for example, predicted, found in zip(examples, predictions, probabilities or [None] * len(examples), strict=True):
        gold, text = _gold_and_text(example)
        shown = string.ascii_uppercase[predicted] if isinstance(example, ChoiceExample) else _as_text(predicted)
        score = "" if found is None else f"{found if isinstance(found, float) else max(found):.4f}"
        text = " ".join(text.split())
        if len(text) > _SHOWN_CHARACTERS:
            text = f"{text[:_SHOWN_CHARACTERS]} …"
        cells = (" ".join(cell.split()) for cell in (example.identity, gold, shown, score))
        lines.append("\t".join([*cells, text]))
    return "\n".join(lines) + "\n"


def _as_text(label: Any) -> str:
    if isinstance(label, float):
        return f"{label:.4f}"
    return " ".join(map(str, label)) if isinstance(label, list | tuple) else str("" if label is None else label)


def _gold_and_text(example: Any) -> tuple[str, str]:
    match example:
        case SequenceExample():
            pair = "" if example.text_pair is None else f" ||| {example.text_pair}"
            return _as_text(example.label), f"{example.text}{pair}"
        case TokenExample():
            return _as_text(example.tags), " ".join(example.words)
        case SpanExample():
            gold = " / ".join(dict.fromkeys(answer.text for answer in example.answers or ()))
        case _:
            gold = "" if example.label is None else string.ascii_uppercase[example.label]
    return gold, f"{example.question} ||| {example.context}"


def confusion_table(labels: Sequence[str], examples: Sequence[Any], predictions: Sequence[Any]) -> str:
    """Confusion matrix of texts or words: gold labels in rows, predicted labels in columns."""
    from sklearn.metrics import confusion_matrix

    gold = [(example.tags or ()) if isinstance(example, TokenExample) else [example.label] for example in examples]
    found = [one if isinstance(one, list) else [one] for one in predictions]
    counts = confusion_matrix([*chain(*gold)], [*chain(*found)], labels=labels)
    names = [" ".join(label.split()) for label in labels]
    rows = ["\t".join([name, *map(str, row)]) for name, row in zip(names, counts, strict=True)]
    return "\n".join(["\t".join(["gold \\ predicted", *names]), *rows]) + "\n"
