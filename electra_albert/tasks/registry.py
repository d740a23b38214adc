"""Definitions of all tasks: files, columns, labels, metrics and submission files."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from electra_albert.contracts import UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.task import MAX_DIGITS, TABLE_SUFFIXES, Columns, Files, Hub, Patterns, Task


def _tables(*stems: str) -> Patterns:
    """Patterns of tables in any format, named like one of the stems or with it as a prefix."""
    return tuple(f"{stem}{star}{suffix}" for stem in stems for star in ("", "*") for suffix in TABLE_SUFFIXES)


_TRAIN, _DEV, _TEST = _tables("train"), _tables("dev", "validation"), _tables("test")
_GLUE_ON_HUB = "nyu-mll/glue"


def _glue(name: str, folder: str, columns: str, classes: str = "", metrics: str = "accuracy", **fields: Any) -> Task:
    """A task of GLUE. columns: text, pair and label, each with alternatives after `|`; classes: the hub's, by id."""
    names, of_hub = tuple(metrics.split()), classes.split()
    labels = tuple(str(number) for number in range(len(of_hub)))
    usual: dict[str, Any] = {
        "columns": Columns(*(tuple(column.split("|")) for column in columns.split(", "))),
        "files": Files((folder, name), _TRAIN, {"dev": _DEV}, {folder: _TEST}),
        "hub": Hub(_GLUE_ON_HUB, name, test={folder: "test"}),
        "labels": labels,
        "label_aliases": dict(zip(of_hub, labels, strict=True)),
    }
    return Task(name, "sequence", names, names[0], **(usual | fields))


def _squad(name: str, version: str) -> Task:
    endings = (f"-v{version}.json", f"-v{version}*.json", ".json", "*.json")
    train, dev, test = ((*(stem + end for end in endings), *_tables(stem)) for stem in ("train", "dev", "test"))
    files = Files(("squad", name, "SQuAD"), train, {"dev": dev}, {"test": test})
    columns = Columns(("context",), ("question",), ("answers",), ("id",))
    fields: dict[str, Any] = {"has_null_answer": version == "2.0", "submission": "predictions.json"}
    return Task(name, "span", ("exact_match", "f1"), "f1", columns, files, Hub(f"rajpurkar/{name}", test={}), **fields)


def _tagging(name: str, folders: tuple[str, ...], labels: tuple[str, ...], tag_column: int) -> Task:
    dev = ("dev.txt", "dev.conll", "valid.txt", "*testa*", "*dev*", "*valid*")
    test = ("test.txt", "test.conll", "*testb*", "*test*")
    files = Files(folders, ("train.txt", "train.conll", "*train*"), {"dev": dev}, {"test": test})
    columns = Columns(("tokens", "words"), label=labels, identity=("id",))
    metrics = ("f1", "precision", "recall", "accuracy")
    return Task(name, "token", metrics, "f1", columns, files, tag_column=tag_column, submission=f"{name}.conll")


