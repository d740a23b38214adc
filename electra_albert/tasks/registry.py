"""Every task as data: its files and columns, its labels, how it is scored and submitted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from electra_albert.contracts import UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.task import TABLE_SUFFIXES, Columns, Files, Hub, Patterns, Task


def _tables(*stems: str) -> Patterns:
    """Any kind of table called by one of the stems, or else beginning with it."""
    return tuple(f"{stem}{star}{suffix}" for stem in stems for star in ("", "*") for suffix in TABLE_SUFFIXES)


def _glue(name: str, folder: str, columns: Columns, hub_labels: tuple[str, ...] = (), **fields: Any) -> Task:
    """A task of GLUE: `fields` are what differs from accuracy on two classes; `hub_labels` in the order of labels."""
    labels, metrics = fields.pop("labels", ("0", "1")), fields.pop("metrics", ("accuracy",))
    shared: dict[str, Any] = {
        "files": Files((folder, name), _tables("train"), {"dev": _tables("dev", "validation")}, {folder: _TEST}),
        "hub": Hub("nyu-mll/glue", name, test={folder: "test"}),
        "label_aliases": dict(zip(hub_labels, labels, strict=False)),
        "submission": {folder: f"{folder}.tsv"},
    }
    return Task(name, "sequence", metrics, metrics[0], columns, labels=labels, **(shared | fields))


def _squad(name: str, version: str) -> Task:
    def json_files(stem: str) -> Patterns:
        endings = (f"-v{version}.json", f"-v{version}*.json", ".json", "*.json")
        return (*(f"{stem}{ending}" for ending in endings), *_tables(stem))

    return Task(
        name,
        kind="span",
        metrics=("exact_match", "f1"),
        main="f1",
        columns=Columns(("context",), ("question",), ("answers",), ("id",)),
        files=Files(
            ("squad", name, "SQuAD"), json_files("train"), {"dev": json_files("dev")}, {"test": json_files("test")}
        ),
        hub=Hub(f"rajpurkar/{name}", test={}),
        has_null_answer=version == "2.0",
        submission={"test": "predictions.json"},
    )


def _tagging(name: str, folders: tuple[str, ...], labels: tuple[str, ...], tag_column: int) -> Task:
    return Task(
        name,
        kind="token",
        metrics=("f1", "precision", "recall", "accuracy"),
        main="f1",
        columns=Columns(("tokens", "words"), label=labels, identity=("id",)),
        files=Files(
            folders,
            ("train.txt", "train.conll", "*train*"),
            {"dev": ("dev.txt", "dev.conll", "valid.txt", "*testa*", "*dev*", "*valid*")},
            {"test": ("test.txt", "test.conll", "*testb*", "*test*")},
        ),
        tag_column=tag_column,
        submission={"test": f"{name}.conll"},
    )


_TEST = _tables("test")
_TWO_SENTENCES = Columns(("sentence1",), ("sentence2",))
_ENTAILMENT = ("entailment", "not_entailment")
_MNLI_LABELS = ("contradiction", "entailment", "neutral")  # in the order of Google's code

_ROWS = (
    _glue(
        "cola",
        "CoLA",
        Columns(("sentence",), without_header=("source", "label", "mark", "sentence")),
        ("unacceptable", "acceptable"),
        metrics=("matthews_correlation",),
    ),
    _glue("sst2", "SST-2", Columns(("sentence",)), ("negative", "positive")),
    _glue(
        "mrpc",
        "MRPC",
        Columns(("#1 String", "sentence1"), ("#2 String", "sentence2"), ("Quality", "label")),
        ("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
        is_symmetric=True,
        files=Files(  # the corpus of paraphrases itself has two files
            ("MRPC", "mrpc"),
            (*_tables("train"), "msr_paraphrase_train.txt"),
            {"dev": (*_tables("dev", "validation"), "msr_paraphrase_test.txt")},
            {"MRPC": (*_TEST, "msr_paraphrase_test.txt")},
        ),
    ),
    _glue(
        "stsb",
        "STS-B",
        Columns(("sentence1",), ("sentence2",), ("score", "label")),
        labels=(),
        metrics=("spearman", "pearson"),
        is_regression=True,
        is_symmetric=True,
        score_range=(0.0, 5.0),
        no_label=("-", "-1", "-1.0"),
    ),
    _glue(
        "qqp",
        "QQP",
        Columns(("question1",), ("question2",), ("is_duplicate", "label")),
        ("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        is_symmetric=True,
    ),
    _glue(
        "mnli",
        "MNLI",
        Columns(("sentence1", "premise"), ("sentence2", "hypothesis"), ("gold_label", "label")),
        labels=_MNLI_LABELS,
        files=Files(
            ("MNLI", "mnli"),
            _tables("train"),
            {
                "matched": (*_tables("dev_matched", "validation_matched"), "dev.tsv"),
                "mismatched": _tables("dev_mismatched", "validation_mismatched"),
            },
            {"MNLI-m": _tables("test_matched"), "MNLI-mm": _tables("test_mismatched")},
        ),
        hub=Hub(
            "nyu-mll/glue",
            "mnli",
            {"matched": "validation_matched", "mismatched": "validation_mismatched"},
            {"MNLI-m": "test_matched", "MNLI-mm": "test_mismatched"},
        ),
        submission={"MNLI-m": "MNLI-m.tsv", "MNLI-mm": "MNLI-mm.tsv"},
    ),
    _glue("qnli", "QNLI", Columns(("question",), ("sentence",)), labels=_ENTAILMENT),
    _glue("rte", "RTE", _TWO_SENTENCES, labels=_ENTAILMENT),
    _glue("wnli", "WNLI", _TWO_SENTENCES, ("not_entailment", "entailment")),
    _glue(
        "ax",
        "diagnostic",
        Columns(
            ("sentence1", "Premise", "premise"),
            ("sentence2", "Hypothesis", "hypothesis"),
            ("gold_label", "Label", "label"),
        ),
        labels=_MNLI_LABELS,
        metrics=("matthews_correlation", "accuracy"),
        files=Files(
            ("diagnostic", "AX", "ax"),
            (),
            {"diagnostic": _tables("diagnostic-full", "diagnostic", "AX")},
            {"AX": _tables("diagnostic", "test", "AX")},
        ),
        hub=Hub("nyu-mll/glue", "ax", evaluation={}, test={"AX": "test"}),
        trained_by="mnli",
        submission={"AX": "AX.tsv"},
    ),
    _squad("squad", "1.1"),
    _squad("squad_v2", "2.0"),
    Task(
        "race",
        kind="choice",
        metrics=("accuracy", "accuracy_middle", "accuracy_high"),
        main="accuracy",
        columns=Columns(("article", "context", "passage"), ("question",), ("answer", "label"), ("example_id", "id")),
        files=Files(("RACE", "race"), ("train",), {"dev": ("dev",)}, {"test": ("test",)}),
        hub=Hub("ehovy/race", "all"),
        submission={"test": "race.tsv"},
    ),
    _tagging("ner", ("ner", "conll2003", "wnut17"), ("ner_tags", "tags", "labels"), -1),
    _tagging("chunking", ("chunking", "conll2000", "conll2003"), ("chunk_tags", "tags", "labels"), 2),
    Task(
        "custom",
        kind="sequence",
        metrics=("accuracy", "macro_f1", "matthews_correlation"),
        main="accuracy",
        columns=Columns(("text", "sentence")),
        files=Files(("custom",), _tables("train"), {"dev": _tables("dev", "validation")}, {"test": _TEST}),
        no_label=(),  # any sign may be the name of a class
        submission={"test": "test.tsv"},
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in _ROWS}
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
ELECTRA_EIGHT = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")

_GENERAL = {"sequence": "custom", "choice": "race", "span": "squad", "token": "ner"}  # task of a model, by its kind
_MOST_DIGITS = 9  # of the number of a column, more than any file has
_ALL = "glue"
_SPELLINGS = {  # besides the names themselves; letters and digits only
    **{"sst": "sst2", "sts": "stsb", "mnlimatched": "mnli", "diagnostic": "ax"},
    **dict.fromkeys(("squad1", "squadv1", "squad11", "squadv11"), "squad"),
    **dict.fromkeys(("squad2", "squadv2", "squad20", "squadv20"), "squad_v2"),
    **dict.fromkeys(("conll", "conll2003", "conll03", "wnut", "wnut17", "tagging"), "ner"),
    **dict.fromkeys(("chunk", "chunks", "conll2000"), "chunking"),
}


def find_task(name: str) -> Task:
    """The task of this name in any usual spelling. Raises UsageError for others, with the nearest one."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for spelling in (plain, plain.removeprefix(_ALL)):  # glue/mnli and the like
        if (found := TASKS.get(_SPELLINGS.get(spelling, spelling))) is not None:
            return found
    if name == _ALL:
        raise UsageError(f"--task {name}: this takes one task; choose one of {' '.join(GLUE)}")
    near = difflib.get_close_matches(plain, [*TASKS, *_SPELLINGS, _ALL], n=1)
    meant = _SPELLINGS.get(near[0], near[0]) if near else None
    if level := re.fullmatch(r"race(m|h)\w*", plain):
        meant = f"race with --race_level {'middle' if level[1] == 'm' else 'high'}"
    there_are = f"did you mean {meant}? There are" if meant else "there are"
    raise UsageError(f"--task {name}: no such task; {there_are} {' '.join(TASKS)}, and {_ALL} for all of GLUE")


