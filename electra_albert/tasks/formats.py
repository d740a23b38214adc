"""Rows of tables, and the files of SQuAD, RACE and CoNLL, as examples of each kind of task."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.contracts import IGNORED_LABEL, DataError, UsageError
from electra_albert.data_files.finding import format_of
from electra_albert.data_files.streams import text_lines
from electra_albert.data_files.tables import Table
from electra_albert.tasks import read_rules
from electra_albert.tasks.read_rules import Item, Reading, as_label, as_text, member, parse_json
from electra_albert.tasks.task import Answer, ChoiceExample, SequenceExample, SpanExample, TokenExample

_LEVELS = ("middle", "high")  # of RACE
_DOCUMENT_START = "-DOCSTART-"
_MOST_COLUMNS = 4  # of the shared tasks of CoNLL
_ENOUGH_SENTENCES = 10  # to see that words were taken for sentences
_NO_TAG = ("", str(IGNORED_LABEL))


class _Kind(NamedTuple):
    """How the examples of a kind of task are read."""

    own_format: Callable[[Path, Reading], Iterator[Item] | None]  # None: the file is a table
    examples: Callable[[Item, Reading], Iterator[Any]]
    columns: tuple[str, str, str]  # text, pair and label, in messages
    others: tuple[tuple[str, ...], ...] = ()  # names of other columns
    lists: tuple[str, ...] = ()  # names of the pair and label columns, where a row holds lists of these


def read_examples(source: Path | Table, reading: Reading) -> list[Any]:
    """The examples of a file or table. Raises DataError naming the place of what cannot be used."""
    kind = _KINDS[reading.task.kind]
    items = None if isinstance(source, Table) else kind.own_format(source, reading)
    if items is None:
        items = _table_items(source if isinstance(source, Table) else reading.open_table(source), kind, reading)
    examples = [example for item in items for example in kind.examples(item, reading)]
    place = source.place if isinstance(source, Table) else str(source)
    if kind.examples is _spans and (repeated := len(examples) - len({one.identity for one in examples})):
        reading.report.note(f"questions of {reading.name} with the id of another", place, repeated)
    is_labelled = kind.examples is _tokens and reading.purpose != "test"
    if is_labelled and len(examples) >= _ENOUGH_SENTENCES and all(len(one.words) == 1 for one in examples):
        raise DataError(f"{place}: each of its {len(examples):,} sentences is one word; is it the right file?")
    return examples


def _table_items(table: Table, kind: _Kind, reading: Reading) -> Iterator[Item]:
    columns, (text, pair, label) = reading.task.columns, kind.columns
    if table.names_columns:
        reading.refuse_options(("column_names",), table.place, "names its columns itself; leave it out")
    if reading.task.kind == "token" and (reading.config.label_column or "").isdecimal():
        reading.refuse_options(("label_column",), table.place, "has columns with names; give one of them")
    pair_names = columns.pair and (*columns.pair, *kind.lists[:1])
    label_names = () if reading.purpose == "test" else (*columns.label, *kind.lists[1:])
    names = [
        read_rules.require_column(table, columns.text, text, "--text_column"),
        read_rules.require_column(table, pair_names, pair, "--text_pair_column"),
        read_rules.require_column(table, label_names, label, "--label_column"),
        table.find(columns.identity),
        *map(table.find, kind.others),
    ]
    for index, row in enumerate(table.rows(names)):
        if row.problem:
            reading.leave_out(row.problem, row.place)
            continue
        identity = as_text(index if row.cells[3] is None else row.cells[3], row.place, "id")
        text, second, answer = row.cells[:3]
        yield Item(text, second, answer, identity, row.cells[4:], row.place)


# Texts with a label.


def _new_texts(path: Path, reading: Reading) -> Iterator[Item] | None:
    """Of new text in a .txt file each line."""
    if path.suffix.lower() != ".txt" or reading.purpose != "test" or reading.task.takes_pairs:
        return None
    texts = [line.removesuffix("\r") for line in text_lines(path, reading.config.encoding)]
    if not any(map(str.strip, texts)):
        raise DataError(f"{path}: holds nothing to predict; give a file with a text in each line")
    return (Item(text, None, None, str(index), (), f"{path}:{index + 1}") for index, text in enumerate(texts))


def _texts(item: Item, reading: Reading) -> Iterator[SequenceExample]:
    text = as_text(item.text, item.place, "text")
    pair = as_text(item.pair, item.place, "second text") if reading.task.takes_pairs else None
    label = None if reading.purpose == "test" else _label(item, reading)
    if label is None and reading.purpose != "test":
        return
    texts = {"the text": text} if pair is None else {"the text": text, "the second text": pair}
    if all(reading.keeps(found, what, item.place) for what, found in texts.items()):
        yield SequenceExample(text, pair, label, item.identity)


def _label(item: Item, reading: Reading) -> str | float | None:
    """The label as a class or a number; None, and counted, where there is none that can be used."""
    if isinstance(item.label, list):
        advice = "several labels a text (multi-label) cannot be learned; give a column with one label a row"
        raise DataError(f"{item.place}: its label is a list; {advice}")
    label = as_label(item.label, item.place, reading.task.no_label)
    if label is None:
        reading.leave_out("no label", item.place)
        return None
    if reading.task.is_regression:
        return _number(label, item.place, reading)
    label = reading.task.label_aliases.get(label, label)
    return label if reading.knows_label(label, item.place) else None


def _number(label: str, place: str, reading: Reading) -> float | None:
    lowest, highest = reading.task.score_range or (-math.inf, math.inf)
    try:
        number = float(label)
    except ValueError as error:
        found = f"{place}: label {label[: read_rules.SHOWN_CHARACTERS]!r}"
        raise DataError(f"{found} is not a number; mend the file") from error
    if math.isfinite(number) and lowest <= number <= highest:
        return number
    limits = f"from {lowest:g} to {highest:g}" if reading.task.score_range else "that is finite"
    if reading.purpose != "train":
        raise DataError(f"{place}: label {label} is not a number {limits}; mend the file")
    reading.leave_out(f"the label is not a number {limits}", place)
    return None


# Multiple choice: RACE's folders of articles, and tables with a question or an article a row.


def _race(path: Path, reading: Reading) -> Iterator[Item] | None:
    if not path.is_dir():
        return _article(path, reading) if path.suffix.lower() in (".txt", ".json") else None
    level = reading.config.race_level
    folders = [path / name for name in _LEVELS if level in ("all", name)]
    there = [folder for folder in folders if folder.is_dir()]
    for folder in folders:
        if there and folder not in there:
            reading.report.note(f"level missing from {reading.name}: {folder.name}", str(path))
    if not there and any((path / name).is_dir() for name in _LEVELS):
        raise UsageError(f"{path}: no folder {level}/; choose another --race_level")
    files = [file for folder in there or [path] for file in sorted(folder.glob("*.txt"))]
    if not files:
        raise UsageError(f"{path}: no *.txt in it or in its middle/ and high/; give a folder of RACE")
    return (item for file in files for item in _article(file, reading))


def _article(path: Path, reading: Reading) -> Iterator[Item]:
    found, place = parse_json(path, reading), str(path)
    text, questions = member(found, "article", str, place), member(found, "questions", list, place)
    level, options = path.parent.name if path.parent.name in _LEVELS else "", member(found, "options", list, place)
    yield Item(text, questions, found.get("answers"), str(found.get("id", path.name)), (options, level), place)


def _choices(item: Item, reading: Reading) -> Iterator[ChoiceExample]:
    options, level = item.others
    if not isinstance(item.pair, list):
        yield from _question(item, options, level, reading)
        return
    count = len(item.pair)
    answers = [None] * count if reading.purpose == "test" else item.label
    if not isinstance(options, list) or not isinstance(answers, list) or not len(options) == len(answers) == count:
        raise DataError(f"{item.place}: not as many options and answers as its {count} questions; mend the file")
    for number, (question, some, answer) in enumerate(zip(item.pair, options, answers, strict=True)):
        one = item._replace(pair=question, label=answer, identity=f"{item.identity}-{number}")
        yield from _question(one, some, level, reading)


def _question(item: Item, options: Any, level: Any, reading: Reading) -> Iterator[ChoiceExample]:
    text, question = as_text(item.text, item.place, "article"), as_text(item.pair, item.place, "question")
    found = re.match(r"(middle|high)\d", item.identity)
    group = as_text(level, item.place, "level") or (found[1] if found else "")
    if reading.config.race_level not in ("all", group):
        if not group:
            raise DataError(f"{item.place}: it has no level; leave out --race_level")
        return
    if not isinstance(options, list) or len(options) < 2:
        raise DataError(f"{item.place}: a question without a list of two options or more; mend the file")
    label = None if reading.purpose == "test" else _option(item, len(options), reading)
    if label is None and reading.purpose != "test":
        reading.leave_out("no answer", item.place)
        return
    if reading.keeps(text, "the passage", item.place):
        texts = tuple(as_text(option, item.place, "options") for option in options)
        yield ChoiceExample(text, question, texts, label, item.identity, group)


def _option(item: Item, option_count: int, reading: Reading) -> int | None:
    """The number of the option that a letter, or a number from 0, stands for; None where there is none."""
    text = as_label(item.label, item.place, reading.task.no_label)
    if text is None:
        return None
    letters = [chr(ord("A") + i) for i in range(option_count)]
    names = [*letters, *map(str, range(option_count))]
    if text in names:
        return names.index(text) % option_count
    raise DataError(f"{item.place}: answer {text!r} is none of {letters[0]} to {letters[-1]}; mend the file")


# Questions on passages: the JSON of SQuAD, and tables with the columns of `datasets`.


def _questions(path: Path, reading: Reading) -> Iterator[Item]:
    for i, article in enumerate(member(parse_json(path, reading), "data", list, str(path))):
        for j, paragraph in enumerate(member(article, "paragraphs", list, f"{path}, article {i}")):
            here = f"{path}, article {i}, paragraph {j}"
            context = member(paragraph, "context", str, here)
            for qa in member(paragraph, "qas", list, here):
                identity = as_text(member(qa, "id", str | int, here), here, "id")
                place = f"{path}, question {identity}"
                answers = None if reading.purpose == "test" else member(qa, "answers", list, place)
                question = member(qa, "question", str, place)
                yield Item(context, question, answers, identity, (qa.get("is_impossible"),), place)


def _spans(item: Item, reading: Reading) -> Iterator[SpanExample]:
    context, question = as_text(item.text, item.place, "context"), as_text(item.pair, item.place, "question")
    answers = None if reading.purpose == "test" else _answers(item.label, item.place)
    if not reading.keeps(context, "the passage", item.place) or not reading.keeps(question, "the question", item.place):
        return
    usable = None if answers is None else _usable(context, answers, item, reading)
    if answers is None or usable is not None:
        yield SpanExample(context, question, usable, item.identity)


def _answers(found: Any, place: str) -> list[Answer]:
    """Answers as a list of objects, or as one object of lists."""
    if isinstance(found, dict):
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


def _usable(context: str, answers: list[Answer], item: Item, reading: Reading) -> tuple[Answer, ...] | None:
    """The answers to learn from or to score by; None, and counted, where the question is of no use."""
    is_impossible = item.others[0]
    if is_impossible is True and answers:
        marked = f"questions of {reading.name} marked as impossible whose answers are ignored"
        reading.report.note(marked, item.place)
        answers = []
    if not reading.task.has_null_answer and not answers:
        why = "the question has no answer, which only squad_v2 has" if is_impossible is True else "no answers"
        reading.leave_out(why, item.place)
        return None
    if not answers and is_impossible is False and reading.purpose == "train":
        reading.leave_out("no answers, but not marked as impossible", item.place)
        return None
    kept = []
    for text, start in answers:
        found = nearest(context, text, start)
        if found is not None and found != start:
            reading.report.note(f"answers of {reading.name} moved to where their text is", item.place)
        elif found is None and reading.purpose == "train":
            reading.report.note(f"answers of {reading.name} left out: they are not in the passage", item.place)
            continue
        elif found is None:
            reading.report.note(f"answers of {reading.name} that are not in the passage, and still count", item.place)
        kept.append(Answer(text, start if found is None else found))
    if answers and not kept:
        reading.leave_out("the answer is not in the passage", item.place)
        return None
    return tuple(kept)


def nearest(context: str, text: str, start: int) -> int | None:
    """The position of `text` in `context` that is nearest to `start`; None where it is nowhere."""
    if text and start >= 0 and context.startswith(text, start):
        return start
    found = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)] if text else []
    return min(found, key=lambda position: abs(position - start), default=None)


# Words with tags: columns of CoNLL, and tables with lists of words and tags.


def _conll(path: Path, reading: Reading) -> Iterator[Item] | None:
    form = format_of(path)
    if form in ("jsonl", "parquet", "arrow"):
        return None
    if form is None or form == "csv":
        raise UsageError(f"{path}: give columns of CoNLL, .jsonl or .parquet, not {path.suffix}; unpack or convert it")
    lines = [line.removesuffix("\r") for line in text_lines(path, reading.config.encoding)]
    if not any(map(str.strip, lines)):
        raise DataError(f"{path}: empty; give a file with sentences")
    widths = {len(_cells(line)) for line in lines if line.strip() and not line.startswith(_DOCUMENT_START)}
    has_gaps = any(not line.strip() for line in lines)
    is_even = has_gaps and len(widths) == 1 and max(widths) <= _MOST_COLUMNS
    has_columns = is_even or any("\t" in line for line in lines)
    if path.suffix.lower() == ".txt" and reading.purpose == "test" and not has_columns:
        return _plain_sentences(lines, path, reading)
    why = "has columns without names"
    named = ("text_column", "text_pair_column", "column_names")
    reading.refuse_options(named, str(path), f"{why}, of which the first is taken; leave it out")
    asked = reading.config.label_column
    if asked is None or not asked.isdecimal():
        reading.refuse_options(("label_column",), str(path), f"{why}; give a number from 0")
    elif reading.task.tag_column >= (widest := max(widths, default=0)):
        reading.refuse_options(("label_column",), str(path), f"has {widest} columns, numbered from 0; give one of them")
    return _sentences(lines, path, reading)


def _plain_sentences(lines: list[str], path: Path, reading: Reading) -> Iterator[Item]:
    """A sentence a line, its words between spaces."""
    for index, line in enumerate(lines):
        place = f"{path}:{index + 1}"
        if words := line.split():
            yield Item(words, None, None, str(index), (), place)
        else:
            reading.report.note(f"lines of {reading.name} without a word, which give no sentence", place)


def _cells(line: str) -> list[str]:
    """The columns of a line, between tabs if it has any, else between spaces."""
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _sentences(lines: list[str], path: Path, reading: Reading) -> Iterator[Item]:
    """The words and tags between blank lines."""
    index, begin = 0, 0
    sentence: list[list[str]] = []
    for number, line in enumerate([*lines, ""], start=1):
        is_start = line.startswith(_DOCUMENT_START)
        if is_start:
            reading.report.note(f"lines of {reading.name} that begin a document, and hold no word", f"{path}:{number}")
        if line.strip() and not is_start:
            begin = begin if sentence else number
            sentence.append(_cells(line))
        elif sentence:
            tags = [_tag(cells, reading) for cells in sentence]
            yield Item([cells[0] for cells in sentence], None, tags, str(index), (), f"{path}:{begin}")
            index, sentence = index + 1, []


def _tag(cells: list[str], reading: Reading) -> str:
    """The tag of a line, empty where it has none; of two columns it is the second, whichever is usual."""
    column = reading.task.tag_column
    if len(cells) == 2 and reading.config.label_column is None:
        column = -1
    return "" if len(cells) < 2 or column >= len(cells) else cells[column].strip()


def _tokens(item: Item, reading: Reading) -> Iterator[TokenExample]:
    words = _list(item.text, item.place, "words")
    tags = None if reading.purpose == "test" else _list(item.label, item.place, "tags")
    if not words:
        reading.leave_out("no words", item.place)
    elif tags is not None and len(tags) != len(words):
        reading.leave_out("not as many tags as words", item.place)
    elif tags is not None and any(tag in _NO_TAG for tag in tags):
        reading.leave_out("a word without a tag in the sentence", item.place)
    elif all(reading.knows_label(tag, item.place) for tag in dict.fromkeys(tags or ())):
        yield TokenExample(words, tags, item.identity)


def _list(value: object, place: str, column: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DataError(f"{place}: {column!r} holds no list; mend the file")
    return tuple(as_text(one, place, column) for one in value)


_KINDS = {
    "sequence": _Kind(_new_texts, _texts, ("the text", "the second text", "the label")),
    "choice": _Kind(
        _race,
        _choices,
        ("the passage", "the question", "the answer"),
        (("options", "choices"), ("level",)),
        ("questions", "answers"),
    ),
    "span": _Kind(
        lambda path, reading: _questions(path, reading) if path.suffix.lower() == ".json" else None,
        _spans,
        ("the passage", "the question", "the answers"),
        (("is_impossible",),),
    ),
    "token": _Kind(_conll, _tokens, ("the words", "", "the tags")),
}
