"""Results of an experiment so far: a table in results.md, everything in results.json, curves in curves.png."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from electra_albert.training.monitor import read_metrics
from experiments.plan import PRETRAINING, Plan, Site, Stage
from experiments.running import OTHERWISE, is_done, trouble, write_json

_SCORES = ("generator_loss", "mlm_loss", "generator_accuracy", "mlm_accuracy", "discriminator_auc", "sop_accuracy")
_EVALUATED, _NO_POINT = "eval_", (float("nan"), float("nan"))
Found = dict[str, Any]


def report(plan: Plan, site: Site, stages: Sequence[Stage]) -> str:
    """Write all three files; returns the table."""
    folder = Path(site.output_dir)
    found = {name: find([stage for stage in stages if stage.arm == name]) for name in plan.arms}
    failures = [f"- {name}: {failure}" for name, arm in found.items() for failure in arm["failures"]]
    text = "\n".join([f"# {plan.title}", "", _table(plan, found), *([""] if failures else []), *failures]) + "\n"
    write_json(folder / "results.json", {"title": plan.title, "jobs": site.jobs, "arms": found})
    (folder / "results.md").write_text(text, encoding="utf-8")
    draw_curves(plan.title, found, folder / "curves.png")
    return text


def find(stages: Sequence[Stage]) -> Found:
    """Everything of one arm that was made as the plan has it now, and what went wrong."""
    judged = {stage.name: stage.output for stage in stages if not stage.name.startswith(PRETRAINING) and is_done(stage)}
    files = {name: output / "results.json" if output.is_dir() else output for name, output in judged.items()}
    results = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    scores = results.pop("scores", {})
    return {
        "pretraining": [run for s in stages if s.name.startswith(PRETRAINING) and (run := _run(s))],
        "tasks": {name: {r["main_metric"]: r["metrics"][r["main_metric"]]["values"]} for name, r in results.items()},
        "collapsed_seeds": {name: r["collapsed_seeds"] for name, r in results.items() if r["collapsed_seeds"]},
        "scores": scores,
        "failures": [f"{stage.name} {reason}" for stage in stages if (reason := trouble(stage))],
    }


def _run(stage: Stage) -> Found | None:
    """One pretraining run as far as it has come; None where there is nothing of it yet."""
    rows = read_metrics(stage.output / "metrics.jsonl")
    if not rows or trouble(stage) in (None, OTHERWISE):
        return None
    steps = max(int(row["step"] or 0) for row in rows)
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(_EVALUATED) and isinstance(value, float):
                point = ((row["step"] or 0) * stage.flops, value)
                curves.setdefault(name.removeprefix(_EVALUATED), []).append(point)
    return {
        "seed": int(stage.name.removeprefix(PRETRAINING)),
        "is_finished": is_done(stage),
        "updates": steps,
        "tokens": max(int(row.get("tokens") or 0) for row in rows),
        "flops": steps * stage.flops,
        "seconds": training_seconds(rows),
        "held_out": {name: points[-1][1] for name, points in curves.items()},
        "curves": curves,
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
            line |= {"tokens (M)": f"{mean['tokens'] / 1e6:.1f}", "minutes": f"{mean['seconds'] / 60:.1f}"}
            line |= {"FLOPs": f"{mean['flops']:.2e}"} if mean["flops"] else {}  # not counted of stock
            for score in _SCORES:
                values = [value for run in runs if (value := run["held_out"].get(score)) is not None]
                line |= {score: _spread(values, 3)} if values else {}
        for text in arm["scores"].get("text", []):
            line[f"{Path(text['file']).name} (nats)"] = f"{text['nats_per_token']:.3f}"
        for way, pairs in (arm["scores"].get("pairs") or {}).items():
            line[f"pairs by {way} (%)"] = f"{100 * pairs['mean']:.1f} ± {100 * pairs['standard_error']:.1f}"
        for task, values in arm["tasks"].items():
            metric = next(iter(values))
            line[f"{task} ({metric})"] = _spread([100 * value for value in values[metric]], 2)
        if arm["tasks"] and len(arm["tasks"]) == len(plan.tasks):
            line["mean of tasks"] = f"{100 * fmean(fmean(*one.values()) for one in arm['tasks'].values()):.2f}"
    head = list(dict.fromkeys(title for line in lines.values() for title in line))
    rows = [head, ["---"] * len(head), *([line.get(title, "-") for title in head] for line in lines.values())]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _spread(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


def draw_curves(title: str, found: dict[str, Found], file: Path) -> None:
    """Draw held-out scores of every run over the FLOPs spent; nothing where no run has been evaluated."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counted = [(arm, run) for arm in found for run in found[arm]["pretraining"] if run["flops"]]
    runs = [(list(found).index(arm), arm, run) for arm, run in counted]
    panels = [name for name in _SCORES if any(name in run["curves"] for *_, run in runs)]
    if not panels:
        return
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4.2), squeeze=False, layout="constrained")
    lines: dict[str, Any] = {}
    for axis, panel in zip(axes[0], panels, strict=True):
        for number, name, run in runs:
            points, style = zip(*run["curves"].get(panel, [_NO_POINT]), strict=True), ("-", "--", ":")[number // 10 % 3]
            lines[name] = axis.plot(*points, marker=".", color=f"C{number % 10}", linestyle=style)[0]
        axis.set(xlabel="FLOPs in matrix products", ylabel=f"{panel} on held-out text")
    figure.legend(lines.values(), lines.keys(), loc="outside right center", fontsize="small", frameon=False)
    figure.suptitle(title)
    figure.savefig(file, dpi=110, format="png")
    pyplot.close(figure)
