"""What is worth knowing of an evaluation set before its score is believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_uppercase

from electra_albert.tasks.task import (
    ChoiceExample,
    Example,
    Report,
    SequenceExample,
    SpanExample,
    TokenExample,
)


def note_oddities(
    train: Sequence[Example], evaluation: Sequence[Example], labels: tuple[str, ...], report: Report, name: str
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
    seen = {_texts(example) for example in train}
    for example in evaluation:
        if _texts(example) in seen:
            report.note(f"rows of {name} that are trained on too", f"{name}, id {example.identity}")


def _labels(examples: Iterable[Example]) -> set[str]:
    found: set[str] = set()
    for example in examples:
        if isinstance(example, SequenceExample) and isinstance(example.label, str):
            found.add(example.label)
        elif isinstance(example, ChoiceExample) and example.label is not None:
            found.add(ascii_uppercase[example.label])
        elif isinstance(example, TokenExample):
            found.update(example.tags or ())
    return found


def _texts(example: Example) -> tuple[object, ...]:
    """What an example is, apart from its label and identity."""
    match example:
        case SequenceExample():
            return example.text, example.text_pair
        case ChoiceExample():
            return example.context, example.question, example.options
        case SpanExample():
            return example.context, example.question
        case TokenExample():
            return example.words
