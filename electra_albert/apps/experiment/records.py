"""How a stage of an experiment went, on file: by which command, how it ended, what that took."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from electra_albert.apps.run_folder import write_whole
from electra_albert.contracts import STOPPED_BY_SIGNAL, UsageError

RECORDS = "stages"  # the folder of an arm's records and logs
PRETRAINING = "pretraining-"  # and the seed: the name of the stages that make weights


class Record(NamedTuple):
    """What is noted of one stage, before it begins and once it has ended."""

    command: list[str]
    exit_code: int | None  # None: begun, and not ended yet
    error: str = ""  # the last line it said, where it failed
    seconds: float = 0.0  # of all attempts by this command
    threads: int | None = None  # of each process; None in records made before they were noted, as are jobs
    jobs: int | None = None  # commands that ran at once

    @property
    def is_done(self) -> bool:
        """Whether the stage has ended well."""
        return self.exit_code == 0

    def tell(self) -> str:
        """How it ended, in words."""
        if self.exit_code is None:
            return "was begun and has not ended"
        if self.exit_code == STOPPED_BY_SIGNAL:
            return "was stopped and can go on"
        return f"ended with exit code {self.exit_code}" + (f": {self.error}" if self.error else "")


class Need(NamedTuple):
    """A stage without which another cannot begin."""

    told: str  # its name
    record: Path

    @property
    def is_met(self) -> bool:
        """Whether that stage has ended well."""
        found = read_record(self.record)
        return found is not None and found.is_done


class Stage(NamedTuple):
    """One command, and where it is noted how it went."""

    arm: str
    name: str
    command: list[str]  # without the interpreter
    folder: Path  # of the arm
    output: Path  # what the command makes
    needs: Need | None = None

    @property
    def record(self) -> Path:
        """The file of its record."""
        return record_file(self.folder, self.name)

    @property
    def log(self) -> Path:
        """Everything it said, of all attempts."""
        return self.record.with_suffix(".log")

    @property
    def is_ready(self) -> bool:
        """Whether what it needs has been made."""
        return self.needs is None or self.needs.is_met

    @property
    def is_done(self) -> bool:
        """Whether it has ended well by this very command."""
        found = read_record(self.record)
        return found is not None and found.is_done and found.command == self.command


def record_file(folder: Path, name: str) -> Path:
    """Where the stage of that name is noted, in the folder of its arm."""
    return folder / RECORDS / f"{name}.json"


def read_record(file: Path) -> Record | None:
    """What is noted there; None where nothing is."""
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return Record(**{"exit_code": 0, **content})  # at first only stages that had ended well were noted, without a code


def write_record(file: Path, record: Record) -> None:
    """Note it, at one stroke."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(record._asdict(), indent=2) + "\n")


def records_of(folder: Path) -> dict[str, Record]:
    """All that is noted of an arm, by the name of the stage."""
    files = sorted((folder / RECORDS).glob("*.json"))
    return {file.stem: found for file in files if (found := read_record(file)) is not None}


def check_records(stages: Iterable[Stage]) -> None:
    """UsageError where a stage would mix what it makes with what another command has made.

    Scores are the exception: they are one file, which is written anew.
    """
    for stage in stages:
        before = read_record(stage.record)
        if before is None or before.command == stage.command or stage.output.is_file() or not stage.output.exists():
            continue
        changed = [word for word in stage.command if word not in before.command] or ["something left out"]
        # What has been made of pretrained weights goes with them.
        made_anew = stage.folder if stage.name.startswith(PRETRAINING) else stage.output
        raise UsageError(
            f"{stage.record} tells of another command ({changed[0]} is new); choose another --output_dir, or remove "
            f"{made_anew} to have it made anew"
        )
