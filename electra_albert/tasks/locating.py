"""Where the sets of a task lie: files named one by one, a folder in the official layout, or a dataset on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from electra_albert.contracts import UsageError
from electra_albert.data_files import hub_name
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.hub import hub_splits
from electra_albert.tasks.read_rules import is_there, shown
from electra_albert.tasks.registry import GLUE, TASKS
from electra_albert.tasks.tables import Table
from electra_albert.tasks.task import Patterns, Report, Task

Source = Path | Table
_VALIDATION = ("validation", "dev", "valid")


@dataclass
class Sources:
    """The sets found, and where they were looked for. None for training data where there is none."""

    train: Source | None = None
    evaluation: dict[str, Source] = field(default_factory=dict)
    test: dict[str, Source] = field(default_factory=dict)
    place: str = "the options"


def locate(task: Task, config: DataConfig, report: Report, *, needs_test: bool, is_trained: bool = True) -> Sources:
    """The sets that the options name; training data only where a model is trained, and never of a task without any.

    A file with an option of its own replaces the one set that it is. Raises UsageError for a set that is wanted and
    not there; of several, the missing ones are counted.
    """
    needs_training = is_trained and task.trained_by is None
    is_split = config.validation_split is not None
    if is_split:
        _check_split(task, needs_training)
    given = _given(task, config, needs_training)
    found = Sources()
    if config.data_dir is not None:
        found = _in_data_dir(task, config.data_dir, given, needs_training, is_split)
    elif not _is_enough(task, given, needs_training, is_split):
        raise UsageError(_what_is_missing(task, given, needs_training))
    sources = Sources(
        given.train or found.train,
        _merged(task.files.evaluation, given.evaluation, found.evaluation),
        _merged(task.files.test, given.test, found.test),
        found.place,
    )
    if needs_training and sources.train is None:
        raise UsageError(_not_found(task, found.place, "training data", task.files.train, "--train_file"))
    if is_split and sources.evaluation:
        raise UsageError(f"--validation_split: {found.place} holds data to score on already; leave the option out")
    if not is_split and not sources.evaluation and not (task.trained_by is not None and sources.test):
        patterns = next(iter(task.files.evaluation.values()))
        raise UsageError(_not_found(task, found.place, "data to score on", patterns, "--validation_file"))
    if needs_test and not sources.test:
        patterns = next(iter(task.files.test.values()))
        raise UsageError(_not_found(task, found.place, "test set", patterns, "--test_file"))
    _note_missing(task, sources, report, needs_test)
    return sources


def _check_split(task: Task, needs_training: bool) -> None:
    """UsageError where no training examples are read, or a random part of them is no unseen data."""
    if not needs_training:
        raise UsageError("--validation_split divides the training data, and nothing is trained; give --validation_file")
    if task.kind in ("choice", "span"):
        raise UsageError(f"--validation_split: questions of {task.name} share their passages; give --validation_file")


def _merged(
    wanted: Mapping[str, Patterns], given: Mapping[str, Source], found: Mapping[str, Source]
) -> dict[str, Source]:
    """The sets of both in the order of the task's own; a given one stands for the one found."""
    both = {**found, **given}
    return {name: both[name] for name in wanted if name in both}


def _note_missing(task: Task, sources: Sources, report: Report, needs_test: bool) -> None:
    """Count the sets of a task that has several and not all of them here."""
    kinds = [("evaluation set", sources.evaluation, task.files.evaluation)]
    if needs_test:
        kinds.append(("test set", sources.test, task.files.test))
    for what, there, wanted in kinds:
        for name in wanted if there else ():
            if name not in there:
                report.note(f"{what} of {task.name} that is not there: {name}", sources.place)


def _given(task: Task, config: DataConfig, needs_training: bool) -> Sources:
    """The files that have options of their own."""
    files = {}
    for option in ("train_file", "validation_file", "test_file"):
        value = getattr(config, option)
        if value is not None and (needs_training or option != "train_file"):
            files[option] = Path(value)
            if not is_there(files[option], option):
                raise UsageError(f"--{option} {value}: no such file; check the path")
    evaluation, test = next(iter(task.files.evaluation)), next(iter(task.files.test))
    return Sources(
        files.get("train_file"),
        {evaluation: files["validation_file"]} if "validation_file" in files else {},
        {test: files["test_file"]} if "test_file" in files else {},
    )


def _is_enough(task: Task, given: Sources, needs_training: bool, is_split: bool) -> bool:
    """Whether no folder is needed: a task that is never trained may have a test set alone."""
    if needs_training and given.train is None:
        return False
    return bool(is_split or given.evaluation or (task.trained_by is not None and given.test))


