"""One column of text from Parquet and Arrow files, a few rows at a time.

A piece of a file is a range of row groups (Parquet), of record batches (the Arrow file format), or of bytes (the Arrow
stream format, which `datasets` writes).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from electra_albert.contracts import DataError, UserError
from electra_albert.corpus.compressed import open_regular
from electra_albert.corpus.documents import Record
from electra_albert.corpus.records import missing_column

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

_ROWS = 256  # turned into Python texts at once
_BUFFER_BYTES = 1 << 20
_ARROW_FILE = b"ARROW1"


class Piece(NamedTuple):
    """What can be read on its own: from `start` to before `end`, about so many bytes of text."""

    start: int
    end: int
    size: int


def parquet_pieces(path: str, column: str) -> list[Piece]:
    """The row groups of a file. Raises DataError where the column is missing or holds no text."""
    with _parquet(path) as file:
        _check(path, file.schema_arrow, column)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        return [Piece(i, i + 1, group.total_byte_size) for i, group in enumerate(groups)]  # of all columns


def read_parquet(path: str, start: int, end: int, column: str) -> Iterator[Record]:
    """The texts of row groups `start` to before `end`."""
    with _parquet(path) as file:
        _check(path, file.schema_arrow, column)
        row = sum(file.metadata.row_group(i).num_rows for i in range(start))
        for batch in file.iter_batches(_ROWS, row_groups=range(start, end), columns=[column], use_threads=False):
            yield from _records(batch.column(0), f"{path}, row", row)
            row += batch.num_rows


def arrow_pieces(path: str, column: str) -> list[Piece]:
    """The record batches of a file, by number or by place. Raises DataError where the column holds no text."""
    import pyarrow

    with open_regular(path) as regular, _naming(path):
        if regular.read(len(_ARROW_FILE)) == _ARROW_FILE:
            with pyarrow.ipc.open_file(regular) as file:
                _check(path, file.schema, column)
                count = file.num_record_batches
                size = regular.seek(0, 2) // max(1, count)
            return [Piece(i, i + 1, size) for i in range(count)]
    with _naming(path), pyarrow.memory_map(path) as mapped:  # of which only the heads of the batches are touched
        stream = pyarrow.ipc.open_stream(mapped)
        _check(path, stream.schema, column)
        if any(pyarrow.types.is_dictionary(field.type) for field in stream.schema):
            raise DataError(f"{path}: a stream with dictionary-encoded columns; save it as Parquet")
        borders = [0, *(mapped.tell() for _ in stream)]
    return [Piece(start, end, end - start) for start, end in pairwise(borders)]


def read_arrow(path: str, start: int, end: int, column: str) -> Iterator[Record]:
    """The texts of the record batches from `start` to before `end`, as `arrow_pieces` cut the file."""
    import pyarrow

    with open_regular(path) as regular, _naming(path), pyarrow.memory_map(path) as mapped:
        # Mapped, for a batch may be the whole file: what is read of it is the system's to hold or drop.
        if regular.read(len(_ARROW_FILE)) == _ARROW_FILE:
            for number, batch in enumerate(_file_batches(mapped, start, end), start):
                yield from _records(batch.column(column), f"{path}, batch {number}, row", 0)
            return
        schema = pyarrow.ipc.open_stream(mapped).schema
        _check(path, schema, column)
        mapped.seek(start or mapped.tell())
        while (at := mapped.tell()) < end:
            batch = pyarrow.ipc.read_record_batch(pyarrow.ipc.read_message(mapped), schema)
            yield from _records(batch.column(column), f"{path}, batch at byte {at}, row", 0)


def _file_batches(mapped: pyarrow.MemoryMappedFile, start: int, end: int) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow

    with pyarrow.ipc.open_file(mapped) as file:
        yield from map(file.get_batch, range(start, end))


@contextmanager
def _parquet(path: str) -> Iterator[ParquetFile]:
    from pyarrow.parquet import ParquetFile

    with open_regular(path) as regular, _naming(path):
        yield ParquetFile(regular, buffer_size=_BUFFER_BYTES, pre_buffer=False)  # a buffer at a time, not a row group


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """What Arrow finds wrong with a file, as DataError that names it."""
    import pyarrow

    try:
        yield
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, EOFError, ValueError, LookupError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: damaged, changed, or not what its name says ({reason}); write it anew") from error


def _check(path: str, schema: pyarrow.Schema, column: str) -> None:
    """Raise DataError unless `column` is there, once, and holds text."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise missing_column(path, column, schema.names)
    kind = schema.field(column).type
    value = kind.value_type if types.is_dictionary(kind) else kind
    is_text = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(is_kind(value) for is_kind in is_text):
        raise DataError(f"{path}: column {column!r} holds {kind}, not text; choose another by --text_column")


def _records(texts: pyarrow.Array, before: str, first_row: int) -> Iterator[Record]:
    """Texts as bytes, which need not be UTF-8 whatever the type says."""
    for start in range(0, len(texts), _ROWS):
        for row, raw in enumerate(_as_bytes(texts.slice(start, _ROWS)), first_row + start + 1):
            yield Record(raw, partial("{} {}".format, before, row))


def _as_bytes(texts: pyarrow.Array) -> list[bytes | None]:
    import pyarrow
    from pyarrow import types

    if types.is_null(texts.type):
        return [None] * len(texts)
    if types.is_dictionary(texts.type):
        texts.validate(full=True)
        texts = texts.dictionary_decode()
    if types.is_string_view(texts.type):
        texts = texts.view(pyarrow.binary_view())
    else:
        texts = texts.view(pyarrow.binary() if types.is_string(texts.type) else pyarrow.large_binary())
    texts.validate(full=True)  # Arrow trusts the places in a file; those of a damaged one lie outside of memory
    return texts.to_pylist()
