"""Sentences with a tag for each word: CoNLL columns, and tables with lists of words and tags."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from electra_albert.contracts import IGNORED_LABEL, DataError, UsageError
from electra_albert.tasks.read_rules import Reading, as_text, read_text
from electra_albert.tasks.tables import Table, open_table
from electra_albert.tasks.task import TokenExample

_DOCUMENT_START = "-DOCSTART-"
_TABLES = (".jsonl", ".parquet")
_OTHERS = (".csv", ".json", ".ndjson", ".gz", ".bz2", ".xz", ".zst", ".zip")  # which no file of CoNLL is called
_MOST_COLUMNS = 4  # of the shared tasks
_MOST_TAGS = 1000  # a hundred fine-grained types of entities in BIO are twice as many
_ENOUGH_SENTENCES = 10  # to tell that words were taken for sentences
_NO_TAG = ("", str(IGNORED_LABEL))

_Line = tuple[int, list[str]]


def read_tokens(path: Path, reading: Reading) -> list[TokenExample]:
    """The examples of a file by the ending of its name: .jsonl, .parquet, or else CoNLL columns.

    Raises UsageError where it is called after another form, or an option names a column that it has not.
    """
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        return token_rows(open_table(path, reading=reading), reading)
    if suffix in _OTHERS:
        raise UsageError(f"{path}: give columns of CoNLL, .jsonl or .parquet, not {path.suffix}; unpack or convert it")
    text = read_text(path, reading.config.encoding)
    if not text.strip():
        raise DataError(f"{path}: empty; give a file with sentences")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if suffix == ".txt" and reading.purpose == "test" and not _has_columns(lines):
        return list(_plain_sentences(lines, path, reading))
    _check_options(lines, path, reading)
    return _not_words(list(_examples(_sentences(lines, path, reading), path, reading)), str(path), reading)


def _check_options(lines: list[str], path: Path, reading: Reading) -> None:
    """Raise UsageError where a column is asked for by a name, or by a number that no line has."""
    why = "has columns without names"
    reading.refuse_options(
        ("text_column", "text_pair_column", "column_names"),
        str(path),
        f"{why}, of which the first is taken; leave it out",
    )
    asked = reading.config.label_column
    if asked is None or not asked.isdecimal():
        reading.refuse_options(("label_column",), str(path), f"{why}; give a number from 0")
        return
    widest = max((len(_cells(line)) for line in lines if not line.startswith(_DOCUMENT_START)), default=0)
    if reading.purpose != "test" and reading.task.tag_column >= widest:
        raise UsageError(f"--label_column {asked}: {path} has {widest} columns, numbered from 0; give one of them")


def _not_words(examples: list[TokenExample], place: str, reading: Reading) -> list[TokenExample]:
    """The examples. Raises DataError where they are many and each is one word."""
    if (
        reading.purpose != "test"
        and len(examples) >= _ENOUGH_SENTENCES
        and all(len(one.words) == 1 for one in examples)
    ):
        hint = "put blank lines only between sentences, or check that this is the right file"
        raise DataError(f"{place}: each of its {len(examples):,} sentences is one word; {hint}")
    return examples


def found_tags(tags: Collection[str], place: str) -> tuple[str, ...]:
    """Tags of the training data in order. Raises DataError where they are too many to be tags."""
    if len(tags) > _MOST_TAGS:
        hint = "check that this is the right file, and --label_column"
        raise DataError(f"{place}: {len(tags):,} tags, more than {_MOST_TAGS:,}; {hint}")
    return tuple(sorted(tags))


def _has_columns(lines: list[str]) -> bool:
    """Whether lines of a .txt file look like CoNLL: with tabs, or all of one width with blank lines between them."""
    widths = {len(_cells(line)) for line in lines if line.strip() and not line.startswith(_DOCUMENT_START)}
    has_gaps = any(not line.strip() for line in lines[:-1])
    return any("\t" in line for line in lines) or (has_gaps and len(widths) == 1 and max(widths) <= _MOST_COLUMNS)


def _plain_sentences(lines: list[str], path: Path, reading: Reading) -> Iterator[TokenExample]:
    """A sentence a line, its words between spaces."""
    for number, line in enumerate(lines, start=1):
        if words := line.split():
            yield TokenExample(tuple(words), None, str(number - 1))
        elif number < len(lines):  # what follows the last line end is no line
            reading.report.note(f"lines of {reading.name} without a word, which give no sentence", f"{path}:{number}")


def _cells(line: str) -> list[str]:
    """The columns of a line, between tabs if it has any, else between spaces."""
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _sentences(lines: list[str], path: Path, reading: Reading) -> Iterator[list[_Line]]:
    """The numbered lines of each sentence; blank lines lie between them."""
    sentence: list[_Line] = []
    for number, line in enumerate(lines, start=1):
        is_start = line.startswith(_DOCUMENT_START)
        if is_start:
            reading.report.note(f"lines of {reading.name} that begin a document, and hold no word", f"{path}:{number}")
        if line.strip() and not is_start:
            sentence.append((number, _cells(line)))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _examples(sentences: Iterator[list[_Line]], path: Path, reading: Reading) -> Iterator[TokenExample]:
    for index, sentence in enumerate(sentences):
        words = tuple(as_text(cells[0], f"{path}:{number}", "word") for number, cells in sentence)
        if reading.purpose == "test":
            yield TokenExample(words, None, str(index))
            continue
        tags = [_tag(cells, reading) for _, cells in sentence]
        if None in tags:
            number = sentence[tags.index(None)][0]
            reading.leave_out("a word without a tag in the sentence", f"{path}:{number}")
            continue
        places = [f"{path}:{number}" for number, _ in sentence]
        if not all(reading.knows_label(str(tag), place) for tag, place in zip(tags, places, strict=True)):
            continue
        yield TokenExample(words, tuple(map(str, tags)), str(index))


def _tag(cells: list[str], reading: Reading) -> str | None:
    """The tag of a line; of a file with two columns it is the second, whichever column is usual."""
    column = reading.task.tag_column
    if len(cells) == 2 and reading.config.label_column is None:
        column = -1
    if len(cells) < 2 or column >= len(cells):
        return None
    tag = cells[column].strip()
    return None if tag in _NO_TAG else tag


def token_rows(table: Table, reading: Reading) -> list[TokenExample]:
    """The examples of a table with a list of words and one of tags in each row."""
    columns = reading.task.columns
    if (reading.config.label_column or "").isdecimal():
        reading.refuse_options(("label_column",), table.place, "has columns with names; give one of them")
    words_column = table.require(columns.text, "the words", "--text_column")
    tags_column = None
    if reading.purpose != "test":
        tags_column = table.require(columns.label, "the tags", "--label_column")
    examples = []
    for index, row in enumerate(table.rows((words_column, tags_column, table.find(columns.identity)))):
        if row.problem:
            reading.leave_out(row.problem, row.place)
            continue
        words = _texts(row.cells[0], row.place, words_column)
        tags = None if tags_column is None else _texts(row.cells[1], row.place, tags_column)
        if not words:
            reading.leave_out("no words", row.place)
            continue
        if tags is not None and len(tags) != len(words):
            reading.leave_out("not as many tags as words", row.place)
            continue
        if tags is not None and any(tag in _NO_TAG for tag in tags):
            reading.leave_out("a word without a tag in the sentence", row.place)
            continue
        if not all(reading.knows_label(tag, row.place) for tag in set(tags or ())):
            continue
        identity = index if row.cells[2] is None else row.cells[2]
        examples.append(TokenExample(words, tags, as_text(identity, row.place, "id")))
    return _not_words(examples, table.place, reading)


def _texts(value: object, place: str, column: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DataError(f"{place}: {column!r} holds no list; mend the file")
    return tuple(as_text(one, place, column) for one in value)
