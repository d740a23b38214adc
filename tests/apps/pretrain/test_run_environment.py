"""The commit and the processor that numbers are recorded with."""

from __future__ import annotations

import subprocess
from pathlib import Path

from electra_albert.apps.machine import processor
from electra_albert.apps.run_folder import commit, environment
from tests.apps.tiny_run import ROOT


def test_the_environment_of_a_run_names_code_and_processor() -> None:
    recorded = environment()
    assert (recorded["commit"], recorded["processor"]) == (commit(ROOT), processor())
    assert recorded["processor"]


def test_a_commit_is_whole_marked_where_files_differ_and_none_outside_its_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        settings = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", tmp_path, *settings, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "notes").write_text("one")
    git("add", "notes")
    git("commit", "--quiet", "--message", "one")
    head = git("rev-parse", "HEAD")
    assert commit(tmp_path) == head
    (tmp_path / "notes").write_text("two")
    assert commit(tmp_path) == f"{head}-dirty"
    (tmp_path / "packages").mkdir()  # where another project's virtual environment has this package
    assert commit(tmp_path / "packages") is None
