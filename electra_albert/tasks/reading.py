"""Find, read, check and sample the data of a task; unusual data are counted in its report."""

import math
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files import hub_name
from electra_albert.data_files.remote import URL, fetch, load_from_hub
from electra_albert.data_files.tables import Table, dataset_table
from electra_albert.finetuning_config import DataConfig
from electra_albert.keyed_random import Stream, bits, derived_seed, permute
from electra_albert.tasks.formats import read_examples
from electra_albert.tasks.read_rules import SplitReader, quote_names
from electra_albert.tasks.registry import GLUE, TASKS, as_configured
from electra_albert.tasks.task import Hub, Patterns, Report, Task, TaskData

T = TypeVar("T")
Examples = Sequence[Any]
Sets = dict[str, dict[str, Path | Table]]  # files and hub splits, by role and set name
_EVALUATION_SEED = 0  # not the run's: all seeds are evaluated on the same examples
_MAX_LABELS, _MAX_TAGS = 100, 1000  # found in the data; each entity type has two tags in BIO
_VALIDATION = ("valid", "dev")  # names of a hub split that replace the usual one
_TEXT_FIELDS = ("text", "text_pair", "context", "question", "options", "words")  # all except answer and identity
_ROLES = {  # option that names the file, name and verb in messages
    "train": ("train_file", "training data", "train on"),
    "evaluation": ("validation_file", "evaluation data", "evaluate on"),
    "test": ("test_file", "test set", "predict"),
}


def read_data(task: Task, config: DataConfig, *, needs_test: bool, seed: int, is_trained: bool) -> TaskData:
    """All examples of a task; training data only if `is_trained`, test sets only if they are needed."""
    task, report = as_configured(task, config), Report()
    sources = locate(task, config, report, needs_test=needs_test, is_trained=is_trained)
    loaded, labels = [], task.labels
    if sources["train"]:
        loaded = _read(reader := SplitReader(task, config, "train", report, sources["train"]["train"], labels))
        labels = labels or _found_labels(loaded, reader)
    read: dict[str, tuple[str, list[Any]]] = {}  # source and examples of each evaluation set
    if config.validation_split is not None:
        loaded, held_out = _split(loaded, config.validation_split)
        read[next(iter(task.files.evaluation))] = ("the validation split", held_out)
    for name, source in sources["evaluation"].items():
        reader = SplitReader(task, config, "evaluation", report, source, labels)
        read[name] = (reader.name, _read(reader))
    train = _sample(loaded, config.max_train_examples, seed, Stream.TASK_EXAMPLES)
    if len(train) < len(loaded):
        report.note("training examples not sampled", "--max_train_examples", len(loaded) - len(train))
    evaluation: dict[str, Examples] = {}
    for name, (source_name, found) in read.items():
        if found:
            chosen = sorted(_sample(range(len(found)), config.max_eval_examples, _EVALUATION_SEED, Stream.VALIDATION))
            if missing := len(found) - len(chosen):
                report.note(f"examples of {name} not sampled", "--max_eval_examples", missing)
            evaluation[name] = [found[position] for position in chosen]
            _note_unusual(train, evaluation[name], labels, report, source_name)
    wanted = sources["test"] if needs_test or not evaluation else {}
    if not evaluation and not wanted:  # the evaluation set has no labels
        wanted = dict(zip(task.files.test, sources["evaluation"].values(), strict=False))
    test = {name: _read(SplitReader(task, config, "test", report, source)) for name, source in wanted.items()}
    return TaskData(train, evaluation, test, labels, report)


def read_unlabelled(task: Task, file: Path | str, config: DataConfig, report: Report) -> list[Any]:
    """Unlabelled examples of a file of new text, in the task's own format or a plain .txt."""
    return _read(SplitReader(as_configured(task, config), config, "test", report, local_path(str(file), "predict")))


