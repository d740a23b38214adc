"""The commit and the processor that numbers are recorded with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from electra_albert.apps.made_with import commit, first_line, processor
from electra_albert.apps.run_folder import environment
from tests.apps.tiny_run import ROOT

PRINTED = "from electra_albert.apps.made_with import commit; print(commit())"


def test_the_environment_of_a_run_names_code_and_processor() -> None:
    recorded = environment()
    assert (recorded["commit"], recorded["processor"]) == (commit(), processor())
    assert recorded["processor"]


def test_no_commit_is_told_of_code_outside_its_checkout(tmp_path: Path) -> None:
    # In another project's checkout, as a package in a virtual environment lies.
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert commit_of_a_copy(tmp_path / "packages") == "None"


def test_a_commit_is_told_whole_and_marked_where_files_differ(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        settings = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", tmp_path, *settings, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    commit_of_a_copy(tmp_path)
    (tmp_path / "notes").write_text("one")
    git("add", "notes")
    git("commit", "--quiet", "--message", "one")
    head = git("rev-parse", "HEAD")
    assert printed_in(tmp_path) == head
    (tmp_path / "notes").write_text("two")
    assert printed_in(tmp_path) == f"{head}-dirty"


def commit_of_a_copy(root: Path) -> str:
    """What a copy of the few files that are needed, in a folder of their own, tells."""
    for name in ("electra_albert/__init__.py", "electra_albert/apps/__init__.py", "electra_albert/apps/made_with.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return printed_in(root)


def printed_in(root: Path) -> str:
    done = subprocess.run([sys.executable, "-c", PRINTED], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize("command", [("no-such-program",), (sys.executable, "-c", "raise SystemExit(1)")])
def test_a_program_that_is_missing_or_fails_is_no_error(command: tuple[str, ...]) -> None:
    assert first_line(*command) is None
