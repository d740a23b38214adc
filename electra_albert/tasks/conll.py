"""Words and tags of CoNLL files: one word per line, blank lines between sentences.

# id = 1                 a comment
Ada   NNP   B-PER        the columns of a word; the first has words, the last tags by default
ran   VBD   O

Rome  NNP   B-LOC        the next sentence
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from electra_albert.contracts import LOG, DataError, UsageError
from electra_albert.data_files import finding
from electra_albert.tasks.read_rules import RawExample, SplitReader
from electra_albert.tasks.task import MAX_DIGITS, Report

_DOCUMENT_START = "-DOCSTART-"
_MAX_COLUMNS = 4  # of the CoNLL shared tasks
_COMMENT = ("# ", "#\t")
_ENTITY_TAG = re.compile(r"O|[BIESLU]-.+")
_NO_NUMBER = re.compile(r"0|\d+[-.]\d+")  # of a word, counted from 1


def read_conll(path: Path, reader: SplitReader) -> Iterator[RawExample] | None:
    """The sentences of a CoNLL file, or of a text file with one on each line; None for a table."""
    form = finding.format_of(path)
    if form in ("jsonl", "parquet", "arrow"):
        return None
    if form is None or form == "csv":
        raise UsageError(
            f"{path}: give CoNLL columns, .jsonl or .parquet, not {path.suffix}; "
            "unpack or convert it"
        )
    texts = reader.lines(path)
    notes = Report()  # of CoNLL columns, for nothing is left out of plain sentences
    lines = _without_comments(texts, replace(reader, report=notes))
    widths = {len(_cells(line)) for line in lines if _holds_word(line)}
    widest = max(widths, default=0)
    name = reader.task.columns.text[0]
    word_column = 0
    if widest > 1 and name.isdecimal():
        word_column = int(name[:MAX_DIGITS])
    if path.suffix.lower() == ".txt" and reader.purpose == "test":
        groups = "\n".join(map(str.strip, lines)).strip().split("\n\n")
        has_groups = len(groups) > 1 and any("\n" in group.strip() for group in groups)
        has_columns = has_groups and len(widths) == 1 and widest <= _MAX_COLUMNS
        if not has_columns and not all("\t" in line for line in lines if line.strip()):
            return _plain_sentences(texts, reader)
        LOG.info(f"{path} is read as CoNLL columns, with words in column {word_column}")
    reader.report.counts.update(notes.counts)
    reader.report.first_seen = notes.first_seen | reader.report.first_seen
    reader.reject_options(
        "has unnamed columns; drop the option", "text_pair_column", "column_names"
    )
    for option in ("text_column", "label_column"):
        column = getattr(reader.config, option) or ""
        why = "has unnamed columns; give a number from 0"
        if column.isdecimal():
            why = f"has {widest} columns, numbered from 0; give one of them"
            if int(column[:MAX_DIGITS]) < widest:
                continue
        reader.reject_options(why, option)
    return _sentences(lines, word_column, reader)


def _without_comments(lines: list[str], reader: SplitReader) -> list[str]:
    """The lines, with an empty one for each comment, such as `# id = 7` before a sentence.

    A line with the word `#` has as many columns as others, and a tag of theirs or of an entity. A
    first column that is empty in all lines is left out, unless columns are named by number.
    """
    words = [line for line in lines if _holds_word(line) and not line.startswith(_COMMENT)]
    is_named = reader.config.label_column is not None or reader.task.columns.text[0].isdecimal()
    if words and not is_named and all(line.startswith("\t") for line in words):
        reader.report.note(
            f"lines of {reader.name} read without an empty first column",
            reader.location,
            len(words),
        )
        return _without_comments([line.removeprefix("\t") for line in lines], reader)
    shapes = set(map(_shape, words))
    tags = {_tag(_cells(line), reader) for line in words}
    result = []
    follows_word = False
    for number, line in enumerate(lines, start=1):
        if words and line.startswith(_COMMENT) and not follows_word:
            tag = _tag(_cells(line), reader)
            has_tag = tag in tags or _ENTITY_TAG.fullmatch(tag)
            if not has_tag or _shape(line) not in shapes:
                reader.report.note(
                    f"lines of {reader.name} skipped: comments", f"{reader.location}:{number}"
                )
                line = ""
        follows_word = _holds_word(line)
        result.append(line)
    return result


def _plain_sentences(lines: list[str], reader: SplitReader) -> Iterator[RawExample]:
    for index, line in enumerate(lines):
        location = f"{reader.location}:{index + 1}"
        words = line.split()
        if words:
            yield RawExample(words, None, None, str(index), location)
        else:
            reader.report.note(f"lines of {reader.name} skipped: no words", location)


def _sentences(lines: list[str], column: int, reader: SplitReader) -> Iterator[RawExample]:
    """Words (in `column`) and tags of consecutive lines between blank ones and document starts."""
    are_numbered = _are_numbered(lines)
    if are_numbered and not column:
        raise UsageError(
            f"{reader.location}: the first column counts the words of each sentence; name the "
            "column of the words with --text_column 1, and that of the tags with --label_column"
        )
    index = 0
    numbered = enumerate(lines, start=1)
    for holds_words, group in groupby(numbered, key=lambda line: _holds_word(line[1])):
        numbers, rows = zip(*group, strict=True)
        location = f"{reader.location}:{numbers[0]}"
        if holds_words:
            cells = [_cells(row) for row in rows]
            words, tags = _sentence(cells, column, are_numbered, location, reader)
            yield RawExample(words, None, tags, str(index), location)
            index += 1
            continue
        for number, row in zip(numbers, rows, strict=True):
            if row.strip():
                reader.report.note(
                    f"lines of {reader.name} skipped: document starts",
                    f"{reader.location}:{number}",
                )


def _sentence(
    rows: list[list[str]], column: int, are_numbered: bool, location: str, reader: SplitReader
) -> tuple[list[str], list[str]]:
    """Words and tags; DataError or UsageError if the column of words holds none, or tags."""
    numbered = [cells for cells in rows if cells[0].rstrip(".").isdecimal()]
    if are_numbered and len(numbered) < len(rows):
        reader.report.note(
            f"sentences of {reader.name} read without their rows such as 1-2 and 1.1", location
        )
        rows = numbered
    if any(len(cells) <= column for cells in rows):
        raise DataError(f"{location}: a line without column {column}; correct it, or --text_column")
    if reader.purpose != "test" and any(_tag_column(cells, reader) == column for cells in rows):
        raise UsageError(
            f"{location}: column {column} holds both words and tags; "
            "name that of the tags with --label_column"
        )
    words = [cells[column] for cells in rows]
    if "" in words:
        raise DataError(f"{location}: an empty word; correct the file, or --text_column")
    return words, [_tag(cells, reader) for cells in rows]


def _are_numbered(lines: list[str]) -> bool:
    """Whether the first column counts the words of every sentence, apart from 1-2 and 1.1.

    In Universal Dependencies, these are two words as one in the text, and a word not in the text.
    """
    number = 0
    most = 0
    for line in lines:
        if not _holds_word(line):
            number = 0
            continue
        first = _cells(line)[0]
        if _NO_NUMBER.fullmatch(first):
            continue
        number += 1
        most = max(most, number)
        if first.rstrip(".") != str(number):
            return False
    return most > 1


def _holds_word(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(_DOCUMENT_START)


def _cells(line: str) -> list[str]:
    """The columns of a line, split at tabs if it has any, else at spaces."""
    if "\t" in line:
        return line.split("\t")
    return [cell for cell in line.split(" ") if cell]


def _shape(line: str) -> int:
    """The number of tabs of a line, or the negative number of columns of a line without tabs."""
    return line.count("\t") or -len(_cells(line))


def _tag(cells: list[str], reader: SplitReader) -> str:
    """The tag of a line, "" if it has none."""
    column = _tag_column(cells, reader)
    if column >= len(cells):
        return ""
    return cells[column].strip()


def _tag_column(cells: list[str], reader: SplitReader) -> int:
    """The number of the column of tags; of two columns it is the second by default."""
    column = reader.task.tag_column
    are_two = len(cells) == 2 and reader.config.label_column is None
    if column < 0 or are_two:
        return max(1, len(cells) - 1)
    return column
