"""Text files to documents: borders, units, bad bytes, groups, identity."""

import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.sources import (
    MAX_LINE_BYTES,
    Document,
    find_files,
    identity,
    plan_units,
    read_unit,
    same_content,
)
from electra_albert.corpus.text_files import SAMPLE_BYTES

PROSE = ["The cat sat on the mat near the door.", "It was warm there.", "Nobody came to see it that day."]


def write(folder: Path, content: str | bytes, name: str = "corpus.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(*files: Path, unit_bytes: int = 8 << 20) -> tuple[list[Document], Counter[str]]:
    counts: Counter[str] = Counter()
    documents = [d for unit in plan_units(list(files), unit_bytes) for d in read_unit(unit, counts)]
    return documents, counts


def sentences(*files: Path, unit_bytes: int = 8 << 20) -> list[list[str]]:
    return [document.sentences for document in read(*files, unit_bytes=unit_bytes)[0]]


# What a line and a document are.


def test_a_blank_line_ends_a_document(tmp_path: Path) -> None:
    assert sentences(write(tmp_path, "\n\nOne a.\nOne b.\n \t \n\nTwo a.\nTwo b.")) == [
        ["One a.", "One b."],
        ["Two a.", "Two b."],
    ]


def test_a_file_without_blank_lines_is_one_document(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("unit_bytes", [1, 7, 64, 8 << 20])
def test_line_ends_of_all_systems_mean_the_same(tmp_path: Path, end: str, unit_bytes: int) -> None:
    # Catches a "\r\n" torn in two, which reads as a blank line and doubles the documents.
    path = write(tmp_path, end.join(["One a.", "One b.", "", "Two a.", "Two b.", "", "", "Three."]))
    expected = [["One a.", "One b."], ["Two a.", "Two b."], ["Three."]]
    assert sentences(path, unit_bytes=unit_bytes) == expected


@pytest.mark.parametrize("space", ["\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\u3000", "\t", "\xa0"])
def test_other_separators_are_white_space_inside_a_line(tmp_path: Path, space: str) -> None:
    assert sentences(write(tmp_path, f"One{space}line.\nNext.\n")) == [["One line.", "Next."]]


@pytest.mark.parametrize("block_border", range(-2, 3))
@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("unit_bytes", [1, 8 << 20])
def test_a_line_end_on_a_block_border_is_one_line_end(
    tmp_path: Path, block_border: int, end: str, unit_bytes: int
) -> None:
    # Catches a reader, and a planner of units, that take the two halves of "\r\n" for two line ends.
    first = "a" * ((1 << 18) + block_border)
    path = write(tmp_path, f"{first}{end}b{end}{end}c")
    assert sentences(path, unit_bytes=unit_bytes) == [[first, "b"], ["c"]]


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
    units = plan_units([path], unit_bytes)
    assert [unit.start for unit in units] == [0, *(unit.end for unit in units[:-1])]
    assert units[-1].end == path.stat().st_size
    assert read(path, unit_bytes=unit_bytes)[0] == read(path)[0]


def test_units_depend_on_the_file_only_and_start_at_documents(tmp_path: Path) -> None:
    text = "".join(f"Line {i} of the text.\n" + "\n" * (i % 5 == 0) for i in range(500))
    path = write(tmp_path, text)
    units = plan_units([path], 1000)
    raw = path.read_bytes()
    assert len(units) > 5
    assert all(raw[: unit.start].endswith(b"\n\n") for unit in units[1:])


def test_a_border_behind_many_blocks_of_white_space_is_found(tmp_path: Path) -> None:
    text = b"One.\n" + b" " * 600_000 + b"\nTwo.\n\nThree."
    path = write(tmp_path, text)
    assert [unit.end for unit in plan_units([path], 3)] == [text.index(b"Two"), text.index(b"Three"), len(text)]


def test_documents_of_our_own_are_read_back_with_one_group_a_source(tmp_path: Path) -> None:
    lines = [
        '{"source": "a.py", "sentences": ["One.", "Two\\nlines."]}',
        '{"source": "b.py", "sentences": ["Three."]}',
        '{"source": "a.py", "sentences": ["Four."]}',
        '{"source": "a.py", "sentences": []}',
    ]
    path = write(tmp_path, "\n".join(lines) + "\n", "docs.jsonl")
    for unit_bytes in (1, 50, 1 << 20):
        documents, counts = read(path, unit_bytes=unit_bytes)
        assert [d.sentences for d in documents] == [["One.", "Two lines."], ["Three."], ["Four."]]
        assert documents[0].group == documents[2].group != documents[1].group
        assert counts["documents_without_sentences"] == 1


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


# Bad bytes.


def test_invalid_bytes_are_replaced_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, b"A good line of text, once more.\n" * 20 + b"Caf\xe9 \xed\xa0\x80 open \xe2\x82")
    documents, counts = read(path)
    assert documents[0].sentences[-1] == "Caf\ufffd \ufffd\ufffd\ufffd open \ufffd\ufffd"
    assert counts["invalid_bytes"] == 6


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path: Path) -> None:
    documents, counts = read(write(tmp_path, "\ufeffOne.\n\ufeffTwo.\n"))
    assert documents[0].sentences == ["One.", "\ufeffTwo."]
    assert counts["byte_order_marks"] == 1


