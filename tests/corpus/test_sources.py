"""Text to documents: lines, borders, units, signatures; every byte is kept or counted."""

import gzip
import os
import textwrap
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.corpus.documents import split_sentences
from electra_albert.corpus.sources import plan_units, read_unit
from electra_albert.data_files.finding import SAMPLE_BYTES
from electra_albert.data_files.streams import MAX_LINE_BYTES
from tests.corpus.reading import PROSE, cut, read, sentences, write
from tests.refusals import assert_refused

BAD = b"Caf\xe9 \xed\xa0\x80 open."  # Latin-1, and a lone surrogate


def test_a_blank_line_ends_a_document(tmp_path: Path) -> None:
    text = "\n\nOne a.\nOne b.\n \t \n\nTwo a.\nTwo b."
    assert sentences(write(tmp_path, text)) == [["One a.", "One b."], ["Two a.", "Two b."]]
    for space in "\x0b\x1c\x85\u2028\u3000\t\xa0":
        assert sentences(write(tmp_path, f"One{space}line.\nNext.\n")) == [["One line.", "Next."]]


def test_paragraphs_are_split_and_given_sentences_are_kept(tmp_path: Path) -> None:
    text = "\n\n".join([" ".join(PROSE), " ".join(PROSE[::-1])])
    documents, counts = read(write(tmp_path, text))
    assert [d.sentences for d in documents] == [PROSE, PROSE[::-1]]
    assert counts["files_of_paragraphs"] == 1
    assert counts["paragraphs_split"] == 2
    lines = ["Mr. Fox ran. He hid.", *["A plain line of words."] * 9]
    documents, counts = read(write(tmp_path, "\n".join(lines)))
    assert documents[0].sentences == lines
    assert counts["files_of_sentences"] == 1
    # The kind is detected from a sample.
    head = "A line with one sentence only.\n" * (3 * SAMPLE_BYTES // 31)
    assert cut(write(tmp_path, head + " ".join(PROSE) + "\n"), 8 << 20)[0].kind == "sentences"


LINES = [" ".join(PROSE[number % 3 :] + PROSE) for number in range(80)]  # several sentences each


def test_lines_of_several_sentences_without_blank_lines_are_documents(tmp_path: Path) -> None:
    path = write(tmp_path, "\r\n".join([*LINES, ""]))
    documents, counts = read(path, unit_bytes=1000)
    assert [" ".join(document.sentences) for document in documents] == LINES
    assert counts["files_of_documents"] == 1
    book = " ".join(PROSE * 200) + "\r\n"  # the sample holds less than 64 lines
    for text, documents_of, expected in (
        ("\r\n".join(LINES), "blank", 1),
        ("\r\n\r\n".join(LINES), "auto", 80),
        ("\n".join(LINES[:20]), "auto", 1),
        ("\n".join(LINES[:20]), "line", 20),
        (book * 100, "auto", 100),
        (book * 60, "auto", 1),
    ):
        assert len(sentences(write(tmp_path, text), documents=documents_of)) == expected


def test_a_line_longer_than_the_sample_is_split_into_its_sentences(tmp_path: Path) -> None:
    # Regression: the kind was detected from complete lines only, so that the line was one sentence.
    for head in ([], ["A title"]):
        text = "\n".join([*head, " ".join(PROSE * 4000)]).encode()
        for content in (text, gzip.compress(text)):
            assert sentences(write(tmp_path, content)) == [head + PROSE * 4000]


def test_a_long_file_without_a_blank_line_is_noted(tmp_path: Path) -> None:
    wrapped = textwrap.fill(" ".join(PROSE * 40), 72).split("\n")
    for lines, expected in (
        (PROSE * 40, [True]),
        (PROSE * 3, []),
        ([*PROSE * 40, "", *PROSE], []),
        (wrapped, [False]),
        ([*wrapped, "", "End."], []),
    ):
        path = write(tmp_path, "\n".join(lines) + "\n")
        for unit_bytes in (2000, 8 << 20):
            counts = +read(path, unit_bytes=unit_bytes)[1]
            notes = [name for name in counts if "without a blank line" in name]
            assert ["--documents" in note for note in notes] == expected


@pytest.mark.parametrize("width", [50, 100])
def test_hard_wrapped_prose_has_the_sentences_of_its_paragraphs(tmp_path: Path, width: int) -> None:
    # Regression: each line end ended a sentence.
    path = write(tmp_path, "\n\n".join(textwrap.fill(line, width) for line in LINES))
    assert sentences(path) == [split_sentences(line) for line in LINES]
    overlong = [textwrap.fill(" ".join(LINES), width), *[f"see {'x' * 300} and\nmore of it"] * 2]
    assert read(write(tmp_path, "\n".join(overlong)))[1]["files_of_wrapped"] == 1
    # One paragraph, over the limit.
    whole = " ".join(LINES * 20)
    (parts,) = sentences(write(tmp_path, textwrap.fill(whole, width)))
    assert " ".join(parts) == whole


NOT_WRAPPED = {
    "log": [f"12:{n % 60:02}:00 worker {n % 7} took {n * 7919 % 9973} ms" for n in range(200)],
    "without stops": ["the cat sat on the mat", "it was warm there", "nobody came"] * 60,
    "equal": [f"one sentence of about the same length as {n}." for n in range(100, 200)],
    "verse": [("and the wind went " * 9)[: 30 + n * 7919 % 70].rstrip() for n in range(200)],
    "dna": ["acgt" * 15] * 200,
    "few": textwrap.wrap(" ".join(LINES), 72)[:15],
}


@pytest.mark.parametrize("kind", NOT_WRAPPED)
def test_lines_that_are_not_wrapped_are_not_joined(tmp_path: Path, kind: str) -> None:
    assert not read(write(tmp_path, "\n".join(NOT_WRAPPED[kind])))[1]["files_of_wrapped"]


def test_a_line_end_on_a_block_border_is_one_line_end(tmp_path: Path) -> None:
    # Catches a reader or planner of units that counts "\r\n" as two line ends.
    for block_border in (-2, -1, 0, 1):
        first = "a" * ((1 << 18) + block_border)
        path = write(tmp_path, f"{first}\r\nb\r\n\r\nc")
        assert sentences(path, unit_bytes=1) == sentences(path) == [[first, "b"], ["c"]]


@given(
    st.lists(st.sampled_from(["a.", "Bb cc.", "", " ", "é\u2028ü.", "\ufeffx"]), max_size=40),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 60),
)
@settings(max_examples=100, deadline=None)
def test_units_cover_the_file_and_documents_do_not_depend_on_units_or_line_ends(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, unit_bytes: int
) -> None:
    # Catches units that overlap, leave a gap, or cut a document or "\r\n".
    path = write(tmp_path_factory.mktemp("units"), end.join([*lines, "last."]))
    units = cut(path, unit_bytes)
    assert [unit.start for unit in units] == [0, *(unit.end for unit in units[:-1])]
    assert units[-1].end == path.stat().st_size
    actual = read(path, unit_bytes=unit_bytes)[0]
    assert actual == read(write(path.parent, "\n".join([*lines, "last."])))[0]


