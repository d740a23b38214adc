"""The model that is taken where none is named: the newest run, else the one that comes with the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from electra_albert.apps.run_folder import CONFIG
from electra_albert.contracts import UsageError

RUNS = Path("runs")  # where the commands are typed
SHIPPED = Path(__file__).parents[2] / "data" / "models"  # of the checkout that this file lies in
_PAIR_FILE = "pair.safetensors"  # as in model/pair_file.py, which loads torch


class DefaultModel(NamedTuple):
    """A folder of generator and discriminator, and what to tell of it."""

    path: Path
    is_shipped: bool

    def told(self) -> str:
        """One line that says which model it is and why it is taken."""
        if self.is_shipped:
            return f"model: {self.path}, which comes with the checkout ({RUNS}/ holds no finished run)"
        return f"model: {self.path}, the newest run"


def default_model() -> DefaultModel:
    """The newest run in RUNS, else the shipped model; UsageError, with what to type, where there is neither.

    Only folders directly below RUNS are looked at: one deeper has to be named.
    """
    try:
        return DefaultModel(newest_run(RUNS), is_shipped=False)
    except UsageError:
        shipped = sorted(SHIPPED.glob(f"*/{_PAIR_FILE}"))
        if not shipped:
            raise
        return DefaultModel(_from_here(shipped[-1].parent), is_shipped=True)  # of several the last by name


def newest_run(runs: Path) -> Path:
    """The run whose generator was written last; UsageError, with what to type, where there is none."""
    exported = [path.parent.parent for path in runs.glob("*/generator/config.json")]
    exported = [folder for folder in exported if (folder / CONFIG).is_file()]  # a pair that was copied there has none
    if not exported:
        raise UsageError(f"{runs}/ holds no finished run; train one first: python Pretraining.py")
    return max(exported, key=lambda run: (run / "generator" / "config.json").stat().st_mtime_ns)


def _from_here(path: Path) -> Path:
    """The path as one types it where the commands are typed, if it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
