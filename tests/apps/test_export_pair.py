"""Writing a pair: its files, their sums, the card, what rounding changes, and what is refused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from electra_albert.hub.pair_file import PAIR_FILE
from tests.apps.conftest import Finished
from tests.apps.shipped_pair import PARTS, WRITTEN, export_pair, files_in
from tests.apps.tiny_run import sha256


def test_a_pair_is_one_file_of_weights_with_all_that_belongs_to_it(shipped: Path) -> None:
    assert files_in(shipped) == WRITTEN


def test_sums_are_those_of_all_other_files(shipped: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=shipped, check=True, capture_output=True)
    names = [line.split("  ")[1] for line in (shipped / "SHA256SUMS").read_text().splitlines()]
    assert names == sorted(WRITTEN - {"SHA256SUMS"})


def test_the_same_run_gives_the_same_bytes_and_so_does_a_pair(
    finished: Finished, shipped: Path, tmp_path: Path
) -> None:
    again, copied = tmp_path / "again" / shipped.name, tmp_path / "copied"
    assert export_pair(finished.folder, again).code == 0
    assert export_pair(shipped, copied).code == 0
    assert {name: sha256(again / name) for name in WRITTEN} == {name: sha256(shipped / name) for name in WRITTEN}
    of_weights = [PAIR_FILE, *(f"{part}/config.json" for part in PARTS)]
    assert [sha256(copied / name) for name in of_weights] == [sha256(shipped / name) for name in of_weights]


def test_bytes_of_the_weights_are_told(finished: Finished, tmp_path: Path) -> None:
    ended = export_pair(finished.folder, tmp_path / "out")
    assert f"out: {(tmp_path / 'out' / PAIR_FILE).stat().st_size:,} bytes of weights\n" in ended.out


def test_what_rounding_changes_is_told_and_small(finished: Finished, tmp_path: Path) -> None:
    ended = export_pair(finished.folder, tmp_path / "out")
    assert "rounding to half precision moves, on the fixed rows, masked-token logits by" in ended.out
    found = [float(number) for number in re.findall(r"[0-9.]+e-[0-9]+", ended.out)]
    assert len(found) == 2
    assert all(0 < number < 0.01 for number in found)


def test_a_card_of_somebody_else_stays_and_is_summed(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"# My model\r\n\xff\n")
    ended = export_pair(finished.folder, tmp_path)
    assert (ended.code, (tmp_path / "README.md").read_bytes()) == (0, b"# My model\r\n\xff\n")
    assert "it stays" in ended.err
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)
