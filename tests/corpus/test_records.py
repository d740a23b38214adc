"""Files of records: the same documents as from plain text, in any units, and every bad record named."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from electra_albert.contracts import DataError, UserError
from electra_albert.corpus.sources import find_files, plan_units, read_unit
from tests.corpus.reading import PROSE, cut, read, sentences, write, write_table

ROOT = Path(__file__).parents[2]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: pyarrow.compress(raw, "zstd", asbytes=True),
}
TEXTS = [
    " ".join(PROSE),
    "A paragraph. It has two sentences.\nAnother one, é 日本 and \"quotes\", 'commas', tabs.\tYes. No.",
    "It goes on\r\nwith\rall line ends.\n\nAnd a blank line, which does not end a record.",
    *(f"Document {i} is here. It is short." for i in range(40)),
]
TABLES = ["a.parquet", "a.arrow", "file.arrow"]


def as_csv(texts: list[str], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([("id", "text"), *enumerate(texts)])
    return file.getvalue().encode()


def write_records(folder: Path, name: str, texts: list[str]) -> Path:
    """The texts in the format that the name says, compressed as it says."""
    path = folder / name
    if path.suffix in (".parquet", ".arrow"):
        return write_table(path, list(texts))
    ending = path.suffix if path.suffix in COMPRESS else ""
    form = path.name.removesuffix(ending).rpartition(".")[2]
    if form == "jsonl":
        raw = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()
    elif form == "txt":
        raw = "\n\n".join("\n".join(filter(None, text.splitlines())) for text in texts).encode()
    else:
        raw = as_csv(texts, "\t" if form == "tsv" else ",")
    return write(folder, COMPRESS[ending](raw), name)


@pytest.mark.parametrize(
    "name", ["a.txt.zst", "a.jsonl", "a.jsonl.xz", "a.csv", "a.csv.gz", "a.tsv", "a.tsv.bz2", *TABLES]
)
def test_every_format_gives_the_documents_of_plain_text(tmp_path: Path, name: str) -> None:
    # Catches a format whose texts are cleaned, split or grouped in a way of its own, or whose units cut a document.
    expected = read(write_records(tmp_path, "plain.txt", TEXTS))[0]
    path = write_records(tmp_path, name, TEXTS)
    assert find_files(str(path), Counter()) == [path]
    for unit_bytes in (1, 150, 8 << 20):
        documents, counts = read(path, unit_bytes=unit_bytes)
        assert documents == expected
        assert (counts["files"], counts["documents"]) == (1, len(TEXTS))


@given(
    st.lists(st.text(st.sampled_from("ab .é日\",\t\n\r'\\\ufeff\u2028")), min_size=1, max_size=12), st.integers(1, 90)
)
@settings(max_examples=60, deadline=None)
def test_any_texts_are_the_same_in_all_formats_and_units(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], unit_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("records")
    names = ("a.jsonl", "a.csv", "a.tsv", *TABLES, "a.jsonl.gz")
    found = [read(write_records(folder, name, texts), unit_bytes=unit_bytes) for name in names]
    assert all(documents == found[0][0] for documents, _ in found)
    assert all(counts["byte_order_marks"] == found[0][1]["byte_order_marks"] for _, counts in found)
    assert all(counts["documents"] + counts["documents_without_text"] == len(texts) for _, counts in found)


def test_bytes_are_those_of_the_lines_or_of_the_texts(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv.xz", "a.txt.bz2"):
        plain = write_records(tmp_path, name.removesuffix(".xz").removesuffix(".bz2"), TEXTS).stat().st_size
        assert read(write_records(tmp_path, name, TEXTS))[1]["bytes"] == plain
    for name in TABLES:
        size = sum(len(text.encode()) for text in TEXTS)
        assert read(write_records(tmp_path, name, TEXTS), unit_bytes=99)[1]["bytes"] == size


# Units and memory.


@pytest.mark.parametrize("name", ["a.jsonl", *TABLES])
def test_a_big_file_of_records_is_cut_into_units(tmp_path: Path, name: str) -> None:
    spans = cut(write_records(tmp_path, name, TEXTS), 300)
    assert len(spans) > 4
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]


def test_many_small_files_share_a_unit_and_their_order_and_content_alone_decide(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
        for i in range(100):
            write_records(folder, f"{i:03d}.{('txt', 'jsonl', 'csv.gz', 'parquet')[i % 4]}", [f"Text {i}. Yes."])
    one, other = ([unit.spans for unit in plan_units(find_files(str(folder), Counter()))] for folder in folders)
    assert len(one) == 1
    assert [[span[1:] for span in spans] for spans in one] == [[span[1:] for span in spans] for spans in other]
    files = find_files(str(folders[0]), Counter())
    assert sentences(*files, unit_bytes=300) == sentences(*files) == [[f"Text {i}.", "Yes."] for i in range(100)]
    assert len(plan_units(files, unit_bytes=300)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.zst"])
def test_memory_does_not_grow_with_what_a_compressed_file_holds(tmp_path: Path, name: str) -> None:
    program = (
        "import re, sys\n"
        "from collections import Counter\n"
        "from pathlib import Path\n"
        "from electra_albert.corpus.sources import plan_units, read_unit\n"
        "counts = Counter()\n"
        "for unit in plan_units([Path(sys.argv[1])]):\n    for document in read_unit(unit, counts):\n        pass\n"
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]\n"
        "print(counts['documents'], peak)\n"
    )
    text = "This is one line of the text, and it goes on like this, until it ends."
    peaks = []  # kilobytes
    for documents in (70_000, 700_000):
        path = write_records(tmp_path, name, [text] * documents)
        command = [sys.executable, "-c", program, str(path)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found, peak = map(int, ended.stdout.split())
        assert found == documents
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 5_000, "of 45 MB more"


@pytest.mark.parametrize("name", ["a.arrow", "file.arrow"])
def test_a_record_batch_as_big_as_its_file_is_not_held_in_memory(tmp_path: Path, name: str) -> None:
    peaks = []
    for rows in (2_000, 10_000):  # of 2 KB; a megabyte of text is gathered at once
        unit = plan_units([write_table(tmp_path / name, ["One line that goes on and on. " * 70] * rows, rows)])[0]
        tracemalloc.start()
        before = pyarrow.total_allocated_bytes()
        next(read_unit(unit, Counter()))
        peaks.append(tracemalloc.get_traced_memory()[1] + pyarrow.total_allocated_bytes() - before)
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 3_000_000, "of 16 MB more"


def test_fields_of_megabytes_with_line_ends_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, as_csv(["One line of a long field.\n" * 150_000]), "a.csv")
    assert sentences(path) == [["One line of a long field."] * 100_000, ["One line of a long field."] * 50_000]


# Columns, nulls and types.


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", *TABLES])
def test_a_column_that_is_missing_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"'content' is not there.*'id', 'text'.*--text_column"):
        read(write_records(tmp_path, name, TEXTS), text_column="content")


@pytest.mark.parametrize("name", ["a.jsonl", *TABLES])
def test_null_and_empty_texts_are_counted(tmp_path: Path, name: str) -> None:
    texts = ["One.", None, "", " \n\u3000", "Two."]
    if name == "a.jsonl":
        path = write(tmp_path, "".join(json.dumps({"text": text}) + "\n\n" for text in texts), name)
    else:
        path = write_table(tmp_path / name, texts)
    documents, counts = read(path)
    assert [document.sentences for document in documents] == [["One."], ["Two."]]
    assert counts["documents_without_text"] == 3


def test_all_types_of_text_are_read_and_numbers_are_refused(tmp_path: Path) -> None:
    for kind in (pyarrow.large_string(), pyarrow.string_view(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
        table = pyarrow.table({"text": pyarrow.array(["One.", None, "Two."], kind)})
        parquet.write_table(table, tmp_path / "a.parquet")
        with (tmp_path / "a.arrow").open("wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        assert sentences(tmp_path / "a.parquet") == sentences(tmp_path / "a.arrow") == [["One."], ["Two."]]
    for name in TABLES:
        with pytest.raises(DataError, match=r"'id' holds int64, not text"):
            read(write_table(tmp_path / name, ["One."]), text_column="id")


@pytest.mark.parametrize("name", TABLES)
def test_texts_of_tables_that_are_not_utf8_are_mended_left_out_or_refused(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / name, ["One.", "Caf#.", "Two."])
    raw = path.read_bytes()
    assert raw.count(b"Caf#") >= 1
    path.write_bytes(raw.replace(b"Caf#", b"Caf\xe9"))
    assert sentences(path) == [["One."], ["Caf\ufffd."], ["Two."]]
    documents, counts = read(path, bad_utf8="skip")
    assert [document.sentences for document in documents] == [["One."], ["Two."]]
    assert (counts["skipped_documents"], counts["skipped_bytes"]) == (1, 5)
    with pytest.raises(DataError, match="row 2: byte 0xe9"):
        read(path, bad_utf8="error")


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_csv_with_another_separator_gives_the_same_documents(tmp_path: Path, delimiter: str) -> None:
    # Regression: Excel's semicolons were refused as a table with the one column 'id;text'.
    documents, counts = read(write(tmp_path, as_csv(TEXTS, delimiter), "a.csv"))
    assert [d.sentences for d in documents] == sentences(write(tmp_path, as_csv(TEXTS), "b.csv"))
    assert sum(count for what, count in counts.items() if what.startswith("CSV files separated by")) == 1


def test_text_that_holds_other_separators_is_not_cut_at_them(tmp_path: Path) -> None:
    rows = ["One; two | three; four.", "One;\ttwo; three."] * 9
    for raw in ("text\n" + "\n".join(rows), "text,id\n" + ",1\n".join([*rows, ""])):
        found = sentences(write(tmp_path, raw, "a.csv"))
        assert [" ".join(document) for document in found] == [" ".join(row.split()) for row in rows]


def test_a_byte_order_mark_hides_no_column(tmp_path: Path) -> None:
    for name, raw in (("a.csv", "\ufefftext\nOne.\n"), ("a.jsonl", '\ufeff{"text": "One."}\n')):
        documents, counts = read(write(tmp_path, raw, name))
        assert [document.sentences for document in documents] == [["One."]]
        assert counts["byte_order_marks"] == 1


# Broken records and tables.


@pytest.mark.parametrize(
    ("name", "raw", "word"),
    [
        ("a.jsonl", '{"text": 7}', "line 4.* a number, not text"),
        ("a.jsonl", '["One."]', "line 4.*not an object but an array"),
        ("a.jsonl", '{"text": "One.', "line 4.*not JSON"),
        ("a.jsonl", "[" * 100_000, "line 4.*not JSON"),
        ("a.jsonl", '{"body": "One."}', "line 4.*'text' is not there"),
        ("a.jsonl", '{"text": "One.", "text": "Two."}', "line 4.*'text' is there twice"),  # one was lost in silence
        ("a.csv", "text,id\nOne.,1\nTwo, three.,2\n", "line 3: 3 fields"),
        ("a.csv", 'text\nOne.\n"Two.\nThree.\n', "line 3: not a row"),
        ("a.csv", 'text\nOne.\n"Two" and more.\n', "line 3: not a row"),
        ("a.csv", "text,text\nOne.,Two.\n", "'text' is there twice"),
        ("a.csv", "\n", "'text' is not there"),
    ],
)
def test_a_record_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path, name: str, raw: str, word: str) -> None:
    if name == "a.jsonl":
        raw = '{"text": "One."}\n\r\n{"text": "Two."}\r\n' + raw + '\n{"text": "Three."}\n'
    for unit_bytes in (1, 8 << 20):
        with pytest.raises(DataError, match=re.escape(name) + f".*{word}") as refusal:
            read(write(tmp_path, raw, name), unit_bytes=unit_bytes)
        assert "\n" not in str(refusal.value)


def test_a_line_far_behind_the_first_block_is_named_by_its_number(tmp_path: Path) -> None:
    # Catches numbers that begin anew with each run of lines.
    lines = [json.dumps({"text": " ".join(PROSE)})] * 9_000
    lines[8_000] = '{"text": 7}'
    for unit_bytes in (300_000, 8 << 20):
        with pytest.raises(DataError, match=r"a\.jsonl, line 8001: "):
            read(write(tmp_path, "\n".join(lines), "a.jsonl"), unit_bytes=unit_bytes)


def test_a_key_that_is_not_read_may_be_there_twice(tmp_path: Path) -> None:
    lines = '{"text": "One.", "about": {"a": 1, "a": 2}}\n{"text": "Two.", "id": 1, "id": 2}\n'
    assert sentences(write(tmp_path, lines, "a.jsonl")) == [["One."], ["Two."]]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_cut_short_changes_or_goes_while_it_is_read_is_an_error(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / name, list(TEXTS))
    raw = path.read_bytes()
    units = plan_units([path], unit_bytes=300)
    for kept in (1, 9, len(raw) // 3, len(raw) * 9 // 10):
        path.write_bytes(raw[:kept])
        with pytest.raises(DataError, match=name):
            read(path)
    write_table(path, ["One."])
    with pytest.raises(UserError, match=name):
        list(read_unit(units[-1], Counter()))
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        list(read_unit(units[-1], Counter()))


@pytest.mark.parametrize("name", ["a.arrow", "file.arrow"])
@pytest.mark.parametrize("offset", [-1, 1 << 30])
def test_offsets_outside_of_an_arrow_file_are_refused(tmp_path: Path, name: str, offset: int) -> None:
    # Regression: Arrow reads at whatever offset a file names, and the process died.
    path = write_table(tmp_path / name, ["aaaa", "bbbb", "cccc"])
    offsets = np.array([0, 4, 8, 12], "<i4").tobytes()
    assert path.read_bytes().count(offsets) == 1
    path.write_bytes(path.read_bytes().replace(offsets, np.array([0, 4, offset, 12], "<i4").tobytes()))
    with pytest.raises(DataError, match="damaged"):
        read(path)
