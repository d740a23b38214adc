"""Tables give back the cells that were written, whatever these hold, and name the place of damage."""

import csv
import gzip
import io
import json
import os
import threading
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files.tables import Table, open_table
from tests.corpus.reading import write_table
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
    assert read_back("t.tsv.gz", gzip.compress(text.encode())) == bare


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "file.arrow"])
def test_columnar_files_give_the_columns_asked_for_in_their_order(tmp_path: Path, name: str) -> None:
    table = open_table(write_table(tmp_path / name, ["x", None, "y"], rows=2))
    assert cells(table, "text", None, "id") == [("x", None, 0), (None, None, 1), ("y", None, 2)]
    assert [row.place.rpartition(" ")[2] for row in table.rows(())] == []
    assert [row.place.rpartition(" ")[2] for row in table.rows(("id",))] == ["1", "2", "3"]


def test_quotes_mean_nothing_in_tsv_and_line_ends_of_windows_and_marks_are_no_text(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "t.tsv", '\ufeffa\tb\r\n"one\ttwo\u2028\x85\r\n"three"\t"\r\n\r\n'))
    assert table.columns == HEADER
    assert cells(table, "a", "b") == [('"one', "two\u2028\x85"), ('"three"', '"')]


def test_a_blank_line_is_a_row_only_where_there_is_one_column(tmp_path: Path) -> None:
    assert cells(open_table(write(tmp_path / "one.tsv", "a\nx\n\ny\n")), "a") == [("x",), ("",), ("y",)]
    assert cells(open_table(write(tmp_path / "two.tsv", "a\tb\nx\t1\n\ny\t2\n")), "a") == [("x",), ("y",)]


def test_a_row_is_named_by_the_line_it_begins_at_and_told_where_it_has_other_columns(tmp_path: Path) -> None:
    for name, content in (("t.tsv", "a\tb\n1\n1\t2\n1\t2\t3\n"), ("t.csv", 'a,b\n"x\ny",1\nz\n')):
        rows = list(open_table(write(tmp_path / name, content)).rows(("a",)))
        found = [(row.place.rsplit(":", 1)[1], row.problem) for row in rows]
        few, many = "1 columns instead of 2", "3 columns instead of 2"
        assert found == ([("2", few), ("3", None), ("4", many)] if name == "t.tsv" else [("2", None), ("4", few)])


def test_names_without_a_header_are_used_only_without_one(tmp_path: Path) -> None:
    named = ("s", "label", "mark", "text")
    bare = open_table(write(tmp_path / "a.tsv", "x\t1\t\thello\n"), ("text",), named)
    headed = open_table(write(tmp_path / "b.tsv", "x\t1\t\ttext\nu\t0\t\thello\n"), ("text",), named)
    short = open_table(write(tmp_path / "c.tsv", "index\ttext\n0\thello\n"), ("text",), named)
    assert cells(bare, "text") == cells(headed, "text") == cells(short, "text") == [("hello",)]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_csv_with_any_usual_separator_gives_the_same_cells(tmp_path: Path, separator: str) -> None:
    rows = [["a", "b"], ["x, y; z", "1"], ['"z"', f"2{separator}3"]]
    quoted = io.StringIO()
    csv.writer(quoted, delimiter=separator, lineterminator="\n").writerows(rows)
    assert cells(open_table(write(tmp_path / "t.csv", quoted.getvalue())), *HEADER) == [tuple(row) for row in rows[1:]]


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("t.tsv", b"", "empty"),
        ("t.jsonl", b"\n \n", "empty"),
        ("t.tsv", b"a\tb\nfine\t1\nb\xe9\t0\n", r"t\.tsv:3: .*UTF-8"),
        ("t.jsonl", b'{"a": 1}\n{"a": \n', r"t\.jsonl:2: not JSON"),
        ("t.jsonl", b'{"a": 1, "a": 2}\n', r"t\.jsonl:1: key 'a' is there twice"),
        ("t.jsonl", b"[1]\n", "not an object"),
        ("t.jsonl", b"[" * 200_000, "recursion"),
        ("t.csv", b'a,b\n"x"y,1\n', r"t\.csv:2: not a row of a table"),
        ("t.parquet", b"PAR1 but not really PAR1", "damaged"),
        ("t.arrow", b"", "damaged"),
    ],
)
def test_damage_is_refused_with_its_place(tmp_path: Path, name: str, content: bytes, word: str) -> None:
    with pytest.raises(DataError, match=word) as refused:
        list(open_table(write(tmp_path / name, content)).rows(()))
    assert "\n" not in str(refused.value)


def test_offsets_outside_of_a_columnar_file_are_refused(tmp_path: Path) -> None:
    # Regression: Arrow reads at whatever offset a file names, and the process died.
    path = write_table(tmp_path / "t.arrow", ["aaaa", "bbbb", "cccc"])
    right, wrong = (b"".join(n.to_bytes(4, "little") for n in (0, 4, third, 12)) for third in (8, 1 << 30))
    path.write_bytes(path.read_bytes().replace(right, wrong))
    with pytest.raises(DataError, match="damaged"):
        list(open_table(path).rows(("text",)))


def test_an_ending_counts_in_any_case_and_another_is_refused(tmp_path: Path) -> None:
    for name, content in (("t.CSV", "a,b\nx,1\n"), ("t.NdJson", '{"a": "x", "b": "1"}\n'), ("t.TSV", "a\tb\nx\t1\n")):
        assert cells(open_table(write(tmp_path / name, content)), *HEADER) == [("x", "1")]
    for name in ("t.json", "t.xlsx", "t.conll"):
        with pytest.raises(UsageError, match=rf"a table is .*not {Path(name).suffix}"):
            open_table(write(tmp_path / name, '{"a": 1}\n'))


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
