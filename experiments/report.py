"""Results of an experiment so far: a table in results.md, everything in results.json, curves in curves.png."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from electra_albert.training.monitor import read_metrics
from experiments.plan import PRETRAINING, Arm, Plan, Site, Stage
from experiments.running import is_done, read_record, trouble, write_json

_SCORES = ("generator_loss", "mlm_loss", "generator_accuracy", "mlm_accuracy", "discriminator_auc")
_SCORES += ("discriminator_average_precision", "replaced_fraction", "sop_accuracy")
_DRAWN = ("generator_loss", "mlm_loss", "discriminator_auc", "sop_accuracy")
Found = dict[str, Any]


def report(plan: Plan, site: Site, phases: Sequence[Sequence[Stage]]) -> str:
    """Write all three files; returns the table."""
    stages, folder = [stage for phase in phases for stage in phase], Path(site.output_dir)
    found = {name: find(arm, [stage for stage in stages if stage.arm == name]) for name, arm in plan.arms.items()}
    text = f"# {plan.title}\n\n{_table(plan, found)}\n"
    failures = [f"- {name}: {failure}" for name, arm in found.items() for failure in arm["failures"]]
    if failures:
        text += "\nFailed, stopped or made otherwise:\n\n" + "\n".join(failures) + "\n"
    draw_curves(plan.title, found, folder / "curves.png")
    for run in (run for arm in found.values() for run in arm["pretraining"]):
        del run["rows"]
    write_json(folder / "results.json", {"title": plan.title, "jobs": site.jobs, "arms": found})
    (folder / "results.md").write_text(text, encoding="utf-8")
    return text


def find(arm: Arm, stages: Sequence[Stage]) -> Found:
    """Everything of one arm that was made as the plan has it now, and what is missing."""
    judged = [stage for stage in stages if not stage.name.startswith(PRETRAINING)]
    read = {s.name: s.output / "results.json" if s.output.is_dir() else s.output for s in judged if is_done(s)}
    results = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in read.items()}
    scores = results.pop("scores", {})
    failures = [f"{stage.name} {reason}" for stage in stages if (reason := trouble(stage))]
    failures += [
        f"{s.name} was not run: the weights of {s.needs.arm} failed" for s in judged if s.needs and trouble(s.needs)
    ]
    collapsed = {name: r["collapsed_seeds"] for name, r in results.items() if r["collapsed_seeds"]}
    failures += [f"{name}: seeds {seeds} collapsed to one answer" for name, seeds in collapsed.items()]
    return {
        "weights": arm.weights,
        "like": arm.like,
        "options": arm.options,
        "pretraining": [run for s in stages if s.name.startswith(PRETRAINING) and (run := _run(s))],
        "tasks": {name: {r["main_metric"]: r["metrics"][r["main_metric"]]["values"]} for name, r in results.items()},
        "collapsed_seeds": collapsed,
        "scores": scores,
        "failures": failures,
    }


def _run(stage: Stage) -> Found | None:
    """One pretraining run as far as it has come; None where there is nothing of it yet."""
    record, rows = read_record(stage), read_metrics(stage.output / "metrics.jsonl")
    if record is None or record["recipe"] != stage.recipe or not rows:
        return None
    evaluated = [row for row in rows if any(name.startswith("eval_") for name in row)]
    final = {name: value for name, value in (evaluated[-1] if evaluated else {}).items() if name.startswith("eval_")}
    steps = max(int(row["step"] or 0) for row in rows)
    return {
        "seed": int(stage.name.removeprefix(PRETRAINING)),
        "is_finished": record["exit_code"] == 0,
        "updates": steps,
        "tokens": max(int(row.get("tokens") or 0) for row in rows),
        "flops": steps * stage.flops,
        "seconds": training_seconds(rows),
        "threads": record["threads"],
        "jobs": record["jobs"],
        "held_out": {name.removeprefix("eval_"): value for name, value in final.items()},
        "rows": [{**row, "flops": row["step"] * stage.flops} for row in evaluated],
    }


def training_seconds(rows: Sequence[Found]) -> float:
    """The time of the updates in a metrics file, without evaluating and saving: tokens over their rate."""
    total, before = 0.0, 0.0
    for row in rows:
        if row.get("tokens_per_second") and row.get("tokens"):
            total += (row["tokens"] - before) / row["tokens_per_second"]
            before = row["tokens"]
    return total


def _table(plan: Plan, found: dict[str, Found]) -> str:
    """A line for each arm, whose unfinished runs are left out, since means are of equal lengths."""
    lines: dict[str, dict[str, str]] = {name: {"arm": name} for name in found}
    for name, arm in found.items():
        line, runs = lines[name], [run for run in arm["pretraining"] if run["is_finished"]]
        if runs:
            mean = {key: fmean(run[key] for run in runs) for key in ("updates", "tokens", "flops", "seconds")}
            line |= {"seeds": " ".join(str(run["seed"]) for run in runs), "updates": f"{mean['updates']:,.0f}"}
            line |= {"tokens (M)": f"{mean['tokens'] / 1e6:.1f}", "FLOPs": f"{mean['flops']:.2e}"}
            line["minutes"] = f"{mean['seconds'] / 60:.1f}"
            for score in _SCORES:
                values = [value for run in runs if (value := run["held_out"].get(score)) is not None]
                line |= {_title(score): _spread(values, 3)} if values else {}
        for text in arm["scores"].get("text", []):
            line[f"{Path(text['file']).name} (nats)"] = f"{text['nats_per_token']:.3f}"
        for way, pairs in (arm["scores"].get("pairs") or {}).items():
            line[f"pairs by {way} (%)"] = f"{100 * pairs['mean']:.1f} ± {100 * pairs['standard_error']:.1f}"
        for task, values in arm["tasks"].items():
            metric = next(iter(values))
            line[f"{task} ({_title(metric)})"] = _spread([100 * value for value in values[metric]], 2)
        if arm["tasks"] and len(arm["tasks"]) == len(plan.tasks):
            line["mean of tasks"] = f"{100 * fmean(fmean(*one.values()) for one in arm['tasks'].values()):.2f}"
    head = dict.fromkeys(title for line in lines.values() for title in line)
    rows = [list(head), ["---"] * len(head), *([line.get(title, "-") for title in head] for line in lines.values())]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _title(name: str) -> str:
    return name.replace("_", " ")


def _spread(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


def draw_curves(title: str, found: dict[str, Found], file: Path) -> None:
    """Draw held-out scores of every run over the FLOPs spent; nothing where no run has been evaluated."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = [(number, name, run) for number, (name, arm) in enumerate(found.items()) for run in arm["pretraining"]]
    panels = [name for name in _DRAWN if any(row.get(f"eval_{name}") for *_, run in runs for row in run["rows"])]
    if not panels:
        return
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4.2), squeeze=False, layout="constrained")
    lines: dict[str, Any] = {}
    for axis, panel in zip(axes[0], panels, strict=True):
        for number, name, run in runs:
            points = [(row["flops"], value) for row in run["rows"] if (value := row.get(f"eval_{panel}")) is not None]
            style = f"C{number % 10}", ("-", "--", ":")[number // 10 % 3]
            lines[name] = axis.plot(*zip(*points, strict=True), color=style[0], linestyle=style[1], marker=".")[0]
        axis.set(xlabel="FLOPs in matrix products", ylabel=f"{_title(panel)} on held-out text")
    figure.legend(lines.values(), lines.keys(), loc="outside right center", fontsize="small", frameon=False)
    figure.suptitle(title)
    figure.savefig(file, dpi=110, format="png")
    pyplot.close(figure)
