"""Files of records give the documents of plain text, in any units; bad ones are reported."""

import csv
import io
import json
import re
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from electra_albert.corpus.sources import plan_units, read_unit
from electra_albert.data_files.finding import find_files
from tests.corpus.reading import COMPRESS, PROSE, read, sentences, write, write_table
from tests.refusals import assert_refused

TEXTS = [
    " ".join(PROSE),
    "A paragraph. It has two sentences.\nAnother, é 日本 and \"quotes\", 'commas', tabs.\tYes. No.",
    "\ufeffSlashes \\ and \\n, and a mark. \ufeff It ends.",
    "It goes on\r\nwith\rall line ends.\n\nAnd a blank line, which does not end a record.",
    *(f"Document {i} is here. It is short." for i in range(40)),
]
TABLES = ["a.parquet", "a.arrow", "file.arrow"]


def as_csv(texts: list[str | None], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([("id", "text"), *enumerate(texts)])
    return file.getvalue().encode()


def write_records(folder: Path, name: str, texts: list[str | None]) -> Path:
    """Write the texts in the format and compression of the file name."""
    path = folder / name
    if path.suffix in (".parquet", ".arrow"):
        return write_table(path, texts)
    form, _, ending = name.partition(".")[2].partition(".")
    if form == "jsonl":
        raw = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()
    elif form == "txt":
        lines = ["\n".join(filter(None, (text or "").splitlines())) for text in texts]
        raw = "\n\n".join(lines).encode()
    else:
        raw = as_csv(texts, "\t" if form == "tsv" else ",")
    return write(folder, COMPRESS[f".{ending}"](raw) if ending else raw, name)


@pytest.mark.parametrize("name", ["a.txt.zst", "a.jsonl.xz", "a.csv.gz", "a.tsv.bz2", *TABLES])
def test_every_format_gives_the_documents_of_plain_text(tmp_path: Path, name: str) -> None:
    # Catches a format whose texts are cleaned or split differently, or whose units cut a document.
    expected = read(write_records(tmp_path, "plain.txt", TEXTS))[0]
    path = write_records(tmp_path, name, TEXTS)
    assert find_files(str(path), Counter()) == [path]
    for unit_bytes in (1, 150, 8 << 20):
        documents, counts = read(path, unit_bytes=unit_bytes)
        assert documents == expected
        assert counts["files"] == 1
        assert counts["documents"] == len(TEXTS)
        size = sum(len((text or "").encode()) for text in TEXTS)
        if name not in TABLES:
            size = write_records(tmp_path, name.rpartition(".")[0], TEXTS).stat().st_size
        assert counts["bytes"] == size


# Units and memory.


def test_many_small_files_share_a_unit(tmp_path: Path) -> None:
    for i in range(100):
        form = ("txt", "jsonl", "csv.gz", "parquet")[i % 4]
        write_records(tmp_path, f"{i:03d}.{form}", [f"Text {i}. Yes."])
    files = find_files(str(tmp_path), Counter())
    assert len(plan_units(files)) == 1
    assert len(plan_units(files, unit_bytes=300)) > 10
    expected = [[f"Text {i}.", "Yes."] for i in range(100)]
    assert sentences(*files, unit_bytes=300) == sentences(*files) == expected
    units = plan_units(files[::4], unit_bytes=100)  # of plain text
    sizes = [sum(span.end for span in unit.spans) for unit in units]
    assert max(sizes) <= 100
    assert sum(sizes) == sum(file.stat().st_size for file in files[::4])


@pytest.mark.parametrize("name", ["a.arrow", "file.arrow"])
def test_a_record_batch_as_big_as_its_file_is_not_held_in_memory(tmp_path: Path, name: str) -> None:
    peaks = []
    for count in (600, 2_400):  # of 2 KB; a megabyte of text is batched at once
        texts = ["One line that goes on and on " * 70] * count
        (unit,) = plan_units([write_table(tmp_path / name, texts, count)])
        tracemalloc.start()
        before = pyarrow.total_allocated_bytes()
        next(read_unit(unit, Counter()))
        held = pyarrow.total_allocated_bytes() - before
        peaks.append(tracemalloc.get_traced_memory()[1] + held)
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1_200_000, "of 3.6 MB more"


def test_fields_of_megabytes_with_line_ends_are_read(tmp_path: Path) -> None:
    line = "One line of a long field."
    (first, last), _ = read(write(tmp_path, as_csv([f"{line}\n" * 150_000]), "a.csv"))
    assert first.sentences == [line] * 100_000
    assert first.continues
    assert last.sentences == [line] * 50_000
    assert not last.continues
    (document,), counts = read(write(tmp_path, json.dumps({"text": "word " * 500_000}), "a.jsonl"))
    assert " ".join(document.sentences).split() == ["word"] * 500_000
    assert counts["long_lines_cut"] == 2


# Columns, nulls, types and separators.


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "file.arrow"])
def test_null_and_empty_texts_are_counted_and_a_missing_column_is_refused(
    tmp_path: Path, name: str
) -> None:
    path = write_records(tmp_path, name, ["One.", None, "", " \n\u3000", "Two."])
    assert sentences(path) == [["One."], ["Two."]]
    assert read(path)[1]["documents_without_text"] == 3
    message = assert_refused("DataError", "'content'", read, path, text_column="content")
    assert "'id', 'text'" in message


