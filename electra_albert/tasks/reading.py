"""Find, read, check and sample the data of a task; unusual data are counted in its report."""

import os
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from electra_albert.config.finetuning import DataConfig
from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files import hub_name
from electra_albert.data_files.remote import URL, fetch, load_from_hub
from electra_albert.data_files.tables import Table, dataset_table
from electra_albert.keyed_random import Stream, bits, derived_seed, permute
from electra_albert.tasks.formats import read_examples
from electra_albert.tasks.labels import labels_of, note_unusual, training_labels
from electra_albert.tasks.read_rules import SplitReader, quote_names
from electra_albert.tasks.registry import GLUE, TASKS, as_configured
from electra_albert.tasks.task import Examples, Hub, Patterns, Report, Task, TaskData

Sets = dict[str, dict[str, Path | Table]]  # files and hub splits, by role and set name
_EVALUATION_SEED = 0  # not the run's: all seeds are evaluated on the same examples
_ROLES = {  # option that names the file, name and verb in messages
    "train": ("train_file", "training data", "train on"),
    "evaluation": ("validation_file", "evaluation data", "evaluate on"),
    "test": ("test_file", "test set", "predict"),
}


def read_data(
    task: Task, config: DataConfig, *, needs_test: bool, seed: int, is_trained: bool
) -> TaskData:
    """All examples of a task; training data only if `is_trained`, test sets only if needed."""
    task = as_configured(task, config)
    report = Report()
    sources = locate(task, config, report, needs_test=needs_test, is_trained=is_trained)
    loaded: Examples = []
    labels = task.labels
    if sources["train"]:
        reader = SplitReader(task, config, "train", report, sources["train"]["train"], labels)
        loaded = _read(reader)
        labels = labels or training_labels(loaded, reader)
    sets: dict[str, tuple[str, Examples]] = {}  # source and examples of each evaluation set
    if config.validation_split is not None:
        loaded, held_out = _split(loaded, config.validation_split)
        sets["held_out"] = ("the validation split", held_out)
    for name, source in sources["evaluation"].items():
        reader = SplitReader(task, config, "evaluation", report, source, labels)
        sets[name] = (reader.name, _read(reader))
    key = derived_seed(seed, Stream.TASK_EXAMPLES)
    chosen = _sample(loaded, "training examples", "max_train_examples", key, config, report)
    train = [loaded[position] for position in chosen]
    key = derived_seed(_EVALUATION_SEED, Stream.VALIDATION)
    evaluation = {}
    for name, (source_name, examples) in sets.items():
        if examples:
            chosen = _sample(
                examples, f"examples of {name}", "max_eval_examples", key, config, report
            )
            evaluation[name] = [examples[position] for position in sorted(chosen)]
            note_unusual(train, evaluation[name], labels, report, source_name)
    tests = sources["test"] if needs_test or not evaluation else {}
    if not evaluation and not tests:  # the evaluation set has no labels
        tests = dict(zip(task.files.test, sources["evaluation"].values(), strict=False))
    test = {}
    for name, source in tests.items():
        test[name] = _read(SplitReader(task, config, "test", report, source))
    return TaskData(train, evaluation, test, labels, report)


def read_unlabelled(task: Task, file: Path | str, config: DataConfig, report: Report) -> list[Any]:
    """Unlabelled examples of a file of new text, in the task's own format or a plain .txt."""
    path = local_path(str(file), "predict")
    return _read(SplitReader(as_configured(task, config), config, "test", report, path))


def _read(reader: SplitReader) -> list[Any]:
    """The examples of a set; DataError with the reasons if there are none."""
    # An evaluation set of a task without training data may have no labels.
    if reader.purpose == "evaluation" and reader.task.trained_by is not None:
        table = reader.table()
        label = table.find(reader.task.columns.label)  # None: each row has None
        cells = ((row.cells[0], row.location) for row in table.rows((label,)) if not row.problem)
        if not any(reader.as_label(*cell) for cell in cells):
            return []
    examples = read_examples(reader)
    if not examples:
        lines = [line for line in reader.report.lines() if reader.name in line]
        reasons = f" ({'; '.join(lines)})" if lines else ""
        raise DataError(
            f"{reader.location}: no examples to {_ROLES[reader.purpose][2]}{reasons}; "
            "give another file"
        )
    return examples


class _DataDir(NamedTuple):
    """The folder or hub dataset of --data_dir."""

    location: str
    names: list[str]  # of its files or splits
    # The source of a set by role, set name and patterns.
    find: Callable[[str, str, Patterns], Path | Table | None]


