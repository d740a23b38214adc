"""Files of records and compressed files: the same documents as from plain text, and every bad record named."""

import bz2
import csv
import gzip
import io
import json
import lzma
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_albert.contracts import DataError
from electra_albert.corpus.sources import find_files, plan_units, read_unit
from tests.corpus.reading import PROSE, cut, read, sentences, write, write_table

ROOT = Path(__file__).parents[2]
PACKS = ROOT.parent / "shared" / "data" / "corpus"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: pyarrow.compress(raw, "zstd", asbytes=True),
}
TEXTS = [
    " ".join(PROSE),
    "A paragraph. It has two sentences.\nAnother one, é 日本 and \"quotes\", 'commas', tabs.\tYes. No.",
    "It goes on\r\nwith\rall line ends.\n\nAnd a blank line, which does not end a record.",
    *(f"Document {i} is here. It is short." for i in range(40)),
]


def as_csv(texts: list[str], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([("id", "text"), *enumerate(texts)])
    return file.getvalue().encode()


def write_records(folder: Path, name: str, texts: list[str]) -> Path:
    """The texts in the format that the name says, compressed as it says."""
    path = folder / name
    if path.suffix in (".parquet", ".arrow"):
        return write_table(path, list(texts))
    ending = path.suffix if path.suffix in COMPRESS else ""
    form = path.name.removesuffix(ending).rpartition(".")[2]
    if form == "jsonl":
        raw = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()
    elif form == "txt":
        raw = "\n\n".join("\n".join(filter(None, text.splitlines())) for text in texts).encode()
    else:
        raw = as_csv(texts, "\t" if form == "tsv" else ",")
    return write(folder, COMPRESS[ending](raw), name)


NAMES = [f"a.{form}{ending}" for form in ("txt", "jsonl", "csv", "tsv") for ending in COMPRESS]
NAMES += ["a.parquet", "a.arrow", "file.arrow"]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_documents_of_plain_text(tmp_path: Path, name: str) -> None:
    # Catches a format whose texts are cleaned, split or grouped in a way of its own, or whose units cut a document.
    expected = read(write_records(tmp_path, "plain.txt", TEXTS))[0]
    path = write_records(tmp_path, name, TEXTS)
    assert find_files(str(path), Counter()) == [path]
    for unit_bytes in (1, 150, 8 << 20):
        documents, counts = read(path, unit_bytes=unit_bytes)
        assert documents == expected
        assert counts["files"] == 1
        assert counts["documents"] == len(TEXTS)


@given(
    st.lists(st.text(st.sampled_from("ab .é日\",\t\n\r'\\\ufeff\u2028")), min_size=1, max_size=12), st.integers(1, 90)
)
@settings(max_examples=60, deadline=None)
def test_any_texts_are_the_same_in_all_formats_and_units(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], unit_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("records")
    names = ("a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow", "file.arrow", "a.jsonl.gz")
    found = [read(write_records(folder, name, texts), unit_bytes=unit_bytes) for name in names]
    assert all(documents == found[0][0] for documents, _ in found)
    assert all(counts["byte_order_marks"] == found[0][1]["byte_order_marks"] for _, counts in found)
    assert all(counts["documents"] + counts["documents_without_text"] == len(texts) for _, counts in found)


def test_bytes_are_those_of_the_lines_or_of_the_texts(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv", "a.csv.xz", "a.jsonl.zst", "a.txt.bz2"):
        plain = write_records(tmp_path, name.rpartition(".")[0] if name.count(".") > 1 else name, TEXTS)
        assert read(write_records(tmp_path, name, TEXTS))[1]["bytes"] == plain.stat().st_size
    for name in ("a.parquet", "a.arrow"):
        size = sum(len(text.encode()) for text in TEXTS)
        assert read(write_records(tmp_path, name, TEXTS), unit_bytes=99)[1]["bytes"] == size


# Units.


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow", "file.arrow"])
def test_a_big_file_of_records_is_cut_into_units(tmp_path: Path, name: str) -> None:
    spans = cut(write_records(tmp_path, name, TEXTS), 300)
    assert len(spans) > 4
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]


def test_many_small_files_share_a_unit_and_their_order_and_content_alone_decide(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
        for i in range(300):
            write_records(folder, f"{i:03d}.{('txt', 'jsonl', 'csv.gz', 'parquet')[i % 4]}", [f"Text {i}. Yes."])
    one, other = ([unit.spans for unit in plan_units(find_files(str(folder), Counter()))] for folder in folders)
    assert len(one) == 1
    assert [[span[1:] for span in spans] for spans in one] == [[span[1:] for span in spans] for spans in other]
    files = find_files(str(folders[0]), Counter())
    assert sentences(*files, unit_bytes=900) == sentences(*files) == [[f"Text {i}.", "Yes."] for i in range(300)]
    assert len(plan_units(files, unit_bytes=900)) > 10


# Compressed files.


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_members_behind_one_another_are_one_text(tmp_path: Path, ending: str) -> None:
    members = [COMPRESS[ending](f"Line {i} of it.\n".encode() * 4000) for i in range(3)]
    path = write(tmp_path, b"".join(members), f"a.txt{ending}")
    assert [len(document) for document in sentences(path)] == [12_000]


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("fault", ["cut", "second cut", "junk behind", "overwritten"])
def test_compressed_data_that_is_damaged_is_an_error_that_names_the_file(
    tmp_path: Path, ending: str, fault: str
) -> None:
    # Catches files that end early without a word, as the standard library's do at what is no second member.
    noise = np.random.default_rng(0).integers(97, 123, 200_000, dtype=np.uint8).tobytes()
    whole = COMPRESS[ending](noise)
    middle = len(whole) // 2
    broken = {
        "cut": whole[:-20],
        "second cut": whole + whole[:middle],
        "junk behind": whole + b"not compressed",
        "overwritten": whole[:middle] + bytes(2000) + whole[middle + 2000 :],
    }[fault]
    path = write(tmp_path, broken, f"a.txt{ending}")
    with pytest.raises(DataError, match=r"a\.txt.*damaged or incomplete") as refusal:
        read(path)
    assert "\n" not in str(refusal.value)


def test_zstd_that_begins_with_a_frame_to_be_skipped_is_read(tmp_path: Path) -> None:
    frame = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"  # as pzstd writes it
    member = frame + COMPRESS[".zst"]("\n".join(PROSE).encode() + b"\n")
    path = write(tmp_path, member + member, "a.txt.zst")
    assert find_files(str(path), Counter()) == [path]
    assert sentences(path) == [PROSE * 2]


def test_a_compressed_file_is_known_by_its_content_whatever_its_name(tmp_path: Path) -> None:
    assert sentences(write(tmp_path, gzip.compress("\n".join(PROSE).encode(), mtime=0), "a.txt")) == [PROSE]
    assert sentences(write(tmp_path, gzip.compress("\n".join(PROSE).encode(), mtime=0), "a.txt.XZ")) == [PROSE]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.zst"])
def test_memory_does_not_grow_with_what_a_compressed_file_holds(tmp_path: Path, name: str) -> None:
    program = (
        "import re, sys\n"
        "from collections import Counter\n"
        "from pathlib import Path\n"
        "from electra_albert.corpus.sources import plan_units, read_unit\n"
        "counts = Counter()\n"
        "for unit in plan_units([Path(sys.argv[1])]):\n    for document in read_unit(unit, counts):\n        pass\n"
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]\n"
        "print(counts['documents'], peak)\n"
    )
    text = "This is one line of the text, and it goes on like this, until it ends."
    peaks = []  # kilobytes
    for documents in (70_000, 700_000):
        path = write_records(tmp_path, name, [text] * documents)
        command = [sys.executable, "-c", program, str(path)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found, peak = map(int, ended.stdout.split())
        assert found == documents
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 5_000, "of 45 MB more"


@pytest.mark.skipif(not PACKS.is_dir(), reason="the packs are not on this machine")
@pytest.mark.parametrize("name", ["wikitext2_test.txt.xz", "books-gutenberg-00.txt.zst"])
def test_real_packs_are_read(name: str) -> None:
    documents = read_unit(plan_units(find_files(str(PACKS / name), Counter()))[0], Counter())
    assert all(next(documents).sentences for _ in range(100))


# Columns, nulls and what is no text.


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow", "file.arrow"])
def test_a_column_that_is_missing_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    path = write_records(tmp_path, name, TEXTS)
    with pytest.raises(DataError, match=r"'content' is not there.*'id', 'text'.*--text_column"):
        read(path, text_column="content")


def test_another_column_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, '{"body": "One. Two.", "text": 7}\n', "a.jsonl")
    assert sentences(path, text_column="body") == [["One.", "Two."]]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "file.arrow", "a.jsonl"])
