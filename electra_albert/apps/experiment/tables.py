"""What an experiment found, as Markdown tables: pretraining, fine-tuning, scores, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from electra_albert.apps.experiment.findings import Findings, Pretrained, Spread, difference_in_stds
from electra_albert.apps.experiment.plan import Plan

_NOTHING = "-"
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
        parts += ["", "Failed or stopped:", "", *failures]
    return "\n".join(parts) + "\n"


def _pretraining_table(found: Sequence[Findings]) -> list[str]:
    trained = [each for each in found if each.runs]
    shown = {
        name: column
        for name, column in _EVALUATIONS.items()
        if any(name in run.final for each in trained for run in each.runs)
    }
    head = ["arm", "seeds", "updates", "tokens (M)", "FLOPs", "minutes", *(title for title, _ in shown.values())]
    rows = []
    for each in trained:
        runs = each.runs
        cells = [
            each.arm.name,
            " ".join(str(run.seed) for run in runs),
            _over(runs, lambda run: max(row["step"] or 0 for row in run.rows), "{:,.0f}"),
            _over(runs, lambda run: run.tokens / 1e6, "{:.1f}"),
            _over(runs, lambda run: run.flops, "{:.2e}"),
            _over(runs, lambda run: run.seconds / 60, "{:.1f}"),
        ]
        for name, (_, digits) in shown.items():
            values = [value for run in runs if (value := run.final.get(name)) is not None]
            cells.append(_spread(Spread(tuple(values)), digits) if values else _NOTHING)
        rows.append(cells)
    return _markdown(head, rows)


def _task_table(plan: Plan, found: Sequence[Findings]) -> list[str]:
    """Each task's deciding metric x 100, and how far it is from random weights in pooled standard deviations."""
    random = next((each for each in found if each.arm.weights == "random"), None)
    judged = [each for each in found if each.tasks]
    metrics = {task: each.task_metrics[task] for each in judged for task in each.tasks}
    head = ["arm", *(f"{task} ({metrics[task].replace('_', ' ')})" for task in metrics), "mean"]
    rows = []
    for each in judged:
        cells = [each.arm.name]
        for task in metrics:
            spread = each.tasks.get(task)
            if spread is None:
                cells.append(_NOTHING)
                continue
            told = _spread(Spread(tuple(100 * value for value in spread.values)), 2)
            base = random.tasks.get(task) if random is not None and random is not each else None
            distance = difference_in_stds(spread, base) if base else None
            cells.append(told + ("" if distance is None else f" ({distance:+.1f})"))
        is_whole = set(each.tasks) == set(metrics)
        mean = sum(100 * spread.mean for spread in each.tasks.values()) / len(each.tasks)
        rows.append([*cells, f"{mean:.2f}" if is_whole else _NOTHING])
    notes = [f"x 100, mean ± standard deviation over {plan.task_seeds} seed(s)"]
    if random is not None:
        notes.append(f"in brackets the distance from {random.arm.name} in pooled standard deviations")
    return [*_markdown(head, rows), "", "; ".join(notes) + "."]


def _score_table(found: Sequence[Findings]) -> list[str]:
    """Texts that were not trained on, and minimal pairs, by each way of scoring that the arm's heads allow."""
    scored = [each for each in found if each.scores]
    texts = dict.fromkeys(Path(text["file"]).name for each in scored for text in each.scores["text"])
    ways = dict.fromkeys(way for each in scored for way in each.scores["pairs"] or {})
    head = ["arm", *(f"{name}: nats a token, accuracy" for name in texts), *(f"pairs by {way} (%)" for way in ways)]
    rows = []
    for each in scored:
        of_texts = {Path(text["file"]).name: text for text in each.scores["text"]}
        pairs = each.scores["pairs"] or {}
        cells = [each.arm.name]
        cells += [
            f"{of_texts[name]['nats_per_token']:.3f}, {of_texts[name]['accuracy']:.3f}"
            if name in of_texts
            else _NOTHING
            for name in texts
        ]
        cells += [
            f"{100 * pairs[way]['mean']:.1f} ± {100 * pairs[way]['standard_error']:.1f}" if way in pairs else _NOTHING
            for way in ways
        ]
        rows.append(cells)
    return _markdown(head, rows)


def _over(runs: Sequence[Pretrained], value: Callable[[Pretrained], float], form: str) -> str:
    """The mean over runs, as one number."""
    return form.format(sum(value(run) for run in runs) / len(runs))


def _spread(spread: Spread, digits: int) -> str:
    told = f"{spread.mean:.{digits}f}"
    return told if spread.std is None else f"{told} ± {spread.std:.{digits}f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
