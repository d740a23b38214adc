"""How a stage of an experiment went, on file: by which command, how it ended, what that took."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.contracts import STOPPED_BY_SIGNAL, CheckpointError, UsageError
from electra_albert.files import name_beside

RECORDS = "stages"  # the folder of an arm's records and logs
PRETRAINING = "pretraining-"  # and the seed: the name of the stages that make weights
# Options that say where something lies, not what it is: that is known by the arm and by what its weights were made of.
_PLACES = frozenset({"--prepared_dir", "--output_dir", "--output", "--model", "--like"})


class Record(NamedTuple):
    """What is noted of one stage, before it begins and once it has ended."""

    command: list[str]
    exit_code: int | None  # None: begun, and not ended yet
    error: str = ""  # the last line it said, where it failed
    seconds: float = 0.0  # of all attempts by this command
    threads: int | None = None  # of each process; None where the user's number is none
    jobs: int | None = None  # commands that ran at once
    made_of: str | None = None  # of what it needs: how that was made

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


class Stage(NamedTuple):
    """One command, and where it is noted how it went."""

    arm: str
    name: str
    command: list[str]  # without the interpreter
    folder: Path  # of the arm
    output: Path  # what the command makes
    needs: Stage | None = None  # without which it cannot begin
    result: str = ""  # the file of the output that is read here, where that is a folder

    @property
    def told(self) -> str:
        """Its name among those of all arms."""
        return f"{self.name} of {self.arm}"

    @property
    def record(self) -> Path:
        """The file of its record."""
        return self.folder / RECORDS / f"{self.name}.json"

    @property
    def log(self) -> Path:
        """Everything it said, of all attempts."""
        return self.record.with_suffix(".log")

    @property
    def made_by(self) -> str:
        """What tells how it is made: a hash of what its command asks for, and of those before it."""
        asked = sorted(asked_for(self.command).items())
        return hashlib.blake2b(json.dumps([asked, self.made_of]).encode(), digest_size=16).hexdigest()

    @property
    def made_of(self) -> str | None:
        """How what it needs is made."""
        return None if self.needs is None else self.needs.made_by

    @property
    def is_ready(self) -> bool:
        """Whether what it needs has been made."""
        return self.needs is None or self.needs.is_done

    @property
    def is_done(self) -> bool:
        """Whether it has ended well, by this very command, of what is there now, and what it made is there."""
        return read_record(self.record) is not None and not self.trouble()

    def trouble(self) -> str:
        """Why it is not done although it was begun, in words; empty where it is done or was never begun."""
        found = read_record(self.record)
        if found is None:
            return ""
        if not found.is_done:
            return found.tell()
        if other := self.other_than(found):
            return f"tells of {other}"
        result = self.output / self.result
        return "" if result.exists() else f"has lost {result}"

    def other_than(self, noted: Record) -> str:
        """What the record tells of, in words, where that is not this stage; empty where it is."""
        if changed := _changed(asked_for(noted.command), asked_for(self.command)):
            return f"another command ({changed})"
        return "" if self.needs is None or noted.made_of == self.made_of else f"another {self.needs.told}"


def asked_for(command: Sequence[str]) -> dict[str, str]:
    """What a command is to do: the script, and the values of each option that is no mere place, in whatever order."""
    name, asked = "script", {"script": list[str]()}
    for word in command:
        if word.startswith("--"):
            name, asked[word] = word, []
        else:
            asked[name].append(word)
    return {name: " ".join(values) for name, values in asked.items() if name not in _PLACES}


def _changed(before: dict[str, str], now: dict[str, str]) -> str:
    """The first difference between two commands, in words; empty where there is none."""
    name = next((name for name in {**now, **before} if before.get(name) != now.get(name)), None)
    if name is None:
        return ""
    if name not in now:
        return f"{name} is gone"
    return f"{name} is new" if name not in before else f"{name} {now[name]}, which was {before[name]}"


def read_record(file: Path) -> Record | None:
    """What is noted there; None where nothing is. Raises CheckpointError where it is no record."""
    if not file.is_file():
        return None
    content = read_object(file)
    try:
        record = Record(**content)
    except TypeError:
        record = None
    if record is None or not isinstance(record.command, list):
        raise CheckpointError(f"{file} is no record of a stage; remove it to have the stage made anew")
    return record


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; CheckpointError where it holds none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} is damaged: it holds no JSON object; remove it to have it made anew")
    return content


def write_record(file: Path, record: Record) -> None:
    """Note it, at one stroke, so that it is whole even where the machine fails."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = name_beside(file)
    with beside.open("x", encoding="utf-8") as opened:
        opened.write(json.dumps(record._asdict(), indent=2) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(beside, file)


def records_of(folder: Path) -> dict[str, Record]:
    """All that is noted of an arm, by the name of the stage."""
    files = sorted((folder / RECORDS).glob("*.json"))
    return {file.stem: found for file in files if (found := read_record(file)) is not None}


def check_records(stages: Iterable[Stage]) -> None:
    """UsageError where a stage would mix what it makes with what another command, or another model, has made.

    Scores are the exception: they are one file, which is written anew.
    """
    mixed = {
        stage.record: (other, _made_anew(stage, before))
        for stage in stages
        if (before := read_record(stage.record)) is not None
        and (other := stage.other_than(before))
        and stage.output.is_dir()
    }
    if mixed:
        record, (other, _) = next(iter(mixed.items()))
        folders = {folder: None for _, folder in mixed.values()}
        outermost = [str(folder) for folder in folders if not folders.keys() & set(folder.parents)]
        raise UsageError(
            f"{record} tells of {other}; choose another --output_dir, or remove {' and '.join(outermost)} to have it "
            "made anew"
        )


def _made_anew(stage: Stage, before: Record) -> Path:
    """What goes with what the stage has made: all of the arm, where that was made of it or of the same weights."""
    is_of_another_arm = stage.needs is not None and stage.needs.arm != stage.arm
    goes_whole = is_of_another_arm and asked_for(before.command) == asked_for(stage.command)
    return stage.folder if goes_whole or stage.name.startswith(PRETRAINING) else stage.output
