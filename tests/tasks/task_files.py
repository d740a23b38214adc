"""Write and read small task files."""

import json
from pathlib import Path
from typing import Any

from electra_albert.config.finetuning import DataConfig
from electra_albert.tasks.reading import read_data
from electra_albert.tasks.registry import find_task
from electra_albert.tasks.task import Report, Task, TaskData

RTE = "index\tsentence1\tsentence2\tlabel\n"
RTE_ROWS = "0\tA\tB\tentailment\n1\tC\tD\tnot_entailment\n"


def as_lines(text: str) -> str:
    return text.replace("~", "\t").replace(";", "\n") + "\n"


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(
    name: str | Task,
    *,
    needs_test: bool = False,
    seed: int = 0,
    is_trained: bool = True,
    **given: Any,
) -> TaskData:
    """The data of a task; `given` are options of DataConfig, paths allowed."""
    task = find_task(name) if isinstance(name, str) else name
    options = {
        key: str(value) if isinstance(value, Path) else value for key, value in given.items()
    }
    config = DataConfig(task=task.name, **options)
    return read_data(task, config, needs_test=needs_test, seed=seed, is_trained=is_trained)


def noticed(report: Report, part: str) -> int:
    """Sum of the counts of messages that contain `part`."""
    return sum(count for what, count in report.counts.items() if part in what)


def sst2_folder(
    folder: Path, train: str = "good film\t1\nbad film\t0\n", dev: str = "fine\t1\npoor\t0\n"
) -> Path:
    write(folder / "train.tsv", "sentence\tlabel\n" + train)
    write(folder / "dev.tsv", "sentence\tlabel\n" + dev)
    return folder


def rte_folder(folder: Path, train: str = RTE_ROWS, dev: str = RTE_ROWS) -> Path:
    write(folder / "train.tsv", RTE + train)
    write(folder / "dev.tsv", RTE + dev)
    return folder


def squad_file(
    path: Path, *questions: dict[str, Any], context: str = "Ada met Bob in Rome.", **top: Any
) -> Path:
    """A file of SQuAD with one passage; questions override the default fields."""
    usual = {"question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}
    qas = [{"id": f"q{i}", **usual, **question} for i, question in enumerate(questions)]
    return write(
        path, json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}], **top})
    )


def race_file(path: Path, **changes: Any) -> Path:
    usual = {
        "article": "Tea is hot.",
        "questions": ["Tea is _ .", "What?"],
        "options": [["hot", "cold", "old", "new"], ["a", "b", "c", "d"]],
        "answers": ["A", "D"],
        "id": f"{path.parent.name}{path.name}",
    }
    return write(path, json.dumps({**usual, **changes}))


def custom_files(folder: Path, train: list[object], dev: list[object]) -> dict[str, Path]:
    """Write two JSON Lines files with one text per label; returns their options."""
    files = {}
    for name, labels in (("train_file", train), ("validation_file", dev)):
        rows = [
            json.dumps({"text": f"{name} {i}", "label": label}) + "\n"
            for i, label in enumerate(labels)
        ]
        files[name] = write(folder / f"{name}.jsonl", "".join(rows))
    return files