def test_null_and_empty_texts_are_counted(tmp_path: Path, name: str) -> None:
    texts = ["One.", None, "", " \n\u3000", "Two."]
    if name == "a.jsonl":
        path = write(tmp_path, "".join(json.dumps({"text": text}) + "\n\n" for text in texts), name)
    else:
        path = write_table(tmp_path / name, texts)
    documents, counts = read(path)
    assert [document.sentences for document in documents] == [["One."], ["Two."]]
    assert counts["documents_without_text"] == 3


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('{"text": 7}', "'text' holds a number, not text"),
        ('{"text": ["One."]}', "'text' holds an array"),
        ('["One."]', "an array, not an object"),
        ('{"text": "One.', "not JSON"),
        ('{"text": "a\tb"}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("1" * 10_000, "not JSON"),
        ('{"source": "a", "sentences": ["One."]}', "'text' is not there"),
    ],
)
@pytest.mark.parametrize("unit_bytes", [1, 8 << 20])
def test_a_record_that_cannot_be_used_is_refused_with_its_line(
    tmp_path: Path, line: str, hint: str, unit_bytes: int
) -> None:
    path = write(tmp_path, '{"text": "One."}\n\r\n{"text": "Two."}\r\n' + line + '\n{"text": "Three."}\n', "a.jsonl")
    with pytest.raises(DataError, match=rf"a\.jsonl, line 4.*{hint}") as refusal:
        read(path, unit_bytes=unit_bytes)
    assert "\n" not in str(refusal.value)


