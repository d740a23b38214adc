"""Multiple-choice questions: RACE's folders of articles, and tables with a question or an article a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra_albert.contracts import DataError, UsageError
from electra_albert.tasks.read_rules import COLUMN_OPTIONS, Reading, as_label, as_text, parse_json, read_text
from electra_albert.tasks.tables import Table, open_table
from electra_albert.tasks.task import ChoiceExample

_LEVELS = ("middle", "high")
_LEVEL_OF_ID = re.compile(r"(middle|high)\d")


def read_choices(path: Path, reading: Reading) -> list[ChoiceExample]:
    """The examples of a folder with middle/ and high/, of one article (.txt), or of a table."""
    if path.is_dir() or path.suffix.lower() in (".txt", ".json"):
        reading.refuse_options(COLUMN_OPTIONS, str(path), "is in RACE's own form, which has no columns; leave it out")
    if path.is_dir():
        files = [file for folder in _level_folders(path, reading) for file in sorted(folder.glob("*.txt"))]
        if not files:
            raise UsageError(f"{path}: no *.txt in it or in its middle/ and high/; give a folder of RACE")
        return [example for file in files for example in _article_file(file, reading)]
    if path.suffix.lower() in (".txt", ".json"):
        return list(_article_file(path, reading))
    return choice_rows(open_table(path, reading=reading), reading)


def _level_folders(path: Path, reading: Reading) -> list[Path]:
    level = reading.config.race_level
    if not any((path / name).is_dir() for name in _LEVELS):
        return [path]
    wanted = _LEVELS if level == "all" else (level,)
    found = [path / name for name in wanted if (path / name).is_dir()]
    if not found:
        raise UsageError(f"{path}: no folder {level}/; choose another --race_level")
    for name in wanted:
        if path / name not in found:
            reading.report.note(f"level missing from {reading.name}: {name}", str(path))
    return found


def _article_file(path: Path, reading: Reading) -> Iterator[ChoiceExample]:
    found = parse_json(read_text(path, reading.config.encoding), str(path))
    if not isinstance(found, dict):
        raise DataError(f"{path}: not an object with an article and its questions; check that it is a file of RACE")
    group = path.parent.name if path.parent.name in _LEVELS else ""
    context, questions = found.get("article"), found.get("questions")
    options = found.get("options")
    answers = found.get("answers") if reading.purpose != "test" else None
    for name, value in (("article", context), ("questions", questions), ("options", options)):
        if value is None:
            raise DataError(f"{path}: no {name!r} as in a file of RACE; check that this is the right file")
    yield from _article(
        (context, questions, options, answers), str(found.get("id", path.name)), group, str(path), reading
    )


def choice_rows(table: Table, reading: Reading) -> list[ChoiceExample]:
    """The examples of a table: of an article with lists of questions, options and answers, or of one question a row."""
    columns = reading.task.columns
    context = table.require(columns.text, "the passage", "--text_column")
    question = table.require((*columns.pair, "questions"), "the question", "--text_pair_column")
    options = table.require(("options", "choices"), "the options", "")
    answer = None
    if reading.purpose != "test":
        answer = table.require((*columns.label, "answers"), "the answer", "--label_column")
    names = (context, question, options, answer, table.find(columns.identity), table.find(("level",)))
    examples: list[ChoiceExample] = []
    for index, row in enumerate(table.rows(names)):
        if row.problem:
            reading.leave_out(row.problem, row.place)
            continue
        identity = as_text(index if row.cells[4] is None else row.cells[4], row.place, "id")
        group = as_text(row.cells[5], row.place, "level")
        if question == "questions":
            examples.extend(_article(row.cells[:4], identity, group, row.place, reading))
        else:
            examples.extend(_one(row.cells[:4], identity, group, row.place, reading))
    return examples


def _article(
    cells: tuple[Any, ...], identity: str, group: str, place: str, reading: Reading
) -> Iterator[ChoiceExample]:
    context, questions, options, answers = cells
    if answers is None:
        answers = [None] * len(questions) if isinstance(questions, list) else []
    if not all(isinstance(part, list) for part in (questions, options, answers)):
        raise DataError(f"{place}: questions, options and answers are not lists; mend the file")
    if not len(questions) == len(options) == len(answers):
        counts = f"{len(questions)} questions, {len(options)} sets of options, {len(answers)} answers"
        raise DataError(f"{place}: {counts}; mend the file")
    for number, (question, some, answer) in enumerate(zip(questions, options, answers, strict=True)):
        yield from _one((context, question, some, answer), f"{identity}-{number}", group, place, reading)


def _one(cells: tuple[Any, ...], identity: str, group: str, place: str, reading: Reading) -> Iterator[ChoiceExample]:
    context, question = as_text(cells[0], place, "article"), as_text(cells[1], place, "question")
    if not group and (match := _LEVEL_OF_ID.match(identity)):
        group = match[1]
    if reading.config.race_level not in ("all", group):
        if not group:
            raise DataError(f"{place}: its level is not told; leave out --race_level")
        return
    if not isinstance(cells[2], list) or len(cells[2]) < 2:
        raise DataError(f"{place}: a question without a list of two options or more; mend the file")
    options = tuple(as_text(option, place, "options") for option in cells[2])
    label = None
    if reading.purpose != "test":
        label = _answer(cells[3], len(options), place, reading)
        if label is None:
            reading.leave_out("no answer", place)
            return
    if context.strip() or reading.keeps("the passage", place):
        yield ChoiceExample(context, question, options, label, identity, group)


def _answer(value: object, option_count: int, place: str, reading: Reading) -> int | None:
    """The number of the option that a letter, or a number from 0, stands for; None where there is none."""
    text = as_label(value, place, "answer", reading.task.no_label)
    if text is None:
        return None
    letters = [chr(ord("A") + i) for i in range(option_count)]
    if text in letters:
        return letters.index(text)
    if text.isascii() and text.isdecimal() and int(text[:9]) < option_count:
        return int(text[:9])
    raise DataError(f"{place}: answer {text!r} is none of {letters[0]} to {letters[-1]}; mend the file")
