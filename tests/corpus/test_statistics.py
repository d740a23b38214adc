"""The corpus statistics as lines for the console."""

import gzip
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from electra_albert.corpus.sources import MAX_LINE_BYTES, Reading, find_files, plan_units, read_unit
from electra_albert.corpus.statistics import format_statistics
from tests.corpus.reading import write

SIDE = {"documents": 1, "sentences": 2, "tokens": 50}


def statistics(read: Counter[str]) -> dict[str, Any]:
    written = Counter(documents=2, sentences=4, tokens=100, unknown_tokens=3, documents_without_a_token=1)
    written.update(characters=400, unknown_characters=200)
    sides = {"train": SIDE, "validation": SIDE}
    return {"read": read, "written": written, "kept": 1, "sides": sides, "held_out": "by document"} | {
        "process_seconds": 2.0
    }


def messy_folder(folder: Path) -> Path:
    """A folder in which nearly everything that can be counted is there."""
    good = "A good line of text, once more.\n" * 200
    write(folder, good.encode() + b"\xff\xef\xbb\xbfbad.\nNUL\0byte.\n" + b"x" * (MAX_LINE_BYTES + 9), "a.txt")
    write(folder, '{"text": "One. Two."}\n{"text": null}\n', "b.jsonl")
    write(folder, b'text\nOne.\n"caf\xe9"\n', "c.csv")
    write(folder, gzip.compress(b"One. Two.\n", mtime=0), "d.txt.gz")
    write(folder, "", "f.txt")
    write(folder, "GIF", "g.gif")
    write(folder, "hidden", ".hidden")
    (folder / "h.txt").symlink_to(folder / "a.txt")
    os.mkfifo(folder / "pipe")
    return folder


def test_shares_are_rounded_down_and_unknown_tokens_counted_by_characters_too() -> None:
    plain = statistics(Counter(files=1, bytes=100, documents=2, sentences=4))
    shown = {kept: format_statistics(plain | {"kept": kept}, padding_share=0.1) for kept in (1, 0.99999, 0.5)}
    assert "(100% of the text kept)" in shown[1]
    assert "(99.99% of the text kept)" in shown[0.99999]
    assert "(50% of the text kept)" in shown[0.5]
    # Regression: "100% of the text kept" and 8% unknown tokens, which were half of the text.
    assert "3 (3.000%), standing for 50.000% of the characters" in shown[1]


@pytest.mark.parametrize("bad_utf8", ["replace", "skip"])
def test_every_count_of_reading_is_shown(tmp_path: Path, bad_utf8: Any) -> None:
    # Catches a count of what was skipped or changed that no line shows.
    counts: Counter[str] = Counter()
    for unit in plan_units(find_files(str(messy_folder(tmp_path)), counts), Reading(bad_utf8=bad_utf8)):
        assert list(read_unit(unit, counts))
    shown = [line.split(maxsplit=1) for line in format_statistics(statistics(counts), padding_share=0.1).splitlines()]
    assert ["skipped", "1 repeated files skipped"] in shown
    assert ["noted", "1 documents without text"] in shown
    bad = ["noted", "2 invalid bytes"] if bad_utf8 == "replace" else ["skipped", "1 skipped lines"]
    assert bad in shown
    assert sum(what == "skipped" for what, _ in shown) == sum(
        count > 0 for name, count in counts.items() if "skip" in name
    )


def test_an_unknown_count_is_shown_a_zero_is_not_and_lines_are_aligned() -> None:
    counts = statistics(Counter(bytes=1, sentences=4, odd_things=7, other_things=0, files_of_csv=1))
    counts["written"]["marks_removed"] = 17
    shown = format_statistics(counts, padding_share=0.1)
    assert "7 odd things" in shown
    assert "other things" not in shown
    assert "17 marks removed" in shown
    width = len("unknown tokens")
    lines = shown.splitlines()
    assert all(line[:2] == "  " and line[2 + width : 4 + width] == "  " and line[4 + width] != " " for line in lines)
