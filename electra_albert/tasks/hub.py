"""The splits of a dataset on the hub as tables. Class numbers become the names that the dataset itself gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from electra_albert.data_files import hub_name, load_from_hub
from electra_albert.tasks.tables import Row, Table
from electra_albert.tasks.task import Task

_ROWS = 1000  # decoded at once


def hub_splits(data_dir: str, task: Task) -> Mapping[str, Table]:
    """All splits of a dataset, downloaded or from the cache; without :CONFIG the one that the task has there.

    Raises UsageError where it cannot be had: no network, no such dataset or config, no access.
    """
    found = hub_name(data_dir)
    assert found is not None  # which was asked before
    name, config = found
    if config is None and task.hub is not None and task.hub.dataset == name:
        config = task.hub.config
    what = f"--data_dir {data_dir}: neither a folder here, nor a dataset that can be loaded"
    splits = load_from_hub(name, config, None, what)
    return {str(split): _table(dataset, f"{data_dir}, {split}") for split, dataset in splits.items()}


def _table(dataset: Any, place: str) -> Table:
    names = tuple(dataset.column_names)
    spelled = {name: _spelling(dataset.features[name]) for name in names}

    def read(wanted: Sequence[int]) -> Iterator[Row]:
        chosen = [names[i] for i in wanted]
        number = 0
        for batch in dataset.select_columns(chosen).iter(_ROWS):
            for cells in zip(*(batch[name] for name in chosen), strict=True):
                number += 1
                yield Row(
                    tuple(spelled[name](cell) for name, cell in zip(chosen, cells, strict=True)),
                    f"{place}, row {number}",
                )

    return Table(place, names, read)


def _spelling(feature: Any) -> Callable[[Any], Any]:
    """What turns a cell into what it stands for: class numbers into names, -1 into nothing."""
    names = getattr(feature, "names", None)
    if names is not None:
        return lambda cell: names[cell] if isinstance(cell, int) and 0 <= cell < len(names) else None
    inner = getattr(feature, "feature", None)
    if getattr(inner, "names", None) is not None:
        one = _spelling(inner)
        return lambda cells: None if cells is None else [one(cell) for cell in cells]
    return lambda cell: cell
