"""Any bytes under any name are read, or refused in one line; hostile text in linear time."""

import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import UserError
from electra_albert.data_files.finding import find_files
from electra_albert.data_files.streams import MAX_LINE_BYTES, compression
from tests.corpus.reading import COMPRESS, read, solid, write

_NAMES = "a a.txt a.jsonl a.csv a.tsv a.parquet a.arrow a.txt.gz a.jsonl.xz a.csv.zst"
# Parts of text, records and beginnings of compressed files, with escapes, between spaces.
_PARTS = rb"""
One.\x20Two. \n \r\n \r \n\n \0 \xff \xe9 \xef\xbb\xbf \xed\xa0\x80 \xf4\x90\x80\x80
\xe2\x80\xa8 \x0b\x0c\x1c\x1d \xc2\x85 \x1b[31m \xff\xfe [MASK]
{"text":" "} {"text":null} {"text":"One."} [[[ 1e999 text,id " , \t text
PAR1 ARROW1\0\0 \xff\xff\xff\xff\x10\0\0\0 \x1f\x8b\x08 \xfd7zXZ\0 BZh91AY&SY \x28\xb5\x2f\xfd
"""
PARTS = [part.decode("unicode_escape").encode("latin-1") for part in _PARTS.split()]
PACKED = [pack(b"One.") for pack in COMPRESS.values()]


@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(st.sampled_from(PARTS + PACKED), max_size=12).map(b"".join),
    ),
    st.sampled_from(["", "Words and words.\n" * 20, "Words and words.\n\n" * 20]),
    st.sampled_from(_NAMES.split()),
    st.sampled_from(["replace", "skip", "error"]),
    st.integers(1, 60),
)
@settings(max_examples=250, deadline=None)
def test_any_bytes_give_documents_or_a_one_line_error_and_all_bytes_are_kept_or_counted(
    tmp_path_factory: pytest.TempPathFactory,
    raw: bytes,
    before: str,
    name: str,
    bad_utf8: str,
    unit_bytes: int,
) -> None:
    raw = before.encode() + raw
    path = write(tmp_path_factory.mktemp("fuzz"), raw, name)
    problem = ""
    try:
        files = find_files(str(path), Counter())
        documents, counts = read(*files, unit_bytes=unit_bytes, bad_utf8=bad_utf8)
    except UserError as error:
        problem = str(error)
    assert "\n" not in problem
    if problem:
        return
    texts = [sentence for document in documents for sentence in document.sentences]
    "".join(texts).encode()  # raises UnicodeEncodeError for a lone surrogate
    assert all(text and text == text.strip() and "\n" not in text for text in texts)
    assert counts["sentences"] == len(texts)
    assert counts["documents"] == len(documents)
    if name not in ("a", "a.txt") or compression(raw[:16]):
        return
    assert counts["bytes"] == len(raw)
    if not counts["skipped_lines"]:
        # The reference is Python's own decoder, with one replacement per byte.
        escaped = raw.decode("utf-8", "surrogateescape")
        replaced = "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in escaped)
        assert solid("".join(texts)) == solid(replaced.replace("\0", " ").replace("\ufeff", ""))
        assert counts["invalid_bytes"] == sum("\udc80" <= c <= "\udcff" for c in escaped)
        assert counts["nul_bytes"] == raw.count(0)
        assert counts["byte_order_marks"] == escaped.count("\ufeff")


HOSTILE = {
    "one line of 10 MB without a space": lambda: "x" * 10_000_000,
    "a million lines of one character": lambda: "x\n" * 1_000_000,
    "emoji, right to left, Hangul in parts": lambda: (
        "👩‍👩‍👧 \u202eabc\u202c \u1112\u1161\u11ab ㌀ ﷺ ﬁ ß ı\n" * 5_000
    ),
    "texts of special tokens": lambda: "[MASK] [SEP] [CLS] <pad> <unk> ▁ ``''\u2028Two.\n" * 5_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_completely_in_linear_time(tmp_path: Path, name: str) -> None:
    text = HOSTILE[name]()
    path = write(tmp_path, text)
    started = time.process_time()
    assert find_files(str(path), Counter()) == [path]
    documents, counts = read(path)
    assert time.process_time() - started < 20, "seconds if the time is linear, minutes if not"
    texts = [sentence for document in documents for sentence in document.sentences]
    assert solid("".join(texts)) == solid(text)
    assert all(len(sentence.encode()) <= MAX_LINE_BYTES for sentence in texts)
    assert counts["bytes"] == path.stat().st_size
    assert counts["invalid_bytes"] == 0
