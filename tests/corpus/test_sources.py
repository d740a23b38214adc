"""Plain text to documents: lines, borders, units, groups."""

import gzip
import os
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.sources import plan_units, read_unit
from electra_albert.data_files.finding import SAMPLE_BYTES
from tests.corpus.reading import PROSE, cut, read, sentences, write


def test_a_blank_line_ends_a_document(tmp_path: Path) -> None:
    text = "\n\nOne a.\nOne b.\n \t \n\nTwo a.\nTwo b."
    assert sentences(write(tmp_path, text)) == [["One a.", "One b."], ["Two a.", "Two b."]]
    assert sentences(write(tmp_path, "\n".join(PROSE))) == [PROSE]


def test_paragraphs_are_split_and_the_decision_is_counted(tmp_path: Path) -> None:
    documents, counts = read(write(tmp_path, " ".join(PROSE) + "\n\n" + " ".join(PROSE[::-1]) + "\n"))
    assert [d.sentences for d in documents] == [PROSE, PROSE[::-1]]
    assert counts["files_of_paragraphs"] == 1
    assert counts["paragraphs_split"] == counts["documents"] == 2
    assert counts["sentences"] == 6


def test_given_sentences_are_left_alone(tmp_path: Path) -> None:
    lines = ["Mr. Fox ran. He hid.", *["A plain line of words."] * 9]
    documents, counts = read(write(tmp_path, "\n".join(lines)))
    assert documents[0].sentences == lines
    assert counts["files_of_sentences"] == 1


def test_the_kind_is_found_from_a_bounded_sample(tmp_path: Path) -> None:
    head = "A line with one sentence only.\n" * (3 * SAMPLE_BYTES // 31)
    assert cut(write(tmp_path, head + " ".join(PROSE) + "\n"), 8 << 20)[0].kind == "sentences"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("unit_bytes", [1, 7, 8 << 20])
def test_line_ends_of_all_systems_mean_the_same(tmp_path: Path, end: str, unit_bytes: int) -> None:
    # Catches a "\r\n" torn in two, which reads as a blank line and doubles the documents.
    path = write(tmp_path, end.join(["One a.", "One b.", "", "Two a.", "Two b.", "", "", "Three."]))
    assert sentences(path, unit_bytes=unit_bytes) == [["One a.", "One b."], ["Two a.", "Two b."], ["Three."]]


def test_other_separators_are_white_space_inside_a_line(tmp_path: Path) -> None:
    for space in "\x0b\x0c\x1c\x1e\x85\u2028\u2029\u3000\t\xa0":
        assert sentences(write(tmp_path, f"One{space}line.\nNext.\n")) == [["One line.", "Next."]]


@pytest.mark.parametrize("block_border", [-2, -1, 0, 1])
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_a_line_end_on_a_block_border_is_one_line_end(tmp_path: Path, block_border: int, end: str) -> None:
    # Catches a reader, and a planner of units, that take the two halves of "\r\n" for two line ends.
    first = "a" * ((1 << 18) + block_border)
    path = write(tmp_path, f"{first}{end}b{end}{end}c")
    assert sentences(path, unit_bytes=1) == sentences(path) == [[first, "b"], ["c"]]


# Units.


@given(
    st.lists(st.sampled_from(["a.", "Bb cc.", "", " ", "é\u2028ü.", "\ufeffx"]), max_size=40),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 60),
)
@settings(max_examples=200, deadline=None)
def test_units_cover_the_file_and_change_no_document(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, unit_bytes: int
) -> None:
    # Catches units that overlap, leave a gap, or cut a document in two.
    path = write(tmp_path_factory.mktemp("units"), end.join([*lines, "last."]))
    units = cut(path, unit_bytes)
    assert [unit.start for unit in units] == [0, *(unit.end for unit in units[:-1])]
    assert units[-1].end == path.stat().st_size
    assert read(path, unit_bytes=unit_bytes)[0] == read(path)[0]


def test_a_border_behind_many_blocks_of_white_space_is_found(tmp_path: Path) -> None:
    text = b"One.\n" + b" " * 600_000 + b"\nTwo.\n\nThree."
    path = write(tmp_path, text)
    assert [unit.end for unit in cut(path, 3)] == [text.index(b"Two"), text.index(b"Three"), len(text)]


def test_a_long_document_comes_in_parts_of_one_group_with_flat_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    with path.open("w") as file:
        file.writelines(f"This is line number {i} of a text without any blank line.\n" for i in range(350_000))
    size = path.stat().st_size
    counts: Counter[str] = Counter()
    tracemalloc.start()
    parts = [
        (len(document.sentences), document.continues, document.group)
        for unit in plan_units([path])
        for document in read_unit(unit, counts)
    ]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [continues for _, continues, _ in parts] == [True] * (len(parts) - 1) + [False]
    assert len({group for _, _, group in parts}) == 1
    assert sum(number for number, _, _ in parts) == counts["sentences"] == 350_000
    assert counts["documents"] == 1
    assert peak < 1.5 * size, "held whole it takes twice its size"


# Files that change.


def test_a_file_that_shrinks_or_goes_while_it_is_read_is_an_error_and_one_that_grows_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, "Words of text.\n" * 100)
    units = plan_units([path])
    write(tmp_path, "Words of text.\n" * 101)
    assert sum(len(document.sentences) for document in read_unit(units[0], Counter())) == 100
    write(tmp_path, "Words of text.\n")
    with pytest.raises(DataError, match="shorter"):
        list(read_unit(units[0], Counter()))
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_unit(units[0], Counter()))


def test_a_file_replaced_by_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    for name, content in (("a.txt", b"Words of text.\n"), ("b.gz", gzip.compress(b"Words of text.\n", mtime=0))):
        path = write(tmp_path, content, name)
        units = plan_units([path])
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(UsageError, match="not a regular file"):
            list(read_unit(units[0], Counter()))


# Groups.


def words(start: int, count: int) -> str:
    return " ".join(f"word{(i * 7919) % 1000003}" for i in range(start, start + count))


def test_a_group_depends_on_the_document_alone(tmp_path: Path) -> None:
    # Catches keys that depend on the documents read beside it.
    texts = [words(0, 3), words(40, 1), words(100, 60), words(300, 4), words(900, 5)]
    together = read(write(tmp_path, "\n\n".join(texts)))[0]
    alone = [read(write(tmp_path, text))[0][0] for text in texts]
    assert [d.group for d in together] == [d.group for d in alone]
    assert len({d.group for d in together}) == len(texts)
    assert all(0 <= d.group.key < 1 << 63 for d in together)


def test_near_duplicates_mostly_share_a_group_and_others_never_do(tmp_path: Path) -> None:
    originals = [words(1000 * i + i * i, 80) for i in range(60)]
    copies = [f"{text.upper()} and one more" for text in originals]
    groups = [d.group.key for d in read(write(tmp_path, "\n\n".join(originals + copies)))[0]]
    shared = sum(a == b for a, b in zip(groups[:60], groups[60:], strict=True))
    assert shared > 45, "the copies have 76 of 79 runs of five words in common"
    assert len(set(groups[:60])) == 60
