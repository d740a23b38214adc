"""Datasets of the `datasets` library as lists of Arrow files: folders that it wrote, and those of the hub.

A folder is read by its two JSON files alone, so nothing in it is run.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from electra_albert.contracts import DataError, UsageError
from electra_albert.data_files import load_from_hub

TRAIN = "train"


def is_dataset_folder(folder: Path) -> bool:
    """Whether `save_to_disk` wrote the folder, of one split or of several."""
    is_split = (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    return is_split or (folder / "dataset_dict.json").is_file()


def dataset_files(folder: Path, counts: Counter[str]) -> list[Path]:
    """The Arrow files of a saved dataset in order; of several splits those of train, the others are counted.

    Raises UsageError where there is no split to train on, and DataError where the folder is damaged.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = _read_json(folder / "dataset_dict.json").get("splits")
        if not isinstance(splits, list) or TRAIN not in splits:
            held = ", ".join(map(str, splits)) if isinstance(splits, list) else "none"
            raise UsageError(f"{folder}: a dataset without a split {TRAIN!r}; give one of its folders instead: {held}")
        counts["splits_skipped"] += len(splits) - 1
        folder /= TRAIN
    try:
        names = [entry["filename"] for entry in _read_json(folder / "state.json")["_data_files"]]
    except (TypeError, KeyError):
        names = []
    if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise DataError(f"{folder}/state.json: does not list the files of a dataset in it; save the dataset anew")
    return [folder / name for name in names]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); save the dataset anew") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON; save the dataset anew") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a JSON object; save the dataset anew")
    return content


def hub_files(name: str, config: str | None = None) -> list[Path]:
    """The Arrow files of the train split of a dataset, downloaded or from the cache; a local folder of data will do.

    Raises UsageError where it cannot be had: no network, no such dataset or config, no access, no split to train on.
    """
    asked = name if config is None else f"{name}:{config}"
    what = f"--corpus {asked}: neither a file or folder here, nor a dataset with a split {TRAIN!r} that can be loaded"
    return [Path(entry["filename"]) for entry in load_from_hub(name, config, TRAIN, what).cache_files]
