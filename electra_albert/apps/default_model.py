"""The model taken where none is named: the newest run that learned, else the one that comes with the toolkit."""

import logging
from pathlib import Path

from electra_albert.apps.run_folder import CONFIG, read_evaluations, read_options
from electra_albert.contracts import UsageError
from electra_albert.files import MODELS as SHIPPED

LOG = logging.getLogger(__name__)

RUNS = Path("runs")  # where the commands are typed
_NO_RUN = f"{RUNS}/ holds no finished run; train one first: python Pretraining.py"


def default_model(option: str) -> Path:
    """The newest run in RUNS that finished and learned, else the shipped model; logged. `option` names a model."""
    runs = _finished_runs()
    for run in runs:
        if not (flaw := _flaw(run)):
            LOG.info(f"model: {run}, the newest run")
            return run
        LOG.info(f"notice: not taken by default: {run} ({flaw}); to take it: {option} {run}")
    shipped = sorted(SHIPPED.glob("*/generator/config.json"))
    if not shipped:
        raise UsageError(_NO_RUN)
    folder, here = shipped[-1].parents[1], Path.cwd()  # of several the last by name
    folder = folder.relative_to(here) if folder.is_relative_to(here) else folder
    LOG.info(f"model: {folder}, which comes with the toolkit ({RUNS}/ holds no {'other ' * bool(runs)}finished run)")
    return folder


def newest_run() -> Path:
    """The run in RUNS whose generator was written last; UsageError where there is none."""
    if not (runs := _finished_runs()):
        raise UsageError(_NO_RUN)
    return runs[0]


def _finished_runs() -> list[Path]:
    """The runs that exported a generator, the last written first; a model copied there has no CONFIG and is none."""
    exported = [path for path in RUNS.glob("*/generator/config.json") if (path.parents[1] / CONFIG).is_file()]
    return [path.parents[1] for path in sorted(exported, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def _flaw(run: Path) -> str:
    """Why a run is not taken by default, by its config.yaml and metrics.jsonl; empty where it is."""
    from electra_albert.objectives.evaluation import has_learned

    try:
        planned = read_options(run / CONFIG, str(run / CONFIG))["max_steps"]
        last = read_evaluations(run)[-1]
        if last["step"] < planned:
            return f"stopped at step {last['step']:,} of {planned:,}"
        return "" if has_learned(last) else f"not clear of the baselines after {last['step']:,} steps"
    except (UsageError, OSError, LookupError, TypeError):
        return "its files do not show what it learned"