def _read(reader: SplitReader) -> list[Any]:
    """The examples of a set; DataError with the reasons if there are none."""
    if reader.purpose == "evaluation" and reader.task.trained_by is not None:  # its labels may be missing
        table = reader.table()
        column = table.find(reader.task.columns.label)
        rows = () if column is None else table.rows((column,))
        if not any(not row.problem and reader.as_label(row.cells[0], row.location) for row in rows):
            return []
    if not (examples := read_examples(reader)):
        lines = [line for line in reader.report.lines() if reader.name in line]
        reasons = f" ({'; '.join(lines)})" if lines else ""
        raise DataError(f"{reader.location}: no examples to {_ROLES[reader.purpose][2]}{reasons}; give another file")
    return examples


class _DataDir(NamedTuple):
    """The folder or hub dataset of --data_dir."""

    location: str
    names: list[str]  # of its files or splits
    find: Callable[[str, str, Patterns], Path | Table | None]  # the source of a set by role, set name and patterns


def locate(task: Task, config: DataConfig, report: Report, *, needs_test: bool, is_trained: bool) -> Sets:
    """The sources of all sets; file options override --data_dir. UsageError if a needed one is missing."""
    needs_training, is_split = is_trained and task.trained_by is None, config.validation_split is not None
    if is_split and not needs_training:
        raise UsageError("--validation_split splits the training data, but nothing is trained; give --validation_file")
    if is_split and task.kind in ("choice", "span"):
        raise UsageError(f"--validation_split: questions of {task.name} share their passages; give --validation_file")
    train: dict[str, Patterns] = {"train": task.files.train} if needs_training else {}
    wanted = {"train": train, "evaluation": task.files.evaluation, "test": task.files.test}
    data_dir = _open_data_dir(task, config, config.data_dir)
    sets: Sets = {role: {} for role in _ROLES}
    for role, names in wanted.items():
        option = _ROLES[role][0]
        for position, (name, patterns) in enumerate(names.items()):
            value = getattr(config, option) if position == 0 else None  # a file option names the first set
            source = data_dir.find(role, name, patterns) if value is None else local_path(value, option)
            if source is not None:
                sets[role][name] = source
        if sets[role] and (role != "test" or needs_test):
            for name in (name for name in names if name not in sets[role]):
                report.note(f"missing {role} set of {task.name}: {name}", data_dir.location)
    if is_split and sets["evaluation"]:
        raise UsageError(f"--validation_split: {data_dir.location} already has evaluation data; drop the option")
    needs_scores = not is_split and not (task.trained_by is not None and sets["test"])
    needs = {"train": needs_training, "evaluation": needs_scores, "test": needs_test}
    if missing := [role for role in _ROLES if needs[role] and not sets[role]]:
        raise UsageError(_not_found(task, config, data_dir, missing, next(iter(wanted[missing[0]].values()))))
    return sets


def local_path(value: str, option: str) -> Path:
    """The path that an option names, downloaded if it is a URL; UsageError if it does not exist."""
    if URL in value:
        return fetch(value, option)[0]
    if not os.path.exists(value):
        raise UsageError(f"--{option} {value[:100]}: no such file or folder, or not readable; check the path")
    return Path(value)


def _open_data_dir(task: Task, config: DataConfig, data_dir: str | None) -> _DataDir:
    if data_dir is None:
        return _DataDir("the options", [], lambda role, name, patterns: None)
    is_path = URL in data_dir or os.path.exists(data_dir)
    if config.streaming or not is_path:
        if (dataset := (data_dir, None) if is_path else hub_name(data_dir)) is None:
            raise UsageError(f"--data_dir {data_dir}: no such folder, and not OWNER/NAME of a hub dataset; check it")
        return _open_dataset(task, config, *dataset)
    if not (path := local_path(data_dir, "data_dir")).is_dir():
        raise UsageError(f"--data_dir {data_dir}: not a folder; name files with --train_file and --validation_file")
    try:
        folders = {child.name.lower(): child for child in sorted(path.iterdir()) if child.is_dir()}
        folder = next((folders[name.lower()] for name in task.files.folders if name.lower() in folders), path)
        names = sorted(child.name + "/" * child.is_dir() for child in folder.iterdir())
    except OSError as error:
        raise UsageError(f"--data_dir {data_dir}: cannot be read ({error.strerror}); choose another") from error
    owners = {name.lower(): other for other in GLUE for name in TASKS[other].files.folders}
    if task.name in GLUE and owners.get(found := folder.resolve().name.lower(), task.name) != task.name:
        wanted = f"not of {task.name}; give {task.files.folders[0]}"
        raise UsageError(f"--data_dir {folder}: the folder of {owners[found]}, {wanted}")
    return _DataDir(str(folder), names, lambda role, name, patterns: _match(folder, patterns, names))


