"""Questions on passages: the JSON of SQuAD 1.1 and 2.0, and tables with the columns of `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.contracts import DataError
from electra_albert.tasks.read_rules import COLUMN_OPTIONS, Reading, as_text, parse_json, read_text
from electra_albert.tasks.tables import Table, open_table
from electra_albert.tasks.task import Answer, SpanExample


class _Question(NamedTuple):
    """A question as it stands in a file."""

    context: str
    question: str
    answers: list[Answer] | None
    is_impossible: bool | None  # None: not told
    identity: str
    place: str


def read_spans(path: Path, reading: Reading) -> list[SpanExample]:
    """The examples of a file. Raises DataError where it has not the form of SQuAD."""
    if path.suffix.lower() != ".json":
        return span_rows(open_table(path, reading=reading), reading)
    reading.refuse_options(COLUMN_OPTIONS, str(path), "is in SQuAD's own form, which has no columns; leave it out")
    found = parse_json(read_text(path, reading.config.encoding), str(path))
    return _examples(_questions(found, str(path), reading), reading)


def span_rows(table: Table, reading: Reading) -> list[SpanExample]:
    """The examples of a table with a passage, a question and an object of answers in each row."""
    columns = reading.task.columns
    context = table.require(columns.text, "the passage", "--text_column")
    question = table.require(columns.pair, "the question", "--text_pair_column")
    answers = None
    if reading.purpose != "test":
        answers = table.require(columns.label, "the answers", "--label_column")
    names = (context, question, answers, table.find(columns.identity), table.find(("is_impossible",)))
    return _examples(_row_questions(table, names, reading), reading)


def _row_questions(table: Table, names: tuple[str | None, ...], reading: Reading) -> Iterator[_Question]:
    for index, row in enumerate(table.rows(names)):
        if row.problem:
            reading.leave_out(row.problem, row.place)
            continue
        context, question, answers, identity, is_impossible = row.cells
        yield _Question(
            as_text(context, row.place, "context"),
            as_text(question, row.place, "question"),
            None if reading.purpose == "test" else _answers(answers, row.place),
            _truth(is_impossible),
            as_text(index if identity is None else identity, row.place, "id"),
            row.place,
        )


def _questions(found: Any, place: str, reading: Reading) -> Iterator[_Question]:
    for article_number, article in enumerate(_member(found, "data", list, place)):
        where = f"{place}, article {article_number}"
        for paragraph_number, paragraph in enumerate(_member(article, "paragraphs", list, where)):
            here = f"{where}, paragraph {paragraph_number}"
            context = _member(paragraph, "context", str, here)
            for qa in _member(paragraph, "qas", list, here):
                identity = as_text(_member(qa, "id", str | int, here), here, "id")
                there = f"{place}, question {identity}"
                answers = None if reading.purpose == "test" else _answers(_member(qa, "answers", list, there), there)
                yield _Question(
                    as_text(context, here, "context"),
                    as_text(_member(qa, "question", str, there), there, "question"),
                    answers,
                    _truth(qa.get("is_impossible")),
                    identity,
                    there,
                )


def _member(found: Any, key: str, kind: Any, place: str) -> Any:
    """What an object holds under a key. Raises DataError where it is not there or of another kind."""
    if not isinstance(found, dict) or not isinstance(found.get(key), kind):
        raise DataError(f"{place}: no {key!r} as in a file of SQuAD; check that this is the right file")
    return found[key]


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _answers(found: Any, place: str) -> list[Answer]:
    """Answers as a list of objects, or as one object of lists."""
    if isinstance(found, dict):
        texts, starts = _member(found, "text", list, place), _member(found, "answer_start", list, place)
        if len(texts) != len(starts):
            raise DataError(f"{place}: {len(texts)} texts and {len(starts)} places of answers; mend the file")
        found = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if found is None:
        return []
    if not isinstance(found, list):
        raise DataError(f"{place}: the answers are no list; mend the file")
    return [
        Answer(as_text(_member(one, "text", str, place), place, "text"), int(_member(one, "answer_start", int, place)))
        for one in found
    ]


def _examples(questions: Iterator[_Question], reading: Reading) -> list[SpanExample]:
    examples = []
    seen: set[str] = set()
    for one in questions:
        if one.identity in seen:
            reading.report.note(f"questions of {reading.name} with the id of another", one.place)
        seen.add(one.identity)
        if not one.context.strip() and not reading.keeps("the passage", one.place):
            continue
        if not one.question.strip() and not reading.keeps("the question", one.place):
            continue
        if one.answers is None:
            examples.append(SpanExample(one.context, one.question, None, one.identity))
        elif (answers := _usable(one, one.answers, reading)) is not None:
            examples.append(SpanExample(one.context, one.question, answers, one.identity))
    return examples


def _usable(one: _Question, answers: list[Answer], reading: Reading) -> tuple[Answer, ...] | None:
    """The answers to learn from or to score by; None, and counted, where the question is of no use."""
    if one.is_impossible and answers:
        reading.report.note(f"questions of {reading.name} marked as impossible whose answers are ignored", one.place)
        answers = []
    if not reading.task.has_null_answer and not answers:
        why = "the question has no answer, which only squad_v2 has" if one.is_impossible else "no answers"
        reading.leave_out(why, one.place)
        return None
    if not answers and one.is_impossible is False and reading.purpose == "train":
        reading.leave_out("no answers, but not marked as impossible", one.place)
        return None
    placed = [_placed(answer, one, reading) for answer in answers]
    kept = tuple(answer for answer in placed if answer is not None)
    if answers and not kept:
        reading.leave_out("the answer does not stand in the passage", one.place)
        return None
    return kept


def _placed(answer: Answer, one: _Question, reading: Reading) -> Answer | None:
    """The answer where its text stands, nearest to where it is said to be; None where a training answer does not."""
    text, start = answer
    if text and start >= 0 and one.context.startswith(text, start):
        return answer
    found = _nearest(one.context, text, start) if text else None
    if found is not None:
        reading.report.note(f"answers of {reading.name} moved to where their text stands", one.place)
        return Answer(text, found)
    if reading.purpose == "train":
        reading.report.note(f"answers of {reading.name} left out: they do not stand in the passage", one.place)
        return None
    reading.report.note(f"answers of {reading.name} that do not stand in the passage, and still count", one.place)
    return answer


def _nearest(context: str, text: str, start: int) -> int | None:
    start = min(max(start, 0), len(context))
    before, after = context.rfind(text, 0, start + len(text)), context.find(text, start)
    found = [place for place in (before, after) if place >= 0]
    return min(found, key=lambda place: abs(place - start), default=None)
