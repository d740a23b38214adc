"""Words and tags of CoNLL files: one word per line, blank lines between sentences."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from electra_albert.contracts import LOG, DataError, UsageError
from electra_albert.data_files import finding, streams
from electra_albert.tasks.read_rules import RawExample, SplitReader
from electra_albert.tasks.task import MAX_DIGITS

_DOCUMENT_START = "-DOCSTART-"
_MAX_COLUMNS = 4  # of the CoNLL shared tasks
_COMMENT = ("# ", "#\t")
_ENTITY_TAG = re.compile(r"O|[BIESLU]-.+")
_NO_NUMBER = re.compile(r"0|\d+[-.]\d+")  # of a word, counted from 1


def read_conll(path: Path, reader: SplitReader) -> Iterator[RawExample] | None:
    """The sentences of a CoNLL file, or of a text file with one on each line; None for a table."""
    if (form := finding.format_of(path)) in ("jsonl", "parquet", "arrow"):
        return None
    if form is None or form == "csv":
        raise UsageError(f"{path}: give CoNLL columns, .jsonl or .parquet, not {path.suffix}; unpack or convert it")
    texts = [line.removesuffix("\r") for line in streams.text_lines(path, reader.config.encoding)]
    if not any(map(str.strip, texts)):
        raise DataError(f"{path}: empty; give a file with sentences")
    lines = _without_comments(texts, reader)
    widths = {len(_cells(line)) for line in lines if _holds_word(line)}
    is_even = not all(map(str.strip, lines)) and len(widths) == 1 and max(widths) <= _MAX_COLUMNS
    has_columns = is_even or any("\t" in line for line in lines)
    if path.suffix.lower() == ".txt" and reader.purpose == "test":
        if not has_columns:
            return _plain_sentences(texts, reader)
        LOG.info(f"{path} is read as CoNLL columns, with words in column {_word_column(reader)}")
    reader.reject_options(str(path), "has unnamed columns; drop the option", "text_pair_column", "column_names")
    widest = max(widths, default=0)
    for option in ("text_column", "label_column"):
        column = getattr(reader.config, option) or ""
        if not column.isdecimal():
            reader.reject_options(str(path), "has unnamed columns; give a number from 0", option)
        elif int(column[:MAX_DIGITS]) >= widest:
            reader.reject_options(str(path), f"has {widest} columns, numbered from 0; give one of them", option)
    return _sentences(lines, _word_column(reader) if widest > 1 else 0, reader)


def _without_comments(lines: list[str], reader: SplitReader) -> list[str]:
    """The lines, with an empty one for each comment: `# id = 7` before the first word of a sentence.

    A line with the word `#` has as many columns as others, and a tag of theirs or of an entity. A first column that is
    empty in all lines is left out, unless columns are named by number.
    """
    others = [line for line in lines if _holds_word(line) and not line.startswith(_COMMENT)]
    is_named = reader.config.label_column is not None or reader.task.columns.text[0].isdecimal()
    if others and all(line.startswith("\t") for line in others) and not is_named:
        reader.report.note(f"lines of {reader.name} read without an empty first column", reader.location, len(others))
        return _without_comments([line.removeprefix("\t") for line in lines], reader)
    shapes = set(map(_shape, others))
    tags = {_tag(_cells(line), reader) for line in others}
    kept = [""]
    for number, line in enumerate(lines, start=1):
        if others and line.startswith(_COMMENT) and not _holds_word(kept[-1]):
            tag = _tag(_cells(line), reader)
            if _shape(line) not in shapes or not (tag in tags or _ENTITY_TAG.fullmatch(tag)):
                reader.report.note(f"lines of {reader.name} skipped: comments", f"{reader.location}:{number}")
                line = ""
        kept.append(line)
    return kept[1:]


def _plain_sentences(lines: list[str], reader: SplitReader) -> Iterator[RawExample]:
    for index, line in enumerate(lines):
        location = f"{reader.location}:{index + 1}"
        if words := line.split():
            yield RawExample(words, None, None, str(index), location)
        else:
            reader.report.note(f"lines of {reader.name} skipped: no words", location)


def _sentences(lines: list[str], column: int, reader: SplitReader) -> Iterator[RawExample]:
    """Words (in `column`) and tags of consecutive lines; blank lines and document starts separate sentences."""
    index = 0
    are_numbered = _are_numbered(lines)
    if are_numbered and not column:
        advice = "name the column of the words with --text_column 1, and that of the tags with --label_column"
        raise UsageError(f"{reader.location}: the first column counts the words of each sentence; {advice}")
    for holds_words, group in groupby(enumerate(lines, start=1), key=lambda numbered: _holds_word(numbered[1])):
        numbered = list(group)
        location = f"{reader.location}:{numbered[0][0]}"
        if holds_words:
            rows = [_cells(line) for _, line in numbered]
            if are_numbered and not all(cells[0].isdecimal() for cells in rows):
                reader.report.note(f"sentences of {reader.name} read without their rows such as 1-2 and 1.1", location)
                rows = [cells for cells in rows if cells[0].isdecimal()]
            if min(map(len, rows)) <= column:
                raise DataError(f"{location}: a line without column {column}; correct it, or --text_column")
            if reader.purpose != "test" and any(_tag_column(cells, reader) == column for cells in rows):
                problem = f"{location}: column {column} holds both words and tags"
                raise UsageError(f"{problem}; name that of the tags with --label_column")
            words = [cells[column] for cells in rows]
            if "" in words:
                raise DataError(f"{location}: the sentence has an empty word; correct the file, or --text_column")
            yield RawExample(words, None, [_tag(cells, reader) for cells in rows], str(index), location)
            index += 1
            continue
        for number, line in numbered:
            if line.strip():
                reader.report.note(f"lines of {reader.name} skipped: document starts", f"{reader.location}:{number}")


def _are_numbered(lines: list[str]) -> bool:
    """Whether the first column counts the words of every sentence, apart from rows such as 1-2 and 1.1.

    In Universal Dependencies, these are two words as one in the text, and a word that is not in the text.
    """
    number = most = 0
    for line in lines:
        if not _holds_word(line):
            number = 0
        elif not _NO_NUMBER.fullmatch(_cells(line)[0]):
            number += 1
            most = max(most, number)
            if _cells(line)[0].rstrip(".") != str(number):
                return False
    return most > 1


def _holds_word(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(_DOCUMENT_START)


def _cells(line: str) -> list[str]:
    """The columns of a line, split at tabs if it has any, else at spaces."""
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _shape(line: str) -> int:
    return line.count("\t") or -len(_cells(line))


def _word_column(reader: SplitReader) -> int:
    name = reader.task.columns.text[0]
    return int(name[:MAX_DIGITS]) if name.isdecimal() else 0


def _tag(cells: list[str], reader: SplitReader) -> str:
    """The tag of a line, "" if it has none."""
    column = _tag_column(cells, reader)
    return cells[column].strip() if column < len(cells) else ""


def _tag_column(cells: list[str], reader: SplitReader) -> int:
    """The number of the column of tags, which is not the first by default; of two it is the second."""
    column = -1 if len(cells) == 2 and reader.config.label_column is None else reader.task.tag_column
    return column if column >= 0 else max(1, len(cells) - 1)
