"""Held-out scores as tables: next to their baselines, and before and after continued pretraining."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from electra_albert.contracts import Metrics
from electra_albert.objectives.evaluation import has_learned
from electra_albert.training.monitor import CLOCK, read_metrics

OLD_TEXT_PREFIX = "old_text_"  # of scores on the text that the weights of --init_from were trained on
MASKED_TOKENS = "masked_tokens"  # number of tokens that the loss is a mean of
_SPREAD_NATS = 3.0  # standard deviation of the loss of one masked token; 2.2 by the token frequencies alone
_LARGEST_ERROR = 0.1  # nats, beyond which a standard error is warned of


def format_scores(metrics: Metrics) -> str:
    """The held-out scores of any objective, each next to its baseline."""

    def value(name: str) -> str:
        return "-" if metrics.get(name) is None else f"{metrics[name]:.3f}"

    def times(name: str, baseline: str) -> str:
        score, base = metrics.get(name), metrics.get(baseline)
        return f"{score / base:.2f} x" if score and base else "-"

    rows = [("on held-out text", "score", "baseline", "")]
    for name, label in (("generator", "generator"), ("mlm", "masked-token")):
        if f"{name}_loss" in metrics:
            most = "most_frequent_accuracy"
            ratio = times(f"{name}_accuracy", most)
            rows += [
                (f"{label} loss (nats)", value(f"{name}_loss"), value("unigram_loss"), "token frequencies alone"),
                (f"{label} accuracy", value(f"{name}_accuracy"), value(most), f"the most frequent token; {ratio}"),
            ]
    has_detection = "discriminator_auc" in metrics
    if has_detection:
        precision = "discriminator_average_precision"
        ratio = times(precision, "replaced_fraction")
        shuffled = f"shuffled labels: {value('shuffled_labels_auc')}"
        rows += [
            ("discriminator ROC-AUC", value("discriminator_auc"), "0.500", shuffled),
            ("discriminator average precision", value(precision), value("replaced_fraction"), f"replaced; {ratio}"),
        ]
    if "sop_accuracy" in metrics:
        swapped = metrics.get("swapped_fraction")
        chance = "-" if swapped is None else f"{max(swapped, 1 - swapped):.3f}"
        rows.append(("sentence order accuracy", value("sop_accuracy"), chance, "the more frequent order"))
    known = ("generator_loss", "mlm_loss", "discriminator_loss", "sop_loss", "unigram_loss")
    losses = [name for name in metrics if name.endswith("_loss") and "/" not in name and name not in known]
    rows += [(f"{name.replace('_', ' ')} (nats)", value(name), "-", "") for name in losses]
    lines = [_table(rows)]
    if sources := [name.partition("/")[2] for name in metrics if name.startswith(f"{MASKED_TOKENS}/")]:
        losses = [name for name in metrics if name.endswith("_loss") and f"{name}/{sources[0]}" in metrics]
        titles = ["token frequencies" if name == "unigram_loss" else name.replace("_", " ") for name in losses]
        by_source = [("by source", *titles, "masked tokens")]
        for source in sources:
            counted = f"{metrics[f'{MASKED_TOKENS}/{source}']:,}"
            by_source.append((source, *(value(f"{name}/{source}") for name in losses), counted))
        lines.append(f"\n{_table(by_source)}\n")
    learned = has_learned(metrics)
    if learned:
        lines.append("clear of the baselines")
    elif learned is not None:
        bars = "2.5 x, 0.65 and 1.5 x" if has_detection else "2.5 x"
        lines.append(f"not yet clear of the baselines ({bars}): train longer or on more text")
    masked_tokens = metrics.get(MASKED_TOKENS)
    return "\n".join([*lines, *([] if masked_tokens is None else error_lines(masked_tokens))])


def error_lines(masked_tokens: int) -> list[str]:
    """A warning where a loss over so many masked tokens is so uncertain that it means little."""
    error = _SPREAD_NATS / max(1, masked_tokens) ** 0.5
    if error <= _LARGEST_ERROR:
        return []
    return [
        f"warning: held-out scores are of {masked_tokens:,} masked tokens only, so that the standard error of a loss "
        f"is about {error:.1g} nats; give more text or raise --eval_examples"
    ]


def read_evaluations(folder: Path, prefix: str) -> list[Metrics]:
    """The evaluation rows of a run's metrics.jsonl, oldest first, names without `prefix`."""
    rows = read_metrics(folder / "metrics.jsonl")
    evaluations = [row for row in rows if any(name.startswith(prefix) for name in row)]
    unscored = ("phase", *CLOCK)
    return [
        {name.removeprefix(prefix): value for name, value in row.items() if name not in unscored} for row in evaluations
    ]


def format_forgetting(evaluations: Sequence[Metrics]) -> str:
    """Losses on the new text and on that of the initial weights, before the first update and after the last."""
    if not evaluations:
        return "forgetting is unknown: metrics.jsonl holds no evaluation"
    before, after = evaluations[0], evaluations[-1]
    rows: list[tuple[str, ...]] = [
        ("on held-out text", f"at step {before['step']:,}", f"at step {after['step']:,}", "")
    ]
    for name in after:
        if name.endswith("_loss") and name != "unigram_loss" and not name.startswith(OLD_TEXT_PREFIX):
            for key, text in ((name, "new text"), (OLD_TEXT_PREFIX + name, "old text")):
                if key in after:
                    then, now = before.get(key), after.get(key)
                    cells = ("-" if value is None else f"{value:.3f}" for value in (then, now))
                    change = "-" if then is None or now is None else f"{now - then:+.3f}"
                    rows.append((f"{name.replace('_', ' ')}, {text}", *cells, change))
    return _table(rows)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