def task_of_model(details: Mapping[str, Any], asked: Task | None) -> Task:
    """The task asked for, else that recorded by a fine-tuned model, else the most general one of its kind."""
    recorded, columns = str(details.get("task", "")), details.get("columns")
    general = TASKS[_GENERAL[details["kind"]]]
    task = asked or TASKS.get(recorded) or replace(general, name=recorded or general.name)
    if columns:
        task = replace(task, columns=replace(task.columns, text=tuple(columns["text"]), pair=tuple(columns["pair"])))
    if asked is not None and asked.name != general.name:
        return task
    flags = [bool(details.get(name)) for name in ("is_regression", "has_null_answer")]
    return replace(task, is_regression=flags[0], has_null_answer=flags[1])


def as_configured(task: Task, config: DataConfig) -> Task:
    """The task with the columns that the options name, and numbers for labels; UsageError for a misfit."""
    columns, tag_column = task.columns, task.tag_column
    if config.text_column is not None:
        columns = replace(columns, text=(config.text_column,))
    if config.text_pair_column is not None:
        if task.name != "custom" and not task.takes_pairs:
            raise UsageError(f"--text_pair_column {config.text_pair_column}: {task.name} has one text; leave it out")
        columns = replace(columns, pair=(config.text_pair_column,))
    if config.label_column is not None:
        if task.kind == "token" and config.label_column.isdecimal():
            tag_column = int(config.label_column[:_MOST_DIGITS])
        else:
            columns = replace(columns, label=(config.label_column,))
    task = replace(task, columns=columns, tag_column=tag_column)
    if not config.regression or task.is_regression:
        return task
    if task.name != "custom":
        raise UsageError(f"--regression true: {task.name} has classes; it is for --task custom")
    return replace(task, is_regression=True, metrics=("spearman", "pearson"), main="spearman")
