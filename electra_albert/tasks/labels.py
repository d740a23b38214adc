"""The labels of training examples, and what is unusual about a task's examples."""

import math
import re
from string import ascii_uppercase
from typing import Any

from electra_albert.contracts import DataError
from electra_albert.tasks.read_rules import SplitReader, label_text, quote_names
from electra_albert.tasks.task import Examples, Report

_MAX_LABELS = 100
_MAX_TAGS = 1000  # each entity type has two in BIO
_SEPARATORS = re.compile(r"\s*[,;|]\s*")
# All fields except answer and identity.
_TEXT_FIELDS = ("text", "text_pair", "context", "question", "options", "words")


def training_labels(examples: Examples, reader: SplitReader) -> tuple[str, ...]:
    """Sorted labels; DataError for a single one, too many, or numbers as of a regression."""
    location = reader.location
    task = reader.task
    if task.is_regression or task.kind in ("choice", "span"):
        return ()
    if task.is_multi_label and len(task.columns.label) > 1:
        return tuple(sorted(label_text(name, location) for name in task.columns.label))
    labels = labels_of(examples)
    if task.is_multi_label and labels and labels <= {"0", "1"}:
        raise DataError(
            f"{location}: the labels are lists of 0 and 1, without names; "
            "list the names of each text's labels, or give a column of 0 and 1 for each"
        )
    if task.kind == "token" or task.is_multi_label:
        if not 0 < len(labels) <= _MAX_TAGS:
            raise DataError(
                f"{location}: {len(labels):,} tags or labels, not from 1 to {_MAX_TAGS:,}; "
                "check file and --label_column"
            )
        return tuple(sorted(labels))
    if len(labels) == 1:
        raise DataError(
            f"{location}: all examples have the label {quote_names([*labels])}; "
            "give at least two labels"
        )
    _note_joined(labels, reader)
    advice = "if they are numbers to predict, give --regression true"
    if len(labels) > _MAX_LABELS:
        raise DataError(
            f"{location}: {len(labels):,} labels, over {_MAX_LABELS}; {advice}; if a text "
            "has several, separated by commas, --multi_label true; or check --label_column"
        )
    are_numbers = all(map(_is_number, labels))
    if are_numbers and all(label.removeprefix("-").isdecimal() for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    if are_numbers and reader.config.regression is None:
        raise DataError(
            f"{location}: the labels are numbers such as {min(labels)}; {advice}; "
            "if they are classes, --regression false"
        )
    return tuple(sorted(labels))


def _note_joined(labels: set[str], reader: SplitReader) -> None:
    """Report labels that are several others with commas, semicolons or bars between them."""
    for label in sorted(labels):
        parts = _SEPARATORS.split(label)
        if len(parts) > 1 and labels.issuperset(parts):
            reader.report.note(
                "labels of several others; if a text has several, separate them by commas and give "
                "--multi_label true",
                f"{label!r} in {reader.name}",
            )


def _is_number(label: str) -> bool:
    try:
        return label.isascii() and math.isfinite(float(label))
    except ValueError:
        return False


def note_unusual(
    train: Examples, evaluation: Examples, labels: tuple[str, ...], report: Report, name: str
) -> None:
    """Report a single evaluation example or label, missing labels, and training examples."""
    in_train = labels_of(train)
    in_evaluation = labels_of(evaluation)
    targets = (getattr(example, "label", None) for example in evaluation)
    gold: set[Any] = in_evaluation or {target for target in targets if isinstance(target, float)}
    if len(evaluation) == 1:
        report.note(f"example in {name}: too few for a meaningful score", name)
    elif len(gold) == 1:
        report.note(f"label for all examples of {name}: {min(gold)!r}", name)
    for label in labels:
        if train and label not in in_train:
            report.note(f"label without a training example: {label!r}", name)
        if label not in in_evaluation:
            report.note(f"label without an example in {name}: {label!r}", name)
    seen = set(map(_texts, train))
    for example in evaluation:
        if _texts(example) in seen:
            report.note(
                f"examples of {name} also in the training data", f"{name}, id {example.identity}"
            )


def _texts(example: Any) -> tuple[object, ...]:
    return tuple(getattr(example, field, None) for field in _TEXT_FIELDS)


def labels_of(examples: Examples) -> set[str]:
    """All labels and tags of examples; options as letters, numbers of a regression left out."""
    labels: set[str] = set()
    for example in examples:
        label = getattr(example, "label", None)
        if isinstance(label, int):
            label = ascii_uppercase[label]
        if isinstance(label, str):
            labels.add(label)
        elif isinstance(label, tuple):
            labels.update(label)
        labels.update(getattr(example, "tags", None) or ())
    return labels
