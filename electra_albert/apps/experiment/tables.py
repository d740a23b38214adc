"""What an experiment found, as Markdown tables: pretraining, fine-tuning, scores, and what went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from electra_albert.apps.experiment.findings import Findings, Pretrained
from electra_albert.apps.experiment.plan import Arm, Plan

_NOTHING = "-"
_COLLAPSED = "†"
_EVALUATIONS = {  # columns of held-out scores: name in the metrics, title, digits after the point
    "generator_loss": ("generator loss (nats)", 3),
    "mlm_loss": ("masked-token loss (nats)", 3),
    "generator_accuracy": ("generator accuracy", 3),
    "mlm_accuracy": ("masked-token accuracy", 3),
    "discriminator_auc": ("ROC-AUC", 3),
    "discriminator_average_precision": ("average precision", 3),
    "replaced_fraction": ("replaced", 3),
    "sop_accuracy": ("sentence order", 3),
}


def format_findings(plan: Plan, found: Sequence[Findings]) -> str:
    """All that was found, as Markdown."""
    parts = [f"# {plan.title}", "", *_pretraining_table(found)]
    if any(each.tasks for each in found):
        parts += ["", *_task_table(plan, found)]
    if any(each.scores for each in found):
        parts += ["", *_score_table(found)]
    failures = [f"- {each.arm.name}: {failure}" for each in found for failure in each.failures]
    if failures:
        parts += ["", "Failed, stopped or made otherwise:", "", *failures]
    return "\n".join(parts) + "\n"


def _pretraining_table(found: Sequence[Findings]) -> list[str]:
    """A row for the finished runs of each arm, and one for each run that is not, since means are of equal lengths."""
    shown = [name for name in _EVALUATIONS if any(name in run.final for each in found for run in each.runs)]
    head = ["arm", "seeds", "updates", "tokens (M)", "FLOPs", "minutes", *(_EVALUATIONS[name][0] for name in shown)]
    rows = []
    for each in found:
        finished = [run for run in each.runs if run.is_finished]
        if finished:
            rows.append(_run_cells(each.arm.name, finished, shown))
        unfinished = [run for run in each.runs if not run.is_finished]
        rows += [_run_cells(f"{each.arm.name} (unfinished)", [run], shown) for run in unfinished]
    return _markdown(head, rows)


def _run_cells(name: str, runs: Sequence[Pretrained], shown: Sequence[str]) -> list[str]:
    cells = [
        name,
        " ".join(str(run.seed) for run in runs),
        _over(runs, lambda run: run.updates, "{:,.0f}"),
        _over(runs, lambda run: run.tokens / 1e6, "{:.1f}"),
        _over(runs, lambda run: run.flops, "{:.2e}"),
        _over(runs, lambda run: run.seconds / 60, "{:.1f}"),
    ]
    for column in shown:
        values = [value for run in runs if (value := run.final.get(column)) is not None]
        cells.append(_spread(values, _EVALUATIONS[column][1]) if values else _NOTHING)
    return cells


def _task_table(plan: Plan, found: Sequence[Findings]) -> list[str]:
    """Each task's deciding metric x 100, and how far it is from random weights in pooled standard deviations."""
    judged = [each for each in found if each.tasks]
    metrics = {task: each.task_metrics[task] for each in judged for task in each.tasks}
    head = ["arm", *(f"{task} ({metrics[task].replace('_', ' ')})" for task in metrics), "mean"]
    rows = []
    for each in judged:
        base = untrained(each.arm, judged)
        cells = [_task_cell(each, base, task) for task in metrics]
        is_whole = set(each.tasks) == set(metrics)
        mean = sum(100 * _mean(values) for values in each.tasks.values()) / len(each.tasks)
        rows.append([each.arm.name, *cells, f"{mean:.2f}" if is_whole else _NOTHING])
    notes = [f"x 100, mean ± standard deviation over {plan.task_seeds} seed(s) of fine-tuning"]
    if any(each.arm.weights != "random" for each in judged):
        notes.append("of each arm only the first seed of pretraining is fine-tuned")
    if any(untrained(each.arm, judged) for each in judged):
        notes.append("in brackets the distance from random weights of the same shape in pooled standard deviations")
    if any(each.collapsed for each in judged):
        notes.append(f"{_COLLAPSED} so many of the seeds collapsed: they gave the same answer to everything")
    return [*_markdown(head, rows), "", "; ".join(notes) + "."]


def untrained(arm: Arm, found: Sequence[Findings]) -> Findings | None:
    """The random weights that an arm is compared with: those like it, or else of its shape; none for random ones."""
    if arm.weights == "random":
        return None
    same = [each for each in found if each.arm.weights == "random" and each.arm.shape == arm.shape]
    return next((each for each in same if each.arm.like in (arm.name, arm.like)), same[0] if same else None)


def _task_cell(each: Findings, base: Findings | None, task: str) -> str:
    from electra_albert.tasks.metrics import distance_in_stds

    values = each.tasks.get(task)
    if values is None:
        return _NOTHING
    other = base.tasks.get(task) if base is not None else None
    distance = distance_in_stds(values, other) if other else None
    mark = f" {_COLLAPSED}{len(each.collapsed[task])}" if task in each.collapsed else ""
    return _spread([100 * value for value in values], 2) + mark + ("" if distance is None else f" ({distance:+.1f})")


def _score_table(found: Sequence[Findings]) -> list[str]:
    """Texts that were not trained on, and minimal pairs, by each way of scoring that the arm's heads allow."""
    scored = [each for each in found if each.scores]
    files = list(dict.fromkeys(text["file"] for each in scored for text in each.scores["text"]))
    ways = dict.fromkeys(way for each in scored for way in each.scores["pairs"] or {})
    head = ["arm", *(f"{_title(file, files)}: nats a token, accuracy" for file in files)]
    rows = []
    for each in scored:
        texts = {text["file"]: text for text in each.scores["text"]}
        pairs = each.scores["pairs"] or {}
        cells = [_text_cell(texts.get(file)) for file in files] + [_pair_cell(pairs.get(way)) for way in ways]
        rows.append([each.arm.name, *cells])
    table = _markdown([*head, *(f"pairs by {way} (%)" for way in ways)], rows)
    return [*table, "", "Of each arm the first seed of pretraining is scored."]


def _title(file: str, files: Sequence[str]) -> str:
    """The file's name, or its whole path where another has the same name."""
    name = Path(file).name
    return name if [Path(each).name for each in files].count(name) == 1 else file


def _text_cell(text: dict[str, Any] | None) -> str:
    return _NOTHING if text is None else f"{text['nats_per_token']:.3f}, {text['accuracy']:.3f}"


def _pair_cell(pairs: dict[str, Any] | None) -> str:
    return _NOTHING if pairs is None else f"{100 * pairs['mean']:.1f} ± {100 * pairs['standard_error']:.1f}"


def _over(runs: Sequence[Pretrained], value: Callable[[Pretrained], float], form: str) -> str:
    """The mean over runs, as one number."""
    return form.format(sum(value(run) for run in runs) / len(runs))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float], digits: int) -> str:
    from electra_albert.tasks.metrics import summarize

    if not all(map(math.isfinite, values)):
        return "not finite"
    found = summarize(values)
    mean, std = found["mean"], found["std"]
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [[cell.replace("|", r"\|") for cell in cells] for cells in (head, *rows)]
    lines.insert(1, ["---"] * len(head))
    return [f"| {' | '.join(cells)} |" for cells in lines]
