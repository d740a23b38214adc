"""Where the sets of a task lie: files named one by one, a folder in the official layout, or a dataset on the hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from electra_albert.contracts import UsageError
from electra_albert.finetuning_config import DataConfig
from electra_albert.tasks.examples import Report
from electra_albert.tasks.hub import hub_splits, looks_like_hub
from electra_albert.tasks.read_rules import shown
from electra_albert.tasks.registry import GLUE, TASKS
from electra_albert.tasks.tables import Table
from electra_albert.tasks.task import Patterns, Task

Source = Path | Table
_VALIDATION = ("validation", "dev", "valid")


@dataclass
class Sources:
    """The sets found, and where they were looked for. None for training data where there is none."""

    train: Source | None = None
    evaluation: dict[str, Source] = field(default_factory=dict)
    test: dict[str, Source] = field(default_factory=dict)
    place: str = "the options"


def locate(task: Task, config: DataConfig, report: Report, needs_test: bool) -> Sources:
    """The sets that the options name. Raises UsageError for one that is wanted and not there."""
    given = _given(task, config)
    found = Sources()
    is_enough = bool(given.evaluation) and (given.train is not None or _needs_no_training(task))
    if config.data_dir is not None:
        found = _in_data_dir(task, config.data_dir, report)
    elif not is_enough:
        raise UsageError(_what_is_missing(task, given))
    sources = Sources(given.train or found.train, given.evaluation or found.evaluation, given.test or found.test)
    place = found.place
    if sources.train is None and task.trained_by is None and not (config.data_dir is None and is_enough):
        raise UsageError(_not_found(task, place, "training data", task.files.train, "--train_file"))
    if not sources.evaluation and task.trained_by is None:
        patterns = next(iter(task.files.evaluation.values()))
        raise UsageError(_not_found(task, place, "data to score on", patterns, "--validation_file"))
    if needs_test and not sources.test:
        patterns = next(iter(task.files.test.values()))
        raise UsageError(_not_found(task, place, "test set", patterns, "--test_file"))
    if config.data_dir is not None and not given.evaluation:
        for name in task.files.evaluation:
            if name not in sources.evaluation and task.trained_by is None:
                report.note(f"evaluation set of {task.name} that is not there: {name}", config.data_dir)
    return sources


def _given(task: Task, config: DataConfig) -> Sources:
    """The files that have options of their own."""
    files = {}
    for option in ("train_file", "validation_file", "test_file"):
        value = getattr(config, option)
        if value is not None:
            files[option] = Path(value)
            if not files[option].exists():
                raise UsageError(f"--{option} {value}: no such file; check the path")
    evaluation, test = next(iter(task.files.evaluation)), next(iter(task.files.test))
    return Sources(
        files.get("train_file"),
        {evaluation: files["validation_file"]} if "validation_file" in files else {},
        {test: files["test_file"]} if "test_file" in files else {},
    )


def _needs_no_training(task: Task) -> bool:
    """Whether a model that is fine-tuned already can be scored without the training data: no labels are to be found."""
    return bool(task.labels) or task.is_regression or task.kind in ("span", "choice")


def _what_is_missing(task: Task, given: Sources) -> str:
    if given.train or given.evaluation:
        missing = "--validation_file" if given.train else "--train_file, which tells the labels"
        return f"--task {task.name}: give {missing} too, or a folder with all files by --data_dir"
    if task.name == "custom":
        return "--task custom: no data; give --train_file and --validation_file"
    return f"--task {task.name}: no data; give its folder, or OWNER/NAME of the hub, by --data_dir"


def _in_data_dir(task: Task, data_dir: str, report: Report) -> Sources:
    path = Path(data_dir)
    if path.is_dir():
        return _in_folder(task, path)
    if path.exists():
        raise UsageError(
            f"--data_dir {data_dir}: not a folder; give a single file by --train_file or --validation_file"
        )
    if looks_like_hub(data_dir):
        return _on_hub(task, data_dir)
    raise UsageError(f"--data_dir {data_dir}: no such folder, and not OWNER/NAME of a dataset on the hub; check it")


def _in_folder(task: Task, path: Path) -> Sources:
    """The files of a folder that is the task's own, or holds the task's own."""
    names = {child.name.lower(): child for child in sorted(path.iterdir()) if child.is_dir()}
    folder = next((names[name.lower()] for name in task.files.folders if name.lower() in names), path)
    _refuse_another_task(task, folder)
    sources = Sources(_match(folder, task.files.train), place=str(folder))
    sources.evaluation = {
        name: file for name, patterns in task.files.evaluation.items() if (file := _match(folder, patterns))
    }
    sources.test = {name: file for name, patterns in task.files.test.items() if (file := _match(folder, patterns))}
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
    """The file of the first pattern that fits one. Raises UsageError where it fits several."""
    for pattern in patterns:
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise UsageError(
                f"{folder}: several files could be meant by {pattern}: {names}; name one by its own option"
            )
        if found:
            return found[0]
    return None


def _on_hub(task: Task, data_dir: str) -> Sources:
    splits = hub_splits(data_dir, task)
    evaluation = dict(task.hub.evaluation) if task.hub else {"dev": _VALIDATION[0]}
    test = dict(task.hub.test) if task.hub else {"test": "test"}
    if len(evaluation) == 1 and not set(evaluation.values()) & splits.keys():
        evaluation = {name: split for name in evaluation for split in _VALIDATION if split in splits}
    sources = Sources(
        splits.get("train"),
        {name: splits[split] for name, split in evaluation.items() if split in splits},
        {name: splits[split] for name, split in test.items() if split in splits},
        data_dir,
    )
    if (sources.train is None or not sources.evaluation) and task.trained_by is None:
        held = shown(splits)
        raise UsageError(
            f"--data_dir {data_dir}: splits {held}, but train and {_VALIDATION[0]} are needed; give another"
        )
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
