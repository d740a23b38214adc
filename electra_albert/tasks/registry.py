"""Definitions of all tasks: files, columns, labels, metrics and submission files."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from electra_albert.config.finetuning import DataConfig
from electra_albert.contracts import UsageError
from electra_albert.tasks.task import MAX_DIGITS, Columns, Files, Hub, Patterns, Task


def _tables(*stems: str) -> Patterns:
    """Patterns of tables in any format, named like a stem or with it as a prefix."""
    return tuple(map("".join, product(stems, ("", "*"), (".tsv", ".csv", ".jsonl", ".parquet"))))


def _columns(names: str) -> Columns:
    """Columns of text, pair, label and id, `sentence1|premise, sentence2|hypothesis`."""
    return Columns(*(tuple(column.split("|")) for column in names.split(", ")))


_TRAIN = _tables("train")
_DEV = _tables("dev", "validation")
_TEST = _tables("test")
_GLUE_ON_HUB = "nyu-mll/glue"


def _glue(
    name: str,
    folder: str,
    columns: str,
    classes: str = "",
    metrics: str = "accuracy",
    **fields: Any,
) -> Task:
    """A task of GLUE with the columns of `_columns`; classes: those of the hub by id."""
    of_hub = classes.split()
    labels = tuple(map(str, range(len(of_hub))))
    usual: dict[str, Any] = {
        "files": Files((folder, name), _TRAIN, {"dev": _DEV}, {folder: _TEST}),
        "hub": Hub(_GLUE_ON_HUB, name, test={folder: "test"}),
        "labels": labels,
        "label_aliases": dict(zip(of_hub, labels, strict=True)),
    }
    names = tuple(metrics.split())
    return Task(name, "sequence", names, names[0], _columns(columns), **(usual | fields))


def _squad(name: str, version: str) -> Task:
    def files(stem: str) -> Patterns:
        endings = (f"-v{version}.json", f"-v{version}*.json", ".json", "*.json")
        return (*(stem + ending for ending in endings), *_tables(stem))

    return Task(
        name,
        "span",
        ("exact_match", "f1"),
        "f1",
        _columns("context, question, answers, id"),
        Files(
            ("squad", name, "SQuAD"),
            files("train"),
            {"dev": files("dev")},
            {"test": files("test")},
        ),
        Hub(f"rajpurkar/{name}", test={}),
        has_null_answer=version == "2.0",
        submission="predictions.json",
    )


def _tagging(name: str, folders: str, labels: str, tag_column: int) -> Task:
    train = ("train.txt", "train.conll", "*train*")
    dev = ("dev.txt", "dev.conll", "valid.txt", "*testa*", "*dev*", "*valid*")
    test = ("test.txt", "test.conll", "*testb*", "*test*")
    return Task(
        name,
        "token",
        ("f1", "precision", "recall", "accuracy"),
        "f1",
        Columns(("tokens", "words"), label=(labels, "tags", "labels"), identity=("id",)),
        Files(tuple(folders.split()), train, {"dev": dev}, {"test": test}),
        tag_column=tag_column,
        submission=f"{name}.conll",
    )


_PAIR = "sentence1, sentence2"
_ENTAILMENT = ("entailment", "not_entailment")
_MRPC_TEST = "msr_paraphrase_test.txt"  # of the original corpus, as is the training file
_MNLI_LABELS = ("contradiction", "entailment", "neutral")  # in the order of Google's code

_ROWS = (
    _glue(
        "cola",
        "CoLA",
        "sentence",
        "unacceptable acceptable",
        "matthews_correlation",
        without_header=("source", "label", "mark", "sentence"),
    ),
    _glue("sst2", "SST-2", "sentence", "negative positive"),
    _glue(
        "mrpc",
        "MRPC",
        "#1 String|sentence1, #2 String|sentence2, Quality|label",
        "not_equivalent equivalent",
        "accuracy f1",
        files=Files(
            ("MRPC", "mrpc"),
            (*_TRAIN, "msr_paraphrase_train.txt"),
            {"dev": (*_DEV, _MRPC_TEST)},
            {"MRPC": (*_TEST, _MRPC_TEST)},
        ),
        is_symmetric=True,
    ),
    _glue(
        "stsb",
        "STS-B",
        f"{_PAIR}, score|label",
        metrics="spearman pearson",
        is_regression=True,
        is_symmetric=True,
        score_range=(0.0, 5.0),
        no_label=("-", "-1", "-1.0"),
    ),
    _glue(
        "qqp",
        "QQP",
        "question1, question2, is_duplicate|label",
        "not_duplicate duplicate",
        "accuracy f1",
        is_symmetric=True,
    ),
    _glue(
        "mnli",
        "MNLI",
        "sentence1|premise, sentence2|hypothesis, gold_label|label",
        labels=_MNLI_LABELS,
        files=Files(
            ("MNLI", "mnli"),
            _TRAIN,
            {
                "matched": (*_tables("dev_matched", "validation_matched"), "dev.tsv"),
                "mismatched": _tables("dev_mismatched", "validation_mismatched"),
            },
            {"MNLI-m": _tables("test_matched"), "MNLI-mm": _tables("test_mismatched")},
        ),
        hub=Hub(
            _GLUE_ON_HUB,
            "mnli",
            {"matched": "validation_matched", "mismatched": "validation_mismatched"},
            {"MNLI-m": "test_matched", "MNLI-mm": "test_mismatched"},
        ),
    ),
    _glue("qnli", "QNLI", "question, sentence", labels=_ENTAILMENT),
    _glue("rte", "RTE", _PAIR, labels=_ENTAILMENT),
    _glue("wnli", "WNLI", _PAIR, "not_entailment entailment"),
    _glue(
        "ax",
        "diagnostic",
        "sentence1|Premise|premise, sentence2|Hypothesis|hypothesis, gold_label|Label|label",
        metrics="matthews_correlation accuracy",
        labels=_MNLI_LABELS,
        files=Files(
            ("diagnostic", "AX", "ax"),
            (),
            {"diagnostic": _tables("diagnostic-full", "diagnostic", "AX")},
            {"AX": _tables("diagnostic", "test", "AX")},
        ),
        hub=Hub(_GLUE_ON_HUB, "ax", {}, {"AX": "test"}),
        trained_by="mnli",
    ),
    _squad("squad", "1.1"),
    _squad("squad_v2", "2.0"),
    Task(
        "race",
        "choice",
        ("accuracy", "accuracy_middle", "accuracy_high"),
        "accuracy",
        _columns("article|context|passage, question, answer|label, example_id|id"),
        Files(("RACE", "race"), ("train",), {"dev": ("dev",)}, {"test": ("test",)}),
        Hub("ehovy/race", "all"),
        submission="race.tsv",
    ),
    _tagging("ner", "ner conll2003 wnut17", "ner_tags", -1),
    _tagging("chunking", "chunking conll2000 conll2003", "chunk_tags", 2),
    Task(
        "custom",
        "sequence",
        ("accuracy", "macro_f1", "matthews_correlation"),
        "accuracy",
        _columns("text|sentence"),
        Files(("custom",), _TRAIN, {"dev": _DEV}, {"test": _TEST}),
        no_label=(),  # "-" and "-1" may be class names
    ),
)

TASKS = {task.name: task for task in _ROWS}
ELECTRA_EIGHT = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
GLUE = (*ELECTRA_EIGHT, "wnli", "ax")

LENGTHS = ("max_seq_length", "doc_stride", "max_answer_length")  # kept with fine-tuned models
FLAGS = ("is_regression", "is_multi_label", "has_null_answer")  # of a Task, kept with them
# The default task for each kind.
_GENERAL = {"sequence": "custom", "choice": "race", "span": "squad", "token": "ner"}
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
        spelling = _SPELLINGS.get(spelling, spelling)
        if spelling in TASKS:
            return TASKS[spelling]
    if plain == "stsembeddings":
        raise UsageError(f"--task {name}: run examples/sentence_vectors.py instead")
    if name == _ALL:
        raise UsageError(f"--task {name}: one task is needed here; choose one of {' '.join(GLUE)}")
    near = difflib.get_close_matches(plain, [*TASKS, *_SPELLINGS, _ALL], n=1)
    if plain.startswith("race"):
        near = ["race with --race_level middle or high"]
    match = f" (did you mean {_SPELLINGS.get(near[0], near[0])}?)" if near else ""
    raise UsageError(
        f"--task {name}: unknown task{match}; "
        f"choose one of {' '.join(TASKS)}, or {_ALL} for all of GLUE"
    )


def task_of_model(details: Mapping[str, Any], requested: Task | None) -> Task:
    """The requested task, else the one a fine-tuned model records, else the default of its kind."""
    recorded = str(details.get("task", ""))
    general = TASKS[_GENERAL[details["kind"]]]
    task = requested or TASKS.get(recorded) or replace(general, name=recorded or general.name)
    columns = details.get("columns")
    if columns:
        text = tuple(columns["text"])
        pair = tuple(columns["pair"])
        task = replace(task, columns=task.columns._replace(text=text, pair=pair))
    if requested is not None and requested.name != general.name:
        return task
    flags: dict[str, Any] = {name: bool(details.get(name)) for name in FLAGS}
    return replace(task, **flags)


def has_official_evaluation(hub: Hub, config: DataConfig) -> bool:
    """Whether a model is evaluated on all examples of the dataset, and no others."""
    files = config.train_file or config.validation_file
    if files or config.validation_split or config.max_eval_examples or config.race_level != "all":
        return False
    source = config.data_dir or hub.dataset
    name, _, subset = source.partition(":")
    return os.path.exists(source) or (name == hub.dataset and subset in ("", hub.config))


def as_configured(task: Task, config: DataConfig) -> Task:
    """The task with the options for columns and labels; UsageError if they do not fit it."""
    pair = config.text_pair_column
    if pair is not None and task.name != "custom" and not task.takes_pairs:
        raise UsageError(f"--text_pair_column {pair}: {task.name} has one text; drop the option")
    may_be_either = task.name == "custom" and not task.is_regression
    if config.regression not in (None, task.is_regression) and not may_be_either:
        labels = "numbers to predict" if task.is_regression else "classes"
        value = str(config.regression).lower()
        raise UsageError(f"--regression {value}: {task.name} has {labels}; drop the option")
    label = config.label_column
    if task.kind == "token" and label is not None and label.isdecimal():
        task = replace(task, tag_column=int(label[:MAX_DIGITS]))
        label = None
    named = {"text": config.text_column, "pair": pair, "label": label}
    columns: dict[str, tuple[str, ...]] = {
        role: (name,) for role, name in named.items() if name is not None
    }
    if config.multi_label:
        if task.name != "custom":
            raise UsageError(f"--multi_label true: {task.name} has one label; drop the option")
        names = [name.strip() for name in (label or "label").split(",")]
        if not all(names) or len(set(names)) < len(names):
            raise UsageError(f"--label_column {label}: a name is empty or repeated; correct it")
        columns["label"] = tuple(names)
        metrics = ("micro_f1", "macro_f1", "accuracy")
        task = replace(task, is_multi_label=True, metrics=metrics, main="micro_f1")
    task = replace(task, columns=task.columns._replace(**columns))
    if not config.regression or task.is_regression:
        return task
    return replace(task, is_regression=True, metrics=("spearman", "pearson"), main="spearman")
