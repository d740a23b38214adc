"""Parquet and Arrow files, read in batches of rows with bounded memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.contracts import DataError, UserError, one_line
from electra_albert.data_files import finding, streams

ROWS = 256  # read at once
_BUFFER_BYTES = 1 << 20
_ARROW_FILE = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"

Batches = Iterator[tuple[int, Any]]  # first row and pyarrow.RecordBatch


class Columnar(NamedTuple):
    """An open Parquet or Arrow file. Its parts are row groups or record batches."""

    schema: Any  # pyarrow.Schema
    sizes: list[int]  # approximate bytes of each part
    batches: Callable[[int, int, list[str]], Batches]  # of the parts from a start to an end


@contextmanager
def open_columnar(path: str | Path) -> Iterator[Columnar]:
    """Open a Parquet file, or an Arrow file or stream as written by `datasets`.

    Raises DataError if it is damaged.
    """
    import pyarrow

    with streams.open_regular(path) as file:
        try:
            if finding.format_of(Path(path)) == "parquet":
                yield _parquet(file)
            else:
                yield _arrow(str(path), file)
        except UserError:
            raise
        except (pyarrow.ArrowException, OSError, EOFError, ValueError, LookupError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # a disk error
            raise DataError(
                f"{path}: damaged, changed or misnamed ({one_line(error)}); write it again"
            ) from error


def _parquet(regular: Any) -> Columnar:
    from pyarrow.parquet import ParquetFile

    # Reads a buffer at a time, not a row group.
    file = ParquetFile(
        regular, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
    )
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]

    def batches(start: int, end: int, columns: list[str]) -> Batches:
        row = sum(group.num_rows for group in groups[:start])
        for batch in file.iter_batches(ROWS, range(start, end), columns, use_threads=False):
            yield row, batch
            row += batch.num_rows

    sizes = [group.total_byte_size for group in groups]
    return Columnar(file.schema_arrow, sizes, batches)


def _arrow(path: str, regular: Any) -> Columnar:
    from pyarrow import ipc, memory_map

    is_file = regular.read(len(_ARROW_FILE)) == _ARROW_FILE
    size = regular.seek(0, os.SEEK_END)
    regular.seek(max(0, size - len(_STREAM_END)))
    if not is_file and regular.read() != _STREAM_END:
        raise ValueError("the end of the stream is missing")

    open_reader = ipc.open_file if is_file else ipc.open_stream

    def parts() -> Iterator[Any]:
        reader = open_reader(memory_map(path))  # because a record batch may be the whole file
        if is_file:
            return map(reader.get_batch, range(reader.num_record_batches))
        return iter(reader)

    def batches(start: int, end: int, columns: list[str]) -> Batches:
        row = number = 0
        for number, batch in enumerate(islice(parts(), end), 1):
            if number > start:
                yield row, batch.select(columns)
            row += batch.num_rows
        if number < end:
            raise DataError(f"{path}: {streams.SHORTER}")

    sizes = [batch.get_total_buffer_size() for batch in parts()]
    return Columnar(open_reader(memory_map(path)).schema, sizes, batches)
