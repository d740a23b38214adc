"""The default model: the newest finished run that beats the baselines, else the shipped model."""

from itertools import takewhile
from pathlib import Path

from electra_albert.apps.metrics_table import has_learned
from electra_albert.apps.run_folder import CONFIG, read_evaluations, read_options
from electra_albert.contracts import LOG, UsageError
from electra_albert.files import MODELS as SHIPPED

RUNS = Path("runs")  # relative to the working directory
_NO_RUN = f"there is no finished run in {RUNS}/; train one first: electra-albert pretrain"


def default_model(option: str) -> Path:
    """The newest run in RUNS that finished and learned, else the shipped model; logged.

    `option` selects another one.
    """
    runs = _finished_runs()
    reasons = list(takewhile(bool, (_reason_to_skip(run, option) for run in runs)))
    if reasons:
        others = f" and {len(reasons) - 1} older" if len(reasons) > 1 else ""
        LOG.info(
            f"notice: skipping {runs[0]} ({reasons[0]}){others}; to use it anyway: "
            f"{option} {runs[0]}"
        )
    if len(reasons) < len(runs):
        chosen = runs[len(reasons)]
        LOG.info(f"model: {chosen} (newest run)")
        return chosen
    shipped = sorted(SHIPPED.glob("*/generator/config.json"))
    if not shipped:
        raise UsageError(_NO_RUN)
    folder = shipped[-1].parents[1]  # the last by name
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    other = "other " if runs else ""
    LOG.info(f"model: {folder} (shipped model; no {other}finished run in {RUNS}/)")
    return folder


def newest_run() -> Path:
    """The run in RUNS with the latest exported model. Raises UsageError if there is none."""
    runs = _finished_runs()
    if not runs:
        raise UsageError(_NO_RUN)
    return runs[0]


def _finished_runs() -> list[Path]:
    """Runs that exported a model, newest first; a folder without CONFIG is a copied model."""
    configs = [*RUNS.glob("*/generator/config.json"), *RUNS.glob("*/discriminator/config.json")]
    configs.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    runs = dict.fromkeys(path.parents[1] for path in configs)
    return [run for run in runs if (run / CONFIG).is_file()]


def _reason_to_skip(run: Path, option: str) -> str:
    """Why a run is not the default model; empty if it can be."""
    if option == "--gen" and not (run / "generator").is_dir():
        return "it has no generator"
    try:
        planned = read_options(run / CONFIG, str(run / CONFIG))["max_steps"]
        last = read_evaluations(run)[-1]
        if last["step"] < planned:
            return f"stopped at step {last['step']:,} of {planned:,}"
        if has_learned(last) is False:
            return f"scores not clearly above the baselines after {last['step']:,} steps"
        return ""
    except (UsageError, OSError, LookupError, TypeError):
        return f"no scores in its {CONFIG} and metrics.jsonl"