def _match(folder: Path, patterns: Patterns, names: list[str]) -> Path | None:
    """The file that matches the first possible pattern, preferably in its case; UsageError for several files."""
    bare = [name.removesuffix("/") for name in names]
    for fold in (str, str.lower):
        for pattern in patterns:
            found = [name for name in bare if fnmatchcase(fold(name), fold(pattern))]
            if len(found) > 1:
                raise UsageError(f"{folder}: {pattern} matches {', '.join(found)}; name one file with its own option")
            if found:
                return folder / found[0]
    return None


def _open_dataset(task: Task, config: DataConfig, dataset: str, subset: str | None) -> _DataDir:
    """Load a dataset of the hub or, as a stream, of a folder; without :SUBSET the task's own."""
    if subset is None and task.hub is not None and task.hub.dataset == dataset:
        subset = task.hub.config
    failed = f"--data_dir {dataset}: no folder of files, and no dataset to load"
    splits = load_from_hub(dataset, subset, None, failed, streaming=config.streaming)
    if config.streaming and any(rows.info.builder_name == "csv" for rows in splits.values()):
        raise UsageError(f"--streaming {dataset}: `datasets` infers types and quotes in .csv and .tsv; use .jsonl")
    most = {"train": config.max_train_examples, "evaluation": config.max_eval_examples} if config.streaming else {}
    hub = task.hub or Hub(dataset)
    names = {"train": {"train": "train"}, "evaluation": hub.evaluation, "test": hub.test}

    def find(role: str, name: str, patterns: Patterns) -> Table | None:
        split = names[role].get(name)
        if role == "evaluation" and len(hub.evaluation) == 1 and split not in splits:
            split = next(filter(splits.__contains__, _VALIDATION), None)
        if (rows := splits.get(split)) is not None and (count := most.get(role)) is not None:
            rows = rows.shuffle(seed=_EVALUATION_SEED, buffer_size=10_000).take(count)
        return None if rows is None else dataset_table(rows, f"{dataset}, {split}")

    return _DataDir(dataset, [*splits], find)


def _not_found(task: Task, config: DataConfig, data_dir: _DataDir, roles: list[str], patterns: Patterns) -> str:
    options = " and ".join(f"--{_ROLES[role][0]}" for role in roles)
    if roles == ["evaluation"]:
        options += ", or a part of the training data with --validation_split 0.1"
    missing = f"--task {task.name}: no {_ROLES[roles[0]][1]}"
    if config.data_dir is None:
        return f"{missing}; give {options}, or its folder or OWNER/NAME on the hub with --data_dir"
    wanted = " or ".join([*patterns[:1], *[pattern for pattern in patterns if "*" in pattern][:1]])
    looked = f"looked for {wanted}, also in {task.files.folders[0]}/, and found {quote_names(data_dir.names)}"
    return f"{missing} in {data_dir.location}: {looked}; check --data_dir or give {options}"


