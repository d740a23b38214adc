"""Predictions in the form in which each benchmark takes them."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_albert.contracts import DataError
from electra_albert.tasks.registry import GLUE, Task

NO_ANSWER_FILE = "na_prob.json"


def write_submission(
    task: Task,
    test_name: str,
    predictions: Sequence[Any],
    examples: Sequence[Any],
    folder: Path,
    no_answer: Sequence[float] | None = None,
) -> Path:
    """Write the submission file of one test set, and of SQuAD 2.0 the odds of no answer; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    content, suffix = _FORMS[task.kind]
    path = folder / task.submission.get(test_name, f"{test_name}{suffix}")
    path.write_text(content(task, predictions, examples), encoding="utf-8", newline="\n")
    if no_answer is not None:
        odds = {example.identity: float(share) for example, share in zip(examples, no_answer, strict=True)}
        (folder / NO_ANSWER_FILE).write_text(_json(odds), encoding="utf-8", newline="\n")
    return path


def _sequence(task: Task, predictions: Sequence[Any], examples: Sequence[Any]) -> str:
    index = [example.identity for example in examples]
    # GLUE asks for numbers: where the file has no index of its own, examples are counted. Other tasks keep any id.
    if task.name in GLUE and not (all(one.isdecimal() for one in index) and len(set(index)) == len(index)):
        index = [str(number) for number in range(len(examples))]
    if task.is_regression:
        low, high = task.score_range or (-math.inf, math.inf)
        if not all(map(math.isfinite, predictions)):
            raise ValueError(f"a prediction of {task.name} is not finite")
        predictions = [f"{min(max(prediction, low), high):.3f}" for prediction in predictions]
    return _table(index, predictions)


def _choice(task: Task, predictions: Sequence[int], examples: Sequence[Any]) -> str:
    return _table([example.identity for example in examples], [string.ascii_uppercase[one] for one in predictions])


def _span(task: Task, predictions: Sequence[str], examples: Sequence[Any]) -> str:
    answers: dict[str, str] = {}
    for example, prediction in zip(examples, predictions, strict=True):
        if example.identity in answers:
            raise DataError(f"two questions have the id {example.identity}: each needs its own in a submission")
        answers[example.identity] = prediction
    return _json(answers)


def _token(task: Task, predictions: Sequence[Sequence[str]], examples: Sequence[Any]) -> str:
    sentences = [zip(example.words, tags, strict=True) for example, tags in zip(examples, predictions, strict=True)]
    return "".join("".join(f"{word}\t{tag}\n" for word, tag in sentence) + "\n" for sentence in sentences)


_FORMS = {
    "sequence": (_sequence, ".tsv"),
    "choice": (_choice, ".tsv"),
    "span": (_span, ".json"),
    "token": (_token, ".conll"),
}


def _table(index: Sequence[str], predictions: Sequence[str]) -> str:
    for cell in (*index, *predictions):
        if any(mark in cell for mark in "\t\n\r"):
            raise DataError(f"{cell!r} holds a tab or a line break, which a TSV cannot; rename the label or the id")
    rows = [("index", "prediction"), *zip(index, predictions, strict=True)]
    return "".join(f"{one}\t{prediction}\n" for one, prediction in rows)


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
