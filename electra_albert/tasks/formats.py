"""Parse tables and files of SQuAD and RACE into examples; conll has those of tagging."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from electra_albert.contracts import IGNORED_LABEL, DataError, UsageError
from electra_albert.data_files import streams
from electra_albert.data_files.tables import Table
from electra_albert.tasks import token
from electra_albert.tasks.conll import read_conll
from electra_albert.tasks.read_rules import (
    MAX_SHOWN,
    RawExample,
    Skipped,
    SplitReader,
    as_text,
    label_text,
    member,
    require_column,
)
from electra_albert.tasks.task import Answer, ChoiceExample, SequenceExample, SpanExample, TokenExample

_LEVELS = ("middle", "high")  # of RACE
_ENOUGH_SENTENCES = 10  # enough to conclude that the file holds words, not sentences
_WHOLE_NUMBER = re.compile(r"^(-?\d+)\.0*$")  # as tables write integers in a column with empty cells
_NO_TAG = ("", str(IGNORED_LABEL))


class _Format(NamedTuple):
    """Parsers for one kind of task."""

    own_format: Callable[[Path, SplitReader], Iterator[RawExample] | None]  # None: the file is a table
    example: Callable[[RawExample, SplitReader], Any]
    columns: tuple[str, str, str]  # text, pair and label, in messages
    others: tuple[tuple[str, ...], ...] = ()  # names of other columns
    lists: tuple[str, ...] = ()  # pair and label columns, if a row holds lists of questions and answers


def read_examples(reader: SplitReader) -> list[Any]:
    """The examples of a file or table; DataError with file and line for unusable data."""
    form, source = _FORMATS[reader.task.kind], reader.source
    own = None if isinstance(source, Table) else form.own_format(source, reader)
    items = own or _table_items(reader.table(), form, reader)
    if reader.task.kind == "token":
        items = _correct_outside_tags(list(items), reader)
    if form.lists:
        items = (one for raw in items for one in _each_question(raw, reader))
    examples: list[Any] = []
    for raw in items:
        with suppress(Skipped):
            examples.append(form.example(raw, reader))
    if reader.task.kind == "span" and (repeated := len(examples) - len({one.identity for one in examples})):
        reader.report.note(f"questions of {reader.name} with a duplicate id", reader.location, repeated)
    is_tagged = reader.task.kind == "token" and reader.purpose != "test"
    if is_tagged and len(examples) >= _ENOUGH_SENTENCES and all(len(one.words) == 1 for one in examples):
        problem = f"all {len(examples):,} sentences have one word"
        raise DataError(f"{reader.location}: {problem}; check that it is the right file")
    return examples


def _table_items(table: Table, form: _Format, reader: SplitReader) -> Iterator[RawExample]:
    columns = reader.task.columns
    if table.names_columns:
        reader.reject_options(table.location, "has column names of its own; drop the option", "column_names")
    if reader.task.kind == "token" and (reader.config.label_column or "").isdecimal():
        reader.reject_options(table.location, "has named columns; give a name", "label_column")
    pair_names = columns.pair and (*columns.pair, *form.lists[:1])
    label_names = () if reader.purpose == "test" else (*columns.label, *form.lists[1:])
    roles = zip((columns.text, pair_names, label_names), form.columns, ("text", "text_pair", "label"), strict=True)
    names = [require_column(table, known, what, f"--{role}_column") for known, what, role in roles]
    names += map(table.find, (*form.others, columns.identity))
    for index, row in enumerate(table.rows(names)):
        if row.problem:
            with suppress(Skipped):
                reader.skip(row.problem, row.location)
            continue
        text, second, answer, *others, found = row.cells
        identity = as_text(index if found is None else found, row.location, "id")
        yield RawExample(text, second, answer, identity, row.location, others)


def _new_texts(path: Path, reader: SplitReader) -> Iterator[RawExample] | None:
    if path.suffix.lower() != ".txt" or reader.purpose != "test" or reader.task.takes_pairs:
        return None
    texts = [line.removesuffix("\r") for line in streams.text_lines(path, reader.config.encoding)]
    if not any(map(str.strip, texts)):
        raise DataError(f"{path}: holds nothing to predict; give a file with one text per line")
    return (RawExample(text, None, None, str(index), f"{path}:{index + 1}") for index, text in enumerate(texts))


def _texts(raw: RawExample, reader: SplitReader) -> SequenceExample:
    label = None if reader.purpose == "test" else _label(raw, reader)
    text = reader.text(raw.text, "text", raw.location)
    pair = reader.text(raw.pair, "second text", raw.location) if reader.task.takes_pairs else None
    return SequenceExample(text, pair, label, raw.identity)


def _label(raw: RawExample, reader: SplitReader) -> str | float:
    if isinstance(raw.label, list):
        raise DataError(f"{raw.location}: the label is a list (multi-label); give a column with one label per row")
    label = reader.as_label(raw.label, raw.location) or reader.skip("no label", raw.location)
    if not reader.task.is_regression:
        label = reader.task.label_aliases.get(label, label)
        is_asked = reader.config.regression is False
        if label not in reader.labels and (is_asked or reader.labels):
            label = _WHOLE_NUMBER.sub(r"\1", label)
        reader.check_label(label, raw.location)
        return label
    lowest, highest = reader.task.score_range or (-math.inf, math.inf)
    try:
        number = float(label)
    except ValueError as error:
        raise DataError(f"{raw.location}: label {label[:MAX_SHOWN]!r} is not a number; correct the file") from error
    if math.isfinite(number) and lowest <= number <= highest:
        return number
    limits = f"from {lowest:g} to {highest:g}" if reader.task.score_range else "that is finite"
    if reader.purpose != "train":
        raise DataError(f"{raw.location}: label {label} is not a number {limits}; correct the file")
    reader.skip(f"the label is not a number {limits}", raw.location)


def _race(path: Path, reader: SplitReader) -> Iterator[RawExample] | None:
    if not path.is_dir():
        return _article(path, reader) if path.suffix.lower() in (".txt", ".json") else None
    level = reader.config.race_level
    folders = [path / name for name in _LEVELS if level in ("all", name)]
    there = [folder for folder in folders if folder.is_dir()]
    for folder in [folder for folder in folders if there and folder not in there]:
        reader.report.note(f"missing level of {reader.name}: {folder.name}", str(path))
    if not there and any((path / name).is_dir() for name in _LEVELS):
        raise UsageError(f"{path}: no folder {level}/; choose another --race_level")
    if not (files := [file for folder in there or [path] for file in sorted(folder.glob("*.[tT][xX][tT]"))]):
        raise UsageError(f"{path}: no *.txt in it or in middle/ and high/; give a folder of RACE")
    return (raw for file in files for raw in _article(file, reader))


def _article(path: Path, reader: SplitReader) -> Iterator[RawExample]:
    found, location = reader.parse_json(path), str(path)
    text, questions = member(found, "article", str, location), member(found, "questions", list, location)
    level, options = path.parent.name if path.parent.name in _LEVELS else "", member(found, "options", list, location)
    yield RawExample(text, questions, found.get("answers"), str(found.get("id", path.name)), location, (options, level))


def _each_question(raw: RawExample, reader: SplitReader) -> Iterator[RawExample]:
    if not isinstance(raw.pair, list):  # a question already
        yield raw
        return
    count, (options, level) = len(raw.pair), raw.others
    answers = [None] * count if reader.purpose == "test" else raw.label
    if not isinstance(options, list) or not isinstance(answers, list) or not len(options) == len(answers) == count:
        raise DataError(f"{raw.location}: {count} questions, but not as many options or answers; correct the file")
    for number, (question, some, answer) in enumerate(zip(raw.pair, options, answers, strict=True)):
        yield RawExample(raw.text, question, answer, f"{raw.identity}-{number}", raw.location, (some, level))


def _choices(raw: RawExample, reader: SplitReader) -> ChoiceExample:
    options, level = raw.others
    found = re.match(r"(middle|high)\d", raw.identity)
    group = as_text(level, raw.location, "level") or (found[1] if found else "")
    if reader.config.race_level not in ("all", group):
        if not group:
            raise DataError(f"{raw.location}: the question has no level; drop --race_level")
        raise Skipped
    if not isinstance(options, list) or not 2 <= len(options) <= len(ascii_uppercase):
        raise DataError(f"{raw.location}: a question needs a list of 2 to 26 options; correct the file")
    label = None if reader.purpose == "test" else _option(raw, len(options), reader)
    text, question = reader.text(raw.text, "passage", raw.location), as_text(raw.pair, raw.location, "question")
    return ChoiceExample(text, question, _list(options, raw.location, "options"), label, raw.identity, group)


def _option(raw: RawExample, option_count: int, reader: SplitReader) -> int:
    """Index of the correct option; the label is its letter, or its index from 0."""
    text = reader.as_label(raw.label, raw.location) or reader.skip("no answer", raw.location)
    letters = ascii_uppercase[:option_count]
    names = [*letters, *map(str, range(option_count))]
    if text not in names:
        choices = f"A to {letters[-1]} or 0 to {option_count - 1}"
        raise DataError(f"{raw.location}: answer {text!r} is not one of {choices}; correct it")
    return names.index(text) % option_count


def _squad(path: Path, reader: SplitReader) -> Iterator[RawExample] | None:
    items: list[RawExample] = []
    if path.suffix.lower() != ".json":
        return None
    for i, article in enumerate(member(reader.parse_json(path), "data", list, str(path))):
        for j, paragraph in enumerate(member(article, "paragraphs", list, f"{path}, article {i}")):
            here = f"{path}, article {i}, paragraph {j}"
            context = member(paragraph, "context", str, here)
            for qa in member(paragraph, "qas", list, here):
                identity = as_text(member(qa, "id", str | int, here), here, "id")
                location = f"{path}, question {identity}"
                answers = None if reader.purpose == "test" else member(qa, "answers", list, location)
                question = member(qa, "question", str, location)
                items.append(RawExample(context, question, answers, identity, location, (qa.get("is_impossible"),)))
    return iter(items)


def _spans(raw: RawExample, reader: SplitReader) -> SpanExample:
    answers = None if reader.purpose == "test" else _answers(raw.label, raw.location)
    context = reader.text(raw.text, "passage", raw.location)
    question = reader.text(raw.pair, "question", raw.location)
    usable = None if answers is None else _usable(context, answers, raw, reader)
    return SpanExample(context, question, usable, raw.identity)


def _answers(found: Any, at: str) -> list[Answer]:
    if isinstance(found, dict):  # a dict of lists, as in `datasets`; else a list of dicts
        texts, starts = member(found, "text", list, at), member(found, "answer_start", list, at)
        if len(texts) != len(starts):
            raise DataError(f"{at}: {len(texts)} answer texts, but {len(starts)} answer starts; correct the file")
        found = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if found is not None and not isinstance(found, list):
        raise DataError(f"{at}: the answers are not a list; correct the file")
    return [
        Answer(as_text(member(one, "text", str, at), at, "text"), int(member(one, "answer_start", int, at)))
        for one in found or ()
    ]


def _usable(context: str, answers: list[Answer], raw: RawExample, reader: SplitReader) -> tuple[Answer, ...]:
    is_impossible, note = raw.others[0], reader.report.note
    if is_impossible is True and answers:
        note(f"questions of {reader.name} marked as impossible, answers ignored", raw.location)
        answers = []
    if not reader.task.has_null_answer and not answers:
        why = "unanswerable question, which only squad_v2 allows" if is_impossible is True else "no answers"
        reader.skip(why, raw.location)
    if not answers and is_impossible is False and reader.purpose == "train":
        reader.skip("no answers, but not marked as impossible", raw.location)
    kept = []
    for text, start in answers:
        if (found := nearest(context, text, start)) != start:
            lost = "left out: not in" if reader.purpose == "train" else "kept although not in"
            changed = f"{lost} the passage" if found is None else "moved to the nearest position of their text"
            note(f"answers of {reader.name} {changed}", raw.location)
        if found is not None or reader.purpose != "train":
            kept.append(Answer(text, start if found is None else found))
    if answers and not kept:
        reader.skip("the answer is not in the passage", raw.location)
    return tuple(kept)


def nearest(context: str, text: str, start: int) -> int | None:
    """The position of `text` in `context` that is nearest to `start`; None if it does not occur."""
    if text and start >= 0 and context.startswith(text, start):
        return start
    found = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)] if text else []
    return min(found, key=lambda position: abs(position - start), default=None)


def _correct_outside_tags(sentences: list[RawExample], reader: SplitReader) -> Iterator[RawExample]:
    """The sentences, with a tag `o` next to those of entities written as O, unless it is a label."""
    lists = [sentence.label for sentence in sentences if isinstance(sentence.label, list)]
    names = {*reader.labels, *map(str, chain(*lists))}
    if "o" in reader.labels or "o" not in names or not token.is_entity_tagging({*names, "O"} - {"o"}):
        return iter(sentences)
    reader.report.note(f"tags o of {reader.name} taken as O", reader.location, sum(tags.count("o") for tags in lists))
    for tags in lists:
        tags[:] = ["O" if tag == "o" else tag for tag in tags]
    return iter(sentences)


def _tokens(raw: RawExample, reader: SplitReader) -> TokenExample:
    words = _list(raw.text, raw.location, "words")
    tags = None
    if reader.purpose != "test":
        tags = tuple(label_text(tag, raw.location) for tag in _list(raw.label, raw.location, "tags"))
    if not words:
        reader.skip("no words", raw.location)
    if tags is not None and len(tags) != len(words):
        reader.skip("not as many tags as words", raw.location)
    if not {*_NO_TAG}.isdisjoint(tags or ()):
        reader.skip("a word without a tag in the sentence", raw.location)
    for tag in dict.fromkeys(tags or ()):
        reader.check_label(tag, raw.location)
    return TokenExample(words, tags, raw.identity)


def _list(value: object, location: str, column: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DataError(f"{location}: {column!r} is not a list; correct the file")
    return tuple(as_text(one, location, column) for one in value)


_QA_COLUMNS = ("the passage", "the question", "the answer")
_FORMATS = {
    "sequence": _Format(_new_texts, _texts, ("the text", "the second text", "the label")),
    "choice": _Format(_race, _choices, _QA_COLUMNS, (("options", "choices"), ("level",)), ("questions", "answers")),
    "span": _Format(_squad, _spans, _QA_COLUMNS, (("is_impossible",),)),
    "token": _Format(read_conll, _tokens, ("the words", "", "the tags")),
}
