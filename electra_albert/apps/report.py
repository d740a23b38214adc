"""Write report.html of a run: curves, scores, samples, corpus statistics and settings.

examples:
  electra-albert report                                         the newest run in runs/
  electra-albert report --run runs/mine --compare runs/other    the curves of both
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from electra_albert.apps import run_folder as files
from electra_albert.apps.command_line import check_can_write, make_parser, parse
from electra_albert.apps.default_model import newest_run
from electra_albert.apps.metrics_table import METRICS, format_scores
from electra_albert.config.checks import require
from electra_albert.contracts import redacted
from electra_albert.files import SHIPPED, read_json, write_text, writing
from electra_albert.training.run_log import LOG_FILE

REFERENCE = SHIPPED / "sample" / "reference"  # metrics of the default run
_TEMPLATE = Path(__file__).with_name("report.html")
_MOST_ROWS = 1000  # of training metrics; of more, equally spaced ones are drawn
_SCORED = list[tuple[str, float]]  # tokens with probabilities
_SAMPLE: dict[str, Any] = {
    "step": int,
    "text": str,
    "original": str,
    "predictions": _SCORED,
    "replaced_probabilities": _SCORED | None,
}
_SETTINGS: dict[str, Any] = {
    "objective": str | None,
    "preset": str | None,
    "seed": int | None,
    "max_steps": int | None,
}
_RECORD: dict[str, Any] = {
    "processor": str | None,
    "corpus_statistics": list[str] | None,
    "flops_per_step": int | None,
}
_CHARTS: dict[str, tuple[str, str | float | None]] = {  # title and baseline by metric
    **{name: (metric.label, metric.baseline) for name, metric in METRICS.items()},
    "pairs_likelihood": ("minimal pairs by likelihood", 0.5),
    "pairs_detection": ("minimal pairs by detection", 0.5),
    "loss": ("total loss", None),
    "grad_norm": ("gradient norm", None),
    "learning_rate": ("learning rate", None),
    "tokens_per_second": ("tokens per second", None),
}


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser(
        "electra-albert report", "Write report.html of a run, one file that needs no network."
    )
    parser.add_argument(
        "--run", type=str | None, help="The run's folder; by default the newest run."
    )
    parser.add_argument(
        "--compare", type=str, nargs="+", default=[], help="Folders of runs whose curves are added."
    )
    parser.add_argument(
        "--output", type=str | None, help=f"The file; by default {files.REPORT} in the run."
    )
    options = parse(parser, argv)
    folder = Path(options.run or newest_run())
    compared = [Path(name) for name in options.compare]
    for run in (folder, *compared):
        require(
            (run / files.METRICS).is_file(),
            f"{run} is not a run's folder (no {files.METRICS}); name one",
        )
    output = Path(options.output or folder / files.REPORT)
    require(not output.is_dir(), f"--output {output} is a folder; name a file")
    check_can_write(output.parent)
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_report(folder, output, compared)
    print(f"written to {output}")
    return 0


def write_report(folder: Path, output: Path, compared: Sequence[Path] = ()) -> None:
    """Write the report of a run, with the curves of other runs, by default of the default run."""
    data = report_data(folder, compared or [REFERENCE])
    content = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    page = _TEMPLATE.read_text(encoding="utf-8")
    write_text(output, page.replace("__DATA__", content))


def report_data(folder: Path, compared: Sequence[Path]) -> dict[str, Any]:
    """The content of a report, from the files of the run."""
    from electra_albert.training.monitor import read_rows

    record = read_json(folder / files.ENVIRONMENT, _RECORD)
    evaluations = files.read_evaluations(folder)
    settings = read_json(folder / files.ENVIRONMENT, {"settings": _SETTINGS}).get("settings", {})
    scores = "no evaluation yet"
    if evaluations:
        scores = format_scores(evaluations[-1])
    log = _text_of(folder / LOG_FILE)
    warnings = dict.fromkeys(re.findall(r" warning: (.*)", log))
    environment = {
        name: value
        for name, value in record.items()
        if name != "settings" and not isinstance(value, list)
    }
    samples = defaultdict[str, dict[int, Any]](dict)  # by text, then by step
    for row in read_rows(folder / files.SAMPLES, _SAMPLE):
        sample = {name: row[name] for name in _SAMPLE if name in row}
        samples[row["text"]][row["step"]] = sample  # the last of a step
    charts = [
        {"metric": name, "title": title[0].upper() + title[1:], "baseline": baseline}
        for name, (title, baseline) in _CHARTS.items()
    ]
    curves = [_curves(run) for run in (folder, *compared) if (run / files.METRICS).is_file()]
    rows = curves[0]["rows"]
    return {
        "title": folder.absolute().name,
        "facts": _facts(record, settings, rows[-1] if rows else {}),
        "scores": scores,
        "warnings": list(warnings),
        "charts": charts,
        "runs": curves,
        "samples": [list(samples[text].values()) for text in sorted(samples)],
        "details": {
            "Corpus": "\n".join(record.get("corpus_statistics") or []),
            "Command": _text_of(folder / files.COMMAND),
            "Configuration": _text_of(folder / files.CONFIG),
            "Environment": json.dumps(environment, indent=1),
        },
    }


def _facts(
    record: Mapping[str, Any], settings: Mapping[str, Any], done: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings and progress of the run; `done`: its last row of metrics, or empty."""
    return {
        "objective": settings.get("objective"),
        "preset": settings.get("preset"),
        "corpus": Path(str(settings.get("corpus"))).name,
        "steps": f"{done.get('step') or 0:,} of {settings.get('max_steps') or 0:,}",
        "tokens": f"{done.get('tokens') or 0:,}",
        "FLOPs": f"{done['flops']:.3g}" if "flops" in done else None,
        "time": f"{(done.get('elapsed_seconds') or 0) / 60:,.1f} min",
        "processor": record.get("processor"),
        "seed": settings.get("seed"),
    }


def _text_of(path: Path) -> str:
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return str(redacted(text))


def _curves(folder: Path) -> dict[str, Any]:
    """The rows of a run's metrics with FLOPs; those of training thinned, numbers rounded."""
    from electra_albert.training.monitor import read_metrics

    per_step = read_json(folder / files.ENVIRONMENT, _RECORD).get("flops_per_step")
    logged = read_metrics(folder / files.METRICS)
    training = [row for row in logged if row.get("phase") == "train"]
    spacing = len(training) // _MOST_ROWS + 1
    rows = training[::-spacing]  # with the last
    rows += [row for row in logged if row.get("phase") == "eval"]
    rows.sort(key=itemgetter("step"))
    for row in rows:
        if per_step:
            row["flops"] = per_step * row["step"]
        for name, value in row.items():
            if isinstance(value, float):
                row[name] = float(f"{value:.5g}")
    name = folder.absolute().name
    if folder == REFERENCE:
        name = "default run"
    return {"name": name, "rows": rows}
