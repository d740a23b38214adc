"""The data of a task as examples: read, checked, and cut to the size asked for; what was odd is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from electra_albert.contracts import DataError, UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.keyed_random import Stream, bits, derived_seed, permute
from electra_albert.tasks.conll_files import found_tags, read_tokens, token_rows
from electra_albert.tasks.data_checks import note_oddities
from electra_albert.tasks.locating import Source, locate
from electra_albert.tasks.race_files import choice_rows, read_choices
from electra_albert.tasks.read_rules import Reading, as_label, is_there
from electra_albert.tasks.registry import as_configured
from electra_albert.tasks.squad_files import read_spans, span_rows
from electra_albert.tasks.tables import NAMES_ITS_COLUMNS, Table, open_table
from electra_albert.tasks.task import Example, Report, Task, TaskData
from electra_albert.tasks.text_rows import found_labels, read_texts, text_rows

T = TypeVar("T")
_EVALUATION_SEED = 0  # not the run's: sweeps of other seeds score the same examples


class _Reader(NamedTuple):
    file: Callable[[Path, Reading], Sequence[Any]]
    rows: Callable[[Table, Reading], Sequence[Any]]


_READERS = {
    "sequence": _Reader(read_texts, text_rows),
    "choice": _Reader(read_choices, choice_rows),
    "span": _Reader(read_spans, span_rows),
    "token": _Reader(read_tokens, token_rows),
}


def read_data(task: Task, config: DataConfig, *, needs_test: bool, seed: int, is_trained: bool = True) -> TaskData:
    """All examples of a task; its test sets only where they are needed.

    Where nothing is trained, training data is neither looked for nor read, and the labels are those of the task as it
    is given. Raises UsageError for files that are not there, and DataError for what they hold.
    """
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
            note_oddities(train, evaluation[name], labels, report, place)
    if not evaluation and not sources.test:  # of a task whose evaluation set has no labels
        sources.test = dict(zip(task.files.test, sources.evaluation.values(), strict=False))
    wanted = sources.test if needs_test or not evaluation else {}
    test = {name: _read_test(source, task, config, report) for name, source in wanted.items()}
    return TaskData(train, evaluation, test, labels, report)


def read_unlabelled(task: Task, file: Path, config: DataConfig, report: Report) -> list[Example]:
    """The examples of a file of new text in the task's own format, or for texts and words in a plain .txt; labels in it
    are not read. Raises UsageError where there is no file, and DataError where a row gives no example."""
    if not is_there(file, "predict"):
        raise UsageError(f"--predict {file}: no such file; check the path")
    return _read_test(file, as_configured(task, config), config, report)


def _read_training(
    task: Task, config: DataConfig, source: Source | None, report: Report
) -> tuple[list[Any], tuple[str, ...]]:
    """The training examples, and the labels of the task: its own, or those found."""
    if source is None:
        return [], task.labels
    examples = _read(source, Reading(task, config, "train", report, _name(source), task.labels))
    if not examples:
        raise DataError(f"{_place(source)}: no example to train on{_reasons(report, _name(source))}; give more data")
    if task.labels or task.is_regression or task.kind in ("choice", "span"):
        return examples, task.labels
    if task.kind == "token":
        return examples, found_tags({tag for example in examples for tag in example.tags}, _place(source))
    return examples, found_labels({example.label for example in examples}, _place(source))


def _read(source: Source, reading: Reading) -> list[Any]:
    reader = _READERS[reading.task.kind]
    if isinstance(source, Table):
        reading.refuse_options(("column_names",), source.place, NAMES_ITS_COLUMNS)
    return list(reader.rows(source, reading) if isinstance(source, Table) else reader.file(source, reading))


def _read_test(source: Source, task: Task, config: DataConfig, report: Report) -> list[Any]:
    examples = _read(source, Reading(task, config, "test", report, _name(source)))
    if not examples:
        raise DataError(f"{_place(source)}: holds nothing to predict; give a file with rows")
    return examples


def _read_evaluation(source: Source, reading: Reading) -> list[Any]:
    """The examples to score on; of a task without training data there may be none, where the file has no labels."""
    if reading.task.trained_by is not None and not _has_labels(source, reading):
        return []
    examples = _read(source, reading)
    if not examples:
        raise DataError(
            f"{_place(source)}: no example to score{_reasons(reading.report, reading.name)}; give a file with labels"
        )
    return examples


def _has_labels(source: Source, reading: Reading) -> bool:
    """Whether any row of a table has a label."""
    columns, no_label = reading.task.columns, reading.task.no_label
    table = source if isinstance(source, Table) else open_table(source, columns.text, columns.without_header, reading)
    column = table.find(columns.label)
    if column is None:
        return False
    return any(not row.problem and as_label(row.cells[0], row.place, column, no_label) for row in table.rows((column,)))


def _place(source: Source) -> str:
    return source.place if isinstance(source, Table) else str(source)


def _name(source: Source) -> str:
    return source.place if isinstance(source, Table) else source.name


def _reasons(report: Report, name: str) -> str:
    """What was left out of a file, to end the sentence that nothing of it remained."""
    lines = [line for line in report.lines() if name in line]
    return f" is left ({'; '.join(lines)})" if lines else " in it"


def _drawn(examples: Sequence[T], count: int | None, seed: int, report: Report) -> Sequence[T]:
    """So many of the examples, drawn by the seed."""
    if count is None or count >= len(examples):
        return examples
    key = derived_seed(seed, Stream.TASK_EXAMPLES)
    places = permute(torch.arange(count), len(examples), key, torch.zeros((), dtype=torch.int64))
    report.note("training examples not drawn", "--max_train_examples", len(examples) - count)
    return [examples[place] for place in places.tolist()]


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


def _scored(name: str, examples: Sequence[T], count: int | None, report: Report) -> Sequence[T]:
    """So many of the examples in their order, drawn by a fixed key: all seeds and sweeps score the same ones."""
    if count is None or count >= len(examples):
        return examples
    report.note(
        f"examples of {name} not scored: over the number asked for", "--max_eval_examples", len(examples) - count
    )
    key = derived_seed(_EVALUATION_SEED, Stream.VALIDATION)
    places = permute(torch.arange(count), len(examples), key, torch.zeros((), dtype=torch.int64))
    return [examples[place] for place in sorted(places.tolist())]
