"""The sets of a task: files named one by one, a folder in the official layout, or a dataset on the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from electra_albert.contracts import UsageError
from electra_albert.data_files import hub_name
from electra_albert.data_files.remote import fetch, is_url, load_from_hub
from electra_albert.data_files.tables import Table, dataset_table
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.read_rules import shown
from electra_albert.tasks.registry import GLUE, TASKS
from electra_albert.tasks.task import Patterns, Report, Task

Source = Path | Table
_VALIDATION = ("validation", "dev", "valid")
_ROLES = {  # of a set: the option that names its file, and its name in messages
    "train": ("train_file", "training data"),
    "evaluation": ("validation_file", "data to score on"),
    "test": ("test_file", "test set"),
}


class Sources(NamedTuple):
    """The sets found. None for training data where there is none."""

    train: Source | None
    evaluation: dict[str, Source]
    test: dict[str, Source]


class _DataDir(NamedTuple):
    """The sets that --data_dir gives, by role and name, and the names of all files or splits in it."""

    place: str
    sets: dict[str, dict[str, Source]]
    held: list[str]


def locate(task: Task, config: DataConfig, report: Report, *, needs_test: bool, is_trained: bool = True) -> Sources:
    """The sets that the options name, a file's own option first; UsageError for one that is wanted and not there."""
    needs_training = is_trained and task.trained_by is None
    is_split = config.validation_split is not None
    if is_split and not needs_training:
        raise UsageError("--validation_split divides the training data, and nothing is trained; give --validation_file")
    if is_split and task.kind in ("choice", "span"):
        raise UsageError(f"--validation_split: questions of {task.name} share their passages; give --validation_file")
    wanted: dict[str, Mapping[str, Patterns]] = {"evaluation": task.files.evaluation, "test": task.files.test}
    if needs_training:
        wanted["train"] = {"train": task.files.train}
    given: dict[str, dict[str, Source]] = {role: {} for role in wanted}
    missing = {role: dict(names) for role, names in wanted.items()}
    for role, names in wanted.items():
        option, name = _ROLES[role][0], next(iter(names))
        if (value := getattr(config, option)) is not None:
            given[role][name] = local_path(value, option)
            del missing[role][name]
    there = _DataDir("the options", {}, [])
    if config.data_dir is not None:
        there = _in_data_dir(task, config.data_dir, missing)
    sets = {}
    for role, names in wanted.items():
        sets[role] = {**given[role], **there.sets.get(role, {})}  # an option names the first set
        if sets[role] and (role != "test" or needs_test):
            for name in names.keys() - sets[role].keys():
                report.note(f"{role} set of {task.name} that is not there: {name}", there.place)
    if is_split and sets["evaluation"]:
        raise UsageError(f"--validation_split: {there.place} holds data to score on already; leave the option out")
    needs_scores = not is_split and not (task.trained_by is not None and sets["test"])
    needs = {"train": needs_training, "evaluation": needs_scores, "test": needs_test}
    if missing_roles := [role for role in _ROLES if needs[role] and not sets[role]]:
        patterns = next(iter(wanted[missing_roles[0]].values()))
        raise UsageError(_not_found(task, config, there, missing_roles, patterns))
    return Sources(sets.get("train", {}).get("train"), sets["evaluation"], sets["test"])


def local_path(value: str, option: str) -> Path:
    """The path that an option names, fetched where it is a URL. Raises UsageError where there is nothing."""
    if is_url(value):
        return fetch(value, option)[0]
    if not os.path.exists(value):
        raise UsageError(f"--{option} {value[:100]}: no such file or folder, or it may not be read; check the path")
    return Path(value)


