"""Tables give back the cells that were written, whatever these hold, and name the place of damage."""

import csv
import io
import json
import os
import threading
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from electra_albert.contracts import DataError, UsageError
from electra_albert.tasks.tables import Table, open_table
from tests.tasks.task_files import write

CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff"), max_size=12)
ROWS = st.lists(st.tuples(CELLS, CELLS.map(lambda text: f"x{text}")), max_size=6)
HEADER = ("a", "b")


def cells(table: Table, *names: str | None) -> list[tuple[object, ...]]:
    rows = list(table.rows(names))
    assert not [row for row in rows if row.problem]
    return [row.cells for row in rows]


def read_back(name: str, content: bytes) -> list[tuple[object, ...]]:
    with TemporaryDirectory() as folder:
        return cells(open_table(write(Path(folder) / name, content)), *HEADER)


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_cells_come_back_as_they_were_written(rows: list[tuple[str, str]]) -> None:
    lines = "".join(json.dumps(dict(zip(HEADER, row, strict=True))) + "\n" for row in [("p", "q"), *rows])
    assert read_back("t.jsonl", lines.encode()) == [("p", "q"), *rows]

    quoted = io.StringIO()
    csv.writer(quoted, lineterminator="\n").writerows([HEADER, *rows])
    plain = [row for row in rows if "\r" not in "".join(row)]  # a csv file may end its lines by either sign
    if len(plain) == len(rows):
        assert read_back("t.csv", quoted.getvalue().encode()) == rows

    bare = [tuple(cell.translate(dict.fromkeys(map(ord, "\t\n\r"), " ")) for cell in row) for row in rows]
    text = "".join("\t".join(row) + "\n" for row in [HEADER, *bare])
    assert read_back("t.tsv", text.encode()) == bare


def test_parquet_gives_the_columns_asked_for_in_their_order(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"a": ["x", None], "n": [1, 2], "l": [["u"], []]}), tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    assert cells(table, "l", "a", None, "n") == [(["u"], "x", None, 1), ([], None, None, 2)]