def _found_labels(examples: Examples, reader: SplitReader) -> tuple[str, ...]:
    """Sorted labels of the training data; DataError for a single label, too many, or numbers of a regression."""
    location, kind = reader.location, reader.task.kind
    if reader.task.is_regression or kind in ("choice", "span"):
        return ()
    if kind == "token":
        tags = sorted({tag for example in examples for tag in example.tags})
        if len(tags) > _MAX_TAGS:
            raise DataError(f"{location}: {len(tags):,} tags, more than {_MAX_TAGS:,}; check file and --label_column")
        return tuple(tags)
    labels = {example.label for example in examples}
    if len(labels) == 1:
        raise DataError(f"{location}: all examples have the label {quote_names([*labels])}; give at least two labels")
    is_whole = all(_is_number(label) and label.removeprefix("-").isdecimal() for label in labels)
    advice = "if they are numbers to predict, give --regression true"
    if len(labels) > _MAX_LABELS:
        raise DataError(f"{location}: {len(labels):,} labels, over {_MAX_LABELS}; {advice}, or check --label_column")
    if not is_whole and all(map(_is_number, labels)) and reader.config.regression is None:
        classes = "if they are classes, --regression false"
        raise DataError(f"{location}: the labels are numbers such as {min(labels)}; {advice}; {classes}")
    return tuple(sorted(labels, key=lambda label: (int(label) if is_whole else 0, label)))


def _is_number(label: str) -> bool:
    try:
        return label.isascii() and math.isfinite(float(label))
    except ValueError:
        return False


def _sample(examples: Sequence[T], count: int | None, seed: int, stream: Stream) -> Sequence[T]:
    if count is None or count >= len(examples):
        return examples
    positions = permute(torch.arange(count), len(examples), derived_seed(seed, stream), torch.tensor(0))
    return [examples[position] for position in positions.tolist()]


def _split(examples: Sequence[T], share: float) -> tuple[list[T], list[T]]:
    """Split examples into training and held-out ones, stratified by label and with a fixed seed."""
    labels = np.array([str(getattr(example, "label", "")) for example in examples])
    noise = bits(_EVALUATION_SEED, Stream.VALIDATION, torch.arange(len(examples)), torch.tensor(0)).numpy()
    is_held_out = np.zeros(len(examples), dtype=np.bool_)
    # Examples are sorted by label, in random order within each; at regular intervals one is held out.
    is_held_out[np.lexsort((noise, labels))] = np.diff(np.floor(np.arange(len(examples) + 1) * share)) > 0
    for label in {label for example in examples if isinstance(label := getattr(example, "label", None), str)}:
        mine = np.flatnonzero(labels == label)
        is_held_out[mine[0]] &= not is_held_out[mine].all()  # keep at least one of each label for training
    if not is_held_out.any():
        raise DataError(f"--validation_split {share:g} of {len(examples):,} examples is no example; increase it")
    kept, held_out = (np.flatnonzero(chosen).tolist() for chosen in (~is_held_out, is_held_out))
    return [examples[position] for position in kept], [examples[position] for position in held_out]


def _note_unusual(train: Examples, evaluation: Examples, labels: tuple[str, ...], report: Report, name: str) -> None:
    """Add warnings to the report: a single evaluation example or label, missing labels, examples seen in training."""
    if len(evaluation) == 1:
        report.note(f"example in {name}: too few for a meaningful score", name)
    in_train, in_evaluation = _labels(train), _labels(evaluation)
    if len(evaluation) > 1 and len(in_evaluation) == 1:
        report.note(f"label for all examples of {name}: {min(in_evaluation)!r}", name)
    for label in labels:
        if train and label not in in_train:
            report.note(f"label without a training example: {label!r}", name)
        if label not in in_evaluation:
            report.note(f"label without an example in {name}: {label!r}", name)

    def texts(example: Any) -> tuple[object, ...]:
        return tuple(getattr(example, field, None) for field in _TEXT_FIELDS)

    seen = set(map(texts, train))
    for example in evaluation:
        if texts(example) in seen:
            report.note(f"examples of {name} also in the training data", f"{name}, id {example.identity}")


def _labels(examples: Examples) -> set[str]:
    labels = {getattr(example, "label", None) for example in examples}
    letters = {chr(ord("A") + option) for option in labels if isinstance(option, int)}
    tags = {tag for example in examples for tag in getattr(example, "tags", None) or ()}
    return {label for label in labels if isinstance(label, str)} | letters | tags