def locate(
    task: Task, config: DataConfig, report: Report, *, needs_test: bool, is_trained: bool
) -> Sets:
    """The sources of all sets; file options override --data_dir. UsageError if one is missing."""
    needs_training = is_trained and task.trained_by is None
    is_split = config.validation_split is not None
    if is_split and not needs_training:
        raise UsageError("--validation_split: nothing is trained; give --validation_file")
    if is_split and task.kind in ("choice", "span"):
        raise UsageError(
            f"--validation_split: questions of {task.name} share their passages; "
            "give --validation_file"
        )
    patterns: dict[str, Mapping[str, Patterns]] = {
        "train": {"train": task.files.train} if needs_training else {},
        "evaluation": {} if is_split else task.files.evaluation,
        "test": task.files.test,
    }
    data_dir = _open_data_dir(task, config)
    sets: Sets = {}
    for role, by_name in patterns.items():
        sets[role] = _find(role, by_name, data_dir, config)
        if sets[role] and (role != "test" or needs_test):
            for name in by_name:
                if name not in sets[role]:
                    report.note(f"missing {role} set of {task.name}: {name}", data_dir.location)
    needs_scores = not is_split and not (task.trained_by is not None and sets["test"])
    needs = {"train": needs_training, "evaluation": needs_scores, "test": needs_test}
    missing = [role for role in _ROLES if needs[role] and not sets[role]]
    if missing:
        names = next(iter(patterns[missing[0]].values()))
        raise UsageError(_not_found(task, config, data_dir, missing, names))
    return sets


def _find(
    role: str, patterns: Mapping[str, Patterns], data_dir: _DataDir, config: DataConfig
) -> dict[str, Path | Table]:
    """The sources of a role by set name; its option names the first."""
    option = _ROLES[role][0]
    file = getattr(config, option)
    sources: dict[str, Path | Table | None] = {}
    for name in patterns:
        if file is not None and not sources:
            sources[name] = local_path(file, option)
        else:
            sources[name] = data_dir.find(role, name, patterns[name])
    return {name: source for name, source in sources.items() if source is not None}


def local_path(value: str, option: str) -> Path:
    """The path that an option names, downloaded if it is a URL; UsageError if there is none."""
    if URL in value:
        copies = fetch(value, option)
        if len(copies) > 1:
            raise UsageError(f"--{option} {value[:100]}: matches {len(copies)} files; name one")
        return copies[0]
    if not os.path.exists(value):
        raise UsageError(
            f"--{option} {value[:100]}: no such file or folder, or not readable; check the path"
        )
    return Path(value)


def _open_data_dir(task: Task, config: DataConfig) -> _DataDir:
    data_dir = config.data_dir
    if data_dir is None:
        return _DataDir("the options", [], lambda role, name, patterns: None)
    is_url = URL in data_dir
    if is_url and config.streaming:
        return _open_dataset(task, config, data_dir, None)
    if not is_url and not os.path.exists(data_dir):
        dataset = hub_name(data_dir)
        if dataset is None:
            raise UsageError(
                f"--data_dir {data_dir}: no such folder, and not OWNER/NAME of a hub dataset; "
                "check it"
            )
        return _open_dataset(task, config, *dataset)
    folder = local_path(data_dir, "data_dir")
    if not folder.is_dir():
        raise UsageError(
            f"--data_dir {data_dir}: not a folder; "
            "name files with --train_file and --validation_file"
        )
    try:
        children = sorted(folder.iterdir())
        folders = {child.name.lower(): child for child in children if child.is_dir()}
        for name in reversed(task.files.folders):
            folder = folders.get(name.lower(), folder)
        names = sorted(child.name for child in folder.iterdir())
    except OSError as error:
        raise UsageError(
            f"--data_dir {data_dir}: cannot be read ({error.strerror}); choose another"
        ) from error
    for other in GLUE if task.name in GLUE else ():
        folder_names = map(str.lower, TASKS[other].files.folders)
        if other != task.name and folder.resolve().name.lower() in folder_names:
            raise UsageError(
                f"--data_dir {folder}: the folder of {other}, not of {task.name}; "
                f"give {task.files.folders[0]}"
            )
    if config.streaming:
        return _open_dataset(task, config, str(folder), None)
    return _DataDir(str(folder), names, lambda role, name, files: _match(folder, files, names))


