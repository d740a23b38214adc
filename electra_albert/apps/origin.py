"""The run whose weights another one begins with (--init_from), and the text it was trained on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from electra_albert.apps.prepared_folder import find_store
from electra_albert.apps.run_folder import recorded_settings
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.examples import Rows, build_table
from electra_albert.corpus.tokenizer import fingerprint, load_tokenizer
from electra_albert.training.checkpoint import MANIFEST, MODEL, find_checkpoint, load_checkpoint, read_state

if TYPE_CHECKING:
    from torch import nn

    from electra_albert.corpus.tokenizer import Tokenizer


class Origin(NamedTuple):
    """A run of ours that another one begins from."""

    run: Path
    checkpoint: Path
    step: int  # updates that made the weights
    weights_sha256: str
    held_out: Rows | None  # of the text it was trained on, where that is still prepared


def find_origin(run: Path, tokenizer: Tokenizer, like: Rows, say: Callable[[str], None]) -> Origin:
    """The newest whole checkpoint of `run` and the rows it was scored on, laid out as those of `like`.

    Raises UsageError where it is no run with a checkpoint, CheckpointError where `tokenizer` is not the run's own.
    """
    checkpoint = find_checkpoint(run / "checkpoints", "auto", say)
    if checkpoint is None:
        raise UsageError(f"--init_from {run}: it holds no checkpoint to begin with; name a run that was trained")
    if fingerprint(load_tokenizer(run / "tokenizer")) != fingerprint(tokenizer):
        raise CheckpointError(f"--init_from {run}: it was trained with another tokenizer; leave out --tokenizer")
    manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    sha256 = manifest["files"][MODEL]["sha256"]
    held_out = _held_out(run, like)
    if held_out is None:
        say(
            f"notice: the text of {run} is no longer prepared where it was; what is forgotten of it will not be told: "
            "prepare it again as that run did to see it"
        )
    return Origin(run, checkpoint, int(read_state(checkpoint)["step"]), sha256, held_out)


def _held_out(run: Path, like: Rows) -> Rows | None:
    settings = recorded_settings(run)
    try:
        store = find_store(Path(settings["prepared_dir"]), settings["store"])
        length, seed = settings["max_seq_length"], settings["seed"]
    except (KeyError, TypeError):
        return None
    if store is None:
        return None
    table = build_table(store.validation, length, seed, store.folder / "validation")
    return replace(like, stream=store.validation, table=table, max_seq_length=length, seed=seed)


def begin_with(origin: Origin, objective: nn.Module, say: Callable[[str], None]) -> None:
    """Copy the origin's weights into what will be trained. Raises CheckpointError where they do not fit."""
    load_checkpoint(origin.checkpoint, objective, None)
    say(
        f"beginning with the weights of {origin.run} after step {origin.step:,}; "
        "the optimiser, the schedule and the order of rows start anew at step 1"
    )