def test_a_long_document_is_read_in_parts_of_one_signature_with_bounded_memory(
    tmp_path: Path,
) -> None:
    lines = (f"This is line number {i} of a text without a blank line.\n" for i in range(350_000))
    path = write(tmp_path, "".join(lines))
    tracemalloc.start()
    counts = Counter()
    documents = (document for unit in plan_units([path]) for document in read_unit(unit, counts))
    parts = [part._replace(sentences=[]) for part in documents]  # which would be held in memory
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [part.continues for part in parts] == [True] * (len(parts) - 1) + [False]
    assert len({part.signature for part in parts}) == 1
    assert counts["sentences"] == 350_000
    assert counts["documents"] == 1
    assert peak < 1.5 * path.stat().st_size, "twice its size if held completely"


def test_a_file_that_shrinks_is_deleted_or_becomes_a_pipe_is_an_error_but_may_grow(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "Words of text.\n" * 100)
    units = plan_units([path])
    write(tmp_path, "Words of text.\n" * 101)
    assert sum(len(document.sentences) for document in read_unit(units[0], Counter())) == 100
    write(tmp_path, "Words of text.\n")
    assert_refused("DataError", "shorter", list, read_unit(units[0], Counter()))
    path.unlink()
    assert_refused("UsageError", str(path), list, read_unit(units[0], Counter()))
    packed = plan_units([write(tmp_path, gzip.compress(b"Words of text.\n"), "b.gz")])
    (tmp_path / "b.gz").unlink()
    for file, (unit, *_) in ((path, units), (tmp_path / "b.gz", packed)):
        os.mkfifo(file)
        assert_refused("UsageError", str(file), list, read_unit(unit, Counter()))


