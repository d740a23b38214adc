"""Tables and compressed files are read as written, and errors give the location of the damage."""

import csv
import gzip
import io
import json
import os
import re
import threading
import tracemalloc
from collections import Counter
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from electra_albert.data_files.finding import find_files
from electra_albert.data_files.streams import MAX_RECORD, open_stream, text_lines
from electra_albert.data_files.tables import Table, open_table, split_rows
from tests.corpus.reading import COMPRESS, PROSE, sentences, write, write_table
from tests.refusals import assert_refused

CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff"), max_size=12)
ROWS = st.lists(st.tuples(CELLS, CELLS.map(lambda text: f"x{text}")), max_size=6)
HEADER = ("a", "b")


def cells(table: Table, *names: str | None) -> list[tuple[object, ...]]:
    rows = list(table.rows(names))
    assert not [row for row in rows if row.problem]
    return [row.cells for row in rows]


def read_bytes(path: Path) -> bytes:
    with open_stream(path) as file:
        return file.read()


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_cells_are_read_as_written(rows: list[tuple[str, str]]) -> None:
    objects = [dict(zip(HEADER, row, strict=True)) for row in rows]
    bare = [(re.sub("[\t\n\r]", " ", first), re.sub("[\t\n\r]", " ", last)) for first, last in rows]
    text = "\n".join(map("\t".join, [HEADER, *bare]))
    quoted = io.StringIO()
    csv.writer(quoted, lineterminator="\n").writerows([HEADER, *rows])
    files = [("t.tsv.gz", gzip.compress(text.encode()), bare)]
    if rows:
        files.append(("t.NdJson", "\n".join(map(json.dumps, objects)).encode(), rows))
    if "\r" not in quoted.getvalue():  # a CSV file may use either line end
        files.append(("t.CSV", quoted.getvalue().encode(), rows))
    with TemporaryDirectory() as folder:
        for name, content, expected in files:
            assert cells(open_table(write(Path(folder), content, name)), *HEADER) == expected


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_columnar_files_give_the_requested_columns_in_order(tmp_path: Path, name: str) -> None:
    table = open_table(write_table(tmp_path / name, ["x", None, "y"], rows=2))
    rows = list(table.rows(("text", None, "id", "text")))
    cells = [("x", None, 0, "x"), (None, None, 1, None), ("y", None, 2, "y")]
    assert [row.cells for row in rows] == cells
    assert [row.location.rpartition(" ")[2] for row in rows] == ["1", "2", "3"]


def test_tsv_has_no_quoting_and_windows_line_ends_and_byte_order_marks_are_not_text(
    tmp_path: Path,
) -> None:
    text = '\ufeffa\tb\r\n"one\ttwo\u2028\x85\r\n\r\n"three"\t"\r\n\r\n'
    table = open_table(write(tmp_path, text, "t.tsv"))
    assert table.columns == HEADER
    assert cells(table, "a", "b") == [('"one', "two\u2028\x85"), ('"three"', '"')]
    # A blank line is a row only in a table of one column.
    table = open_table(write(tmp_path, "a\nx\n\ny\n", "one.tsv"))
    assert cells(table, "a") == [("x",), ("",), ("y",)]


def test_a_tsv_in_the_quotes_of_a_csv_is_read_without_them(tmp_path: Path) -> None:
    stop = '"""Stop,"" she said."\t1\n"two\nlines"\t0\nplain\t1\n'
    for content, texts in (
        (stop, ['"Stop," she said.', "two\nlines", "plain"]),
        ('"one"\t1\r\n"t\two"\t0\r\n\r\n', ["one", "t\two"]),
        # Regression: the second line of such a text was an example of its own.
        ('one\t1\n"two\nlines"\t0\nthree\t1\n', ["one", "two\nlines", "three"]),
        ('one\t1\n"t\two"\t0\nthree\t1\n', ["one", "t\two", "three"]),
        ('"a" b\t1\n"c"\t1\n', ['"a" b', '"c"']),  # some quotes are of the text
        ('say ""a""\t1\n"c"\t1\n', ['say ""a""', '"c"']),
        ('a\t1\n"c"\t1\n', ["a", '"c"']),
    ):
        notes = []
        file = write(tmp_path, "\ufeffa\tb\n" + content, "t.tsv")
        table = open_table(file, may_be_quoted=True, note=lambda *note, to=notes: to.append(note))
        assert [*zip(*cells(table, "a"), strict=True)] == [tuple(texts)]
        assert ("kept" in notes[0][0]) == ('"c"' in texts)


