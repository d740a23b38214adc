"""The data of a task as examples: read, checked, and cut to the size asked for; what was odd is counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from electra_albert.contracts import DataError
from electra_albert.data_files.tables import Table
from electra_albert.finetuning_config import DataConfig
from electra_albert.keyed_random import Stream, bits, derived_seed, permute
from electra_albert.tasks.formats import read_examples
from electra_albert.tasks.locating import Source, local_path, locate
from electra_albert.tasks.read_rules import Reading, as_label, shown
from electra_albert.tasks.registry import as_configured
from electra_albert.tasks.task import Example, Report, Task, TaskData

T = TypeVar("T")
_EVALUATION_SEED = 0  # not the run's: sweeps of other seeds score the same examples
_MOST_LABELS = 100  # of texts, where they are found
_USES = {"train": "train on", "evaluation": "score", "test": "predict"}
_MOST_TAGS = 1000  # of words: a hundred fine-grained types of entities in BIO are twice as many


def read_data(task: Task, config: DataConfig, *, needs_test: bool, seed: int, is_trained: bool = True) -> TaskData:
    """All examples of a task: training data only where it is trained, its test sets only where they are needed."""
    task = as_configured(task, config)
    report = Report()
    sources = locate(task, config, report, needs_test=needs_test, is_trained=is_trained)
    whole, labels = _read_training(task, config, sources.train, report)
    read: dict[str, tuple[str, list[Any]]] = {}  # by the name of the set: where its examples come from, and they
    if config.validation_split is not None:
        whole, held_out = _divided(whole, config.validation_split)
        read[next(iter(task.files.evaluation))] = ("the validation split", held_out)
    for name, source in sources.evaluation.items():
        reading = Reading(task, config, "evaluation", report, _name(source), labels)
        read[name] = (_name(source), _read(source, reading))
    drawn = "training examples not drawn", "--max_train_examples"
    train = _drawn(whole, config.max_train_examples, seed, Stream.TASK_EXAMPLES, report, *drawn)
    evaluation: dict[str, Sequence[Any]] = {}
    for name, (place, found) in read.items():
        if found:
            drawn = f"examples of {name} not scored: over the number asked for", "--max_eval_examples"
            chosen = _drawn(
                range(len(found)), config.max_eval_examples, _EVALUATION_SEED, Stream.VALIDATION, report, *drawn
            )
            evaluation[name] = [found[position] for position in sorted(chosen)]
            _note_oddities(train, evaluation[name], labels, report, place)
    wanted = sources.test if needs_test or not evaluation else {}
    if not evaluation and not wanted:  # of a task whose evaluation set has no labels
        wanted = dict(zip(task.files.test, sources.evaluation.values(), strict=False))
    test = {
        name: _read(source, Reading(task, config, "test", report, _name(source))) for name, source in wanted.items()
    }
    return TaskData(train, evaluation, test, labels, report)


def read_unlabelled(task: Task, file: Path | str, config: DataConfig, report: Report) -> list[Example]:
    """The examples of a file of new text in the task's own format or a plain .txt, without labels."""
    path = local_path(str(file), "predict")
    return _read(path, Reading(as_configured(task, config), config, "test", report, path.name))


def _read_training(
    task: Task, config: DataConfig, source: Source | None, report: Report
) -> tuple[list[Any], tuple[str, ...]]:
    """The training examples, and the labels of the task: its own, or those found."""
    if source is None:
        return [], task.labels
    examples = _read(source, Reading(task, config, "train", report, _name(source), task.labels))
    if task.labels or task.is_regression or task.kind in ("choice", "span"):
        return examples, task.labels
    if task.kind == "token":
        tags = sorted({tag for example in examples for tag in example.tags})
        if len(tags) > _MOST_TAGS:
            found = f"{_place(source)}: {len(tags):,} tags, more than {_MOST_TAGS:,}"
            raise DataError(f"{found}; check that this is the right file, and --label_column")
        return examples, tuple(tags)
    return examples, _found_labels({example.label for example in examples}, _place(source))


def _read(source: Source, reading: Reading) -> list[Any]:
    """The examples of a set; DataError, with the reasons why rows were left out, where there are none.

    Only the evaluation set of a task without training data may have no labels, and so no examples.
    """
    if reading.purpose == "evaluation" and reading.task.trained_by is not None and not _has_labels(source, reading):
        return []
    examples = read_examples(source, reading)
    if not examples:
        lines = [line for line in reading.report.lines() if reading.name in line]
        reasons = f" is left ({'; '.join(lines)})" if lines else " in it"
        raise DataError(f"{_place(source)}: no example to {_USES[reading.purpose]}{reasons}; give a file with more")
    return examples


