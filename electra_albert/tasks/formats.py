"""Rows of tables, and the files of SQuAD, RACE and CoNLL, as examples of each kind of task."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.contracts import IGNORED_LABEL, DataError, UsageError
from electra_albert.data_files.finding import format_of
from electra_albert.data_files.streams import text_lines
from electra_albert.data_files.tables import Table
from electra_albert.tasks.read_rules import SHOWN_CHARACTERS, Item, LeftOut, Reading, as_text, member, require_column
from electra_albert.tasks.task import Answer, ChoiceExample, SequenceExample, SpanExample, TokenExample

_LEVELS = ("middle", "high")  # of RACE
_DOCUMENT_START = "-DOCSTART-"
_MOST_COLUMNS = 4  # of the shared tasks of CoNLL
_ENOUGH_SENTENCES = 10  # to see that words were taken for sentences
_NO_TAG = ("", str(IGNORED_LABEL))


class _Format(NamedTuple):
    """How the examples of a kind of task are read."""

    own_format: Callable[[Path, Reading], Iterator[Item] | None]  # None: the file is a table
    example: Callable[[Item, Reading], Any]
    columns: tuple[str, str, str]  # text, pair and label, in messages
    others: tuple[tuple[str, ...], ...] = ()  # names of other columns
    lists: tuple[str, ...] = ()  # names of the pair and label columns, where a row holds lists of these


def read_examples(reading: Reading) -> list[Any]:
    """The examples of a file or table. Raises DataError naming the place of what cannot be used."""
    form, source = _FORMATS[reading.task.kind], reading.source
    own = None if isinstance(source, Table) else form.own_format(source, reading)
    items = own or _table_items(reading.table(), form, reading)
    if form.lists:
        items = (one for item in items for one in _each_question(item, reading))
    examples: list[Any] = []
    for item in items:
        with suppress(LeftOut):
            examples.append(form.example(item, reading))
    if reading.task.kind == "span" and (repeated := len(examples) - len({one.identity for one in examples})):
        reading.report.note(f"questions of {reading.name} with the id of another", reading.place, repeated)
    is_tagged = reading.task.kind == "token" and reading.purpose != "test"
    if is_tagged and len(examples) >= _ENOUGH_SENTENCES and all(len(one.words) == 1 for one in examples):
        raise DataError(f"{reading.place}: each of its {len(examples):,} sentences is one word; is it the right file?")
    return examples


def _table_items(table: Table, form: _Format, reading: Reading) -> Iterator[Item]:
    columns = reading.task.columns
    if table.names_columns:
        reading.refuse_options(table.location, "names its columns itself; leave it out", "column_names")
    if reading.task.kind == "token" and (reading.config.label_column or "").isdecimal():
        reading.refuse_options(table.location, "has columns with names; give one of them", "label_column")
    pair_names = columns.pair and (*columns.pair, *form.lists[:1])
    label_names = () if reading.purpose == "test" else (*columns.label, *form.lists[1:])
    roles = zip((columns.text, pair_names, label_names), form.columns, ("text", "text_pair", "label"), strict=True)
    names = [require_column(table, known, what, f"--{role}_column") for known, what, role in roles]
    names += map(table.find, (*form.others, columns.identity))
    for index, row in enumerate(table.rows(names)):
        if row.problem:
            with suppress(LeftOut):
                reading.leave_out(row.problem, row.location)
            continue
        text, second, answer, *others, found = row.cells
        identity = as_text(index if found is None else found, row.location, "id")
        yield Item(text, second, answer, identity, row.location, others)


def _new_texts(path: Path, reading: Reading) -> Iterator[Item] | None:
    if path.suffix.lower() != ".txt" or reading.purpose != "test" or reading.task.takes_pairs:
        return None
    texts = [line.removesuffix("\r") for line in text_lines(path, reading.config.encoding)]
    if not any(map(str.strip, texts)):
        raise DataError(f"{path}: holds nothing to predict; give a file with a text in each line")
    return (Item(text, None, None, str(index), f"{path}:{index + 1}") for index, text in enumerate(texts))


def _texts(item: Item, reading: Reading) -> SequenceExample:
    label = None if reading.purpose == "test" else _label(item, reading)
    text = reading.text(item.text, "text", item.place)
    pair = reading.text(item.pair, "second text", item.place) if reading.task.takes_pairs else None
    return SequenceExample(text, pair, label, item.identity)


def _label(item: Item, reading: Reading) -> str | float:
    if isinstance(item.label, list):
        raise DataError(f"{item.place}: its label is a list (multi-label); give a column with one label a row")
    label = reading.as_label(item.label, item.place) or reading.leave_out("no label", item.place)
    if not reading.task.is_regression:
        label = reading.task.label_aliases.get(label, label)
        reading.check_label(label, item.place)
        return label
    lowest, highest = reading.task.score_range or (-math.inf, math.inf)
    try:
        number = float(label)
    except ValueError as error:
        raise DataError(f"{item.place}: label {label[:SHOWN_CHARACTERS]!r} is not a number; mend the file") from error
    if math.isfinite(number) and lowest <= number <= highest:
        return number
    limits = f"from {lowest:g} to {highest:g}" if reading.task.score_range else "that is finite"
    if reading.purpose != "train":
        raise DataError(f"{item.place}: label {label} is not a number {limits}; mend the file")
    reading.leave_out(f"the label is not a number {limits}", item.place)


def _race(path: Path, reading: Reading) -> Iterator[Item] | None:
    if not path.is_dir():
        return _article(path, reading) if path.suffix.lower() in (".txt", ".json") else None
    level = reading.config.race_level
    folders = [path / name for name in _LEVELS if level in ("all", name)]
    there = [folder for folder in folders if folder.is_dir()]
    for folder in [folder for folder in folders if there and folder not in there]:
        reading.report.note(f"level missing from {reading.name}: {folder.name}", str(path))
    if not there and any((path / name).is_dir() for name in _LEVELS):
        raise UsageError(f"{path}: no folder {level}/; choose another --race_level")
    files = [file for folder in there or [path] for file in sorted(folder.glob("*.txt"))]
    if not files:
        raise UsageError(f"{path}: no *.txt in it or in its middle/ and high/; give a folder of RACE")
    return (item for file in files for item in _article(file, reading))


def _article(path: Path, reading: Reading) -> Iterator[Item]:
    found, place = reading.parse_json(path), str(path)
    text, questions = member(found, "article", str, place), member(found, "questions", list, place)
    level, options = path.parent.name if path.parent.name in _LEVELS else "", member(found, "options", list, place)
    yield Item(text, questions, found.get("answers"), str(found.get("id", path.name)), place, (options, level))


def _each_question(item: Item, reading: Reading) -> Iterator[Item]:
    if not isinstance(item.pair, list):  # a question already
        yield item
        return
    count, (options, level) = len(item.pair), item.others
    answers = [None] * count if reading.purpose == "test" else item.label
    if not isinstance(options, list) or not isinstance(answers, list) or not len(options) == len(answers) == count:
        raise DataError(f"{item.place}: not as many options and answers as its {count} questions; mend the file")
    for number, (question, some, answer) in enumerate(zip(item.pair, options, answers, strict=True)):
        yield Item(item.text, question, answer, f"{item.identity}-{number}", item.place, (some, level))


def _choices(item: Item, reading: Reading) -> ChoiceExample:
    options, level = item.others
    found = re.match(r"(middle|high)\d", item.identity)
    group = as_text(level, item.place, "level") or (found[1] if found else "")
    if reading.config.race_level not in ("all", group):
        if not group:
            raise DataError(f"{item.place}: it has no level; leave out --race_level")
        raise LeftOut
    if not isinstance(options, list) or len(options) < 2:
        raise DataError(f"{item.place}: a question without a list of two options or more; mend the file")
    label = None if reading.purpose == "test" else _option(item, len(options), reading)
    text, question = reading.text(item.text, "passage", item.place), as_text(item.pair, item.place, "question")
    return ChoiceExample(text, question, _list(options, item.place, "options"), label, item.identity, group)


def _option(item: Item, option_count: int, reading: Reading) -> int:
    """The number of the option that the label names by its letter, or by its number from 0."""
    text = reading.as_label(item.label, item.place) or reading.leave_out("no answer", item.place)
    letters = [chr(ord("A") + i) for i in range(option_count)]
    names = [*letters, *map(str, range(option_count))]
    if text not in names:
        raise DataError(f"{item.place}: answer {text!r} is none of {letters[0]} to {letters[-1]}; mend the file")
    return names.index(text) % option_count


def _squad(path: Path, reading: Reading) -> Iterator[Item] | None:
    items: list[Item] = []
    if path.suffix.lower() != ".json":
        return None
    for i, article in enumerate(member(reading.parse_json(path), "data", list, str(path))):
        for j, paragraph in enumerate(member(article, "paragraphs", list, f"{path}, article {i}")):
            here = f"{path}, article {i}, paragraph {j}"
            context = member(paragraph, "context", str, here)
            for qa in member(paragraph, "qas", list, here):
                identity = as_text(member(qa, "id", str | int, here), here, "id")
                place = f"{path}, question {identity}"
                answers = None if reading.purpose == "test" else member(qa, "answers", list, place)
                question = member(qa, "question", str, place)
                items.append(Item(context, question, answers, identity, place, (qa.get("is_impossible"),)))
    return iter(items)


def _spans(item: Item, reading: Reading) -> SpanExample:
    answers = None if reading.purpose == "test" else _answers(item.label, item.place)
    context = reading.text(item.text, "passage", item.place)
    question = reading.text(item.pair, "question", item.place)
    usable = None if answers is None else _usable(context, answers, item, reading)
    return SpanExample(context, question, usable, item.identity)


def _answers(found: Any, place: str) -> list[Answer]:
    if isinstance(found, dict):  # as `datasets` has it, else a list of objects
        texts, starts = member(found, "text", list, place), member(found, "answer_start", list, place)
        if len(texts) != len(starts):
            raise DataError(f"{place}: {len(texts)} texts and {len(starts)} starts of answers; mend the file")
        found = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if found is not None and not isinstance(found, list):
        raise DataError(f"{place}: the answers are no list; mend the file")
    return [
        Answer(as_text(member(one, "text", str, place), place, "text"), int(member(one, "answer_start", int, place)))
        for one in found or ()
    ]


def _usable(context: str, answers: list[Answer], item: Item, reading: Reading) -> tuple[Answer, ...]:
    is_impossible, note = item.others[0], reading.report.note
    if is_impossible is True and answers:
        note(f"questions of {reading.name} marked as impossible whose answers are ignored", item.place)
        answers = []
    if not reading.task.has_null_answer and not answers:
        why = "the question has no answer, which only squad_v2 has" if is_impossible is True else "no answers"
        reading.leave_out(why, item.place)
    if not answers and is_impossible is False and reading.purpose == "train":
        reading.leave_out("no answers, but not marked as impossible", item.place)
    kept = []
    for text, start in answers:
        found = nearest(context, text, start)
        if found != start:
            lost = "left out: they are not in" if reading.purpose == "train" else "that still count, but are not in"
            changed = f"{lost} the passage" if found is None else "moved to where their text is"
            note(f"answers of {reading.name} {changed}", item.place)
        if found is not None or reading.purpose != "train":
            kept.append(Answer(text, start if found is None else found))
    if answers and not kept:
        reading.leave_out("the answer is not in the passage", item.place)
    return tuple(kept)


def nearest(context: str, text: str, start: int) -> int | None:
    """The position of `text` in `context` that is nearest to `start`; None where it is nowhere."""
    if text and start >= 0 and context.startswith(text, start):
        return start
    found = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)] if text else []
    return min(found, key=lambda position: abs(position - start), default=None)


def _conll(path: Path, reading: Reading) -> Iterator[Item] | None:
    form = format_of(path)
    if form in ("jsonl", "parquet", "arrow"):
        return None
    if form is None or form == "csv":
        raise UsageError(f"{path}: give columns of CoNLL, .jsonl or .parquet, not {path.suffix}; unpack or convert it")
    lines = [line.removesuffix("\r") for line in text_lines(path, reading.config.encoding)]
    if not any(map(str.strip, lines)):
        raise DataError(f"{path}: empty; give a file with sentences")
    widths = {len(_cells(line)) for line in lines if _holds_word(line)}
    is_even = not all(map(str.strip, lines)) and len(widths) == 1 and max(widths) <= _MOST_COLUMNS
    has_columns = is_even or any("\t" in line for line in lines)
    if path.suffix.lower() == ".txt" and reading.purpose == "test" and not has_columns:
        return _plain_sentences(lines, reading)
    why = "has columns without names, of which the first is taken; leave it out"
    reading.refuse_options(str(path), why, "text_column", "text_pair_column", "column_names")
    asked, widest = reading.config.label_column, max(widths, default=0)
    if asked is None or not asked.isdecimal():
        reading.refuse_options(str(path), "has columns without names; give a number from 0", "label_column")
    elif reading.task.tag_column >= widest:
        reading.refuse_options(str(path), f"has {widest} columns, numbered from 0; give one of them", "label_column")
    return _sentences(lines, reading)


def _plain_sentences(lines: list[str], reading: Reading) -> Iterator[Item]:
    for index, line in enumerate(lines):
        place = f"{reading.place}:{index + 1}"
        if words := line.split():
            yield Item(words, None, None, str(index), place)
        else:
            reading.report.note(f"lines of {reading.name} without a word, which give no sentence", place)


def _sentences(lines: list[str], reading: Reading) -> Iterator[Item]:
    """The words and tags of consecutive lines; blank lines and those that begin a document are between sentences."""
    index = 0
    for holds_words, group in groupby(enumerate(lines, start=1), key=lambda numbered: _holds_word(numbered[1])):
        numbered = list(group)
        if holds_words:
            words = [_cells(line) for _, line in numbered]
            tags = [_tag(cells, reading) for cells in words]
            yield Item([cells[0] for cells in words], None, tags, str(index), f"{reading.place}:{numbered[0][0]}")
            index += 1
            continue
        for number, line in numbered:
            if line.strip():
                what = f"lines of {reading.name} that begin a document, and hold no word"
                reading.report.note(what, f"{reading.place}:{number}")


def _holds_word(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(_DOCUMENT_START)


def _cells(line: str) -> list[str]:
    """The columns of a line, between tabs if it has any, else between spaces."""
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _tag(cells: list[str], reading: Reading) -> str:
    """The tag of a line, empty where it has none; of two columns it is the second, whichever is usual."""
    column = -1 if len(cells) == 2 and reading.config.label_column is None else reading.task.tag_column
    return "" if len(cells) < 2 or column >= len(cells) else cells[column].strip()


def _tokens(item: Item, reading: Reading) -> TokenExample:
    words = _list(item.text, item.place, "words")
    tags = None if reading.purpose == "test" else _list(item.label, item.place, "tags")
    if not words:
        reading.leave_out("no words", item.place)
    if tags is not None and len(tags) != len(words):
        reading.leave_out("not as many tags as words", item.place)
    if not {*_NO_TAG}.isdisjoint(tags or ()):
        reading.leave_out("a word without a tag in the sentence", item.place)
    for tag in dict.fromkeys(tags or ()):
        reading.check_label(tag, item.place)
    return TokenExample(words, tags, item.identity)


def _list(value: object, place: str, column: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DataError(f"{place}: {column!r} holds no list; mend the file")
    return tuple(as_text(one, place, column) for one in value)


_ASKED = ("the passage", "the question", "the answer")
_FORMATS = {
    "sequence": _Format(_new_texts, _texts, ("the text", "the second text", "the label")),
    "choice": _Format(_race, _choices, _ASKED, (("options", "choices"), ("level",)), ("questions", "answers")),
    "span": _Format(_squad, _spans, _ASKED, (("is_impossible",),)),
    "token": _Format(_conll, _tokens, ("the words", "", "the tags")),
}