def _what_is_missing(task: Task, given: Sources, needs_training: bool) -> str:
    if given.train or (given.evaluation and needs_training):
        missing = "--validation_file" if given.train else "--train_file"
        part = ", a part of the training data by --validation_split 0.1" if given.train else ""
        return f"--task {task.name}: give {missing} too{part}, or a folder with all files by --data_dir"
    if task.name == "custom":
        files = "--train_file and --validation_file" if needs_training else "--validation_file"
        return f"--task custom: no data; give {files}"
    return f"--task {task.name}: no data; give its folder, or OWNER/NAME of the hub, by --data_dir"


def _in_data_dir(task: Task, data_dir: str, given: Sources, needs_training: bool, is_split: bool) -> Sources:
    path = Path(data_dir)
    if is_there(path, "data_dir"):
        if not path.is_dir():
            way_out = "give a single file by --train_file or --validation_file"
            raise UsageError(f"--data_dir {data_dir}: not a folder; {way_out}")
        try:
            return _in_folder(task, path, given, needs_training)
        except OSError as error:
            raise UsageError(f"--data_dir {data_dir}: cannot be read ({error.strerror}); choose another") from error
    if hub_name(data_dir):
        return _on_hub(task, data_dir, given, needs_training, is_split)
    raise UsageError(f"--data_dir {data_dir}: no such folder, and not OWNER/NAME of a dataset on the hub; check it")


def _in_folder(task: Task, path: Path, given: Sources, needs_training: bool) -> Sources:
    """The files of a folder that is the task's own, or holds the task's own; none that is given or not needed."""
    names = {child.name.lower(): child for child in sorted(path.iterdir()) if child.is_dir()}
    folder = next((names[name.lower()] for name in task.files.folders if name.lower() in names), path)
    _refuse_another_task(task, folder)
    sources = Sources(place=str(folder))
    if needs_training and given.train is None:
        sources.train = _match(folder, task.files.train)
    for there, known, wanted in (
        (sources.evaluation, given.evaluation, task.files.evaluation),
        (sources.test, given.test, task.files.test),
    ):
        for name, patterns in wanted.items():
            if name not in known and (file := _match(folder, patterns)):
                there[name] = file
    return sources


def _refuse_another_task(task: Task, folder: Path) -> None:
    """Raise UsageError where a folder bears the name of another task of GLUE; its columns might well fit."""
    own = {name.lower() for name in task.files.folders}
    for other in GLUE:
        theirs = {name.lower() for name in TASKS[other].files.folders}
        if task.name in GLUE and folder.resolve().name.lower() in theirs - own:
            raise UsageError(
                f"--data_dir {folder}: the folder of {other}, not of {task.name}; give that of {task.folder}"
            )


def _match(folder: Path, patterns: Patterns) -> Path | None:
    """The file of the first pattern that fits one, best in its own case, else in any.

    Raises UsageError where it fits several.
    """
    names = sorted(child.name for child in folder.iterdir())
    for spelled in (str, str.lower):
        for pattern in patterns:
            found = [name for name in names if fnmatchcase(spelled(name), spelled(pattern))]
            if len(found) > 1:
                several = ", ".join(found)
                raise UsageError(
                    f"{folder}: several files could be meant by {pattern}: {several}; name one by its own option"
                )
            if found:
                return folder / found[0]
    return None


def _on_hub(task: Task, data_dir: str, given: Sources, needs_training: bool, is_split: bool) -> Sources:
    splits = hub_splits(data_dir, task)
    evaluation = dict(task.hub.evaluation) if task.hub else {"dev": _VALIDATION[0]}
    test = dict(task.hub.test) if task.hub else {"test": "test"}
    if len(evaluation) == 1 and not set(evaluation.values()) & splits.keys():
        evaluation = {name: split for name in evaluation for split in _VALIDATION if split in splits}
    sources = Sources(
        splits.get("train") if needs_training else None,
        {name: splits[split] for name, split in evaluation.items() if split in splits},
        {name: splits[split] for name, split in test.items() if split in splits},
        data_dir,
    )
    lacks_training = needs_training and sources.train is None and given.train is None
    lacks_evaluation = not is_split and task.trained_by is None and not sources.evaluation and not given.evaluation
    if lacks_training or lacks_evaluation:
        wanted = f"train and {_VALIDATION[0]} are" if needs_training else f"{_VALIDATION[0]} is"
        raise UsageError(f"--data_dir {data_dir}: splits {shown(splits)}, but {wanted} needed; give another")
    return sources


def _not_found(task: Task, place: str, what: str, patterns: Patterns, option: str) -> str:
    folder = Path(place)
    way_out = f"check --data_dir or give {option}"
    if not folder.is_dir():
        return f"--task {task.name}: no {what} in {place}; {way_out}"
    held = shown(sorted(child.name + "/" * child.is_dir() for child in folder.iterdir()))
    wanted = " or ".join([*patterns[:1], *[pattern for pattern in patterns if "*" in pattern][:1]])
    own = "" if folder.name == task.folder else f", in it or in {task.folder}/"
    return f"--task {task.name}: no {what} in {place}: looked for {wanted}{own}; there is {held}: {way_out}"