def test_all_string_types_are_read_and_numbers_are_refused(tmp_path: Path) -> None:
    codes = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    for kind in (pyarrow.large_string(), pyarrow.string_view(), codes):
        table = pyarrow.table({"text": pyarrow.array(["One.", None, "Two."], kind)})
        parquet.write_table(table, tmp_path / "a.parquet")
        assert sentences(tmp_path / "a.parquet") == [["One."], ["Two."]]
    for name in TABLES:
        path = write_table(tmp_path / name, ["One."])
        assert_refused("DataError", "'id'", read, path, text_column="id")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "file.arrow"])
def test_a_record_that_is_not_utf8_is_replaced_skipped_or_refused(
    tmp_path: Path, name: str
) -> None:
    path = write_records(tmp_path, name, ["One.", "Caf#.", "Two."])
    path.write_bytes(path.read_bytes().replace(b"Caf#", b"Caf\xe9"))
    documents, counts = read(path)
    assert [document.sentences for document in documents] == [["One."], ["Caf\ufffd."], ["Two."]]
    assert counts["invalid_bytes"] == 1
    documents, counts = read(path, bad_utf8="skip")
    assert [document.sentences for document in documents] == [["One."], ["Two."]]
    assert counts["skipped_documents"] == 1
    assert counts["skipped_bytes"] == 5
    row = {"a.jsonl": "line 2", "a.csv": "line 3"}.get(name, "row 2")
    assert_refused("DataError", f"{row}: byte 0xe9", read, path, bad_utf8="error")


def test_a_csv_with_another_separator_gives_the_same_documents(tmp_path: Path) -> None:
    # Regression: Excel's semicolons were refused as a table with the one column 'id;text'.
    expected = sentences(write(tmp_path, as_csv(TEXTS), "b.csv"))
    for delimiter in ";\t|":
        path = write(tmp_path, as_csv(TEXTS, delimiter), "a.csv")
        assert sentences(path) == expected
        assert sum("separated by" in name for name in read(path)[1]) == 1
    assert sentences(write(tmp_path, "text\nOne, two.\n", "a.tsv")) == [["One, two."]]
    texts = ["One; two | three; four.", "One;\ttwo; three."] * 9  # is not cut
    plain = [[text.replace("\t", " ")] for text in texts]
    for raw in ("\n".join(["text", *texts]), ",1\n".join(["text,id\n" + texts[0], *texts[1:], ""])):
        assert sentences(write(tmp_path, raw, "a.csv")) == plain