_PAIR, _QUESTIONS = "sentence1, sentence2", "question1, question2, is_duplicate|label"
_ENTAILMENT, _BOTH = ("entailment", "not_entailment"), "accuracy f1"
_COLA_COLUMNS = ("source", "label", "mark", "sentence")
_MRPC_COLUMNS = "#1 String|sentence1, #2 String|sentence2, Quality|label"
_MRPC_TRAIN, _MRPC_TEST = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"  # of the original corpus
_MRPC_SETS = (*_TRAIN, _MRPC_TRAIN), {"dev": (*_DEV, _MRPC_TEST)}, {"MRPC": (*_TEST, _MRPC_TEST)}
_MRPC_FILES = Files(("MRPC", "mrpc"), *_MRPC_SETS)
_STSB_LABELS: dict[str, Any] = {"is_regression": True, "score_range": (0.0, 5.0), "no_label": ("-", "-1", "-1.0")}
_MNLI_COLUMNS = "sentence1|premise, sentence2|hypothesis, gold_label|label"
_MNLI_LABELS = ("contradiction", "entailment", "neutral")  # in the order of Google's code
_MNLI_DEV = {
    "matched": (*_tables("dev_matched", "validation_matched"), "dev.tsv"),
    "mismatched": _tables("dev_mismatched", "validation_mismatched"),
}
_MNLI_TEST = {"MNLI-m": _tables("test_matched"), "MNLI-mm": _tables("test_mismatched")}
_MNLI_SPLITS = {"matched": "validation_matched", "mismatched": "validation_mismatched"}
_MNLI_FILES = Files(("MNLI", "mnli"), _TRAIN, _MNLI_DEV, _MNLI_TEST)
_MNLI_HUB = Hub(_GLUE_ON_HUB, "mnli", _MNLI_SPLITS, {"MNLI-m": "test_matched", "MNLI-mm": "test_mismatched"})
_AX_COLUMNS = "sentence1|Premise|premise, sentence2|Hypothesis|hypothesis, gold_label|Label|label"
_AX_SETS = {"diagnostic": _tables("diagnostic-full", "diagnostic", "AX")}, {"AX": _tables("diagnostic", "test", "AX")}
_AX: dict[str, Any] = {
    "files": Files(("diagnostic", "AX", "ax"), (), *_AX_SETS),
    "hub": Hub(_GLUE_ON_HUB, "ax", {}, {"AX": "test"}),
    "trained_by": "mnli",
}
_RACE_METRICS = ("accuracy", "accuracy_middle", "accuracy_high")
_RACE_COLUMNS = Columns(("article", "context", "passage"), ("question",), ("answer", "label"), ("example_id", "id"))
_RACE_FILES = Files(("RACE", "race"), ("train",), {"dev": ("dev",)}, {"test": ("test",)})
_RACE_HUB = Hub("ehovy/race", "all")
_CUSTOM_METRICS = ("accuracy", "macro_f1", "matthews_correlation")
_CUSTOM_FILES = Files(("custom",), _TRAIN, {"dev": _DEV}, {"test": _TEST})

_ROWS = (
    _glue("cola", "CoLA", "sentence", "unacceptable acceptable", "matthews_correlation", without_header=_COLA_COLUMNS),
    _glue("sst2", "SST-2", "sentence", "negative positive"),
    _glue("mrpc", "MRPC", _MRPC_COLUMNS, "not_equivalent equivalent", _BOTH, files=_MRPC_FILES, is_symmetric=True),
    _glue("stsb", "STS-B", f"{_PAIR}, score|label", "", "spearman pearson", is_symmetric=True, **_STSB_LABELS),
    _glue("qqp", "QQP", _QUESTIONS, "not_duplicate duplicate", _BOTH, is_symmetric=True),
    _glue("mnli", "MNLI", _MNLI_COLUMNS, labels=_MNLI_LABELS, files=_MNLI_FILES, hub=_MNLI_HUB),
    _glue("qnli", "QNLI", "question, sentence", labels=_ENTAILMENT),
    _glue("rte", "RTE", _PAIR, labels=_ENTAILMENT),
    _glue("wnli", "WNLI", _PAIR, "not_entailment entailment"),
    _glue("ax", "diagnostic", _AX_COLUMNS, "", "matthews_correlation accuracy", labels=_MNLI_LABELS, **_AX),
    _squad("squad", "1.1"),
    _squad("squad_v2", "2.0"),
    Task("race", "choice", _RACE_METRICS, "accuracy", _RACE_COLUMNS, _RACE_FILES, _RACE_HUB, submission="race.tsv"),
    _tagging("ner", ("ner", "conll2003", "wnut17"), ("ner_tags", "tags", "labels"), -1),
    _tagging("chunking", ("chunking", "conll2000", "conll2003"), ("chunk_tags", "tags", "labels"), 2),
    # "-" and "-1" may be class names of a custom task.
    Task("custom", "sequence", _CUSTOM_METRICS, "accuracy", Columns(("text", "sentence")), _CUSTOM_FILES, no_label=()),
)

