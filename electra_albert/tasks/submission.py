"""Predictions in the form in which each benchmark takes them, and the averages over GLUE."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from electra_albert.contracts import DataError
from electra_albert.tasks.registry import ELECTRA_EIGHT, GLUE, TASKS, Task

MISMATCHED = "mismatched_accuracy"  # MNLI's score on its second set; its `accuracy` is that on the matched one
NO_ANSWER_FILE = "na_prob.json"


class GlueAverage(NamedTuple):
    """A mean over GLUE tasks and what is in it."""

    average: float | None  # None where no task has a score
    used: tuple[str, ...]
    missing: tuple[str, ...]  # tasks that belong to it but have no score, or `task metric` where only that is missing


def write_submission(
    task: Task,
    test_name: str,
    predictions: Sequence[Any],
    examples: Sequence[Any],
    folder: Path,
    no_answer: Sequence[float] | None = None,
) -> Path:
    """Write the file to hand in for one test set, in the order of its examples, and return its path.

    no_answer, for SQuAD 2.0: the probability of each example that it has no answer, written to a second file. Raises
    DataError for what the form cannot hold.
    """
    if len(predictions) != len(examples):
        raise ValueError(f"{len(predictions)} predictions for {len(examples)} examples of {test_name}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / task.submission.get(test_name, f"{test_name}{_SUFFIX[task.kind]}")
    _write(path, _CONTENT[task.kind](task, predictions, examples))
    if no_answer is not None:
        odds = {example.identity: float(share) for example, share in zip(examples, no_answer, strict=True)}
        _write(folder / NO_ANSWER_FILE, _json(odds))
    return path


def glue_average(scores: Mapping[str, Mapping[str, float]], convention: Literal["electra", "official"]) -> GlueAverage:
    """The mean over GLUE of scores {task: {metric: value}}.

    electra: the main metric of eight tasks, without WNLI, MNLI by its matched set. official: the mean of each of nine
    tasks' official metrics, MNLI by both sets. The diagnostic set has no part in either. A task that lacks a metric is
    not averaged but named as missing.
    """
    wanted: dict[str, tuple[str, ...]] = {name: (TASKS[name].main,) for name in ELECTRA_EIGHT}
    if convention == "official":
        wanted = {name: TASKS[name].metrics for name in GLUE if TASKS[name].trained_by is None}
        wanted["mnli"] = ("accuracy", MISMATCHED)
    found, missing = {}, []
    for name, metrics in wanted.items():
        absent = [metric for metric in metrics if metric not in scores.get(name, {})]
        if not absent:
            found[name] = math.fsum(scores[name][metric] for metric in metrics) / len(metrics)
        elif name in scores:
            missing += [f"{name} {metric}" for metric in absent]
        else:
            missing.append(name)
    average = math.fsum(found.values()) / len(found) if found else None
    return GlueAverage(average, tuple(found), tuple(missing))


def _sequence(task: Task, predictions: Sequence[Any], examples: Sequence[Any]) -> str:
    index = [example.identity for example in examples]
    # GLUE asks for numbers: where the file has no index of its own, rows are counted. Other tasks keep any id.
    if task.name in GLUE and not (all(one.isdecimal() for one in index) and len(set(index)) == len(index)):
        index = [str(number) for number in range(len(examples))]
    spell = _number if task.is_regression else _label
    return _table([(one, spell(task, prediction)) for one, prediction in zip(index, predictions, strict=True)])


def _number(task: Task, prediction: float) -> str:
    if not math.isfinite(prediction):
        raise ValueError(f"the prediction {prediction} of {task.name} is not finite")
    low, high = task.score_range or (-math.inf, math.inf)
    return f"{min(max(prediction, low), high):.3f}"


def _label(task: Task, prediction: str) -> str:
    if task.labels and prediction not in task.labels:
        raise ValueError(f"the prediction {prediction!r} is no label of {task.name}: {' '.join(task.labels)}")
    return prediction


def _choice(task: Task, predictions: Sequence[int], examples: Sequence[Any]) -> str:
    letters = [string.ascii_uppercase[prediction] for prediction in predictions]
    return _table([(example.identity, letter) for example, letter in zip(examples, letters, strict=True)])


def _span(task: Task, predictions: Sequence[str], examples: Sequence[Any]) -> str:
    answers: dict[str, str] = {}
    for example, prediction in zip(examples, predictions, strict=True):
        if example.identity in answers:
            raise DataError(f"two questions have the id {example.identity}: each needs its own to be handed in")
        answers[example.identity] = prediction
    return _json(answers)


def _token(task: Task, predictions: Sequence[Sequence[str]], examples: Sequence[Any]) -> str:
    sentences = []
    for example, tags in zip(examples, predictions, strict=True):
        lines = [f"{word}\t{tag}\n" for word, tag in zip(example.words, tags, strict=True)]
        sentences.append("".join(lines) + "\n")
    return "".join(sentences)


_CONTENT = {"sequence": _sequence, "choice": _choice, "span": _span, "token": _token}
_SUFFIX = {"sequence": ".tsv", "choice": ".tsv", "span": ".json", "token": ".conll"}


def _table(rows: Sequence[tuple[str, str]]) -> str:
    for row in rows:
        if any(mark in cell for cell in row for mark in "\t\n\r"):
            raise DataError(f"{row!r} holds a tab or a line break, which a TSV cannot; rename the label or the id")
    return "".join(f"{index}\t{prediction}\n" for index, prediction in [("index", "prediction"), *rows])


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
