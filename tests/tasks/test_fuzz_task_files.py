"""Any file content is read, or refused in one line that names the file."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import UserError
from tests.tasks.task_files import read, write

SIGNS = st.sampled_from(["A", "-", "1"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | SIGNS
NAMES = """data paragraphs context qas id question answers text answer_start is_impossible
article questions options answer label tokens ner_tags level sentence score"""
KEYS = st.sampled_from(NAMES.split())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=15,
)
ROW = st.dictionaries(KEYS, VALUES, min_size=1, max_size=8)
FILES = """stsb.tsv sst2.csv sst2.parquet ner.conll squad.json squad_v2.jsonl race.txt race.jsonl
ner.jsonl custom.jsonl"""
FORMS = FILES.split()


def is_read_or_refused(form: str, content: str | bytes) -> bool:
    """Whether a file gave examples or a one-line error that names it; other errors propagate."""
    with TemporaryDirectory() as folder:
        file = write(Path(folder) / form, content)
        files = dict.fromkeys(("train_file", "validation_file", "test_file"), file)
        try:
            return bool(read(file.stem, **files, needs_test=True).train)
        except UserError as error:
            return str(file) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None, max_examples=20)
@given(content=st.binary(max_size=60) | st.text('ab\t\n\r ",1-{}[]:é\u2028', max_size=60))
def test_any_bytes_are_read_or_refused(form: str, content: str | bytes) -> None:
    assert is_read_or_refused(form, content)


def often(usual: Any) -> st.SearchStrategy[Any]:
    """The usual value half of the time, so that later checks run too."""
    return st.just(usual) | st.just(usual) | VALUES


ANSWER = st.fixed_dictionaries({"text": often("b"), "answer_start": often(2)})
ANSWERS = {"answers": st.lists(ANSWER, max_size=2) | VALUES}
QUESTION = {"id": often("1"), "question": often("q"), **ANSWERS}
IMPOSSIBLE = {"is_impossible": SCALARS}
FILE = st.fixed_dictionaries(QUESTION, optional=IMPOSSIBLE).map(
    lambda question: {"data": [{"paragraphs": [{"context": "a b c", "qas": [question]}]}]}
)
ARTICLE = {"article": "a", "questions": ["q"], "options": [["x", "y"]], "answers": ["A"]}
ROWS = st.lists(ROW, min_size=1, max_size=3)
ROWS_OF = {".jsonl": ROWS, ".json": ROW, ".txt": ROW}
JSON = [(form, ROWS_OF[Path(form).suffix]) for form in FORMS[4:]]
USUAL = st.fixed_dictionaries({name: often(value) for name, value in ARTICLE.items()})
JSON += [("squad_v2.json", FILE), ("race.txt", USUAL)]


@pytest.mark.parametrize(("form", "contents"), JSON)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_json_is_read_or_refused(form: str, contents: Any, data: st.DataObject) -> None:
    content = data.draw(contents)
    records = content if isinstance(content, list) else [content]
    assert is_read_or_refused(form, "\n".join(map(json.dumps, records)))
