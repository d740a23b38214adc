"""Bytes to text: what is not UTF-8, NUL, byte order marks, long lines; every byte accounted for."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import DataError, UserError
from electra_albert.corpus.sources import MAX_LINE_BYTES
from tests.corpus.reading import read, sentences, write

GOOD = "A good line of text, once more."
BAD = "Caf\udce9 \udced\udca0\udc80 open.".encode("utf-8", "surrogateescape")  # Latin-1, and a lone surrogate


def solid(text: str) -> str:
    return "".join(text.split())


@given(st.one_of(st.binary(max_size=60), st.lists(st.sampled_from([b"A b.", b"\xe9", b"\0", b"\xef\xbb\xbf", b"\n"]))))
@settings(max_examples=200, deadline=None)
def test_all_bytes_are_in_the_text_or_counted(tmp_path_factory: pytest.TempPathFactory, raw: bytes | list) -> None:
    # The reference is Python's own decoder, one replacement a byte.
    raw = b"".join(raw) if isinstance(raw, list) else raw
    path = write(tmp_path_factory.mktemp("bytes"), b"Begin. " + raw)
    documents, counts = read(path)
    escaped = (b"Begin. " + raw).decode("utf-8", "surrogateescape")
    replaced = "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in escaped)
    kept = replaced.replace("\0", " ").replace("\ufeff", "")
    assert solid("".join(s for d in documents for s in d.sentences)) == solid(kept)
    assert counts["bytes"] == path.stat().st_size
    assert counts["invalid_bytes"] == sum("\udc80" <= c <= "\udcff" for c in escaped)
    assert counts["nul_bytes"] == raw.count(0)
    assert counts["byte_order_marks"] == escaped.count("\ufeff")


@pytest.mark.parametrize("unit_bytes", [1, 8 << 20])
def test_a_line_that_is_not_utf8_can_be_left_out_alone(tmp_path: Path, unit_bytes: int) -> None:
    # Catches a skipped line that reads as a blank one and ends its document.
    path = write(tmp_path, b"One a.\n" + BAD + b"\nOne b.\n\nTwo.\r\n" + BAD)
    documents, counts = read(path, unit_bytes=unit_bytes, bad_utf8="skip")
    assert [d.sentences for d in documents] == [["One a.", "One b."], ["Two."]]
    assert (counts["skipped_lines"], counts["skipped_bytes"], counts["invalid_bytes"]) == (2, 2 * len(BAD), 0)


def test_a_run_of_which_every_line_is_left_out_ends_no_document(tmp_path: Path) -> None:
    # The long line is cut, and its first part is a run of its own.
    found = sentences(write(tmp_path, b"One.\n\xff" + b"x" * MAX_LINE_BYTES + b"\nstill one."), bad_utf8="skip")
    assert (found[0][0], found[0][-1]) == ("One.", "still one.")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("unit_bytes", [10_000, 8 << 20])
def test_the_first_bad_byte_can_be_an_error_that_names_its_line(tmp_path: Path, end: str, unit_bytes: int) -> None:
    path = write(tmp_path, end.join(["a", "", "b", "c"] * 4000).encode() + end.encode() + BAD)
    with pytest.raises(DataError, match=r"corpus\.txt, line 16001: byte 0xe9 .*--bad_utf8"):
        read(path, unit_bytes=unit_bytes, bad_utf8="error")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_record_that_is_not_utf8_is_mended_left_out_or_refused(tmp_path: Path, name: str) -> None:
    rows = [GOOD.encode(), BAD, b"The end."]
    lines = rows if name == "a.csv" else [b'{"text": "' + row + b'"}' for row in rows]
    head = b"text\n" if name == "a.csv" else b""
    path = write(tmp_path, head + b"\n".join(b'"' + line + b'"' if head else line for line in lines), name)
    documents, counts = read(path)
    assert documents[1].sentences == ["Caf\ufffd \ufffd\ufffd\ufffd open."]
    assert counts["invalid_bytes"] == 4
    documents, counts = read(path, bad_utf8="skip")
    assert [d.sentences for d in documents] == [[GOOD], ["The end."]]
    assert (counts["skipped_documents"], counts["skipped_bytes"]) == (1, len(BAD))
    with pytest.raises(DataError, match=f"line {3 if head else 2}: byte 0xe9"):
        read(path, bad_utf8="error")


@pytest.mark.parametrize(
    ("encoding", "word", "name"),
    [("cp1252", "“Größe” für 5 €", "a.csv"), ("gb18030", "这是一个句子", "a.txt.gz"), ("cp932", "表示", "a.jsonl")],
)
def test_text_in_another_encoding_is_read_as_the_same_text_in_utf8(
    tmp_path: Path, encoding: str, word: str, name: str
) -> None:
    # Characters of several bytes cross the borders of blocks; cp932 has bytes that are backslashes in ASCII.
    texts = [f"{'x' * (number % 7)} {word}, {number}." for number in range(20_000)]
    row = {"a.csv": '"{}"', "a.jsonl": '{{"text": "{}"}}'}.get(name, "{}")
    whole = "text\n" * (name == "a.csv") + "\r\n".join(map(row.format, texts))
    pack = gzip.compress if name.endswith(".gz") else bytes
    expected = sentences(write(tmp_path, pack(whole.encode()), name), unit_bytes=100_000)
    path = write(tmp_path, pack(whole.encode(encoding)), name)
    documents, counts = read(path, unit_bytes=100_000, encoding=encoding)
    assert [d.sentences for d in documents] == expected
    assert (counts["bytes"], counts["invalid_bytes"]) == (len(whole.encode(encoding)), 0)


def test_bytes_that_an_encoding_lacks_are_replaced_and_counted(tmp_path: Path) -> None:
    documents, counts = read(write(tmp_path, b"Caf\xe9 \x81\x8d is open.\n"), encoding="cp1252")
    assert documents[0].sentences == ["Café \ufffd\ufffd is open."]
    assert counts["invalid_bytes"] == 2


def test_lone_surrogates_of_json_are_invalid_and_pairs_are_characters(tmp_path: Path) -> None:
    path = write(tmp_path, r'{"text": "a \ud800 b \udc80 \ud83d\ude00."}', "a.jsonl")
    documents, counts = read(path)
    assert documents[0].sentences == ["a \ufffd b \ufffd 😀."]
    assert counts["invalid_bytes"] == 2
    with pytest.raises(DataError, match="line 1"):
        read(path, bad_utf8="error")


@pytest.mark.parametrize(("unit", "name"), [("word ", "a.txt"), ("é", "a.jsonl"), ("日", "a.txt"), ("x", "a.jsonl")])
def test_a_line_that_is_too_long_is_cut_without_loss(tmp_path: Path, unit: str, name: str) -> None:
    long = unit * (2_600_000 // len(unit.encode()))
    text = f"short\n{long}\nend"
    documents, counts = read(write(tmp_path, json.dumps({"text": text}) if name == "a.jsonl" else text, name))
    found = documents[0].sentences
    assert (found[0], found[-1]) == ("short", "end")
    assert solid("".join(found[1:-1])) == solid(long)
    assert all(len(line.encode()) <= MAX_LINE_BYTES for line in found)
    assert (counts["long_lines_cut"], counts["invalid_bytes"]) == (2, 0)


def test_a_record_of_too_many_megabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "array.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "one"}\n')
        file.truncate(70 << 20)  # one line of NUL bytes
    with pytest.raises(UserError, match="line 2: more than 64 MB"):
        read(path)
