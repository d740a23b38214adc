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
FORMS = [
    *[
        ("stsb", ".tsv"),
        ("sst2", ".csv"),
        ("sst2", ".parquet"),
        ("squad", ".json"),
        ("squad_v2", ".jsonl"),
    ],
    *[
        ("race", ".txt"),
        ("race", ".jsonl"),
        ("ner", ".conll"),
        ("ner", ".jsonl"),
        ("custom", ".jsonl"),
    ],
]


def is_read_or_refused(task: str, suffix: str, content: str | bytes) -> bool:
    """Whether a file gave examples or a one-line error that names it; other errors propagate."""
    with TemporaryDirectory() as folder:
        file = write(Path(folder) / f"file{suffix}", content)
        files = dict.fromkeys(("train_file", "validation_file", "test_file"), file)
        try:
            return bool(read(task, **files, needs_test=True).train)
        except UserError as error:
            return str(file) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize(("task", "suffix"), FORMS)
@settings(deadline=None, max_examples=20)
@given(content=st.binary(max_size=60) | st.text('ab\t\n\r ",1-{}[]:é\u2028', max_size=60))
def test_any_bytes_are_read_or_refused(task: str, suffix: str, content: str | bytes) -> None:
    assert is_read_or_refused(task, suffix, content)


def often(usual: Any) -> st.SearchStrategy[Any]:
    """The usual value half of the time, so that later checks run too."""
    return st.just(usual) | st.just(usual) | VALUES


ANSWER = st.fixed_dictionaries({"text": often("b"), "answer_start": often(2)})
ANSWERS = {"answers": st.lists(ANSWER, max_size=2) | SCALARS | VALUES}
QUESTION = {"id": often("1"), "question": often("q"), **ANSWERS}
IMPOSSIBLE = {"is_impossible": st.booleans() | SCALARS}
FILE = st.fixed_dictionaries(QUESTION, optional=IMPOSSIBLE).map(
    lambda question: {"data": [{"paragraphs": [{"context": "a b c", "qas": [question]}]}]}
)
ARTICLE = {
    "article": often("a"),
    "questions": often(["q"]),
    "options": often([["x", "y"]]),
    "answers": often(["A"]),
}
ROWS = st.lists(ROW, min_size=1, max_size=3)
JSON = [
    (*form, ROWS if form[1] == ".jsonl" else ROW)
    for form in FORMS
    if form[1] in (".json", ".jsonl", ".txt")
]
JSON += [("squad_v2", ".json", FILE), ("race", ".txt", st.fixed_dictionaries(ARTICLE))]


@pytest.mark.parametrize(("task", "suffix", "contents"), JSON)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_json_is_read_or_refused(
    task: str, suffix: str, contents: Any, data: st.DataObject
) -> None:
    content = data.draw(contents)
    records = content if isinstance(content, list) else [content]
    assert is_read_or_refused(task, suffix, "\n".join(map(json.dumps, records)))
