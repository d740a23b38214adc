"""Parquet and Arrow files: every type of text, a bounded part of a file in memory, and damage named."""

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from electra_albert.contracts import DataError, UserError
from electra_albert.corpus.sources import plan_units, read_unit
from tests.corpus.reading import read, sentences, write_table

TEXTS = [f"Document {i} is here. It is short." for i in range(40)]


@pytest.mark.parametrize("kind", [pyarrow.large_string(), pyarrow.string_view()])
def test_all_types_of_text_are_read(tmp_path: Path, kind: pyarrow.DataType) -> None:
    table = pyarrow.table({"text": pyarrow.array(["One.", None, "Two."], kind)})
    parquet.write_table(table, tmp_path / "a.parquet")
    with (tmp_path / "a.arrow").open("wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    assert sentences(tmp_path / "a.parquet") == sentences(tmp_path / "a.arrow") == [["One."], ["Two."]]


def test_categories_are_text_in_parquet_and_refused_in_a_stream(tmp_path: Path) -> None:
    table = pyarrow.table({"text": pyarrow.array(["One.", None, "One."]).dictionary_encode()})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert sentences(tmp_path / "a.parquet") == [["One."], ["One."]]
    with (tmp_path / "a.arrow").open("wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="save it as Parquet"):
        plan_units([tmp_path / "a.arrow"])


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "file.arrow"])
def test_a_column_of_numbers_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"'id' holds int64, not text"):
        read(write_table(tmp_path / name, ["One."]), text_column="id")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "file.arrow"])
def test_texts_of_tables_that_are_not_utf8_are_mended_left_out_or_refused(tmp_path: Path, name: str) -> None:
    raw = pyarrow.array([b"One.", b"Caf\xe9.", b"Two."]).cast(pyarrow.binary())
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 3, raw.buffers())
    table = pyarrow.table({"text": texts})
    path = tmp_path / name
    if name == "a.parquet":
        parquet.write_table(table, path)
    else:
        new = pyarrow.ipc.new_file if name == "file.arrow" else pyarrow.ipc.new_stream
        with path.open("wb") as file, new(file, table.schema) as writer:
            writer.write_table(table)
    assert sentences(path) == [["One."], ["Caf\ufffd."], ["Two."]]
    documents, counts = read(path, bad_utf8="skip")
    assert [document.sentences for document in documents] == [["One."], ["Two."]]
    assert (counts["skipped_documents"], counts["skipped_bytes"]) == (1, 5)
    with pytest.raises(DataError, match="row 2: byte 0xe9"):
        read(path, bad_utf8="error")


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


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "file.arrow"])
@pytest.mark.parametrize("kept", [1, 9, 0.3, 0.9])
def test_a_table_that_is_cut_short_is_refused(tmp_path: Path, name: str, kept: float) -> None:
    path = write_table(tmp_path / name, list(TEXTS))
    raw = path.read_bytes()
    path.write_bytes(raw[: kept if isinstance(kept, int) else int(kept * len(raw))])
    with pytest.raises(DataError, match=name):
        read(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "file.arrow"])
def test_a_table_that_changes_or_goes_while_it_is_read_is_an_error(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / name, list(TEXTS))
    units = plan_units([path], unit_bytes=300)
    write_table(path, ["One."])
    with pytest.raises(UserError, match=name):
        list(read_unit(units[-1], Counter()))
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        list(read_unit(units[-1], Counter()))


@pytest.mark.parametrize("name", ["a.arrow", "file.arrow"])
@pytest.mark.parametrize("offset", [-1, 1 << 30])
def test_places_outside_of_an_arrow_file_are_refused(tmp_path: Path, name: str, offset: int) -> None:
    # Regression: Arrow reads at whatever place a file names, and the process died.
    path = write_table(tmp_path / name, ["aaaa", "bbbb", "cccc"])
    places = np.array([0, 4, 8, 12], "<i4").tobytes()
    damaged = np.array([0, 4, offset, 12], "<i4").tobytes()
    assert path.read_bytes().count(places) == 1
    path.write_bytes(path.read_bytes().replace(places, damaged))
    with pytest.raises(DataError, match="damaged"):
        read(path)