@pytest.mark.parametrize("line", ["sep=;\n", "\ufeffSEP=;\r\n", '"sep=;"\n'])
def test_the_separator_in_the_first_line_is_used_and_the_line_is_no_row(
    tmp_path: Path, line: str
) -> None:
    path = write(tmp_path, f"{line}id;text\n1;x, y\n2;z;a\n", "t.csv")
    rows = open_table(path).rows(("text",))
    expected = [(("x, y",), f"{path}:3"), ((), f"{path}:4")]
    assert [(row.cells, row.location) for row in rows] == expected
    assert_refused("DataError", "line 4: 3 fields", sentences, path)
    assert sentences(write(tmp_path, f"{line}id;text\n1;{PROSE[0]}\n", "t.csv")) == [PROSE[:1]]
    table = open_table(write(tmp_path, f"{line}x;1\n", "t.csv"), named=[HEADER])
    assert cells(table, "a") == [("x",)]
    write(tmp_path, f"\n \n{line.removeprefix(chr(0xFEFF))}id;text\n1;sep=\nsep=;\n", "t.csv")
    rows = open_table(path).rows(("text",))
    assert [row.location for row in rows] == [f"{path}:5", f"{path}:6"]


def test_a_row_has_the_location_of_its_first_line_and_a_problem_if_its_columns_differ(
    tmp_path: Path,
) -> None:
    few = "1 columns instead of 2"
    many = "3 columns instead of 2"
    for name, content, expected in (
        ("t.tsv", "a\tb\n1\n1\t2\n1\t2\t3\n", [("2", few), ("3", None), ("4", many)]),
        ("t.csv", 'a,b\n"x\ny",1\nz\n', [("2", None), ("4", few)]),
    ):
        rows = open_table(write(tmp_path, content, name)).rows(("a",))
        assert [(row.location.rsplit(":", 1)[1], row.problem) for row in rows] == expected


def test_default_column_names_are_used_only_without_a_header(tmp_path: Path) -> None:
    for content in ("x\t1\t\thello\n", "x\t1\t\ttext\nu\t0\t\thello\n", "index\ttext\n0\thello\n"):
        file = write(tmp_path, content, "t.tsv")
        table = open_table(file, ("text",), ("s", "label", "mark", "text"))
        assert cells(table, "text") == [("hello",)]


def test_column_names_are_chosen_by_column_count_and_a_separator_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path, "x;1\n" + "a, b;0\n" * 9, "t.csv")
    notes = []
    names = [("n", "text", "label"), ("text", "label")]
    table = open_table(path, named=names, note=lambda what, _: notes.append(what))
    assert cells(table, "text") == [("x",), *[("a, b",)] * 9]
    without = "files without a header read as columns text, label"
    assert notes == ["files separated by semicolons", without]
    for columns in (("x", "1"), ("n", "text", "label")):
        assert_refused("DataError", "--column_names", open_table, path, named=[columns])


DAMAGED = [
    ("t.tsv", b"", "empty"),
    ("t.tsv", b"a\tb\nfine\t1\nb\xe9\t0\n", "t.tsv:3"),
    ("t.jsonl", b'{"a": 1}\n{"a": \n', "t.jsonl:2"),
    ("t.jsonl", b'{"a": 1, "a": 2}\n', "'a'"),
    ("t.jsonl", b"[1]\n", "array"),
    ("t.jsonl", b"[" * 200_000, "t.jsonl:1"),
    ("t.csv", b'a,b\n"x"y,1\n', "t.csv:2"),
    ("t.csv", b'"a"b,c\n1,2\n', "t.csv:1"),
    ("t.parquet", b"PAR1 but not really PAR1", "damaged"),
]


@pytest.mark.parametrize(("name", "content", "word"), DAMAGED)
def test_damage_is_refused_with_its_location(
    tmp_path: Path, name: str, content: bytes, word: str
) -> None:
    file = write(tmp_path, content, name)
    message = assert_refused("DataError", word, lambda: [*open_table(file).rows(())])
    assert name in message