def test_a_signature_depends_only_on_the_document(tmp_path: Path) -> None:
    # Catches keys that depend on other documents of the batch.
    texts = ["one two three", "four", "five six seven eight", "nine ten eleven", " ".join(PROSE)]
    together = read(write(tmp_path, "\n\n".join(texts)))[0]
    assert together == [read(write(tmp_path, text))[0][0] for text in texts]
    assert len({document.signature for document in together}) == len(texts)


# Bytes that are not UTF-8, and other encodings.


def test_skipping_a_line_that_is_not_utf8_does_not_end_its_document(tmp_path: Path) -> None:
    # Catches a skipped line that is read as a blank one.
    path = write(tmp_path, b"One a.\n" + BAD + b"\nOne b.\n\nTwo.\r\n" + BAD)
    for unit_bytes in (1, 8 << 20):
        documents, counts = read(path, unit_bytes=unit_bytes, bad_utf8="skip")
        assert [d.sentences for d in documents] == [["One a.", "One b."], ["Two."]]
        assert counts["skipped_lines"] == 2
        assert counts["skipped_bytes"] == 2 * len(BAD)
        assert not counts["invalid_bytes"]
    # The long line is cut, and its first part is a separate block whose only line is skipped.
    path = write(tmp_path, b"One.\n\xff" + b"x" * MAX_LINE_BYTES + b"\nstill one.")
    ((first, *_, last),) = sentences(path, bad_utf8="skip")
    assert first == "One."
    assert last == "still one."


def test_the_first_bad_byte_can_be_an_error_that_names_its_line(tmp_path: Path) -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        long = b"x " * MAX_LINE_BYTES  # cut where it is read
        path = write(tmp_path, end.join([long, *[b"a", b"", b"b", b"c"] * 4000, BAD, b"d", b""]))
        for unit_bytes in (10_000, 8 << 20):
            how = {"unit_bytes": unit_bytes, "bad_utf8": "error"}
            assert_refused(
                "DataError", "line 16002: byte 0xe9 cannot be decoded", read, path, **how
            )


def test_text_in_another_encoding_is_read_like_the_same_text_in_utf8(tmp_path: Path) -> None:
    # Multi-byte characters cross block borders; cp932 has bytes that are backslashes in ASCII.
    whole = "\r\n".join(f'{{"text": "{"x" * (n % 7)} 表示, {n}."}}' for n in range(12_000))
    expected = read(write(tmp_path, whole, "a.jsonl"), unit_bytes=100_000)[0]
    raw = whole.encode("cp932")
    path = write(tmp_path, gzip.compress(raw), "b.jsonl.gz")
    documents, counts = read(path, unit_bytes=100_000, encoding="cp932")
    assert documents == expected
    assert counts["bytes"] == len(raw)
    assert counts["invalid_bytes"] == 0


def test_undecodable_bytes_and_lone_surrogates_of_json_are_replaced_and_counted(
    tmp_path: Path,
) -> None:
    documents, counts = read(write(tmp_path, b"Caf\xe9 \x81\x8d is open.\n"), encoding="cp1252")
    assert documents[0].sentences == ["Café \ufffd\ufffd is open."]
    assert counts["invalid_bytes"] == 2
    path = write(tmp_path, r'{"text": "a \ud800 b \udc80 \ud83d\ude00."}', "a.jsonl")
    documents, counts = read(path)
    assert documents[0].sentences == ["a \ufffd b \ufffd 😀."]
    assert counts["invalid_bytes"] == 2
    message = r"line 1: '\ud800' is not a character"
    assert_refused("DataError", message, read, path, bad_utf8="error")


def test_a_record_over_the_size_limit_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, '{"text": "one"}\n', "array.jsonl")
    os.truncate(path, 70 << 20)  # one line of NUL bytes
    assert_refused("DataError", "array.jsonl, line 2", read, path)
