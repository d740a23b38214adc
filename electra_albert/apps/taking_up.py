"""A run that was begun before and is taken up again: what has changed since is said, or refused."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from electra_albert.apps.generator_warmup import FOLDER
from electra_albert.apps.run_folder import MAY_CHANGE, compare_settings
from electra_albert.contracts import UsageError
from electra_albert.training.checkpoint import find_checkpoint, read_state

if TYPE_CHECKING:
    from electra_albert.training.run import Run


def say_changes(run: Run) -> None:
    """Say what differs from when the run was begun, or its generator's warm-up, where it is taken up in that.

    Raises CheckpointError where a setting differs that decides what is trained; UsageError where the run would end
    before the checkpoint it goes on from.
    """
    if run.resume_from is not None:
        found, step = run.resume_from, read_state(run.resume_from)["step"]
        if step > run.config.max_steps:
            raise UsageError(
                f"{found} is beyond --max_steps {run.config.max_steps}; raise it or choose another --output_dir"
            )
        _say(run, found, MAY_CHANGE)
        return
    warmup = find_checkpoint(run.folder / FOLDER / "checkpoints", "auto", run.monitor.say)
    if warmup is not None:  # its schedule depends on the run's length
        _say(run, warmup, MAY_CHANGE - {"max_steps"})


def _say(run: Run, found: Path, may_change: Set[str]) -> None:
    state, say = read_state(found), run.monitor.say
    for change in compare_settings(state["settings"], run.settings, found, may_change):
        say(f"changed since the run began: {change}")
    now = {"world_size": run.world.world_size, "threads": torch.get_num_threads(), "torch": torch.__version__}
    for name, value in now.items():
        if state[name] != value:
            say(f"{name} was {state[name]} and is {value}: numbers may differ in their last bits from here on")