@pytest.mark.parametrize("unit", ["word ", "é", "日"])
def test_a_line_that_is_too_long_is_cut_without_loss(tmp_path: Path, unit: str) -> None:
    long = unit * (2_600_000 // len(unit.encode()))
    documents, counts = read(write(tmp_path, f"short\n{long}\nend"))
    found = documents[0].sentences
    assert found[0] == "short"
    assert found[-1] == "end"
    assert "".join("".join(found[1:-1]).split()) == "".join(long.split())
    assert all(len(line.encode()) <= MAX_LINE_BYTES for line in found)
    assert counts["long_lines_cut"] == 2
    assert counts["invalid_bytes"] == 0


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "no text"),
        (b"\n \n\n", "no text"),
        (b"\xef\xbb\xbf", "no text"),
        (("Plain words.\n" * 20).encode("utf-16"), "iconv"),
        (("Plain words.\n" * 20).encode("utf-16-le"), "iconv"),
        (("Plain words.\n" * 20).encode("utf-16-be"), "iconv"),
        (("Plain words.\n" * 20).encode("utf-32"), "iconv"),
        (("Обычные слова.\n" * 20).encode("cp1251"), "iconv"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR and so on", "NUL"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "decompress"),
        (b"\xfd7zXZ\0\0", "decompress"),
    ],
)
def test_a_file_that_is_not_utf8_text_is_refused_with_a_way_out(tmp_path: Path, content: bytes, hint: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=hint) as refusal:
        find_files(str(path))
    assert "\n" not in str(refusal.value)


def test_a_record_that_is_no_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="source"):
        plan_units([write(tmp_path, '{"text": "hello"}\n', "a.jsonl")])
    path = write(tmp_path, '{"source": "a", "sentences": ["One."]}\nnot json\n', "b.jsonl")
    with pytest.raises(DataError, match="not a document"):
        read(path)


# Which files.


def test_a_folder_gives_its_text_files_in_order_and_skips_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("b.txt", "a.md", ".hidden", "photo.png", "table.csv", "plain"):
        write(tmp_path, "Words of text.\n", name)
    for folder in ("sub", ".git"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "Words of text.\n", "c.txt")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    names = [str(path.relative_to(tmp_path)) for path in find_files(str(tmp_path))]
    assert names == ["a.md", "b.txt", "plain", "sub/c.txt"]
    assert "2 entries skipped" in caplog.text


