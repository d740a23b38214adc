"""Any bytes under any name: documents or one line of what is wrong; no crash, no hang, nothing lost without a count."""

import bz2
import gzip
import lzma
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import UserError
from electra_albert.corpus.sources import MAX_LINE_BYTES, Document, find_files
from electra_albert.corpus.tokenizer import load_tokenizer, special_ids
from electra_albert.corpus.word_encoder import TextEncoder, encoder_settings
from electra_albert.data_files.streams import compression
from tests.corpus.reading import PROSE, read, write
from tests.corpus.tokenizer_kinds import KINDS

NAMES = [*("a", "a.txt", "a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow"), *("a.txt.gz", "a.jsonl.xz", "a.csv.zst")]
TEXT = [
    *(
        b"One. Two.",
        b"\n",
        b"\r\n",
        b"\r",
        b"\n\n",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
    ),
    *(b"\xe2\x80\xa8", b"\x0b\x0c\x1c\x1d\x1e\x1f", b"\xc2\x85", b"\xe2\x80\x8b", b"\x1b[31m", b"\xff\xfe", b"[MASK]"),
]
RECORDS = [
    *(b'{"text": "', b'"}', b'{"text": null}', b'{"text": "One."}', b"[[[", b"1e999", b"text,id", b'"', b",", b"\t"),
    *(b"text", b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff\x10\0\0\0"),
]
MEMBERS = [
    *(b"\x1f\x8b\x08", b"\xfd7zXZ\0", b"BZh91AY&SY", b"\x28\xb5\x2f\xfd"),
    *(gzip.compress(b"One.", mtime=0), bz2.compress(b"One."), lzma.compress(b"One.")),
]
PIECES = TEXT + RECORDS + MEMBERS


def solid(text: str) -> str:
    return "".join(text.split())


def outcome(path: Path, unit_bytes: int, bad_utf8: str) -> tuple[list[Document], Counter[str]] | str:
    """What is read, or the message of what is wrong."""
    try:
        return read(*find_files(str(path), Counter()), unit_bytes=unit_bytes, bad_utf8=bad_utf8)
    except UserError as error:
        return str(error)


@given(
    st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)),
    st.sampled_from(["", "Words and words.\n" * 20, "Words and words.\n\n" * 20]),
    st.sampled_from(NAMES),
    st.sampled_from(["replace", "skip", "error"]),
    st.integers(1, 60),
)
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_documents_or_an_error_of_one_line(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, before: str, name: str, bad_utf8: str, unit_bytes: int
) -> None:
    raw = before.encode() + raw
    found = outcome(write(tmp_path_factory.mktemp("fuzz"), raw, name), unit_bytes, bad_utf8)
    if isinstance(found, str):
        assert "\n" not in found
        return
    documents, counts = found
    texts = [sentence for document in documents for sentence in document.sentences]
    "".join(texts).encode()  # raises where a lone surrogate is left
    assert all(text and text == text.strip() and "\n" not in text for text in texts)
    assert counts["sentences"] == len(texts)
    assert counts["documents"] == len(documents)
    assert counts["files"] == 1 or not texts
    if name not in ("a", "a.txt") or compression(raw[:16]):
        return
    assert counts["bytes"] == len(raw)
    if not counts["skipped_lines"]:
        kept = raw.decode("utf-8", "surrogateescape").replace("\0", " ").replace("\ufeff", "")
        assert solid("".join(texts)) == solid("".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in kept))


HOSTILE: dict[str, Callable[[], str]] = {
    "one line of 10 MB with spaces": lambda: "word " * 2_000_000,
    "one line of 10 MB without a space": lambda: "x" * 10_000_000,
    "a million lines of one character": lambda: "x\n" * 1_000_000,
    "a million paragraphs of one character": lambda: "x\n\n" * 300_000,
    "the same sentence again and again": lambda: f"{PROSE[0]}\n" * 200_000,
    "100,000 marks on one letter": lambda: "a" + "\u0301" * 100_000,
    "stops": lambda: ". " * 500_000,
    "line separators": lambda: "One.\u2028Two.\x85Three.\x0b" * 50_000,
    "emoji, right to left, Hangul in parts": lambda: "👩‍👩‍👧 \u202eabc\u202c \u1112\u1161\u11ab ㌀ ﷺ ﬁ ß ı\n" * 5_000,
    "texts of special tokens": lambda: "[MASK] [SEP] [CLS] <pad> <unk> ▁ ``''\n" * 5_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_whole_and_in_time(tmp_path: Path, name: str) -> None:
    text = HOSTILE[name]()
    path = write(tmp_path, text)
    started = time.process_time()
    assert find_files(str(path), Counter()) == [path]
    documents, counts = read(path)
    assert time.process_time() - started < 20, "a second or two where time is linear, minutes where it is not"
    texts = [sentence for document in documents for sentence in document.sentences]
    assert solid("".join(texts)) == solid(text)
    assert all(len(sentence.encode()) <= MAX_LINE_BYTES for sentence in texts)
    assert counts["bytes"] == path.stat().st_size
    assert not counts["invalid_bytes"]


@pytest.mark.parametrize("kind", ["albert uncased", "bert uncased", "roberta"])
def test_hostile_text_is_tokenised_in_time_and_never_special(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    encoder = TextEncoder(encoder_settings(tokenizer))
    special = {*special_ids(tokenizer)} - {encoder.unknown_id}
    for name, make in HOSTILE.items():
        lines = make()[:100_000].splitlines()
        started, unknown_before = time.process_time(), encoder.unknown_characters
        ids, lengths = encoder.encode(lines)
        assert time.process_time() - started < 20, name
        assert lengths.sum() == len(ids)
        assert not special & set(np.unique(ids).tolist()), name
        assert encoder.unknown_characters - unknown_before <= sum(map(len, lines)), name