TASKS: dict[str, Task] = {task.name: task for task in _ROWS}
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
ELECTRA_EIGHT = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")

_GENERAL = {"sequence": "custom", "choice": "race", "span": "squad", "token": "ner"}  # default task for each kind
_ALL = "glue"
_SPELLINGS = {  # aliases of task names; letters and digits only
    **{"sst": "sst2", "sts": "stsb", "mnlimatched": "mnli", "diagnostic": "ax"},
    **dict.fromkeys(("squad1", "squadv1", "squad11", "squadv11"), "squad"),
    **dict.fromkeys(("squad2", "squadv2", "squad20", "squadv20"), "squad_v2"),
    **dict.fromkeys(("conll", "conll2003", "conll03", "wnut", "wnut17", "tagging"), "ner"),
    **dict.fromkeys(("chunk", "chunks", "conll2000"), "chunking"),
}


def find_task(name: str) -> Task:
    """The task of this name in any usual spelling; UsageError with the closest name for others."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for spelling in (plain, plain.removeprefix(_ALL)):  # glue/mnli and the like
        if (found := TASKS.get(_SPELLINGS.get(spelling, spelling))) is not None:
            return found
    if plain == "stsembeddings":
        raise UsageError(f"--task {name}: examples/sentence_vectors.py trains sentence vectors; run it instead")
    if name == _ALL:
        raise UsageError(f"--task {name}: one task is needed here; choose one of {' '.join(GLUE)}")
    near = difflib.get_close_matches(plain, [*TASKS, *_SPELLINGS, _ALL], n=1)
    if plain.startswith("race"):
        near = ["race with --race_level middle or high"]
    match = f" (did you mean {_SPELLINGS.get(near[0], near[0])}?)" if near else ""
    raise UsageError(f"--task {name}: unknown task{match}; choose one of {' '.join(TASKS)}, or {_ALL} for all of GLUE")


def task_of_model(details: Mapping[str, Any], asked: Task | None) -> Task:
    """The task asked for, else the one recorded in a fine-tuned model, else the default one of its kind."""
    recorded, columns = str(details.get("task", "")), details.get("columns")
    general = TASKS[_GENERAL[details["kind"]]]
    task = asked or TASKS.get(recorded) or replace(general, name=recorded or general.name)
    if columns:
        task = replace(task, columns=replace(task.columns, text=tuple(columns["text"]), pair=tuple(columns["pair"])))
    if asked is not None and asked.name != general.name:
        return task
    is_regression, has_null_answer = (bool(details.get(name)) for name in ("is_regression", "has_null_answer"))
    return replace(task, is_regression=is_regression, has_null_answer=has_null_answer)


def as_configured(task: Task, config: DataConfig) -> Task:
    """The task with the options for columns and regression applied; UsageError if they do not fit it."""
    if config.text_pair_column is not None and task.name != "custom" and not task.takes_pairs:
        raise UsageError(f"--text_pair_column {config.text_pair_column}: {task.name} has one text; drop the option")
    is_choice = task.name == "custom" and not task.is_regression
    if config.regression not in (None, task.is_regression) and not is_choice:
        labels = "numbers to predict" if task.is_regression else "classes"
        raise UsageError(f"--regression {str(config.regression).lower()}: {task.name} has {labels}; drop the option")
    label = config.label_column
    if task.kind == "token" and label is not None and label.isdecimal():
        task, label = replace(task, tag_column=int(label[:MAX_DIGITS])), None
    named = {"text": config.text_column, "pair": config.text_pair_column, "label": label}
    columns = {role: (name,) for role, name in named.items() if name is not None}
    task = replace(task, columns=replace(task.columns, **columns))
    if not config.regression or task.is_regression:
        return task
    return replace(task, is_regression=True, metrics=("spearman", "pearson"), main="spearman")