def test_quotes_mean_nothing_in_tsv(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.tsv", 'a\tb\n"one\ttwo\n"three"\t"\n'))
    assert cells(table, "a", "b") == [('"one', "two"), ('"three"', '"')]


def test_line_ends_of_windows_and_a_byte_order_mark_are_no_text(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.tsv", "\ufeffa\tb\r\n1\t2\r\n\r\n"))
    assert table.columns == HEADER
    assert cells(table, "a", "b") == [("1", "2")]


def test_signs_that_only_python_takes_for_line_ends_stay_in_the_cell(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.tsv", "a\tb\none\u2028two\x85\tx\n"))
    assert cells(table, "a") == [("one\u2028two\x85",)]


def test_a_blank_line_is_a_row_only_where_there_is_one_column(tmp_path: Path) -> None:
    assert cells(open_table(write(tmp_path / "one.tsv", "a\nx\n\ny\n")), "a") == [("x",), ("",), ("y",)]
    assert cells(open_table(write(tmp_path / "two.tsv", "a\tb\nx\t1\n\ny\t2\n")), "a") == [("x",), ("y",)]


def test_rows_with_other_numbers_of_columns_are_named(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.tsv", "a\tb\n1\n1\t2\n1\t2\t3\n"))
    rows = list(table.rows(("a",)))
    assert [row.place.rsplit(":", 1)[1] for row in rows] == ["2", "3", "4"]
    assert [row.problem for row in rows] == ["1 columns instead of 2", None, "3 columns instead of 2"]


def test_a_row_of_csv_is_named_by_the_line_it_begins_at(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.csv", 'a,b\n"x\ny",1\nz\n'))
    assert [(row.place.rsplit(":", 1)[1], row.problem is None) for row in table.rows(("a",))] == [
        ("2", True),
        ("4", False),
    ]


def test_names_without_a_header_are_used_only_without_one(tmp_path: Path) -> None:
    named = ("s", "label", "mark", "text")
    bare = open_table(write(tmp_path / "a.tsv", "x\t1\t\thello\n"), ("text",), named)
    headed = open_table(write(tmp_path / "b.tsv", "x\t1\t\ttext\nu\t0\t\thello\n"), ("text",), named)
    short = open_table(write(tmp_path / "c.tsv", "index\ttext\n0\thello\n"), ("text",), named)
    assert cells(bare, "text") == cells(headed, "text") == cells(short, "text") == [("hello",)]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_csv_with_another_separator_gives_the_same_cells(tmp_path: Path, separator: str) -> None:
    rows = [["a", "b"], ["x, y", "1"], ['"z"', f"2{separator}3"]]
    quoted = io.StringIO()
    csv.writer(quoted, delimiter=separator, lineterminator="\n").writerows(rows)
    assert cells(open_table(write(tmp_path / "t.csv", quoted.getvalue())), *HEADER) == [tuple(row) for row in rows[1:]]


def test_text_that_holds_other_separators_is_not_cut_at_them(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.csv", "a,b\none; two; three|four,1\n"))
    assert cells(table, *HEADER) == [("one; two; three|four", "1")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", b"", "empty"),
        ("t.jsonl", b"\n \n", "empty"),
        ("t.tsv", b"a\tb\nfine\t1\nb\xe9\t0\n", r"t\.tsv:3: bytes that are not UTF-8"),
        ("t.tsv", "a\tb\n".encode("utf-16"), r"t\.tsv:1: bytes that are not UTF-8"),
        ("t.jsonl", b'{"a": 1}\n{"a": \n', r"t\.jsonl:2: not JSON"),
        ("t.jsonl", b"[1]\n", "not an object"),
        ("t.jsonl", b"[" * 200_000, "too deep"),
        ("t.jsonl", b'{"a": ' + b"9" * 5000 + b"}", "too long a number"),
        ("t.csv", b'a,b\n"x"y,1\n', r"t\.csv:2: not a row of a table"),
        ("t.parquet", b"PAR1 but not really PAR1", "damaged, or not Parquet"),
        ("t.parquet", b"", "damaged, or not Parquet"),
    ],
)
def test_damage_is_refused_with_its_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        list(open_table(write(tmp_path / name, content)).rows(()))
    assert "\n" not in str(refused.value)


def test_a_missing_column_is_refused_with_those_there_are(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.tsv", "Sentence\tlabel\tlabel\nx\t1\t1\n"))
    with pytest.raises(
        DataError, match=r"did you mean 'Sentence'\?\); it has 'Sentence', 'label', 'label': choose one by --t"
    ):
        table.require(("sentence",), "the text", "--text_column")
    with pytest.raises(DataError, match="'label' stands twice"):
        table.require(("label",), "the label", "--label_column")


@pytest.mark.parametrize("name", ["t.CSV", "t.csv"])
def test_an_ending_counts_in_any_case(tmp_path: Path, name: str) -> None:
    assert cells(open_table(write(tmp_path / name, 'a,b\n"x, y",1\n')), *HEADER) == [("x, y", "1")]
    assert cells(open_table(write(tmp_path / "t.JsonL", '{"a": 1, "b": 2}\n')), *HEADER) == [(1, 2)]
    assert cells(open_table(write(tmp_path / "t.TSV", "a\tb\n1\t2\n")), *HEADER) == [("1", "2")]


@pytest.mark.parametrize("name", ["t.json", "t.ndjson", "t.tsv.gz", "t.xlsx"])
def test_another_ending_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, '{"a": 1}\n')
    said = rf"{name}: a table is \.tsv, \.csv, \.jsonl, \.parquet, not {file.suffix}; unpack or convert it"
    with pytest.raises(UsageError, match=said):
        open_table(file)


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_no_more_than_a_few_rows_of_a_table_are_held_at_once(tmp_path: Path, name: str) -> None:
    line = ("\t" if name == "t.tsv" else ",").join(["a", "b"])
    table = open_table(write(tmp_path / name, f"{line}\n" + line.replace("a", "x" * 100).join(["", "\n"]) * 20_000))
    tracemalloc.start()
    assert sum(1 for _ in table.rows(HEADER)) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000  # of a file of two million bytes


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=(tmp_path / "pipe").write_text, args=("a\tb\n1\t2\n",))
    writing.start()
    table = open_table(tmp_path / "pipe")
    writing.join()
    assert cells(table, "b") == cells(table, "b") == [("2",)]
