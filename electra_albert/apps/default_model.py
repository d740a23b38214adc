"""The model taken where none is named: the newest run that learned, else the one that comes with the checkout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from electra_albert.apps.run_folder import CONFIG, read_options
from electra_albert.contracts import UsageError

RUNS = Path("runs")  # where the commands are typed
SHIPPED = Path(__file__).parents[2] / "data" / "models"  # of the checkout that this file lies in
_NAMED = 3  # runs in one line


class DefaultModel(NamedTuple):
    """A folder of generator and discriminator, and what to print of it."""

    path: Path
    is_shipped: bool
    passed_over: str = ""  # newer runs that are not taken, each with the reason

    def told(self) -> str:
        """One line that says which model it is and why it is taken."""
        if not self.is_shipped:
            return f"model: {self.path}, the newest run"
        which = "other finished run" if self.passed_over else "finished run"
        return f"model: {self.path}, which comes with the checkout ({RUNS}/ holds no {which})"


def default_model(option: str) -> DefaultModel:
    """The newest run in RUNS that finished its plan and is clear of the baselines, else the shipped model.

    Raises UsageError, with what to type, where there is neither. `option` is the one that names a model. Only folders
    directly below RUNS are looked at: one deeper has to be named.
    """
    flaws: dict[Path, str] = {}
    for run in _finished_runs(RUNS):
        flaw = _flaw(run)
        if not flaw:
            return DefaultModel(run, is_shipped=False, passed_over=_listed(flaws, option))
        flaws[run] = flaw
    shipped = sorted(file.parents[1] for file in SHIPPED.glob("*/generator/config.json"))
    if shipped:
        return DefaultModel(_from_here(shipped[-1]), True, _listed(flaws, option))  # of several the last by name
    if flaws:
        raise UsageError(_listed(flaws, option))
    raise _no_run(RUNS)


def newest_run(runs: Path) -> Path:
    """The run whose generator was written last; UsageError, with what to type, where there is none."""
    found = _finished_runs(runs)
    if not found:
        raise _no_run(runs)
    return found[0]


def _no_run(runs: Path) -> UsageError:
    return UsageError(f"{runs}/ holds no finished run; train one first: python Pretraining.py")


def _finished_runs(runs: Path) -> list[Path]:
    """The runs that have exported a generator, the last written first."""
    exported = [path.parent.parent for path in runs.glob("*/generator/config.json")]
    exported = [folder for folder in exported if (folder / CONFIG).is_file()]  # a model that was copied there has none
    return sorted(exported, key=lambda run: (run / "generator" / "config.json").stat().st_mtime_ns, reverse=True)


def _flaw(run: Path) -> str:
    """Why a run is not taken where none is named, by its config.yaml and metrics.jsonl; empty where it is."""
    from electra_albert.apps.pretrain.scores import read_evaluations
    from electra_albert.objectives.evaluation import has_learned

    try:
        planned = read_options(run / CONFIG, str(run / CONFIG))["max_steps"]
        last = read_evaluations(run, "eval_")[-1]
        if last["step"] < planned:
            return f"stopped at step {last['step']:,} of {planned:,}"
        learned = has_learned(last)
        if learned is None:
            return "its objective has no baseline to be compared with"
        return "" if learned else f"not clear of the baselines after {last['step']:,} steps"
    except (UsageError, OSError, LookupError, TypeError):
        return "its files do not say what it learned"


def _listed(flaws: Mapping[Path, str], option: str) -> str:
    if not flaws:
        return ""
    named = ", ".join(f"{run} ({flaw})" for run, flaw in list(flaws.items())[:_NAMED])
    more = f" and {len(flaws) - _NAMED} more" if len(flaws) > _NAMED else ""
    return f"not taken by default: {named}{more}; to take it: {option} {next(iter(flaws))}"


def _from_here(path: Path) -> Path:
    """The path as one types it where the commands are typed, if it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