def _in_data_dir(task: Task, data_dir: str, wanted: Mapping[str, Mapping[str, Patterns]]) -> _DataDir:
    if not is_url(data_dir) and not os.path.exists(data_dir):
        if hub_name(data_dir):
            return _on_hub(task, data_dir, wanted)
        raise UsageError(f"--data_dir {data_dir}: no such folder, and not OWNER/NAME of a dataset on the hub; check it")
    path = local_path(data_dir, "data_dir")
    if not path.is_dir():
        raise UsageError(f"--data_dir {data_dir}: not a folder; give a single file by --train_file or its like")
    try:
        folders = {child.name.lower(): child for child in sorted(path.iterdir()) if child.is_dir()}
        folder = next((folders[name.lower()] for name in task.files.folders if name.lower() in folders), path)
        of = {name.lower(): other for other in GLUE for name in TASKS[other].files.folders}
        if task.name in GLUE and of.get(found := folder.resolve().name.lower(), task.name) != task.name:
            raise UsageError(f"--data_dir {folder}: the folder of {of[found]}, not of {task.name}; give {task.folder}")
        held = sorted(child.name + "/" * child.is_dir() for child in folder.iterdir())
    except OSError as error:
        raise UsageError(f"--data_dir {data_dir}: cannot be read ({error.strerror}); choose another") from error
    sets: dict[str, dict[str, Source]] = {}
    for role, names in wanted.items():
        files = {name: _match(folder, patterns, held) for name, patterns in names.items()}
        sets[role] = {name: file for name, file in files.items() if file is not None}
    return _DataDir(str(folder), sets, held)


def _match(folder: Path, patterns: Patterns, held: list[str]) -> Path | None:
    """The file of the first pattern that fits one, best in its own case, else in any; UsageError where several fit."""
    names = [name.removesuffix("/") for name in held]
    for spelled in (str, str.lower):
        for pattern in patterns:
            found = [name for name in names if fnmatchcase(spelled(name), spelled(pattern))]
            if len(found) > 1:
                several = f"several files could be meant by {pattern}: {', '.join(found)}"
                raise UsageError(f"{folder}: {several}; name one by its own option")
            if found:
                return folder / found[0]
    return None


def _on_hub(task: Task, data_dir: str, wanted: Mapping[str, Mapping[str, Patterns]]) -> _DataDir:
    """The splits of a dataset; without :CONFIG the one that the task has there."""
    found = hub_name(data_dir)
    assert found is not None  # which was asked before
    name, config = found
    if config is None and task.hub is not None and task.hub.dataset == name:
        config = task.hub.config
    splits = load_from_hub(name, config, None, f"--data_dir {data_dir}: neither a folder here, nor a dataset to load")
    evaluation = dict(task.hub.evaluation) if task.hub else {"dev": _VALIDATION[0]}
    if len(evaluation) == 1 and not set(evaluation.values()) & splits.keys():
        evaluation = {name: split for name in evaluation for split in _VALIDATION if split in splits}
    test = dict(task.hub.test) if task.hub else {"test": "test"}
    names = {"train": {"train": "train"}, "evaluation": evaluation, "test": test}
    sets: dict[str, dict[str, Source]] = {}
    for role in wanted:
        there = {name: split for name, split in names[role].items() if name in wanted[role] and split in splits}
        sets[role] = {name: dataset_table(splits[split], f"{data_dir}, {split}") for name, split in there.items()}
    return _DataDir(data_dir, sets, list(map(str, splits)))


def _not_found(task: Task, config: DataConfig, there: _DataDir, roles: list[str], patterns: Patterns) -> str:
    """The message for sets that are missing, of which `patterns` are the names of the first."""
    what = _ROLES[roles[0]][1]
    options = " and ".join(f"--{_ROLES[role][0]}" for role in roles)
    if roles == ["evaluation"]:
        options += ", a part of the training data by --validation_split 0.1"
    if config.data_dir is None:
        return f"--task {task.name}: no {what}; give {options}, or its folder, or OWNER/NAME of the hub, by --data_dir"
    wanted = " or ".join([*patterns[:1], *[pattern for pattern in patterns if "*" in pattern][:1]])
    looked = f"looked for {wanted}, in it or in {task.folder}/; there is {shown(there.held)}"
    return f"--task {task.name}: no {what} in {there.place}: {looked}: check --data_dir or give {options}"
