"""Parse tables and files of SQuAD and RACE into examples; conll has those of tagging."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, compress
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from electra_albert.contracts import IGNORED_LABEL, DataError, UsageError
from electra_albert.tasks import token
from electra_albert.tasks.conll import read_conll
from electra_albert.tasks.read_rules import (
    RawExample,
    Skipped,
    SplitReader,
    as_text,
    is_set,
    label_text,
    member,
    quote_names,
    require_column,
)
from electra_albert.tasks.task import (
    Answer,
    ChoiceExample,
    SequenceExample,
    SpanExample,
    TokenExample,
)

Rows = Iterator[RawExample]
_LEVELS = ("middle", "high")  # of RACE
_ENOUGH_SENTENCES = 10  # enough to conclude that the file holds words, not sentences
_WHOLE_NUMBER = re.compile(r"^(-?\d+)\.0*$")  # of integers in a column with empty cells
_NO_TAG = {"", str(IGNORED_LABEL)}


class _Format(NamedTuple):
    """Parsers for one kind of task."""

    own_format: Callable[[Path, SplitReader], Rows | None]  # None: the file is a table
    example: Callable[[RawExample, SplitReader], Any]
    columns: tuple[str, str, str]  # text, pair and label, in messages
    more_columns: tuple[tuple[str, ...], ...] = ()
    # Pair and label columns, if a row holds lists of questions and answers.
    lists: tuple[str, ...] = ()


def read_examples(reader: SplitReader) -> list[Any]:
    """The examples of a file or table; DataError with file and line for unusable data."""
    kind = reader.task.kind
    form = _FORMATS[kind]
    rows = None
    if isinstance(reader.source, Path):
        rows = form.own_format(reader.source, reader)
    if rows is None:
        rows = _table_rows(form, reader)
    if kind == "token":
        rows = _correct_outside_tags(list(rows), reader)
    elif form.lists:
        rows = _questions(rows, reader)
    examples = []
    for raw in rows:
        with suppress(Skipped):
            examples.append(form.example(raw, reader))
    if kind == "span":
        repeated = len(examples) - len({example.identity for example in examples})
        if repeated:
            reader.report.note(
                f"questions of {reader.name} with a duplicate id", reader.location, repeated
            )
    is_tagged = kind == "token" and reader.purpose != "test"
    is_enough = is_tagged and len(examples) >= _ENOUGH_SENTENCES
    if is_enough and all(len(example.words) == 1 for example in examples):
        raise DataError(
            f"{reader.location}: all {len(examples):,} sentences have one word; "
            "check that it is the right file"
        )
    return examples


def _table_rows(form: _Format, reader: SplitReader) -> Rows:
    table = reader.table()
    columns = reader.task.columns
    if table.names_columns:
        reader.reject_options("has column names of its own; drop the option", "column_names")
    if reader.task.kind == "token" and (reader.config.label_column or "").isdecimal():
        reader.reject_options("has named columns; give a name", "label_column")
    labels = columns.label + form.lists[1:]
    if reader.purpose == "test":
        labels = ()
    flags: tuple[str, ...] = ()  # columns of 0 and 1
    if reader.task.is_multi_label and len(labels) > 1:
        flags = labels
        labels = ()
    flag_labels = [label_text(flag, reader.location) for flag in flags]
    if flags and reader.labels and {*flag_labels} != {*reader.labels}:
        raise DataError(
            f"{reader.location}: --label_column has {quote_names(flag_labels)}, but the model has "
            f"{quote_names(reader.labels)}; name those"
        )
    names = [
        require_column(table, columns.text, form.columns[0], "--text_column"),
        require_column(table, columns.pair + form.lists[:1], form.columns[1], "--text_pair_column"),
        require_column(table, labels, form.columns[2], "--label_column"),
        *map(table.find, (*form.more_columns, columns.identity)),
        *(require_column(table, (name,), "a label", "--label_column") for name in flags),
    ]
    for index, row in enumerate(table.rows(names)):
        if row.problem:
            with suppress(Skipped):
                reader.skip(row.problem, row)
            continue
        text, pair, label, *more, identity = row.cells[: len(names) - len(flags)]
        if flags:
            cells = zip(row.cells[-len(flags) :], flags, strict=True)
            values = [is_set(*cell, row.location) for cell in cells]
            label = None if None in values else list(compress(flag_labels, values))
        identity = as_text(index if identity is None else identity, row.location, "id")
        yield RawExample(text, pair, label, identity, row.location, more)


def _new_texts(path: Path, reader: SplitReader) -> Rows | None:
    if path.suffix.lower() != ".txt" or reader.purpose != "test" or reader.task.takes_pairs:
        return None
    lines = enumerate(reader.lines(path))
    return (RawExample(text, None, None, str(i), f"{path}:{i + 1}") for i, text in lines)


def _texts(raw: RawExample, reader: SplitReader) -> SequenceExample:
    label = None
    if reader.purpose != "test":
        label = _label(raw, reader)
    text = reader.text(raw.text, "text", raw)
    pair = None
    if reader.task.takes_pairs:
        pair = reader.text(raw.pair, "second text", raw)
    return SequenceExample(text, pair, label, raw.identity)


def _label(raw: RawExample, reader: SplitReader) -> str | float | tuple[str, ...]:
    if reader.task.is_multi_label:
        return reader.label_set(raw)
    if isinstance(raw.label, list):
        raise DataError(
            f"{raw.location}: the label is a list; if texts have several labels, "
            "give --multi_label true"
        )
    label = reader.as_label(raw.label, raw.location) or reader.skip("no label", raw)
    if reader.task.is_regression:
        return reader.score(label, raw)
    label = reader.task.label_aliases.get(label, label)
    if label not in reader.labels and (reader.labels or reader.config.regression is False):
        label = _WHOLE_NUMBER.sub(r"\1", label)
    reader.check_label(label, raw)
    return label


def _race(path: Path, reader: SplitReader) -> Rows | None:
    if not path.is_dir():
        if path.suffix.lower() in (".txt", ".json"):
            return _article(path, reader)
        return None
    level = reader.config.race_level
    levels = _LEVELS if level == "all" else (level,)
    folders = [path / name for name in levels if (path / name).is_dir()]
    if len(folders) == 1 < len(levels):
        (missing,) = {*levels} - {folders[0].name}
        reader.report.note(f"missing level of {reader.name}: {missing}", str(path))
    if not folders and any((path / name).is_dir() for name in _LEVELS):
        raise UsageError(f"{path}: no folder {level}/; choose another --race_level")
    files: list[Path] = []
    for folder in folders or [path]:
        files += sorted(folder.glob("*.[tT][xX][tT]"))
    if not files:
        raise UsageError(f"{path}: no *.txt in it or in middle/ and high/; give a folder of RACE")
    return chain.from_iterable(_article(file, reader) for file in files)


def _article(path: Path, reader: SplitReader) -> Rows:
    article = reader.parse_json(path)
    location = str(path)
    text = member(article, "article", str, location)
    questions = member(article, "questions", list, location)
    options = member(article, "options", list, location)
    level = path.parent.name if path.parent.name in _LEVELS else ""
    identity = str(article.get("id", path.name))
    answers = article.get("answers")
    yield RawExample(text, questions, answers, identity, location, (options, level))


def _questions(rows: Rows, reader: SplitReader) -> Rows:
    """Rows with one question each, made of those with a list of questions."""
    for raw in rows:
        if not isinstance(raw.pair, list):
            yield raw
            continue
        count = len(raw.pair)
        options, level = raw.more
        answers = [None] * count if reader.purpose == "test" else raw.label
        for cells in (options, answers):
            if not isinstance(cells, list) or len(cells) != count:
                raise DataError(
                    f"{raw.location}: {count} questions, but not as many options or answers; "
                    "correct the file"
                )
        for number, cells in enumerate(zip(raw.pair, answers, options, strict=True)):
            question, answer, choices = cells
            identity = f"{raw.identity}-{number}"
            yield RawExample(raw.text, question, answer, identity, raw.location, (choices, level))


def _choices(raw: RawExample, reader: SplitReader) -> ChoiceExample:
    options, level = raw.more
    group = as_text(level, raw.location, "level")
    in_identity = re.match(r"(middle|high)\d", raw.identity)
    if in_identity and not group:
        group = in_identity[1]
    if reader.config.race_level not in ("all", group):
        if not group:
            raise DataError(f"{raw.location}: the question has no level; drop --race_level")
        raise Skipped
    if not isinstance(options, list) or not 2 <= len(options) <= len(ascii_uppercase):
        raise DataError(
            f"{raw.location}: a question needs a list of 2 to 26 options; correct the file"
        )
    label = None if reader.purpose == "test" else _option(raw, len(options), reader)
    text = reader.text(raw.text, "passage", raw)
    question = as_text(raw.pair, raw.location, "question")
    texts = _list(options, raw, "options")
    return ChoiceExample(text, question, texts, label, raw.identity, group)


def _option(raw: RawExample, option_count: int, reader: SplitReader) -> int:
    """Index of the correct option; the label is its letter, or its index from 0."""
    text = reader.as_label(raw.label, raw.location) or reader.skip("no answer", raw)
    letters = ascii_uppercase[:option_count]
    names = [*letters, *map(str, range(option_count))]
    if text not in names:
        raise DataError(
            f"{raw.location}: answer {text!r} is not one of A to {letters[-1]} "
            f"or 0 to {option_count - 1}; correct it"
        )
    return names.index(text) % option_count


def _squad(path: Path, reader: SplitReader) -> Rows | None:
    if path.suffix.lower() != ".json":
        return None
    return _paragraphs(path, reader)


def _paragraphs(path: Path, reader: SplitReader) -> Rows:
    articles = member(reader.parse_json(path), "data", list, str(path))
    for i, article in enumerate(articles):
        paragraphs = member(article, "paragraphs", list, f"{path}, article {i}")
        for j, paragraph in enumerate(paragraphs):
            location = f"{path}, article {i}, paragraph {j}"
            context = member(paragraph, "context", str, location)
            for qa in member(paragraph, "qas", list, location):
                identity = as_text(member(qa, "id", str | int, location), location, "id")
                at = f"{path}, question {identity}"
                answers = None if reader.purpose == "test" else member(qa, "answers", list, at)
                question = member(qa, "question", str, at)
                more = (qa.get("is_impossible"),)
                yield RawExample(context, question, answers, identity, at, more)


def _spans(raw: RawExample, reader: SplitReader) -> SpanExample:
    answers = None if reader.purpose == "test" else _answers(raw.label, raw.location)
    context = reader.text(raw.text, "passage", raw)
    question = reader.text(raw.pair, "question", raw)
    usable = None if answers is None else _usable(context, answers, raw, reader)
    return SpanExample(context, question, usable, raw.identity)


def _answers(cell: Any, at: str) -> list[Answer]:
    """Answers of a list of dicts, or of a dict of lists as in `datasets`."""
    if isinstance(cell, dict):
        texts = member(cell, "text", list, at)
        starts = member(cell, "answer_start", list, at)
        if len(texts) != len(starts):
            raise DataError(
                f"{at}: {len(texts)} answer texts, but {len(starts)} answer starts; "
                "correct the file"
            )
        pairs = zip(texts, starts, strict=True)
        cell = [{"text": text, "answer_start": start} for text, start in pairs]
    if cell is not None and not isinstance(cell, list):
        raise DataError(f"{at}: the answers are not a list; correct the file")
    answers = []
    for answer in cell or ():
        text = as_text(member(answer, "text", str, at), at, "text")
        start = int(member(answer, "answer_start", int, at))
        answers.append(Answer(text, start))
    return answers


def _usable(
    context: str, answers: list[Answer], raw: RawExample, reader: SplitReader
) -> tuple[Answer, ...]:
    is_impossible = raw.more[0]
    note = reader.report.note
    if is_impossible is True and answers:
        note(f"questions of {reader.name} marked as impossible, answers ignored", raw.location)
        answers = []
    if not reader.task.has_null_answer and not answers:
        if is_impossible is True:
            reader.skip("unanswerable question, which only squad_v2 allows", raw)
        reader.skip("no answers", raw)
    if not answers and is_impossible is False and reader.purpose == "train":
        reader.skip("no answers, but not marked as impossible", raw)
    usable = []
    for text, start in answers:
        position = nearest(context, text, start)
        if position is not None:
            usable.append(Answer(text, position))
            how = "moved to the nearest position of their text"
        elif reader.purpose == "train":
            how = "left out: not in the passage"
        else:
            usable.append(Answer(text, start))
            how = "kept although not in the passage"
        if position != start:
            note(f"answers of {reader.name} {how}", raw.location)
    if answers and not usable:
        reader.skip("the answer is not in the passage", raw)
    return tuple(usable)


def nearest(context: str, text: str, start: int) -> int | None:
    """The position of `text` in `context` nearest to `start`; None if it does not occur."""
    if not text:
        return None
    if start >= 0 and context.startswith(text, start):
        return start
    positions = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    return min(positions, key=lambda position: abs(position - start), default=None)


def _correct_outside_tags(sentences: list[RawExample], reader: SplitReader) -> Rows:
    """The sentences, with a tag `o` next to entities written as O, unless it is a label."""
    lists = [sentence.label for sentence in sentences if isinstance(sentence.label, list)]
    names = {*reader.labels, *map(str, chain(*lists))}
    is_label = "o" in reader.labels or "o" not in names
    if not is_label and token.is_entity_tagging({*names, "O"} - {"o"}):
        count = sum(tags.count("o") for tags in lists)
        reader.report.note(f"tags o of {reader.name} taken as O", reader.location, count)
        for tags in lists:
            tags[:] = ["O" if tag == "o" else tag for tag in tags]
    return iter(sentences)


def _tokens(raw: RawExample, reader: SplitReader) -> TokenExample:
    words = _list(raw.text, raw, "words")
    tags = None
    if reader.purpose != "test":
        tags = tuple(label_text(tag, raw.location) for tag in _list(raw.label, raw, "tags"))
    if not words:
        reader.skip("no words", raw)
    if tags is not None:
        if len(tags) != len(words):
            reader.skip("not as many tags as words", raw)
        if not _NO_TAG.isdisjoint(tags):
            reader.skip("a word without a tag in the sentence", raw)
        for tag in dict.fromkeys(tags):
            reader.check_label(tag, raw)
    return TokenExample(words, tags, raw.identity)


def _list(value: object, raw: RawExample, column: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DataError(f"{raw.location}: {column!r} is not a list; correct the file")
    return tuple(as_text(cell, raw.location, column) for cell in value)


_QA_COLUMNS = ("the passage", "the question", "the answer")
_FORMATS = {
    "sequence": _Format(_new_texts, _texts, ("the text", "the second text", "the label")),
    "choice": _Format(
        _race,
        _choices,
        _QA_COLUMNS,
        (("options", "choices"), ("level",)),
        ("questions", "answers"),
    ),
    "span": _Format(_squad, _spans, _QA_COLUMNS, (("is_impossible",),)),
    "token": _Format(read_conll, _tokens, ("the words", "", "the tags")),
}