def _has_labels(source: Source, reading: Reading) -> bool:
    """Whether any row of a table has a label."""
    table = source if isinstance(source, Table) else reading.open_table(source)
    column = table.find(reading.task.columns.label)
    rows = () if column is None else table.rows((column,))
    return any(not row.problem and as_label(row.cells[0], row.place, reading.task.no_label) for row in rows)


def _place(source: Source) -> str:
    return source.place if isinstance(source, Table) else str(source)


def _name(source: Source) -> str:
    return source.place if isinstance(source, Table) else source.name


def _found_labels(labels: set[str], place: str) -> tuple[str, ...]:
    """Labels of the training data in order. Raises DataError where there is one, or they look like numbers to meet."""
    if len(labels) == 1:
        raise DataError(f"{place}: all rows have the label {shown(labels)}; there is nothing to learn")
    is_whole = all(_is_number(label) and label.removeprefix("-").isdecimal() for label in labels)
    order: Callable[[str], object] = int if is_whole else str
    advice = "if they are numbers to be met, give --regression true"
    if len(labels) > _MOST_LABELS:
        raise DataError(f"{place}: {len(labels):,} labels, more than {_MOST_LABELS}; {advice}, or check --label_column")
    if not is_whole and all(map(_is_number, labels)):
        raise DataError(f"{place}: the labels are numbers such as {min(labels)}; {advice}")
    return tuple(sorted(labels, key=lambda label: (order(label), label)))


def _is_number(label: str) -> bool:
    try:
        return label.isascii() and math.isfinite(float(label))
    except ValueError:
        return False


# A part of the examples.


def _drawn(
    examples: Sequence[T], count: int | None, seed: int, stream: Stream, report: Report, note: str, option: str
) -> Sequence[T]:
    """So many of the examples, drawn by a key; how many are not is noted."""
    if count is None or count >= len(examples):
        return examples
    report.note(note, option, len(examples) - count)
    zero = torch.zeros((), dtype=torch.int64)
    positions = permute(torch.arange(count), len(examples), derived_seed(seed, stream), zero)
    return [examples[position] for position in positions.tolist()]


def _divided(examples: Sequence[T], share: float) -> tuple[list[T], list[T]]:
    """The examples without and with a share of them, drawn in proportion to the labels by a fixed key."""
    labels = np.array([str(getattr(example, "label", "")) for example in examples])
    noise = bits(_EVALUATION_SEED, Stream.VALIDATION, torch.arange(len(examples)), torch.tensor(0)).numpy()
    is_held_out = np.zeros(len(examples), dtype=np.bool_)
    # In the order of their labels, and at random within one, every so many examples one is held out.
    is_held_out[np.lexsort((noise, labels))] = np.diff(np.floor(np.arange(len(examples) + 1) * share)) > 0
    for label in {getattr(example, "label", None) for example in examples}:
        if not isinstance(label, str):
            continue
        mine = np.flatnonzero(labels == label)
        is_held_out[mine[0]] &= not is_held_out[mine].all()  # one of each label at least is trained on
    if not is_held_out.any():
        raise DataError(f"--validation_split {share:g} of {len(examples):,} examples is none; raise it")
    parts: tuple[list[T], list[T]] = ([], [])
    for example, part in zip(examples, is_held_out.tolist(), strict=True):
        parts[part].append(example)
    return parts


def _note_oddities(
    train: Sequence[Any], evaluation: Sequence[Any], labels: tuple[str, ...], report: Report, name: str
) -> None:
    """Count what makes a score mean less: a single row, a single class, classes not met, rows that are trained on."""
    if len(evaluation) == 1:
        report.note(f"row only in {name}: its score says next to nothing", name)
    in_train, in_evaluation = _labels(train), _labels(evaluation)
    if len(evaluation) > 1 and len(in_evaluation) == 1:
        report.note(f"label only in {name}: {min(in_evaluation)!r}", name)
    for label in labels:
        if train and label not in in_train:
            report.note(f"label of the task without an example to train on: {label!r}", name)
        if label not in in_evaluation:
            report.note(f"label without an example in {name}: {label!r}", name)
    seen = set(map(_texts, train))
    for example in evaluation:
        if _texts(example) in seen:
            report.note(f"rows of {name} that are trained on too", f"{name}, id {example.identity}")


def _labels(examples: Sequence[Any]) -> set[str]:
    labels = {getattr(example, "label", None) for example in examples}
    letters = {chr(ord("A") + option) for option in labels if isinstance(option, int)}
    tags = {tag for example in examples for tag in getattr(example, "tags", None) or ()}
    return {label for label in labels if isinstance(label, str)} | letters | tags


def _texts(example: Any) -> tuple[object, ...]:
    """The fields of an example apart from its answer and identity."""
    kept = ("text", "text_pair", "context", "question", "options", "words")
    return tuple(getattr(example, name, None) for name in kept)