def test_a_line_far_behind_the_first_block_is_named_by_its_number(tmp_path: Path) -> None:
    # Catches numbers that begin anew with each run of lines.
    lines = [json.dumps({"text": " ".join(PROSE)})] * 9_000
    lines[8_000] = '{"text": 7}'
    with pytest.raises(DataError, match=r"a\.jsonl, line 8001: "):
        read(write(tmp_path, "\n".join(lines), "a.jsonl"))
    with pytest.raises(DataError, match=r"a\.jsonl, line 8001: "):
        read(write(tmp_path, "\n".join(lines), "a.jsonl"), unit_bytes=300_000)


def test_an_object_that_holds_its_text_twice_is_refused(tmp_path: Path) -> None:
    # Regression: the last value won and the other was lost without a word.
    with pytest.raises(DataError, match="line 2: key 'text' stands twice"):
        read(write(tmp_path, '{"text": "One."}\n{"text": "One.", "text": "Two."}\n', "a.jsonl"))


def test_a_key_that_is_not_read_may_stand_twice(tmp_path: Path) -> None:
    lines = '{"text": "One.", "about": {"a": 1, "a": 2}}\n{"text": "Two.", "id": 1, "id": 2}\n'
    assert sentences(write(tmp_path, lines, "a.jsonl")) == [["One."], ["Two."]]