def test_quotes_of_the_text_join_no_rows_of_a_tsv(tmp_path: Path) -> None:
    # Regression: the three rows were one document, with the years in it.
    rows = ["text\tyear", '"I am tired.\t1902', "The day was long.\t1903", 'I want to go."\t1904']
    path = write(tmp_path, "\n".join(rows) + "\n\n", "a.tsv")
    assert sentences(path) == [[row.split("\t")[0]] for row in rows[1:]]
    path = write(tmp_path, 'text\tyear\n"One.\nTwo."\t1902\nThree.\t1903\n', "a.tsv")
    assert sentences(path) == [["One.", "Two."], ["Three."]]


def test_a_byte_order_mark_hides_no_column_and_unread_keys_may_be_repeated(tmp_path: Path) -> None:
    twice = '{"text": "One.", "about": {"a": 1, "a": 2}, "id": 1, "id": 2}\n'
    for name, raw in (("a.csv", "text\nOne.\n"), ("a.jsonl", twice)):
        path = write(tmp_path, "\ufeff" + raw, name)
        assert sentences(path) == [["One."]]
        assert read(path)[1]["byte_order_marks"] == 1


# Broken records and tables.

BAD_RECORDS = {
    '{"text": 7}': "line 4.* a number, not text",
    '["One."]': "line 4.*array",
    '{"text": "One.': "line 4.*not JSON",
    "[" * 100_000: "line 4.*not JSON",
    '{"body": "One."}': "line 4.*'text' is missing",
    '{"text": "One.", "text": "Two."}': "line 4.*'text' occurs twice",  # one was silently lost
}
BAD_TABLES = {
    "text,id\nOne.,1\nTwo, three.,2\n": "line 3: 3 fields",
    'text\nOne.\n"Two.\nThree.\n': "line 3: not a valid",
    'text\nOne.\n"Two" and more.\n': "line 3: not a valid",
    "text,text\nOne.,Two.\n": "'text' is duplicated",
    "\n": "'text' is missing",
}


def test_an_invalid_record_is_refused_with_its_line(tmp_path: Path) -> None:
    around = '{"text": "One."}\n\r\n{"text": "Two."}\r\n', '\n{"text": "Three."}\n'
    bad = [("a.jsonl", raw.join(around), word) for raw, word in BAD_RECORDS.items()]
    bad += [("a.csv", raw, word) for raw, word in BAD_TABLES.items()]
    # Catches line numbers that restart with each block of lines.
    lines = [json.dumps({"text": " ".join(PROSE)})] * 8_000 + ['{"text": 7}']
    bad.append(("a.jsonl", "\n".join(lines), "line 8001: "))
    for name, raw, word in bad:
        for unit_bytes in (1 if len(raw) < 300_000 else 300_000, 8 << 20):
            path = write(tmp_path, raw, name)
            message = assert_refused("DataError", name, read, path, unit_bytes=unit_bytes)
            assert re.search(word, message), message


@pytest.mark.parametrize("name", TABLES)
def test_a_table_truncated_changed_or_deleted_while_being_read_is_an_error(
    tmp_path: Path, name: str
) -> None:
    path = write_table(tmp_path / name, TEXTS)
    raw = path.read_bytes()
    last = plan_units([path], unit_bytes=300)[-1]
    for size in (1, 9, len(raw) // 3, len(raw) * 9 // 10):
        path.write_bytes(raw[:size])
        assert_refused("DataError", name, read, path)
    write_table(path, ["One."])
    assert_refused("UserError", name, lambda: [*read_unit(last, Counter())])
    path.unlink()
    assert_refused("UserError", name, lambda: [*read_unit(last, Counter())])


@pytest.mark.parametrize("name", ["a.arrow", "file.arrow"])
def test_offsets_outside_an_arrow_file_are_refused(tmp_path: Path, name: str) -> None:
    # Regression: Arrow reads at any offset in the file, and the process crashed.
    path = write_table(tmp_path / name, ["aaaa", "bbbb", "cccc"])
    raw = path.read_bytes()
    right = np.array([0, 4, 8, 12], "<i4").tobytes()
    for offset in (-1, 1 << 30):
        wrong = np.array([0, 4, offset, 12], "<i4").tobytes()
        path.write_bytes(raw.replace(right, wrong))
        assert_refused("DataError", name, read, path)
