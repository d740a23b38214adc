"""Results of an experiment so far: a table in results.md, all numbers in results.json, curves in
curves.png.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from electra_albert.files import write_json
from electra_albert.training.monitor import read_metrics
from experiments.plan import PRETRAINING, Plan, Site, Stage
from experiments.running import OTHER_RECIPE, failure, is_done

_SCORES = (
    "generator_loss",
    "mlm_loss",
    "generator_accuracy",
    "mlm_accuracy",
    "discriminator_auc",
    "sop_accuracy",
)
_EVALUATED, _NO_POINT = "eval_", (float("nan"), float("nan"))
Found = dict[str, Any]


def report(plan: Plan, site: Site, stages: Sequence[Stage]) -> str:
    """Write all three files and return the table."""
    folder = Path(site.output_dir)
    found = {
        name: find([stage for stage in stages if stage.variant == name]) for name in plan.variants
    }
    failures = [
        f"- {name}: {reason}" for name, variant in found.items() for reason in variant["failures"]
    ]
    text = (
        "\n".join(
            [f"# {plan.title}", "", _table(plan, found), *([""] if failures else []), *failures]
        )
        + "\n"
    )
    write_json(folder / "results.json", {"title": plan.title, "jobs": site.jobs, "variants": found})
    (folder / "results.md").write_text(text, encoding="utf-8")
    draw_curves(plan.title, found, folder / "curves.png")
    return text


def find(stages: Sequence[Stage]) -> Found:
    """Results of one variant's stages that match the current plan, and the failures."""
    scored = {
        stage.name: stage.output
        for stage in stages
        if not stage.name.startswith(PRETRAINING) and is_done(stage)
    }
    files = {
        name: output / "results.json" if output.is_dir() else output
        for name, output in scored.items()
    }
    results = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    scores = results.pop("scores", {})
    return {
        "pretraining": [run for s in stages if s.name.startswith(PRETRAINING) and (run := _run(s))],
        "tasks": {
            name: {r["main_metric"]: r["metrics"][r["main_metric"]]["values"]}
            for name, r in results.items()
        },
        "collapsed_seeds": {
            name: r["collapsed_seeds"] for name, r in results.items() if r["collapsed_seeds"]
        },
        "scores": scores,
        "failures": [f"{stage.name} {reason}" for stage in stages if (reason := failure(stage))],
    }


def _run(stage: Stage) -> Found | None:
    """Results of one pretraining run so far; None if it has logged nothing."""
    rows = read_metrics(stage.output / "metrics.jsonl")
    if not rows or failure(stage) in (None, OTHER_RECIPE):
        return None
    steps = max(int(row["step"] or 0) for row in rows)
    costs = {
        "updates": steps,
        "flops": stage.flops_per_step * steps,
        "seconds": training_seconds(rows),
    }
    costs["tokens"] = max(int(row.get("tokens") or 0) for row in rows)
    before = (stage.needs and "init_from" in stage.options and _run(stage.needs)) or dict.fromkeys(
        costs, 0
    )
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(_EVALUATED) and isinstance(value, float):
                point = (before["flops"] + stage.flops_per_step * (row["step"] or 0), value)
                curves.setdefault(name.removeprefix(_EVALUATED), []).append(point)
    return {
        "seed": int(stage.name.removeprefix(PRETRAINING)),
        "is_finished": is_done(stage),
        **{name: before[name] + cost for name, cost in costs.items()},
        "held_out": {name: points[-1][1] for name, points in curves.items()},
        "curves": curves,
    }


def training_seconds(rows: Sequence[Found]) -> float:
    """Time of the updates in a metrics file, without evaluation and checkpoints: tokens over tokens
    per second.
    """
    logged = [
        {"tokens": 0},
        *(row for row in rows if row.get("tokens_per_second") and row.get("tokens")),
    ]
    return sum(
        (
            (row["tokens"] - last["tokens"]) / row["tokens_per_second"]
            for last, row in pairwise(logged)
        ),
        0.0,
    )


def _table(plan: Plan, found: dict[str, Found]) -> str:
    """A row for each variant. Unfinished runs are left out: a mean needs runs of equal length."""
    lines: dict[str, dict[str, str]] = {name: {"variant": name} for name in found}
    for name, variant in found.items():
        line, runs = lines[name], [run for run in variant["pretraining"] if run["is_finished"]]
        if runs:
            mean = {
                key: fmean(run[key] for run in runs)
                for key in ("updates", "tokens", "flops", "seconds")
            }
            line |= {
                "seeds": " ".join(str(run["seed"]) for run in runs),
                "updates": f"{mean['updates']:,.0f}",
            }
            line |= {
                "tokens (M)": f"{mean['tokens'] / 1e6:.1f}",
                "minutes": f"{mean['seconds'] / 60:.1f}",
            }
            line |= (
                {"FLOPs": f"{mean['flops']:.2e}"} if mean["flops"] else {}
            )  # not counted for stock
            for score in _SCORES:
                values = [
                    value for run in runs if (value := run["held_out"].get(score)) is not None
                ]
                line |= {score: _spread(values, 3)} if values else {}
        for text in variant["scores"].get("text", []):
            line[f"{Path(text['file']).name} (nats)"] = f"{text['nats_per_token']:.3f}"
        for way, pairs in (variant["scores"].get("pairs") or {}).items():
            line[f"pairs by {way} (%)"] = (
                f"{100 * pairs['mean']:.1f} ± {100 * pairs['standard_error']:.1f}"
            )
        for task, values in variant["tasks"].items():
            metric = next(iter(values))
            line[f"{task} ({metric})"] = _spread([100 * value for value in values[metric]], 2)
        if variant["tasks"] and len(variant["tasks"]) == len(plan.tasks):
            line["mean of tasks"] = (
                f"{100 * fmean(fmean(*one.values()) for one in variant['tasks'].values()):.2f}"
            )
    head = list(dict.fromkeys(title for line in lines.values() for title in line))
    rows = [
        head,
        ["---"] * len(head),
        *([line.get(title, "-") for title in head] for line in lines.values()),
    ]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _spread(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


def draw_curves(title: str, found: dict[str, Found], file: Path) -> None:
    """Plot held-out scores of every run over FLOPs; does nothing if no run has been evaluated."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counted = [
        (variant, run) for variant in found for run in found[variant]["pretraining"] if run["flops"]
    ]
    runs = [(list(found).index(variant), variant, run) for variant, run in counted]
    panels = [name for name in _SCORES if any(name in run["curves"] for *_, run in runs)]
    if not panels:
        return
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(6 * len(panels), 4.2), squeeze=False, layout="constrained"
    )
    lines: dict[str, Any] = {}
    for axis, panel in zip(axes[0], panels, strict=True):
        for number, name, run in runs:
            points, style = (
                zip(*run["curves"].get(panel, [_NO_POINT]), strict=True),
                ("-", "--", ":")[number // 10 % 3],
            )
            lines[name] = axis.plot(*points, marker=".", color=f"C{number % 10}", linestyle=style)[
                0
            ]
        axis.set(xlabel="FLOPs in matrix products", ylabel=f"{panel} on held-out text")
    figure.legend(
        lines.values(), lines.keys(), loc="outside right center", fontsize="small", frameon=False
    )
    figure.suptitle(title)
    figure.savefig(file, dpi=110, format="png")
    pyplot.close(figure)