def test_an_unknown_suffix_and_damaged_arrow_files_are_refused(tmp_path: Path) -> None:
    for name in ("t.json", "t.xlsx"):
        file = write(tmp_path, '{"a": 1}\n', name)
        assert_refused("UsageError", name, open_table, file)
    # Regression: Arrow reads at any offset in the file, and the process crashed.
    path = write_table(tmp_path / "t.arrow", ["aaaa", "bbbb"])
    ends = np.array([0, 4, 8, 1 << 30], "<i4").tobytes()
    path.write_bytes(path.read_bytes().replace(ends[:12], ends[:8] + ends[12:]))
    assert_refused("DataError", "t.arrow", lambda: [*open_table(path).rows(("text",))])
    # Regression: a stream cut between two record batches was a shorter table.
    whole = write_table(path, ["a", "b"], rows=1).read_bytes()
    path.write_bytes(whole[: whole.rindex(b"\xff\xff\xff\xff", 0, -8)])
    assert_refused("DataError", "t.arrow", open_table, path)


def test_a_flipped_bit_in_a_parquet_file_with_checksums_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pyarrow.table({"text": ["aaaa", "bbbb"]})
    parquet.write_table(table, path, write_page_checksum=True, compression="none")
    path.write_bytes(path.read_bytes().replace(b"bbbb", b"bbbc", 1))
    assert_refused("DataError", "t.parquet", lambda: [*open_table(path).rows(("text",))])


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_tables_are_read_with_bounded_memory(tmp_path: Path, name: str) -> None:
    separator = "\t" if name == "t.tsv" else ","
    line = f"{'x' * 1_000}{separator}b\n"
    table = open_table(write(tmp_path, f"a{separator}b\n" + line * 2_000, name))
    tracemalloc.start()
    assert sum(1 for _ in table.rows(HEADER)) == 2_000
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


def test_an_endless_line_or_field_or_a_device_is_refused(tmp_path: Path) -> None:
    """Regression: reading them took all memory."""
    path = tmp_path / "t.tsv"
    with path.open("wb") as file:
        file.truncate(MAX_RECORD + 1)
    assert_refused("DataError", "t.tsv:1", next, text_lines(path))
    assert len(next(text_lines(path, max_bytes=-1))) == MAX_RECORD + 1
    endless = chain(["a,b", '1,"'], repeat(" " * (1 << 20)))
    assert_refused("DataError", "67108864", lambda: [*split_rows(endless, ",", str)])
    assert_refused("UsageError", "/dev/zero", next, text_lines(Path("/dev/zero")))


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_members_are_one_text_and_damage_is_reported(
    tmp_path: Path, ending: str
) -> None:
    pack = COMPRESS[ending]
    padding = b"" if ending == ".zst" else bytes(70_000)
    members = (pack(f"Line {i} of it.\n".encode() * 4000) for i in range(3))
    path = write(tmp_path, padding.join(members) + padding, f"a.txt{ending}")
    assert [len(document) for document in sentences(path)] == [12_000]
    assert len([*text_lines(path)]) == 12_000
    # The standard library silently stops at anything that is not a second member.
    whole = pack(np.random.default_rng(0).integers(97, 123, 200_000, dtype=np.uint8).tobytes())
    middle = len(whole) // 2
    overwritten = whole[:middle] + bytes(2000) + whole[middle + 2000 :]
    for broken in (whole[:-20], whole + whole[:middle], whole + b"not compressed", overwritten):
        path = write(tmp_path, broken, f"b.txt{ending}")
        assert_refused("DataError", path.name, read_bytes, path)


def test_compression_is_detected_by_content_also_after_a_skippable_frame(tmp_path: Path) -> None:
    frame = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"  # as pzstd writes it
    text = "\n".join(PROSE).encode()
    for content in (frame + COMPRESS[".zst"](text), gzip.compress(text)):
        path = write(tmp_path, content, "a.txt.XZ")
        assert find_files(str(path), Counter()) == [path]
        assert sentences(path) == [PROSE]


def test_text_is_decoded_without_its_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffone\r\ntwo\x85\u2028\n\nlast")
    assert [*text_lines(path)] == ["one\r", "two\x85\u2028", "", "last"]
    path = write(tmp_path, "ein\nschöner Tag\n".encode("latin-1"))
    assert [*text_lines(path, "cp1252")] == ["ein", "schöner Tag"]
    assert_refused("DataError", "corpus.txt:2", lambda: [*text_lines(path)])
    assert_refused("UsageError", str(tmp_path), lambda: [*text_lines(tmp_path)])
