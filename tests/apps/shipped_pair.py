"""The pair of the tiny run: how it is written, and what lies in its folder."""

from __future__ import annotations

from pathlib import Path

from electra_albert.apps.export import main as export
from electra_albert.hub.pair_file import PAIR_FILE
from tests.apps.tiny_run import Ended, call

PARTS = ("generator", "discriminator")
WRITTEN = {
    "README.md",
    "SHA256SUMS",
    PAIR_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    *(f"{part}/config.json" for part in PARTS),
}


def export_pair(source: Path, folder: Path, *more: object) -> Ended:
    return call(export.main, "--model", source, "--kind", "pair", "--output_dir", folder, *more)


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
