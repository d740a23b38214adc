"""What export is given: heads that a kind has no place for, tokenizers that do not fit, folders that are taken."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from electra_albert.contracts import CheckpointError, UsageError

if TYPE_CHECKING:
    from electra_albert.hub.load import ModelFiles, Stored
    from electra_albert.hub.outputs import Model

_CHECKPOINTS = "checkpoints"
_OF_A_RUN = ("generator", "discriminator", "model", "tokenizer", _CHECKPOINTS)


def left_aside(stored: Stored, model: Model) -> list[str]:
    """Heads in a model's files that `model` is without."""
    parts = {name for name, _ in model.named_children()}
    parts |= {"pooler", "sop_classifier"} if "sentence_order" in parts else set()
    return sorted({name.split(".")[0] for name in stored.tensors} - parts) + sorted(stored.left_aside)


def say_left_aside(names: Collection[str], kind: str) -> None:
    """A notice of what the exported folder will lack; nothing where that is nothing."""
    if names:
        print(f"notice: left aside, as --kind {kind} has no place for it: {', '.join(names)}", file=sys.stderr)


def require_rows(pieces: int, rows: int, files: ModelFiles) -> None:
    """CheckpointError where ids of the tokenizer would lie outside the model's table."""
    if pieces > rows:
        raise CheckpointError(
            f"the tokenizer in {files.tokenizer} has {pieces} pieces, the model {rows}; "
            "put the tokenizer it was trained with into its folder"
        )


def require_stock(*models: ModelFiles) -> None:
    """CheckpointError for a model that stock classes do not compute: only folders of ours can hold it."""
    from electra_albert.hub.load import read_config
    from electra_albert.model.attention import stock_computes

    for files in models:
        shape = read_config(files)
        if not stock_computes(shape):
            raise CheckpointError(
                f"transformers has no attention {shape.attention}, so {files.weights} cannot be exported; this toolkit "
                "loads it where it is, and a copy of its run's folder elsewhere"
            )


def refuse_source(folder: Path, *models: ModelFiles) -> None:
    """UsageError where `folder` is the one that one of the models lies in."""
    if any(files.weights.parent.resolve() == folder.resolve() for files in models):
        raise UsageError(f"{folder} is where the model comes from; choose another --output_dir")


def refuse_a_runs_folder(folder: Path) -> None:
    """UsageError for the folder of a run or a fine-tuning, and for those in it that are its own."""
    from electra_albert.apps.run_folder import ENVIRONMENT

    place = folder.resolve()
    for run in (place, place.parent) if place.name in _OF_A_RUN else (place,):
        if (run / ENVIRONMENT).is_file() or (run / _CHECKPOINTS).is_dir():
            raise UsageError(
                f"{folder} belongs to a run, whose files would be overwritten; choose another --output_dir"
            )


def refuse_a_pairs_folder(folder: Path) -> None:
    """UsageError for the folder of a pair, which a second model would make ambiguous, and for those in it."""
    from electra_albert.hub.pair_file import PAIR_FILE, pair_at

    place = pair_at(folder)
    if place is not None:
        raise UsageError(f"{place} holds {PAIR_FILE}, generator and discriminator; choose another --output_dir")


def refuse_other_models(folder: Path) -> None:
    """UsageError where weights in or around `folder` would be taken for those of a pair there, or the other way round.

    An older pair in the folder itself is none of them: it is replaced.
    """
    from electra_albert.hub.pair_file import PAIR_FILE, PARTS, pair_at
    from electra_albert.hub.weights import WEIGHT_FILES

    places = (folder, *(folder / part for part in PARTS))
    found = [place / name for place in places for name in WEIGHT_FILES if (place / name).exists()]
    around = pair_at(folder)
    if around is not None and around != folder:
        found.append(around / PAIR_FILE)
    if found:
        raise UsageError(f"{found[0]} is of another model; choose another --output_dir for the pair")