@pytest.mark.parametrize(
    ("record", "column", "expected"),
    [
        ({"source": "a", "sentences": ["One.", "Two."]}, "text", ["One.", "Two."]),
        ({"source": "a", "sentences": ["One."], "text": "Three. Four."}, "text", ["Three.", "Four."]),
        ({"source": "a", "sentences": 2, "text": "Three. Four."}, "text", ["Three.", "Four."]),
        ({"source": "Three. Four.", "sentences": ["One."]}, "source", ["Three.", "Four."]),
    ],
)
def test_our_own_form_is_known_by_its_keys_alone_and_a_named_column_wins(
    tmp_path: Path, record: dict[str, object], column: str, expected: list[str]
) -> None:
    # Regression: the text of a user's table with these two columns among others was not read.
    assert sentences(write(tmp_path, json.dumps(record) + "\n", "a.jsonl"), text_column=column) == [expected]


def test_a_record_of_our_own_that_is_damaged_is_refused(tmp_path: Path) -> None:
    more = '{"source": "a", "sentences": ["One."], "text": "Two."}'
    for bad in ("not json", '{"source": "a"}', '{"source": "a", "sentences": "One."}', '{"sentences": ["One."]}', more):
        path = write(tmp_path, '{"source": "a", "sentences": ["One."]}\n' + bad + "\n", "b.jsonl")
        with pytest.raises(DataError, match="line 2"):
            read(path)


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ("text,id\nOne.,1\nTwo, three.,2\n", "line 3: 3 fields where the header has 2"),
        ('text\nOne.\n"Two.\nThree.\n', "line 4: not a row of a table"),
        ('text\nOne.\n"Two" and more.\n', "line 3: not a row of a table"),
        ("text,text\nOne.,Two.\n", "'text' is twice"),
        ("\n", "'text' is not there"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path, raw: str, hint: str) -> None:
    with pytest.raises(DataError, match=hint):
        read(write(tmp_path, raw, "a.csv"))


def test_fields_of_megabytes_with_line_ends_are_read(tmp_path: Path) -> None:
    text = "One line of a long field.\n" * 150_000
    path = write(tmp_path, as_csv([text]), "a.csv")
    assert sentences(path) == [["One line of a long field."] * 100_000, ["One line of a long field."] * 50_000]


@pytest.mark.parametrize(("delimiter", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_a_csv_with_another_separator_gives_the_same_documents(tmp_path: Path, delimiter: str, name: str) -> None:
    # Regression: Excel's semicolons were refused as a table with the one column 'id;text'.
    documents, counts = read(write(tmp_path, as_csv(TEXTS, delimiter), "a.csv"))
    assert [d.sentences for d in documents] == sentences(write(tmp_path, as_csv(TEXTS), "b.csv"))
    assert counts[f"CSV files separated by {name}"] == 1
    with pytest.raises(DataError, match="it holds 'id', 'text'"):
        read(tmp_path / "a.csv", text_column="body")


@pytest.mark.parametrize("header", ["text", "text,id"])
def test_text_that_holds_other_separators_is_not_cut_at_them(tmp_path: Path, header: str) -> None:
    rows = ["One; two | three; four.", "One;\ttwo; three."] * 9
    raw = f"{header}\n" + "".join(f"{row}{',1' * (',' in header)}\n" for row in rows)
    assert [" ".join(document) for document in sentences(write(tmp_path, raw, "a.csv"))] == [
        " ".join(row.split()) for row in rows
    ]


def test_a_byte_order_mark_hides_no_column(tmp_path: Path) -> None:
    for name, raw in (("a.csv", "\ufefftext\nOne.\n"), ("a.jsonl", '\ufeff{"text": "One."}\n')):
        documents, counts = read(write(tmp_path, raw, name))
        assert [document.sentences for document in documents] == [["One."]]
        assert counts["byte_order_marks"] == 1
