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
        read[name] = (_name(source), _read_evaluation(source, reading))
    train = _drawn(whole, config.max_train_examples, seed, report)
    evaluation: dict[str, Sequence[Any]] = {}
    for name, (place, found) in read.items():
        if found:
            evaluation[name] = _scored(name, found, config.max_eval_examples, report)
            _note_oddities(train, evaluation[name], labels, report, place)
    if not evaluation and not sources.test:  # of a task whose evaluation set has no labels
        sources.test = dict(zip(task.files.test, sources.evaluation.values(), strict=False))
    wanted = sources.test if needs_test or not evaluation else {}
    test = {name: _read_test(source, task, config, report) for name, source in wanted.items()}
    return TaskData(train, evaluation, test, labels, report)


def read_unlabelled(task: Task, file: Path | str, config: DataConfig, report: Report) -> list[Example]:
    """The examples of a file of new text in the task's own format or a plain .txt, without labels."""
    return _read_test(local_path(str(file), "predict"), as_configured(task, config), config, report)


def _read_training(
    task: Task, config: DataConfig, source: Source | None, report: Report
) -> tuple[list[Any], tuple[str, ...]]:
    """The training examples, and the labels of the task: its own, or those found."""
    if source is None:
        return [], task.labels
    examples = read_examples(source, Reading(task, config, "train", report, _name(source), task.labels))
    if not examples:
        raise DataError(f"{_place(source)}: no example to train on{_reasons(report, _name(source))}; give more data")
    if task.labels or task.is_regression or task.kind in ("choice", "span"):
        return examples, task.labels
    if task.kind == "token":
        return examples, _found_tags({tag for example in examples for tag in example.tags}, _place(source))
    return examples, _found_labels({example.label for example in examples}, _place(source))


def _read_test(source: Source, task: Task, config: DataConfig, report: Report) -> list[Any]:
    examples = read_examples(source, Reading(task, config, "test", report, _name(source)))
    if not examples:
        raise DataError(f"{_place(source)}: holds nothing to predict; give a file with rows")
    return examples


def _read_evaluation(source: Source, reading: Reading) -> list[Any]:
    """The examples to score on; of a task without training data there may be none, where the file has no labels."""
    if reading.task.trained_by is not None and not _has_labels(source, reading):
        return []
    examples = read_examples(source, reading)
    if not examples:
        reasons = _reasons(reading.report, reading.name)
        raise DataError(f"{_place(source)}: no example to score{reasons}; give a file with labels")
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


def _reasons(report: Report, name: str) -> str:
    """The reasons why rows of a file were left out, to end the sentence that none of it remained."""
    lines = [line for line in report.lines() if name in line]
    return f" is left ({'; '.join(lines)})" if lines else " in it"


def _found_tags(tags: set[str], place: str) -> tuple[str, ...]:
    if len(tags) > _MOST_TAGS:
        advice = "check that this is the right file, and --label_column"
        raise DataError(f"{place}: {len(tags):,} tags, more than {_MOST_TAGS:,}; {advice}")
    return tuple(sorted(tags))


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


def _drawn(examples: Sequence[T], count: int | None, seed: int, report: Report) -> Sequence[T]:
    """So many of the examples, drawn by the seed."""
    if count is None or count >= len(examples):
        return examples
    report.note("training examples not drawn", "--max_train_examples", len(examples) - count)
    return [examples[position] for position in _positions(len(examples), count, seed, Stream.TASK_EXAMPLES)]


def _scored(name: str, examples: Sequence[T], count: int | None, report: Report) -> Sequence[T]:
    """So many of the examples in their order, drawn by a fixed key: all seeds and sweeps score the same ones."""
    if count is None or count >= len(examples):
        return examples
    left = f"examples of {name} not scored: over the number asked for"
    report.note(left, "--max_eval_examples", len(examples) - count)
    return [examples[i] for i in sorted(_positions(len(examples), count, _EVALUATION_SEED, Stream.VALIDATION))]


def _positions(size: int, count: int, seed: int, stream: Stream) -> list[int]:
    """`count` of `size` positions, drawn by a key."""
    epoch = torch.zeros((), dtype=torch.int64)
    return permute(torch.arange(count), size, derived_seed(seed, stream), epoch).tolist()


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
    found: set[str] = set()
    for example in examples:
        label = getattr(example, "label", None)
        if isinstance(label, str):
            found.add(label)
        elif isinstance(label, int):
            found.add(chr(ord("A") + label))  # of an option
        found.update(getattr(example, "tags", None) or ())
    return found


def _texts(example: Any) -> tuple[object, ...]:
    """The fields of an example apart from its answer and identity."""
    kept = ("text", "text_pair", "context", "question", "options", "words")
    return tuple(getattr(example, name, None) for name in kept)
