"""Resume checks: settings that changed since the run began are logged, or refused."""

from __future__ import annotations

import logging
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from electra_albert.apps.pretrain.generator_warmup import FOLDER
from electra_albert.apps.run_folder import MAY_CHANGE, compare_settings, run_settings
from electra_albert.contracts import UsageError
from electra_albert.training.checkpoint import find_checkpoint, read_state

if TYPE_CHECKING:
    from electra_albert.config import PretrainConfig
    from electra_albert.training.step import RunSettings

LOG = logging.getLogger(__name__)


def check_settings(folder: Path, found: Path | None, preset: str, config: PretrainConfig, world_size: int) -> None:
    """Compare the run that is resumed with what is known of its settings before the corpus is read.

    Raises CheckpointError where a setting differs that decides what is trained; UsageError where the run would end
    before the checkpoint it is resumed from.
    """
    begun = _begun(folder, found)
    if begun is None:
        return
    origin, state, may_change = begun
    if origin == found and state["step"] > config.training.max_steps:
        raise UsageError(
            f"{found} is beyond --max_steps {config.training.max_steps}; raise it or choose another --output_dir"
        )
    settings = run_settings(preset, config, world_size, "unknown", {})
    recorded = {name: value for name, value in state["settings"].items() if name in settings}
    settings["model"]["vocab_size"] = recorded.get("model", {}).get("vocab_size")  # the tokenizer's, found later
    compare_settings(recorded, settings, origin, may_change)


def _begun(folder: Path, found: Path | None) -> tuple[Path, dict[str, Any], Set[str]] | None:
    """The checkpoint of a run, or of its generator's warm-up, its state, and what may have changed since."""
    if found is not None:
        return found, read_state(found), MAY_CHANGE
    warmup = find_checkpoint(folder / FOLDER / "checkpoints", "auto")
    # The warm-up's schedule depends on the run's length.
    return None if warmup is None else (warmup, read_state(warmup), MAY_CHANGE - {"max_steps"})


def log_changes(run: RunSettings) -> None:
    """Log what differs from when the run was begun, or its generator's warm-up, where it is resumed in that.

    Raises CheckpointError where a setting differs that decides what is trained.
    """
    begun = _begun(run.folder, run.resume_from)
    if begun is None:
        return
    found, state, may_change = begun
    for change in compare_settings(state["settings"], run.settings, found, may_change):
        LOG.info(f"changed since the run began: {change}")
    now = {"world_size": run.world.world_size, "threads": torch.get_num_threads(), "torch": torch.__version__}
    for name, value in now.items():
        if state[name] != value:
            LOG.info(f"{name} was {state[name]} and is {value}: numbers may differ in their last bits from here on")