def _match(folder: Path, patterns: Patterns, names: list[str]) -> Path | None:
    """The file that matches the first possible pattern, preferably in its case."""
    for fold in (str, str.lower):
        for pattern in patterns:
            matches = [name for name in names if fnmatchcase(fold(name), fold(pattern))]
            if len(matches) > 1:
                raise UsageError(
                    f"{folder}: {pattern} matches {', '.join(matches)}; "
                    "name one file with its own option"
                )
            if matches:
                return folder / matches[0]
    return None


def _open_dataset(task: Task, config: DataConfig, dataset: str, subset: str | None) -> _DataDir:
    """A dataset of the hub or, as a stream, of a folder; without :SUBSET the task's own."""
    hub = task.hub or Hub(dataset)
    if subset is None and hub.dataset == dataset:
        subset = hub.config
    failed = f"--data_dir {dataset}: no folder of files, and no dataset to load"
    splits = load_from_hub(dataset, subset, None, failed, streaming=config.streaming)
    most: dict[str, int | None] = {}
    if config.streaming:
        most = {"train": config.max_train_examples, "evaluation": config.max_eval_examples}
        if any(rows.info.builder_name == "csv" for rows in splits.values()):
            raise UsageError(
                f"--streaming {dataset}: `datasets` infers types and quotes in .csv and .tsv; "
                "use .jsonl"
            )
    split_of = {"train": {"train": "train"}, "evaluation": hub.evaluation, "test": hub.test}

    def find(role: str, name: str, patterns: Patterns) -> Table | None:
        names = [split_of[role].get(name)]
        if role == "evaluation" and len(hub.evaluation) == 1:
            names += ("valid", "dev")  # which replace the usual one
        for split in names:
            if split in splits:
                rows = splits[split]
                count = most.get(role)
                if count is not None:
                    rows = rows.shuffle(seed=_EVALUATION_SEED, buffer_size=10_000).take(count)
                return dataset_table(rows, f"{dataset}, {split}")
        return None

    return _DataDir(dataset, [*splits], find)


def _not_found(
    task: Task, config: DataConfig, data_dir: _DataDir, roles: list[str], patterns: Patterns
) -> str:
    options = " and ".join(f"--{_ROLES[role][0]}" for role in roles)
    if roles == ["evaluation"]:
        options += ", or a part of the training data with --validation_split 0.1"
    missing = f"--task {task.name}: no {_ROLES[roles[0]][1]}"
    if config.data_dir is None:
        return f"{missing}; give {options}, or its folder or OWNER/NAME on the hub with --data_dir"
    globs = [name for name in patterns if "*" in name]
    names = " or ".join([*patterns[:1], *globs[:1]])
    return (
        f"{missing} in {data_dir.location}: looked for {names}, also in {task.files.folders[0]}/, "
        f"and found {quote_names(data_dir.names)}; check --data_dir or give {options}"
    )


def _sample(
    examples: Examples, what: str, option: str, key: int, config: DataConfig, report: Report
) -> Sequence[int]:
    """The positions of as many examples as an option names, of all by default."""
    count = getattr(config, option)
    if count is None or count >= len(examples):
        return range(len(examples))
    report.note(f"{what} not sampled", f"--{option}", len(examples) - count)
    epoch = torch.tensor(0)
    chosen: list[int] = permute(torch.arange(count), len(examples), key, epoch).tolist()
    return chosen


def _split(examples: Examples, share: float) -> list[Examples]:
    """Training and held-out examples, stratified by label and with a fixed seed.

    Half of five examples, sorted by label and in random order within each; those are held out
    where the share reaches a whole number:

        label       a    a    b    b    b
        share       0.5  1    1.5  2    2.5
        held out         x         x
    """
    labels = np.array([str(getattr(example, "label", "")) for example in examples])
    numbers = torch.arange(len(examples))
    noise = bits(_EVALUATION_SEED, Stream.VALIDATION, numbers, torch.tensor(0)).numpy()
    shares = np.floor(np.arange(len(examples) + 1) * share)
    is_held_out = np.zeros(len(examples), dtype=np.bool_)
    is_held_out[np.lexsort((noise, labels))] = np.diff(shares) > 0
    positions: dict[str, list[int]] = {}
    for number, example in enumerate(examples):
        for label in labels_of([example]):
            positions.setdefault(label, []).append(number)
    for of_label in positions.values():
        # Keep at least one of each label for training.
        is_held_out[of_label[0]] &= not is_held_out[of_label].all()
    if not is_held_out.any():
        raise DataError(
            f"--validation_split {share:g} of {len(examples):,} examples holds out none, for "
            "each label keeps one for training; increase it or add examples"
        )
    training = list(compress(examples, ~is_held_out))
    return [training, list(compress(examples, is_held_out))]