def test_a_glob_and_odd_names_are_found_once(tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt", "--flag.txt", "new\nline.txt", "e\u0301[1].txt"):
        write(tmp_path, "Words of text.\n", name)
    (tmp_path / "again.txt").symlink_to(tmp_path / "one.txt")
    assert len(find_files(str(tmp_path / "*.txt"))) == 5
    assert [path.name for path in find_files(str(tmp_path / "e\u0301[1].txt"))] == ["e\u0301[1].txt"]


def test_an_empty_file_among_others_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "", "a.txt")
    write(tmp_path, "Words of text.\n", "b.txt")
    assert [path.name for path in find_files(str(tmp_path))] == ["b.txt"]
    assert "1 files without text skipped" in caplog.text


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "missing.txt", tmp_path / "pipe", Path("/dev/zero"), tmp_path / "*.none"):
        with pytest.raises(UsageError):
            find_files(str(name))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no text file"):
        find_files(str(tmp_path / "empty"))
    with pytest.raises(DataError, match="table"):
        find_files(str(write(tmp_path, "a,b\n1,2\n", "table.csv")))


def test_an_unreadable_file_is_refused(open_folder: Path) -> None:
    path = write(open_folder, "Words of text.\n")
    path.chmod(0)
    # In a process that is nobody's where we are root, who may read everything.
    program = (
        "import os, sys\n"
        "from electra_albert.contracts import UsageError\n"
        "from electra_albert.corpus.sources import find_files\n"
        "os.geteuid() or os.setuid(65534)\n"
        "try:\n    find_files(sys.argv[1])\nexcept UsageError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "cannot be read" in ended.stdout


def test_a_file_that_shrinks_or_goes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "Words of text.\n" * 100)
    units = plan_units([path])
    write(tmp_path, "Words of text.\n")
    with pytest.raises(DataError, match="shorter"):
        list(read_unit(units[0], Counter()))
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_unit(units[0], Counter()))


# Groups and identity.


def words(start: int, count: int) -> str:
    return " ".join(f"word{(i * 7919) % 1000003}" for i in range(start, start + count))


def test_a_group_depends_on_the_document_alone(tmp_path: Path) -> None:
    # Catches keys that depend on the documents read beside it.
    texts = [words(0, 3), words(40, 1), words(100, 60), words(300, 4), words(900, 5)]
    together = read(write(tmp_path, "\n\n".join(texts)))[0]
    alone = [read(write(tmp_path, text))[0][0] for text in texts]
    assert [d.group for d in together] == [d.group for d in alone]
    assert len({d.group for d in together}) == len(texts)
    assert all(0 <= d.group < 1 << 63 for d in together)


def test_near_duplicates_mostly_share_a_group_and_others_never_do(tmp_path: Path) -> None:
    originals = [words(1000 * i + i * i, 80) for i in range(60)]
    copies = [f"{text.upper()} and one more" for text in originals]
    groups = [d.group for d in read(write(tmp_path, "\n\n".join(originals + copies)))[0]]
    shared = sum(a == b for a, b in zip(groups[:60], groups[60:], strict=True))
    assert shared > 45, "the copies have 76 of 79 runs of five words in common"
    assert len(set(groups[:60])) == 60


def test_the_same_content_is_known_and_any_other_is_not(tmp_path: Path) -> None:
    a, b = write(tmp_path, "One.\n", "a.txt"), write(tmp_path, "Two.\n", "b.txt")
    recorded = identity([a, b])
    assert same_content([a, b], recorded)
    os.utime(a, ns=(1, 1))
    assert same_content([a, b], recorded), "a touched file still holds the same"
    assert not same_content([b, a], recorded)
    assert not same_content([a], recorded)
    status = b.stat()
    write(tmp_path, "Too.\n", "b.txt")
    os.utime(b, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not same_content([a, b], recorded), "the same size and time, but another content"


def test_the_kind_is_found_from_a_bounded_sample(tmp_path: Path) -> None:
    head = "A line with one sentence only.\n" * (3 * SAMPLE_BYTES // 31)
    path = write(tmp_path, head + " ".join(PROSE) + "\n")
    assert plan_units([path])[0].kind == "sentences"
